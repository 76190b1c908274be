"""A generated model in MXNet Gluon: blocks of `gluon.nn`, functions of bare parameters, or hybridised blocks."""

from __future__ import annotations

from typing import Any

from embgrad_gluon.importing import import_mxnet

from tests.contract.properties.specs import EPSILON, FUNCTIONS, OTHERS, Block, Spec, weights_of

mx = import_mxnet()
nn = mx.gluon.nn


def build(spec: Spec) -> Any:
    kind = _Functions if spec.form == FUNCTIONS else _Blocks
    net = _taking(kind, spec.masked, spec.types)(spec)
    net.initialize(mx.init.Zero())
    net.cast(spec.dtype)
    own = net._collect_params_with_prefix()
    for name, value in weights_of(spec).items():
        parameter = own[net.path(name)]
        parameter.set_data(mx.nd.array(value.T if net.turned(name) else value, dtype=spec.dtype))
    if spec.form == OTHERS:
        net.hybridize()
    return net


class _Net(mx.gluon.HybridBlock):  # type: ignore[misc]
    """The way through the tables, the blocks and the head."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec

    def through(self, F: Any, input_ids: Any, mask: Any, types: Any, own: dict[str, Any]) -> Any:
        hidden = self.rows(F, "words", input_ids, own)
        if self.spec.scale is not None:
            hidden = hidden * self.spec.scale
        if self.spec.positions:
            places = self.rows(F, "positions", F.contrib.arange_like(input_ids, axis=1), own)
            hidden = F.broadcast_add(hidden, F.expand_dims(places, 0))
        if self.spec.types:
            hidden = hidden + self.rows(F, "segments", types, own)
        real = F.cast(F.ones_like(input_ids) if mask is None else mask, self.spec.dtype)
        for number in range(len(self.spec.blocks)):
            hidden = _mean(F, hidden, real) if number == self.spec.pool else hidden
            hidden = self.block(F, number, hidden, real, own)
        return self.headed(F, _mean(F, hidden, real) if len(self.spec.blocks) == self.spec.pool else hidden, own)


class _Functions(_Net):
    """Bare parameters."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        with self.name_scope():
            for name, value in weights_of(spec).items():
                setattr(self, self.path(name), self.params.get(self.path(name), shape=value.shape, dtype=spec.dtype))

    @staticmethod
    def path(name: str) -> str:
        return name.replace(".", "_")

    @staticmethod
    def turned(name: str) -> bool:
        return False

    def rows(self, F: Any, table: str, indices: Any, own: dict[str, Any]) -> Any:
        shape = weights_of(self.spec)[table].shape
        return F.Embedding(indices, own[table], input_dim=shape[0], output_dim=shape[1], dtype=self.spec.dtype)

    def block(self, F: Any, number: int, hidden: Any, real: Any, own: dict[str, Any]) -> Any:
        block, prefix = self.spec.blocks[number], f"blocks_{number}_"
        mine = {name.removeprefix(prefix): value for name, value in own.items() if name.startswith(prefix)}
        if block.kind == "linear":
            made = F.broadcast_add(F.dot(hidden, mine["weight"]), mine["bias"])
        elif block.kind == "norm":
            made = F.LayerNorm(hidden, mine["gain"], mine["shift"], eps=EPSILON)
        elif block.kind == "attention":
            made = _attended(F, *(F.dot(hidden, mine[name]) for name in ("query", "key", "value")), real, self.spec)
        else:
            made = F.tanh(hidden) if block.kind == "tanh" else _mixed(F, hidden)
        return hidden + made if block.residual else made

    def headed(self, F: Any, hidden: Any, own: dict[str, Any]) -> Any:
        if self.spec.head == "tied":
            return F.dot(hidden, own["words"], transpose_b=True)
        if self.spec.head == "none":
            return hidden
        return F.broadcast_add(F.dot(hidden, own["head_weight"]), own["head_bias"])


class _Blocks(_Net):
    """Blocks of `gluon.nn`."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
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

    @staticmethod
    def path(name: str) -> str:
        if name in ("words", "positions", "segments"):
            return f"{name}.weight"
        if not name.startswith("blocks"):
            return name
        start, _, own = name.rpartition(".")
        named = {"gain": "gamma", "shift": "beta"}.get(own, own)
        return f"{start}.{named}.weight" if own in ("query", "key", "value") else f"{start}.inner.{named}"

    @staticmethod
    def turned(name: str) -> bool:
        return name.endswith(("weight", "query", "key", "value"))

    def rows(self, F: Any, table: str, indices: Any, own: dict[str, Any]) -> Any:
        return getattr(self, table)(indices)

    def block(self, F: Any, number: int, hidden: Any, real: Any, own: dict[str, Any]) -> Any:
        return self.blocks[number](hidden, real)

    def headed(self, F: Any, hidden: Any, own: dict[str, Any]) -> Any:
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


def _taking(kind: type, masked: bool, types: bool) -> type:
    class TakesAll(kind):  # type: ignore[misc, valid-type]
        def hybrid_forward(self, F: Any, input_ids: Any, attention_mask: Any, token_type_ids: Any, **own: Any) -> Any:
            return self.through(F, input_ids, attention_mask, token_type_ids, own)

    class TakesMask(kind):  # type: ignore[misc, valid-type]
        def hybrid_forward(self, F: Any, input_ids: Any, attention_mask: Any, **own: Any) -> Any:
            return self.through(F, input_ids, attention_mask, None, own)

    class TakesTypes(kind):  # type: ignore[misc, valid-type]
        def hybrid_forward(self, F: Any, input_ids: Any, token_type_ids: Any, **own: Any) -> Any:
            return self.through(F, input_ids, None, token_type_ids, own)

    class TakesIds(kind):  # type: ignore[misc, valid-type]
        def hybrid_forward(self, F: Any, input_ids: Any, **own: Any) -> Any:
            return self.through(F, input_ids, None, None, own)

    return {(True, True): TakesAll, (True, False): TakesMask, (False, True): TakesTypes, (False, False): TakesIds}[
        masked, types
    ]


def _attended(F: Any, query: Any, key: Any, value: Any, real: Any, spec: Spec) -> Any:
    scores = F.batch_dot(query, key, transpose_b=True) / spec.width**0.5
    away = F.expand_dims((real - 1) * 1e9, 1)
    return F.batch_dot(F.softmax(F.broadcast_add(scores, away)), value)


def _mean(F: Any, hidden: Any, real: Any) -> Any:
    summed = F.sum(F.broadcast_mul(hidden, F.expand_dims(real, 2)), axis=1)
    return F.broadcast_div(summed, F.sum(real, axis=1, keepdims=True))


def _mixed(F: Any, hidden: Any) -> Any:
    return F.broadcast_sub(hidden, F.mean(hidden, axis=0, keepdims=True) / 2)
