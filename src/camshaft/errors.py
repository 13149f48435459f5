"""Every error camshaft raises on purpose; each names what came and what was wanted. Imported by all, imports nothing."""


class CamshaftError(Exception):
    """Base of all errors raised on purpose. A command prints its message on one line and exits with status 2."""


class SettingError(CamshaftError):
    """A setting or environment variable has a value that cannot be used."""


class MissingExtraError(CamshaftError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'camshaft[{extra}]'")


class StoreError(CamshaftError):
    """The store (kernel objects, evidence, models) cannot be read or written."""


class FormatError(CamshaftError):
    """A file is damaged, hostile, or of a kind that camshaft does not read."""


class KernelError(CamshaftError):
    """A kernel's source breaks a rule of the kernel language."""


class VerifyError(CamshaftError):
    """A kernel's IR is not well formed, or its execution reads or writes where it must not."""


class ShapeError(CamshaftError):
    """An op was given shapes, dtypes or attributes it does not take."""


class ArrayValueError(ShapeError, ValueError):
    """NumPy raises a ValueError in these words."""


class ArrayTypeError(ShapeError, TypeError):
    """NumPy raises a TypeError in these words."""


class ArrayOverflowError(ShapeError, OverflowError):
    """NumPy raises an OverflowError in these words."""


class BackendError(CamshaftError):
    """A backend is unknown, absent, or failed its proof."""


class PlanError(CamshaftError):
    """A graph cannot be turned into a plan, or a plan was run with the wrong inputs."""


class ValidationError(CamshaftError):
    """A thunk computed something else than its op's reference (CAMSHAFT_VALIDATE, CAMSHAFT_OVERRIDE)."""


class ModelError(CamshaftError):
    """A model is unknown, or its file lacks a tensor or a key that its architecture wants."""


class ContextError(CamshaftError):
    """More tokens than the context holds."""


class DownloadError(CamshaftError):
    """A model could not be fetched, or what came is not what was expected."""
