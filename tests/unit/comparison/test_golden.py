"""Golden files: what is saved and compared, and the messages of a failure."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import EmbgradError, FileFormatError, GoldenError
from embgrad.testing.reference import ReferenceModel, lookup

IDS = [[0, 1, 2], [3, 1, 0]]


def model(scale: float = 1.0, bias: float = 0.0, dtype: Any = np.float32) -> ReferenceModel:
    weights = np.random.RandomState(3)

    def forward(model: Any, input_ids: np.ndarray) -> Any:
        return (lookup(model["E"], input_ids).mean(1) @ model["W"]) * scale + model["b"]

    parameters = {"E": weights.normal(size=(4, 4)), "W": weights.normal(size=(4, 3)), "b": np.full(3, bias)}
    return ReferenceModel(forward, {name: value.astype(dtype) for name, value in parameters.items()})


def run(scale: float = 1.0, bias: float = 0.0, objective: Any = None, **options: Any) -> Any:
    return embgrad.gradients(model(scale, bias), IDS, objective or embgrad.Logit([0, 2]), **options)


@pytest.fixture
def golden(tmp_path: Path) -> embgrad.results.Golden:
    return embgrad.golden(tmp_path / "folder" / "g.safetensors")


def failure(golden: embgrad.results.Golden, results: Any, **options: Any) -> GoldenError:
    with pytest.raises(GoldenError) as caught:
        golden.check(results, **options)
    return caught.value


def test_an_unchanged_result_agrees(golden: embgrad.results.Golden) -> None:
    golden.update(run())
    comparison = golden.check(run())
    assert isinstance(comparison, embgrad.results.Comparison)
    assert comparison.agrees
    assert comparison.figures.relative_l2 == 0
    assert golden.exists
    assert isinstance(golden.load(), embgrad.results.EmbeddingGradients)
    golden.update(run(at=["word", "E"]))
    several = golden.check(run(at=["E", "word"]))  # in any order
    assert isinstance(several, embgrad.results.Comparisons)
    assert several.agrees
    assert sorted(several) == ["E", "word"]
    assert list(golden.load()) == ["word", "E"]  # type: ignore[arg-type]


def changed(**factors: float) -> Any:
    result = run()
    return replace(result, **{name: getattr(result, name) * np.float32(factor) for name, factor in factors.items()})


def masked(last: int, factor: float) -> Any:
    mask = np.array([[1, 1, 1], [1, 1, last]])
    values = run().values * np.where(mask, 1, factor)[..., None].astype(np.float32)
    return replace(run(), mask=mask, values=values)


def ids_changed() -> Any:
    ids = run().ids.copy()
    ids[1, 2] = 3
    return replace(run(), ids=ids)


def of_ids(ids: Any, index: Any) -> Any:
    return embgrad.gradients(model(), ids, embgrad.Logit(index))


BOTH, RENAMED = ("word", "layer.-1", "layer.0"), ("word", "layers.-1", "layer.0")


@pytest.mark.parametrize(
    ("saved", "checked", "pattern"),
    [
        (run, lambda: changed(values=0.5), "^the gradient moved.*nothing in the forward pass moved, within the tol"),
        (run, lambda: changed(activations=1.01),
            "^the value at the point moved, relative L2 1.00e-02.*gradient did not"),
        (run, lambda: changed(activations=1.01, values=2), "the forward pass already differs at this point"),
        (run, ids_changed, "^the ids differ, first at example 1, position 2: 3 where the golden file has 0"),
        (run, lambda: of_ids(IDS[::-1], [2, 0]), "the ids differ, first at example 0, position 0: 3.*another order"),
        (run, lambda: of_ids([[*row, 2] for row in IDS], [0, 2]), r"the ids differ: shape \(2, 4\) where .* \(2, 3\)"),
        (lambda: masked(0, 0), lambda: masked(1, 0),
            "^the gradient moved.*masks differ at 1 of 6 positions, first at ex"),
        (run, lambda: {"word": run()}, "^several results were checked against one, 'word'"),
        (lambda: {"word": run()}, run, "^one result was checked against several, 'word'"),
        (lambda: dict.fromkeys(BOTH, run()), lambda: dict.fromkeys(RENAMED, run()),
            r"^'layer.-1' is missing \(and 1 more"),
    ],
)  # fmt: skip
def test_a_change_is_named(golden: embgrad.results.Golden, saved: Any, checked: Any, pattern: str) -> None:
    golden.update(saved())
    text = str(failure(golden, checked()))
    assert re.search(pattern, text, flags=re.DOTALL)
    if "nothing in the forward pass moved" in text:
        assert "objective moved" not in text
        assert "value at the point moved" not in text


def test_the_points_that_are_there_are_compared(golden: embgrad.results.Golden) -> None:
    golden.update(dict.fromkeys(("word", "layer.0"), run()))
    assert failure(golden, {"word": run()}).comparison.agrees


def test_rounding_agrees(golden: embgrad.results.Golden) -> None:
    first = run()
    golden.update(first)
    noise = 1 + 1e-7 * np.random.RandomState(0).uniform(-1, 1, first.shape)
    second = replace(
        first,
        values=(first.values * noise).astype(np.float32),
        activations=(first.activations * noise).astype(np.float32),
        objective=first.objective * (1 + 1e-7),
    )
    assert golden.check(second).agrees


def test_another_dtype_is_compared_within_the_coarser_dtype(golden: embgrad.results.Golden) -> None:
    golden.update(run())
    wide = embgrad.gradients(model(dtype=np.float64), IDS, embgrad.Logit([0, 2]))
    assert wide.values.dtype == np.float64
    assert golden.check(wide).agrees


def test_a_path_is_text_or_a_path(tmp_path: Path) -> None:
    embgrad.golden(str(tmp_path / "g.safetensors")).update(run())
    assert embgrad.golden(tmp_path / "g.safetensors").check(run()).agrees
    with pytest.raises(EmbgradError, match=r"path is of type EmbeddingGradients: .*golden\(path\)\.check"):
        embgrad.golden(run())


def test_captured_gradients_need_no_objective(golden: embgrad.results.Golden) -> None:
    result = replace(run(), objective=None, provenance={**run().provenance, "captured": True})
    golden.update(result)
    assert golden.check(result).agrees
    assert golden.check(run()).agrees  # whose objective there is nothing to hold against


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({}, "results is empty"),
        (3, "results is of type int: expected a result of embgrad.gradients or embgrad.attribute, or a mapping"),
        ({"a": 3}, "results holds 'a': int"),
    ],
)
def test_other_results_are_refused(golden: embgrad.results.Golden, results: Any, message: str) -> None:
    for call in (golden.update, golden.check):
        with pytest.raises(EmbgradError, match=message):
            call(results)
    assert not golden.exists


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_refused(golden: embgrad.results.Golden, value: float) -> None:
    result = run()
    values = result.values.copy()
    values[0, 1, 2] = value
    broken = replace(result, values=values)
    with pytest.raises(EmbgradError, match=rf"the gradient holds {value} at \(0, 1, 2\): expected finite numbers"):
        golden.update(broken)
    with pytest.raises(EmbgradError, match="at 'word' the gradient holds"):
        golden.update({"word": broken})
    assert not golden.exists
    golden.update(result)
    assert str(failure(golden, broken)).startswith(f"the gradient holds {value} at (0, 1, 2): differs from")


def test_hidden_values_may_hold_infinities(golden: embgrad.results.Golden) -> None:
    result = run()
    activations = result.activations.copy()
    activations[0, 0, 0] = -np.inf
    result = replace(result, activations=activations)
    golden.update(result)
    assert golden.check(result).agrees
    assert "the value at the point moved, relative L2 inf" in str(failure(golden, run()))


def test_a_missing_file_says_how_to_write_it(golden: embgrad.results.Golden) -> None:
    error = failure(golden, run())
    assert isinstance(error, AssertionError)
    assert error.comparison is None
    path = str(golden.path)
    assert f"there is no golden file {path}: expected one to check against" in str(error)
    assert f"write it: call embgrad.golden({path!r}).update(results)" in str(error)


def test_a_changed_model_shows_figures_and_how_to_accept_them(golden: embgrad.results.Golden) -> None:
    golden.update(run())
    error = failure(golden, run(1.5))
    first, *rest = str(error).splitlines()
    assert first.startswith("the gradient moved, relative L2 5.00e-01, tolerance ")
    assert first.endswith(f": differs from the golden file {golden.path}")
    text = "\n".join(rest)
    for fragment in (
        "the objective moved, most at example",
        "the forward pass agrees up to this point and differs after it",
        "example 1   5.000e-01",
        "a is the golden file, and b is the result checked against it",
        f"accept them: call embgrad.golden({str(golden.path)!r}).update(results)",
    ):
        assert fragment in text
    assert isinstance(error.comparison, embgrad.results.Comparison)
    assert error.comparison.figures.relative_l2 == pytest.approx(0.5, rel=1e-6)


def test_a_change_of_the_objective_only(golden: embgrad.results.Golden) -> None:
    golden.update(run())
    error = failure(golden, run(bias=0.25))
    assert str(error).startswith("the objective moved, most at example ")
    assert "the gradient did not, within the tolerance" in str(error)
    assert error.comparison.agrees


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_values_whose_squares_overflow(golden: embgrad.results.Golden, unit: float) -> None:
    result = replace(run(), values=np.ones((2, 3, 4)), activations=np.full((2, 3, 4), unit), objective=np.zeros(2))
    golden.update(result)
    assert golden.check(result).agrees
    moved = failure(golden, replace(result, activations=result.activations * 2))
    assert str(moved).startswith("the value at the point moved, relative L2 1.00e+00")


@pytest.mark.parametrize(("factor", "agrees"), [(1 + 1e-7, True), (1 + 1e-3, False)])
def test_an_objective_near_zero_is_compared_with_the_size_of_its_terms(
    golden: embgrad.results.Golden, factor: float, agrees: bool
) -> None:
    first = run()
    golden.update(replace(first, objective=np.array([1e-9, 3.0])))
    second = replace(first, objective=np.array([1e-9 + 3 * (factor - 1), 3.0]))
    if agrees:
        assert golden.check(second).agrees
    else:
        assert "objective moved, most at example 0, from 1e-09 to 0.003" in str(failure(golden, second))


def test_a_scalar_objective(golden: embgrad.results.Golden) -> None:
    def total(factor: float) -> Any:
        return run(objective=embgrad.Scalar(lambda output: output.column(0).sum(0) * factor))

    golden.update(total(1.0))
    assert golden.check(total(1.0)).agrees
    assert "the objective moved, from" in str(failure(golden, total(2.0)))
    assert "the objective has the shape (2,), and () in the golden file" in str(failure(golden, run()))


def test_vectors_of_another_length_differ(golden: embgrad.results.Golden) -> None:
    result = run()
    golden.update(result)
    cut = replace(result, values=result.values[..., :2], activations=result.activations[..., :2])
    error = failure(golden, cut)
    assert "differs from the golden file" in str(error)
    assert "(4,)" in str(error)
    assert error.comparison is None


def test_all_changed_points_are_named_and_the_first_shown(golden: embgrad.results.Golden) -> None:
    names = ["word", *(f"layer.{number}" for number in range(12))]
    golden.update(dict.fromkeys(names, run()))
    error = failure(golden, {**dict.fromkeys(names, run(2.0)), "layer.3": run()})
    text = str(error)
    assert text.startswith("at 'word' the gradient moved, relative L2 1.00e+00")
    assert "(and 11 more)" in text
    for name in names:
        assert (f"at {name!r} the gradient moved" in text) == (name != "layer.3")
    assert text.count("relative L2     largest") == 3
    assert list(error.comparison) == names


def test_changed_versions_are_named(golden: embgrad.results.Golden) -> None:
    result = run()
    source = {**result.provenance, "python": "3.10.1", "versions": {"torch": "2.12.0", "numpy": "1.26.4"}}
    golden.update(replace(result, provenance=source))
    now = {**source, "python": "3.13.0", "versions": {"torch": "2.13.0", "numpy": "1.26.4"}}
    text = str(failure(golden, replace(run(2.0), provenance=now)))
    assert "made with python 3.10.1, torch 2.12.0, and these results with python 3.13.0, torch 2.13.0" in text
    assert golden.check(replace(run(), provenance=now)).agrees  # versions alone are no change
    assert "made with" not in str(failure(golden, replace(run(2.0), provenance=source)))


def test_models_tolerance_and_call_are_passed_to_compare(
    golden: embgrad.results.Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden.update(run())
    seen = []

    def compare(a: Any, b: Any, **options: Any) -> Any:
        seen.append(options)
        return embgrad.compare(a, b)

    monkeypatch.setattr(sys.modules["embgrad.comparison.golden"], "compare", compare)
    first, second = model(), model()
    golden.check(run(), models=first, tolerance=1e-3)
    golden.check(run(), models=(second, first), call=len)
    golden.check(run())
    assert [options["models"] for options in seen] == [(None, first), (second, first), (None, None)]
    assert [options["tolerance"] for options in seen] == [1e-3, None, None]
    assert seen[1]["call"] is len


def test_the_tolerance_decides(golden: embgrad.results.Golden) -> None:
    golden.update(run())
    assert golden.check(run(1.01), tolerance=0.05).agrees
    failure(golden, run(1.01), tolerance=0.001)
    golden.check(run(), tolerance=0)
    with pytest.raises(EmbgradError, match="tolerance is -1"):
        golden.check(run(), tolerance=-1)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"<<<<<<< HEAD\n"])
def test_a_broken_file_is_refused_and_can_be_rewritten(golden: embgrad.results.Golden, content: bytes) -> None:
    golden.path.parent.mkdir()
    golden.path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"not a complete safetensors file.*write it anew: call embgrad\.golden"):
        golden.check(run())
    with pytest.raises(FileFormatError):
        golden.load()
    golden.update(run())
    assert golden.check(run()).agrees


def test_a_failed_update_leaves_the_file(golden: embgrad.results.Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    golden.update(run())
    before = golden.path.read_bytes()

    def broken(*args: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("embgrad.common.files.os.replace", broken)
    with pytest.raises(OSError, match="disk full"):
        golden.update(run(2.0))
    assert golden.path.read_bytes() == before
    assert os.listdir(golden.path.parent) == ["g.safetensors"]
