"""A call of the fuzzer: what is called, with what, what must come of it, and how that is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import embgrad
from tests.fuzz.worlds import World

#: What a refusal of embgrad's is.
REFUSAL: Final = (embgrad.EmbgradError,)

#: What Gluon says, in the user's own pass, of a hybridised net in which a weight is of no use.
UNUSED: Final = ("Parameter ",)


class Wrong(Exception):
    """A result is not what it must be."""


@dataclass
class Case:
    """One call.

    Attributes:
        function: the public function.
        text: the call with all that it is given, for a reader.
        run: makes the call.
        judge: raises Wrong where the result is wrong; None where there must be no result.
        refused: what errors may come instead of a result, or must where `judge` is None: embgrad's, and those of the
            user's own functions that come out as they are.
        worlds: the models that are touched, which must stay as they were.
        arguments: what is given, which must stay as it was.
        warns: an EmbgradWarning may come.
        random_moves: random numbers may be drawn.
        framework: whose column it is counted in.
        foreign: how warnings begin that the framework gives the user's own code in the call.
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

    @property
    def broken(self) -> bool:
        return self.judge is None


def expect(holds: Any, said: str) -> None:
    if not holds:
        raise Wrong(said)


def expect_equal(actual: Any, expected: Any, name: str) -> None:
    """That two values are the same, arrays to the last bit."""
    if isinstance(expected, np.ndarray) or isinstance(actual, np.ndarray):
        actual, expected = np.asarray(actual), np.asarray(expected)
        same = actual.shape == expected.shape and np.array_equal(actual, expected, equal_nan=actual.dtype.kind == "f")
    else:
        same = actual == expected
    expect(same, f"{name} is {_shown(actual)}: expected {_shown(expected)}")


def expect_close(actual: Any, expected: Any, tolerance: float, name: str, floor: float = 1e-2) -> None:
    """That two arrays differ by no more than the tolerance times the largest expected entry, or the floor."""
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
