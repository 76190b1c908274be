"""The factors by which one gradient may be another: means, signs, labels and scaled lookups, with their texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.align import aligned
from embgrad.comparison.diagnosis.case import Case
from embgrad.comparison.diagnosis.factors import Factor, fitted_factor, fitted_factors, known_factors
from embgrad.results.gradients import EmbeddingGradients

IDS = np.array([[1, 5, 9, 2], [1, 7, 2, 0], [1, 2, 0, 0]])
MASK = (IDS > 0).astype(int)


def result(
    described: Mapping[str, Any] | None = None,
    *,
    dim: int = 4,
    ids: np.ndarray = IDS,
    mask: np.ndarray | None = MASK,
    objective: np.ndarray | None = None,
    shape: object = None,
) -> EmbeddingGradients:
    values = np.ones((*ids.shape, dim))
    provenance = {"objective": described, "output_shape": shape, "point": "word"}
    none: dict[str, Any] = dict.fromkeys(["types", "tokens", "words_of", "pad_leak"])
    return EmbeddingGradients(
        **none,
        values=values,
        activations=values,
        objective=objective,
        ids=ids,
        mask=mask,
        provenance=provenance,
        vocab=20,
    )


def factors(source: EmbeddingGradients, target: EmbeddingGradients | None = None, side: str = "b") -> list[Factor]:
    target = source if target is None else target
    return known_factors(Case(source, target, aligned(source, target), 1e-6, side=side))


def described(found: list[Factor], cause: str) -> list[tuple[str, list[float], str]]:
    return [(each.text, each.numbers.tolist(), each.mean_on) for each in found if each.cause == cause]


def means(result: EmbeddingGradients, cause: str) -> list[tuple[str, list[float]]]:
    """Return what means of the source are taken over, with the counts."""
    found = [each for each in described(factors(result), cause) if each[2] == "source"]
    return [(text.partition(": a took the mean over ")[2], numbers) for text, numbers, _ in found]


def test_a_mean_of_either_side_is_a_factor_with_its_count() -> None:
    over = "took the mean over the batch of 3 examples"
    assert described(factors(result()), "mean-over-batch") == [
        (f"a factor 0.333333 = 1/3: b {over}", [1 / 3] * 3, "target"),
        (f"a factor 3.00: a {over}", [3.0] * 3, "source"),
    ]
    assert described(factors(result(), side="a"), "mean-over-batch")[0][0].endswith(f": a {over}")
    assert described(factors(result(ids=IDS[:1], mask=MASK[:1])), "mean-over-batch") == []


def test_tokens_over_which_means_are_taken() -> None:
    assert means(result(), "mean-over-tokens") == [
        ("each example's own tokens", [4, 3, 2]),
        ("all 9 real tokens", [9] * 3),
        ("the 4 positions, padding included", [4] * 3),
        ("all 12 positions, padding included", [12] * 3),
        ("each example's tokens but one, as where each token predicts the next", [3, 2, 1]),
        ("the 6 tokens that have a next one", [6] * 3),
        ("the 3 × 3 positions that have a next one", [9] * 3),
    ]
    text = "a factor 1/n for each example: b took the mean over each example's own tokens"
    assert described(factors(result()), "mean-over-tokens")[0] == (text, [1 / 4, 1 / 3, 1 / 2], "target")
    assert described(factors(result()), "mean-over-tokens")[7][0].startswith("a factor n for each example: a took")


def test_single_tokens_have_no_next_one() -> None:
    single = MASK * [[1], [1], [1]]
    single[2, 1] = 0
    texts = [text for text, _ in means(result(mask=single), "mean-over-tokens")]
    assert not any("but one" in text or "tokens that have a next" in text for text in texts)
    column = result(ids=IDS[:, :1], mask=None)
    assert means(column, "mean-over-tokens")[-1] == ("the 3 × 0 positions that have a next one", [3] * 3)


def test_labels_of_positions_are_counted() -> None:
    labels = np.where(MASK, 1, -100)
    labels[:, 0] = -100
    labels[0, 3] = labels[2, 2] = 5  # the latter at padding
    found = means(result({"labels": labels.tolist()}), "mean-over-tokens")[-2:]
    assert found == [
        ("each example's tokens that have a label", [3, 2, 1]),
        ("the 6 tokens that have a label", [6] * 3),
    ]
    labels[2] = -100
    texts = [text for text, _ in means(result({"labels": labels.tolist()}), "mean-over-tokens")]
    assert texts[-1] == "the 5 tokens that have a label"
    assert "each example's tokens that have a label" not in texts


def test_labels_of_a_source_stand_for_those_of_a_function() -> None:
    labels = np.where(MASK, 1, -100)
    labels[:, 0] = -100
    source, target = result({"labels": labels.tolist()}), result({"class": "Scalar"})
    texts = [text for text, _, side in described(factors(source, target), "mean-over-tokens") if side == "target"]
    assert texts[-1] == "a factor 0.166667 = 1/6: b took the mean over the 6 tokens that have a label"
    one = replace(
        target, provenance={**target.provenance, "objective": {"labels": np.where(labels > 0, labels, 7).tolist()}}
    )
    texts = [text for text, _, side in described(factors(source, one), "mean-over-tokens") if side == "target"]
    assert texts[-1].endswith("the 9 tokens that have a label")  # labels of its own
    turned = [text for text, _, side in described(factors(target, source), "mean-over-tokens") if side == "source"]
    assert not any("label" in text for text in turned)
    order = [1, 0, 2]
    moved = replace(target, ids=IDS[order], mask=MASK[order])
    texts = [text for text, _, side in described(factors(source, moved), "mean-over-tokens") if side == "target"]
    assert not any("label" in text for text in texts)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        (
            [3, 5],
            [("the 3 examples × 5 entries of the output", [15] * 3), ("an example's 5 entries of the output", [5] * 3)],
        ),
        (
            (3, 4, 2),
            [
                ("the 3 examples × 4 × 2 entries of the output", [24] * 3),
                ("an example's 4 × 2 entries of the output", [8] * 3),
                ("the 9 real tokens × 2 entries of the output", [18] * 3),
            ],
        ),
        ([3], []),
        ("3, 5", []),
        ([3, 5.0], []),
    ],
)
def test_entries_of_the_output_over_which_means_are_taken(shape: object, wanted: list[tuple[str, list[float]]]) -> None:
    assert means(result(shape=shape), "mean-over-batch-and-classes") == wanted


def test_without_a_mask_no_real_tokens_are_counted() -> None:
    found = means(result(shape=[3, 4, 2], mask=None), "mean-over-batch-and-classes")
    assert [text for text, _ in found] == [
        "the 3 examples × 4 × 2 entries of the output",
        "an example's 4 × 2 entries of the output",
    ]


LOSSES = np.array([0.5, 1.0, 2.0])
ENTROPY = {"class": "CrossEntropy", "labels": [0, 1, 0]}


def test_the_probability_of_a_label_is_its_loss_exponentiated() -> None:
    found = factors(result(ENTROPY, objective=LOSSES, shape=[3, 2]))
    ((text, numbers, _),) = described(found, "probability-objective")
    assert (
        text == "a factor −p for each example: b is the gradient of the label's probability, not of its cross-entropy"
    )
    np.testing.assert_allclose(numbers, -np.exp(-LOSSES))
    ((text, numbers, _),) = described(found, "label-shift")
    assert text == "a factor −p/(1 − p) for each example: b has the other label of the two"
    np.testing.assert_allclose(numbers, -np.exp(-LOSSES) / (1 - np.exp(-LOSSES)))


OTHERS: dict[str, dict[str, Any]] = {
    "three classes": {"described": ENTROPY, "objective": LOSSES, "shape": [3, 3]},
    "classes of tokens": {"described": ENTROPY, "objective": LOSSES, "shape": [3, 4, 2]},
    "no shape": {"described": ENTROPY, "objective": LOSSES},
    "a loss of zero": {"described": ENTROPY, "objective": LOSSES * [1, 0, 1], "shape": [3, 2]},
}


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_only_of_two_classes_there_is_another_label(settings: dict[str, Any]) -> None:
    found = factors(result(**settings))
    assert described(found, "probability-objective")
    assert not described(found, "label-shift")


@pytest.mark.parametrize(
    ("objective", "losses"),
    [
        ({"class": "Logit", "labels": [0, 1, 0]}, LOSSES),
        ({"class": "CrossEntropy", "labels": np.zeros((3, 4)).tolist()}, LOSSES),
        (ENTROPY, None),
        (ENTROPY, np.ones((3, 4))),
    ],
)
def test_other_objectives_have_no_losses_of_a_label(objective: dict[str, Any], losses: np.ndarray | None) -> None:
    assert not described(factors(result(objective, objective=losses)), "probability-objective")


@pytest.mark.parametrize(("dim", "whole"), [(8, False), (16, True)])
def test_a_root_of_the_dimension_is_a_factor(dim: int, whole: bool) -> None:
    found = [each for each in factors(result(dim=dim)) if each.cause == "scaled-lookup"]
    root = dim**0.5
    rest = "was differentiated after the lookup's scaling by √dim"
    assert [each.text for each in found] == [
        f"a factor {root:.6g} = √{dim}: a {rest}",
        f"a factor {1 / root:.6g} = 1/√{dim}: b {rest}",
    ]
    np.testing.assert_allclose([each.numbers for each in found], [[root] * 3, [1 / root] * 3])
    assert [each.whole for each in found] == [whole] * 2
    assert not described(factors(result(dim=7)), "scaled-lookup")


def test_the_sign_is_a_factor() -> None:
    assert described(factors(result()), "sign") == [("the sign", [-1.0] * 3, "")]


@pytest.mark.parametrize(
    ("number", "text"),
    [(2.5, "a factor 2.5"), (1 / 3, "a factor 0.333333 = 1/3"), (-0.25, "a factor -0.25 = 1/-4"),
        (1 / 7 * (1 + 2e-4), "a factor 0.142886"), (1.0, "a factor 1"), (0.7, "a factor 0.7"),
        (1e-8, "a factor 1e-08 = 1/100000000"), (1e-10, "a factor 1e-10"), (0.0, "a factor 0")],
)  # fmt: skip
def test_a_fitted_factor_is_spelled_as_one_over_a_count(number: float, text: str) -> None:
    case = Case(result(), result(), aligned(result(), result()), 1e-6)
    factor = fitted_factor(case, number)
    assert (factor.cause, factor.text, factor.fitted) == ("constant-factor", text, True)
    assert factor.numbers.tolist() == [number] * 3


def test_six_fitted_factors_are_shown() -> None:
    assert fitted_factors(np.array([0.5, 2.0])).text == "a factor of its own for each example (0.5, 2)"
    six, seven = fitted_factors(np.arange(1.0, 7)), fitted_factors(np.arange(1.0, 8))
    assert six.text == "a factor of its own for each example (1, 2, 3, 4, 5, 6)"
    assert seven.text == "a factor of its own for each example (1, 2, 3, 4, 5, 6, …)"
    assert (seven.cause, seven.fitted) == ("constant-factor", True)


def test_factors_of_some_examples_count_all() -> None:
    whole = Case(result(), result(), aligned(result(), result()), 1e-6)
    part = slice(1, 3)
    found = known_factors(whole.cut(part), whole, part)
    assert described(found, "mean-over-batch")[1][1] == [3.0, 3.0]
    assert described(found, "mean-over-tokens")[7][1] == [3.0, 2.0]
