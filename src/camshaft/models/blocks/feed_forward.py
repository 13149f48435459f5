"""The feed-forward of every family: gated or plain, dense or a mixture of experts, by the options of its row and its file."""

from __future__ import annotations

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.layer import Layer
from camshaft.models.checkpoint import columns_of
from camshaft.models.configs.experts import Experts
from camshaft.models.families import Family
from camshaft.models.layer_options import Xielu

# gpt-oss: gates are clamped from above and ups on both sides, silu is that of 1.702 x, and 1 is added to ups.
LIMIT, ALPHA = 7.0, 1.702
# Phi-3.5-MoE: scores that are further from the best one than twice this part of it do not count.
JITTER, LOWEST = 0.01, -1e30


def feed_forward(h: Tensor, layer: Layer, x: Tensor | None = None, routed_by: Tensor | None = None) -> Tensor:
    """down(act(gate(h)) * up(h)) or down(act(up(h))), of one feed-forward or of the chosen experts, or the sum of both, where
    experts see x, whose norm h is. The router sees h, or `routed_by`."""
    family, config = layer.family, layer.config
    is_dense = not layer.options.experts or (family.dense_unrouted and not layer.has("ffn_gate_inp.weight"))
    if config.experts is None or is_dense:
        return _dense(h, layer)
    if family.dense_beside_experts != "normed" or x is None:
        y = _mixture(h, h if routed_by is None else routed_by, layer, config.experts)
        if not family.dense_beside_experts or not layer.has("ffn_up.weight"):
            return y
        return F.multiply(F.add(_dense(h, layer), y), 2**-0.5)
    dense = layer.norm(_dense(h, layer), "post_ffw_norm_1")
    routed_by = F.rms_norm(x, layer.vector("ffn_gate_inp.scale", config.dim), eps=config.norm_eps)
    routed_by = F.multiply(routed_by, config.dim**-0.5)
    y = _mixture(layer.norm(x, "pre_ffw_norm_2"), routed_by, layer, config.experts)
    return F.add(dense, layer.norm(y, "post_ffw_norm_2"))


def _dense(h: Tensor, layer: Layer) -> Tensor:
    family, config = layer.family, layer.config
    bias, act = family.biases == "all", layer.name("ffn_act")
    if not family.gated:
        up = layer.linear(h, "ffn_up", config.ffn_dim, bias=bias)
        hidden = _xielu(up, config.xielu[layer.number], act) if config.xielu else _plain_activation(up, act, family)
        return layer.linear(hidden, "ffn_down", config.dim, bias=bias)
    if family.fused in ("up", "all") and not layer.has("ffn_gate.weight"):
        joined = layer.linear(h, "ffn_up", 2 * config.ffn_dim)
        gate, up = F.split(joined, axis=1, sizes=(config.ffn_dim, config.ffn_dim))
    else:
        inner = bias and not family.fused
        gate = layer.linear(h, "ffn_gate", config.ffn_dim, bias=inner)
        up = layer.linear(h, "ffn_up", config.ffn_dim, bias=inner)
    return layer.linear(_activated(gate, up, act, family), "ffn_down", config.dim, bias=bias)


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


def _mixture(h: Tensor, routed_by: Tensor, layer: Layer, experts: Experts) -> Tensor:
    """The weighted sum of the experts that the router chooses by `routed_by`, and the shared expert, times the sigmoid of its
    gate if the file has one."""
    weights, chosen = _routed(routed_by, layer, experts)
    x = layer.linear(h, "ffn_latent_down", experts.latent) if experts.latent else h
    if layer.family.weighs_inputs:
        x, weights = F.multiply(x, weights), F.add(F.multiply(weights, 0.0), 1.0)
    y = _chosen_experts(x, layer, experts, weights, chosen)
    y = layer.linear(y, "ffn_latent_up", layer.config.dim) if experts.latent else y
    return F.add(y, _shared(h, layer, experts)) if experts.shared_dim else y


def _chosen_experts(x: Tensor, layer: Layer, experts: Experts, weights: Tensor, chosen: Tensor) -> Tensor:
    """The weighted sum of the experts' results for x [T, n]."""
    family, file = layer.family, layer.file
    if (
        family.expert_biases
        or not family.gated
        or family.activation == "relu"
        or layer.has("ffn_gate_up_exps.weight")
        or file.changes(*(layer.name(f"ffn_{part}_exps") for part in ("gate", "up", "down")))
    ):
        return _composed_experts(x, layer, experts, weights, chosen)
    dim = columns_of(x)
    gate, up = (
        file.tensor(layer.name(f"ffn_{part}_exps.weight"), experts.n, experts.dim, dim) for part in ("gate", "up")
    )
    down = file.tensor(layer.name("ffn_down_exps.weight"), experts.n, dim, experts.dim)
    y: Tensor = F.moe_experts(x, gate, up, down, chosen, weights, act=family.activation)
    return y


def _routed(h: Tensor, layer: Layer, experts: Experts) -> tuple[Tensor, Tensor]:
    """The chosen experts' weights f32 [T, n_used] and their numbers. A bias changes the choice, not the weights; a scale the
    weights."""
    scores = layer.linear(h, "ffn_gate_inp", experts.n, bias=layer.family.expert_biases)
    names = "exp_probs_b.bias", "ffn_down_exps.scale"
    weights, chosen = F.moe_route(
        scores,
        *(layer.vector(name, experts.n) for name in names if layer.has(name)),
        expert_scale=layer.has(names[1]),
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


def _composed_experts(x: Tensor, layer: Layer, experts: Experts, weights: Tensor, chosen: Tensor) -> Tensor:
    """The same for experts whose projections have biases or adapters, or no gate, or gate and up as one tensor."""
    family = layer.family

    def projected(x: Tensor, part: str, n: int, k: int) -> Tensor:
        y = layer.file.grouped(x, layer.name(part), (experts.n, n, k), chosen)
        if not family.expert_biases:
            return y
        return F.add(y, F.gather(layer.file.tensor(layer.name(f"{part}.bias"), experts.n, n), chosen))

    dim, act = columns_of(x), layer.name("ffn_act")
    if not family.gated:
        hidden = _plain_activation(projected(x, "ffn_up_exps", experts.dim, dim), act, family)
    elif layer.has("ffn_gate_up_exps.weight"):
        joined = projected(x, "ffn_gate_up_exps", 2 * experts.dim, dim)
        gate, up = F.split(joined, axis=2, sizes=(experts.dim, experts.dim))
        hidden = _activated(gate, up, act, family)
    else:
        gate, up = (projected(x, f"ffn_{part}_exps", experts.dim, dim) for part in ("gate", "up"))
        hidden = _activated(gate, up, act, family)
    made: Tensor = F.moe_weighted_reduce(projected(hidden, "ffn_down_exps", dim, experts.dim), weights)
    return made


def _shared(h: Tensor, layer: Layer, experts: Experts) -> Tensor:
    family, file, dim, act = layer.family, layer.file, layer.config.dim, layer.name("ffn_act_shexp")
    up = layer.linear(h, "ffn_up_shexp", experts.shared_dim)
    if family.gated:
        hidden = _activated(layer.linear(h, "ffn_gate_shexp", experts.shared_dim), up, act, family)
    else:
        hidden = _plain_activation(up, act, family)
    y = layer.linear(hidden, "ffn_down_shexp", dim)
    name = layer.name("ffn_gate_inp_shexp.weight")
    if name not in file:
        return y
    gate = file.product(h, file.graph.reshape(file.vector(name, dim), (1, dim)), name)
    return F.multiply(y, F.sigmoid(gate))
