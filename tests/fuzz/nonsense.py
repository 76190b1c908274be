"""Values that are wrong almost anywhere, and right ones in unusual forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.drawing import Draw


class Odd:
    """An object without any method."""

    def __repr__(self) -> str:
        return "Odd()"


def nonsense(draw: Draw, numbers: bool = True) -> Any:
    """Return anything but an integer, a name, an array of integers or a function; without `numbers` no number at all."""
    makers: list[Callable[[], Any]] = [
        lambda: "loud",
        lambda: b"bytes",
        lambda: Odd(),
        lambda: {"a": 1},
        lambda: {1, 2},
        lambda: [[1, 2], [3]],
        lambda: [],
        lambda: np.array([], np.float32),
        lambda: np.array([1 + 2j]),
        lambda: np.array([None, "x"], object),
        lambda: np.array(["2024-01-01"], "datetime64[D]"),
        lambda: float("nan"),
        lambda: float("-inf"),
        lambda: np.array([np.nan, 1.0]),
        lambda: 0.5,
        lambda: 10**30,
        lambda: np.ma.masked_array([1, 2, 3], [0, 1, 0]),
        lambda: ["a", 1, None],
        lambda: (i for i in range(3)),
        lambda: Ellipsis,
        lambda: 3 + 4j,
    ]
    if not numbers:
        makers = [make for make in makers if not isinstance(make(), (int, float))]
    return draw.choice(makers)()


def disguised(draw: Draw, array: np.ndarray) -> Any:
    """Return the same numbers as a list, read-only, in another dtype or byte order, or not contiguous."""
    array = np.asarray(array)
    if array.ndim == 0:
        return draw.choice([array, array.item(), array[()]])
    whole = array.dtype.kind in "iu"
    forms: list[Callable[[], Any]] = [
        lambda: array,
        lambda: array.tolist(),
        lambda: _read_only(array),
        lambda: _strided(array),
        lambda: np.asfortranarray(array),
        lambda: array.astype(array.dtype.newbyteorder(">")),
        lambda: array.astype(np.int32 if whole else np.float64),
        lambda: array.astype(np.float64),
    ]
    return draw.choice(forms)()


def _read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _strided(array: np.ndarray) -> np.ndarray:
    """Return a copy as every second entry of a larger array, in reverse."""
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    view = wide[..., ::-2]
    view[...] = array
    return view
