"""A part that the port skips is found where it goes on with a tensor before that part."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses import skipped
from embgrad.comparison.hypotheses.skipped import Skipped
from tests.unit.comparison.hypotheses.modules import REAL, best, module_site
from tests.unit.comparison.recorded import tensor

X, Y, A = np.random.default_rng(0).normal(size=(3, *REAL.shape, 6))


@pytest.fixture(autouse=True)
def layers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every second side have a layer fewer."""
    counts = itertools.cycle((3, 2))
    monkeypatch.setattr(skipped, "count_layers", lambda side: next(counts))


def test_the_port_goes_on_with_the_nearest_tensor() -> None:
    at = module_site(A, Y, {"first": Y, "second": X, "third": Y})
    found = best(at, Skipped().explain(at))
    assert found.cause == "missing-part"
    nearest = next(before.name for before in at.before if np.array_equal(before.values, Y))
    assert found.setting == f"the part between {nearest} and {at.name} is"
    assert found.text == f"b lacks what a computes between {nearest} and {at.name}"
    assert found.inputs == (nearest,)
    assert found.compute is not None
    np.testing.assert_array_equal(found.compute({nearest: Y}.__getitem__), at.b)


def test_a_norm_behind_the_skipped_part_is_applied_to_the_tensor_before_it() -> None:
    gain = np.linspace(0.5, 1.5, 6)
    behind = [values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-5) * gain for values in (A, Y)]
    held, alone = {"norm.gain": gain}, ["norm:input"]
    at = module_site(*behind, {"norm:input": A, "first": Y}, key="norm:output#0", held_a=held, alone=alone)
    found = best(at, Skipped().explain(at))
    assert found.text == "b lacks what a computes between first and norm"


@pytest.mark.parametrize("b", [X * 1.001, A + 0.1 * X, X[..., ::-1]])
def test_a_tensor_that_is_only_near_is_no_explanation(b: np.ndarray) -> None:
    assert Skipped().explain(module_site(A, b, {"first": X})) == []


def test_a_tensor_of_another_shape_is_left_out() -> None:
    assert Skipped().explain(module_site(A, Y, {"wide": np.concatenate([Y, Y], -1)})) == []


def test_a_part_behind_the_vector_of_each_text_may_be_skipped_with_as_many_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(skipped, "count_layers", lambda side: 3)
    for size, is_known in ((1, True), (2, False)):
        pooled = module_site(A[:, :size], Y[:, :size], {"first": Y[:, :size]})
        at = replace(pooled, real=np.ones((2, size), bool))
        assert bool(Skipped().explain(at)) is is_known


@pytest.mark.parametrize(("layers", "is_known"), [((3, 2), True), ((2, 3), True), ((3, 3), False), ((3, 0), False)])
def test_only_models_with_other_numbers_of_layers_skip_a_part(
    layers: tuple[int, int], is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(layers)
    monkeypatch.setattr(skipped, "count_layers", lambda side: next(counts))
    assert bool(Skipped().explain(module_site(A, Y, {"first": Y}))) is is_known


def test_a_port_lacks_no_part_whose_module_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may call the module elsewhere, such as two layers in each other's place."""
    monkeypatch.setattr(skipped, "count_layers", lambda side: 3)
    for held, is_known in ({}, True), ({"up.W": np.arange(36.0).reshape(6, 6)}, False):
        pooled = module_site(A[:, :1], Y[:, :1], {"first": Y[:, :1]}, held_a=held)
        assert bool(Skipped().explain(replace(pooled, real=np.ones((2, 1), bool)))) is is_known


@pytest.mark.parametrize(
    ("used", "is_known"),
    [(["down"], True), (["down.W"], True), (["down", "up"], False), (["down", "up.W"], False), ([], False)],
)
def test_a_port_lacks_a_part_if_it_multiplies_with_its_matrices_nowhere_and_with_others(
    used: list[str], is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skipped, "count_layers", lambda side: 3)
    held = {"up.W": np.arange(36.0).reshape(6, 6), "down.W": np.ones((6, 6)), "norm.gain": np.ones(6)}
    at = module_site(
        A, Y, {"first": Y}, held_a=held, others=[tensor("down:output#0", X, 1.0), tensor("first:output#0", Y, 2.0)]
    )
    a, b = at.recordings
    tensors = {path: tensor(f"{path}:output#0", Y) for path in used}
    found = Skipped().explain(replace(at, recordings=(a, replace(b, tensors=tensors))))
    assert [it.text for it in found] == ["b lacks what a computes between first and up"] * is_known
