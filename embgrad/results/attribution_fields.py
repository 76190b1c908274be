"""The stored fields of an `Attribution`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.common.schema import SchemaError, expect_names
from embgrad.errors import BatchError, brief
from embgrad.inputs.checks import Text, checked_offsets, checked_texts
from embgrad.results.field_checks import (
    Fields,
    arrays_by_key,
    check_positions,
    checked_provenance,
    checked_tokens,
    expect_dtype,
    expect_shape,
)

__all__ = ["arrays_of", "checked_method", "checked_texts_of", "entry_of", "fields_of"]

#: The arrays that an attribution may hold: from their names in a file to its attributes.
_ARRAYS: Final = {
    "scores": "scores",
    "objective": "objective",
    "ids": "ids",
    "values": "values",
    "baseline_objective": "baseline_objective",
    "delta": "delta",
    "mask": "mask",
    "types": "types",
    "words": "words_of",
    "offsets": "offsets",
    "parts": "parts",
}
_REQUIRED: Final = ("scores", "objective", "ids")
_FIELDS: Final = ("tokens", "texts", "provenance")


def arrays_of(attribution: Any) -> dict[str, np.ndarray]:
    """Return the arrays of an attribution by their names in a file."""
    return arrays_by_key(attribution, _ARRAYS)


def entry_of(attribution: Any) -> dict[str, Any]:
    """Return the fields that are not arrays."""
    return {
        "tokens": attribution.tokens,
        "texts": attribution.texts,
        "provenance": dict(attribution.provenance),
    }


def fields_of(arrays: Mapping[str, np.ndarray], entry: Mapping[str, Any]) -> Fields:
    """Return the arguments of an `Attribution`, checked so that none can cause an error later, far from the file."""
    expect_names("fields", entry, _FIELDS)
    expect_names("arrays", arrays, _ARRAYS, set(_ARRAYS) - set(_REQUIRED))
    _check_arrays(arrays)
    return {
        **{name: arrays.get(key) for key, name in _ARRAYS.items()},
        "tokens": checked_tokens(entry["tokens"], arrays["ids"].shape),
        "texts": checked_texts_of(entry["texts"], arrays),
        "provenance": checked_method(checked_provenance(entry["provenance"])),
    }


def _check_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    ids = arrays["ids"]
    if ids.ndim != 2 or not ids.size:
        raise SchemaError(f"holds ids of shape {ids.shape}: expected (example, position), with one of each at least")
    check_positions(arrays)
    expect_dtype("scores", arrays["scores"], ("float64",))
    expect_shape("scores", arrays["scores"], ids.shape, "ids")
    if "values" in arrays:
        values = arrays["values"]
        expect_dtype("values", values, ("float32", "float64"))
        if values.ndim != 3 or values.shape[:2] != ids.shape:
            raise SchemaError(
                f"holds values of shape {values.shape}: expected (example, position, dim), {ids.shape} first"
            )
    for name in ("objective", "baseline_objective", "delta"):
        if name in arrays:
            expect_dtype(name, arrays[name], ("float64",))
            if arrays[name].shape != ids.shape[:1]:
                raise SchemaError(f"holds {name} of shape {arrays[name].shape}: expected {ids.shape[:1]}, (example,)")


def checked_texts_of(texts: Any, arrays: Mapping[str, np.ndarray]) -> tuple[Text, ...] | None:
    """Return the texts, after checking them and the offsets of the tokens in them."""
    shape = arrays["ids"].shape
    for name in ("offsets", "parts"):
        if name in arrays:
            expect_dtype(name, arrays[name], ("int64",))
    try:
        checked = None if texts is None else checked_texts(texts, shape[0])
        if "offsets" in arrays or "parts" in arrays:
            checked_offsets(arrays.get("offsets"), arrays.get("parts"), checked, shape)
    except BatchError as error:
        raise SchemaError(f"holds texts or offsets that do not fit: {error.message}") from error
    return checked


def checked_method(provenance: dict[str, Any]) -> dict[str, Any]:
    """Return the provenance, which has the name of the method's class."""
    method = provenance.get("method")
    for described in (method, method.get("of", method) if isinstance(method, dict) else None):
        if not isinstance(described, dict) or not isinstance(described.get("class"), str):
            raise SchemaError(
                f"holds {brief(method)} as provenance['method']: expected an object with the name of the method's class"
            )
    return provenance
