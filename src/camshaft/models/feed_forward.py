"""The feed-forward of every family: gated or plain, dense or a mixture of experts, by the options of its row and its file."""

from __future__ import annotations

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.experts_config import Experts
from camshaft.models.families import Family

# gpt-oss: gates are clamped from above and ups on both sides, silu is that of 1.702 x, and 1 is added to ups.
LIMIT, ALPHA = 7.0, 1.702


def feed_forward(h: Tensor, layer: int, family: Family, config: ModelConfig, file: Checkpoint) -> Tensor:
    """down(act(gate(h)) * up(h)) or down(act(up(h))), of one feed-forward or of the chosen experts."""
    prefix = f"blk.{layer}"
    if config.experts is not None and config.layers[layer].experts:
        return _mixture(h, prefix, config.experts, family, config, file)
    bias, down = family.biases == "all", f"{prefix}.ffn_down"
    if not family.gated:
        up = file.linear(h, f"{prefix}.ffn_up", config.ffn_dim, bias=bias)
        return file.linear(F.function(family.activation)(up), down, config.dim, bias=bias)
    if family.fused in ("up", "all") and f"{prefix}.ffn_gate.weight" not in file:
        joined = file.linear(h, f"{prefix}.ffn_up", 2 * config.ffn_dim)
        gate, up = F.split(joined, axis=1, sizes=(config.ffn_dim, config.ffn_dim))
    else:
        inner = bias and not family.fused
        gate = file.linear(h, f"{prefix}.ffn_gate", config.ffn_dim, bias=inner)
        up = file.linear(h, f"{prefix}.ffn_up", config.ffn_dim, bias=inner)
    return file.linear(_activated(gate, up, f"{prefix}.ffn_act", family), down, config.dim, bias=bias)


def _activated(gate: Tensor, up: Tensor, name: str, family: Family) -> Tensor:
    """act(gate) * up."""
    if family.activation == "clamped_swiglu":
        gate = F.minimum(gate, LIMIT)
        up = F.add(F.clip(up, -LIMIT, LIMIT), 1.0)
        return F.multiply(F.multiply(gate, F.sigmoid(F.multiply(gate, ALPHA))), up, name=name)
    if family.activation == "gelu_erf":
        return F.multiply(F.gelu_erf(gate), up, name=name)
    made: Tensor = F.function(f"{family.activation}_multiply")(gate, up, name=name)
    return made


def _mixture(h: Tensor, prefix: str, experts: Experts, family: Family, config: ModelConfig, file: Checkpoint) -> Tensor:
    """The chosen experts' sum by weight, and the shared expert, times the sigmoid of its gate where the file has one."""
    weights, chosen = _routed(h, prefix, experts, family, file)
    if family.expert_biases or not family.gated or f"{prefix}.ffn_gate_up_exps.weight" in file:
        y = _composed_experts(h, prefix, experts, weights, chosen, family, config, file)
    else:
        inner = (experts.n, experts.dim, config.dim)
        gate, up = (file.tensor(f"{prefix}.ffn_{name}_exps.weight", *inner) for name in ("gate", "up"))
        down = file.tensor(f"{prefix}.ffn_down_exps.weight", experts.n, config.dim, experts.dim)
        y = F.moe_experts(h, gate, up, down, chosen, weights, act=family.activation)
    return F.add(y, _shared(h, prefix, experts, family, config, file)) if experts.shared_dim else y


def _routed(h: Tensor, prefix: str, experts: Experts, family: Family, file: Checkpoint) -> tuple[Tensor, Tensor]:
    """The chosen experts' weights f32 [T, n_used], and which they are; a bias changes the choice, not the weights."""
    scores = file.linear(h, f"{prefix}.ffn_gate_inp", experts.n, bias=family.expert_biases)
    name = f"{prefix}.exp_probs_b.bias"
    bias = [file.vector(name, experts.n)] if name in file else []
    weights, chosen = F.moe_route(
        scores,
        *bias,
        top_k=experts.n_used,
        score=experts.score,
        groups=experts.groups,
        top_groups=experts.top_groups,
        group_top=experts.group_top,
        normalize=experts.normalizes,
        scale=experts.scale,
    )
    return weights, chosen


def _composed_experts(
    h: Tensor,
    prefix: str,
    experts: Experts,
    weights: Tensor,
    chosen: Tensor,
    family: Family,
    config: ModelConfig,
    file: Checkpoint,
) -> Tensor:
    """The sum by weight of experts whose projections have biases, have gate and up as one tensor, or no gate."""

    def projected(x: Tensor, name: str, n: int, k: int) -> Tensor:
        w = file.tensor(f"{prefix}.{name}.weight", experts.n, n, k)
        op = "quantized_matmul_grouped" if w.spec.dtype.name.isupper() else "matmul_grouped"
        y: Tensor = F.function(op)(x, w, chosen, name=f"{prefix}.{name}")
        if not family.expert_biases:
            return y
        return F.add(y, _chosen_rows(file.tensor(f"{prefix}.{name}.bias", experts.n, n), chosen))

    if not family.gated:
        up = projected(h, "ffn_up_exps", experts.dim, config.dim)
        down = projected(F.function(family.activation)(up), "ffn_down_exps", config.dim, experts.dim)
        return F.moe_weighted_reduce(down, weights)
    if f"{prefix}.ffn_gate_up_exps.weight" in file:
        joined = projected(h, "ffn_gate_up_exps", 2 * experts.dim, config.dim)
        gate, up = F.split(joined, axis=2, sizes=(experts.dim, experts.dim))
    else:
        gate = projected(h, "ffn_gate_exps", experts.dim, config.dim)
        up = projected(h, "ffn_up_exps", experts.dim, config.dim)
    hidden = _activated(gate, up, f"{prefix}.ffn_act", family)
    made: Tensor = F.moe_weighted_reduce(projected(hidden, "ffn_down_exps", config.dim, experts.dim), weights)
    return made


def _chosen_rows(table: Tensor, chosen: Tensor) -> Tensor:
    """Rows [T, S, n] of a table [n_experts, n]; gather takes an Extent only as its one axis, so slot by slot."""
    tokens, n_slots = chosen.shape
    assert isinstance(n_slots, int)
    rows = [F.gather(table, chosen[:, s]).reshape((tokens, 1, table.shape[1])) for s in range(n_slots)]
    joined: Tensor = F.concat(*rows, axis=1) if len(rows) > 1 else rows[0]
    return joined


def _shared(h: Tensor, prefix: str, experts: Experts, family: Family, config: ModelConfig, file: Checkpoint) -> Tensor:
    gate = file.linear(h, f"{prefix}.ffn_gate_shexp", experts.shared_dim)
    up = file.linear(h, f"{prefix}.ffn_up_shexp", experts.shared_dim)
    y = file.linear(_activated(gate, up, f"{prefix}.ffn_act_shexp", family), f"{prefix}.ffn_down_shexp", config.dim)
    name = f"{prefix}.ffn_gate_inp_shexp.weight"
    if name not in file:
        return y
    gate = F.matmul(h, file.graph.reshape(file.vector(name, config.dim), (1, config.dim)), transpose_b=True)
    return F.multiply(y, F.sigmoid(gate))
