"""`compile=True`: what cannot be traced runs as without, and says why."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import keptgraph, tracing

import embgrad
from tests.gluon.graphnets import OBJECTIVE, Layered, OnArrays, compiled, expect_same, gated, plain
from tests.gluon.helpers import DIM, ROWS, built, distinct_ids, mx, relative
from tests.gluon.test_models import Bare, TextCNN

nn, autograd, nd = mx.gluon.nn, mx.autograd, mx.nd
HybridBlock, Block = mx.gluon.HybridBlock, mx.gluon.Block

# Gluon says so whenever it imports a symbol whose inputs' dtypes are open.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")


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
