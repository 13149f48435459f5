"""Training: a step as one schedule, optimizers, schedules of the learning rate, data in order, a loop with checkpoints."""

from camshaft.train.data import Batches, Windows
from camshaft.train.optimizers import SGD, Adafactor, Adam, AdamW, Lion, Optimizer, Update
from camshaft.train.schedules import constant, cosine, linear, warmup_stable_decay
from camshaft.train.step import Step
from camshaft.train.trainer import Progress, Trainer

__all__ = [
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "Batches",
    "Lion",
    "Optimizer",
    "Progress",
    "Step",
    "Trainer",
    "Update",
    "Windows",
    "constant",
    "cosine",
    "linear",
    "warmup_stable_decay",
]
