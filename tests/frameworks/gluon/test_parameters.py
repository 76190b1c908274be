"""Gradients of parameters: each layer's against finite differences, names, and what stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import GluonBackend

import embgrad
from tests.frameworks.gluon.helpers import DIM, ROWS, built, distinct_ids, mx, randomise, relative
from tests.frameworks.gluon.test_layers import COARSE, LAYERS, SINGLE, Through

nn, nd, autograd, rnn = mx.gluon.nn, mx.nd, mx.autograd, mx.gluon.rnn

#: Layers with parameters of their own, with the dtype in which the finite differences are taken, their step, and tolerances.
DOUBLE = ("float64", 1e-6, {"float64": 1e-6, "float32": 3e-4})
ROUGH = ("float64", 1e-3, {"float64": 3e-3, "float32": 3e-3})
FLOAT = ("float32", 1e-2, {"float32": 5e-3})
WITH_PARAMETERS = {
    **{name: (factory, *DOUBLE) for name, factory in LAYERS.items()},
    **{name: (factory, *ROUGH) for name, factory in COARSE.items()},
    **{name: (factory, *FLOAT) for name, factory in SINGLE.items()},
}
NAMES = (
    *("dense", "lstm", "gru", "gru of two layers, both ways", "rnn with relu", "lstm cell", "plane convolution"),
    *("transposed convolution", "batch norm", "layer norm", "instance norm", "prelu", "max pooling", "dropout"),
)


def gradients(net: Any, ids: np.ndarray, cotangent: np.ndarray, *, training: bool = False) -> dict[str, Any]:
    """Return the gradients by name, from the backend itself, for a cotangent of the net's only output."""
    request = embgrad.backend.Request(
        (), (embgrad.backend.Callback(lambda _: [{None: cotangent}]),), training, parameters=True
    )
    found = GluonBackend().run(net, embgrad.TokenBatch(ids, convention="ids"), request).parameters
    assert found is not None
    return {name: one.gradient for name, one in found.items()}


def slopes(
    net: Any, ids: np.ndarray, cotangent: np.ndarray, dtype: str, step: float, *, training: bool = False
) -> dict[str, tuple[np.ndarray, float]]:
    """For each trainable parameter a direction, and the central difference of cotangent · output along it."""
    random = np.random.default_rng(5)
    inputs = nd.array(ids, dtype=dtype)

    def value() -> float:
        with autograd.record(train_mode=training):
            return float((net(inputs).asnumpy().astype(np.float64) * cotangent).sum())

    found = {}
    for name, parameter in net._collect_params_with_prefix().items():
        if parameter.grad_req == "null":
            continue
        before = parameter.data().asnumpy()
        direction = random.normal(size=before.shape).astype(dtype)
        sides = []
        for sign in (1, -1):
            parameter.set_data(nd.array(before + sign * step * direction, dtype=dtype))
            sides.append(value())
        parameter.set_data(nd.array(before, dtype=dtype))
        found[name] = (direction.astype(np.float64), (sides[0] - sides[1]) / (2 * step))
    return found


def check(factory: Callable[[], Any], best: str, step: float, tolerances: dict[str, float], training: bool) -> None:
    ids = distinct_ids()
    nets = {dtype: built(factory, ids, dtype) for dtype in tolerances}
    cotangent = np.random.default_rng(1).normal(size=nets[best](nd.array(ids, dtype=best)).shape)
    expected = slopes(nets[best], ids, cotangent, best, step, training=training)
    for dtype, net in nets.items():
        for hybrid in (False, True):
            net.hybridize(hybrid)
            found = gradients(net, ids, cotangent, training=training)
            assert found.keys() == expected.keys()
            for name, (direction, slope) in expected.items():
                got = float((found[name].astype(np.float64) * direction).sum())
                scale = max(abs(slope), float(np.linalg.norm(found[name])))
                assert abs(got - slope) < tolerances[dtype] * scale, f"{name}, {dtype}, {hybrid}: {got} for {slope}"


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_the_parameters_of_a_layer(name: str) -> None:
    factory, best, step, tolerances = WITH_PARAMETERS[name]
    check(factory, best, step, tolerances, training=False)


@pytest.mark.parametrize("name", ["batch norm", "lstm", "gru", "max pooling"])
def test_gradients_of_the_parameters_in_training_mode(name: str) -> None:
    factory, best, step, tolerances = WITH_PARAMETERS[name]
    check(factory, best, step, tolerances, training=True)


class Net(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A shared layer, a frozen one, one that is not used, a parameter of its own, and one that no attribute holds."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, DIM, sparse_grad=sparse)
        self.body = nn.HybridSequential()
        self.body.add(nn.Dense(DIM, flatten=False, in_units=DIM), nn.LayerNorm(in_channels=DIM))
        self.again = self.body
        self.unused = nn.Dense(2, in_units=DIM)
        self.scale = self.params.get("scale", shape=(1, 1, DIM))
        self.top = nn.Dense(3, in_units=DIM)
        self.top.bias.grad_req = "null"

    def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
        rows = self.again(F.tanh(self.body(self.words(x))))
        return self.top(F.sum(F.broadcast_mul(rows, scale), axis=1))


def made(sparse: bool = False) -> Any:
    net = Net(sparse)
    net.initialize()
    net.cast("float64")
    randomise(net)
    return net


EXPECTED_NAMES = (
    *("scale", "words.weight", "body.0.weight", "body.0.bias", "body.1.gamma", "body.1.beta"),
    *("unused.weight", "unused.bias", "top.weight"),
)


def by_backward(net: Any, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Hand-written: the parameters' own buffers after a backward pass, which are put back."""
    named = {name: p for name, p in net._collect_params_with_prefix().items() if not name.startswith("again")}
    parameters = {name: p for name, p in named.items() if p.grad_req != "null"}
    before = {name: p.grad().asnumpy() for name, p in parameters.items()}
    with autograd.record(train_mode=False):
        loss = net(nd.array(ids, dtype="float64"))[:, 1].sum()
    loss.backward(train_mode=False)
    added = {name: before[name] if p.grad_req == "add" else 0 for name, p in parameters.items()}
    return {name: p.grad().asnumpy() - added[name] for name, p in parameters.items() if p.grad().asnumpy().any()}


@pytest.mark.parametrize("hybrid", [False, True])
def test_names_order_and_unreached_parameters(hybrid: bool) -> None:
    net, ids = made(), distinct_ids()
    expected = by_backward(net, ids)
    net.hybridize(hybrid)
    found = embgrad.tables.parameter_gradients(net, ids, embgrad.Logit(1))
    assert tuple(found) == EXPECTED_NAMES
    assert found.unreached == ("unused.weight", "unused.bias")
    for name, gradient in found.items():
        assert gradient.dtype == np.float64
        assert relative(gradient, expected[name]) < 1e-12 if name in expected else not gradient.any()


@pytest.mark.parametrize(
    ("request_", "sparse"), [("write", False), ("write", True), ("add", False)]
)  # MXNet has no sparse add
def test_the_parameters_gradient_buffers_are_restored(request_: str, sparse: bool) -> None:
    net, ids = made(sparse), np.array([[1, 2, 1], [3, 1, 0]])
    net.collect_params("(?!.*bias)").setattr("grad_req", request_)
    net.top.bias.grad_req = "null"
    expected = by_backward(net, ids)
    parameters = net._collect_params_with_prefix().values()
    for parameter in parameters:
        for gradient in parameter._grad or ():
            if gradient.stype == "default":
                gradient[:] = 7
    buffers = [[(id(one), one.asnumpy().tobytes()) for one in p._grad or ()] for p in parameters]
    found = embgrad.tables.parameter_gradients(net, ids, embgrad.Logit(1))
    for name in expected:
        assert isinstance(found[name], np.ndarray)
        assert relative(found[name], expected[name]) < 1e-12
    assert buffers == [[(id(one), one.asnumpy().tobytes()) for one in p._grad or ()] for p in parameters]


def test_parameters_in_a_list_have_names() -> None:
    class Held(mx.gluon.HybridBlock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(ROWS, DIM)
            self.factors = [self.params.get(f"factor{number}", shape=(DIM,)) for number in range(2)]

        def forward(self, x: Any) -> Any:
            rows = self.words(x)
            for factor in self.factors:
                rows = rows * factor.data()
            return rows.sum(axis=1)

    net, ids = built(Held, distinct_ids(), "float64"), distinct_ids()
    for factor, value in zip(net.factors, (2.0, 3.0), strict=True):
        factor.set_data(nd.full((DIM,), value, dtype="float64"))
    found = embgrad.tables.parameter_gradients(net, ids, embgrad.Logit(1))
    assert list(found) == ["factor0", "factor1", "words.weight"]
    assert found["factor0"][1] == pytest.approx(3 * net.words.weight.data().asnumpy()[ids][..., 1].sum())


def test_an_operator_with_a_wrong_gradient_above_a_parameter_is_refused() -> None:
    class Wrong(Through):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.SVMOutput(self.layer(F.BlockGrad(self.embedding(x))), F.zeros((2,)))

    net = built(lambda: Wrong(nn.Dense(3)), distinct_ids(), "float32")
    with pytest.raises(embgrad.errors.UnsupportedError, match="SVMOutput"):
        embgrad.tables.parameter_gradients(net, distinct_ids(), embgrad.Logit(1))


def test_an_edited_lookup_gradient_reaches_the_table() -> None:
    net, ids = made(), distinct_ids()
    plain = embgrad.tables.parameter_gradients(net, ids, embgrad.Logit(1))
    cotangent = np.tile([0.0, 1.0, 0.0], (2, 1))
    request = embgrad.backend.Request(
        (),
        (embgrad.backend.Callback(lambda _: [{None: cotangent}]),),
        edit={"words#0": lambda gradient: gradient * 3},
        parameters=True,
    )
    found = GluonBackend().run(net, embgrad.TokenBatch(ids, convention="ids"), request).parameters
    assert relative(found["words.weight"].gradient, 3 * plain["words.weight"]) < 1e-12
    assert relative(found["scale"].gradient, plain["scale"]) < 1e-12
