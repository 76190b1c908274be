"""What is kept from call to call is not believed: a net that was changed between two calls gives the changed net's gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from embgrad_gluon.walk import all_blocks

import embgrad
from tests.frameworks.gluon.helpers import DIM, ROWS, distinct_ids, mx, randomise

nn, autograd = mx.gluon.nn, mx.autograd

IDS = distinct_ids()

#: Many positions.
MANY = np.random.default_rng(0).integers(0, ROWS, (8, 40))

OBJECTIVE = embgrad.Projection(np.array([0.7, -0.4, 0.2]))


class Net(mx.gluon.HybridBlock):
    """Embedding → layer norm → the mean over positions → Dense → tanh → Dense."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, dim)
        self.norm = nn.LayerNorm(in_channels=dim)
        self.dropout = nn.Dropout(0.5)
        self.hidden = nn.Dense(6, activation="tanh", in_units=dim)
        self.top = nn.Dense(3, in_units=6)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.top(self.dropout(self.hidden(F.mean(self.norm(self.embedding(x)), axis=1))))


def made(seed: int = 0, *, dim: int = DIM) -> Any:
    net = Net(dim)
    net.initialize()
    randomise(net, seed)
    return net


def expected(net: Any, ids: np.ndarray) -> np.ndarray:
    """The gradient by MXNet alone: of the rows, each id's its own."""
    rows: list[Any] = []

    def hook(_: Any, __: Any, output: Any) -> None:
        output.attach_grad()
        rows.append(output)

    blocks = all_blocks([net])
    active = [block._active for block in blocks]
    for block in blocks:  # a hybridised net calls no hooks
        block._active = False
    handle = net.embedding.register_forward_hook(hook)
    try:
        with autograd.record(train_mode=False):
            value = (net(mx.nd.array(ids)) * mx.nd.array([0.7, -0.4, 0.2], dtype=net.top.weight.dtype)).sum()
    finally:
        handle.detach()
        for block, was in zip(blocks, active, strict=True):
            block._active = was
    return np.asarray(autograd.grad(value, rows, train_mode=False)[0].asnumpy())


def replace_child(net: Any) -> None:
    net.hidden = made(3).hidden


def replace_table(net: Any) -> None:
    net.embedding = made(4).embedding


def replace_parameter(net: Any) -> None:
    shared = nn.Dense(3, in_units=6, params=made(5).top.params)
    net.top._reg_params.update(shared._reg_params)
    for name, parameter in shared._reg_params.items():  # Gluon has no other way
        object.__setattr__(net.top, name, parameter)


def new_data(net: Any) -> None:
    net.embedding.weight.set_data(made(6).embedding.weight.data())
    net.hidden.weight.set_data(made(6).hidden.weight.data())


def new_arrays(net: Any) -> None:
    values = net.embedding.weight.data() * 2
    net.embedding.weight.grad_req = "null"  # the parameter gets other arrays
    net.embedding.weight.grad_req = "write"
    net.embedding.weight.set_data(values)


def cast(net: Any) -> None:
    net.cast("float64")


def new_epsilon(net: Any) -> None:
    net.norm._epsilon = 0.5
    net._clear_cached_op()


def hybridise(net: Any) -> None:
    net.hybridize()
    net(mx.nd.array(IDS))


def unhybridise(net: Any) -> None:
    net.hybridize(False)


def add_block(net: Any) -> None:
    net.register_child(nn.Dense(2, in_units=2), "unused")
    net._children["unused"].initialize()


CHANGES = [
    replace_child,
    replace_table,
    replace_parameter,
    new_data,
    new_arrays,
    cast,
    new_epsilon,
    hybridise,
    unhybridise,
    add_block,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("hybridised", [False, True], ids=["imperative", "hybridised"])
def test_a_change_between_two_calls_counts(hybridised: bool, change: Callable[[Any], None]) -> None:
    net = made()
    if hybridised:
        hybridise(net)
    for _ in range(2):  # the second goes by what the first has kept
        before = embgrad.gradients(net, IDS, OBJECTIVE)
        np.testing.assert_allclose(before.values, expected(net, IDS), rtol=1e-5, atol=1e-7)
    change(net)
    if hybridised and net._active:
        net(mx.nd.array(IDS, dtype=net.embedding.weight.dtype))  # or no graph is kept of it
    if (
        hybridised and change is replace_parameter
    ):  # Gluon goes on with the graph, and with the parameter that was there
        with pytest.raises(embgrad.UnsupportedError, match="its graph computes something else than its Python"):
            embgrad.gradients(net, IDS, OBJECTIVE)
        return
    after = embgrad.gradients(net, IDS, OBJECTIVE)
    np.testing.assert_allclose(after.values, expected(net, IDS), rtol=1e-5, atol=1e-7)
    assert after.values.dtype == net.embedding.weight.dtype
    assert after.provenance["path"] == "embedding#0"
    if change not in (hybridise, unhybridise, add_block, cast):
        assert not np.allclose(after.values, before.values, rtol=1e-3)


def test_dropout_that_is_changed_between_two_calls_counts() -> None:
    net = made()
    embgrad.gradients(net, IDS, OBJECTIVE, training=True)
    net.dropout._rate = 0.0
    trained = embgrad.gradients(net, IDS, OBJECTIVE, training=True)
    np.testing.assert_allclose(trained.values, expected(net, IDS), rtol=1e-5, atol=1e-7)


class Branches(mx.gluon.HybridBlock):
    """Two outputs by the same operators, one of the ids and one of something that has nothing to do with them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.fixed = self.params.get("fixed", shape=(2, 5, DIM))

    def hybrid_forward(self, F: Any, x: Any, fixed: Any) -> Any:
        return {"first": F.tanh(self.embedding(x)).sum(axis=1), "second": F.tanh(fixed).sum(axis=1)}


def test_graphs_that_look_alike_are_told_apart() -> None:
    net = Branches()
    net.initialize()
    randomise(net)
    for _ in range(2):
        found = embgrad.gradients(net, IDS, embgrad.Sum(output="first"))
        np.testing.assert_allclose(found.values, 1 - np.tanh(found.activations) ** 2, rtol=1e-5)
        with pytest.raises(embgrad.NoGradientError):
            embgrad.gradients(net, IDS, embgrad.Sum(output="second"))


def test_a_large_batch_gives_what_its_examples_give() -> None:
    net = made()
    whole = embgrad.gradients(net, MANY, OBJECTIVE)
    np.testing.assert_allclose(whole.values, expected(net, MANY), rtol=1e-5, atol=1e-7)
    for options in ({"split": True}, {"batch_size": 2}, {"at": ["word", "hidden"]}, {"check": True}):
        found = embgrad.gradients(net, MANY, OBJECTIVE, **options)
        values = (found["word"] if isinstance(found, dict) else found).values
        np.testing.assert_allclose(values, whole.values, rtol=1e-5, atol=1e-7)
    doubled = embgrad.gradients(net, MANY, OBJECTIVE, edit={"hidden": lambda gradient: 2 * gradient})
    np.testing.assert_allclose(doubled.values, 2 * whole.values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("hybridised", [False, True], ids=["imperative", "hybridised"])
def test_what_the_user_recorded_before_a_large_batch_is_theirs_still(hybridised: bool) -> None:
    net, other = made(), made(1)
    if hybridised:
        hybridise(net)
    with autograd.record():
        factor = other(mx.nd.array(MANY)).mean(axis=1, keepdims=True)
        loss = net(mx.nd.array(MANY)).sum()
    found = embgrad.gradients(net, MANY, OBJECTIVE, call=lambda model, inputs: model(inputs) * factor)
    plain = embgrad.gradients(net, MANY, OBJECTIVE)
    np.testing.assert_allclose(found.values, plain.values * factor.asnumpy()[:, :, None], rtol=1e-4, atol=1e-6)
    factor.backward()
    assert abs(other.embedding.weight.grad().asnumpy()).sum() > 0
    loss.backward()
    with autograd.record():
        again = net(mx.nd.array(MANY)).sum()
    heard = net.embedding.weight.grad().asnumpy()
    again.backward()
    assert abs(heard).sum() > 0
    for parameter in (net.top.bias,):  # which no dropout touches
        np.testing.assert_allclose(parameter.grad().asnumpy(), len(MANY), rtol=1e-6)


def test_a_model_that_writes_into_its_rows_is_refused_while_it_is_pulled_back() -> None:
    net = made()

    def call(model: Any, inputs: Any) -> Any:
        rows = model.embedding(inputs)
        with autograd.pause():
            rows[:] = rows * 2
        return model.top(model.hidden(rows.mean(axis=1)))

    for ids in (IDS, MANY):
        with pytest.raises(embgrad.UnsupportedError, match="writes into the output of the lookup"):
            embgrad.gradients(net, ids, OBJECTIVE, call=call)
