"""The types of the ops as functions on arrays, camshaft.table().<op>. Written by scripts/stubs.py.

A result is an ndarray, a scalar of NumPy, or an array of the inputs' own library.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from camshaft.extent import Extent

Array: TypeAlias = np.ndarray[Any, Any]

class ArrayFunctions:
    def rms_norm(
        self,
        x: ArrayLike,
        w: ArrayLike,
        /,
        *,
        out: Array | None = None,
        eps: float,
        offset: float = 0.0,
        to: str = "f32",
        axis: int = -1,
    ) -> Any:
        """y = x / sqrt(mean(x^2) + eps) * (w + offset).

        Arrays in, arrays out. `out` is written and returned.
        """

    def layer_norm(
        self, x: ArrayLike, w: ArrayLike, b: ArrayLike, /, *, out: Array | None = None, eps: float, axis: int = -1
    ) -> Any:
        """y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def residual_norm(
        self,
        a: ArrayLike,
        b: ArrayLike,
        w: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        eps: float,
        offset: float = 0.0,
        to: str = "f32",
    ) -> tuple[Any, Any]:
        """s = a + b; y = s / sqrt(mean(s^2) + eps) * (w + offset).

        Arrays in, arrays out. `out` is written and returned.
        """

    def softmax(self, x: ArrayLike, /, *, out: Array | None = None, axis: int = -1) -> Any:
        """y = exp(x - max(x)) / sum(exp(x - max(x))).

        Arrays in, arrays out. `out` is written and returned.
        """

    def log_softmax(self, x: ArrayLike, /, *, out: Array | None = None, axis: int = -1) -> Any:
        """y = x - max(x) - log(sum(exp(x - max(x)))).

        Arrays in, arrays out. `out` is written and returned.
        """

    def l2_norm(self, x: ArrayLike, /, *, out: Array | None = None, eps: float = 1e-06, axis: int = -1) -> Any:
        """y = x / sqrt(sum(x^2) + eps).

        Arrays in, arrays out. `out` is written and returned.
        """

    def norm_gate(
        self, x: ArrayLike, w: ArrayLike, z: ArrayLike, /, *, out: Array | None = None, eps: float, offset: float = 0.0
    ) -> Any:
        """y = x / sqrt(mean(x^2) + eps) * (w + offset) * z / (1 + exp(-z)).

        Arrays in, arrays out. `out` is written and returned.
        """

    def norm_add(
        self,
        x: ArrayLike,
        w: ArrayLike,
        residual: ArrayLike,
        /,
        *,
        out: Array | None = None,
        eps: float,
        offset: float = 0.0,
    ) -> Any:
        """y = residual + x / sqrt(mean(x^2) + eps) * (w + offset).

        Arrays in, arrays out. `out` is written and returned.
        """

    def group_norm(
        self, x: ArrayLike, w: ArrayLike, b: ArrayLike, /, *, out: Array | None = None, groups: int, eps: float = 1e-05
    ) -> Any:
        """y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w[c] + b[c] over each group of channels of [N, C, ..].

        Arrays in, arrays out. `out` is written and returned.
        """

    def layer_norm_2d(
        self, x: ArrayLike, w: ArrayLike, b: ArrayLike, /, *, out: Array | None = None, eps: float = 1e-05
    ) -> Any:
        """y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w[c] + b[c] over channels of [N, C, ..].

        Arrays in, arrays out. `out` is written and returned.
        """

    def scale_mask_softmax(
        self, x: ArrayLike, mask: ArrayLike, /, *, out: Array | None = None, scale: float = 1.0
    ) -> Any:
        """y = softmax(scale x + mask); a boolean mask is True where an element counts.

        Arrays in, arrays out. `out` is written and returned.
        """

    def matmul(
        self,
        a: ArrayLike,
        b: ArrayLike,
        /,
        out: Array | None = None,
        *,
        transpose_b: bool = False,
        to: str = "f32",
        precision: str = "f32",
    ) -> Any:
        """out[.., i, j] = sum_k a[.., i, k] b[.., k, j].

        Arrays in, arrays out. `out` is written and returned.
        """

    def batch_invariant_matmul(self, x: ArrayLike, w: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y[i, j] = sum_k x[i, k] w[j, k], a row's bits the same for any number of rows.

        Arrays in, arrays out. `out` is written and returned.
        """

    def rounded_matmul(self, a: ArrayLike, b: ArrayLike, /, *, out: Array | None = None, transpose_b: bool) -> Any:
        """out[.., i, j] = sum_k a[.., i, k] b[.., j, k], operands in int16 where that is faster.

        Arrays in, arrays out. `out` is written and returned.
        """

    def quantize_activations(self, x: ArrayLike, /, *, out: Array | None = None, group: int = 32, zero: int = 0) -> Any:
        """d = max|x| / 127 over 32 k; q = round(x / d).

        Arrays in, arrays out. `out` is written and returned.
        """

    def quantized_matmul(self, x: ArrayLike, w: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y[t, n] = sum_k x[t, k] dequantize(w)[n, k].

        Arrays in, arrays out. `out` is written and returned.
        """

    def quantized_matmul_transposed(self, x: ArrayLike, w: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y[t, k] = sum_n x[t, n] dequantize(w)[n, k].

        Arrays in, arrays out. `out` is written and returned.
        """

    def gated_product(
        self,
        x: ArrayLike,
        gate: ArrayLike,
        up: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        sums: tuple[tuple[int, int], ...],
        act: str = "silu",
    ) -> Any:
        """q8 of act(x Wg) * (x Wu); act is silu or gelu.

        Arrays in, arrays out. `out` is written and returned.
        """

    def dequantize(self, x: ArrayLike, /, *, out: Array | None = None, to: str = "f32") -> Any:
        """y[.., c] = the number that x stores for it.

        Arrays in, arrays out. `out` is written and returned.
        """

    def unpack_codes(self, codes: ArrayLike, /, *, out: Array | None = None, code: str = "u4", to: str = "f32") -> Any:
        """y[r, c] = the number that code c of row r stands for.

        Arrays in, arrays out. `out` is written and returned.
        """

    def affine_dequantize(
        self,
        codes: ArrayLike,
        scales: ArrayLike,
        biases: ArrayLike,
        /,
        *,
        out: Array | None = None,
        bits: int = 4,
        group_size: int = 64,
        to: str = "f32",
    ) -> Any:
        """y[r, c] = code[r, c] scale[r, g] + bias[r, g], g = c // group_size.

        Arrays in, arrays out. `out` is written and returned.
        """

    def minifloat_dequantize(
        self,
        codes: ArrayLike,
        scales: ArrayLike,
        /,
        *global_scale: ArrayLike,
        out: Array | None = None,
        code: str = "e4m3",
        group_size: int | None = None,
        group_rows: int = 1,
        scales_as: str | None = None,
        to: str = "f32",
    ) -> Any:
        """y[r, c] = number(code[r, c]) scale[r // group_rows, c // group_size] global_scale.

        Arrays in, arrays out. `out` is written and returned.
        """

    def affine_matmul(
        self,
        x: ArrayLike,
        codes: ArrayLike,
        scales: ArrayLike,
        biases: ArrayLike,
        /,
        *,
        out: Array | None = None,
        bits: int = 4,
        group_size: int = 64,
    ) -> Any:
        """y[t, r] = sum_c x[t, c] (code[r, c] scale[r, g] + bias[r, g]), g = c // group_size.

        Arrays in, arrays out. `out` is written and returned.
        """

    def minifloat_matmul(
        self,
        x: ArrayLike,
        codes: ArrayLike,
        scales: ArrayLike,
        /,
        *global_scale: ArrayLike,
        out: Array | None = None,
        code: str = "e4m3",
        group_size: int | None = None,
        group_rows: int = 1,
        scales_as: str | None = None,
    ) -> Any:
        """y[t, r] = sum_c x[t, c] minifloat_dequantize(codes, scales, global_scale)[r, c].

        Arrays in, arrays out. `out` is written and returned.
        """

    def affine_matmul_grouped(
        self,
        x: ArrayLike,
        codes: ArrayLike,
        scales: ArrayLike,
        biases: ArrayLike,
        experts: ArrayLike,
        /,
        *,
        out: Array | None = None,
        bits: int = 4,
        group_size: int = 64,
    ) -> Any:
        """y[t, s, r] = sum_c x[t, (s,) c] affine_dequantize(codes, scales, biases)[experts[t, s], r, c].

        Arrays in, arrays out. `out` is written and returned.
        """

    def pack_codes(self, x: ArrayLike, /, *, out: Array | None = None, code: str = "u4") -> Any:
        """codes[r, c] = the code of the number nearest to x[r, c].

        Arrays in, arrays out. `out` is written and returned.
        """

    def affine_quantize(
        self, w: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None, bits: int = 4, group_size: int = 64
    ) -> tuple[Any, Any, Any]:
        """codes, scales, biases of w[r, c] = code[r, c] scale[r, g] + bias[r, g], g = c // group_size.

        Arrays in, arrays out. `out` is written and returned.
        """

    def quantize_dequantize_affine(
        self,
        w: ArrayLike,
        scales: ArrayLike,
        biases: ArrayLike,
        /,
        *,
        out: Array | None = None,
        bits: int = 4,
        group_size: int = 64,
    ) -> Any:
        """y = clip(round((w - bias) / scale), 0, 2^bits - 1) scale + bias, by groups of columns.

        Arrays in, arrays out. `out` is written and returned.
        """

    def real(self, x: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y = the real part of x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def imag(self, x: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y = the imaginary part of x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def conj(self, x: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y = x with its imaginary part negated.

        Arrays in, arrays out. `out` is written and returned.
        """

    def fft_rows(
        self,
        x: ArrayLike,
        factors: ArrayLike,
        /,
        *,
        out: Array | None = None,
        n: int | None = None,
        form: str = "complex",
        inverse: bool = False,
        scale: float = 1.0,
        keep: int | None = None,
        turn_in: bool = False,
        turn_out: bool = False,
        real: int | None = None,
    ) -> Any:
        """y[r, f] = scale sum_t x[r, t] exp(-2 pi sqrt(-1) f t / n), + where inverse.

        Arrays in, arrays out. `out` is written and returned.
        """

    def fft(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
    ) -> Any:
        """y[f] = s sum_t x[t] exp(-2 pi sqrt(-1) f t / n).

        Arrays in, arrays out. `out` is written and returned.
        """

    def ifft(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
    ) -> Any:
        """y[t] = s sum_f x[f] exp(2 pi sqrt(-1) f t / n).

        Arrays in, arrays out. `out` is written and returned.
        """

    def rfft(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
    ) -> Any:
        """fft of real x, f up to n / 2; real at 0 and n / 2.

        Arrays in, arrays out. `out` is written and returned.
        """

    def irfft(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
    ) -> Any:
        """ifft where x[n - f] = conj x[f], a real result.

        Arrays in, arrays out. `out` is written and returned.
        """

    def stft(
        self,
        x: ArrayLike,
        window: ArrayLike,
        /,
        *,
        out: Array | None = None,
        n_fft: int,
        hop_length: int | None = None,
        center: bool = True,
        pad_mode: str = "reflect",
        normalized: bool = False,
    ) -> Any:
        """y[f, t] = sum_j window[j] x[t hop_length + j] exp(-2 pi sqrt(-1) f j / n_fft), f up to n_fft / 2.

        Arrays in, arrays out. `out` is written and returned.
        """

    def mel_scale(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        n_mels: int,
        sample_rate: int,
        f_min: float = 0.0,
        f_max: float | None = None,
        norm: str | None = None,
        mel: str = "htk",
    ) -> Any:
        """y[m, t] = sum_f filters[m, f] x[f, t], triangles that are evenly spaced in mel.

        Arrays in, arrays out. `out` is written and returned.
        """

    def quantize_dequantize_gguf(self, x: ArrayLike, /, *, out: Array | None = None, format: str = "Q4_0") -> Any:
        """y = dequantize(quantize(x)) in a GGUF format.

        Arrays in, arrays out. `out` is written and returned.
        """

    def embedding(self, ids: ArrayLike, table: ArrayLike, /, *, out: Array | None = None, to: str | None = None) -> Any:
        """y[t] = table[ids[t]].

        Arrays in, arrays out. `out` is written and returned.
        """

    def gather(self, x: ArrayLike, rows: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y[i] = x[rows[i]].

        Arrays in, arrays out. `out` is written and returned.
        """

    def transpose(self, x: ArrayLike, /, *, out: Array | None = None, axes: tuple[int, ...] | None = None) -> Any:
        """y = x with its axes permuted.

        Arrays in, arrays out. `out` is written and returned.
        """

    def slice(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        starts: tuple[int, ...],
        sizes: tuple[int | None, ...],
        steps: tuple[int, ...] | None = None,
    ) -> Any:
        """y[i, ..] = x[start + i step, ..].

        Arrays in, arrays out. `out` is written and returned.
        """

    def silu_multiply(
        self, gate: ArrayLike, up: ArrayLike, /, out: Array | None = None, *, to: str = "f32", where: Any = None
    ) -> Any:
        """y = gate / (1 + exp(-gate)) * up.

        Arrays in, arrays out. `out` is written and returned.
        """

    def copy(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def cast(self, x: ArrayLike, /, out: Array | None = None, *, to: str, where: Any = None) -> Any:
        """y = x in another dtype.

        Arrays in, arrays out. `out` is written and returned.
        """

    def stop_gradient(self, x: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y = x, a constant to derivatives.

        Arrays in, arrays out. `out` is written and returned.
        """

    def rope(
        self,
        x: ArrayLike,
        positions: ArrayLike,
        table: ArrayLike,
        /,
        *,
        out: Array | None = None,
        heads: int,
        head_dim: int,
        pairing: str,
        inverse: bool = False,
    ) -> Any:
        """(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[position].

        Arrays in, arrays out. `out` is written and returned.
        """

    def rope_multi(
        self,
        x: ArrayLike,
        positions: ArrayLike,
        table: ArrayLike,
        /,
        *,
        out: Array | None = None,
        heads: int,
        head_dim: int,
        sections: tuple[int, ...],
        layout: str = "contiguous",
        pairing: str = "neox",
        inverse: bool = False,
    ) -> Any:
        """(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[position of the pair's section].

        Arrays in, arrays out. `out` is written and returned.
        """

    def rope_axial_2d(
        self,
        x: ArrayLike,
        positions: ArrayLike,
        table: ArrayLike,
        /,
        *,
        out: Array | None = None,
        heads: int,
        head_dim: int,
        pairing: str = "neox",
        inverse: bool = False,
    ) -> Any:
        """(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[row] in a head's first half, else table[column].

        Arrays in, arrays out. `out` is written and returned.
        """

    def rope_vision_2d(
        self,
        x: ArrayLike,
        positions: ArrayLike,
        table: ArrayLike,
        /,
        *,
        out: Array | None = None,
        heads: int,
        head_dim: int,
        pairing: str = "neox",
        inverse: bool = False,
    ) -> Any:
        """(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[x] in a head's first half, else table[y].

        Arrays in, arrays out. `out` is written and returned.
        """

    def head_norm_rope(
        self,
        x: ArrayLike,
        w: ArrayLike,
        positions: ArrayLike,
        table: ArrayLike,
        /,
        *,
        out: Array | None = None,
        heads: int,
        head_dim: int,
        eps: float,
        offset: float = 0.0,
    ) -> Any:
        """rope with NeoX pairs of y[h] = x[h] / sqrt(mean(x[h]^2) + eps) * (w + offset), h a head.

        Arrays in, arrays out. `out` is written and returned.
        """

    def kv_cache_update(
        self,
        k_cache: ArrayLike,
        v_cache: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        positions: ArrayLike,
        slots: ArrayLike,
        block_table: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        kv_heads: int,
        head_dim: int,
        ring: bool = False,
    ) -> None:
        """K[table[s, p // 16], :, :, p % 16] = k; V[table[s, p // 16], :, p % 16] = v.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """

    def kv_cache_quantize(
        self,
        k_codes: ArrayLike,
        v_codes: ArrayLike,
        k_scales: ArrayLike,
        v_scales: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        positions: ArrayLike,
        slots: ArrayLike,
        block_table: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        kv_heads: int,
        head_dim: int,
        ring: bool = False,
    ) -> None:
        """as kv_cache_update, each 32 of a head as d q: Q8_0 or Q4_0.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """

    def attention(
        self,
        q: ArrayLike,
        k_cache: ArrayLike,
        v_cache: ArrayLike,
        positions: ArrayLike,
        slots: ArrayLike,
        block_table: ArrayLike,
        /,
        *scales_and_extras: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        length: int | Extent,
        causal: bool = True,
        window: int = 0,
        chunk: int = 0,
        cap: float = 0.0,
        lse: bool = False,
        extras: str = "",
        ring: bool = False,
        precision: str = "f32",
    ) -> Any:
        """softmax(scale q K^T) V over keys 0..position of the token's slot, or those that the options let it see.

        Arrays in, arrays out. `out` is written and returned.
        """

    def scaled_dot_product_attention(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        /,
        *others: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
        causal: bool = False,
        window: int = 0,
        chunk: int = 0,
        cap: float = 0.0,
        lse: bool = False,
        extras: str = "mask",
        scale: float | None = None,
        offset: int = 0,
    ) -> Any:
        """softmax(scale q K^T + mask) V per head of [batch, heads, length, size].

        Arrays in, arrays out. `out` is written and returned.
        """

    def attention_gradient(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        dy: ArrayLike,
        lse: ArrayLike,
        delta: ArrayLike,
        /,
        *mask: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
        causal: bool = False,
        window: int = 0,
        chunk: int = 0,
        offset: int = 0,
        scale: float = 1.0,
    ) -> tuple[Any, Any, Any]:
        """P = exp(scale q K^T - lse), dS = scale P (dy V^T - delta); dq = dS K, dk = dS^T q, dv = P^T dy.

        Arrays in, arrays out. `out` is written and returned.
        """

    def hadamard(self, x: ArrayLike, /, *signs: ArrayLike, out: Array | None = None, signs_after: bool = False) -> Any:
        """y = H x / sqrt(d), H the Walsh-Hadamard matrix; signs multiply before, or after with `signs_after`.

        Arrays in, arrays out. `out` is written and returned.
        """

    def turboquant_encode(
        self, x: ArrayLike, signs: ArrayLike, centroids: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None
    ) -> tuple[Any, Any]:
        """codes of the centroids nearest to H (s x) / |x|, packed, and the norms |x|, of rows of x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def turboquant_decode(
        self, codes: ArrayLike, norms: ArrayLike, centroids: ArrayLike, /, *signs: ArrayLike, out: Array | None = None
    ) -> Any:
        """y = centroid[code] norm / sqrt(d), still rotated; with signs x = s (H y) / sqrt(d).

        Arrays in, arrays out. `out` is written and returned.
        """

    def turboquant_attention(
        self,
        q: ArrayLike,
        k_cache: ArrayLike,
        v_cache: ArrayLike,
        positions: ArrayLike,
        slots: ArrayLike,
        block_table: ArrayLike,
        /,
        *norms_centroids_signs_extras: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        length: int | Extent,
        causal: bool = True,
        window: int = 0,
        chunk: int = 0,
        cap: float = 0.0,
        lse: bool = False,
        extras: str = "",
        ring: bool = False,
    ) -> Any:
        """softmax(scale q K^T) V over a paged cache of TurboQuant codes of K and V, or of V.

        Arrays in, arrays out. `out` is written and returned.
        """

    def attention_mask(
        self,
        q_positions: ArrayLike,
        k_positions: ArrayLike,
        /,
        *,
        out: Array | None = None,
        causal: bool = True,
        window: int = 0,
        chunk: int = 0,
        offset: int = 0,
        to: str = "bool",
    ) -> Any:
        """key j <= p, and j > p - window, for positions p = q_positions + offset: true, or 0 and -inf elsewhere.

        Arrays in, arrays out. `out` is written and returned.
        """

    def attention_mask_tiles(
        self, mask: ArrayLike, /, *, out: Array | None = None, rows: int = 32, columns: int = 32
    ) -> Any:
        """per tile of a mask: 0 if all is masked, 1 if mixed, 2 if all is open, so that the mask need not be read.

        Arrays in, arrays out. `out` is written and returned.
        """

    def repeat_penalty(
        self, logits: ArrayLike, ids: ArrayLike, penalty: ArrayLike, /, *, out: Array | None = None
    ) -> Any:
        """y = l > 0 ? l / penalty : l * penalty for the tokens in ids, else l.

        Arrays in, arrays out. `out` is written and returned.
        """

    def sample(
        self,
        logits: ArrayLike,
        temperature: ArrayLike,
        top_k: ArrayLike,
        top_p: ArrayLike,
        min_p: ArrayLike,
        seed: ArrayLike,
        /,
        *,
        out: Array | None = None,
    ) -> Any:
        """y ~ softmax(logits / temperature) over the tokens that top_k, top_p and min_p keep.

        Arrays in, arrays out. `out` is written and returned.
        """

    def masked_sample(
        self,
        logits: ArrayLike,
        mask: ArrayLike,
        temperature: ArrayLike,
        top_k: ArrayLike,
        top_p: ArrayLike,
        min_p: ArrayLike,
        seed: ArrayLike,
        /,
        *,
        out: Array | None = None,
    ) -> Any:
        """as sample, of the tokens i whose bit i % 32 of word i // 32 of the mask is 1.

        Arrays in, arrays out. `out` is written and returned.
        """

    def adam_update(
        self,
        p: ArrayLike,
        m: ArrayLike,
        v: ArrayLike,
        g: ArrayLike,
        lr: ArrayLike,
        step: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-08,
        weight_decay: float = 0.0,
    ) -> None:
        """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr (decay p + (m / c1) / (sqrt(v / c2) + eps)), c = 1 - b^step.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """

    def assign(self, state: ArrayLike, x: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None) -> None:
        """state = x.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """

    def cross_entropy(
        self,
        logits: ArrayLike,
        target: ArrayLike,
        /,
        *,
        out: Array | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Any:
        """y[r] = log(sum(exp(x[r]))) - x[r, target[r]]; their mean where not ignored, or sum.

        Arrays in, arrays out. `out` is written and returned.
        """

    def dropout(self, x: ArrayLike, seed: ArrayLike, /, *, out: Array | None = None, p: float = 0.5) -> Any:
        """y = x / (1 - p) where a random number from seed and the element's place is at least p, else 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def cross_entropy_gradient(
        self,
        logits: ArrayLike,
        target: ArrayLike,
        dy: ArrayLike,
        /,
        *,
        out: Array | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Any:
        """dx[r] = dy[r] (softmax(x[r]) - the smoothed target); 0 in ignored rows.

        Arrays in, arrays out. `out` is written and returned.
        """

    def mse_loss(self, x: ArrayLike, target: ArrayLike, /, *, out: Array | None = None, reduction: str = "mean") -> Any:
        """(x - target)^2; their mean, or sum.

        Arrays in, arrays out. `out` is written and returned.
        """

    def l1_loss(self, x: ArrayLike, target: ArrayLike, /, *, out: Array | None = None, reduction: str = "mean") -> Any:
        """|x - target|; their mean, or sum.

        Arrays in, arrays out. `out` is written and returned.
        """

    def binary_cross_entropy_with_logits(
        self, x: ArrayLike, target: ArrayLike, /, *, out: Array | None = None, reduction: str = "mean"
    ) -> Any:
        """ln(1 + e^x) - x target; their mean, or sum.

        Arrays in, arrays out. `out` is written and returned.
        """

    def softmax_sample(
        self,
        logits: ArrayLike,
        temperature: ArrayLike,
        top_k: ArrayLike,
        top_p: ArrayLike,
        min_p: ArrayLike,
        seed: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        draws: int = 1,
    ) -> tuple[Any, Any]:
        """y, ln p = distinct tokens ~ softmax(logits / temperature) over the kept, and their log-probabilities.

        Arrays in, arrays out. `out` is written and returned.
        """

    def uniform(self, seed: ArrayLike, /, *, out: Array | None = None, n: int = 1) -> Any:
        """y[r, i] = a random number between 0 and 1 from seed[r] and i.

        Arrays in, arrays out. `out` is written and returned.
        """

    def logit_bias(self, logits: ArrayLike, ids: ArrayLike, bias: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y = logits + the bias of the tokens in ids.

        Arrays in, arrays out. `out` is written and returned.
        """

    def dry(
        self,
        logits: ArrayLike,
        ids: ArrayLike,
        multiplier: ArrayLike,
        base: ArrayLike,
        allowed_length: ArrayLike,
        /,
        *,
        out: Array | None = None,
    ) -> Any:
        """y = l - multiplier base^(L - allowed_length) for tokens that came after the last L >= allowed_length ids before.

        Arrays in, arrays out. `out` is written and returned.
        """

    def top_n_sigma(self, logits: ArrayLike, n_sigma: ArrayLike, /, *, out: Array | None = None) -> Any:
        """removes the tokens more than n_sigma standard deviations of the finite logits below the greatest (Tang et al., 2024).

        Arrays in, arrays out. `out` is written and returned.
        """

    def top_k_top_p(
        self, logits: ArrayLike, top_k: ArrayLike, top_p: ArrayLike, min_p: ArrayLike, /, *, out: Array | None = None
    ) -> Any:
        """keeps the tokens that sample's top_k, then top_p, then min_p keep at temperature 1.

        Arrays in, arrays out. `out` is written and returned.
        """

    def typical_p(self, logits: ArrayLike, p: ArrayLike, /, *, out: Array | None = None) -> Any:
        """keeps token i if those with a smaller |ln p + entropy| have at most the mass p together (Meister et al., 2022).

        Arrays in, arrays out. `out` is written and returned.
        """

    def xtc(
        self,
        logits: ArrayLike,
        probability: ArrayLike,
        threshold: ArrayLike,
        seed: ArrayLike,
        /,
        *,
        out: Array | None = None,
    ) -> Any:
        """with the given probability, removes all tokens with p >= threshold but the least likely of them.

        Arrays in, arrays out. `out` is written and returned.
        """

    def mirostat(self, logits: ArrayLike, mu: ArrayLike, /, *, out: Array | None = None) -> Any:
        """removes the tokens with a surprise -log2 p above mu, but the likeliest (version 2; Basu et al., 2021).

        Arrays in, arrays out. `out` is written and returned.
        """

    def token_mask(self, logits: ArrayLike, mask: ArrayLike, /, *, out: Array | None = None) -> Any:
        """removes the tokens i whose bit i % 32 of word i // 32 is 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def mirostat_update(
        self, mu: ArrayLike, logprob: ArrayLike, tau: ArrayLike, eta: ArrayLike, /, *, out: Array | None = None
    ) -> Any:
        """y = mu - eta (-logprob / ln 2 - tau).

        Arrays in, arrays out. `out` is written and returned.
        """

    def add(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a + b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def subtract(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a - b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def multiply(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a * b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def divide(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a / b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def minimum(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = min(a, b), NaN where either is.

        Arrays in, arrays out. `out` is written and returned.
        """

    def maximum(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = max(a, b), NaN where either is.

        Arrays in, arrays out. `out` is written and returned.
        """

    def floor_divide(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = floor(a / b); of integers 0 where b is 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def remainder(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a - floor(a / b) b; of integers 0 where b is 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def power(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a^b; of integers to a negative power 0, but for 1 and -1.

        Arrays in, arrays out. `out` is written and returned.
        """

    def negate(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = -x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def abs(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = |x|.

        Arrays in, arrays out. `out` is written and returned.
        """

    def exp(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = e^x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def log(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = ln x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def sqrt(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = sqrt(x).

        Arrays in, arrays out. `out` is written and returned.
        """

    def rsqrt(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = 1 / sqrt(x).

        Arrays in, arrays out. `out` is written and returned.
        """

    def square(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = x^2.

        Arrays in, arrays out. `out` is written and returned.
        """

    def reciprocal(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = 1 / x; of integers 0 but for 1 and -1.

        Arrays in, arrays out. `out` is written and returned.
        """

    def tanh(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = tanh x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def erf(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = erf x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def sin(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = sin x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def cos(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = cos x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def tan(self, x: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y = tan x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def isnan(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = whether x is NaN.

        Arrays in, arrays out. `out` is written and returned.
        """

    def ceil(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = the least integer >= x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def trunc(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = the integer part of x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def floor(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = the greatest integer <= x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def round(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = the nearest integer, ties to even.

        Arrays in, arrays out. `out` is written and returned.
        """

    def equal(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a = b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def not_equal(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a != b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def less(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a < b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def less_equal(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a <= b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def greater(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a > b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def greater_equal(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a >= b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def where(self, condition: ArrayLike, a: ArrayLike, b: ArrayLike, /, out: Array | None = None) -> Any:
        """y = a where the condition holds, else b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def clip(
        self, x: ArrayLike, low: ArrayLike, high: ArrayLike, /, out: Array | None = None, *, where: Any = None
    ) -> Any:
        """y = min(max(x, low), high).

        Arrays in, arrays out. `out` is written and returned.
        """

    def logical_and(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a and b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def logical_or(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a or b.

        Arrays in, arrays out. `out` is written and returned.
        """

    def logical_xor(self, a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = a or b, not both.

        Arrays in, arrays out. `out` is written and returned.
        """

    def logical_not(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = not x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def sigmoid(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = 1 / (1 + exp(-x)).

        Arrays in, arrays out. `out` is written and returned.
        """

    def silu(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = x / (1 + exp(-x)).

        Arrays in, arrays out. `out` is written and returned.
        """

    def gelu(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

        Arrays in, arrays out. `out` is written and returned.
        """

    def gelu_erf(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = x / 2 (1 + erf(x / sqrt(2))).

        Arrays in, arrays out. `out` is written and returned.
        """

    def softcap(self, x: ArrayLike, /, out: Array | None = None, *, cap: float, where: Any = None) -> Any:
        """y = cap tanh(x / cap).

        Arrays in, arrays out. `out` is written and returned.
        """

    def log1p(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = ln(1 + x), exact near 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def expm1(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = e^x - 1, exact near 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def softplus(self, x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = ln(1 + e^x).

        Arrays in, arrays out. `out` is written and returned.
        """

    def relu(self, x: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y = max(x, 0).

        Arrays in, arrays out. `out` is written and returned.
        """

    def leaky_relu(self, x: ArrayLike, /, *, out: Array | None = None, negative_slope: float = 0.01) -> Any:
        """y = x, below 0 negative_slope x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def elu(self, x: ArrayLike, /, *, out: Array | None = None, alpha: float = 1.0) -> Any:
        """y = x, below 0 alpha (e^x - 1).

        Arrays in, arrays out. `out` is written and returned.
        """

    def hard_swish(self, x: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y = x min(max(x / 6 + 1/2, 0), 1).

        Arrays in, arrays out. `out` is written and returned.
        """

    def mish(self, x: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y = x tanh(ln(1 + e^x)).

        Arrays in, arrays out. `out` is written and returned.
        """

    def sigmoid_multiply(self, x: ArrayLike, gate: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = x / (1 + exp(-gate)).

        Arrays in, arrays out. `out` is written and returned.
        """

    def gelu_multiply(self, gate: ArrayLike, up: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any:
        """y = gate / 2 (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) up.

        Arrays in, arrays out. `out` is written and returned.
        """

    def sum(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        axis: int | tuple[int, ...] | None = None,
        axes: int | tuple[int, ...] | None = None,
        keepdims: bool = False,
        dtype: Any = None,
        where: Any = None,
        initial: Any = None,
    ) -> Any:
        """y = sum over axes of x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def mean(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        axis: int | tuple[int, ...] | None = None,
        axes: int | tuple[int, ...] | None = None,
        keepdims: bool = False,
        dtype: Any = None,
        where: Any = None,
    ) -> Any:
        """y = sum over axes of x / their number.

        Arrays in, arrays out. `out` is written and returned.
        """

    def prod(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        axis: int | tuple[int, ...] | None = None,
        axes: int | tuple[int, ...] | None = None,
        keepdims: bool = False,
        dtype: Any = None,
        where: Any = None,
        initial: Any = None,
    ) -> Any:
        """y = product over axes of x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def max(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        axis: int | tuple[int, ...] | None = None,
        axes: int | tuple[int, ...] | None = None,
        keepdims: bool = False,
        where: Any = None,
        initial: Any = None,
    ) -> Any:
        """y = max over axes of x, NaN where there is one.

        Arrays in, arrays out. `out` is written and returned.
        """

    def min(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        axis: int | tuple[int, ...] | None = None,
        axes: int | tuple[int, ...] | None = None,
        keepdims: bool = False,
        where: Any = None,
        initial: Any = None,
    ) -> Any:
        """y = min over axes of x, NaN where there is one.

        Arrays in, arrays out. `out` is written and returned.
        """

    def dot(self, a: ArrayLike, b: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y = sum_i a[i] b[i].

        Arrays in, arrays out. `out` is written and returned.
        """

    def argmax(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        axis: int | None = -1,
        keepdims: bool = False,
        nan_first: bool = True,
        to: str = "i32",
    ) -> Any:
        """y[r] = the least c with x[r, c] = max(x[r]).

        Arrays in, arrays out. `out` is written and returned.
        """

    def argmin(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        axis: int | None = -1,
        keepdims: bool = False,
        nan_first: bool = True,
        to: str = "i32",
    ) -> Any:
        """y[r] = the least c with x[r, c] = min(x[r]).

        Arrays in, arrays out. `out` is written and returned.
        """

    def max_with_index(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        axis: int = -1,
        keepdims: bool = False,
        to: str = "i32",
    ) -> tuple[Any, Any]:
        """y, i = max of x along an axis and the least i with x[i] = y.

        Arrays in, arrays out. `out` is written and returned.
        """

    def concat(self, /, *tensors: ArrayLike, out: Array | None = None, axis: int = 0) -> Any:
        """y = the tensors joined along an axis.

        Arrays in, arrays out. `out` is written and returned.
        """

    def split(
        self, x: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None, sizes: tuple[int, ...], axis: int = 0
    ) -> Any:
        """y, z, .. = x split along an axis.

        Arrays in, arrays out. `out` is written and returned.
        """

    def broadcast_to(self, x: ArrayLike, /, *, out: Array | None = None, shape: tuple[int | None, ...]) -> Any:
        """y = x, repeated along axes of size 1 and new ones in front.

        Arrays in, arrays out. `out` is written and returned.
        """

    def repeat(self, x: ArrayLike, /, *, out: Array | None = None, repeats: int, axis: int | None = None) -> Any:
        """y[.., i, ..] = x[.., floor(i / repeats), ..]; without an axis of the flat x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def tile(self, x: ArrayLike, /, *, out: Array | None = None, reps: int | tuple[int, ...]) -> Any:
        """y[i, ..] = x[i mod n, ..]: x reps times along each axis.

        Arrays in, arrays out. `out` is written and returned.
        """

    def repeat_tiled(self, x: ArrayLike, /, *, out: Array | None = None, heads: int, axis: int = 1) -> Any:
        """y[t, h] = x[t, h mod n]: the n heads of x one after the other, `heads` in all.

        Arrays in, arrays out. `out` is written and returned.
        """

    def pad(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        pad_width: int | tuple[int, int] | tuple[tuple[int, int], ...],
        mode: str = "constant",
        constant_values: float = 0,
    ) -> Any:
        """y[i, ..] = x[i - before, ..] where that is in x, else a constant or what `mode` takes of x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def take_along_axis(self, x: ArrayLike, indices: ArrayLike, /, *, out: Array | None = None, axis: int = -1) -> Any:
        """y[.., i, ..] = x[.., indices[.., i, ..], ..].

        Arrays in, arrays out. `out` is written and returned.
        """

    def scatter_add(
        self, x: ArrayLike, indices: ArrayLike, values: ArrayLike, /, *, out: Array | None = None, axis: int = -1
    ) -> Any:
        """y = x, then y[.., indices[.., i, ..], ..] += values[.., i, ..].

        Arrays in, arrays out. `out` is written and returned.
        """

    def put(
        self, x: ArrayLike, indices: ArrayLike, values: ArrayLike, /, *, out: Array | None = None, axis: int = -1
    ) -> Any:
        """y = x, then y[.., indices[.., i, ..], ..] = values[.., i, ..], of duplicates the last.

        Arrays in, arrays out. `out` is written and returned.
        """

    def one_hot(self, indices: ArrayLike, /, *, out: Array | None = None, num_classes: int, to: str = "f32") -> Any:
        """y[.., c] = 1 where c = indices[..], else 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def conv2d(
        self,
        x: ArrayLike,
        w: ArrayLike,
        /,
        *,
        out: Array | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
    ) -> Any:
        """y[n, o, i, j] = sum_(c, r, s) x[n, c, i stride + r dilation, j stride + s dilation] w[o, c, r, s].

        Arrays in, arrays out. `out` is written and returned.
        """

    def conv1d(
        self,
        x: ArrayLike,
        w: ArrayLike,
        /,
        *,
        out: Array | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
    ) -> Any:
        """y[n, o, i] = sum_(c, r) x[n, c, i stride + r dilation] w[o, c, r].

        Arrays in, arrays out. `out` is written and returned.
        """

    def conv_transpose2d(
        self,
        x: ArrayLike,
        w: ArrayLike,
        /,
        *,
        out: Array | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
        output_padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
    ) -> Any:
        """y[n, o, i stride + r dilation, j stride + s dilation] += x[n, c, i, j] w[c, o, r, s].

        Arrays in, arrays out. `out` is written and returned.
        """

    def pool2d(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        kernel: int | tuple[int, int],
        mode: str = "max",
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        include_pad: bool = True,
    ) -> Any:
        """y[n, c, i, j] = max or average over (r, s) of x[n, c, i stride + r dilation, j stride + s dilation].

        Arrays in, arrays out. `out` is written and returned.
        """

    def im2col(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        patch: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
        dilation: int | tuple[int, ...] = 1,
    ) -> Any:
        """y[(i, j), (c, r, s)] = x[c, i stride + r dilation, j stride + s dilation].

        Arrays in, arrays out. `out` is written and returned.
        """

    def resample(
        self, x: ArrayLike, first: ArrayLike, weights: ArrayLike, /, *, out: Array | None = None, axis: int = -1
    ) -> Any:
        """y[.., i, ..] = sum_t weights[i, t] x[.., first[i] + t, ..].

        Arrays in, arrays out. `out` is written and returned.
        """

    def resize_nearest(self, x: ArrayLike, /, *, out: Array | None = None, scale: int | tuple[int, int]) -> Any:
        """y[.., i, j] = x[.., floor(i / scale), floor(j / scale)].

        Arrays in, arrays out. `out` is written and returned.
        """

    def resize_bilinear(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        size: tuple[int, int],
        antialias: bool = True,
        align_corners: bool = False,
    ) -> Any:
        """y = x resized to `size` by triangle filters, wider where x shrinks.

        Arrays in, arrays out. `out` is written and returned.
        """

    def resize_bicubic(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        size: tuple[int, int],
        antialias: bool = True,
        align_corners: bool = False,
    ) -> Any:
        """y = x resized to `size` by cubic filters, wider where x shrinks.

        Arrays in, arrays out. `out` is written and returned.
        """

    def flip(self, x: ArrayLike, /, *, out: Array | None = None, axis: int | tuple[int, ...] | None = None) -> Any:
        """y = x with the order of its elements reversed along the axes, by default all.

        Arrays in, arrays out. `out` is written and returned.
        """

    def roll(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | None = None,
        shift: int | tuple[int, ...],
        axis: int | tuple[int, ...] | None = None,
    ) -> Any:
        """y[.., i, ..] = x[.., (i - shift) mod n, ..]; without an axis of the flat x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def tril(self, x: ArrayLike, /, *, out: Array | None = None, k: int = 0) -> Any:
        """y[.., r, c] = x[.., r, c] where c - r <= k, else 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def triu(self, x: ArrayLike, /, *, out: Array | None = None, k: int = 0) -> Any:
        """y[.., r, c] = x[.., r, c] where c - r >= k, else 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def arange(self, start: ArrayLike, step: ArrayLike, /, *, out: Array | None = None, size: int) -> Any:
        """y[i] = start + i step, for `size` elements.

        Arrays in, arrays out. `out` is written and returned.
        """

    def spatial_merge_2x2(self, x: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y [ny nx, C] = x [ny, nx, C], one 2 x 2 block after the other, row-major within each.

        Arrays in, arrays out. `out` is written and returned.
        """

    def moe_softmax_topk(
        self, logits: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None, top_k: int, normalize: bool = True
    ) -> tuple[Any, Any]:
        """p = softmax(logits[t]); experts[t] = the top_k greatest p; weights[t] = p[experts[t]], divided by their sum.

        Arrays in, arrays out. `out` is written and returned.
        """

    def moe_route(
        self,
        logits: ArrayLike,
        /,
        *others: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
        top_k: int,
        score: str = "softmax",
        groups: int = 1,
        top_groups: int = 1,
        group_top: int = 2,
        normalize: bool = True,
        expert_scale: bool = False,
        renormalize: bool = False,
        scale: float = 1.0,
    ) -> tuple[Any, Any]:
        """s = score(logits[t]); e = the top_k greatest s + bias in the best groups; weights[t] = scale s[e] / sum s[e].

        Arrays in, arrays out. `out` is written and returned.
        """

    def quantized_matmul_grouped(
        self, x: ArrayLike, w: ArrayLike, experts: ArrayLike, /, *, out: Array | None = None
    ) -> Any:
        """y[t, s, n] = sum_k x[t, (s,) k] dequantize(w)[experts[t, s], n, k].

        Arrays in, arrays out. `out` is written and returned.
        """

    def moe_weighted_reduce(
        self, y: ArrayLike, weights: ArrayLike, /, *terms: ArrayLike, out: Array | None = None
    ) -> Any:
        """out[t] = sum_s weights[t, s] y[t, s] + sum of terms [t], each times the sigmoid of the gate after it.

        Arrays in, arrays out. `out` is written and returned.
        """

    def matmul_grouped(self, x: ArrayLike, w: ArrayLike, experts: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y[t, s, n] = sum_k x[t, (s,) k] w[experts[t, s], n, k].

        Arrays in, arrays out. `out` is written and returned.
        """

    def moe_gate(
        self,
        x: ArrayLike,
        norm: ArrayLike,
        router: ArrayLike,
        scale: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        top_k: int,
        eps: float,
        renormalize: bool = True,
    ) -> tuple[Any, Any]:
        """p = rms_norm(x) router^T; experts = the top_k greatest p; w = softmax(p[experts]) scale[experts], divided by their sum.

        Arrays in, arrays out. `out` is written and returned.
        """

    def moe_experts(
        self,
        x: ArrayLike,
        gate: ArrayLike,
        up: ArrayLike,
        down: ArrayLike,
        experts: ArrayLike,
        weights: ArrayLike,
        /,
        *,
        out: Array | None = None,
        act: str = "silu",
    ) -> Any:
        """y[t] = sum_s weights[t, s] down_e (act(gate_e x[t]) * (up_e x[t])), e = experts[t, s].

        Arrays in, arrays out. `out` is written and returned.
        """

    def matmul_grouped_transposed(
        self, x: ArrayLike, w: ArrayLike, experts: ArrayLike, /, *, out: Array | None = None
    ) -> Any:
        """y[t, s, k] = sum_n x[t, s, n] w[experts[t, s], n, k].

        Arrays in, arrays out. `out` is written and returned.
        """

    def quantized_matmul_grouped_transposed(
        self, x: ArrayLike, w: ArrayLike, experts: ArrayLike, /, *, out: Array | None = None
    ) -> Any:
        """y[t, s, k] = sum_n x[t, s, n] dequantize(w)[experts[t, s], n, k].

        Arrays in, arrays out. `out` is written and returned.
        """

    def matmul_grouped_weights(
        self, x: ArrayLike, dy: ArrayLike, experts: ArrayLike, /, *, out: Array | None = None, n_experts: int
    ) -> Any:
        """dw[e, n, k] = sum of dy[t, s, n] x[t, (s,) k] over the (t, s) with experts[t, s] = e.

        Arrays in, arrays out. `out` is written and returned.
        """

    def argsort(
        self, x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, descending: bool = False, to: str = "i32"
    ) -> Any:
        """y[i] = the index of the element that i others precede; stable, NaN greatest.

        Arrays in, arrays out. `out` is written and returned.
        """

    def sort(self, x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, descending: bool = False) -> Any:
        """y[i] = the element that i others precede; NaN greatest.

        Arrays in, arrays out. `out` is written and returned.
        """

    def top_k(
        self,
        x: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        k: int,
        axis: int = -1,
        largest: bool = True,
        to: str = "i32",
    ) -> tuple[Any, Any]:
        """y, i = the k greatest (least) elements and their indexes; ties to the smaller index, NaN greatest.

        Arrays in, arrays out. `out` is written and returned.
        """

    def searchsorted(
        self, a: ArrayLike, v: ArrayLike, /, *, out: Array | None = None, side: str = "left", to: str = "i32"
    ) -> Any:
        """y = the number of i with a[i] < v, or a[i] <= v if side is right.

        Arrays in, arrays out. `out` is written and returned.
        """

    def unique(self, x: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None) -> tuple[Any, Any, Any]:
        """values, counts, number: the different values of x in order, padded to x's size with counts of 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def outer(self, a: ArrayLike, b: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y[i, j] = a[i] b[j].

        Arrays in, arrays out. `out` is written and returned.
        """

    def triangular_solve(
        self,
        a: ArrayLike,
        b: ArrayLike,
        /,
        *,
        out: Array | None = None,
        lower: bool = True,
        unit_diagonal: bool = False,
    ) -> Any:
        """x = a^-1 b for triangular a; the other triangle is not read, nor the diagonal if it is unit.

        Arrays in, arrays out. `out` is written and returned.
        """

    def cholesky(self, a: ArrayLike, /, *, out: Array | None = None) -> Any:
        """l lower triangular with l l^T = a.

        Arrays in, arrays out. `out` is written and returned.
        """

    def cumsum(
        self, x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, reverse: bool = False, to: str | None = None
    ) -> Any:
        """y[i] = sum over j <= i of x[j], or over j >= i if reverse.

        Arrays in, arrays out. `out` is written and returned.
        """

    def cumprod(
        self, x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, reverse: bool = False, to: str | None = None
    ) -> Any:
        """y[i] = product over j <= i of x[j], or over j >= i if reverse.

        Arrays in, arrays out. `out` is written and returned.
        """

    def cummax(self, x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, reverse: bool = False) -> Any:
        """y[i] = max over j <= i of x[j], or over j >= i if reverse; NaN from the first NaN on.

        Arrays in, arrays out. `out` is written and returned.
        """

    def cummin(self, x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, reverse: bool = False) -> Any:
        """y[i] = min over j <= i of x[j], or over j >= i if reverse; NaN from the first NaN on.

        Arrays in, arrays out. `out` is written and returned.
        """

    def rms_norm_q8(
        self,
        x: ArrayLike,
        w: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        eps: float,
        offset: float = 0.0,
        sums: tuple[tuple[int, int], ...],
        floats: bool = False,
    ) -> Any:
        """q8 of y = x / sqrt(mean(x^2) + eps) * (w + offset).

        Arrays in, arrays out. `out` is written and returned.
        """

    def residual_norm_q8(
        self,
        a: ArrayLike,
        b: ArrayLike,
        w: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        eps: float,
        offset: float = 0.0,
        sums: tuple[tuple[int, int], ...],
        floats: bool = False,
    ) -> Any:
        """q8 of s = a + b; y = s / sqrt(mean(s^2) + eps) * (w + offset).

        Arrays in, arrays out. `out` is written and returned.
        """

    def silu_multiply_q8(
        self,
        gate: ArrayLike,
        up: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        sums: tuple[tuple[int, int], ...],
        floats: bool = False,
    ) -> Any:
        """q8 of y = gate / (1 + exp(-gate)) * up.

        Arrays in, arrays out. `out` is written and returned.
        """

    def gelu_multiply_q8(
        self,
        gate: ArrayLike,
        up: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
        sums: tuple[tuple[int, int], ...],
        floats: bool = False,
    ) -> Any:
        """q8 of y = gate / 2 (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) up.

        Arrays in, arrays out. `out` is written and returned.
        """

    def gated_delta_rule(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        g: ArrayLike,
        beta: ArrayLike,
        /,
        *state: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
        scale: float | None = None,
        l2_norm: bool = False,
    ) -> tuple[Any, Any]:
        """S = exp(g) S; d = beta (v - k.T S); S += outer(k, d); o = scale q.T S; the last S.

        Arrays in, arrays out. `out` is written and returned.
        """

    def delta_rule(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        beta: ArrayLike,
        /,
        *state: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
        scale: float | None = None,
        l2_norm: bool = False,
    ) -> tuple[Any, Any]:
        """d = beta (v - k.T S); S += outer(k, d); o = scale q.T S; the last S.

        Arrays in, arrays out. `out` is written and returned.
        """

    def gated_linear_attention(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        g: ArrayLike,
        /,
        *state: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
        scale: float | None = None,
    ) -> tuple[Any, Any]:
        """S = exp(g) S + outer(k, v); o = scale q.T S; the last S.

        Arrays in, arrays out. `out` is written and returned.
        """

    def delta_gates(
        self,
        alpha: ArrayLike,
        b: ArrayLike,
        a_log: ArrayLike,
        dt_bias: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any]:
        """g = -exp(a_log) softplus(alpha + dt_bias), a log decay; beta = sigmoid(b).

        Arrays in, arrays out. `out` is written and returned.
        """

    def delta_chunk_kkt(self, k: ArrayLike, g: ArrayLike, beta: ArrayLike, /, *, out: Array | None = None) -> Any:
        """A[i, j] = beta_i (k_i . k_j) exp(g_i - g_j) for i > j, else 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def delta_chunk_wu(
        self,
        t: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        g: ArrayLike,
        beta: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any]:
        """u = T (beta v); w = T (beta exp(g) k).

        Arrays in, arrays out. `out` is written and returned.
        """

    def delta_chunk_state(
        self,
        k: ArrayLike,
        u: ArrayLike,
        w: ArrayLike,
        g: ArrayLike,
        state: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any, Any]:
        """v' = u - w h; h = exp(g_last) h + k.T (exp(g_last - g) v'); v', h at chunk starts, the last h.

        Arrays in, arrays out. `out` is written and returned.
        """

    def delta_chunk_output(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        h: ArrayLike,
        g: ArrayLike,
        /,
        *,
        out: Array | None = None,
        scale: float = 1.0,
    ) -> Any:
        """o = scale (exp(g) (q h) + tril(q k.T exp(g_i - g_j)) v'), diagonal included.

        Arrays in, arrays out. `out` is written and returned.
        """

    def selective_scan(
        self,
        x: ArrayLike,
        dt: ArrayLike,
        a: ArrayLike,
        b: ArrayLike,
        c: ArrayLike,
        d: ArrayLike,
        /,
        *state: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any]:
        """h = exp(dt a) h + dt x B; y = C . h + D x; the last h.

        Arrays in, arrays out. `out` is written and returned.
        """

    def mamba2_ssd(
        self,
        x: ArrayLike,
        dt: ArrayLike,
        a: ArrayLike,
        b: ArrayLike,
        c: ArrayLike,
        d: ArrayLike,
        /,
        *state: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any]:
        """h = exp(dt a) h + outer(dt x, B); y = h C + D x, per head; the last h.

        Arrays in, arrays out. `out` is written and returned.
        """

    def rwkv6_time_mix(
        self,
        r: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        w: ArrayLike,
        u: ArrayLike,
        /,
        *state: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any]:
        """o = r.T (S + diag(u) outer(k, v)); S = diag(exp(w)) S + outer(k, v); the last S.

        Arrays in, arrays out. `out` is written and returned.
        """

    def rwkv7_time_mix(
        self,
        r: ArrayLike,
        w: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        a: ArrayLike,
        b: ArrayLike,
        /,
        *state: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any]:
        """S = diag(exp(w)) S + outer(b, a.T S) + outer(k, v); o = r.T S; the last S.

        Arrays in, arrays out. `out` is written and returned.
        """

    def gated_delta_rule_gradient(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        g: ArrayLike,
        beta: ArrayLike,
        state: ArrayLike,
        dy: ArrayLike,
        dstate: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any, Any, Any, Any, Any]:
        """dq = S do; r = G.T k; dv = beta r; dk = G d - exp(g) S dv; G = exp(g) (G - outer(k, dv)), backward.

        Arrays in, arrays out. `out` is written and returned.
        """

    def gated_linear_attention_gradient(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        g: ArrayLike,
        state: ArrayLike,
        dy: ArrayLike,
        dstate: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any, Any, Any, Any]:
        """G += outer(q, do); dq = S do; dk = G v; dv = G.T k; G = exp(g) G, backward.

        Arrays in, arrays out. `out` is written and returned.
        """

    def selective_scan_gradient(
        self,
        x: ArrayLike,
        dt: ArrayLike,
        a: ArrayLike,
        b: ArrayLike,
        c: ArrayLike,
        state: ArrayLike,
        dy: ArrayLike,
        dstate: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any, Any, Any, Any, Any]:
        """G += C dy; dC += h dy; dB += dt x G; dx = dt B . G; ddt = x B . G + sum G h exp(dt a) a, backward.

        Arrays in, arrays out. `out` is written and returned.
        """

    def rwkv6_gradient(
        self,
        r: ArrayLike,
        w: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        state: ArrayLike,
        dy: ArrayLike,
        dstate: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any, Any, Any, Any]:
        """dr = S do; dk = G v; dv = G.T k; dw = exp(w) sum_v G S; G = diag(exp(w)) G + outer(r, do).

        Arrays in, arrays out. `out` is written and returned.
        """

    def rwkv7_gradient(
        self,
        r: ArrayLike,
        w: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        a: ArrayLike,
        b: ArrayLike,
        state: ArrayLike,
        dy: ArrayLike,
        dstate: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
        """G += outer(r, do); dr = S' do; dk = G v; db = G (a.T S); G = diag(exp(w)) G + outer(a, G.T b).

        Arrays in, arrays out. `out` is written and returned.
        """

    def triangular_inverse(self, a: ArrayLike, /, *, out: Array | None = None) -> Any:
        """T = (I + A)^-1, A strictly lower.

        Arrays in, arrays out. `out` is written and returned.
        """

    def conv1d_depthwise_causal(self, x: ArrayLike, w: ArrayLike, /, *, out: Array | None = None) -> Any:
        """y[b, t, c] = sum_j w[c, j] x[b, t + j - (J - 1), c], zeros before.

        Arrays in, arrays out. `out` is written and returned.
        """

    def ssm_conv(
        self,
        x: ArrayLike,
        w: ArrayLike,
        state: ArrayLike,
        /,
        *bias: ArrayLike,
        out: Array | tuple[Array, ...] | None = None,
        activation: str = "silu",
    ) -> tuple[Any, Any]:
        """y[b, t, c] = silu(sum_j w[c, j] x[b, t + j - (J - 1), c] + bias[c]), the state before; the last J - 1 rows.

        Arrays in, arrays out. `out` is written and returned.
        """

    def short_conv(
        self,
        b: ArrayLike,
        c: ArrayLike,
        x: ArrayLike,
        w: ArrayLike,
        state: ArrayLike,
        /,
        *,
        out: Array | tuple[Array, ...] | None = None,
    ) -> tuple[Any, Any]:
        """y = c conv(b x), causal and depthwise, the state before; the last J - 1 rows of b x.

        Arrays in, arrays out. `out` is written and returned.
        """

    def slot_rows(self, positions: ArrayLike, slots: ArrayLike, /, *, out: Array | None = None, n_slots: int) -> Any:
        """the first row of each slot, the one after its last, and whether the first has position 0.

        Arrays in, arrays out. `out` is written and returned.
        """

    def conv_slots(
        self,
        x: ArrayLike,
        w: ArrayLike,
        state: ArrayLike,
        rows: ArrayLike,
        /,
        *bias: ArrayLike,
        out: Array | None = None,
        activation: str = "none",
    ) -> Any:
        """y[t, c] = act(sum_j w[j, c] x[t + j - (J - 1), c] + bias[c]), the slot's state before; the last J - 1 rows.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """

    def short_conv_slots(
        self, x: ArrayLike, w: ArrayLike, state: ArrayLike, rows: ArrayLike, /, *, out: Array | None = None
    ) -> Any:
        """y = c conv(b x), for x [b, c, x] and the slot's state before; the last J - 1 rows of b x.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """

    def gated_delta_slots(
        self,
        qkv: ArrayLike,
        alpha: ArrayLike,
        beta: ArrayLike,
        a: ArrayLike,
        dt: ArrayLike,
        state: ArrayLike,
        rows: ArrayLike,
        /,
        *,
        out: Array | None = None,
        groups: int,
        tiled: bool = False,
    ) -> Any:
        """S = exp(a softplus(alpha + dt)) S; S += outer(k, sigmoid(beta) (v - k.T S)); o = q.T S / sqrt(K), S of the slot.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """

    def dplr_slots(
        self,
        r: ArrayLike,
        w: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        a: ArrayLike,
        b: ArrayLike,
        state: ArrayLike,
        rows: ArrayLike,
        /,
        *,
        out: Array | None = None,
    ) -> Any:
        """S = diag(w) S + outer(b, a.T S) + outer(k, v); o = r.T S, S of the slot.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """

    def rwkv6_slots(
        self,
        r: ArrayLike,
        w: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        u: ArrayLike,
        state: ArrayLike,
        rows: ArrayLike,
        /,
        *,
        out: Array | None = None,
    ) -> Any:
        """o = r.T (S + diag(u) outer(k, v)); S = diag(w) S + outer(k, v), S of the slot.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """

    def selective_scan_slots(
        self,
        x: ArrayLike,
        dt: ArrayLike,
        b: ArrayLike,
        c: ArrayLike,
        a: ArrayLike,
        d: ArrayLike,
        bias: ArrayLike,
        state: ArrayLike,
        rows: ArrayLike,
        /,
        *,
        out: Array | None = None,
    ) -> Any:
        """h = exp(s a) h + s x B; y = C . h + D x, s = softplus(dt + bias), h of the slot.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """

    def ssd_slots(
        self,
        xbc: ArrayLike,
        dt: ArrayLike,
        a: ArrayLike,
        d: ArrayLike,
        bias: ArrayLike,
        state: ArrayLike,
        rows: ArrayLike,
        /,
        *,
        out: Array | None = None,
        groups: int,
    ) -> Any:
        """S = exp(s a) S + outer(B, s x); y = C.T S + D x, s = softplus(dt + bias), S of the slot.

        Arrays in, arrays out. Arrays that it updates are written in place.
        """
