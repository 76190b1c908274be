"""Changes that users make at points: arrays and functions for `override`, `add` and `edit`, prepared for a tensor's axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.errors import PointError, PointNotReachedError, UnsupportedError, brief
from embgrad.model_points.axes import Arrangement

__all__ = ["BroadcastArray", "check_changes", "check_option", "prepare"]

#: The kinds of dtypes that hold real numbers.
REAL: Final = "biuf"

#: Takes a tensor's values in its own axes, and returns values of the same shape.
Change = Callable[[np.ndarray], np.ndarray]


class BroadcastArray(NamedTuple):
    """An array for every batch of a stream, which must have no example axis."""

    array: np.ndarray


def check_changes(**options: Any) -> dict[str, dict[str, Any]]:
    """Return the options `override`, `add` and `edit` by name, each a dict of functions and float64 arrays by point."""
    return {option: {} if value is None else check_option(value, option) for option, value in options.items()}


def check_option(changes: Any, option: str) -> dict[str, Any]:
    """Return one of the options, as `check_changes` does."""
    example = "lambda grad: grad * 0" if option == "edit" else "array"
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) and name for name in changes):
        raise PointError(
            f"{option} is {brief(changes)}: expected a dict by the names of points, {{'layer.-1': {example}}}"
        )
    return {
        name: value if callable(value) or isinstance(value, BroadcastArray) else _array(value, name, option)
        for name, value in changes.items()
    }


def _array(value: Any, name: str, option: str) -> np.ndarray:
    if option == "edit":
        raise PointError(
            f"edit[{name!r}] is {brief(value)}: expected a function that takes the gradient, and returns the one that replaces "
            "it or writes into it"
        )
    try:
        array = to_numpy(value)
    except ValueError as error:
        raise PointError(
            f"{option}[{name!r}] is {brief(value)}, which is no array of numbers ({error}): expected an array that broadcasts "
            "to the point's shape, or a function"
        ) from error
    return np.array(_real(option, name, array), dtype=np.float64)


def prepare(
    option: str,
    name: str,
    change: Any,
    arrangement: Arrangement,
    examples: slice = slice(None),
    count: int | None = None,
) -> Change:
    """Return the change in the form that a backend takes, in the tensor's own axes.

    Args:
        option: "override", "add" or "edit".
        name: the point's name as the user gave it.
        change: a function or an array in the axes that the user sees; the array may be a `BroadcastArray`.
        examples: the examples of the whole batch that are run; an array with an example axis is sliced likewise.
        count: the number of examples in the whole batch; None where it is not split.

    Raises:
        PointError: an array does not fit the point; raised for a function's result when the change is made.
        PointNotReachedError: the point has another shape than the arrangement when the change is made.
        UnsupportedError: an array for many batches has an entry for each example.
    """
    if isinstance(change, BroadcastArray):
        change = _without_examples(option, name, change.array, arrangement)
    if not callable(change):
        spread = _spread(option, name, _cut(change, arrangement, examples, count), arrangement)
        fixed = _native(option, spread, arrangement) if arrangement.is_whole else None

        def constant(value: np.ndarray) -> np.ndarray:
            _expect_shape(name, value, arrangement)
            return _native(option, spread, arrangement, value) if fixed is None else fixed

        return constant

    def called(value: np.ndarray) -> np.ndarray:
        _expect_shape(name, value, arrangement)
        argument = np.array(
            value.reshape(arrangement.editable) if arrangement.shared else arrangement.to_user_axes(value), order="C"
        )
        result = change(argument)
        if result is None and option == "add":
            raise PointError(f"the function add[{name!r}] returned None: expected the array to add")
        spread = _spread(option, name, argument if result is None else _numbers(option, name, result), arrangement)
        return _native(option, spread, arrangement, value)

    return called


def _cut(array: np.ndarray, arrangement: Arrangement, examples: slice, count: int | None) -> np.ndarray:
    """Return the array for the examples that are run: sliced where it has an entry for each example of the whole batch."""
    if count is None or arrangement.shared or array.ndim != len(arrangement.shape) or len(array) != count:
        return array
    run = len(range(*examples.indices(count)))
    return array[examples] if arrangement.shape[0] == run < count else array


def _without_examples(option: str, name: str, array: np.ndarray, arrangement: Arrangement) -> np.ndarray:
    by_example = not arrangement.shared and arrangement.ids.ndim == 2 and arrangement.shape[0] == len(arrangement.ids)
    if by_example and array.ndim == len(arrangement.shape) and len(array) > 1:
        raise UnsupportedError(
            f"{option}[{name!r}] has the shape {array.shape}, and the point {arrangement.shape}, an entry for each example, but "
            "it is for many batches: expected an array for all examples alike, or a function of the value"
        )
    return array


def _expect_shape(name: str, value: np.ndarray, arrangement: Arrangement) -> None:
    if value.shape != arrangement.native:
        raise PointNotReachedError(
            f"the point {name!r} has the shape {value.shape}, and had {arrangement.native} in an earlier pass: expected a model "
            "that makes the same calls each time"
        )


def _numbers(option: str, name: str, result: Any) -> np.ndarray:
    try:
        array = to_numpy(result)
    except ValueError as error:
        raise PointError(
            f"the function {option}[{name!r}] returned {brief(result)}, which is no array of numbers ({error}): expected an "
            "array of its argument's shape, or None after writing into its argument"
        ) from error
    return _real(option, name, array)


def _real(option: str, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in REAL:
        return array
    if array.dtype.name == "bfloat16":  # TensorFlow's, which few NumPy functions support
        return array.astype(np.float32)
    raise PointError(f"{option}[{name!r}] is of dtype {array.dtype}: expected an array of real numbers, or a function")


def _of_one_example(option: str, name: str, array: np.ndarray) -> np.ndarray:
    """Return one example's array for a tensor that all examples share; refuse an array whose examples differ."""
    if len(array) == 0 or not np.array_equal(
        array, np.broadcast_to(array[:1], array.shape), equal_nan=array.dtype.kind == "f"
    ):
        raise PointError(
            f"{option}[{name!r}] has the shape {array.shape}, with different values for different examples, which share "
            f"one tensor there: expected one array for all of them, of the shape {array.shape[1:]}"
        )
    return np.asarray(array[0])


def _spread(option: str, name: str, array: np.ndarray, arrangement: Arrangement) -> np.ndarray:
    """Return the array broadcast to the point, in the axes that users see."""
    if arrangement.shared and array.ndim == len(arrangement.shape):
        array = _of_one_example(option, name, array)
    try:
        return np.broadcast_to(array, arrangement.editable)
    except ValueError:
        raise PointError(
            f"{option}[{name!r}] has the shape {array.shape}: expected one that broadcasts to the point's, {arrangement.editable}"
        ) from None


def _native(option: str, spread: np.ndarray, arrangement: Arrangement, value: np.ndarray | None = None) -> np.ndarray:
    """Return an array of the users' axes in the tensor's own axes; what users do not see stays as it is in `value`."""
    if arrangement.shared:
        return np.ascontiguousarray(spread.reshape(arrangement.native))
    return np.ascontiguousarray(arrangement.to_native_axes(spread, None if option == "add" else value))
