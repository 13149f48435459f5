"""Command-line options of `camshaft finetune` for the method and the optimizer, as a group that makes the library's objects.

Imports neither NumPy nor the library at module level, to keep startup short."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli import options
from camshaft.errors import SettingError
from camshaft.train.tuning.method_options import METHODS, OPTIONS, WHOLE, refuse_others

if TYPE_CHECKING:
    from camshaft.train.tuning.methods.lora import LoraConfig
    from camshaft.train.tuning.options import FinetuneOptions


def _of(name: str, text: str, *flags: str, **more: Any) -> Any:
    """Returns an option that some methods have: its help names them, its default is the table's."""
    option = OPTIONS[name]
    if not isinstance(option.default, bool) and option.default is not None:
        text = f"{text.removesuffix('.')}; default: {option.default:g}."
    return typer.Option(*flags, help=f"{text} [{', '.join(option.methods)}]", **more)


_Method = Annotated[
    str,
    typer.Option(
        metavar="|".join(METHODS),
        help="By adapters: answers (lora), preferences (dpo). The weights themselves: answers (full), so that --type rounds"
        " little of them away (qat), similar texts (embedding).",
    ),
]
_Rank = Annotated[int | None, _of("rank", "Rank of the adapters.", metavar="N", min=1)]
_Alpha = Annotated[float | None, _of("alpha", "The adapters' products are multiplied by alpha / rank.", metavar="X")]
_Dropout = Annotated[
    float | None, _of("dropout", "Share of the adapters' inputs that are 0 in a step of training.", metavar="P")
]
_RsLora = Annotated[bool, _of("rslora", "Multiply by alpha / sqrt(rank) in place of alpha / rank.", "--rslora")]
_Dora = Annotated[bool, _of("dora", "Learn the norm of each changed row too (DoRA); OUT is a folder.", "--dora")]
_Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="A matrix to learn or to adapt, or a pattern: attn_q, ffn_*; may be given several times."
    ),
]
_Written = Annotated[
    str | None,
    _of("file_type", "Type of the model to write, as of quantize; default: F16 for blocks.", "--type", metavar="TYPE"),
]
_Optimizer = Annotated[str, typer.Option(metavar="NAME", help="adamw, adamw8bit, adafactor, lion or sgd.")]
_Schedule = Annotated[str, typer.Option(metavar="NAME", help="How --lr falls: cosine, linear, wsd or constant.")]
_Decay = Annotated[float, typer.Option(metavar="X", min=0, help="Weight decay.")]
_Epochs = Annotated[int, typer.Option(metavar="N", min=1, help="How often every example is learned.")]
_Steps = Annotated[int | None, typer.Option(metavar="N", min=1, help="The number of steps, in place of --epochs.")]
_Batch = Annotated[int, typer.Option(metavar="N", min=1, help="Examples of a step.")]
_Micro = Annotated[int, typer.Option(metavar="N", min=1, help="Parts in which a batch is computed, to save memory.")]
_Length = Annotated[int, typer.Option(metavar="N", min=2, help="The most tokens that an example may have.")]
_Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Gives the order of examples and the first adapters.")]
_Beta = Annotated[float | None, _of("beta", "How far to go from the model: less at more.", metavar="X")]
_Temperature = Annotated[float | None, _of("temperature", "Cosines are divided by it.", metavar="X")]
_Compute = Annotated[
    str,
    typer.Option(metavar="f32|bf16|f16", help="What gradients need is kept in: half the memory in bf16 and f16."),
]
_Activations = Annotated[
    str | None,
    _of(
        "activations",
        "What products with the model's quantized weights take: q8, or bf16 with AMX, are faster.",
        metavar="f32|q8|bf16",
    ),
]
_Pack = Annotated[bool, _of("pack", "Put as many examples into each row of --length tokens as fit.", "--pack")]
_ValidateEvery = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Steps between validations; default: a twentieth of all.")
]
_Patience = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Stop after N validations in a row without a lower loss.")
]
_Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory of a step, such as 800M or 2G: layers are recomputed to fit."),
]


@dataclass(frozen=True)
class LearningOptions:
    """How to fine-tune: fields of LoraConfig and FinetuneOptions, whose defaults these are; None where it is the method's."""

    method: _Method = "lora"
    rank: _Rank = None
    alpha: _Alpha = None
    dropout: _Dropout = None
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
    lr: options.LearningRate = 2e-4
    seed: _Seed = 0
    beta: _Beta = None
    temperature: _Temperature = None
    compute: _Compute = "f32"
    activations: _Activations = None
    pack: _Pack = False
    validate_every: _ValidateEvery = None
    patience: _Patience = None
    memory: _Memory = None

    def made(self) -> tuple[LoraConfig | None, FinetuneOptions]:
        """Returns the library's objects; no LoraConfig for methods without adapters. Raises CamshaftError for invalid values."""
        from camshaft.train.tuning.methods.lora import LoraConfig
        from camshaft.train.tuning.options import FinetuneOptions

        given: dict[str, Any] = dict(vars(self))
        adapters = {name: given.pop(name) for name in ("rank", "alpha", "dropout", "rslora", "dora")}
        target = given.pop("target")
        targets: dict[str, Any] = {"targets": tuple(target)} if target else {}
        if self.memory is not None:
            given["memory"] = _nbytes(self.memory)
        chosen_options = FinetuneOptions(**given, **targets)
        refuse_others(self.method, adapters)
        if self.method in WHOLE:
            return None, chosen_options
        chosen = {name: value for name, value in adapters.items() if value is not None}
        return LoraConfig(**chosen, seed=self.seed, **targets), chosen_options


def _nbytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([MG])B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise SettingError(f"--memory {text[:40]}: wanted a size such as 800M or 2G")
    return int(float(match[1]) * (10**6 if match[2] in "mM" else 10**9))
