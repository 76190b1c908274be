"""Kept graphs: of `compile=True`, of hybridised nets and of SymbolBlocks, against the same net operator by operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import graphs, tracing

import embgrad
from tests.gluon.exporting import exported, norm_and_dropout
from tests.gluon.graphnets import (
    OBJECTIVE,
    Layered,
    Positions,
    compiled,
    expect_same,
    of_positions,
    plain,
    tolerance_of,
)
from tests.gluon.helpers import DIM, ROWS, built, differences, distinct_ids, mx, relative
from tests.gluon.test_bert import BATCH, loaded
from tests.gluon.test_models import Bare, Recurrent, Siamese, TextCNN, bag, sparse

nn, rnn, autograd, nd = mx.gluon.nn, mx.gluon.rnn, mx.autograd, mx.nd
HybridBlock, Block = mx.gluon.HybridBlock, mx.gluon.Block

# Gluon says so whenever it imports a symbol whose inputs' dtypes are open.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")


class Tied(HybridBlock):
    """The table is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.head = nn.Dense(ROWS, use_bias=False, in_units=DIM, params=self.embedding.params)
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.top(F.log_softmax(self.head(F.mean(F.tanh(self.embedding(x)), axis=1))))


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
    for batch, match in (
        (ids + 5, "outside the table 'words'|outside the table"),
        (longer, r"9 tokens, and the model takes 7"),
    ):
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
