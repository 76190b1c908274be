"""MXNet Gluon: what can go wrong in a model, by the framework's own means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from tests.cross.diagnosis.native_gluon import Port, bert, core, is_own, mx, nn, table_of


class OffsetEncoder(bert.BERTEncoder):
    """An encoder whose positions count from 2, as RoBERTa's do."""

    def hybrid_forward(
        self, F: Any, inputs: Any, states: Any = None, valid_length: Any = None, position_weight: Any = None
    ) -> Any:
        later = F.slice_axis(position_weight, axis=0, begin=2, end=None)
        moved = F.concat(later, F.slice_axis(position_weight, axis=0, begin=0, end=2), dim=0)
        return super().hybrid_forward(F, inputs, states, valid_length, moved)


class ScaledEmbedding(nn.Embedding):
    """A table whose lookup comes out scaled by the root of its width."""

    def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:
        return super().hybrid_forward(F, x, weight) * math.sqrt(self._kwargs["output_dim"])


class AlwaysDropping(nn.Dropout):
    """Dropout that a port left on."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.Dropout(x, p=self._rate, mode="always")


def _layers(model: Any) -> list[Any]:
    return list(core(model).encoder.transformer_cells)


def _every(block: Any, kind: type) -> list[Any]:
    found = [block] if isinstance(block, kind) else []
    return found + [one for child in block._children.values() for one in _every(child, kind)]


class Approximate(nn.GELU):
    """GELU by the hyperbolic tangent."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return 0.5 * x * (1 + F.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _gelu(model: Any, _: Any) -> Any:
    if is_own(model):
        model.act = Approximate()
        return model
    for cell in _layers(model):
        cell.ffn.activation._approximate = True
    return model


def _first_gelu(model: Any, _: Any) -> Any:
    _layers(model)[0].ffn.activation._approximate = True
    return model


class Rectified(nn.GELU):
    """ReLU."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.relu(x)


def _relu(model: Any, _: Any) -> Any:
    if is_own(model):
        model.act = Rectified()
        return model
    for cell in _layers(model):
        cell.ffn.activation.hybrid_forward = lambda F, x: F.relu(x)
    return model


def _first_epsilon(model: Any, _: Any) -> Any:
    (model.norm2 if is_own(model) else _layers(model)[0].layer_norm)._epsilon = 1e-2
    return model


def _half_weights(model: Any, _: Any) -> Any:
    for parameter in model.collect_params().values():
        parameter.set_data(parameter.data().astype("float16").astype("float32"))
    return model


def _epsilon(value: float) -> Callable[[Any, Any], Any]:
    def change(model: Any, _: Any) -> Any:
        for block in _every(model, nn.LayerNorm):
            block._epsilon = value
        return model

    return change


def _always_dropping(model: Any, _: Any) -> Any:
    for block in _every(model, nn.Dropout):
        block.__class__ = AlwaysDropping
    return model


def _flipped(parameter: Any) -> None:
    parameter.set_data(parameter.data().T)


def _exchanged(one: Any, other: Any) -> None:
    before = one.data().copy()
    one.set_data(other.data())
    other.set_data(before)


def _transposed(number: int, which: str) -> Callable[[Any, Any], Any]:
    def change(model: Any, _: Any) -> Any:
        _flipped(
            core(model).square.weight
            if is_own(model)
            else getattr(_layers(model)[number].attention_cell, f"{which}_weight")
        )
        return model

    return change


def _transposed_output(model: Any, _: Any) -> Any:
    _flipped(_layers(model)[-1].proj.weight)
    return model


def _swapped(numbers: tuple[int, ...]) -> Callable[[Any, Any], Any]:
    def change(model: Any, _: Any) -> Any:
        for number in numbers:
            cell = _layers(model)[number].attention_cell
            _exchanged(cell.query_weight, cell.key_weight)
            _exchanged(cell.query_bias, cell.key_bias)
        return model

    return change


def _swapped_values(model: Any, _: Any) -> Any:
    first, second = (cell.attention_cell for cell in _layers(model)[:2])
    _exchanged(first.value_weight, second.value_weight)
    return model


def _bias_not_loaded(model: Any, _: Any) -> Any:
    bias = (core(model).up if is_own(model) else _layers(model)[1].ffn.ffn_1).bias
    bias.set_data(mx.nd.zeros(bias.shape))
    return model


def _square(model: Any, number: int) -> Any:
    return core(model).square.weight if is_own(model) else _layers(model)[number].attention_cell.value_weight


def _reinitialised(model: Any, world: Any) -> Any:
    weight = _square(model, 0)
    weight.set_data(mx.nd.array(np.random.default_rng([world.seed, 5]).normal(0, 0.18, weight.shape)))
    return model


def _one_percent(model: Any, world: Any) -> Any:
    weight = _square(model, 1)
    noise = np.random.default_rng([world.seed, 6]).normal(size=weight.shape)
    weight.set_data(weight.data() * mx.nd.array(1 + 0.01 * noise))
    return model


def _other_table(model: Any, world: Any) -> Any:
    table = table_of(model).weight
    table.set_data(mx.nd.array(np.random.default_rng([world.seed, 7]).normal(0, 0.4, table.shape)))
    return model


def _rows_rotated(model: Any, _: Any) -> Any:
    table = table_of(model).weight
    table.set_data(mx.nd.array(np.roll(table.data().asnumpy(), 7, 0)))
    return model


def _scaled_lookup(model: Any, _: Any) -> Any:
    table_of(model).__class__ = ScaledEmbedding
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


MODIFICATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "gelu": _gelu,
    "first-gelu": _first_gelu,
    "relu": _relu,
    "first-epsilon": _first_epsilon,
    "half-weights": _half_weights,
    "epsilon-1e-3": _epsilon(1e-3),
    "epsilon-1e-5": _epsilon(1e-5),
    "epsilon-1e-2": _epsilon(1e-2),
    "always-dropping": _always_dropping,
    "transposed-query": _transposed(1, "query"),
    "transposed-value": _transposed(0, "value"),
    "transposed-output": _transposed_output,
    "swapped-first": _swapped((0,)),
    "swapped-all": lambda model, world: _swapped(tuple(range(world.size.layers)))(model, world),
    "swapped-values": _swapped_values,
    "bias-not-loaded": _bias_not_loaded,
    "reinitialised": _reinitialised,
    "one-percent": _one_percent,
    "other-table": _other_table,
    "rows-rotated": _rows_rotated,
    "scales-lookup": _scaled_lookup,
    "ignores-mask": lambda model, _: Port(model, drop="mask"),
    "ignores-types": lambda model, _: Port(model, drop="types"),
    "offsets-positions": _offset_positions,
    "without-residual": _without_residual,
    "head-zeroed": _head_zeroed,
    "detached": _detached,
}
