"""The conformance suite's models in Keras 3, for the framework that Keras runs on in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from embgrad.testing.faults import obtain

__all__ = ["Harness"]

#: The framework that Keras runs on, which is also the name of embgrad's backend for it.
FRAMEWORK = keras.backend.backend()

#: What needs the framework itself: gradients, and the state beside Keras's own.
native = import_module(f"tests.contract.conformance.keras_on_{FRAMEWORK}")

Weights = Mapping[str, np.ndarray]


class _Layers:
    """The layers that the suite's weights fill; each architecture is a way through them."""

    def __init__(self, weights: Weights, dtype: str) -> None:
        self.weights = weights
        self.dtype = dtype
        self.table = self._embedding("table", weights["E"])
        self.second = self._embedding("second", weights["E2"])
        self.inner = self._dense("inner", weights["W1"], weights["b1"])
        self.outer = self._dense("outer", weights["W"], weights["b"])

    def _embedding(self, name: str, table: np.ndarray) -> Any:
        layer = layers.Embedding(*table.shape, dtype=self.dtype, name=name)
        layer.build((None,))
        layer.set_weights([table])
        return layer

    def _dense(self, name: str, kernel: np.ndarray, bias: np.ndarray) -> Any:
        """Return a linear map; Keras computes its product in float64 everywhere, unlike that of `Dense`."""
        layer = layers.EinsumDense("...x,xy->...y", len(bias), bias_axes="y", dtype=self.dtype, name=name)
        layer.build((None, None, len(kernel)))
        layer.input_spec = None  # of the rank that it was built for
        layer.set_weights([kernel, bias])
        return layer

    def again(self) -> _Layers:
        return _Layers(self.weights, self.dtype)


def _tanh(value: Any) -> Any:
    """Return the hyperbolic tangent, which Keras computes in float32 on JAX."""
    return 2 * ops.sigmoid(2 * value) - 1


def _mean_over(value: Any, axis: int = 1) -> Any:
    """Return the mean along an axis, which Keras's own `mean` computes in float32 on PyTorch and JAX."""
    return ops.sum(value, axis) / ops.cast(ops.shape(value)[axis], value.dtype)


# Functional models


class Mean(layers.Layer):  # type: ignore[misc]
    def call(self, rows: Any) -> Any:
        return _mean_over(rows)


def _hidden_of(layers_: _Layers, rows: Any) -> Any:
    return layers.Activation(_tanh, dtype=layers_.dtype)(layers_.inner(rows))


def _mean(ids: Any, of: _Layers) -> Any:
    return of.outer(Mean(dtype=of.dtype)(of.table(ids)))


def _hidden(ids: Any, of: _Layers) -> Any:
    return of.outer(_hidden_of(of, Mean(dtype=of.dtype)(of.table(ids))))


def _probabilities(ids: Any, of: _Layers) -> Any:
    return layers.Activation("softmax", dtype=of.dtype)(_mean(ids, of))


def _positions(ids: Any, of: _Layers) -> Any:
    return of.outer(_hidden_of(of, of.table(ids)))


def _named(ids: Any, of: _Layers) -> Any:
    hidden = _hidden_of(of, of.table(ids))
    return {"last_hidden_state": hidden, "pooler_output": Mean(dtype=of.dtype)(hidden)}


def _dropout(ids: Any, of: _Layers) -> Any:
    return of.outer(layers.Dropout(0.5, dtype=of.dtype)(_hidden_of(of, Mean(dtype=of.dtype)(of.table(ids)))))


# Subclassed models, of which the first argument is the model itself


def _masked(of: Any, input_ids: Any, attention_mask: Any = None) -> Any:
    rows = of.table(input_ids)
    mask = ops.ones_like(input_ids) if attention_mask is None else attention_mask
    mask = ops.cast(mask, rows.dtype)[..., None]
    return of.outer(ops.sum(mask * rows, 1) / ops.sum(mask, 1))


def _twice(of: Any, input_ids: Any) -> Any:
    plain = _mean_over(of.table(input_ids), 1)
    return of.outer(plain + _mean_over(_tanh(of.table(input_ids)), 1))


def _two_tables(of: Any, input_ids: Any) -> Any:
    plain = _mean_over(of.table(input_ids), 1)
    return of.outer(plain + _mean_over(_tanh(of.second(input_ids)), 1))


def _flat(of: Any, input_ids: Any) -> Any:
    rows = of.table(ops.reshape(input_ids, (-1,)))
    return of.outer(_mean_over(ops.reshape(rows, (*ops.shape(input_ids), rows.shape[-1])), 1))


def _time_major(of: Any, input_ids: Any) -> Any:
    return of.outer(_mean_over(of.table(ops.transpose(input_ids)), 0))


def _scaled(of: Any, input_ids: Any) -> Any:
    return of.outer(_mean_over(3 * ops.take(of.table.embeddings, input_ids, axis=0), 1))


def _positional(of: Any, input_ids: Any) -> Any:
    places = of.second(ops.arange(ops.shape(input_ids)[1], dtype="int32"))
    return of.outer(_mean_over(_tanh(of.table(input_ids) + places), 1))


def _detached(of: Any, input_ids: Any) -> Any:
    return of.outer(ops.stop_gradient(_mean_over(of.table(input_ids), 1)))


def _no_lookup(of: Any, input_ids: Any) -> Any:
    kernel = ops.convert_to_tensor(of.outer.kernel)
    mean = _mean_over(ops.cast(input_ids, kernel.dtype))[:, None]
    return ops.einsum("ij,jk->ik", mean, kernel[:1]) + of.outer.bias


def _tied(of: Any, input_ids: Any) -> Any:
    hidden = _tanh(of.inner(of.table(input_ids)))
    return ops.einsum("ijk,lk->ijl", hidden, ops.convert_to_tensor(of.table.embeddings))


def _mixing(of: Any, input_ids: Any) -> Any:
    means = _mean_over(of.table(input_ids), 1)
    return of.outer(means - _mean_over(means, 0))


def _unchanged(value: Any) -> Any:
    return value


@ops.custom_gradient
def _doubled(value: Any) -> Any:
    return value * 1, lambda *args, upstream=None: 2 * (args[0] if upstream is None else upstream)


@ops.custom_gradient
def _telling(value: Any) -> Any:
    def back(*args: Any, upstream: Any = None) -> Any:
        obtain("backward")
        return args[0] if upstream is None else upstream

    obtain("forward")
    return value * 1, back


def _broken(of: Any, input_ids: Any) -> Any:
    return of.outer(_doubled(_mean_over(of.table(input_ids), 1)))


def _raises(of: Any, input_ids: Any) -> Any:
    of.table(input_ids)
    raise RuntimeError("the model broke")


_FUNCTIONAL: Mapping[str, Callable[[Any, _Layers], Any]] = {
    "mean": _mean,
    "hidden": _hidden,
    "probabilities": _probabilities,
    "positions": _positions,
    "named": _named,
    "dropout": _dropout,
}

_SUBCLASSED: Mapping[str, Callable[..., Any]] = {
    "masked": _masked, "twice": _twice,
    "two_tables": _two_tables,
    "flat": _flat,
    "time_major": _time_major,
    "scaled": _scaled,
    "positional": _positional,
    "detached": _detached, "no_lookup": _no_lookup, "tied": _tied, "mixing": _mixing, "broken": _broken,
    "raises": _raises,
}  # fmt: skip


class Embed(layers.Layer):  # type: ignore[misc]
    def __init__(self, of: _Layers) -> None:
        super().__init__(dtype=of.dtype)
        self.words, self.places = of.table, of.second
        self.built = True

    def call(self, input_ids: Any) -> Any:
        return self.words(input_ids) + self.places(ops.arange(ops.shape(input_ids)[1], dtype="int32")[None])


class Block(layers.Layer):  # type: ignore[misc]
    def __init__(self, of: _Layers) -> None:
        super().__init__(dtype=of.dtype)
        self.inner = of.inner
        self.factor = 1.0
        self.built = True

    def call(self, hidden: Any) -> Any:
        bent = _tanh(self.inner(hidden)) * self.factor
        return hidden + bent, bent


class Stack(keras.Model):  # type: ignore[misc]
    def __init__(self, of: _Layers, count: int, behind_the_first: Callable[[Any], Any] = _unchanged) -> None:
        super().__init__()
        self.embed = Embed(of)
        self.blocks = [Block(of.again()) for _ in range(count)]
        self.order = (0, 1, 2) if count == 3 else (0, 0, 0)
        self.outer = of.outer
        self.behind_the_first = behind_the_first
        self.built = True

    @property
    def table(self) -> Any:
        return self.embed.words

    def call(self, input_ids: Any) -> Any:
        first, *others = self.order
        hidden = self.behind_the_first(self.blocks[first](self.embed(input_ids))[0])
        for block in others:
            hidden = self.blocks[block](hidden)[0]
        return self.outer(_mean_over(hidden, 1))


class Plain(keras.Model):  # type: ignore[misc]
    def __init__(self, of: _Layers, way: Callable[..., Any]) -> None:
        super().__init__()
        self.table, self.second = of.table, of.second
        self.inner, self.outer = of.inner, of.outer
        self.way = way
        self.built = True

    def call(self, input_ids: Any) -> Any:
        return self.way(self, input_ids)


class Masked(Plain):
    def call(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return self.way(self, input_ids, attention_mask)


#: Where each weight lies: the attribute of the model that holds the layer, and the weight's own name.
_PLACES: Mapping[str, tuple[str, str]] = {
    "E": ("table", "embeddings"),
    "E2": ("second", "embeddings"),
    "W": ("outer", "kernel"),
    "b": ("outer", "bias"),
    "W1": ("inner", "kernel"),
    "b1": ("inner", "bias"),
}


class Harness:
    backend = FRAMEWORK
    precisions = ("float32", "float64", "float16", "bfloat16")

    def build(self, architecture: str, weights: Weights, *, dtype: str | None = None, frozen: bool = False) -> Any:
        of = _Layers(weights, dtype or str(weights["E"].dtype))
        if architecture in _FUNCTIONAL:
            ids = layers.Input((None,), dtype="int32", name="input_ids")
            model = keras.Model(ids, _FUNCTIONAL[architecture](ids, of))
        elif architecture in _SUBCLASSED:
            model = (Masked if architecture == "masked" else Plain)(of, _SUBCLASSED[architecture])
        else:
            behind = _telling if architecture == "interrupted" else _unchanged
            model = Stack(of, 1 if architecture == "repeated" else 3, behind)
        model.trainable = not frozen
        return model

    def train(self, model: Any) -> None:
        """Nothing: Keras's models have no mode that stays."""

    def table_gradient(self, model: Any, ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        table = _layer(model, "table").embeddings
        return np.asarray(keras.ops.convert_to_numpy(native.gradients(model, ids, labels, [table])[0]), np.float64)

    def state(self, model: Any) -> Mapping[str, Any]:
        return native.state(model)

    def seed(self, seed: int) -> None:
        native.seed(seed)

    def draw_states(self) -> Any:
        return native.draw_states()

    def disturb(self, model: Any) -> None:
        model.compile(optimizer="adam", loss="mse")
        model.optimizer.build(model.trainable_variables)
        model.note = ["mine"]
        native.disturb(model)

    def change_constant(self, model: Any) -> None:
        for block in model.blocks:
            block.factor = 2.0

    def parameter(self, model: Any, weight: str) -> tuple[str, bool]:
        layer, attribute = _PLACES[weight]
        return str(getattr(_layer(model, layer), attribute).path), False

    def step(self, model: Any, ids: np.ndarray, labels: np.ndarray, rate: float = 0.1) -> None:
        variables = model.trainable_variables
        gradients = native.gradients(model, ids, labels, variables, mean=True)
        reached = [(gradient, one) for gradient, one in zip(gradients, variables, strict=True) if gradient is not None]
        with native.updating():
            keras.optimizers.SGD(rate).apply(*zip(*reached, strict=True))

    def logit(self, index: int) -> Callable[[Any], Any]:
        return lambda logits: logits[:, index]

    def summed_logit(self, index: int) -> Callable[[Any], Any]:
        return lambda logits: ops.sum(logits[:, index])


def _layer(model: Any, name: str) -> Any:
    """Return a layer by the attribute of the model, or by its name in a functional model."""
    return getattr(model, name, None) or model.get_layer(name)
