"""Checks of the fields that all stored results have; each raises `SchemaError`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from embgrad.common.schema import SchemaError
from embgrad.errors import brief

__all__ = [
    "EXPECTED",
    "Fields",
    "arrays_by_key",
    "check_positions",
    "checked_provenance",
    "checked_tokens",
    "expect_dtype",
    "expect_shape",
]

#: The arguments of a result's class.
Fields: TypeAlias = dict[str, Any]

EXPECTED: Final = "expected what embgrad.save writes"

#: The arrays with one number for each position, and the smallest number that each may hold.
_LEAST: Final = {"ids": 0, "mask": 0, "types": 0, "words": -1}


def arrays_by_key(result: Any, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the arrays that a result has, by their names in a file; `names` maps these to its attributes."""
    present = {key: getattr(result, name) for key, name in names.items()}
    return {key: np.asarray(value) for key, value in present.items() if value is not None}


def check_positions(arrays: Mapping[str, np.ndarray]) -> None:
    """Check the arrays that have one number for each position: the ids, and the mask, types and words where there are any."""
    for name, least in _LEAST.items():
        if name in arrays:
            expect_dtype(name, arrays[name], ("int64",))
            expect_shape(name, arrays[name], arrays["ids"].shape, "ids")
            if arrays[name].min() < least:
                raise SchemaError(f"holds {arrays[name].min()} in {name}: expected no number below {least}")
    if "mask" in arrays and arrays["mask"].max() > 1:
        raise SchemaError(f"holds {arrays['mask'].max()} in mask: expected 1 at real positions and 0 at padding")


def expect_dtype(name: str, array: np.ndarray, dtypes: Sequence[str]) -> None:
    """Raise an error for an array of another dtype than these."""
    if str(array.dtype) not in dtypes:
        raise SchemaError(f"holds {name} of dtype {array.dtype}: expected {' or '.join(dtypes)}")


def expect_shape(name: str, array: np.ndarray, shape: tuple[int, ...], like: str) -> None:
    """Raise an error for an array of another shape than that of the array named `like`."""
    if array.shape != shape:
        raise SchemaError(f"holds {name} of shape {array.shape}: expected {shape}, as the {like}")


def checked_tokens(tokens: Any, shape: tuple[int, ...]) -> tuple[tuple[str, ...], ...] | None:
    """Return the tokens' texts, one tuple for each example."""
    if tokens is None:
        return None
    listed = isinstance(tokens, list) and all(isinstance(example, list) for example in tokens)
    if len(shape) != 2 or not listed or (len(tokens), {*map(len, tokens)}) != (shape[0], {shape[1]}):
        raise SchemaError(f"holds tokens that are not one for each of the ids, whose shape is {shape}: {EXPECTED}")
    if wrong := [token for example in tokens for token in example if not isinstance(token, str)]:
        raise SchemaError(f"holds the token {brief(wrong[0])}: expected text")
    return tuple(tuple(example) for example in tokens)


def checked_provenance(provenance: Any) -> dict[str, Any]:
    """Return the provenance, whose entries that the package reads have the types that it expects."""
    if not isinstance(provenance, dict):
        raise SchemaError(f"holds {brief(provenance)} as provenance: expected an object")
    for key in ("backend", "model", "point", "path", "compute_dtype"):
        if not isinstance(provenance.get(key, ""), str):
            raise SchemaError(f"holds {brief(provenance[key])} as provenance[{key!r}]: expected text")
    objective, versions = provenance.get("objective", {}), provenance.get("versions", {})
    if not isinstance(objective, dict) or not isinstance(objective.get("class", ""), str):
        raise SchemaError(
            f"holds {brief(objective)} as provenance['objective']: expected an object with the class's name"
        )
    if not isinstance(versions, dict) or not all(isinstance(version, str) for version in versions.values()):
        raise SchemaError(f"holds {brief(versions)} as provenance['versions']: expected text by library")
    return provenance
