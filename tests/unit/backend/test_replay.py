"""Several runs of a request that call the user's functions once for the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad.backend import Request
from embgrad.backend.replay import Retries

VALUE = np.arange(6.0).reshape(2, 3)


def test_a_function_is_called_once_in_several_tries() -> None:
    called: list[Any] = []

    def change(value: Any) -> Any:
        called.append(value.copy())
        value += len(called)  # as a function may that is given an array to write into
        return value

    tries = Retries(Request(("word",), lambda _: [], add={"word": change}))
    for _ in range(3):
        function = tries.next().add["word"]
        np.testing.assert_array_equal(function(VALUE.copy()), VALUE + 1)
        np.testing.assert_array_equal(function(VALUE.copy()), VALUE + 2)  # the point is come by again
        assert len(called) == 2
    function = tries.next().add["word"]
    np.testing.assert_array_equal(function(VALUE * (1 + 1e-12)), VALUE + 1)
    np.testing.assert_array_equal(function(VALUE * 1e-9), VALUE * 1e-9 + 3)  # another value, however small
    np.testing.assert_array_equal(function(VALUE[:1].copy()), VALUE[:1] + 4)
    assert len(called) == 4


@pytest.mark.parametrize("other", [1e3, np.nan, np.inf])
def test_one_entry_of_many_makes_another_value(other: float) -> None:
    values = np.ones((300, 100))
    tries = Retries(Request(("word",), lambda _: [], add={"word": lambda value: value * 2}))
    np.testing.assert_array_equal(tries.next().add["word"](values), values * 2)
    for index in (1, 2, 6, 14_000, 29_999):
        changed = values.copy()
        changed.flat[index] = other
        np.testing.assert_array_equal(tries.next().add["word"](changed), changed * 2)


def test_an_error_of_a_try_propagates_and_is_not_recorded() -> None:
    raised = [KeyboardInterrupt]

    def change(value: Any) -> Any:
        if raised:
            raise raised.pop()
        return value

    tries = Retries(Request(("word",), lambda _: [], edit={"word": change}))
    with pytest.raises(KeyboardInterrupt):
        tries.next().edit["word"](VALUE)
    np.testing.assert_array_equal(tries.next().edit["word"](VALUE), VALUE)
