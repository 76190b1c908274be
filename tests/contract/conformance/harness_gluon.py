"""The conformance suite's models in MXNet Gluon: hybridised blocks of `gluon.nn` with the suite's weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from embgrad_gluon.importing import import_mxnet

from embgrad.testing.faults import obtain
from embgrad.testing.harness import ARCHITECTURES
from tests.contract.conformance.state_gluon import state

mx = import_mxnet()
nn = mx.gluon.nn


class Harness:
    """Builds hybridised nets of real layers; only those that return a dict, which cannot be, stay as they are."""

    backend = "gluon"
    precisions = ("float32", "float64")

    def build(
        self, architecture: str, weights: Mapping[str, np.ndarray], *, dtype: str | None = None, frozen: bool = False
    ) -> Any:
        net = MODELS[architecture](weights)
        dtype = dtype or weights["W"].dtype.name
        net.initialize(mx.init.Zero())
        net.cast(dtype)
        net.load(weights, dtype)
        if frozen:
            net.collect_params().setattr("grad_req", "null")
        if architecture not in ("named", "raises", "broken", "interrupted"):
            net.hybridize()
        return net

    def train(self, model: Any) -> None:
        """Gluon has no mode that stays with a model."""

    def table_gradient(self, model: Any, ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        table = model.E.weight.data()
        with mx.autograd.record(train_mode=False):
            logits = model(mx.nd.array(ids, dtype="int32"))
            loss = -mx.nd.pick(mx.nd.log_softmax(logits), mx.nd.array(labels, dtype="int32")).sum()
        return np.array(mx.autograd.grad([loss], [table], train_mode=False)[0].asnumpy())

    def state(self, model: Any) -> Mapping[str, Any]:
        return state(model)

    def seed(self, seed: int) -> None:
        mx.random.seed(seed)

    def draw_states(self) -> float:
        return float(mx.nd.random.uniform(shape=(1,)).asscalar())

    def disturb(self, model: Any) -> None:
        for parameter in model.collect_params().values():
            for gradient in parameter._grad or ():
                gradient[:] = 3
        model.E.register_forward_hook(_nothing)

    def parameter(self, model: Any, weight: str) -> tuple[str, bool]:
        layer, parameter = model.places()[weight]
        return f"{layer}.{parameter}", weight.startswith("W")

    def step(self, model: Any, ids: np.ndarray, labels: np.ndarray, rate: float = 0.1) -> None:
        with mx.autograd.record(train_mode=False):
            logits = model(mx.nd.array(ids, dtype="int32"))
            loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(logits, mx.nd.array(labels, dtype="int32")).mean()
        trainer = mx.gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": rate})
        with raising():
            loss.backward(train_mode=False)
        trainer.step(1, ignore_stale_grad=True)  # an architecture may leave some weights out

    def logit(self, index: int) -> Callable[[Any], Any]:
        return lambda logits: logits[:, index]

    def summed_logit(self, index: int) -> Callable[[Any], Any]:
        return lambda logits: logits[:, index].sum()


#: What was raised in the backward pass of a step. MXNet swallows it, so that the user's own loop must look for it itself.
_errors: list[BaseException] | None = None


@contextlib.contextmanager
def raising() -> Iterator[None]:
    global _errors
    _errors = []
    try:
        yield
        mx.nd.waitall()
        for error in _errors:
            raise error
    finally:
        _errors = None


def _nothing(*_: Any) -> None:
    """A hook that does nothing."""


class _Net(mx.gluon.HybridBlock):  # type: ignore[misc]
    """The layers that the suite's weights fill; each architecture is a way through them."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        dim, classes = weights["W"].shape
        self.E = nn.Embedding(*weights["E"].shape)
        if "E2" in weights:
            self.E2 = nn.Embedding(*weights["E2"].shape)
        if "W1" in weights:
            self.inner = nn.Dense(dim, in_units=dim, flatten=False)
        self.outer = nn.Dense(classes, in_units=dim, flatten=False)
        self.dropout = nn.Dropout(0.5)

    def places(self) -> dict[str, tuple[str, str]]:
        return {
            "E": ("E", "weight"),
            "E2": ("E2", "weight"),
            "W": ("outer", "weight"),
            "b": ("outer", "bias"),
            "W1": ("inner", "weight"),
            "b1": ("inner", "bias"),
        }

    def load(self, weights: Mapping[str, np.ndarray], dtype: str) -> None:
        parameters = self._collect_params_with_prefix()
        for name, value in weights.items():
            parameters[".".join(self.places()[name])].set_data(
                mx.nd.array(value.T if name.startswith("W") else value, dtype=dtype)
            )


class _Mean(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return self.outer(F.mean(self.E(input_ids), axis=1))


class _Hidden(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return self.outer(F.tanh(self.inner(F.mean(self.E(input_ids), axis=1))))


class _Probabilities(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return F.softmax(self.outer(F.mean(self.E(input_ids), axis=1)))


class _Masked(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any, attention_mask: Any = None) -> Any:
        mask = F.ones_like(input_ids) if attention_mask is None else attention_mask
        summed = F.sum(F.broadcast_mul(self.E(input_ids), F.expand_dims(mask, 2)), axis=1)
        return self.outer(F.broadcast_div(summed, F.sum(mask, axis=1, keepdims=True)))


class _Positions(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return self.outer(F.tanh(self.inner(self.E(input_ids))))


class _Named(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        sequence = F.tanh(self.inner(self.E(input_ids)))
        return {"last_hidden_state": sequence, "pooler_output": F.mean(sequence, axis=1)}


class _Twice(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        plain = F.mean(self.E(input_ids), axis=1)
        return self.outer(plain + F.mean(F.tanh(self.E(input_ids)), axis=1))


class _TwoTables(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        plain = F.mean(self.E(input_ids), axis=1)
        return self.outer(plain + F.mean(F.tanh(self.E2(input_ids)), axis=1))


class _Flat(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        rows = self.E(F.reshape(input_ids, shape=(-1,)))
        rows = F.reshape_like(rows, input_ids, lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2)
        return self.outer(F.mean(rows, axis=1))


class _TimeMajor(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return self.outer(F.mean(self.E(F.transpose(input_ids)), axis=0))


class _Scaled(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return self.outer(F.mean(3 * self.E(input_ids), axis=1))


class _Positional(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        places = F.expand_dims(self.E2(F.contrib.arange_like(input_ids, axis=1)), 0)
        return self.outer(F.mean(F.tanh(F.broadcast_add(self.E(input_ids), places)), axis=1))


class _Dropout(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return self.outer(self.dropout(F.tanh(self.inner(F.mean(self.E(input_ids), axis=1)))))


class _Detached(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return self.outer(F.BlockGrad(F.mean(self.E(input_ids), axis=1)))


class _NoLookup(_Net):
    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__({**weights, "W": weights["W"][:1]})

    def load(self, weights: Mapping[str, np.ndarray], dtype: str) -> None:
        super().load({"W": weights["W"][:1], "b": weights["b"]}, dtype)

    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return self.outer(F.mean(input_ids, axis=1, keepdims=True))


class _Embeddings(mx.gluon.HybridBlock):  # type: ignore[misc]
    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.E, self.E2 = nn.Embedding(*weights["E"].shape), nn.Embedding(*weights["E2"].shape)

    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        places = F.expand_dims(self.E2(F.contrib.arange_like(input_ids, axis=1)), 0)
        return F.broadcast_add(self.E(input_ids), places)


class _Layer(mx.gluon.HybridBlock):  # type: ignore[misc]
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Dense(dim, in_units=dim, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        bent = F.tanh(self.dense(x))
        return x + bent, bent


class _Layers(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Embeddings, and layers in a list; `calls` says how often each is called."""

    calls = (1, 1, 1)

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        dim, classes = weights["W"].shape
        self.embeddings = _Embeddings(weights)
        self.layers = nn.HybridSequential()
        for _ in self.calls:
            self.layers.add(_Layer(dim))
        self.outer = nn.Dense(classes, in_units=dim, flatten=False)

    @property
    def E(self) -> Any:  # a name of the suite's
        return self.embeddings.E

    def places(self) -> dict[str, tuple[str, str]]:
        return {
            "E": ("embeddings.E", "weight"),
            "E2": ("embeddings.E2", "weight"),
            "W": ("outer", "weight"),
            "b": ("outer", "bias"),
            "W1": ("layers.0.dense", "weight"),
            "b1": ("layers.0.dense", "bias"),
        }

    def load(self, weights: Mapping[str, np.ndarray], dtype: str) -> None:
        _Net.load(self, weights, dtype)
        for layer in self.layers:
            layer.dense.weight.set_data(self.layers[0].dense.weight.data())
            layer.dense.bias.set_data(self.layers[0].dense.bias.data())

    def behind_the_first(self, x: Any) -> Any:
        return x

    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        first, *others = [layer for layer, calls in zip(self.layers, self.calls, strict=True) for _ in range(calls)]
        x = self.behind_the_first(first(self.embeddings(input_ids))[0])
        for layer in others:
            x, _ = layer(x)
        return self.outer(F.mean(x, axis=1))


class _Repeated(_Layers):
    calls = (3,)


class _Tied(_Net):
    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__(weights)
        rows, dim = weights["E"].shape
        self.head = nn.Dense(rows, in_units=dim, flatten=False, use_bias=False, params=self.E.params)

    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return self.head(F.tanh(self.inner(self.E(input_ids))))


class _Mixing(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        pooled = F.mean(self.E(input_ids), axis=1)
        return self.outer(F.broadcast_sub(pooled, F.mean(pooled, axis=0, keepdims=True)))


class _Doubling(mx.autograd.Function):  # type: ignore[misc]
    """The identity, whose gradient is twice the right one."""

    def forward(self, x: Any) -> Any:
        return x * 1

    def backward(self, gradient: Any) -> Any:
        return gradient * 2


class _Broken(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        return self.outer(_Doubling()(F.mean(self.E(input_ids), axis=1)))


class Telling(mx.autograd.Function):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        obtain("forward")
        return x * 1

    def backward(self, gradient: Any) -> Any:
        try:
            obtain("backward")
        except BaseException as error:
            if _errors is None:
                raise
            _errors.append(error)
        return gradient * 1


class _Interrupted(_Layers):
    def behind_the_first(self, x: Any) -> Any:
        return Telling()(x)


class _Raises(_Net):
    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        self.E(input_ids)
        raise RuntimeError("the model broke")


MODELS = {name: globals()["_" + name.title().replace("_", "")] for name in ARCHITECTURES}
