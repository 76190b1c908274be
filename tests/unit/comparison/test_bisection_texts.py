"""The sentences of a bisection about weights, random numbers and what is not compared."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.bisect import _half, _notes, _randomness, _unreached, _weight, _weights
from embgrad.comparison.bisection_records import Suspect
from embgrad.comparison.recording import contains
from embgrad.comparison.track import Divergence
from embgrad.errors import EmbgradError
from tests.unit.comparison.recorded import recording, tensor

X = np.zeros((2, 4, 3))
FORWARD, BACKWARD = Divergence(1, 0, True), Divergence(1, 0, False)
EQUAL, OTHER = Suspect("up.W", "fc.W", "equal", 0.0), Suspect("up.W", "fc.W", "different", 0.25)


@pytest.mark.parametrize(
    ("dtypes", "half"),
    [(("float16", "float16"), "float16"), (("float16", "bfloat16"), "bfloat16"), (("float16", "float32"), None),
        (("float32", "float32"), None)],
)  # fmt: skip
def test_half_precision_counts_where_both_compute_in_it(dtypes: tuple[str, str], half: str | None) -> None:
    first, second = (recording([], dtype=dtype) for dtype in dtypes)
    assert _half(first, second) == half


@pytest.mark.parametrize(
    ("suspect", "text"),
    [
        (OTHER, "'up.W' (different, relative L2 2.5e-01, in b 'fc.W')"),
        (Suspect("up.W", "up.W", "times 2", 1.0), "'up.W' (times 2, relative L2 1.0e+00)"),
        (Suspect("up.W", None, "only in a", float("inf")), "'up.W' (only in a)"),
        (Suspect(None, "up.W", "only in b", float("inf")), "'up.W' (only in b)"),
        (Suspect("up.W", "up.W", "transposed", 0.0), "'up.W' (transposed)"),
    ],
)
def test_a_weight_is_named_with_its_relation(suspect: Suspect, text: str) -> None:
    assert _weight(suspect) == text


@pytest.mark.parametrize(("count", "more"), [(4, ""), (6, " and 2 more")])
def test_four_weights_that_differ_are_named(count: int, more: str) -> None:
    suspects = [replace(OTHER, a=f"w{number}", b=f"w{number}") for number in range(count)]
    named = ", ".join(f"'w{number}' (different, relative L2 2.5e-01)" for number in range(4))
    assert _weights(FORWARD, [*suspects, EQUAL], is_known=False) == [f"These of its weights differ: {named}{more}."]


@pytest.mark.parametrize(
    ("count", "start"), [(0, "No weight lies there"), (1, "Its only weight agrees"), (2, "Its 2 weights agree")]
)
def test_weights_that_agree_are_counted(count: int, start: str) -> None:
    suspects = [EQUAL] * count
    check = "check an epsilon, an activation, a scale, a mask, dropout, a residual"
    assert _weights(FORWARD, suspects, is_known=False) == [f"{start}, so the computation there differs: {check}."]
    assert _weights(FORWARD, suspects, is_known=True) == [f"{start}, so the computation there differs."]
    (text,) = _weights(BACKWARD, suspects, is_known=False)
    end = "so the computation of the gradient differs: check for a custom backward pass or a detached tensor."
    assert text == f"{start}, {end}"


def test_one_random_model_or_two() -> None:
    end = "random numbers in evaluation mode, for example by dropout that was left on."
    one = f"b gives different results when run again, first at 'layer.1' in b: it draws {end}"
    two = f"a and b give different results when run again, first at 'word' in a, 'layer.1' in b: they draw {end}"
    assert _randomness({"b": "layer.1"}) == one
    assert _randomness({"a": "word", "b": "layer.1"}) == two


def track(a: Any, b: Any, pairs: tuple[Any, ...] = ()) -> Any:
    return SimpleNamespace(a=a, b=b, pairs=pairs)


def test_what_is_not_compared_is_said() -> None:
    first = recording([tensor("x", X, 1.0, ["word", "layer.0"]), tensor("y:output#0", X, 2.0, ["layer.1", "layer.-1"])])
    second = recording([tensor("x", X[..., :2], 1.0, ["layer.0", "word"])], dtype="float32")
    assert _notes(track(first, first)) == []
    assert _notes(track(first, second)) == [
        "A has 2 layers, b 1.",
        "At 'word' a has 3 features, b 2.",
        "A computes in float64, b in float32.",
    ]
    failed = replace(first, failure=EmbgradError("no loss"))
    assert _notes(track(failed, first)) == ["A alone: no loss."]
    assert _notes(track(first, failed)) == ["B alone: no loss."]
    assert _notes(track(failed, failed)) == ["Neither model has gradients, so none were compared: no loss."]


def test_a_gradient_of_one_model_alone_is_said() -> None:
    with_gradient, without = (recording([tensor("x", X, gradient=gradient)]) for gradient in (X, None))
    pairs = (SimpleNamespace(a="x", b="x"),)
    assert _unreached(track(with_gradient, without, pairs), 0) == ", which no gradient reaches in b"
    assert _unreached(track(without, with_gradient, pairs), 0) == ", which no gradient reaches in a"
    assert (
        _unreached(track(without, without, pairs), 0) == _unreached(track(with_gradient, with_gradient, pairs), 0) == ""
    )


@pytest.mark.parametrize(
    ("path", "inner", "wanted"),
    [("", "up", True), ("up", "up", True), ("up", "up.inner", True), ("up", "up/inner", True), ("up", "upper", False),
        ("up.inner", "up", False)],
)  # fmt: skip
def test_a_module_contains_itself_and_those_below(path: str, inner: str, wanted: bool) -> None:
    assert contains(path, inner) is wanted
