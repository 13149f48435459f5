"""Training: a step as one schedule, optimizers, schedules of the learning rate, data in order, a loop with checkpoints.

Names are loaded when they are first used, so that the command line reads the options of `finetune` without the library.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from camshaft.train.adam_8bit import AdamW8bit
    from camshaft.train.data import Batches, Windows
    from camshaft.train.optimizers import SGD, Adafactor, Adam, AdamW, Lion, Optimizer, Update
    from camshaft.train.record.recorder import Records
    from camshaft.train.schedules import constant, cosine, linear, warmup_stable_decay
    from camshaft.train.step.scaling import LossScaling
    from camshaft.train.step.step import Step
    from camshaft.train.trainer import Progress, Trainer
    from camshaft.train.tuning.adapter_file import load_adapter, merge, save_adapter
    from camshaft.train.tuning.distillation import DistillOptions, DistillResult, distill_quantize
    from camshaft.train.tuning.finetuning import finetune
    from camshaft.train.tuning.methods.lora import LoraConfig, LoraModel
    from camshaft.train.tuning.options import FinetuneOptions, FinetuneResult
    from camshaft.train.validation import Validation

_PUBLIC = {
    "adam_8bit": "AdamW8bit",
    "data": "Batches Windows",
    "optimizers": "SGD Adafactor Adam AdamW Lion Optimizer Update",
    "record.recorder": "Records",
    "schedules": "constant cosine linear warmup_stable_decay",
    "step.scaling": "LossScaling",
    "step.step": "Step",
    "trainer": "Progress Trainer",
    "tuning.adapter_file": "load_adapter merge save_adapter",
    "tuning.distillation": "DistillOptions DistillResult distill_quantize",
    "tuning.finetuning": "finetune",
    "tuning.methods.lora": "LoraConfig LoraModel",
    "tuning.options": "FinetuneOptions FinetuneResult",
    "validation": "Validation",
}
_HOME = {name: f"camshaft.train.{module}" for module, names in _PUBLIC.items() for name in names.split()}
__all__ = [
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "AdamW8bit",
    "Batches",
    "DistillOptions",
    "DistillResult",
    "FinetuneOptions",
    "FinetuneResult",
    "Lion",
    "LoraConfig",
    "LoraModel",
    "LossScaling",
    "Optimizer",
    "Progress",
    "Records",
    "Step",
    "Trainer",
    "Update",
    "Validation",
    "Windows",
    "constant",
    "cosine",
    "distill_quantize",
    "finetune",
    "linear",
    "load_adapter",
    "merge",
    "save_adapter",
    "warmup_stable_decay",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'camshaft.train' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names, for tab completion."""
    return sorted(__all__)
