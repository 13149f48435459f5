"""The feed-forward of every family: gated or plain, dense or a mixture of experts, by the options of its row and its file."""

from __future__ import annotations

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.norms import norm
from camshaft.models.checkpoint import Checkpoint, columns_of
from camshaft.models.config import ModelConfig
from camshaft.models.experts_config import Experts
from camshaft.models.families import Family
from camshaft.models.xielu_config import Xielu

# gpt-oss: gates are clamped from above and ups on both sides, silu is that of 1.702 x, and 1 is added to ups.
LIMIT, ALPHA = 7.0, 1.702
# Phi-3.5-MoE: scores that are further from the best one than twice this part of it do not count.
JITTER, LOWEST = 0.01, -1e30


def feed_forward(
    h: Tensor,
    layer: int,
    family: Family,
    config: ModelConfig,
    file: Checkpoint,
    x: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """down(act(gate(h)) * up(h)) or down(act(up(h))), of one feed-forward or of the chosen experts, or the sum of both, where
    experts see x, whose norm h is. The router sees h, or what is `seen`."""
    prefix = f"blk.{layer}"
    is_dense = not config.layers[layer].experts or (
        family.dense_unrouted and f"{prefix}.ffn_gate_inp.weight" not in file
    )
    if config.experts is None or is_dense:
        return _dense(h, layer, family, config, file)
    if family.dense_beside_experts != "normed" or x is None:
        y = _mixture(h, h if seen is None else seen, prefix, config.experts, family, config, file)
        if not family.dense_beside_experts or f"{prefix}.ffn_up.weight" not in file:
            return y
        return F.multiply(F.add(_dense(h, layer, family, config, file), y), 2**-0.5)
    dense = norm(_dense(h, layer, family, config, file), f"{prefix}.post_ffw_norm_1", config, file)
    seen = F.rms_norm(x, file.vector(f"{prefix}.ffn_gate_inp.scale", config.dim), eps=config.norm_eps)
    seen = F.multiply(seen, config.dim**-0.5)
    h = norm(x, f"{prefix}.pre_ffw_norm_2", config, file)
    y = _mixture(h, seen, prefix, config.experts, family, config, file)
    return F.add(dense, norm(y, f"{prefix}.post_ffw_norm_2", config, file))


def _dense(h: Tensor, layer: int, family: Family, config: ModelConfig, file: Checkpoint) -> Tensor:
    prefix = f"blk.{layer}"
    bias, down = family.biases == "all", f"{prefix}.ffn_down"
    if not family.gated:
        up = file.linear(h, f"{prefix}.ffn_up", config.ffn_dim, bias=bias)
        act = f"{prefix}.ffn_act"
        hidden = _xielu(up, config.xielu[layer], act) if config.xielu else _plain_activation(up, act, family)
        return file.linear(hidden, down, config.dim, bias=bias)
    if family.fused in ("up", "all") and f"{prefix}.ffn_gate.weight" not in file:
        joined = file.linear(h, f"{prefix}.ffn_up", 2 * config.ffn_dim)
        gate, up = F.split(joined, axis=1, sizes=(config.ffn_dim, config.ffn_dim))
    else:
        inner = bias and not family.fused
        gate = file.linear(h, f"{prefix}.ffn_gate", config.ffn_dim, bias=inner)
        up = file.linear(h, f"{prefix}.ffn_up", config.ffn_dim, bias=inner)
    return file.linear(_activated(gate, up, f"{prefix}.ffn_act", family), down, config.dim, bias=bias)


def _plain_activation(up: Tensor, name: str, family: Family) -> Tensor:
    """act(up)."""
    if family.activation == "relu_squared":
        return F.square(F.relu(up), name=name)
    made: Tensor = F.function(family.activation)(up, name=name)
    return made


def _xielu(x: Tensor, of: Xielu, name: str) -> Tensor:
    """The layer's xIELU of x."""
    low = F.multiply(F.subtract(F.expm1(F.minimum(x, of.edge)), x), of.negative)
    curved = F.where(F.greater(x, 0.0), F.multiply(F.square(x), of.positive), low)
    made: Tensor = F.add(curved, F.multiply(x, of.linear), name=name)
    return made


def _activated(gate: Tensor, up: Tensor, name: str, family: Family) -> Tensor:
    """act(gate) * up."""
    if family.activation == "clamped_swiglu":
        gate = F.minimum(gate, LIMIT)
        up = F.add(F.clip(up, -LIMIT, LIMIT), 1.0)
        return F.multiply(F.multiply(gate, F.sigmoid(F.multiply(gate, ALPHA))), up, name=name)
    if family.activation == "relu":
        return F.multiply(F.relu(gate), up, name=name)
    if family.activation == "gelu_erf":
        return F.multiply(F.gelu_erf(gate), up, name=name)
    made: Tensor = F.function(f"{family.activation}_multiply")(gate, up, name=name)
    return made


def _mixture(
    h: Tensor, seen: Tensor, prefix: str, experts: Experts, family: Family, config: ModelConfig, file: Checkpoint
) -> Tensor:
    """The sum by weight of the experts that the router chooses by what is `seen`, and the shared expert, times the sigmoid of
    its gate where the file has one."""
    weights, chosen = _routed(seen, prefix, experts, family, file)
    x = file.linear(h, f"{prefix}.ffn_latent_down", experts.latent) if experts.latent else h
    if family.weighs_inputs:
        x, weights = F.multiply(x, weights), F.add(F.multiply(weights, 0.0), 1.0)
    y = _chosen_experts(x, prefix, experts, weights, chosen, family, file)
    y = file.linear(y, f"{prefix}.ffn_latent_up", config.dim) if experts.latent else y
    return F.add(y, _shared(h, prefix, experts, family, config, file)) if experts.shared_dim else y


def _chosen_experts(
    x: Tensor, prefix: str, experts: Experts, weights: Tensor, chosen: Tensor, family: Family, file: Checkpoint
) -> Tensor:
    """The sum by weight of the experts' results for x [T, n]."""
    if (
        family.expert_biases
        or not family.gated
        or family.activation == "relu"
        or f"{prefix}.ffn_gate_up_exps.weight" in file
        or file.changes(*(f"{prefix}.ffn_{part}_exps" for part in ("gate", "up", "down")))
    ):
        return _composed_experts(x, prefix, experts, weights, chosen, family, file)
    dim = columns_of(x)
    gate, up = (file.tensor(f"{prefix}.ffn_{name}_exps.weight", experts.n, experts.dim, dim) for name in ("gate", "up"))
    down = file.tensor(f"{prefix}.ffn_down_exps.weight", experts.n, dim, experts.dim)
    y: Tensor = F.moe_experts(x, gate, up, down, chosen, weights, act=family.activation)
    return y


def _routed(h: Tensor, prefix: str, experts: Experts, family: Family, file: Checkpoint) -> tuple[Tensor, Tensor]:
    """The chosen experts' weights f32 [T, n_used], and which they are; a bias changes the choice, not the weights, and a scale
    the weights."""
    scores = file.linear(h, f"{prefix}.ffn_gate_inp", experts.n, bias=family.expert_biases)
    names = f"{prefix}.exp_probs_b.bias", f"{prefix}.ffn_down_exps.scale"
    weights, chosen = F.moe_route(
        scores,
        *(file.vector(name, experts.n) for name in names if name in file),
        expert_scale=names[1] in file,
        top_k=experts.n_used,
        score="softmax" if experts.score == "sparse_mixer" else experts.score,
        groups=experts.groups,
        top_groups=experts.top_groups,
        group_top=experts.group_top,
        normalize=experts.normalizes,
        scale=experts.scale,
    )
    return (_sparse_mixer(scores) if experts.score == "sparse_mixer" else weights), chosen


def _sparse_mixer(scores: Tensor) -> Tensor:
    """The weights f32 [T, 2] of the two best of scores [T, n] (Phi-3.5-MoE): of each its share of the softmax of those that are
    about as good, without the best one for the second."""
    best = F.max(scores, axes=1, keepdims=True)
    rest = F.where(F.less(scores, best), scores, LOWEST)
    weights = []
    for among, top in ((scores, best), (rest, F.max(rest, axes=1, keepdims=True))):
        far = F.multiply(F.maximum(F.abs(scores), top), 2 * JITTER)
        terms = F.where(F.greater(F.subtract(top, among), far), 0.0, F.exp(F.subtract(among, top)))
        weights.append(F.divide(1.0, F.sum(terms, axes=1, keepdims=True)))
    return F.concat(*weights, axis=1)


def _composed_experts(
    x: Tensor, prefix: str, experts: Experts, weights: Tensor, chosen: Tensor, family: Family, file: Checkpoint
) -> Tensor:
    """The same of experts whose projections have biases or adapters, or no gate, or gate and up as one tensor."""

    def projected(x: Tensor, name: str, n: int, k: int) -> Tensor:
        y = file.grouped(x, f"{prefix}.{name}", (experts.n, n, k), chosen)
        if not family.expert_biases:
            return y
        return F.add(y, F.gather(file.tensor(f"{prefix}.{name}.bias", experts.n, n), chosen))

    dim, name = columns_of(x), f"{prefix}.ffn_act"
    if not family.gated:
        hidden = _plain_activation(projected(x, "ffn_up_exps", experts.dim, dim), name, family)
    elif f"{prefix}.ffn_gate_up_exps.weight" in file:
        joined = projected(x, "ffn_gate_up_exps", 2 * experts.dim, dim)
        gate, up = F.split(joined, axis=2, sizes=(experts.dim, experts.dim))
        hidden = _activated(gate, up, name, family)
    else:
        gate, up = (projected(x, f"ffn_{part}_exps", experts.dim, dim) for part in ("gate", "up"))
        hidden = _activated(gate, up, name, family)
    made: Tensor = F.moe_weighted_reduce(projected(hidden, "ffn_down_exps", dim, experts.dim), weights)
    return made


def _shared(h: Tensor, prefix: str, experts: Experts, family: Family, config: ModelConfig, file: Checkpoint) -> Tensor:
    name = f"{prefix}.ffn_act_shexp"
    up = file.linear(h, f"{prefix}.ffn_up_shexp", experts.shared_dim)
    if family.gated:
        hidden = _activated(file.linear(h, f"{prefix}.ffn_gate_shexp", experts.shared_dim), up, name, family)
    else:
        hidden = _plain_activation(up, name, family)
    y = file.linear(hidden, f"{prefix}.ffn_down_shexp", config.dim)
    name = f"{prefix}.ffn_gate_inp_shexp.weight"
    if name not in file:
        return y
    gate = file.product(h, file.graph.reshape(file.vector(name, config.dim), (1, config.dim)), name)
    return F.multiply(y, F.sigmoid(gate))
