"""A result that was saved is loaded bit for bit."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import embgrad
from tests.contract.properties.cases import Case, built
from tests.contract.properties.generating import cases
from tests.contract.properties.running import each_framework, property_of


def expect_same(found: Any, expected: Any, name: str) -> None:
    """Assert that two values are the same, arrays to the last bit."""
    assert type(found) is type(expected), name
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        assert found.tobytes() == expected.tobytes(), name
    elif dataclasses.is_dataclass(expected) and not isinstance(expected, embgrad.Certificate):
        for one in dataclasses.fields(expected):
            expect_same(getattr(found, one.name), getattr(expected, one.name), f"{name}.{one.name}")
    elif isinstance(expected, tuple):
        assert len(found) == len(expected), name
        for number, pair in enumerate(zip(found, expected, strict=True)):
            expect_same(*pair, f"{name}[{number}]")
    elif isinstance(expected, dict):
        assert list(found) == list(expected), name
        for key, value in expected.items():
            expect_same(found[key], value, f"{name}[{key!r}]")
    else:
        assert found == expected, name


@each_framework
@property_of
@given(
    case=cases(meets=True) | cases(),
    several=st.booleans(),
    options=st.sampled_from(
        [{}, {"split": True}, {"batch_size": 2}, {"pads": "zero"}, {"edit": {"word": np.negative}}, {"check": True}]
    ),
)
def test_what_was_saved_is_loaded(framework: str, case: Case, several: bool, options: dict[str, Any]) -> None:
    found = case.gradients(built(framework, case.spec), case.points if several else "word", **options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g.safetensors"
        embgrad.save(found, path)
        expect_same(embgrad.load(path), found, "result")
