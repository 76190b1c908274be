"""The gradient of large layer norms, which embgrad computes, against MXNet's own and finite differences in float64."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import normalising, run

import embgrad
from tests.frameworks.gluon.helpers import mx, randomise

nn = mx.gluon.nn

EXAMPLES, POSITIONS, DIM = 8, 64, 40
IDS = np.random.default_rng(0).permutation(EXAMPLES * POSITIONS).reshape(EXAMPLES, POSITIONS)


class Normed(mx.gluon.HybridBlock):
    """Embedding → a dense layer → a function of F, the rows, a scale and a shift."""

    def __init__(self, function: Callable[..., Any] | None = None, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(IDS.size, DIM)
        self.dense = nn.Dense(DIM, flatten=False, in_units=DIM)
        self.scale = self.params.get("scale", shape=(DIM,))
        self.shift = self.params.get("shift", shape=(DIM,))
        self._function = function or (lambda F, *given: F.LayerNorm(*given, **{"eps": 1e-5, **options}))

    def hybrid_forward(self, F: Any, x: Any, scale: Any, shift: Any) -> Any:
        return self._function(F, self.dense(self.embedding(x)), scale, shift)


def built(function: Callable[..., Any] | None = None, dtype: str = "float32", **options: Any) -> Any:
    net = Normed(function, **options)
    net.initialize()
    net.cast(dtype)
    randomise(net)
    return net


def objective(dtype: str = "float32", seed: int = 1) -> Any:
    """Return an objective with a fixed weight for each output."""
    weights = np.random.default_rng(seed).normal(size=(EXAMPLES, POSITIONS, DIM))
    return lambda returned: (returned * mx.nd.array(weights, dtype=dtype)).sum(axis=(1, 2))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The shapes of the layer norms whose gradient embgrad computed."""
    made, made_before = [], normalising._function()

    class Counted(made_before):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(given[0].shape)

    monkeypatch.setattr(normalising, "_function", lambda: Counted)
    yield made
    gc.collect()


@pytest.fixture
def mxnets_own(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that calls `gradients` with MXNet's own gradient of layer norms."""

    def gradients(*given: Any, **options: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(run, "_faster_handlers", lambda *_: {})
            return embgrad.gradients(*given, **options)

    return gradients


def slope_along(net: Any, seed: int, of: Any) -> tuple[np.ndarray, float]:
    """Return a direction for each id's row, and the objective's derivative along it by central differences."""
    table = net.embedding.weight
    before, step = table.data().asnumpy(), 1e-6
    direction = np.random.default_rng(seed).normal(size=before.shape)
    values = []
    for sign in (1, -1):
        table.set_data(mx.nd.array(before + sign * step * direction, dtype="float64"))
        values.append(float(of(net(mx.nd.array(IDS, dtype="float64"))).sum().asscalar()))
    table.set_data(mx.nd.array(before, dtype="float64"))
    return direction, (values[0] - values[1]) / (2 * step)


def expect_slopes(net: Any, of: Any) -> None:
    values = embgrad.gradients(net, IDS, of).values
    for seed in range(4):
        direction, slope = slope_along(net, seed, of)
        assert float((values * direction[IDS]).sum()) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"axis": 2}, {"eps": 1e-12}, {"eps": 3.0}, {"output_mean_var": False}], ids=str
)
def test_layer_norms_gradient_agrees_with_finite_differences(options: dict[str, Any], computed: list[Any]) -> None:
    expect_slopes(built(dtype="float64", **options), objective("float64"))
    assert computed == [(EXAMPLES, POSITIONS, DIM)]


def test_the_forward_pass_keeps_its_bits(computed: list[Any]) -> None:
    net, kept = built(), []
    embgrad.gradients(net, IDS, lambda returned: kept.append(returned.asnumpy()) or objective()(returned))
    assert len(computed) == 1
    assert kept[0].tobytes() == net(mx.nd.array(IDS)).asnumpy().tobytes()


def computed_scale(F: Any, rows: Any, scale: Any, shift: Any) -> Any:
    """A layer norm whose scale depends on the rows, as in conditional layer norm."""
    return F.LayerNorm(rows, F.mean(rows, axis=(0, 1)) + scale, shift, eps=1e-5)


def over_positions(F: Any, rows: Any, scale: Any, shift: Any) -> Any:
    turned = F.transpose(rows, axes=(0, 2, 1))
    return F.transpose(F.LayerNorm(turned, scale, shift, axis=1, eps=1e-5), axes=(0, 2, 1))


def among_many(F: Any, rows: Any, scale: Any, shift: Any) -> Any:
    """Layer norms of an array that has many other uses, so that many gradients are added up."""
    found = F.LayerNorm(rows, scale, shift, eps=1e-5)
    for number in range(12):
        found = found + F.sin(rows * (number + 1))
    return F.LayerNorm(found, scale, shift, eps=1e-5) + rows


def test_gradients_through_several_paths_add_up(computed: list[Any]) -> None:
    expect_slopes(built(among_many, "float64"), objective("float64"))
    assert len(computed) == 2


@pytest.mark.parametrize("function", [computed_scale, over_positions], ids=lambda one: one.__name__)
def test_layer_norms_of_a_computed_scale_are_left_to_mxnet(function: Callable[..., Any], computed: list[Any]) -> None:
    expect_slopes(built(function, "float64"), objective("float64"))
    assert not computed


def test_a_norm_of_the_lookup_itself_is_left_to_mxnet(computed: list[Any]) -> None:
    class First(Normed):
        def hybrid_forward(self, F: Any, x: Any, scale: Any, shift: Any) -> Any:
            return F.LayerNorm(self.embedding(x), scale, shift, eps=1e-5)

    net = First()
    net.initialize()
    net.cast("float64")
    randomise(net)
    expect_slopes(net, objective("float64"))
    assert not computed


def test_several_pullbacks_and_edits(computed: list[Any], mxnets_own: Callable[..., Any]) -> None:
    net = built()
    twice = {name: {name: lambda gradient: gradient * 2} for name in ("word", "dense")}
    for options in ({"split": True}, {"edit": twice["word"]}, {"edit": twice["dense"]}, {"at": ["word", "dense"]}):
        ours, own = (one(net, IDS, objective(), **options) for one in (embgrad.gradients, mxnets_own))
        pairs = zip(ours.values(), own.values(), strict=True) if isinstance(ours, dict) else [(ours, own)]
        for a, b in pairs:
            np.testing.assert_allclose(a.values, b.values, rtol=0, atol=2e-6 * abs(b.values).max())
    assert len(computed) == 3  # all but the one where the graph is cut right before the layer norm


def test_layer_norms_hold_no_arrays_after_a_call() -> None:
    net = built()
    gc.collect()
    gc.disable()
    try:
        embgrad.gradients(net, IDS, objective())
        left = [one for one in gc.get_objects() if type(one) is normalising._function()]
        assert not [one for one in left if one.kept]
    finally:
        gc.enable()


def by_grad(net: Any, value: Any) -> Any:
    return mx.autograd.grad([value], [net.dense.weight.data()], retain_graph=True, train_mode=False)[0]


def by_backward(net: Any, value: Any) -> Any:
    value.backward(retain_graph=True, train_mode=False)
    return net.dense.weight.grad()


@pytest.mark.parametrize("inside", [False, True], ids=["objective", "model"])
@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("own", [by_grad, by_backward])
def test_a_backward_pass_inside_the_call_does_not_disturb_layer_norms(
    own: Callable[..., Any], is_read: bool, inside: bool, computed: list[Any]
) -> None:
    """The result is read, so that it ends before embgrad's begins, or not."""

    def weighed(net: Any, given: Any) -> Any:
        gradient = own(net, given.sum())
        return given * float((gradient**2).mean().asscalar()) if is_read else given

    class Weighed(Normed):
        def forward(self, *given: Any) -> Any:
            found = super().forward(*given)
            return weighed(self, found) if inside else found

    net = Weighed()
    net.initialize()
    randomise(net)

    def of(returned: Any) -> Any:
        value = mx.nd.sin(returned).sum(axis=(1, 2))
        return value if inside else weighed(net, value)

    table = net.embedding.weight
    with mx.autograd.record(train_mode=False):
        value = of(net(mx.nd.array(IDS))).sum()
    (expected,) = mx.autograd.grad([value], [table.data()], train_mode=False)
    del computed[:]
    found = embgrad.gradients(net, IDS, of).table().to_dense()
    assert len(computed) == 1
    np.testing.assert_allclose(found, expected.asnumpy(), rtol=0, atol=5e-6 * abs(found).max())
