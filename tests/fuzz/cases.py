"""A call of the fuzzer, and the comparisons that judge its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import embgrad
from tests.fuzz.worlds import World

#: The errors by which embgrad refuses a call.
REFUSAL: Final = (embgrad.EmbgradError,)

#: The beginning of Gluon's warning about a hybridised net with an unused weight.
UNUSED: Final = ("Parameter ",)


class Wrong(Exception):
    """A result is not what it must be."""


@dataclass
class Case:
    """One call.

    Attributes:
        function: the name of the public function.
        text: the call with all its arguments, for the reader.
        run: makes the call.
        judge: raises Wrong for a wrong result; None where the call must be refused.
        refused: the errors that are allowed instead of a result, or required where `judge` is None.
        worlds: the models of the call, which must not change.
        arguments: the arguments, which must not change.
        warns: True if an EmbgradWarning is allowed.
        random_moves: True if random numbers may be drawn.
        framework: the column that counts the call.
        foreign: the beginnings of warnings that the framework gives the user's own code.
    """

    function: str
    text: str
    run: Callable[[], Any]
    judge: Callable[[Any], None] | None
    refused: tuple[type[BaseException], ...] = ()
    worlds: Sequence[World] = ()
    arguments: Sequence[Any] = ()
    warns: bool = False
    random_moves: bool = False
    framework: str = "none"
    foreign: tuple[str, ...] = ()


def expect(holds: Any, said: str) -> None:
    if not holds:
        raise Wrong(said)


def expect_equal(actual: Any, expected: Any, name: str) -> None:
    if isinstance(expected, np.ndarray) or isinstance(actual, np.ndarray):
        actual, expected = np.asarray(actual), np.asarray(expected)
        same = actual.shape == expected.shape and np.array_equal(actual, expected, equal_nan=actual.dtype.kind == "f")
    else:
        same = actual == expected
    expect(same, f"{name} is {_shown(actual)}: expected {_shown(expected)}")


def expect_close(actual: Any, expected: Any, tolerance: float, name: str, floor: float = 1e-2) -> None:
    """Expect a difference of at most the tolerance times the largest expected entry or the floor."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    expect(actual.shape == expected.shape, f"{name} has the shape {actual.shape}: expected {expected.shape}")
    if not expected.size:
        return
    scale = max(float(np.abs(expected).max()), floor)
    apart = np.abs(actual.astype(np.float64) - expected)
    largest = float(apart.max())  # NaN compares false
    if not largest <= tolerance * scale:
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.nan_to_num(apart, nan=np.inf))), apart.shape))
        raise Wrong(
            f"{name} is {actual[index]!r} at {index}, off by {largest:.3g}: expected {expected[index]!r} (tolerance "
            f"{tolerance} of {scale:.3g})"
        )


def _shown(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) < 200 else text[:197] + "..."
