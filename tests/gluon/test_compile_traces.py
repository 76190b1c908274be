"""Kept graphs, of `compile=True` and of hybridised nets: how long one serves, and that it is the user's net's."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import graphs, opening

import embgrad
from tests.gluon.graphnets import OBJECTIVE, Layered, OnArrays, compiled, expect_same, gated, plain, tolerance_of
from tests.gluon.helpers import DIM, ROWS, built, distinct_ids, mx, randomise, relative
from tests.gluon.test_models import Recurrent, TextCNN

nn, rnn, autograd, nd = mx.gluon.nn, mx.gluon.rnn, mx.autograd, mx.nd

# Gluon says so whenever it imports a symbol whose inputs' dtypes are open.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")


@pytest.mark.parametrize("hybridise", [False, True])
def test_new_weights_are_seen(hybridise: bool) -> None:
    ids = distinct_ids()
    net = built(TextCNN, ids, "float64")
    if hybridise:
        net.hybridize()
        net(nd.array(ids, dtype="float64"))
    run = embgrad.gradients if hybridise else compiled
    before = run(net, ids, OBJECTIVE).values
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    with autograd.record():
        loss = net(nd.array(ids, dtype="float64")).square().sum()
    loss.backward()
    trainer.step(1)
    expect_same(run(net, ids, OBJECTIVE), plain(net, ids, OBJECTIVE), 1e-12)
    assert relative(run(net, ids, OBJECTIVE).values, before) > 1e-3
    net.collect_params().setattr("grad_req", "null")  # which gives them new arrays
    randomise(net, seed=5)
    expect_same(run(net, ids, OBJECTIVE), plain(net, ids, OBJECTIVE), 1e-12)


@pytest.mark.parametrize("hybridise", [False, True])
def test_a_net_that_is_cast_is_traced_anew(hybridise: bool) -> None:
    """A recurrent layer's first state is made in the dtype that the layer was last cast to."""
    ids = distinct_ids()
    net = built(lambda: Recurrent(rnn.LSTM(3)), ids, "float32")
    for dtype in ("float32", "float64", "float32"):
        net.cast(dtype)
        if hybridise:
            net.hybridize()
            net(nd.array(ids, dtype=dtype))
        run = embgrad.gradients if hybridise else compiled
        found = run(net, ids, OBJECTIVE)
        assert found.provenance["compute_dtype"] == dtype
        expect_same(found, plain(net, ids, OBJECTIVE), tolerance_of(net))


def test_other_layers_and_parameters_are_seen() -> None:
    ids = distinct_ids()
    net = built(lambda: Layered(nn.Activation("relu"), nn.GlobalAvgPool1D()), ids, "float64")
    compiled(net, ids, OBJECTIVE)
    for kind in ("tanh", "sigmoid"):
        del net.layers._children["0"]
        net.layers._children = type(net.layers._children)([("0", nn.Activation(kind)), *net.layers._children.items()])
        gc.collect()
        expect_same(compiled(net, ids, OBJECTIVE), plain(net, ids, OBJECTIVE), 1e-12)
    net.top = nn.Dense(3, in_units=net.top.weight.shape[1])
    net.top.initialize(mx.init.Normal(1))
    net.top.cast("float64")
    expect_same(compiled(net, ids, OBJECTIVE), plain(net, ids, OBJECTIVE), 1e-12)


@pytest.mark.parametrize("hybridise", [False, True])
def test_a_graph_does_not_keep_the_net_alive(hybridise: bool) -> None:
    ids = distinct_ids()
    net = built(TextCNN, ids, "float32")
    if hybridise:
        net.hybridize()
        net(nd.array(ids))
    compiled(net, ids, OBJECTIVE)
    assert graphs._traces.count([net]) == 1
    reference, weight = weakref.ref(net), weakref.ref(net.top.weight)
    del net
    gc.collect()
    assert reference() is None
    assert weight() is None


def test_the_users_own_graph_is_left_alone() -> None:
    ids = distinct_ids()
    net = built(TextCNN, ids, "float32")
    variables = [parameter._var for parameter in net.collect_params().values()]
    compiled(net, ids, OBJECTIVE)
    assert [id(parameter._var) for parameter in net.collect_params().values()] == list(map(id, variables))
    assert net._cached_op is None
    assert net._cached_graph == ()
    assert not net._active
    name = mx.sym.square(mx.sym.var("x")).name
    compiled(net, distinct_ids(3, 4), OBJECTIVE)
    assert int(mx.sym.square(mx.sym.var("x")).name.removeprefix("square")) == int(name.removeprefix("square")) + 1
    net.hybridize(static_alloc=True, static_shape=True)
    before = net(nd.array(ids)).asnumpy()
    held = net._cached_op, net._cached_graph, net._cached_op_args, list(net._flags)
    embgrad.gradients(net, ids, OBJECTIVE)
    compiled(net, ids, OBJECTIVE)
    assert (net._cached_op, net._cached_graph, net._cached_op_args) == held[:3]
    assert net._flags == held[3]
    assert (net(nd.array(ids)).asnumpy() == before).all()


def test_a_net_whose_python_no_longer_makes_its_graph_is_refused() -> None:
    ids = distinct_ids()
    net = built(lambda: Layered(nn.LeakyReLU(0.1), nn.GlobalAvgPool1D()), ids, "float64")
    net.hybridize()
    net(nd.array(ids, dtype="float64"))
    embgrad.gradients(net, ids, OBJECTIVE)
    net.layers[0]._alpha = 0.9
    graphs._traces.forget([net])
    for options in ({}, {"compile": True}, {"at": "layers"}, {"training": True}):
        with pytest.raises(
            embgrad.UnsupportedError,
            match=r"is hybridised, and its graph does not give what its Python gives.*hybridize\(\)",
        ):
            embgrad.gradients(net, ids, OBJECTIVE, **options)
    net.hybridize()
    net(nd.array(ids, dtype="float64"))
    for options in ({}, {"compile": True}, {"training": True}):
        found = embgrad.gradients(net, ids, OBJECTIVE, **options)
        assert relative(found.values, plain(net, ids, OBJECTIVE).values) < 1e-12


def test_a_net_whose_python_goes_another_way_without_symbols_is_refused_where_that_runs() -> None:
    class Branching(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.dense = nn.Embedding(ROWS, DIM), nn.Dense(3)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            rows = self.embedding(x)
            return self.dense(F.tanh(rows) if F is mx.nd else rows * 2)

    ids = distinct_ids()
    net = built(Branching, ids, "float64")
    net.hybridize()
    own = net(nd.array(ids, dtype="float64")).asnumpy()
    objective = embgrad.Logit(1)
    np.testing.assert_allclose(embgrad.gradients(net, ids, objective).objective, own[:, 1], rtol=1e-12)
    for options in ({"at": "dense"}, {"training": True}):
        with pytest.raises(embgrad.UnsupportedError, match="its graph does not give what its Python gives"):
            embgrad.gradients(net, ids, objective, **options)
    with (
        pytest.raises(embgrad.UnsupportedError, match="its graph does not give what its Python gives"),
        embgrad.capture(net),
        mx.autograd.record(),
    ):
        net(nd.array(ids, dtype="float64"))


def test_a_net_whose_python_returns_more_without_symbols_is_refused_where_that_runs() -> None:
    ids = distinct_ids()
    net = built(
        lambda: OnArrays(lambda F, rows: rows.mean(axis=1) if F is nd else [rows.mean(axis=1)] * 2), ids, "float32"
    )
    net.hybridize()
    net(nd.array(ids))
    with pytest.raises(embgrad.UnsupportedError, match="its graph does not give what its Python gives"):
        embgrad.gradients(net, ids, lambda out: out[0].sum(axis=1), at="embedding")


def test_a_hybridised_net_whose_python_enters_a_scope_is_refused_where_that_runs() -> None:
    ids = distinct_ids()
    net = built(lambda: OnArrays(lambda F, rows: gated(rows)), ids, "float64")
    net.hybridize()
    with autograd.record(train_mode=False):
        total = net(nd.array(ids, dtype="float64")).sum()
    total.backward(train_mode=False)
    own = net.embedding.weight.grad().asnumpy()
    assert relative(embgrad.gradients(net, ids, embgrad.Sum()).table().to_dense(), own) < 1e-12
    for options in ({"at": "embedding"}, {"training": True}):
        with pytest.raises(embgrad.UnsupportedError, match=r"enters autograd\.pause\(\)"):
            embgrad.gradients(net, ids, embgrad.Sum(), **options)


def test_a_graph_is_compared_with_its_python_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = distinct_ids()
    net = built(lambda: Layered(nn.LeakyReLU(0.1), nn.GlobalAvgPool1D()), ids, "float64")
    net.hybridize()
    net(nd.array(ids, dtype="float64"))
    compared: list[Any] = []
    monkeypatch.setattr(opening, "_compare", lambda *given: compared.append(given))
    for _ in range(3):
        embgrad.gradients(net, ids, OBJECTIVE, at="layers")
    assert len(compared) == 1
    net.layers[0]._alpha = 0.9
    embgrad.gradients(net, ids, OBJECTIVE, at="layers")
    assert len(compared) == 2


def test_the_hybridisation_begins_anew() -> None:
    ids = distinct_ids()
    net = built(lambda: Layered(nn.LeakyReLU(0.1), nn.GlobalAvgPool1D()), ids, "float64")
    for slope in (0.1, 0.9):
        net.layers[0]._alpha = slope
        net.hybridize()
        net(nd.array(ids, dtype="float64"))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(graphs, "opened", None)
            found = embgrad.gradients(net, ids, OBJECTIVE)
        expect_same(found, plain(net, ids, OBJECTIVE), 1e-12)
