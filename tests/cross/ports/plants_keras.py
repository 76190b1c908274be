"""What goes wrong in keras-hub's models, by their layers' attributes and classes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tests.cross.ports.fault import Plant
from tests.cross.ports.plants_tensorflow import after, layers, subclassed

#: The part of a layer that is attention, whatever the model calls it.
ATTENTION = r"(self_attention(_layer)?|attention|cross_attention(_layer)?)"


def returning(pattern: str, change: Callable[[Any], Any]) -> Plant:
    """Return what changes the array that layers return."""
    return subclassed(pattern, call=lambda self, inner, *given, **named: change(inner(*given, **named)))


def masking(pattern: str, change: Callable[[Any], Any]) -> Plant:
    """Return what changes attention's mask, true where a position is seen: (example, query or 1, key)."""

    def attend(
        self: Any, inner: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *given: Any, **named: Any
    ) -> Any:
        return inner(query, key, value, change(ops.cast(attention_mask, "bool")), *given, **named)

    return subclassed(pattern, _compute_attention=attend)


def attending(pattern: str, change: Callable[[Any, Any, Any], tuple[Any, Any, Any]]) -> Plant:
    """Return what changes queries, keys and values, (example, position, head, entry), before attention."""

    def attend(self: Any, inner: Any, query: Any, key: Any, value: Any, *given: Any, **named: Any) -> Any:
        return inner(*change(query, key, value), *given, **named)

    return subclassed(pattern, _compute_attention=attend)


def _distance(mask: Any) -> Any:
    return ops.arange(mask.shape[-1])[:, None] - ops.arange(mask.shape[-1])[None]


def _real(mask: Any) -> Any:
    """Return which keys are real: some query sees these."""
    return ops.any(mask, axis=1, keepdims=True)


def all_seen(mask: Any) -> Any:
    return ops.ones_like(mask)


def not_causal(mask: Any) -> Any:
    return ops.broadcast_to(_real(mask), mask.shape)


def causal(mask: Any) -> Any:
    return ops.logical_and((_distance(mask) >= 0)[None], _real(mask))


def one_ahead(mask: Any) -> Any:
    return ops.logical_and((_distance(mask) >= -1)[None], _real(mask))


def only_before(mask: Any) -> Any:
    return ops.logical_and((_distance(mask) >= 1)[None], mask)


def unpadded(mask: Any) -> Any:
    return ops.broadcast_to((_distance(mask) >= 0)[None], mask.shape)


def windowed(width: int) -> Callable[[Any], Any]:
    """Return the change to a mask by which a query sees so many positions, its own among them."""
    return lambda mask: ops.logical_and(mask, (_distance(mask) < width)[None])


def tiled(groups: int) -> Callable[[Any, Any, Any], tuple[Any, Any, Any]]:
    """Return the change to repeated keys and values by which queries far from each other share a key."""

    def change(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        count = key.shape[2] // groups
        order = [(head % count) * groups for head in range(key.shape[2])]
        return query, ops.take(key, order, axis=2), ops.take(value, order, axis=2)

    return change


def interleaved(self: Any, inner: Any, tensor: Any, cosine: Any, sine: Any) -> Any:
    """Turn neighbouring entries rather than halves."""
    half = tensor.shape[-1] // 2
    cosine, sine = cosine[..., :half], sine[..., :half]
    a, b = tensor[..., ::2], tensor[..., 1::2]
    turned = ops.stack((a * cosine - b * sine, b * cosine + a * sine), axis=-1)
    return ops.reshape(turned, tensor.shape)


def not_turned(self: Any, inner: Any, inputs: Any, **named: Any) -> Any:
    return inputs


def centred(self: Any, inner: Any, x: Any) -> Any:
    """Subtract the mean first, as a norm by the root mean square does not."""
    return inner(x - ops.mean(x, axis=-1, keepdims=True))


def root_mean_square(self: Any, inner: Any, x: Any) -> Any:
    """Leave out the mean, as a norm with bias does not."""
    scaled = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
    return scaled * self.gamma + self.beta


def offset(by: float) -> Callable[..., Any]:
    """Return the method of a norm that multiplies by scale + a number."""

    def call(self: Any, inner: Any, x: Any) -> Any:
        scaled = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
        return scaled * (self.scale + by)

    return call


def in_half(dtype: str) -> Callable[..., Any]:
    """Return the method of a norm by the root mean square that computes in another dtype."""

    def call(self: Any, inner: Any, x: Any) -> Any:
        given = ops.cast(x, dtype)
        given = given * ops.rsqrt(ops.mean(ops.square(given), axis=-1, keepdims=True) + ops.cast(self.epsilon, dtype))
        return ops.cast(given * ops.cast(self.scale, dtype), x.dtype)

    return call


def same(self: Any, inner: Any, x: Any, *given: Any, **named: Any) -> Any:
    return x


def dropping(rate: float) -> Callable[..., Any]:
    """Return the method of a dropout that stays on."""

    def call(self: Any, inner: Any, inputs: Any, training: Any = False) -> Any:
        return keras.random.dropout(inputs, rate, seed=random.randrange(2**31))

    return call


def looked_up(shift: int, rows: int) -> Callable[..., Any]:
    """Return the method of a lookup at ids to which a number is added."""
    return lambda self, inner, inputs, *given, **named: inner((inputs + shift) % rows, *given, **named)


def first_type(self: Any, inner: Any, inputs: Any) -> Any:
    return inner(inputs * 0)


def started(at: int) -> Callable[..., Any]:
    """Return the method of a table of positions that begins at another row."""
    return lambda self, inner, inputs, **named: inner(inputs, start_index=at)


def no_positions(self: Any, inner: Any, inputs: Any, **named: Any) -> Any:
    return ops.zeros_like(inputs)


def without_residual(self: Any, inner: Any, inputs: Any, **named: Any) -> Any:
    """Leave out the residual of the feed-forward part of an encoder's layer whose norms come last."""
    mask = ops.cast(named["padding_mask"], "int32")[:, None]
    attended = self._self_attention_layer(query=inputs, value=inputs, attention_mask=mask)
    x = self._self_attention_layer_norm(inputs + attended)
    return self._feedforward_layer_norm(self._feedforward_output_dense(self._feedforward_intermediate_dense(x)))


def gate_on_up(self: Any, inner: Any, decoder_sequence: Any, **named: Any) -> Any:
    """Act on the other branch of the gated part of a decoder's layer of Llama's kind."""
    padding = named.get("decoder_padding_mask")
    mask = self._compute_self_attention_mask(decoder_sequence, padding, None, None, None)
    normed = self._self_attention_layernorm(decoder_sequence)
    x = decoder_sequence + self._self_attention_layer(hidden_states=normed, attention_mask=mask)
    normed = self._feedforward_layernorm(x)
    up = self.activation(self._feedforward_intermediate_dense(normed))
    return x + self._feedforward_output_dense(up * self._feedforward_gate_dense(normed))


def query_later(by: int, layer: str) -> Plant:
    """Return what puts queries, not keys, at later positions: the first of the two calls of a layer's rotary positions."""

    def plant(model: Any) -> None:
        for attention in layers(model, layer):
            rotary = attention.rotary_embedding_layer

            def attend(
                self: Any, inner: Any, query: Any, key: Any, value: Any, *given: Any, rotary: Any = rotary, **named: Any
            ) -> Any:
                once = rotary(query, positions=ops.full((query.shape[1],), by))
                return inner(once, key, value, *given, **named)

            method = after(type(attention)._compute_attention, attend)
            attention.__class__ = type(type(attention).__name__, (type(attention),), {"_compute_attention": method})

    return plant
