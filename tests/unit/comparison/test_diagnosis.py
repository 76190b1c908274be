"""The diagnosis names the cause of a difference, and no cause where there is none."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.comparison.findings import CAUSES
from embgrad.testing.reference import ReferenceModel, lookup
from tests.unit.comparison.test_factors import result

IDS = np.array([[1, 5, 9, 5, 2, 0, 0], [1, 7, 3, 2, 0, 0, 0], [1, 8, 6, 8, 4, 3, 2]])
MASK = (IDS > 0).astype(int)
TOKENS = MASK.sum(1)
DIM = 12
LABELS = np.array([2, 0, 1])
RANDOM = np.random.default_rng(4)
TABLE = RANDOM.normal(size=(20, DIM))
HEAD = RANDOM.normal(size=(DIM, 5))

pytestmark = pytest.mark.filterwarnings("ignore:the model cannot take the mask")


def classifier(weights: dict[str, np.ndarray] | None = None) -> ReferenceModel:
    def forward(model: Any, input_ids: Any, attention_mask: Any) -> Any:
        rows = lookup(model["E"], input_ids)
        return (rows * attention_mask[:, :, None]).sum(1).tanh() @ model["W"]

    return ReferenceModel(forward, {"E": TABLE, "W": HEAD, **(weights or {})})


BATCH = embgrad.TokenBatch(IDS, MASK)
OBJECTIVE = embgrad.CrossEntropy(LABELS)


def single() -> embgrad.results.EmbeddingGradients:
    result = embgrad.gradients(classifier(), BATCH, OBJECTIVE)
    values = result.values + 1e-3 * np.random.default_rng(1).normal(size=result.shape)
    return replace(
        result, values=values.astype(np.float32), provenance={**result.provenance, "compute_dtype": "float32"}
    )


@pytest.mark.filterwarnings("error")
def test_an_example_of_padding_alone_has_no_mean() -> None:
    a = replace(single(), mask=MASK * [[1], [0], [1]])
    comparison = embgrad.compare(a, replace(a, values=a.values * 1.5 + 0.1))
    assert not comparison.agrees
    assert "mean-over-tokens" not in {cause for finding in comparison.findings for cause in finding.causes}
    twice = embgrad.compare(a, replace(a, values=a.values / np.float32(len(IDS))))
    assert [finding.causes for finding in twice.findings] == [("mean-over-batch",)]


def times(number: Any) -> Callable[[Any], np.ndarray]:
    return lambda a: a.values * np.broadcast_to(np.asarray(number, np.float32).reshape(-1, 1, 1), (len(IDS), 1, 1))


def shifted(distance: int) -> Callable[[Any], np.ndarray]:
    return lambda a: np.roll(a.values, distance, axis=1)


def summed_repeats(a: Any) -> np.ndarray:
    return a.table().to_dense()[a.ids].astype(np.float32)


def unit(axes: tuple[int, ...]) -> Callable[[Any], np.ndarray]:
    return lambda a: a.values / np.sqrt((a.values**2).sum(axes, keepdims=True))


ALONE: dict[str, tuple[Callable[[Any], np.ndarray], str]] = {
    "mean over the batch": (times(1 / 3), "mean-over-batch"),
    "sum over the batch": (times(3), "mean-over-batch"),
    "mean over real tokens": (times(1 / TOKENS.sum()), "mean-over-tokens"),
    "mean over own tokens": (times(1 / TOKENS), "mean-over-tokens"),
    "mean over all positions": (times(1 / IDS.size), "mean-over-tokens"),
    "mean over all positions but the last": (times(1 / (3 * 6)), "mean-over-tokens"),
    "mean over examples and classes": (times(1 / 15), "mean-over-batch-and-classes"),
    "mean over classes": (times(1 / 5), "mean-over-batch-and-classes"),
    "sign": (times(-1), "sign"),
    "scaled lookup": (times(DIM**0.5), "scaled-lookup"),
    "behind a scaled lookup": (times(DIM**-0.5), "scaled-lookup"),
    "any factor": (times(2.34567), "constant-factor"),
    "a tiny factor": (times(1e-12), "constant-factor"),
    "a factor for each example": (times([0.3, -2.0, 1.7]), "constant-factor"),
    "probability": (lambda a: times(-np.exp(-a.objective))(a), "probability-objective"),
    "absolute": (lambda a: np.abs(a.values), "absolute-value"),
    "position of length 1": (unit((2,)), "normalised"),
    "example of length 1": (unit((1, 2)), "normalised"),
    "whole of length 1": (unit((0, 1, 2)), "normalised"),
    "times the embedding": (lambda a: (a.values * a.activations).astype(np.float32), "gradient-times-input"),
    "summed over repeats": (summed_repeats, "summed-repeats"),
    "shifted right": (shifted(1), "position-shift"),
    "shifted left by two": (shifted(-2), "position-shift"),
    "pads zeroed": (lambda a: a.values * MASK[..., None].astype(np.float32), "pads-zeroed"),
    "bfloat16": (
        lambda a: (a.values.view(np.uint32) + 0x7FFF & np.uint32(0xFFFF0000)).view(np.float32),
        "half-precision",
    ),
    "float16": (lambda a: a.values.astype(np.float16).astype(np.float32), "half-precision"),
}


def causes(comparison: embgrad.results.Comparison) -> list[tuple[str, ...]]:
    return [finding.causes for finding in comparison.findings]


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("swapped", [False, True], ids=["on b", "on a"])
def test_one_cause_is_named(name: str, swapped: bool) -> None:
    change, cause = ALONE[name]
    sound = single()
    faulty = replace(sound, values=change(sound))
    comparison = embgrad.compare(*((faulty, sound) if swapped else (sound, faulty)))
    assert causes(comparison)[0] == (cause,)
    finding = comparison.findings[0]
    assert finding.explained > 0.999
    departs = "b" if swapped == (name == "sum over the batch") else "a"
    assert finding.side in ("", departs)
    assert all(key in CAUSES for actual in causes(comparison) for key in actual)
    json.dumps(comparison.to_dict(), allow_nan=False)


PAIRS = [
    ("mean over the batch", "sign"),
    ("mean over the batch", "shifted right"),
    ("mean over own tokens", "times the embedding"),
    ("sign", "summed over repeats"),
    ("any factor", "shifted left by two"),
    ("absolute", "mean over examples and classes"),
    ("mean over real tokens", "pads zeroed"),
    ("times the embedding", "shifted right"),
    ("sign", "scaled lookup"),
]


@pytest.mark.parametrize("names", PAIRS, ids=" + ".join)
@pytest.mark.parametrize("swapped", [False, True], ids=["on b", "on a"])
def test_two_causes_are_named(names: tuple[str, str], swapped: bool) -> None:
    sound = single()
    faulty = sound
    for name in names:
        faulty = replace(faulty, values=np.asarray(ALONE[name][0](faulty), np.float32))
    comparison = embgrad.compare(*((faulty, sound) if swapped else (sound, faulty)))
    assert set(causes(comparison)[0]) == {ALONE[name][1] for name in names}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factor", [1e-160, 1e160])
def test_a_factor_whose_square_overflows(factor: float) -> None:
    sound = embgrad.gradients(classifier(), embgrad.TokenBatch(IDS, np.ones_like(IDS)), OBJECTIVE)
    actual = embgrad.compare(sound, replace(sound, values=sound.values * factor))
    assert causes(actual) == [("constant-factor",)]


@pytest.mark.parametrize("times_own", [False, True])
def test_a_factor_that_is_a_product_by_chance(times_own: bool) -> None:
    random = np.random.default_rng(4)
    table, head = random.normal(size=(20, 16)), random.normal(size=(16, 5))
    sound = embgrad.gradients(classifier({"E": table, "W": head}), BATCH, OBJECTIVE)
    factor = TOKENS[:, None, None] * 4.0 if times_own else 4 / 3
    actual = causes(embgrad.compare(sound, replace(sound, values=sound.values * factor)))
    if times_own:
        assert actual == [("mean-over-tokens", "scaled-lookup")]
    else:
        assert actual == [("constant-factor",), ("mean-over-batch", "scaled-lookup")]


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32), st.floats(-6, 6), st.sampled_from(["free", "norms", "permuted", "a little", "by a little"])
)
def test_noise_has_no_cause(seed: int, scale: float, kind: str) -> None:
    sound = single()
    random = np.random.default_rng(seed)
    noise = random.normal(size=sound.shape).astype(np.float32)
    values = {
        "free": noise * np.float32(10**scale),
        "norms": noise
        / np.linalg.norm(noise, axis=-1, keepdims=True)
        * np.linalg.norm(sound.values, axis=-1, keepdims=True),
        "permuted": random.permutation(sound.values.ravel()).reshape(sound.shape),
        "a little": sound.values + noise * np.float32(0.01),
        "by a little": sound.values * np.float32(1 + 1e-3 * random.uniform(0.1, 1)),
    }[kind]
    assert embgrad.compare(sound, replace(sound, values=values)).findings == ()


def test_a_finding_says_how_much_it_explains() -> None:
    sound = single()
    noise = np.random.default_rng(0).normal(size=sound.shape).astype(np.float32)
    noise *= 0.01 * np.linalg.norm(sound.values) / np.linalg.norm(noise)
    (finding,) = embgrad.compare(sound, replace(sound, values=(sound.values + noise) / 3)).findings
    assert finding.causes == ("mean-over-batch",)
    assert 0.9997 < finding.explained < 0.99998
    assert finding.remaining == pytest.approx(0.01, rel=1e-2)
    assert str(finding).startswith(("99.978 % of the difference is a factor", "99.998 % of the difference is a factor"))


@pytest.mark.parametrize("zero", ["a", "b"])
def test_zeros_have_no_cause(zero: str) -> None:
    sound = single()
    nothing = replace(sound, values=np.zeros_like(sound.values))
    comparison = embgrad.compare(nothing, sound) if zero == "a" else embgrad.compare(sound, nothing)
    assert not comparison.agrees
    assert comparison.findings == ()
    json.dumps(comparison.to_dict(), allow_nan=False)


def test_pairs_of_rearrangements_are_not_held_together() -> None:
    """There are more than a hundred."""
    ids = np.tile(IDS, (2, 8))
    base = result(ids=ids, mask=(ids > 0).astype(int), dim=64)
    a, b = (replace(base, values=RANDOM.normal(size=base.shape)) for _ in range(2))
    tracemalloc.start()
    try:
        assert embgrad.compare(a, b).findings == ()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * a.values.nbytes


def test_the_other_of_two_labels_is_named() -> None:
    def forward(model: Any, input_ids: Any) -> Any:
        return lookup(model["E"], input_ids).sum(1).tanh() @ model["W"]

    model = ReferenceModel(forward, {"E": TABLE, "W": HEAD[:, :2] / 4})
    a, b = (embgrad.gradients(model, IDS, embgrad.CrossEntropy(labels)) for labels in ([0, 1, 1], [1, 0, 0]))
    assert causes(embgrad.compare(a, b))[0] == ("label-shift",)


def test_another_order_and_a_factor_together() -> None:
    sound = single()
    order = [2, 0, 1]
    moved = {name: getattr(sound, name)[order] for name in ("activations", "objective", "ids", "mask")}
    comparison = embgrad.compare(sound, replace(sound, values=sound.values[order] / 3, **moved))
    assert causes(comparison) == [("mean-over-batch",)]
    assert any("another order" in note for note in comparison.notes)


class TestHalf:
    def test_another_gradient_in_half_precision_has_no_cause(self) -> None:
        sound = single()
        other = np.random.default_rng(3).normal(size=sound.shape).astype(np.float16).astype(np.float32)
        assert embgrad.compare(sound, replace(sound, values=other)).findings == ()

    @pytest.mark.parametrize("factor", [0.97, 0.9, 0.7])
    def test_a_fault_beyond_the_rounding_is_distinguished(self, factor: float) -> None:
        sound = single()
        noise = 1 + 5e-3 * np.random.default_rng(2).normal(size=sound.shape)
        coarse = replace(sound, provenance={**sound.provenance, "compute_dtype": "bfloat16"})
        right = embgrad.compare(sound, replace(coarse, values=(sound.values * noise).astype(np.float32)))
        assert [(finding.causes, finding.explained) for finding in right.findings] == [(("half-precision",), 1.0)]
        wrong = embgrad.compare(sound, replace(coarse, values=(sound.values * noise * factor).astype(np.float32)))
        assert all(actual in (("constant-factor", "half-precision"), ("constant-factor",)) for actual in causes(wrong))

    def test_a_mean_is_found_within_the_rounding(self) -> None:
        sound = single()
        noise = 1 + 5e-3 * np.random.default_rng(2).normal(size=sound.shape)
        coarse = replace(sound, provenance={**sound.provenance, "compute_dtype": "bfloat16"})
        comparison = embgrad.compare(sound, replace(coarse, values=(sound.values * noise / 3).astype(np.float32)))
        assert causes(comparison) == [("mean-over-batch", "half-precision")]


@pytest.mark.parametrize("described", [None, "cross-entropy", {"class": "CrossEntropy", "labels": "two"}, {}])
def test_a_result_may_have_any_description_of_its_objective(described: Any) -> None:
    sound = single()
    b = replace(sound, values=sound.values / 3, provenance={"objective": described})
    assert causes(embgrad.compare(sound, b))[0] == ("mean-over-batch",)
    assert causes(embgrad.compare(b, sound))[0] == ("mean-over-batch",)
