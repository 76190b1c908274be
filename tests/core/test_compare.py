"""The figures by which two gradients differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embgrad
from embgrad.compare import figures_of
from embgrad.testing.reference import ReferenceModel, lookup

IDS = np.array([[1, 2], [3, 4], [5, 6]])


def gradient(factor: float = 1.0, ids: np.ndarray = IDS, dim: int = 4) -> embgrad.EmbeddingGradients:
    table = np.random.default_rng(0).normal(size=(10, dim))
    model = ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).tanh().mean(1), {"E": table})
    return embgrad.gradients(model, ids, embgrad.Projection(np.full(dim, factor)))


def test_a_result_agrees_with_itself() -> None:
    comparison = embgrad.compare(gradient(), gradient())
    assert comparison.figures.relative_l2 == comparison.figures.largest == 0.0
    assert comparison.figures.cosine == pytest.approx(1.0, abs=1e-15)
    assert len(comparison.per_example) == 3


@given(st.floats(-1e3, 1e3).filter(lambda factor: abs(factor) > 1e-3))
def test_a_factor(factor: float) -> None:
    one, other = gradient(), gradient(factor)
    comparison = embgrad.compare(one, other)
    for figures in (comparison.figures, *comparison.per_example):
        assert figures.relative_l2 == pytest.approx(abs(factor - 1), rel=1e-9, abs=1e-12)
        assert figures.cosine == pytest.approx(np.sign(factor))
    assert comparison.figures.largest == pytest.approx(np.abs(other.values - one.values).max())


def test_each_example_has_its_own_figures() -> None:
    one, other = gradient(), gradient()
    other.values[1] *= 2
    comparison = embgrad.compare(one, other)
    assert [figures.relative_l2 for figures in comparison.per_example] == [0.0, pytest.approx(1.0), 0.0]
    expected = np.linalg.norm(other.values - one.values) / np.linalg.norm(one.values)
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
    ],
)
def test_figures_at_the_edges(a: list[float], b: list[float], expected: tuple[float, float, float]) -> None:
    figures = figures_of(np.array(a), np.array(b))
    assert (figures.relative_l2, figures.largest, figures.cosine) == pytest.approx(expected)


def test_single_precision_is_compared_in_double() -> None:
    tiny = np.full(4, 1e-30, np.float32)
    assert figures_of(tiny, 2 * tiny).relative_l2 == pytest.approx(1.0)


def test_files_are_results(tmp_path: Path) -> None:
    gradient(2.0).save(tmp_path / "b.safetensors")
    for path in (tmp_path / "b.safetensors", str(tmp_path / "b.safetensors")):
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
            lambda: gradient(ids=IDS[:2]),
            embgrad.BatchError,
            r"a has shape \(3, 2, 4\) and b \(2, 2, 4\): expected gradients",
        ),
        (lambda: gradient(dim=3), embgrad.BatchError, r"\(3, 2, 3\)"),
        (
            lambda: gradient(ids=IDS + (IDS == 4)),
            embgrad.BatchError,
            "first at example 1, position 1, where a has 4 and b 5: expected gradients of the same batch",
        ),
        (
            lambda: {"word": gradient()},
            embgrad.EmbgradError,
            r"b is of type dict.*compare b\[...\] for each of \['word'\]",
        ),
        (lambda: gradient().values, embgrad.EmbgradError, "b is of type ndarray: expected a result"),
        (lambda: None, embgrad.EmbgradError, "b is of type NoneType"),
    ],
)
def test_what_cannot_be_compared(b: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        embgrad.compare(gradient(), b())
