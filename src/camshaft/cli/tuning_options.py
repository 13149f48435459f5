"""Command-line options of how `camshaft finetune` learns, as a group that makes the library's objects.

Imports neither NumPy nor the library at module level, to keep startup short."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.errors import SettingError

if TYPE_CHECKING:
    from camshaft.train.tuning.methods.lora import LoraConfig
    from camshaft.train.tuning.options import FinetuneOptions

_Method = Annotated[
    str,
    typer.Option(
        metavar="lora|dpo|full|qat|embedding",
        help="By adapters: answers (lora), preferences (dpo). The weights themselves: answers (full), so that --type rounds"
        " little of them away (qat), similar texts (embedding).",
    ),
]
_Rank = Annotated[int, typer.Option(metavar="N", min=1, help="Rank of the adapters.")]
_Alpha = Annotated[float, typer.Option(metavar="X", help="The adapters' products are multiplied by alpha / rank.")]
_RsLora = Annotated[bool, typer.Option("--rslora", help="Multiply by alpha / sqrt(rank) in place of alpha / rank.")]
_Dora = Annotated[bool, typer.Option("--dora", help="Learn the norm of each changed row too (DoRA); OUT is a folder.")]
_Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="A matrix to learn or to adapt, or a pattern: attn_q, ffn_*; may be given several times."
    ),
]
_Written = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="Type of the model that full, qat and embedding write, as of quantize; default: F16 for blocks.",
    ),
]
_Optimizer = Annotated[str, typer.Option(metavar="NAME", help="adamw, adamw8bit, adafactor, lion or sgd.")]
_Schedule = Annotated[str, typer.Option(metavar="NAME", help="How --lr falls: cosine, linear, wsd or constant.")]
_Decay = Annotated[float, typer.Option(metavar="X", min=0, help="Weight decay.")]
_Epochs = Annotated[int, typer.Option(metavar="N", min=1, help="How often every example is learned.")]
_Steps = Annotated[int | None, typer.Option(metavar="N", min=1, help="The number of steps, in place of --epochs.")]
_Batch = Annotated[int, typer.Option(metavar="N", min=1, help="Examples of a step.")]
_Micro = Annotated[int, typer.Option(metavar="N", min=1, help="Parts in which a batch is computed, to save memory.")]
_Length = Annotated[int, typer.Option(metavar="N", min=2, help="The most tokens that an example may have.")]
_Rate = Annotated[float, typer.Option("--lr", metavar="X", help="The greatest learning rate.")]
_Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Gives the order of examples and the first adapters.")]
_Beta = Annotated[float, typer.Option(metavar="X", help="How far --method dpo may go from the model: less at more.")]
_Temperature = Annotated[float, typer.Option(metavar="X", help="Cosines of --method embedding are divided by it.")]
_Pack = Annotated[bool, typer.Option("--pack", help="Put as many examples into each row of --length tokens as fit.")]
_ValidateEvery = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Steps between validations; default: a twentieth of all.")
]
_Patience = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Stop after so many validations in a row without a lower loss.")
]
_Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory of a step, such as 800M or 2G: layers are computed once more to fit."),
]


@dataclass(frozen=True)
class LearningOptions:
    """How to fine-tune: fields of LoraConfig and FinetuneOptions, whose defaults these are."""

    method: _Method = "lora"
    rank: _Rank = 8
    alpha: _Alpha = 16.0
    rslora: _RsLora = False
    dora: _Dora = False
    target: _Target = None
    file_type: _Written = None
    optimizer: _Optimizer = "adamw"
    schedule: _Schedule = "cosine"
    weight_decay: _Decay = 0.0
    epochs: _Epochs = 3
    steps: _Steps = None
    batch: _Batch = 4
    micro_batches: _Micro = 1
    length: _Length = 512
    lr: _Rate = 2e-4
    seed: _Seed = 0
    beta: _Beta = 0.1
    temperature: _Temperature = 0.05
    pack: _Pack = False
    validate_every: _ValidateEvery = None
    patience: _Patience = None
    memory: _Memory = None

    def made(self) -> tuple[LoraConfig, FinetuneOptions]:
        """The library's objects. Raises CamshaftError for what they refuse."""
        from camshaft.train.tuning.methods.lora import LoraConfig
        from camshaft.train.tuning.options import FinetuneOptions

        given: dict[str, Any] = dict(vars(self))
        adapters = {name: given.pop(name) for name in ("rank", "alpha", "rslora", "dora")}
        target = given.pop("target")
        targets: dict[str, Any] = {"targets": tuple(target)} if target else {}
        if self.memory is not None:
            given["memory"] = _nbytes(self.memory)
        lora = LoraConfig(**adapters, seed=self.seed, **targets)
        return lora, FinetuneOptions(**given, **targets)


def _nbytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([MG])B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise SettingError(f"--memory {text[:40]}: wanted a size such as 800M or 2G")
    return int(float(match[1]) * (10**6 if match[2] in "mM" else 10**9))
