"""The figures of the difference of two gradients."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.common.metrics import figures_of
from embgrad.comparison.align import aligned
from embgrad.comparison.compare import _advice, _differing_examples, _known_differences
from embgrad.comparison.findings import Finding
from embgrad.errors import BackendError, BatchError, EmbgradError, EmbgradWarning, PointError
from embgrad.testing.reference import ReferenceModel, lookup

IDS = np.array([[1, 2], [3, 4], [5, 6]])


def gradient(factor: float = 1.0, ids: np.ndarray = IDS, dim: int = 4) -> embgrad.results.EmbeddingGradients:
    table = np.random.default_rng(0).normal(size=(10, dim))
    model = ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).tanh().mean(1), {"E": table})
    return embgrad.gradients(model, ids, embgrad.Projection(np.full(dim, factor)))


@settings(max_examples=30)
@given(st.floats(-1e3, 1e3).filter(lambda factor: abs(factor) > 1e-3))
def test_the_figures_of_a_factor(factor: float) -> None:
    first, second = gradient(), gradient(factor)
    comparison = embgrad.compare(first, second)
    for figures in (comparison.figures, *comparison.per_example):
        assert figures.relative_l2 == pytest.approx(abs(factor - 1), rel=1e-9, abs=1e-12)
        assert figures.cosine == pytest.approx(np.sign(factor))
    assert comparison.figures.largest == pytest.approx(np.abs(second.values - first.values).max())


def test_each_example_has_its_own_figures() -> None:
    first, second = gradient(), gradient()
    second.values[1] *= 2
    comparison = embgrad.compare(first, second)
    assert [figures.relative_l2 for figures in comparison.per_example] == [0.0, pytest.approx(1.0), 0.0]
    expected = np.linalg.norm(second.values - first.values) / np.linalg.norm(first.values)
    assert comparison.figures.relative_l2 == pytest.approx(expected)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([0.0, 0.0], [0.0, 0.0], (0.0, 0.0, 1.0)),
        ([0.0, 0.0], [3.0, 4.0], (np.inf, 4.0, 0.0)),
        ([3.0, 4.0], [0.0, 0.0], (1.0, 4.0, 0.0)),
        ([1.0, 0.0], [0.0, 1.0], (np.sqrt(2), 1.0, 0.0)),
        ([1e-200, 0.0], [1e-200, 0.0], (0.0, 0.0, 1.0)),
        ([], [], (0.0, 0.0, 1.0)),
        (np.float32([1e-30]), np.float32([2e-30]), (1.0, 1e-30, 1.0)),
    ],
)
def test_figures_of_zeros_and_tiny_numbers(
    a: list[float], b: list[float], expected: tuple[float, float, float]
) -> None:
    figures = figures_of(np.array(a), np.array(b))
    assert (figures.relative_l2, figures.largest, figures.cosine) == pytest.approx(expected)


def test_a_result_may_be_a_file(tmp_path: Path) -> None:
    gradient(2.0).save(tmp_path / "b.safetensors")
    with os.scandir(tmp_path) as entries:
        entry = next(entries)  # a path that is neither text nor of pathlib
    for path in (tmp_path / "b.safetensors", str(tmp_path / "b.safetensors"), entry):
        assert embgrad.compare(gradient(), path).figures.relative_l2 == pytest.approx(1.0)
    with pytest.raises(FileNotFoundError):
        embgrad.compare(gradient(), "nothing.safetensors")


def test_repr_and_dict() -> None:
    comparison = embgrad.compare(gradient(), gradient(2.0))
    text = repr(comparison)
    for fragment in ("b = reference embgrad.testing.tensors.ReferenceModel at 'word'", "example 2", "1.000e+00"):
        assert fragment in text
    plain = comparison.to_dict()
    assert plain["figures"]["relative_l2"] == comparison.figures.relative_l2
    assert len(plain["per_example"]) == 3
    assert set(plain["figures"]) == {"relative_l2", "largest", "cosine"}


@pytest.mark.parametrize(
    ("b", "error", "message"),
    [
        (
            lambda: gradient(ids=IDS[:2, :1] + 6),
            BatchError,
            r"a holds ids of shape \(3, 2\) and b of shape \(2, 1\), and no example of a has half of its tokens in common",
        ),
        (lambda: gradient(dim=3), PointError, r"length \(4,\) and b's \(3,\): expected gradients at the same point"),
        (lambda: {"word": gradient()}, PointError, "a is one result, and the other has several, 'word': name the one"),
        (lambda: {}, EmbgradError, "b is of type dict: expected a result"),
        (lambda: {"x": {"y": gradient(), "z": gradient()}}, EmbgradError, "b holds several results under 'x'"),
        (lambda: gradient().values, EmbgradError, "b is of type ndarray: expected a result"),
        (lambda: None, EmbgradError, "b is of type NoneType"),
    ],
)
def test_other_arguments_are_refused(b: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        embgrad.compare(gradient(), b())


def test_points_without_positions_must_have_one_shape() -> None:
    def pooled(at: str) -> embgrad.results.EmbeddingGradients:
        table = np.random.default_rng(0).normal(size=(10, 2))  # as wide as the texts are long

        def forward(model: Any, input_ids: np.ndarray) -> Any:
            return model.module("pool", lambda x: x.mean(1), lookup(model["E"], input_ids).tanh())

        return embgrad.gradients(ReferenceModel(forward, {"E": table}), IDS, embgrad.Projection(np.ones(2)), at=at)

    assert embgrad.compare(pooled("pool"), pooled("pool")).agrees
    message = (
        r"a has shape \(3, 2\) and b \(3, 2, 2\), which are not \(example, position, dim\) both: expected equal shapes of "
        "the same ids; name the point by a role"
    )
    with pytest.raises(BatchError, match=message):
        embgrad.compare(pooled("pool"), pooled("word"))


def test_results_without_a_real_position_are_refused() -> None:
    def empty(positions: int) -> embgrad.results.EmbeddingGradients:
        batch = embgrad.TokenBatch(np.zeros((3, positions), int), np.zeros((3, positions), int))
        model = ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).mean(1), {"E": np.eye(4)})
        with pytest.warns(EmbgradWarning, match="cannot take the mask"):
            return embgrad.gradients(model, batch, embgrad.Sum())

    message = "no position in common: the texts that they share have no tokens. Pass gradients of the same texts"
    with pytest.raises(BatchError, match=message):
        embgrad.compare(empty(2), empty(3))


@pytest.mark.parametrize(
    ("option", "values", "error", "message"),
    [
        ("models", [gradient, (1, 2, 3), "ab?"], EmbgradError, r"expected a pair \(model_a, model_b\)"),
        ("models", [("a/folder", None), (None, 3), [object(), None]], BackendError,
            "no installed backend takes|backend"),
        ("tolerance", [-1.0, np.nan, np.inf, "1e-5", True], EmbgradError,
            "tolerance is .*: expected a number of at least 0"),
        ("call", [(None,), (None,) * 3, "model", (None, 3)], EmbgradError,
            "call is .*: expected a function that calls the"),
    ],
)  # fmt: skip
def test_other_options_are_refused(option: str, values: list[Any], error: type[Exception], message: str) -> None:
    for value in values:
        with pytest.raises(error, match=message):
            embgrad.compare(gradient(), gradient(2.0), **{option: value})


def test_the_tolerance_decides() -> None:
    first, second = gradient(), gradient(1.001)
    assert not embgrad.compare(first, second).agrees
    assert embgrad.compare(first, second, tolerance=np.float32(0.01)).agrees
    assert not embgrad.compare(first, second, tolerance=0).agrees
    assert embgrad.compare(first, first, tolerance=0).agrees


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [(("float64", "float64"), 2.0**-53), (("float64", "float32"), 2.0**-24), (("bfloat16", "bfloat16"), 2.0**-8),
        (("bfloat16", "float16"), 2.0**-8), (("bfloat16", "float32"), 2.0**-24)],
)  # fmt: skip
def test_the_tolerance_depends_on_the_dtypes(dtypes: tuple[str, str], expected: float) -> None:
    a, b = (
        replace(gradient(), provenance={**gradient().provenance, "compute_dtype": dtype, "matrices": 3})
        for dtype in dtypes
    )
    assert embgrad.compare(a, b).tolerance == pytest.approx(24 * expected * 2)


def test_mappings_are_compared_by_name() -> None:
    a, b = ({"word": gradient(), "layer.0": gradient(factor)} for factor in (1.0, 2.7))
    both = embgrad.compare(a, b)
    assert list(both) == ["word", "layer.0"]
    assert both["word"].agrees
    assert not both.agrees
    assert [finding.causes for finding in both.findings] == [("constant-factor",)]
    assert not both.to_dict()["agrees"]
    assert "finding: 100 % of the difference is a factor 2.7" in repr(both)
    with pytest.raises(KeyError, match=r"Did you mean 'layer\.0'"):
        both["layer.O"]


def test_causes_of_several_comparisons_stand_in_the_order_of_the_least_that_one_leaves() -> None:
    left = {"word": {"sign": 0.2, "precision": 0.1}, "layer.0": {"sign": 0.3, "precision": 0.4}}
    found = {name: [Finding((cause,), "", 1.0, it) for cause, it in of.items()] for name, of in left.items()}
    both = embgrad.results.Comparisons(
        {name: replace(embgrad.compare(gradient(), gradient()), findings=tuple(it)) for name, it in found.items()}
    )
    assert [(*finding.causes, finding.left) for finding in both.findings] == [("precision", 0.4), ("sign", 0.3)]


def test_figures_of_each_position() -> None:
    first, second = gradient(), gradient()
    second.values[1, 0] *= 3
    figures = embgrad.compare(first, second).per_position
    assert figures is not None
    assert figures.relative_l2.tolist() == [[0, 0], [pytest.approx(2.0), 0], [0, 0]]
    assert figures.largest[1, 0] == pytest.approx(2 * np.abs(first.values[1, 0]).max())
    assert figures.cosine == pytest.approx(1.0)


def test_a_small_example_may_be_off_by_the_rounding_of_the_others() -> None:
    whole = gradient()
    a = replace(whole, values=whole.values.copy(), provenance={**whole.provenance, "compute_dtype": "float32"})
    a.values[1] *= 1e-8
    b = replace(a, values=a.values + 1e-9 * np.abs(a.values).max())
    assert embgrad.compare(a, b).agrees
    wrong = replace(a, values=a.values.copy())
    wrong.values[1] += 1e-5 * np.abs(a.values).max()
    comparison = embgrad.compare(a, wrong, tolerance=1e-4)
    assert not comparison.agrees
    assert any("the examples 1 differ" in note for note in comparison.notes)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(number: float) -> None:
    broken = gradient()
    broken.values[2, 1, 0] = number
    with pytest.raises(EmbgradError, match=rf"b holds {number} at \(2, 1, 0\), and 1 of its 24 numbers are not finite"):
        embgrad.compare(gradient(), broken)


@pytest.mark.parametrize("unit", [1e-310, 1e-200, 1e200, 1e300])
def test_numbers_whose_squares_overflow(unit: float) -> None:
    usual = gradient()
    first, second = (replace(usual, values=usual.values * unit * factor) for factor in (1.0, 0.25))
    comparison = embgrad.compare(first, second)
    assert not comparison.agrees
    assert comparison.per_position is not None
    for figures in (comparison.figures, *comparison.per_example, comparison.per_position):
        np.testing.assert_allclose(figures.relative_l2, 0.75, rtol=1e-6)
        np.testing.assert_allclose(figures.cosine, 1.0, rtol=1e-6)
    assert comparison.figures.largest == pytest.approx(0.75 * np.abs(first.values).max())


def recorded(**provenance: Any) -> embgrad.results.EmbeddingGradients:
    whole = gradient()
    return replace(whole, provenance={**whole.provenance, **provenance})


def known(a: embgrad.results.EmbeddingGradients, b: embgrad.results.EmbeddingGradients) -> list[str]:
    return list(_known_differences(a, b, aligned(a, b)))


def test_recorded_differences_are_notes() -> None:
    assert known(recorded(), recorded()) == []
    assert known(recorded(), recorded(point="layer.0", pads="zero", split=True)) == [
        "point: 'word' in a, 'layer.0' in b",
        "pads: 'keep' in a, 'zero' in b",
        "split: False in a, True in b",
    ]
    assert embgrad.compare(recorded(), recorded(training=True)).notes == ("training mode: False in a, True in b",)
    versions = {"numpy": "2.0", "torch": "2.4"}
    assert known(recorded(versions=versions), recorded(versions={"numpy": "2.1", "jax": "0.4"})) == [
        "numpy: 2.0 in a, 2.1 in b"
    ]
    assert known(recorded(versions=versions), recorded(versions={"numpy": "2.1"}, backend="other")) == []


def test_masks_and_types_of_one_result_alone_are_notes() -> None:
    plain, ones = gradient(), np.ones_like(IDS)
    assert known(plain, replace(plain, mask=ones)) == ["a has no mask"]
    assert known(replace(plain, mask=ones), plain) == ["b has no mask"]
    assert known(plain, replace(plain, types=ones)) == ["a has no types"]
    assert known(replace(plain, types=ones), plain) == ["b has no types"]
    assert known(plain, replace(plain, types=0 * ones)) == []
    other = ones.copy()
    other[2] = 0
    assert known(replace(plain, types=ones), replace(plain, types=other)) == ["the types differ at 2 positions"]


def test_labels_are_compared_in_the_order_of_the_examples() -> None:
    order = [2, 0, 1]
    a = recorded(objective={"class": "CrossEntropy", "labels": [0, 1, 2]})
    moved = recorded(objective={"class": "CrossEntropy", "labels": [2, 0, 1]})
    assert known(a, replace(moved, ids=IDS[order])) == []
    (note,) = known(a, moved)
    assert note.startswith("objective: ")
    pair = recorded(objective={"class": "Margin", "labels": [2, 0]})  # not one for each example
    assert known(pair, replace(pair, ids=IDS[order])) == []
    assert known(recorded(seed=[2, 0, 1]), recorded(seed=[0, 1, 2])) == []
    fewer = replace(recorded(objective={"labels": [0, 1, 2]}), ids=np.array([[1, 2], [3, 4], [8, 9]]))
    assert known(recorded(objective={"labels": [0, 1, 2]}), fewer) == []


def test_an_example_may_be_off_by_four_tolerances_and_eight_roundoffs_of_the_largest() -> None:
    a = np.array([[[3.0, 4.0]], [[0.3, 0.4]], [[0.0, 0.0]]])

    def differing(change: float, example: int, tolerance: Any = 0.01, roundoff: float = 0.0) -> list[int]:
        b = a.copy()
        b[example, 0, 0] += change
        return _differing_examples(a, b, tolerance, roundoff)

    assert (differing(0.199, 0), differing(0.201, 0)) == ([], [0])
    assert (differing(0.0199, 1), differing(0.0201, 1)) == ([], [1])
    assert differing(1e-12, 2) == [2]
    assert (differing(0.039, 2, roundoff=1e-3), differing(0.041, 2, roundoff=1e-3)) == ([], [2])
    assert differing(1e-12, 0, tolerance=0, roundoff=1e-3) == [0]
    each = np.array([0.1, 0.0, 0.0])
    assert (differing(1.9, 0, each), differing(1e-9, 1, each)) == ([], [1])


def test_results_that_agree_are_not_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    from embgrad.comparison.diagnosis import diagnose

    monkeypatch.setattr(diagnose, "diagnosed", lambda *_, **__: pytest.fail("nothing differs"))
    assert embgrad.compare(gradient(), gradient()).agrees


def test_advice_depends_on_the_models_that_are_known() -> None:
    model, plain = object(), gradient()
    assert _advice(plain, (model, model)).startswith("No known cause explains the difference")
    assert _advice(plain, (None, model)).startswith("Neither the numbers nor other requests to one model")
    assert _advice(plain, (None, None)).startswith("The numbers alone show no known cause")
    noisy = replace(plain, values=np.random.default_rng(5).normal(size=plain.shape))
    comparison = embgrad.compare(plain, noisy)
    assert (comparison.agrees, comparison.findings) == (False, ())
    assert "embgrad.bisect" in comparison.advice
    assert comparison.advice in repr(comparison)
    assert embgrad.compare(plain, gradient(2.0)).advice == embgrad.compare(plain, plain).advice == ""


def test_examples_that_only_one_result_has_are_left_out_of_the_figures() -> None:
    whole = gradient()
    part = gradient(ids=IDS[[0, 2]])
    comparison = embgrad.compare(whole, part)
    assert comparison.examples == (0, 2)
    assert len(comparison.per_example) == 2
    assert comparison.agrees


def test_the_nearest_name_is_offered() -> None:
    message = r"a alone has 'layer.0', 'x', and b alone 'embedding', 'layer.1'.*Did you mean 'layer.1'"
    one = gradient()
    with pytest.raises(PointError, match=message):
        embgrad.compare({"layer.0": one, "x": one}, {"embedding": one, "layer.1": one})
    with pytest.raises(PointError, match=r"a alone has none, and b alone 'b': expected results of the same names"):
        embgrad.compare({"a": one}, {"a": one, "b": one})
