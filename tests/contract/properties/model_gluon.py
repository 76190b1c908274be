"""A generated model in MXNet Gluon, the alternative hybridised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from embgrad_gluon.importing import import_mxnet

from tests.contract.properties.specs import EPSILON, Block, Spec, weights_of

mx = import_mxnet()
nn = mx.gluon.nn


def build(spec: Spec) -> Any:
    net = type("Net", (_Net,), {"hybrid_forward": FORWARDS[spec.masked, spec.types]})(spec)
    net.initialize(mx.init.Zero())
    net.cast(spec.dtype)
    own = net._collect_params_with_prefix()
    for name, value in weights_of(spec).items():
        transposed = name.endswith(("weight", "query", "key", "value"))
        own[_path(name)].set_data(mx.nd.array(value.T if transposed else value, dtype=spec.dtype))
    if spec.alternative:
        net.hybridize()
    return net


def _path(name: str) -> str:
    if name in ("words", "positions", "segments"):
        return f"{name}.weight"
    if not name.startswith("blocks"):
        return name
    start, _, own = name.rpartition(".")
    attribute = {"gain": "gamma", "shift": "beta"}.get(own, own)
    return f"{start}.{attribute}.weight" if own in ("query", "key", "value") else f"{start}.inner.{attribute}"


#: The signatures of models with a mask, with types.
FORWARDS: Final[dict[tuple[bool, bool], Callable[..., Any]]] = {
    (True, True): lambda self, F, input_ids, attention_mask, token_type_ids: self.through(
        F, input_ids, attention_mask, token_type_ids
    ),
    (True, False): lambda self, F, input_ids, attention_mask: self.through(F, input_ids, attention_mask, None),
    (False, True): lambda self, F, input_ids, token_type_ids: self.through(F, input_ids, None, token_type_ids),
    (False, False): lambda self, F, input_ids: self.through(F, input_ids, None, None),
}


class _Net(mx.gluon.HybridBlock):  # type: ignore[misc]
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        weights = weights_of(spec)
        for name in ("words", "positions", "segments"):
            if name in weights:
                setattr(self, name, nn.Embedding(*weights[name].shape))
        self.blocks = nn.HybridSequential()
        for block in spec.blocks:
            self.blocks.add(_Block(block, spec))
        if spec.head == "linear":
            self.head = nn.Dense(spec.classes, in_units=spec.width, flatten=False)
        elif spec.head == "tied":
            self.head = nn.Dense(
                spec.vocab, in_units=spec.width, flatten=False, use_bias=False, params=self.words.params
            )

    def through(self, F: Any, input_ids: Any, mask: Any, types: Any) -> Any:
        hidden = self.words(input_ids)
        if self.spec.scale is not None:
            hidden = hidden * self.spec.scale
        if self.spec.positions:
            places = self.positions(F.contrib.arange_like(input_ids, axis=1))
            hidden = F.broadcast_add(hidden, F.expand_dims(places, 0))
        if self.spec.types:
            hidden = hidden + self.segments(types)
        real = F.cast(F.ones_like(input_ids) if mask is None else mask, self.spec.dtype)
        for number, block in enumerate(self.blocks):
            hidden = _mean(F, hidden, real) if number == self.spec.pool else hidden
            hidden = block(hidden, real)
        hidden = _mean(F, hidden, real) if len(self.blocks) == self.spec.pool else hidden
        return hidden if self.spec.head == "none" else self.head(hidden)


class _Block(mx.gluon.HybridBlock):  # type: ignore[misc]
    def __init__(self, block: Block, spec: Spec) -> None:
        super().__init__()
        self.of, self.spec, width = block, spec, spec.width
        if block.kind == "linear":
            self.inner = nn.Dense(width, in_units=width, flatten=False)
        elif block.kind == "norm":
            self.inner = nn.LayerNorm(epsilon=EPSILON, in_channels=width)
        elif block.kind == "attention":
            for name in ("query", "key", "value"):
                setattr(self, name, nn.Dense(width, in_units=width, flatten=False, use_bias=False))
        elif block.kind == "tanh":
            self.inner = nn.Activation("tanh")

    def hybrid_forward(self, F: Any, hidden: Any, real: Any) -> Any:
        if self.of.kind == "attention":
            made = _attended(F, self.query(hidden), self.key(hidden), self.value(hidden), real, self.spec)
        else:
            made = _mixed(F, hidden) if self.of.kind == "mix" else self.inner(hidden)
        return hidden + made if self.of.residual else made


def _attended(F: Any, query: Any, key: Any, value: Any, real: Any, spec: Spec) -> Any:
    scores = F.batch_dot(query, key, transpose_b=True) / spec.width**0.5
    away = F.expand_dims((real - 1) * 1e9, 1)
    return F.batch_dot(F.softmax(F.broadcast_add(scores, away)), value)


def _mean(F: Any, hidden: Any, real: Any) -> Any:
    summed = F.sum(F.broadcast_mul(hidden, F.expand_dims(real, 2)), axis=1)
    return F.broadcast_div(summed, F.sum(real, axis=1, keepdims=True))


def _mixed(F: Any, hidden: Any) -> Any:
    return F.broadcast_sub(hidden, F.mean(hidden, axis=0, keepdims=True) / 2)
