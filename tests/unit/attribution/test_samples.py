"""Methods by samples: closed forms with baselines that are not zero, pieces of any size, defaults, seeds and nearest rows."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.attribution import discretized
from embgrad.attribution.discretized import NearestRows, paths_of
from embgrad.attribution.quadrature import RULES, nodes_and_weights
from embgrad.attribution.shapley import sample_coalitions
from embgrad.methods import (
    DiscretizedIntegratedGradients,
    GradientShap,
    InputXGradient,
    IntegratedGradients,
    KernelShap,
    Lime,
    Occlusion,
    Saliency,
    SequentialIntegratedGradients,
    SmoothGrad,
)
from tests.unit.attribution.models import BATCH, DIM, IDS, MASK, HalfSquare, Tokenizer, curved, linear
from tests.unit.refusals import refused

#: Few steps are enough to show that pieces do not matter.
pytestmark = pytest.mark.filterwarnings("ignore:with . steps:embgrad.EmbgradWarning")

BASELINES = np.random.default_rng(9).normal(size=(3, 4, DIM))


def slopes(model: Any) -> np.ndarray:
    """Return the gradient of the first logit at each position."""
    return np.asarray(MASK[..., None] * model["W"].value[:, 0])


@pytest.mark.parametrize("batch_size", [None, 1, 4, 5])
@pytest.mark.parametrize("samples", [1, 5])
def test_gradient_shap_of_a_linear_model_is_the_difference_from_its_baseline(
    samples: int, batch_size: int | None
) -> None:
    model = linear()
    method = GradientShap(BASELINES[:1], samples=samples)
    found = embgrad.attribute(model, BATCH, embgrad.Logit(0), method, batch_size=batch_size)
    rows = model["E"].value[IDS]
    np.testing.assert_allclose(found.values, (rows - BASELINES[:1]) * slopes(model), atol=1e-12)
    before = (BASELINES[0] * slopes(model)).sum((1, 2))
    np.testing.assert_allclose(found.baseline_objective, before)
    np.testing.assert_allclose(found.delta, 0, atol=1e-12)
    several = embgrad.attribute(model, BATCH, embgrad.Logit(0), GradientShap(BASELINES, samples=600))
    np.testing.assert_allclose(several.baseline_objective, (BASELINES[:, None] * slopes(model)).sum((2, 3)).mean(0))
    expected = (rows - BASELINES.mean(0)) * slopes(model)
    np.testing.assert_allclose(several.values, expected, atol=0.2 * np.abs(expected).max())


def test_gradient_shap_takes_gradients_between_the_baseline_and_the_input() -> None:
    model = linear()
    method = GradientShap(BASELINES[:1], samples=400, seed=1)
    found = embgrad.attribute(model, BATCH, HalfSquare(), method)
    rows, weights = model["E"].value[IDS], slopes(model)
    ends = (BASELINES[0] * weights).sum((1, 2)), (rows * weights).sum((1, 2))
    assert found.values is not None
    share = found.values.sum((1, 2)) / ((rows - BASELINES[0]) * weights).sum((1, 2))
    np.testing.assert_allclose(found.values, (rows - BASELINES[0]) * weights * share[:, None, None], atol=1e-12)
    np.testing.assert_allclose(share, (ends[0] + ends[1]) / 2, atol=0.1 * np.abs(ends[1] - ends[0]).max())


@pytest.mark.parametrize(
    "method",
    [
        SmoothGrad(samples=5, of=InputXGradient()),
        SmoothGrad(samples=5, of=Saliency(), reduce="square"),
        SmoothGrad(samples=5, of=IntegratedGradients(steps=3), reduce="variance"),
        GradientShap(BASELINES, samples=5, sigma=0.3),
        IntegratedGradients(steps=7),
        SequentialIntegratedGradients(steps=3, baseline="zero"),
        Occlusion(replacement="zero"),
        Lime(samples=30),
        KernelShap(samples=30),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_method_gives_the_same_in_pieces_of_any_size(method: Any) -> None:
    options = {"tokenizer": Tokenizer()}
    whole = embgrad.attribute(curved(), BATCH, embgrad.Logit(0), method, **options)
    for size in (1, 2, 3, 4, 5, 50):
        piece = embgrad.attribute(curved(), BATCH, embgrad.Logit(0), method, batch_size=size, **options)
        np.testing.assert_allclose(piece.scores, whole.scores, atol=1e-10)


def test_noise_is_of_the_size_that_is_asked_for() -> None:
    method = SmoothGrad(samples=4000, sigma=0.5, of=InputXGradient(), reduce="variance", seed=3)
    model = linear()
    found = embgrad.attribute(model, BATCH, embgrad.Logit(0), method)
    assert found.values is not None
    expected = (0.5 * slopes(model)) ** 2
    np.testing.assert_allclose(found.values, expected, rtol=0.15, atol=1e-12)


DEFAULTS: dict[Any, dict[str, Any]] = {
    Saliency: {}, InputXGradient: {},
    IntegratedGradients: {"steps": 50, "baseline": "auto", "most": None, "rule": "gausslegendre", "tolerance": None,
        "keep_special": False},
    SequentialIntegratedGradients: {"steps": 50, "baseline": "mask"},
    SmoothGrad: {"samples": 25, "sigma": 0.1, "seed": 0, "reduce": "mean", "of": Saliency()},
    GradientShap: {"baselines": ("auto",), "samples": 25, "sigma": 0.0, "seed": 0, "keep_special": False},
    Occlusion: {"replacement": "mask", "keep_special": False},
}  # fmt: skip


@pytest.mark.parametrize("method", DEFAULTS, ids=lambda method: method.__name__)
def test_the_defaults_of_a_method_are_those_that_are_documented(method: Any) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(method)}
    assert {name: defaults[name] for name in DEFAULTS[method]} == DEFAULTS[method]


@pytest.mark.parametrize(("method", "least"), [(SmoothGrad, 1), (GradientShap, 1), (Lime, 2), (KernelShap, 4)])
def test_seeds_and_samples_that_are_refused(method: Any, least: int) -> None:
    method(seed=0, samples=least)
    with refused(embgrad.EmbgradError, "seed is -1: expected a whole number of at least 0"):
        method(seed=-1)
    with refused(embgrad.EmbgradError, f"samples is {least - 1}: expected a whole number of at least {least}"):
        method(samples=least - 1)


@pytest.mark.parametrize("rule", RULES)
def test_the_nodes_of_a_rule_are_read_only_and_exact_for_a_line(rule: str) -> None:
    nodes, weights = nodes_and_weights(rule, 6)
    assert not nodes.flags.writeable
    assert not weights.flags.writeable
    assert (np.diff(nodes) > 0).all()
    assert nodes.min() >= 0
    assert nodes.max() <= 1
    assert weights.sum() == pytest.approx(1)
    exact = {"riemann_left": 0.5 - 1 / 12, "riemann_right": 0.5 + 1 / 12}
    assert weights @ nodes == pytest.approx(exact.get(rule, 0.5))


@pytest.mark.parametrize("numbers", [1, 24, 36, 2**23])
def test_the_nearest_rows_are_those_of_all_distances_in_any_pieces(
    monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    monkeypatch.setattr(discretized, "MOST_NUMBERS", numbers)
    table = np.random.default_rng(2).normal(size=(12, 3))
    table[7] = table[4]
    nearest = NearestRows(table, 5)
    nearest.find([9, 4, 0, 4, 11])
    for id_ in (0, 4, 9, 11, 3):
        distances = ((table - table[id_]) ** 2).sum(-1)
        others = np.delete(np.arange(12), id_)
        np.testing.assert_array_equal(nearest.of(id_), others[np.lexsort((others, distances[others]))][:5])
    assert len(NearestRows(table, 50).of(0)) == 11
    assert len(NearestRows(table[:1], 5).of(0)) == 0


def test_a_path_takes_the_row_with_the_fewest_dimensions_to_change_or_the_least_to_change() -> None:
    table = np.array([[0.0, 0, 0], [-5, 1, 1], [-0.1, -0.1, 2], [3, 3, 3]])
    for strategy, expected in (("maxcount", [1, 1, 1]), ("greedy", [1, 1, 2])):
        (path,) = paths_of(NearestRows(table, 3), np.array([0]), 3, 3, strategy)
        np.testing.assert_allclose(path[1], expected)


def test_discretized_paths_are_made_of_rows_of_the_table_whatever_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    method = DiscretizedIntegratedGradients(steps=4)
    found = embgrad.attribute(curved(), BATCH, embgrad.Logit(0), method, tokenizer=Tokenizer())
    monkeypatch.setattr(discretized, "MOST_NUMBERS", 1)
    again = embgrad.attribute(curved(), BATCH, embgrad.Logit(0), method, tokenizer=Tokenizer())
    np.testing.assert_allclose(again.scores, found.scores)


def test_coalitions_are_drawn_in_pairs_after_the_empty_and_the_whole_one() -> None:
    drawn = sample_coalitions(6, 40, np.random.default_rng(0))
    assert drawn.shape == (40, 6)
    assert (drawn[0].sum(), drawn[1].sum()) == (0, 6)
    np.testing.assert_array_equal(drawn[2::2], ~drawn[3::2])
    sizes = drawn[2:].sum(1)
    assert (sizes.min(), sizes.max()) == (1, 5)


def test_the_defaults_of_the_calls() -> None:
    for call, expected in (
        (embgrad.attribute, {"at": "word", "training": False, "batch_size": None}),
        (embgrad.faithfulness, {"remove": "delete", "training": False, "keep_special": True}),
        (embgrad.metrics.infidelity, {"remove": "delete", "samples": 100, "seed": 0, "normalize": False}),
    ):
        defaults = {name: parameter.default for name, parameter in inspect.signature(call).parameters.items()}
        assert {name: defaults[name] for name in expected} == expected
