"""Infidelity and sensitivity on models in NumPy, against their definitions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.unit.attribution.models import DIM, curved, linear
from tests.unit.attribution.test_faithfulness import BATCH, IDS, LOGIT, MASK, REMOVABLE, scores, without

SETS = (np.random.default_rng(0).random((6, *IDS.shape)) < 0.5) & REMOVABLE
NOISE = np.random.default_rng(1).uniform(-0.1, 0.1, (4, *IDS.shape, DIM)) * MASK[..., None]


@pytest.mark.parametrize("remove", ["delete", "zero"])
def test_an_attribution_that_adds_up_has_no_infidelity(remove: str) -> None:
    attribution = embgrad.attribute(linear(), BATCH, LOGIT, "input_x_gradient")
    found = embgrad.metrics.infidelity(
        linear(), BATCH, LOGIT, {"exact": attribution, "half": attribution.scores / 2}, remove=remove
    )
    np.testing.assert_allclose(found["exact"], 0, atol=1e-24)
    assert (found["half"] > 0.01).all()
    scaled = embgrad.metrics.infidelity(linear(), BATCH, LOGIT, attribution.scores / 2, remove=remove, normalize=True)
    np.testing.assert_allclose(scaled, 0, atol=1e-24)


def test_infidelity_is_the_mean_square_of_the_error() -> None:
    found = embgrad.metrics.infidelity(curved(), BATCH, LOGIT, scores(), removed=SETS)
    scaled = embgrad.metrics.infidelity(curved(), BATCH, LOGIT, scores(), removed=SETS, normalize=True)
    for example in (0, 1):
        whole = without(np.zeros(8, bool), "delete", example)
        changes = np.array([whole - without(own, "delete", example) for own in SETS[:, example]])
        sums = (SETS[:, example] * scores()[example]).sum(1)
        assert found[example] == pytest.approx(((sums - changes) ** 2).mean())
        best = np.linalg.lstsq(sums[:, None], changes, rcond=None)[0][0]
        assert scaled[example] == pytest.approx(((best * sums - changes) ** 2).mean())


def test_scores_of_zero_can_be_normalized() -> None:
    found = embgrad.metrics.infidelity(curved(), BATCH, LOGIT, 0 * scores(), removed=SETS, normalize=True)
    np.testing.assert_array_equal(found, embgrad.metrics.infidelity(curved(), BATCH, LOGIT, 0 * scores(), removed=SETS))


def test_sets_depend_on_the_seed_and_the_example_alone() -> None:
    both = embgrad.metrics.infidelity(curved(), BATCH, LOGIT, scores(), samples=20, seed=3)
    alone = embgrad.metrics.infidelity(curved(), BATCH[1:], LOGIT, scores()[1:], samples=20, seed=3, batch_size=1)
    np.testing.assert_allclose(alone, both[1:], rtol=1e-12)
    assert (embgrad.metrics.infidelity(curved(), BATCH, LOGIT, scores(), samples=20, seed=4) != both).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples is 0: expected a whole number of at least 1"),
        ({"seed": -1}, "seed is -1: expected a whole number of at least 0"),
        ({"normalize": None}, "normalize is None: expected True or False"),
        ({"removed": SETS.astype(int)}, "of shape (6, 2, 8): expected bool, (sample, example, position), with (2, 8) last"),
        ({"removed": SETS[0]}, "of shape (2, 8): expected bool"),
        ({"removed": [[True], [True, False]]}, "removed is [[True], [True, False]], of shape (): expected bool"),
        ({"removed": ~SETS}, "removed holds example 0, position 0 in sample 0, which cannot be removed"),
    ],
)  # fmt: skip
def test_an_option_of_infidelity_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
        embgrad.metrics.infidelity(curved(), BATCH, LOGIT, scores(), **options)


METHODS = {
    "saliency": embgrad.methods.Saliency(),
    "input_x_gradient": embgrad.methods.InputXGradient(),
    "occlusion": embgrad.methods.Occlusion("zero"),
}


@pytest.mark.parametrize("name", METHODS)
def test_sensitivity_is_the_largest_relative_change_under_the_noise(name: str) -> None:
    model = curved()
    inputs = embgrad.gradients(model, BATCH, LOGIT).activations

    def attribution(values: np.ndarray) -> np.ndarray:
        result = embgrad.gradients(model, BATCH, LOGIT, override={"word": values})
        if name != "occlusion":
            return result.values * (1 if name == "saliency" else values)
        changes = np.zeros(IDS.shape)
        for position in range(8):
            cut = np.where(np.arange(8)[:, None] == position, 0, values)
            changes[:, position] = result.objective - embgrad.evaluate(model, BATCH, LOGIT, override={"word": cut})
        return changes * MASK

    method = METHODS[name]
    found = embgrad.metrics.sensitivity(model, BATCH, LOGIT, method, noise=NOISE)
    own = attribution(inputs)
    for example in (0, 1):
        changes = [np.linalg.norm(attribution(inputs + noise)[example] - own[example]) for noise in NOISE]
        assert found[example] == pytest.approx(max(changes) / np.linalg.norm(own[example]), rel=1e-10)


def test_sensitivity_moves_the_end_of_a_path_alone() -> None:
    """Integrated gradients of a linear model are the weights times the distance from the baseline."""
    model, baseline = linear(), np.arange(DIM) / 7
    found = embgrad.metrics.sensitivity(
        model, BATCH, LOGIT, embgrad.methods.IntegratedGradients(3, baseline), noise=NOISE
    )
    distance = (embgrad.gradients(model, BATCH, LOGIT).activations - baseline) * MASK[..., None]
    weights = model["W"].value[:, 0]
    moves = np.linalg.norm((NOISE * weights).reshape(4, 2, -1), axis=-1).max(0)
    np.testing.assert_allclose(found, moves / np.linalg.norm((distance * weights).reshape(2, -1), axis=-1), rtol=1e-10)


def test_the_sensitivity_of_a_constant_gradient_is_zero_and_grows_with_the_radius() -> None:
    np.testing.assert_array_equal(embgrad.metrics.sensitivity(linear(), BATCH, LOGIT, embgrad.methods.Saliency()), 0)
    small, large = (
        embgrad.metrics.sensitivity(curved(), BATCH, LOGIT, embgrad.methods.Saliency(), radius=radius)
        for radius in (0.001, 0.01)
    )
    assert 10 * small == pytest.approx(large, rel=0.1)
    assert (small > 0).all()
    np.testing.assert_array_equal(
        embgrad.metrics.sensitivity(curved(), BATCH, LOGIT, embgrad.methods.Saliency(), radius=0), 0
    )


def test_where_an_attribution_is_zero_its_change_is_not_divided() -> None:
    model = linear()
    zeros = {"E": np.zeros((12, DIM)), "W": model["W"].value}
    found = embgrad.metrics.sensitivity(
        type(model)(model.forward, zeros), BATCH, LOGIT, embgrad.methods.IntegratedGradients(3), noise=NOISE
    )
    np.testing.assert_allclose(
        found, np.linalg.norm((NOISE * zeros["W"][:, 0]).reshape(4, 2, -1), axis=-1).max(0), rtol=1e-10
    )


def test_noise_depends_on_the_seed_and_the_example_alone() -> None:
    methods = {"smooth": embgrad.methods.SmoothGrad(3), "shap": embgrad.methods.KernelShap(8, baseline=4)}
    both = embgrad.metrics.sensitivity(curved(), BATCH, LOGIT, methods, samples=2, radius=0.2)
    alone = embgrad.metrics.sensitivity(curved(), BATCH[1:], LOGIT, methods, samples=2, radius=0.2, batch_size=3)
    assert list(both) == ["smooth", "shap"]
    listed = embgrad.metrics.sensitivity(
        curved(), BATCH, LOGIT, [embgrad.methods.Saliency(), embgrad.methods.Saliency()], samples=1
    )
    assert list(listed) == ["saliency", "saliency#1"]
    for name in both:
        np.testing.assert_allclose(alone[name], both[name][1:], rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": -1}, "radius is -1: expected a finite number of at least 0"),
        ({"samples": 0}, "samples is 0: expected a whole number of at least 1"),
        ({"seed": 0.5}, "seed is 0.5: expected a whole number of at least 0"),
        ({"noise": NOISE[0]}, "of shape (2, 8, 3): expected finite numbers, (sample, example, position, dim), with (2, 8,"),
        ({"noise": NOISE * np.nan}, "noise is [[[[nan"),
        ({"noise": [[1], [1, 2]]}, "noise is [[1], [1, 2]], of shape (): expected finite numbers"),
        ({"method": "saliency"}, "method is 'saliency': expected the method itself, which is run again"),
        ({"method": {}}, "method is {}: expected one method at least"),
        ({"method": {3: embgrad.methods.Saliency()}}, "method names a method 3: expected names that are text"),
    ],
)  # fmt: skip
def test_an_option_of_sensitivity_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    arguments = {"method": embgrad.methods.Saliency(), **options}
    with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
        embgrad.metrics.sensitivity(curved(), BATCH, LOGIT, **arguments)
