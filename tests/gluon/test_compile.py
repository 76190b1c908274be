"""Kept graphs: of `compile=True`, of hybridised nets and of SymbolBlocks, against the same net operator by operator."""

from __future__ import annotations

import copy
import gc
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import graphs, keptgraph, opening, tracing

import embgrad
from tests.gluon.helpers import DIM, ROWS, built, differences, distinct_ids, mx, randomise, relative
from tests.gluon.test_bert import BATCH, loaded
from tests.gluon.test_models import Bare, Recurrent, Siamese, TextCNN, bag, sparse
from tests.gluon.test_symbolblock import exported, norm_and_dropout

nn, rnn, autograd, nd = mx.gluon.nn, mx.gluon.rnn, mx.autograd, mx.nd
HybridBlock, Block = mx.gluon.HybridBlock, mx.gluon.Block

# Gluon says so whenever it imports a symbol whose inputs' dtypes are open.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")

OBJECTIVE = embgrad.Projection(np.array([0.7, -0.4, 0.2]))


def of_positions(returned: Any) -> Any:
    return (returned * nd.arange(1, returned.shape[1] + 1, dtype=returned.dtype)).sum(axis=1)


class Layered(HybridBlock):
    """Embedding → layers over (example, dim, position) → the maximum over positions → Dense."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.layers = nn.HybridSequential()
        self.layers.add(*layers)
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.top(self.layers(F.swapaxes(self.embedding(x), 1, 2)))


class Tied(HybridBlock):
    """The table is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.head = nn.Dense(ROWS, use_bias=False, in_units=DIM, params=self.embedding.params)
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.top(F.log_softmax(self.head(F.mean(F.tanh(self.embedding(x)), axis=1))))


class Positions(HybridBlock):
    """Positions are counted along what was looked up, and looked up in a table of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, DIM)
        self.places = nn.Embedding(7, DIM)
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = self.words(x)
        places = self.places(F.contrib.arange_like(rows, axis=1))
        return self.top(F.mean(F.tanh(F.broadcast_add(rows, F.expand_dims(places, 0))), axis=1))


def pooled_and_normed() -> Any:
    return Layered(
        nn.BatchNorm(axis=1), nn.Dropout(0.5), nn.LeakyReLU(0.1), nn.MaxPool1D(2, 1), nn.SELU(), nn.GlobalAvgPool1D()
    )


def pooled() -> Any:
    return Layered(nn.Dropout(0.5), nn.MaxPool1D(2, 1), nn.SELU(), nn.GlobalAvgPool1D())


MODELS: dict[str, Callable[[], Any]] = {
    "bag": bag,
    "bidirectional gru": lambda: Recurrent(rnn.GRU(3, num_layers=2, bidirectional=True, dropout=0.5)),
    "dropped lstm": lambda: Recurrent(rnn.LSTM(3, num_layers=2, dropout=0.5)),
    "gather": lambda: Bare("gather"),
    "maximum": lambda: Layered(nn.HybridLambda(lambda F, x: F.max(x, axis=2) - F.min(x, axis=-1))),
    "norm and dropout": norm_and_dropout,
    "pooled": pooled,
    "pooled and normed": pooled_and_normed,
    "positions": Positions,
    "selu": lambda: Layered(nn.SELU(), nn.GlobalAvgPool1D()),
    "sparse gradient": sparse,
    "take": lambda: Bare("take"),
    "text cnn": TextCNN,
    "tied": Tied,
    "vanilla rnn": lambda: Recurrent(rnn.RNN(3, activation="tanh")),
}


@pytest.fixture
def no_operator_by_operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A block that does not run as a graph fails the test."""

    def refuse(block: Any, *_: Any) -> Any:
        raise AssertionError(f"{block.name} ran operator by operator")

    with monkeypatch.context() as patched:
        patched.setattr(graphs, "opened", refuse)
        yield


def plain(net: Any, *args: Any, **options: Any) -> Any:
    """The result of the net's operators one by one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graphs, "_is_graph", lambda block: False)
        return embgrad.gradients(net, *args, **options)


def compiled(net: Any, *args: Any, **options: Any) -> Any:
    """The result of kept graphs, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        found = embgrad.gradients(net, *args, compile=True, **options)
    assert found.provenance["compiled"]
    assert found.provenance["uncompiled"] is None
    return found


def tolerance_of(net: Any) -> float:
    return 1e-12 if next(iter(net.collect_params().values())).dtype in ("float64", np.float64) else 2e-5


def expect_same(found: Any, expected: Any, tolerance: float) -> None:
    assert relative(found.values, expected.values) < tolerance
    assert relative(found.objective, expected.objective) < tolerance
    assert (found.activations == expected.activations).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_gives_what_the_operators_give(name: str, dtype: str, tmp_path: Path) -> None:
    ids = distinct_ids()
    net = built(MODELS[name], ids, dtype)
    expected = plain(net, ids, OBJECTIVE)
    tolerance = tolerance_of(net)
    expect_same(compiled(net, ids, OBJECTIVE), expected, tolerance)
    inputs = nd.array(ids, dtype=dtype)
    block = exported(net, [inputs], tmp_path)  # which hybridises the net, and calls it
    block.cast(dtype)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graphs, "opened", None)
        expect_same(embgrad.gradients(net, ids, OBJECTIVE), expected, tolerance)
        expect_same(embgrad.gradients(block, ids, OBJECTIVE), expected, tolerance)


@pytest.mark.parametrize("name", ["maximum", "pooled", "selu", "bidirectional gru", "vanilla rnn", "text cnn"])
def test_a_graph_against_finite_differences(name: str) -> None:
    """What MXNet gets wrong in silence where a graph runs as it is: each of these fails without its countermeasure."""
    ids = distinct_ids()
    cotangent = np.tile([0.7, -0.4, 0.2], (2, 1))
    double = built(MODELS[name], ids, "float64")
    table = next(p for p in double.collect_params().values() if p.shape == (ROWS, DIM))
    expected = differences(double, table, ids, cotangent)
    for dtype, tolerance in (("float64", 1e-6), ("float32", 2e-4)):
        assert relative(compiled(built(MODELS[name], ids, dtype), ids, OBJECTIVE).values, expected) < tolerance


#: Of one array, with a gradient; each gives another of that shape.
ELEMENTWISE = (
    *(
        "abs",
        "arccos",
        "arcsin",
        "arcsinh",
        "arctan",
        "arctanh",
        "cbrt",
        "cos",
        "cosh",
        "degrees",
        "erf",
        "erfinv",
        "exp",
    ),
    *(
        "expm1",
        "gamma",
        "gammaln",
        "hard_sigmoid",
        "log",
        "log10",
        "log1p",
        "log2",
        "log_softmax",
        "negative",
        "radians",
    ),
    *("rcbrt", "reciprocal", "relu", "rsqrt", "sigmoid", "sin", "sinh", "smooth_l1", "softmax", "softmin", "softsign"),
    *("sqrt", "square", "tan", "tanh", "L2Normalization", "identity", "reverse", "sort"),
)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_operator_beside_another_use_in_a_graph(name: str) -> None:
    """A graph may add an operator's gradient to another in place, or take it for that of what it is given."""

    class Beside(HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(ROWS, DIM)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            rows = 0.5 + 0.3 * F.tanh(self.embedding(x))
            options = {"axis": 1} if name in ("reverse", "sort") else {}
            found = getattr(F, name)(rows, **options)
            return F.sum(F.sin(found + rows), axis=2)

    ids = distinct_ids()
    net = built(Beside, ids, "float64")
    expected = plain(net, ids, of_positions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", embgrad.EmbgradWarning)
        found = embgrad.gradients(net, ids, of_positions, compile=True)
    expect_same(found, expected, 1e-12)
    net.hybridize()
    net(nd.array(ids, dtype="float64"))
    expect_same(embgrad.gradients(net, ids, of_positions), expected, 1e-12)


@pytest.mark.parametrize("output", ["sequence", "pooled"])
def test_a_graph_of_bert(output: str, no_operator_by_operator: None) -> None:
    net = loaded()
    shorter = embgrad.TokenBatch(BATCH.ids)  # neither types nor lengths
    for batch in (BATCH, shorter):
        expected = plain(net, batch, embgrad.Sum(output=output))
        expect_same(compiled(net, batch, embgrad.Sum(output=output)), expected, 2e-5)
    net.hybridize()
    net(*map(nd.array, shorter.to_gluonnlp()))
    expect_same(embgrad.gradients(net, shorter, embgrad.Sum(output=output)), expected, 2e-5)


def test_one_graph_serves_every_size() -> None:
    net = built(TextCNN, distinct_ids(), "float32")
    for examples, positions in ((2, 5), (1, 3), (2, 4), (1, 12), (3, 4)):
        ids = distinct_ids(examples, positions)
        expect_same(compiled(net, ids, OBJECTIVE), plain(net, ids, OBJECTIVE), 2e-5)
    assert graphs._traces.count([net]) == 1


def test_nothing_of_a_call_is_kept() -> None:
    """Labels, changes and rows that are read are this call's."""
    ids = distinct_ids(3, 4)
    net = built(Positions, ids, "float64")
    for seed in range(3):
        random = np.random.default_rng(seed)
        objective = embgrad.CrossEntropy(random.integers(0, 3, 3))
        scale, added, put = random.normal(), random.normal(size=(3, 4, DIM)), random.normal(size=DIM)
        for changes in (
            {"edit": {"word": lambda gradient, by=scale: gradient * by}},
            {"add": {"word": added}},
            {"override": {"word": put}},
        ):
            expect_same(compiled(net, ids, objective, **changes), plain(net, ids, objective, **changes), 1e-12)
    assert graphs._traces.count([net]) == 1


def test_other_lookups_sets_of_cotangents_and_native_objectives() -> None:
    ids = distinct_ids(3, 4)
    net = built(Positions, ids, "float64")
    place = next(point.key for point in embgrad.points(net, ids) if point.lookup and "places" in point.key)
    for options in ({"at": place}, {"split": True}, {"batch_size": 2}, {"check": True}):
        found, expected = compiled(net, ids, OBJECTIVE, **options), plain(net, ids, OBJECTIVE, **options)
        expect_same(found, expected, 1e-12)
    native = lambda out: (out * out).sum(axis=1)  # noqa: E731
    expect_same(compiled(net, ids, native), plain(net, ids, native), 1e-12)


def test_the_order_of_lookups_is_that_of_the_python() -> None:
    """A symbol lists a difference's second term first where that is on its left."""

    class Backwards(HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(ROWS, DIM)
            self.top = nn.Dense(3)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            first = F.tanh(self.table(x))
            second = self.table(F.reverse(x, axis=1))
            return self.top(F.mean(F.square(second) - first, axis=1))

    ids = distinct_ids(2, 4)
    net = built(Backwards, ids, "float64")
    net.hybridize()
    net(nd.array(ids, dtype="float64"))
    for name in ("table#0", "table#1"):
        expect_same(embgrad.gradients(net, ids, OBJECTIVE, at=name), plain(net, ids, OBJECTIVE, at=name), 1e-12)
        assert (
            relative(compiled(net, ids, OBJECTIVE, at=name).values, plain(net, ids, OBJECTIVE, at=name).values) < 1e-12
        )


def test_two_texts_through_one_table() -> None:
    net = Siamese()
    net.initialize()
    left, right = distinct_ids(2, 4), distinct_ids(2, 4, seed=1)
    call = lambda model, ids: model(ids, nd.array(right))  # noqa: E731
    net(nd.array(left), nd.array(right))
    found = compiled(net, left, embgrad.Sum(), call=call)
    expect_same(found, plain(net, left, embgrad.Sum(), call=call), 2e-5)


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


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, mx.MXNetError])
@pytest.mark.parametrize("option", ["edit", "override", "add"])
def test_exceptions_of_callbacks_come_out_as_themselves(option: str, error: type[BaseException]) -> None:
    ids = distinct_ids()
    net = built(TextCNN, ids, "float32")
    expected = compiled(net, ids, OBJECTIVE)
    raised = error("of the user's own")

    def change(_: Any) -> Any:
        raise raised

    with pytest.raises(error) as caught:
        embgrad.gradients(net, ids, OBJECTIVE, compile=True, **{option: {"word": change}})
    assert caught.value is raised
    assert not autograd.is_recording()
    expect_same(compiled(net, ids, OBJECTIVE), expected, 1e-7)


@pytest.mark.parametrize("hybridise", [False, True])
def test_the_contract_holds(hybridise: bool) -> None:
    """MXNet clips ids in silence; what else is refused is refused with the same words as without a graph."""
    ids = distinct_ids(2, 4)
    net = built(Positions, ids, "float32")
    if hybridise:
        net.hybridize()
        net(nd.array(ids))
    longer = np.ones((1, 9), int)
    for batch, match in ((ids + 5, "outside the table 'words'|outside the table"), (longer, "longer than the model")):
        said = []
        for run in (plain, compiled):
            with pytest.raises(embgrad.BatchError, match=match) as caught:
                run(net, batch, OBJECTIVE)
            said.append(str(caught.value))
        assert said[0] == said[1]


class Ending(HybridBlock):
    """Ends in what is to be refused."""

    def __init__(self, end: Callable[..., Any]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.end = end

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.end(F, F.sum(self.embedding(x), axis=1), x)


@pytest.mark.parametrize(
    ("end", "error", "match"),
    [
        (
            lambda F, rows, x: F.SoftmaxOutput(rows, F.slice_axis(x, axis=1, begin=0, end=1).reshape(-1)),
            None,
            "Softmax",
        ),
        (lambda F, rows, x: F.BlockGrad(rows), "NoGradientError", "does not depend"),
        (lambda F, rows, x: F.one_hot(F.argmax(rows, axis=1), 3), "NoGradientError", "does not depend"),
        (lambda F, rows, x: rows / F.zeros_like(rows), "ObjectiveError", "finite"),
    ],
)
def test_wrong_and_missing_ways_inside_a_graph(end: Any, error: str | None, match: str) -> None:
    ids = distinct_ids(2, 4)
    net = built(lambda: Ending(end), ids, "float32")
    for run in (plain, compiled):
        with pytest.raises(getattr(embgrad, error or "UnsupportedError"), match=match):
            run(net, ids, embgrad.Sum())


def test_an_output_that_nobody_reads_gives_nothing() -> None:
    """In a graph zeros come to it: an operator with a gradient of its own adds that, and zero times infinity is no number."""
    ids = distinct_ids(2, 4)

    def pick(model: Any, inputs: Any) -> dict[str, Any]:
        return dict(zip(("logits", "other", "blocked"), model(inputs), strict=True))

    net = built(lambda: Ending(lambda F, rows, x: (F.tanh(rows), F.make_loss(rows), F.BlockGrad(rows))), ids, "float64")
    objective = embgrad.Sum(output="logits")
    expected = plain(net, ids, objective, call=pick)
    with pytest.warns(embgrad.EmbgradWarning, match="has the operator '.*make_loss'"):
        expect_same(embgrad.gradients(net, ids, objective, call=pick, compile=True), expected, 1e-12)
    net = built(
        lambda: Ending(lambda F, rows, x: (F.tanh(rows), F.sqrt(rows - rows), F.BlockGrad(rows))), ids, "float64"
    )
    called = []

    def nothing(value: np.ndarray) -> np.ndarray:
        called.append(value)
        return value * (len(called) - 1)

    changes = {"add": {"word": nothing}}
    with pytest.warns(embgrad.EmbgradWarning, match="its graph's gradient is not finite"):
        expect_same(embgrad.gradients(net, ids, objective, call=pick, compile=True, **changes), expected, 1e-12)
    assert len(called) == 1  # as whoever counts or draws expects
    with pytest.raises(embgrad.NoGradientError):
        embgrad.gradients(net, ids, embgrad.Sum(output="blocked"), call=pick, compile=True)


class Wrapped(Block):
    """Two hybridised halves in a Block, which computes between them."""

    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.HybridSequential()
        self.lower.add(nn.Embedding(ROWS, DIM), nn.Dense(5, flatten=False, activation="tanh"))
        self.upper = nn.HybridSequential()
        self.upper.add(nn.LayerNorm(), nn.Dense(3))

    def forward(self, x: Any) -> Any:
        return self.upper(self.lower(x).mean(axis=1) * 2)


def test_graphs_inside_the_python_of_a_block(no_operator_by_operator: None) -> None:
    ids = distinct_ids()
    net = built(Wrapped, ids, "float64")
    expected = plain(net, ids, OBJECTIVE)
    expect_same(compiled(net, ids, OBJECTIVE), expected, 1e-12)
    net.hybridize()
    net(nd.array(ids, dtype="float64"))
    expect_same(embgrad.gradients(net, ids, OBJECTIVE), expected, 1e-12)


def test_points_are_at_the_borders_of_graphs() -> None:
    """What has a point inside runs its Python; the blocks in it are graphs, and what is changed between them goes on."""
    net = loaded()
    cells = [f"encoder.transformer_cells.{number}" for number in range(2)]
    names = ["word", *cells, f"{cells[1]}:input", "layer.-1"]
    random = np.random.default_rng(4)
    changes: list[dict[str, Any]] = [{}, {"add": {cells[0]: random.normal(size=8)}}]
    changes += [{"edit": {cells[1]: lambda gradient: gradient * 2}}, {"edit": {"word": lambda gradient: gradient * 3}}]
    for change in changes:
        expected = plain(net, BATCH, embgrad.Sum(output="pooled"), at=names, **change)
        found = embgrad.gradients(net, BATCH, embgrad.Sum(output="pooled"), at=names, compile=True, **change)
        for name in names:
            assert found[name].provenance["compiled"]
            assert relative(found[name].values, expected[name].values) < 2e-5
            assert relative(found[name].activations, expected[name].activations) < 2e-5
    cell = next(block for block in tracing.blocks_below(net) if type(block).__name__ == "BERTEncoderCell")
    assert graphs._traces.count([cell]) > 0


def test_points_inside_of_a_symbol_block(tmp_path: Path) -> None:
    ids = distinct_ids()
    net = built(TextCNN, ids, "float32")
    block = exported(net, [nd.array(ids)], tmp_path)
    name = next(point.key for point in embgrad.points(block, ids) if point.lookup is None)
    with pytest.warns(embgrad.EmbgradWarning, match="is no block of the model's, but inside of a SymbolBlock"):
        found = embgrad.gradients(block, ids, OBJECTIVE, at=name, compile=True)
    assert relative(found.values, plain(block, ids, OBJECTIVE, at=name).values) < 2e-5


class Counting(HybridBlock):
    """Asks for values, which a symbol has not."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.inner(x) * float(x.shape[1])


class OfArrays(Block):
    def __init__(self) -> None:
        super().__init__()
        self.table = self.params.get("table", shape=(ROWS, DIM))

    def forward(self, x: Any) -> Any:
        return nd.take(self.table.data(), x).sum(axis=1)


def net_that_draws() -> Any:
    return Layered(nn.HybridLambda(lambda F, x: F.random.normal_like(x) * 0 + x), nn.GlobalAvgPool1D())


class OnArrays(HybridBlock):
    """Its Python goes another way on arrays than on symbols."""

    def __init__(self, way: Any) -> None:
        super().__init__()
        self.embedding, self.way = nn.Embedding(ROWS, DIM), way

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.way(F, F.tanh(self.embedding(x)))


def gated(rows: Any) -> Any:
    """The gate has no gradient."""
    with autograd.pause():
        gate = rows.sigmoid()
    return (rows * gate).mean(axis=1)


class Scaling(HybridBlock):
    """Takes a number, which a graph does not."""

    def hybrid_forward(self, F: Any, x: Any, by: float) -> Any:
        return x * by


class Scaled(Block):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.scaling = TextCNN(), Scaling()

    def forward(self, x: Any) -> Any:
        return self.scaling(self.net(x), 2.0)


@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (
            lambda: OnArrays(lambda F, rows: rows.mean(axis=1) * len(rows)),
            {},
            "something else on arrays than on symbols",
        ),
        (lambda: OnArrays(lambda F, rows: rows.swapaxes(0, 1)[0]), {}, "something else on arrays than on symbols"),
        (
            lambda: OnArrays(lambda F, rows: (rows * (F.BlockGrad(rows) if F is nd else rows)).mean(axis=1)),
            {},
            "other gradients on arrays than on symbols",
        ),
        (
            lambda: OnArrays(lambda F, rows: rows.mean(axis=1) if F is nd else [rows.mean(axis=1)] * 2),
            {},
            "something else on arrays than on symbols",
        ),
        (lambda: OnArrays(lambda F, rows: (rows.mean(axis=1), None)), {}, "it returns None among its arrays"),
        (lambda: OnArrays(lambda F, rows: gated(rows)), {}, r"its Python enters autograd\.pause\(\)"),
        (Scaled, {}, "its arguments are not arrays, or lists of them"),
        (
            lambda: Counting(TextCNN()),
            {},
            r"HybridBlock|Counting .* cannot be traced: its Python does not run on symbols",
        ),
        (OfArrays, {}, "came by no HybridBlock"),
        (net_that_draws, {}, "has the operator '_random_normal_like'"),
        (TextCNN, {"training": True}, "training=True draws"),
        (lambda: Bare("scaled table"), {}, "on what it computed"),
        (lambda: Bare("index"), {}, "does not run on symbols"),
    ],
)
def test_what_cannot_be_traced_falls_back_and_says_why(make: Any, options: dict[str, Any], why: str) -> None:
    ids = distinct_ids()
    net = built(make, ids, "float64")
    with pytest.warns(
        embgrad.EmbgradWarning, match=rf"compile=True: .*({why}).*; the model ran without a trace"
    ) as said:
        found = embgrad.gradients(net, ids, embgrad.Sum(), compile=True, **options)
    assert len([one for one in said if one.category is embgrad.EmbgradWarning]) == 1
    assert not found.provenance["compiled"]
    if not options.get("training"):
        expected = plain(net, ids, embgrad.Sum(), **options)
        assert relative(found.values, expected.values) < 1e-9


class ByLength(HybridBlock):
    """Its Python asks for a length where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.top = nn.Embedding(ROWS, DIM), nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = F.tanh(self.embedding(x))
        length = getattr(rows, "shape", (0, 0))[1]
        return self.top(F.mean(rows, axis=1)) * (3 if length > 4 else 1)


def test_what_goes_by_a_length_is_seen_at_the_length() -> None:
    net = built(ByLength, distinct_ids(), "float32")
    for length in (2, 4, 6, 3):
        ids = np.arange(1, 1 + 2 * length).reshape(2, length) % ROWS
        plain = embgrad.gradients(net, ids, OBJECTIVE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = embgrad.gradients(net, ids, OBJECTIVE, compile=True)
        np.testing.assert_allclose(compiled.values, plain.values, rtol=1e-5, atol=1e-7)
        assert compiled.provenance["compiled"] is (length in (2, 4))


class Drawing(ByLength):
    """Its Python leaves something out at random, or draws and does not look."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.looks = looks

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        share = random.random()
        return self.top(F.mean(F.tanh(self.embedding(x)), axis=1)) * (3 if self.looks and share < 0.1 else 1)


def test_what_python_draws_is_of_account_where_it_is_looked_at() -> None:
    ids = distinct_ids()
    drawing = built(lambda: Drawing(looks=True), ids, "float32")
    random.seed(2)  # whose first numbers leave nothing out
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match="compile=True: .*from Python's or NumPy's generator"):
            embgrad.gradients(drawing, ids, OBJECTIVE, compile=True)
    blind = built(lambda: Drawing(looks=False), ids, "float32")
    assert embgrad.gradients(blind, ids, OBJECTIVE, compile=True).provenance["compiled"]


class DrawingByItself(ByLength):
    """Draws from a generator of its own, and nothing comes of it but the place where that stands."""

    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.held = [generator]

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.top(F.mean(F.tanh(self.embedding(x)), axis=1)) * (0 * self.held[0].random() + 1)


@pytest.mark.parametrize("sort", [random.Random, np.random.default_rng, np.random.RandomState, random.SystemRandom])
def test_a_generator_of_the_models_own(sort: Any) -> None:
    net = built(lambda: DrawingByItself(sort(0)), distinct_ids(), "float32")
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match="compile=True: .*from Python's or NumPy's generator"):
            embgrad.gradients(net, distinct_ids(), OBJECTIVE, compile=True)


def test_what_goes_another_way_on_arrays_is_seen_after_a_batch_of_one() -> None:
    """A symbol has the length 1."""
    net = built(lambda: OnArrays(lambda F, rows: rows.mean(axis=1) * len(rows)), distinct_ids(), "float64")
    for positions in (5, 3):
        ids = distinct_ids(1, positions)
        expect_same(compiled(net, ids, embgrad.Sum()), plain(net, ids, embgrad.Sum()), 1e-12)
    ids = distinct_ids(2, 5)
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match="something else on arrays than on symbols"):
            expect_same(embgrad.gradients(net, ids, embgrad.Sum(), compile=True), plain(net, ids, embgrad.Sum()), 1e-12)


class Keeping(HybridBlock):
    """Keeps what it computes, as a list of attention maps is kept."""

    def __init__(self, keep: Any) -> None:
        super().__init__()
        self.embedding, self.top, self.keep = nn.Embedding(ROWS, DIM), nn.Dense(3), keep
        self.maps: Any = []

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = F.tanh(self.embedding(x))
        self.keep(self, rows)
        return self.top(F.mean(rows, axis=1))


@pytest.mark.parametrize(
    "keep",
    [
        lambda net, rows: setattr(net, "maps", rows),
        lambda net, rows: net.maps.append([rows]),
        lambda net, rows: setattr(net, "maps", {"rows": rows}),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_a_net_that_keeps_arrays_runs_its_python(keep: Any, before: bool) -> None:
    def objective(out: Any) -> Any:
        maps = net.maps
        while not isinstance(maps, nd.NDArray):
            maps = maps["rows"] if isinstance(maps, dict) else maps[-1]
        return out.sum(axis=1) + nd.square(maps).sum(axis=(1, 2))

    ids = distinct_ids()
    net = built(lambda: Keeping(keep), ids, "float64")
    net.maps = []
    if before:
        net(nd.array(ids[:, ::-1], dtype="float64"))
    maps = net.maps
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match="keeps an array in the attribute 'maps'"):
            expect_same(embgrad.gradients(net, ids, objective, compile=True), plain(net, ids, objective), 1e-12)
        assert net.maps is maps


def test_hooks_inside_are_called() -> None:
    ids = distinct_ids()
    net, seen = built(TextCNN, ids, "float32"), []
    compiled(net, ids, OBJECTIVE)
    handle = net.top.register_forward_hook(lambda block, given, gave: seen.append(gave))
    with pytest.warns(embgrad.EmbgradWarning, match="has a hook"):
        embgrad.gradients(net, ids, OBJECTIVE, compile=True)
    assert [type(one) for one in seen] == [nd.NDArray]
    handle.detach()
    compiled(net, ids, OBJECTIVE)


def test_a_graph_that_fails_is_left_for_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = distinct_ids()
    net = built(TextCNN, ids, "float32")
    expected = compiled(net, ids, OBJECTIVE)

    def fail(*_: Any) -> Any:
        raise mx.MXNetError("a failure of the graph's own")

    monkeypatch.setattr(keptgraph._Part, "__call__", fail)
    with pytest.warns(embgrad.EmbgradWarning, match="its graph failed .a failure of the graph's own.*without a trace"):
        found = embgrad.gradients(net, ids, OBJECTIVE, compile=True)
    expect_same(found, expected, 2e-5)


def test_a_net_that_was_never_called() -> None:
    ids = distinct_ids()
    net = TextCNN()
    net.initialize()
    net.embedding.weight.set_data(nd.ones((ROWS, DIM)))
    with pytest.warns(embgrad.EmbgradWarning, match="its parameters have no values yet"):
        found = embgrad.gradients(net, ids, OBJECTIVE, compile=True)
    expect_same(found, plain(net, ids, OBJECTIVE), 2e-5)
    expect_same(compiled(net, ids, OBJECTIVE), found, 2e-5)


def test_operators_that_come_in_by_another_way_are_seen() -> None:
    """A symbol that is loaded from JSON is not made by an operator's function."""
    symbol = mx.sym.LeakyReLU(mx.sym.var("x"), act_type="selu")

    class Loaded(HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(ROWS, DIM)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            rows = self.embedding(x)
            if F is nd:
                return F.LeakyReLU(rows, act_type="selu").sum(axis=1)
            made = copy.copy(symbol)
            made._compose(x=rows)
            return F.sum(made, axis=1)

    ids = distinct_ids()
    net = built(Loaded, ids, "float64")
    with pytest.warns(embgrad.EmbgradWarning, match="in a way that embgrad does not see"):
        embgrad.gradients(net, ids, embgrad.Sum(), compile=True)


def test_every_operator_that_is_cured_has_its_place_in_graphs() -> None:
    """A cure that is added for operators one by one must be thought of here."""
    from embgrad_gluon.cures import Cures

    known = {*tracing.NOT_IN_GRAPHS, *tracing.NORMS, "LeakyReLU", "Pooling", "RNN", "max", "min"}
    for_parameters_alone = {"Deconvolution", "FullyConnected"}
    left = set(Cures(False).handlers()) - known - for_parameters_alone
    assert all(mx.base._is_np_op(name) for name in left)  # no net of mx.np is a graph
