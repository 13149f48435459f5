"""Exceptions that camshaft raises, and words of their messages. Messages name what came and what was wanted."""


def count(n: int, noun: str) -> str:
    """Returns a number with its noun: '1 session', '8 sessions'."""
    return f"{n} {noun if n == 1 else noun + 's'}"


def shortened(text: str, limit: int = 120) -> str:
    """Returns a text on one line, of at most `limit` characters, for a `repr`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def reason_of(error: Exception) -> str:
    """Returns why a system call failed, in the words of a message: 'no space left on device', without its number and path.
    Of another exception its text."""
    text: str | None = getattr(error, "strerror", None)
    return text[:1].lower() + text[1:] if text else str(error)


class CamshaftError(Exception):
    """Base class of camshaft's errors. A command prints the message on one line and exits with status 2."""


class SettingError(CamshaftError):
    """A setting or environment variable has an invalid value."""


class MissingExtraError(CamshaftError):
    """An optional dependency is not installed; the message names the extra that provides it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'camshaft[{extra}]'")


class GrammarError(SettingError):
    """A grammar for generating is invalid, not supported, or too complex."""


class StoreError(CamshaftError):
    """The store (kernel objects, evidence, models) cannot be read or written."""


class FormatError(CamshaftError):
    """A file is damaged, malicious, or in an unsupported format."""


class KernelError(CamshaftError):
    """A kernel's source breaks a rule of the kernel language."""


class VerifyError(CamshaftError):
    """A kernel's IR is malformed, or its execution accesses memory out of bounds."""


class ShapeError(CamshaftError):
    """An op does not accept these shapes, dtypes or attributes."""


class ArrayValueError(ShapeError, ValueError):
    """NumPy raises a ValueError in these words."""


class ArrayTypeError(ShapeError, TypeError):
    """NumPy raises a TypeError in these words."""


class ArrayOverflowError(ShapeError, OverflowError):
    """NumPy raises an OverflowError in these words."""


class ArrayMemoryError(ShapeError, MemoryError):
    """A result or an input has more bytes than there is memory; NumPy raises a MemoryError or ValueError."""


class BackendError(CamshaftError):
    """A backend is unknown or unavailable, or failed validation."""


class PlanError(CamshaftError):
    """A graph cannot be compiled, or a plan was run with wrong inputs."""


class ValidationError(CamshaftError):
    """A thunk's result differs from its op's reference (CAMSHAFT_VALIDATE, CAMSHAFT_OVERRIDE)."""


class ModelError(CamshaftError):
    """A model is unknown, or its file lacks a required tensor or key."""


class OtherArchitectureError(ModelError):
    """A model file is run by another class than the one that opened it."""

    def __init__(self, architecture: str, what: str) -> None:
        super().__init__(f"the file's architecture is {architecture}, {what}")
        self.architecture = architecture


class ContextError(CamshaftError):
    """A request exceeds the context length or the number of sessions."""


class PromptError(ContextError):
    """A prompt is empty, or has ids that are no tokens of the model."""


class SlotsInUseError(ContextError):
    """All sessions of a model are open; one may become free."""


class CacheFullError(ContextError):
    """The cache of keys and values has no free block."""


class LogitsError(CamshaftError):
    """A model computed NaN logits, so no token can be sampled."""


class TrainingError(CamshaftError):
    """A training step computed a loss or gradients that are not finite, or a checkpoint does not fit."""


class DownloadError(CamshaftError):
    """A model could not be downloaded, or the downloaded file is not the expected one."""
