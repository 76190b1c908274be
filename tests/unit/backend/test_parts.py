"""The parts that backends share: module calls, changes at points, the arguments of a user's call."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend import Request
from embgrad.backend.arguments import integer_arguments, named_arguments
from embgrad.backend.cotangents import compute_dtype
from embgrad.backend.module_calls import ModuleCalls
from embgrad.backend.point_changes import PointChanges
from embgrad.backend.table_rests import table_rests
from embgrad.forward.recorder import PassRecorder

BATCH = embgrad.TokenBatch(ids=np.array([[1, 2]]))


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def _recorded(names: tuple[str, ...] | None, times: dict[str, int] | None = None) -> ModuleCalls:
    return ModuleCalls(PassRecorder(BATCH, names, times), _is_array, lambda key, tensor: tensor + 10)


def test_calls_are_recorded_with_their_nesting() -> None:
    calls = _recorded(None)
    calls.around(
        lambda x: calls.around(lambda x: x + 1, "outer.inner", "Inner", (x,), {}), "outer", "Outer", (np.zeros(2),), {}
    )
    assert [call.path for call in calls.watch.calls] == ["outer", "outer.inner"]
    assert [call.parent for call in calls.watch.calls] == [None, 0]
    assert [call.token_shape for call in calls.watch.calls] == [(2,), (2,)]


@pytest.mark.parametrize(("name", "expected"), [("net:input#0", 12.0), ("net:output#0", 12.0), ("other:output#0", 2.0)])
def test_a_points_tensor_is_replaced_where_it_is_named(name: str, expected: float) -> None:
    calls = _recorded((name,))
    returned = calls.around(lambda x, *, y: (x + y, "more"), "net", "Net", (np.ones(1),), {"y": 1})
    assert returned == (expected, "more")


def test_a_call_that_raises_is_closed() -> None:
    calls = _recorded(None)
    with pytest.raises(ZeroDivisionError):
        calls.around(lambda x: 1 / 0, "net", "Net", (np.zeros(2),), {})
    calls.around(lambda x: x, "next", "Next", (np.zeros(2),), {})
    assert calls.watch.calls[1].parent is None


def test_other_modules_are_called_and_counted() -> None:
    calls = _recorded((), {"net:": 1})
    assert calls.around(lambda x: x, "net", "Net", (1,), {}) == 1
    assert calls.around(lambda x: x, "unknown", "Net", (2,), {}) == 2
    assert not calls.watch.calls
    assert calls.watch.times == {"net:": 1}


def _changes(aside: Any = contextlib.nullcontext, **changes: Any) -> PointChanges[np.ndarray]:
    request = Request(("net:output#0",), lambda outputs: [], **changes)
    return PointChanges(request, np.copy, lambda array, like: array.astype(like.dtype), aside)


def test_a_value_is_overridden_and_then_added_to() -> None:
    changes = _changes(override={"a": lambda x: x * 2.0}, add={"a": lambda x: x + 1.0, "b": lambda x: x})
    np.testing.assert_array_equal(changes.value("a", np.ones(2, np.float32)), [5, 5])
    np.testing.assert_array_equal(changes.value("b", np.ones(2)), [2, 2])
    np.testing.assert_array_equal(changes.value("c", np.ones(2)), [1, 1])
    assert changes.value("a", np.ones(2, np.float32)).dtype == np.float32
    assert [changes.overrides(key) for key in "abc"] == [True, False, False]


def test_an_edited_gradient_is_kept_as_it_came() -> None:
    changes = _changes(edit={"a": lambda grad: grad * 0})
    gradient = np.ones(2)
    np.testing.assert_array_equal(changes.gradient("a", gradient), [0, 0])
    np.testing.assert_array_equal(changes.before["a"], [1, 1])
    assert changes.gradient("b", gradient) is gradient
    assert "b" not in changes.before


def test_users_functions_run_aside_and_get_a_copy() -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def aside() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    def inplace(x: np.ndarray) -> np.ndarray:
        assert entered[-1] == "in"
        x *= 2
        return x

    value = np.ones(2)
    np.testing.assert_array_equal(_changes(aside, override={"a": inplace}).value("a", value), [2, 2])
    np.testing.assert_array_equal(value, [1, 1])
    assert entered == ["in", "out"]


def _parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def test_arguments_go_by_the_parameters_names() -> None:
    parameters = _parameters(lambda ids, mask=None, **more: None)
    assert named_arguments(parameters, (1,), {"mask": 2, "other": 3}) == {"ids": 1, "mask": 2, "more": {"other": 3}}
    assert named_arguments(parameters, (1, 2, 3), {}) is None


def _whole(name: str, value: Any) -> np.ndarray | None:
    return value.copy() if isinstance(value, np.ndarray) and value.dtype.kind == "i" else None


def test_whole_numbers_are_found_in_dicts_and_sequences() -> None:
    ids, mask, floats = np.array([1]), np.array([0]), np.array([0.5])
    found = integer_arguments({"inputs": {"ids": ids, "mask": [mask, floats]}, "more": (floats, ids)}, _whole)
    assert found == {"ids": ids, "mask.0": mask, "more.1": ids}
    assert found["ids"] is not ids
    assert list(integer_arguments({"inputs": [ids, mask]}, _whole, ["token_ids", "padding"])) == [
        "token_ids",
        "padding",
    ]


def test_sequences_are_left_alone_where_ids_may_be_floats() -> None:
    ids, state = np.array([1]), np.array([0])
    assert list(integer_arguments({"inputs": {"ids": ids}, "states": [state]}, _whole, sequences=False)) == ["ids"]


def test_what_reaches_a_shared_table_is_added_up() -> None:
    names = {"word:lookup#0": ("word.weight", "head.weight", "decoder.weight"), "type:lookup#0": ["type.weight"]}
    gradients = {"word.weight": np.ones((2, 3)), "head.weight": np.full((2, 3), 2.0), "type.weight": None}
    rests = table_rests(names, gradients)
    np.testing.assert_array_equal(rests["word:lookup#0"].gradient, np.full((2, 3), 3.0))
    assert rests["word:lookup#0"].names == ("word.weight", "head.weight", "decoder.weight")
    assert rests["type:lookup#0"].gradient is None


def test_the_compute_dtype_is_the_coarsest_that_shows() -> None:
    assert compute_dtype(["float32", "bfloat16"], iter(["float64"])) == "bfloat16"
    assert compute_dtype([], iter(["float64", "float16"])) == "float64"
    assert compute_dtype([], []) == "float32"
