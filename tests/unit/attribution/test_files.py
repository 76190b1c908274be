"""Attributions in files, in comparisons and as golden results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import methods
from embgrad.errors import EmbgradError, GoldenError, PointError
from tests.unit.attribution.models import BATCH, DIM, IDS, curved, linear
from tests.unit.stored import expect_change_refused

LOGIT = embgrad.Logit(0)
FIELDS = ("scores", "values", "objective", "baseline_objective", "delta", "error", "ids", "mask", "types", "words_of")


def attributed(method: Any = "integrated_gradients", model: Any = None, **options: Any) -> Any:
    return embgrad.attribute(model or curved(), BATCH, LOGIT, method, **options)


@pytest.mark.parametrize(
    "method",
    ["saliency", methods.IntegratedGradients(9), methods.Occlusion("zero"), methods.SmoothGrad(of=methods.InputXGradient())],
    ids=lambda method: str(method)[:20],
)  # fmt: skip
def test_a_saved_attribution_is_restored_bit_for_bit(tmp_path: Path, method: Any) -> None:
    saved = attributed(method)
    saved.save(tmp_path / "a.safetensors")
    loaded = embgrad.load(tmp_path / "a.safetensors")
    assert isinstance(loaded, embgrad.results.Attribution)
    for name in FIELDS:
        first, second = getattr(saved, name), getattr(loaded, name)
        assert (first is None) == (second is None)
        assert first is None or (first.dtype, first.tobytes()) == (second.dtype, second.tobytes())
    assert loaded.tokens == saved.tokens
    assert loaded.provenance == saved.provenance
    assert repr(loaded) == repr(saved)


def test_texts_and_offsets_are_restored(tmp_path: Path) -> None:
    texts, offsets = ["a film", ("b", "c")], np.full((2, 4, 2), -1)
    offsets[0, 1], offsets[1, 2] = (2, 6), (0, 1)
    parts = np.full((2, 4), -1)
    parts[0, 1], parts[1, 2] = 0, 1
    batch = embgrad.TokenBatch(IDS, texts=texts, offsets=offsets, parts=parts)
    saved = embgrad.attribute(curved(), batch, LOGIT, "saliency")
    saved.save(tmp_path / "a.safetensors")
    loaded = embgrad.load(tmp_path / "a.safetensors")
    assert loaded.texts == ("a film", ("b", "c"))
    assert loaded.spans() == saved.spans()
    np.testing.assert_array_equal(loaded.offsets, offsets)


def test_several_attributions_are_restored_by_name_beside_gradients(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    attributions = attributed(["saliency", "input_x_gradient"])
    attributions.save(path)
    loaded = embgrad.load(path)
    assert isinstance(loaded, embgrad.results.Attributions)
    assert list(loaded) == ["saliency", "input_x_gradient"]
    gradients = embgrad.gradients(curved(), BATCH, LOGIT)
    embgrad.save({"g": gradients, "a": attributions["saliency"]}, path)
    both = embgrad.load(path)
    assert [type(result).__name__ for result in both.values()] == ["EmbeddingGradients", "Attribution"]
    np.testing.assert_array_equal(both["g"].values, gradients.values)


def test_a_long_array_in_a_method_is_described_by_its_digest() -> None:
    baseline = np.zeros((*IDS.shape, DIM))
    assert embgrad.methods.IntegratedGradients(baseline=baseline[0, 0]).describe()["baseline"] == [0.0, 0.0, 0.0]
    assert embgrad.methods.GradientShap(np.zeros((30, 4, 3))).describe()["baselines"]["shape"] == [30, 4, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, entry: arrays.pop("scores"), "lacks the arrays ['scores']"),
        (lambda arrays, entry: entry.pop("tokens"), "lacks the fields ['tokens']"),
        (lambda arrays, entry: entry.update(texts=["a"]), "texts or offsets that do not fit: texts is ['a']: expected a list"),
        (
            lambda arrays, entry: arrays.update(offsets=np.zeros((2, 4, 2), np.int64)),
            "texts or offsets that do not fit: offsets or parts are given without texts",
        ),
        (lambda arrays, entry: entry.update({"class": "Tensor"}), "holds a result of the class 'Tensor': expected"),
        (lambda arrays, entry: entry["provenance"].pop("method"), "holds None as provenance['method']: expected an object"),
        (
            lambda arrays, entry: entry["provenance"].update(method={"class": "SmoothGrad", "of": 3}),
            "as provenance['method']: expected an object with the name of the method's class",
        ),
        (lambda arrays, entry: arrays.update(ids=IDS.ravel()), "holds ids of shape (8,): expected (example, position)"),
        (lambda arrays, entry: arrays.update(scores=np.zeros((2, 5))), "holds scores of shape (2, 5): expected (2, 4)"),
        (lambda arrays, entry: arrays.update(delta=np.zeros(3)), "holds delta of shape (3,): expected (2,), (example,)"),
        (
            lambda arrays, entry: arrays.update(values=np.zeros((2, 3, 3))),
            "holds values of shape (2, 3, 3): expected (2, 4, dim), (example, position, dim)",
        ),
    ],
)  # fmt: skip
def test_a_file_changed_by_hand_is_refused(change: Any, message: str) -> None:
    expect_change_refused(attributed(), change, message)


def test_equal_attributions_agree_across_dtypes_and_padding() -> None:
    for method in ("integrated_gradients", embgrad.methods.Occlusion("zero")):
        comparison = embgrad.compare(attributed(method), attributed(method, curved("float32")))
        assert comparison.agrees
        assert comparison.per_position is not None
    left = embgrad.TokenBatch([[0, 2, 7, 7], *IDS[1:].tolist()], [[0, 1, 1, 1], [1, 1, 1, 1]])
    padded = embgrad.attribute(curved(), left, LOGIT, "integrated_gradients")
    comparison = embgrad.compare(attributed(), padded)
    assert comparison.agrees
    assert "a is padded on the right and b on the left" in " ".join(comparison.notes)


def test_other_attributions_differ_and_the_notes_name_the_methods(tmp_path: Path) -> None:
    attributed("saliency").save(tmp_path / "b.safetensors")
    comparison = embgrad.compare(attributed(), tmp_path / "b.safetensors")
    assert not comparison.agrees
    assert any(note.startswith("method: {'class': 'IntegratedGradients'") for note in comparison.notes)
    assert "Compare the gradients of the two models" in comparison.advice
    several = embgrad.compare(
        attributed(["saliency", "input_x_gradient"]), attributed(["saliency", "input_x_gradient"])
    )
    assert several.agrees
    assert list(several) == ["saliency", "input_x_gradient"]


def test_a_large_objective_of_one_example_does_not_hide_the_difference_of_another() -> None:
    a = attributed(embgrad.methods.Occlusion("zero"), curved("float32"))
    a.objective[0] = 3e4
    changed = replace(a, scores=a.scores * np.array([[1.0], [1.07]]))
    comparison = embgrad.compare(a, changed)
    assert not comparison.agrees
    assert "the examples 1 differ" in " ".join(comparison.notes)


def test_results_that_cannot_be_compared_are_refused() -> None:
    gradients = embgrad.gradients(curved(), BATCH, LOGIT)
    with pytest.raises(EmbgradError, match=r"a is an attribution and b a gradient: expected two results of embgrad"):
        embgrad.compare(attributed(), gradients)
    with pytest.raises(PointError, match="expected results of the same names"):
        embgrad.compare(attributed(["saliency"]), attributed(["input_x_gradient"]))


def test_a_golden_attribution_shows_changes(tmp_path: Path) -> None:
    golden = embgrad.golden(tmp_path / "golden.safetensors")
    golden.update(attributed(model=linear()))
    assert golden.check(attributed(model=linear())).agrees
    with pytest.raises(GoldenError, match=r"the attribution moved, relative L2 .* tolerance") as caught:
        golden.check(attributed())
    assert "the objective moved" in str(caught.value)
    with pytest.raises(GoldenError, match="the result is a gradient, and the golden file has an attribution"):
        golden.check(embgrad.gradients(linear(), BATCH, LOGIT))
