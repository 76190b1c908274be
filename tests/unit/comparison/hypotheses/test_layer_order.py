"""Layers that the port runs in another order, again, or not at all are found where its residual is no point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.layer_order import LayerOrder
from embgrad.comparison.hypotheses.site import Before, Site
from embgrad.comparison.recording import HeldWeight, Recording, Tensor
from embgrad.comparison.sites import Pair
from embgrad.comparison.weights import match_weights
from tests.unit.comparison.hypotheses.modules import best
from tests.unit.comparison.recorded import IDS, REAL, recording, tensor

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(*IDS.shape, 6))
MATRICES = [RANDOM.normal(size=(6, 6)) for _ in range(3)]
GAIN = np.linspace(0.5, 1.5, 6)


def norm(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * GAIN)


def recorded(tensors: Sequence[Tensor], names: str) -> Recording:
    weights = [
        HeldWeight(
            f"{names.format(layer)}.W", names.format(layer), matrix.shape, lambda matrix=matrix: matrix, layer=layer
        )
        for layer, matrix in enumerate(MATRICES)
    ]
    return replace(recording(tensors), weights=tuple(weights))


def both(order: Sequence[int]) -> tuple[Recording, Recording, np.ndarray, np.ndarray]:
    """Return a's pass of three layers x + norm(x) W, b's in an order, which has no points but its products, and both outputs."""
    x, a, added = X, [], []
    for layer, matrix in enumerate(MATRICES):
        product = norm(x) @ matrix
        a += [
            tensor(f"layers.{layer}:input#0", x, 10.0 * layer),
            tensor(f"layers.{layer}.mix:input#0", norm(x), 10.0 * layer + 1),
            tensor(f"layers.{layer}.mix:output#0", product, 10.0 * layer + 2),
            tensor(f"layers.{layer}:output#0", x + product, 10.0 * layer + 3, [f"layer.{layer}"]),
        ]
        added.append(product)
        x = x + product
    y, b, calls = X, [], [0, 0, 0]
    for time, layer in enumerate(order):
        product = norm(y) @ MATRICES[layer]
        b.append(tensor(f"mix_{layer}:output#{calls[layer]}", product, float(time)))
        calls[layer] += 1
        y = y + (added[layer] if calls[layer] == 1 else product)  # a first call is given the values of a
    return recorded(a, "layers.{}.mix"), recorded(b, "mix_{}"), x, y


def site(order: Sequence[int]) -> Site:
    """Return the site behind all layers."""
    a, b, x, y = both(order)
    pairs = [Pair(f"layers.{n}.mix", f"layers.{n}.mix:output#0", f"mix_{n}:output#0") for n in sorted(set(order))]
    end = tensor("end:input#0", x, 99.0)
    a = replace(a, tensors={**a.tensors, end.key: end})
    return Site(
        pair=Pair("end", end.key, end.key),
        layer=None,
        a=x,
        b=y,
        real=REAL,
        ids=IDS,
        before=[
            Before(key.partition(":")[0], it.values) for key, it in a.tensors.items() if key.endswith("mix:output#0")
        ],
        recordings=(a, b),
        matching=match_weights(a.weights, b.weights),
        pairs=pairs,
    )


ORDERS = {
    (0, 1, 1, 2): ("layer-order", "the layers run in the order 0–2 in a and 0–1, 1–2 in b"),
    (0, 1, 2, 2, 2): ("layer-order", "the layers run in the order 0–2 in a and 0–2, 2, 2 in b"),
    (1, 2): ("missing-part", "b does not run the layer 0"),
    (1,): ("missing-part", "b does not run the layers 0, 2"),
    (0, 2, 2): ("layer-order", "the layers run in the order 0–2 in a and 0, 2, 2 in b"),
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_is_named(order: tuple[int, ...]) -> None:
    at = site(order)
    (found,) = LayerOrder().explain(at)
    assert (found.cause, found.text) == ORDERS[order]
    assert found.compute is not None
    assert at.off(found.predicted) < 1e-12


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_an_order_that_changes_nothing_behind_the_layers_does_not_explain_it(order: tuple[int, ...]) -> None:
    at = site(order)  # a's values are put in at each layer
    assert all(
        np.array_equal(found.predicted, at.a) or at.off(found.predicted) < 1e-12 for found in LayerOrder().explain(at)
    )
    assert bool(LayerOrder().explain(site(order))) == (order != (0, 1, 2))


def test_within_layers_the_residual_before_them_is_another() -> None:
    at = site((2, 0, 1))
    a, _, _, _ = both((0, 1, 2))
    added = [a.tensors[f"layers.{layer}.mix:output#0"].values for layer in range(3)]
    for layer, whole, change in ((0, X, added[2]), (2, X + added[0] + added[1], -added[0] - added[1])):
        inside = replace(
            at, layer=layer, a=whole, b=whole + change, pair=replace(at.pair, a=f"layers.{layer}:input#0"), memory={}
        )
        found = LayerOrder().explain(inside)
        assert min(inside.off(it.predicted) for it in found) < 1e-12
        assert all(it.compute is None for it in found), "what a's layers add follows from another residual in b"


def test_a_layer_of_another_stack_is_not_explained() -> None:
    assert LayerOrder().explain(replace(site((0, 2)), layer=3)) == []


def test_a_norm_of_the_residual_is_computed_from_it() -> None:
    at = site((0, 1))
    weights = (*at.recordings[0].weights, HeldWeight("end.gain", "end", GAIN.shape, lambda: GAIN))
    a = replace(at.recordings[0], weights=weights)
    end = tensor("end:output#0", norm(at.a), 100.0)
    a = replace(a, tensors={**a.tensors, end.key: end})
    before = [Before("end:input", at.a), *at.before]
    behind = replace(
        at,
        pair=Pair("end", end.key, end.key),
        a=norm(at.a),
        b=norm(at.b),
        recordings=(a, at.recordings[1]),
        before=before,
        memory={},
    )
    found = best(behind, LayerOrder().explain(behind))
    assert (found.cause, found.inputs) == ("missing-part", ("end:input",))


def test_layers_whose_kinds_of_modules_are_called_in_several_orders_are_not_ordered() -> None:
    at = site((0, 2))
    a, b = at.recordings
    further = [
        HeldWeight(f"{name}.W", name, (6, 5), lambda layer=layer: MATRICES[layer][:, :5] + 1, layer=layer)
        for layer, name in enumerate(("layers.0.up", "layers.1.up"))
    ]
    ends = [tensor(f"layers.{layer}.up:output#0", X[..., :5], 10.0 * layer + 2.5) for layer in (0, 1)]
    turned = [replace(it, time=-it.time) for it in ends]
    sides = [
        replace(side, weights=(*side.weights, *further), tensors={**side.tensors, **{it.key: it for it in added}})
        for side, added in ((a, ends), (b, turned))
    ]
    matching = match_weights(sides[0].weights, sides[1].weights)
    assert LayerOrder().explain(replace(at, recordings=(sides[0], sides[1]), matching=matching, memory={})) == []


def test_what_two_modules_return_is_what_a_layer_adds() -> None:
    at = site((0, 1, 1, 2))
    a, b = at.recordings
    half = {key: replace(it, values=0.5 * it.values) for key, it in a.tensors.items() if key.endswith("mix:output#0")}
    halves = {key: replace(it, values=0.5 * it.values) for key, it in b.tensors.items()}

    def other(tensors: dict[str, Tensor], path: str, its: str) -> dict[str, Tensor]:
        renamed = {key.replace(path, its): replace(it, path=it.path.replace(path, its)) for key, it in tensors.items()}
        return {key: replace(it, key=key, time=it.time + 0.5) for key, it in renamed.items()}

    further = [
        HeldWeight(f"layers.{n}.down.W", f"layers.{n}.down", (6, 6), lambda n=n: MATRICES[n] + 9, layer=n)
        for n in range(3)
    ]
    theirs = [HeldWeight(f"down_{n}.W", f"down_{n}", (6, 6), lambda n=n: MATRICES[n] + 9, layer=n) for n in range(3)]
    first = replace(a, tensors={**a.tensors, **half, **other(half, "mix", "down")}, weights=(*a.weights, *further))
    second = replace(b, tensors={**halves, **other(halves, "mix", "down")}, weights=(*b.weights, *theirs))
    pairs = [*at.pairs, *(Pair(f"d{n}", f"layers.{n}.down:output#0", f"down_{n}:output#0") for n in range(3))]
    matching = match_weights(first.weights, second.weights)
    both_sides = replace(at, recordings=(first, second), matching=matching, pairs=pairs, memory={})
    (found,) = LayerOrder().explain(both_sides)
    assert at.off(found.predicted) < 1e-12


def test_what_a_layer_adds_must_be_known() -> None:
    at = site((0, 2))
    a = at.recordings[0]
    without = replace(a, tensors={key: it for key, it in a.tensors.items() if key != "layers.1:input#0"})
    assert LayerOrder().explain(replace(at, recordings=(without, at.recordings[1]), memory={})) == []
    again = site((0, 1, 1, 2))
    other = np.array(again.recordings[0].tensors["layers.1:output#0"].values) * 2
    changed = replace(again.recordings[0].tensors["layers.1:output#0"], values=other)
    scaled = replace(again.recordings[0], tensors={**again.recordings[0].tensors, changed.key: changed})
    assert LayerOrder().explain(replace(again, recordings=(scaled, again.recordings[1]), memory={})) == []
