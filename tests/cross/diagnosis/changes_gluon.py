"""MXNet Gluon: what can go wrong in a model, by the framework's own means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from tests.cross.diagnosis.changes_of_weights import Weights, changes_of_weights
from tests.cross.diagnosis.native_gluon import Port, bert, core, is_own, mx, nn, table_of


class OffsetEncoder(bert.BERTEncoder):
    def hybrid_forward(
        self, F: Any, inputs: Any, states: Any = None, valid_length: Any = None, position_weight: Any = None
    ) -> Any:
        later = F.slice_axis(position_weight, axis=0, begin=2, end=None)
        moved = F.concat(later, F.slice_axis(position_weight, axis=0, begin=0, end=2), dim=0)
        return super().hybrid_forward(F, inputs, states, valid_length, moved)


class AlwaysDropping(nn.Dropout):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.Dropout(x, p=self._rate, mode="always")


def _layers(model: Any) -> list[Any]:
    return list(core(model).encoder.transformer_cells)


def _every(block: Any, kind: type) -> list[Any]:
    found = [block] if isinstance(block, kind) else []
    return found + [one for child in block._children.values() for one in _every(child, kind)]


class Approximate(nn.GELU):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return 0.5 * x * (1 + F.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _gelu(model: Any, _: Any) -> Any:
    if is_own(model):
        model.act = Approximate()
        return model
    for cell in _layers(model):
        cell.ffn.activation._approximate = True
    return model


def _epsilon(model: Any, _: Any) -> Any:
    for block in _every(model, nn.LayerNorm):
        block._epsilon = 1e-3
    return model


def _always_dropping(model: Any, _: Any) -> Any:
    for block in _every(model, nn.Dropout):
        block.__class__ = AlwaysDropping
    return model


def _offset_positions(model: Any, _: Any) -> Any:
    core(model).encoder.__class__ = OffsetEncoder
    return model


def _without_residual(model: Any, _: Any) -> Any:
    if is_own(model):
        core(model).skips = False
    else:
        _layers(model)[1].ffn._use_residual = False
    return model


def _head_zeroed(model: Any, world: Any) -> Any:
    proj, wide = _layers(model)[1].proj, world.size.hidden
    kept = np.ones(wide, np.float32)
    kept[: wide // 4] = 0
    inner = proj.forward
    proj.forward = lambda x: inner(x * mx.nd.array(kept))
    return model


def _detached(model: Any, _: Any) -> Any:
    proj = _layers(model)[1].proj
    inner = proj.forward

    def forward(x: Any) -> Any:
        found = inner(x)
        return found * 0.5 + mx.nd.BlockGrad(found) * 0.5

    proj.forward = forward
    return model


class _Projection:
    """One of the projections of an attention cell, whose parameters the cell itself holds."""

    def __init__(self, cell: Any, name: str) -> None:
        self.weight, self.bias = getattr(cell, f"{name}_weight"), getattr(cell, f"{name}_bias")


def _find(model: Any, number: int, name: str) -> Any:
    if is_own(model):
        return core(model).up if name == "up" else core(model).square
    layer = _layers(model)[number]
    if name == "up":
        return layer.ffn.ffn_1
    return layer.proj if name == "output" else _Projection(layer.attention_cell, name)


WEIGHTS: Final = Weights(
    find=_find,
    parameter=getattr,
    table=lambda model: table_of(model).weight,
    every=lambda model: list(model.collect_params().values()),
    read=lambda parameter: parameter.data().asnumpy(),
    write=lambda parameter, value: parameter.set_data(mx.nd.array(value.astype(np.float32))),
)


MODIFICATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    **changes_of_weights(WEIGHTS),
    "gelu": _gelu,
    "epsilon-1e-3": _epsilon,
    "always-dropping": _always_dropping,
    "ignores-mask": lambda model, _: Port(model, drop="mask"),
    "ignores-types": lambda model, _: Port(model, drop="types"),
    "offsets-positions": _offset_positions,
    "without-residual": _without_residual,
    "head-zeroed": _head_zeroed,
    "detached": _detached,
}
