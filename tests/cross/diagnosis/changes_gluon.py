"""MXNet Gluon: what can go wrong in a model, by the framework's own means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from tests.cross.diagnosis.changes_of_weights import Weights, changes_of_weights
from tests.cross.diagnosis.native_gluon import Port, bert, core, mx, nn, table_of


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


def _gelu(model: Any, _: Any) -> Any:
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


class _Projection:
    """One of the projections of an attention cell, whose parameters the cell itself holds."""

    def __init__(self, cell: Any, name: str) -> None:
        self.weight, self.bias = getattr(cell, f"{name}_weight"), getattr(cell, f"{name}_bias")


def _find(model: Any, number: int, name: str) -> Any:
    layer = _layers(model)[number]
    return layer.ffn.ffn_1 if name == "up" else _Projection(layer.attention_cell, name)


WEIGHTS: Final = Weights(
    find=_find,
    parameter=getattr,
    table=lambda model: table_of(model).weight,
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
}
