"""The methods of fine-tuning, and which of them each option that is not for all belongs to.

The command's help and the errors are made of this table. It imports nothing, to keep the command's startup short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from camshaft.errors import PlanError

ADAPTERS = ("lora", "dpo")  # methods that learn adapters
WHOLE = ("full", "qat", "embedding")  # methods that learn a model's own weights, and write a model
METHODS = (*ADAPTERS, *WHOLE)


@dataclass(frozen=True)
class MethodOption:
    """The methods that an option is for, and what it is for them where it is not given."""

    methods: tuple[str, ...]
    default: float | bool | None


OPTIONS: Mapping[str, MethodOption] = {
    "rank": MethodOption(ADAPTERS, 8),
    "alpha": MethodOption(ADAPTERS, 16.0),
    "dropout": MethodOption(ADAPTERS, 0.0),
    "rslora": MethodOption(ADAPTERS, False),
    "dora": MethodOption(ADAPTERS, False),
    "beta": MethodOption(("dpo",), 0.1),
    "temperature": MethodOption(("embedding",), 0.05),
    "pack": MethodOption(("lora", "full", "qat"), False),
    "file_type": MethodOption(WHOLE, None),
    "activations": MethodOption(("lora",), None),
}


def refuse_others(method: str, given: Mapping[str, object]) -> None:
    """PlanError for an option among the given ones, values by name, that is not for the method. None and False are not given."""
    for name, value in given.items():
        if name in OPTIONS and value is not None and value is not False and method not in OPTIONS[name].methods:
            methods = ", ".join(OPTIONS[name].methods)
            raise PlanError(f"finetune: got {name}={value!r:.60} for the method {method}; wanted it for {methods}")
