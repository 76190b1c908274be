"""The parts that backends share: module calls, changes at points, the arguments of a user's call."""

from __future__ import annotations

import inspect
from typing import Any

from embgrad.backend.arguments import named_arguments
from embgrad.backend.cotangents import compute_dtype


def _parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def test_arguments_go_by_the_parameters_names() -> None:
    parameters = _parameters(lambda ids, mask=None, **more: None)
    assert named_arguments(parameters, (1,), {"mask": 2, "other": 3}) == {"ids": 1, "mask": 2, "more": {"other": 3}}
    assert named_arguments(parameters, (1, 2, 3), {}) is None


def test_the_compute_dtype_is_the_coarsest_that_shows() -> None:
    assert compute_dtype(["float32", "bfloat16"], iter(["float64"])) == "bfloat16"
    assert compute_dtype([], iter(["float64", "float16"])) == "float64"
    assert compute_dtype([], []) == "float32"
