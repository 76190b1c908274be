"""Changes that users make at points: arrays and functions for `override`, `add` and `edit`, prepared for a tensor's axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.errors import PointError, PointNotReachedError, UnsupportedError, brief
from embgrad.forward.axes import Arrangement

__all__ = ["BroadcastArray", "checked_changes", "prepared"]

#: The kinds of dtypes that hold real numbers.
REAL: Final = "biuf"

#: A tensor in its own axes → another of the same shape.
Change = Callable[[np.ndarray], np.ndarray]


class BroadcastArray(NamedTuple):
    """An array for every batch of a stream, which must have no example axis."""

    array: np.ndarray


def checked_changes(given: Any, option: str) -> dict[str, Any]:
    """Return the option `override`, `add` or `edit` as a dict of functions and float64 arrays by the points' names.

    Raises:
        PointError: the option is not a dict of names, or a value is neither a function nor an array.
    """
    if given is None:
        return {}
    example = "lambda grad: grad * 0" if option == "edit" else "array"
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise PointError(
            f"{option} is {brief(given)}: expected a dict by the names of points, {{'layer.-1': {example}}}"
        )
    ready = {name: callable(value) or isinstance(value, BroadcastArray) for name, value in given.items()}
    return {name: value if ready[name] else _array(value, name, option) for name, value in given.items()}


def _array(value: Any, name: str, option: str) -> np.ndarray:
    if option == "edit":
        raise PointError(
            f"edit[{name!r}] is {brief(value)}: expected a function that takes the gradient and gives the one that goes on in "
            "its place, or changes it in place"
        )
    try:
        array = to_numpy(value)
    except ValueError as error:
        raise PointError(
            f"{option}[{name!r}] is {brief(value)}, which is no array of numbers ({error}): expected an array that broadcasts "
            "to the point's shape, or a function"
        ) from error
    return np.array(_real(option, name, array), dtype=np.float64)


def prepared(
    option: str, name: str, change: Any, place: Arrangement, examples: slice = slice(None), count: int | None = None
) -> Change:
    """Return the change as a backend makes it, in the tensor's own axes.

    Args:
        option: "override", "add" or "edit".
        name: the point's name as the user gave it.
        change: a function or an array in the axes that the user sees; the array may be `BroadcastArray`.
        place: the point's arrangement.
        examples: which examples of the whole batch are run; an array with an example axis is cut alike.
        count: how many examples the whole batch has; None where it is not cut.

    Raises:
        PointError: an array does not fit the point; raised for a function's result when the change is made.
        PointNotReachedError: the point has another shape than the arrangement says when the change is made.
        UnsupportedError: an array for many batches has an entry for each example.
    """
    if isinstance(change, BroadcastArray):
        change = _without_examples(option, name, change.array, place)
    if not callable(change):
        fixed = _fitting(option, name, _cut(change, place, examples, count), place)

        def constant(value: np.ndarray) -> np.ndarray:
            _expect_shape(name, value, place)
            return fixed

        return constant

    def called(value: np.ndarray) -> np.ndarray:
        _expect_shape(name, value, place)
        given = np.array(value.reshape(place.editable) if place.shared else place.to_user_axes(value), order="C")
        result = change(given)
        if result is None and option == "add":
            raise PointError(f"the function add[{name!r}] returned None: expected what is to be added")
        return _fitting(option, name, given if result is None else _numbers(option, name, result), place)

    return called


def _cut(array: np.ndarray, place: Arrangement, examples: slice, count: int | None) -> np.ndarray:
    """Return the array for the examples that are run: cut where it has an entry for each example of the whole batch."""
    if count is None or place.shared or array.ndim != len(place.shape) or len(array) != count:
        return array
    run = len(range(*examples.indices(count)))
    return array[examples] if place.shape[0] == run < count else array


def _without_examples(option: str, name: str, array: np.ndarray, place: Arrangement) -> np.ndarray:
    by_example = not place.shared and place.ids.ndim == 2 and place.shape[0] == len(place.ids)
    if by_example and array.ndim == len(place.shape) and len(array) > 1:
        raise UnsupportedError(
            f"{option}[{name!r}] has the shape {array.shape}, and the point {place.shape}, an entry for each example, and a "
            "stream has many batches: expected an array for all examples alike, or a function of the value"
        )
    return array


def _expect_shape(name: str, value: np.ndarray, place: Arrangement) -> None:
    if value.shape != place.native:
        raise PointNotReachedError(
            f"the point {name!r} has the shape {value.shape}, and had {place.native} in an earlier pass: expected a model that "
            "makes the same calls each time"
        )


def _numbers(option: str, name: str, result: Any) -> np.ndarray:
    try:
        array = to_numpy(result)
    except ValueError as error:
        raise PointError(
            f"the function {option}[{name!r}] returned {brief(result)}, which is no array of numbers ({error}): expected one of "
            "the shape that it was given, or None where it has written into that"
        ) from error
    return _real(option, name, array)


def _real(option: str, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in REAL:
        return array
    if array.dtype.name == "bfloat16":  # as TensorFlow gives it, and hardly anything takes it
        return array.astype(np.float32)
    raise PointError(f"{option}[{name!r}] is of dtype {array.dtype}: expected an array of real numbers, or a function")


def _of_one_example(option: str, name: str, array: np.ndarray) -> np.ndarray:
    """Return one example's array for a tensor that all examples share; refuse an array with other values for other examples."""
    if len(array) == 0 or not np.array_equal(
        array, np.broadcast_to(array[:1], array.shape), equal_nan=array.dtype.kind == "f"
    ):
        raise PointError(
            f"{option}[{name!r}] has the shape {array.shape}, with other values for other examples: all share one tensor "
            f"there; expected one for all of them, of the shape {array.shape[1:]}"
        )
    first: np.ndarray = array[0]
    return first


def _fitting(option: str, name: str, array: np.ndarray, place: Arrangement) -> np.ndarray:
    """Return the array broadcast to the point, in the tensor's own axes."""
    if place.shared and array.ndim == len(place.shape):
        array = _of_one_example(option, name, array)
    try:
        spread = np.broadcast_to(array, place.editable)
    except ValueError:
        raise PointError(
            f"{option}[{name!r}] has the shape {array.shape}: expected one that broadcasts to the point's, {place.editable}"
        ) from None
    return np.ascontiguousarray(spread.reshape(place.native) if place.shared else place.to_native_axes(spread))
