"""Training: a step as one schedule, optimizers, schedules of the learning rate, data in order, a loop with checkpoints."""

from camshaft.train.adam_8bit import AdamW8bit
from camshaft.train.data import Batches, Windows
from camshaft.train.optimizers import SGD, Adafactor, Adam, AdamW, Lion, Optimizer, Update
from camshaft.train.record.recorder import Records
from camshaft.train.schedules import constant, cosine, linear, warmup_stable_decay
from camshaft.train.step.step import Step
from camshaft.train.trainer import Progress, Trainer
from camshaft.train.tuning.adapter_file import load_adapter, merge, save_adapter
from camshaft.train.tuning.distillation import DistillOptions, DistillResult, distill_quantize
from camshaft.train.tuning.finetuning import finetune
from camshaft.train.tuning.methods.lora import LoraConfig, LoraModel
from camshaft.train.tuning.options import FinetuneOptions, FinetuneResult
from camshaft.train.validation import Validation

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
