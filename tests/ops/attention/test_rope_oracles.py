"""Rotations and tables against transformers' own rotary embeddings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from camshaft import ops
from camshaft.ops.rope.table import RopeScaling, frequencies_of, rope_table

pytestmark = pytest.mark.oracle
RNG = np.random.default_rng(6)
TOKENS, HEADS = 7, 2


def rotated(name: str, x: np.ndarray, positions: np.ndarray, table: np.ndarray, **attrs: Any) -> np.ndarray:
    heads, tokens, dim = x.shape
    given = x.transpose(1, 0, 2).reshape(tokens, -1), positions.astype(np.int32), table
    (y,) = ops.get(name).reference(given, {"heads": heads, "head_dim": dim, **attrs})
    return y.reshape(tokens, heads, dim).transpose(1, 0, 2)


def close(ours: np.ndarray, theirs: Any) -> None:
    """Theirs are in f32, angles included."""
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=2e-5)


def drawn(dim: int) -> np.ndarray:
    return RNG.normal(size=(HEADS, TOKENS, dim)).astype(np.float32)


_FACTORS = np.linspace(1, 3, 32), np.linspace(2, 40, 32)
SCALINGS: list[tuple[dict[str, Any], RopeScaling, int]] = [
    ({"rope_type": "linear", "factor": 4.0}, RopeScaling("linear", 4.0), 2048),
    ({"rope_type": "dynamic", "factor": 3.0}, RopeScaling("dynamic", 3.0, 2048), 5000),
    ({"rope_type": "dynamic", "factor": 3.0}, RopeScaling("dynamic", 3.0, 2048), 100),
    ({"rope_type": "yarn", "factor": 4.0}, RopeScaling("yarn", 4.0, 2048), 100),
    ({"rope_type": "yarn", "factor": 32.0, "truncate": False}, RopeScaling("yarn", 32.0, 2048, truncate=False), 100),
    (
        {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.0},
        RopeScaling("yarn", 40.0, 2048, mscale=0.7, mscale_all_dim=1.0),
        100,
    ),
    (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        RopeScaling("llama3", 8.0, 2048, low_freq_factor=1.0, high_freq_factor=4.0),
        100,
    ),
    *(
        (
            {
                "rope_type": "longrope",
                "factor": 16.0,
                "short_factor": _FACTORS[0].tolist(),
                "long_factor": _FACTORS[1].tolist(),
            },
            RopeScaling("longrope", 16.0, 2048, short_factors=_FACTORS[0], long_factors=_FACTORS[1]),
            context,
        )
        for context in (100, 5000)
    ),
]


@pytest.mark.parametrize(("theirs", "ours", "context"), SCALINGS, ids=lambda v: str(getattr(v, "kind", "")))
def test_tables(theirs: dict[str, Any], ours: RopeScaling, context: int) -> None:
    transformers = pytest.importorskip("transformers")
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    config = transformers.LlamaConfig(hidden_size=128, num_attention_heads=2, max_position_embeddings=2048)
    config.rope_parameters = {"rope_theta": 1e4, "original_max_position_embeddings": 2048, **theirs}
    frequencies, magnitude = functions[theirs["rope_type"]](config, seq_len=context)
    found, factor = frequencies_of(context, 64, 1e4, ours)
    np.testing.assert_allclose(found, frequencies.numpy(), rtol=2e-6)
    assert factor == pytest.approx(magnitude, rel=1e-12)


def test_qwen2_vl_has_contiguous_sections() -> None:
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    rotary = SimpleNamespace(mrope_section=[8, 12, 12])
    x, positions = drawn(64), RNG.integers(0, 90, (TOKENS, 3))
    frequencies = torch.arange(0, 64, 2, dtype=torch.float).div(-64).mul(np.log(1e4)).exp()
    angles = torch.from_numpy(positions.T.copy()).float()[..., None] * frequencies
    cos, sin = (
        qwen.Qwen2VLRotaryEmbedding.recomposition_frequencies(rotary, f(angles)[:, None])
        for f in (torch.cos, torch.sin)
    )
    given = torch.from_numpy(x)[None]
    wanted, _ = qwen.apply_rotary_pos_emb(given, given, *(t.reshape(1, TOKENS, 64) for t in (cos, sin)))
    got = rotated("rope_multi", x, positions, rope_table(90, 64, 1e4), sections=(8, 12, 12))
    close(got, wanted[0])


@pytest.mark.parametrize("sections", [(12, 10, 10), (24, 4, 4), (12, 6, 14)])
def test_qwen3_vl_has_interleaved_sections(sections: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers.models.qwen3_vl.modeling_qwen3_vl")
    rotary = SimpleNamespace(mrope_section=list(sections))
    x, positions = drawn(64), RNG.integers(0, 90, (TOKENS, 3))
    frequencies = torch.arange(0, 64, 2, dtype=torch.float).div(-64).mul(np.log(1e4)).exp()
    angles = torch.from_numpy(positions.T.copy()).float()[:, None, :, None] * frequencies
    compose = qwen.Qwen3VLTextRotaryEmbedding.recomposition_frequencies
    cos, sin = (compose(rotary, f(angles)) for f in (torch.cos, torch.sin))
    given = torch.from_numpy(x)[None]
    wanted, _ = qwen.apply_rotary_pos_emb(given, given, cos, sin)
    got = rotated("rope_multi", x, positions, rope_table(90, 64, 1e4), sections=sections, layout="interleaved")
    close(got, wanted[0])


def test_qwen_vision_has_sections_that_begin_anew() -> None:
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    x, positions = drawn(64), RNG.integers(0, 90, (TOKENS, 2))
    frequencies = torch.arange(0, 32, 2, dtype=torch.float).div(-32).mul(np.log(1e4)).exp()
    angles = (torch.from_numpy(positions).float()[..., None] * frequencies).flatten(1)
    angles = torch.cat((angles, angles), dim=-1)
    given = torch.from_numpy(x).transpose(0, 1)
    wanted, _ = qwen.apply_rotary_pos_emb_vision(given, given, angles.cos(), angles.sin())
    got = rotated("rope_multi", x, positions, rope_table(90, 32, 1e4), sections=(16, 16), layout="vision")
    close(got, wanted.transpose(0, 1))


def test_gemma4_rotates_half_a_head_by_each_axis() -> None:
    torch = pytest.importorskip("torch")
    gemma = pytest.importorskip("transformers.models.gemma4.modeling_gemma4")
    x, positions = drawn(64), RNG.integers(0, 90, (TOKENS, 2))
    frequencies = torch.arange(0, 32, 2, dtype=torch.float).div(-32).mul(np.log(1e4)).exp()
    where = torch.from_numpy(positions)[None]
    angles = where[..., None].float() * frequencies
    compose = gemma.Gemma4VisionRotaryEmbedding.recomposition_frequencies
    cos, sin = (compose(None, f(angles)) for f in (torch.cos, torch.sin))
    wanted = gemma.apply_multidimensional_rope(torch.from_numpy(x).transpose(0, 1)[None], cos, sin, where)
    got = rotated("rope_vision_2d", x, positions, rope_table(90, 32, 1e4))
    close(got, wanted[0].transpose(0, 1))


def test_sam2_rotates_neighbours_by_row_and_column() -> None:
    torch = pytest.importorskip("torch")
    sam = pytest.importorskip("transformers.models.sam2_video.modeling_sam2_video")
    x, positions = drawn(64), RNG.integers(0, 90, (TOKENS, 2))
    frequencies = torch.arange(0, 32, 2, dtype=torch.float).div(-32).mul(np.log(1e4)).exp()
    angles = torch.from_numpy(positions)[..., None].float() * frequencies
    compose = sam.Sam2VideoVisionRotaryEmbedding.recomposition_frequencies
    cos, sin = (compose(None, f(angles)) for f in (torch.cos, torch.sin))
    given = torch.from_numpy(x)[None]
    wanted, _ = sam.apply_rotary_pos_emb_2d(given, given, cos, sin)
    got = rotated("rope_axial_2d", x, positions, rope_table(90, 32, 1e4), pairing="interleaved")
    close(got, wanted[0])


def test_qwen3_norms_each_head_and_rotates_it() -> None:
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    x, w, positions = drawn(64), RNG.normal(size=64).astype(np.float32), RNG.integers(0, 90, TOKENS)
    norm = qwen.Qwen3RMSNorm(64, eps=1e-6)
    norm.weight.data = torch.from_numpy(w)
    frequencies = torch.arange(0, 64, 2, dtype=torch.float).div(-64).mul(np.log(1e4)).exp()
    angles = torch.from_numpy(positions)[:, None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)[None]
    given = norm(torch.from_numpy(x)[None]).detach()
    wanted, _ = qwen.apply_rotary_pos_emb(given, given, angles.cos(), angles.sin())
    given = x.transpose(1, 0, 2).reshape(TOKENS, -1), w, positions.astype(np.int32), rope_table(90, 64, 1e4)
    (got,) = ops.get("head_norm_rope").reference(given, {"heads": HEADS, "head_dim": 64, "eps": 1e-6})
    close(got.reshape(TOKENS, HEADS, 64).transpose(1, 0, 2), wanted[0])
