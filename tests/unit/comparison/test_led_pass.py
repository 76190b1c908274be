"""One model is led by the values of the other."""

from __future__ import annotations

import numpy as np

from embgrad.comparison.led_pass import Led, can_be_led, lead
from embgrad.comparison.recording import FINAL
from embgrad.comparison.sites import Pair
from tests.unit.comparison.recorded import Pass, recording

X = np.random.default_rng(0).normal(size=(2, 4, 6))

A = Pass({"one": lambda at: X, "two": lambda at: at["one"] * 2, FINAL: lambda at: at["two"] + 1})


B = Pass({"eins": lambda at: X + 5, "zwei": lambda at: at["eins"] * 3, FINAL: lambda at: at["zwei"] - 1})


PAIRS = [Pair("one", "one", "eins"), Pair("two", "two", "zwei"), Pair(FINAL, FINAL, FINAL)]


def led(pairs: list[Pair] = PAIRS, a: Pass = A, b: Pass = B) -> Led:
    return lead(pairs, a.record(), b.record(), "b", gradients=True)


def test_each_point_is_computed_from_the_values_of_the_leader() -> None:
    result = led()
    assert result.follower == "b"
    np.testing.assert_array_equal(result.values[0], X + 5)
    np.testing.assert_array_equal(result.values[1], X * 3)
    np.testing.assert_array_equal(result.values[2], X * 2 - 1)
    np.testing.assert_array_equal(result.final if result.final is not None else 0, X * 2 - 1)
    assert result.gradients == {}


def test_parts_are_put_in_at_their_features() -> None:
    rows, others = np.array([1, 3]), np.array([0, 2])
    result = led([Pair("one", "one", "eins", rows, others), PAIRS[2]])
    np.testing.assert_array_equal(result.values[0], (X + 5)[..., others])
    wanted = X + 5
    wanted[..., others] = X[..., rows]
    np.testing.assert_array_equal(result.values[1], wanted * 3 - 1)


def test_two_parts_of_one_tensor_are_both_put_in() -> None:
    low, high = np.arange(3), np.arange(3, 6)
    result = led([Pair("one[0:3]", "one", "eins", low, low), Pair("one[3:6]", "two", "eins", high, high), PAIRS[2]])
    np.testing.assert_array_equal(result.values[1], X[..., high] + 5)
    np.testing.assert_array_equal(result.values[2], np.concatenate([X[..., low], 2 * X[..., high]], -1) * 3 - 1)


def test_a_follower_without_an_output_has_no_last_value() -> None:
    short = Pass({"eins": lambda at: X + 5})
    result = led(PAIRS[:1], b=short)
    assert list(result.values) == [0]
    assert result.final is None


def test_gradients_are_led_where_the_leader_has_some() -> None:
    a = Pass(A.steps, {"one": X * 7})
    b = Pass(B.steps, {"eins": X * 8, "zwei": X * 9})
    result = led(a=a, b=b)
    assert list(result.gradients) == [0]
    np.testing.assert_array_equal(result.gradients[0], X * 8)


def test_gradients_are_left_as_they_are_unless_requested() -> None:
    a, b = Pass(A.steps, {"one": X * 7}), Pass(B.steps, {"eins": X * 8})
    assert lead(PAIRS, a.record(), b.record(), "b").gradients == {}


def test_the_gradients_that_are_put_in_are_those_of_the_leader() -> None:
    put: list[np.ndarray] = []

    class Listening(Pass):
        def led(self, values, gradients):  # type: ignore[no-untyped-def]
            put.append(gradients["eins"](X * 8))
            return super().led(values, gradients)

    led(a=Pass(A.steps, {"one": X * 7}), b=Listening(B.steps, {"eins": X * 8}))
    np.testing.assert_array_equal(put[0], X * 7)


def test_a_folder_and_a_model_without_changes_cannot_be_led() -> None:
    assert can_be_led(A.record())
    assert not can_be_led(Pass(A.steps, can_be_led=False).record())
    assert not can_be_led(recording([]))
