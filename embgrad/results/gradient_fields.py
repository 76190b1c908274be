"""The stored fields of an `EmbeddingGradients`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.common import schema
from embgrad.common.schema import SchemaError, expect_names, whole
from embgrad.errors import brief
from embgrad.results.certificate import Certificate
from embgrad.results.field_checks import (
    EXPECTED,
    Fields,
    arrays_by_key,
    check_positions,
    checked_provenance,
    checked_tokens,
    expect_dtype,
    expect_shape,
)
from embgrad.results.row_sparse import RowSparse

__all__ = ["arrays_of", "entry_of", "fields_of"]

#: The arrays that a result may hold beside its tables: from their names in a file to attributes of the result.
_ARRAYS: Final = {
    "values": "values",
    "activations": "activations",
    "objective": "objective",
    "ids": "ids",
    "mask": "mask",
    "types": "types",
    "words": "words_of",
    "before": "before",
}
_FIELDS: Final = ("tokens", "vocab", "pad_leak", "provenance", "certificate")

#: The integers that fit into a float.
_INTEGER: Final = whole(-(2**1023), 2**1023)


def arrays_of(result: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a result by their names in a file."""
    arrays = arrays_by_key(result, _ARRAYS)
    for number, table in enumerate(result.tables or ()):
        arrays.update({f"table.{number}.rows": table.rows, f"table.{number}.values": table.values})
    return arrays


def entry_of(result: Any) -> dict[str, Any]:
    """Return the fields that are not arrays."""
    return {
        "tokens": result.tokens,
        "vocab": result.vocab,
        "pad_leak": result.pad_leak,
        "provenance": dict(result.provenance),
        "certificate": None if result.certificate is None else result.certificate.to_dict(),
    }


def fields_of(arrays: Mapping[str, np.ndarray], entry: Mapping[str, Any]) -> Fields:
    """Return the arguments of an `EmbeddingGradients`, checked so that none can cause an error later, far from the file."""
    expect_names("fields", entry, _FIELDS, optional=_FIELDS[-1:])
    provenance = checked_provenance(entry["provenance"])
    optional = set(_ARRAYS) - {"values", "activations", "ids", *(() if provenance.get("captured") else ("objective",))}
    expect_names("arrays", [name for name in arrays if not name.startswith("table.")], _ARRAYS, optional)
    _check_arrays(arrays)
    vocab = _checked_vocab(entry["vocab"], arrays)
    schema.number(0).check("pad_leak", entry["pad_leak"])
    return {
        **{name: arrays.get(key) for key, name in _ARRAYS.items()},
        "tokens": checked_tokens(entry["tokens"], arrays["ids"].shape),
        "vocab": vocab,
        "pad_leak": float(entry["pad_leak"]),
        "provenance": provenance,
        "tables": _checked_tables(arrays, vocab),
        "certificate": _checked_certificate(entry.get("certificate")),
    }


def _check_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    values, ids = arrays["values"], arrays["ids"]
    expect_dtype("values", values, ("float32", "float64"))
    if values.ndim < 2 or not values.size or not ids.size:
        raise SchemaError(
            f"holds values of shape {values.shape} and ids of shape {ids.shape}: expected (example, position, dim) and "
            "(example, position), with one of each at least"
        )
    for name in ("activations", "before"):
        if name in arrays:
            expect_dtype(name, arrays[name], (str(values.dtype),))
            expect_shape(name, arrays[name], values.shape, "values")
    check_positions(arrays)
    if "objective" in arrays:
        expect_dtype("objective", arrays["objective"], ("float64",))
        if arrays["objective"].ndim > 1 or not arrays["objective"].size:
            raise SchemaError(
                f"holds an objective of shape {arrays['objective'].shape}: expected (example,), or () where the reduction "
                "was the user's"
            )


def _checked_vocab(vocab: Any, arrays: Mapping[str, np.ndarray]) -> int | None:
    if vocab is None:
        return None
    ids, values = arrays["ids"], arrays["values"]
    if not whole(1, np.iinfo(np.int64).max).accepts(vocab):
        raise SchemaError(f"holds a vocab of {brief(vocab)}: expected the number of the table's rows, or null")
    if ids.max() >= vocab:
        raise SchemaError(f"holds the id {ids.max()}: expected rows of its table of {vocab}")
    if values.shape[:-1] != ids.shape:
        raise SchemaError(
            f"holds values of shape {values.shape} at a lookup of ids of shape {ids.shape}: expected (*ids, dim)"
        )
    return int(vocab)


def _checked_tables(arrays: Mapping[str, np.ndarray], vocab: int | None) -> tuple[RowSparse, ...] | None:
    """Return the tables of a split result, one for each value of the objective."""
    names = {name for name in arrays if name.startswith("table.")}
    if not names:
        return None
    values, count = arrays["values"], arrays["objective"].size if "objective" in arrays else len(names) // 2
    if names != {f"table.{number}.{part}" for number in range(len(names) // 2) for part in ("rows", "values")}:
        raise SchemaError(f"holds the arrays {brief(sorted(names))}: expected rows and values of each table from 0 on")
    if vocab is None or len(names) != 2 * count:
        raise SchemaError(f"holds {len(names) // 2} tables, of {vocab} rows, for {count} examples: {EXPECTED}")
    for number in range(count):
        rows, table_values = arrays[f"table.{number}.rows"], arrays[f"table.{number}.values"]
        expect_dtype(f"table.{number}.rows", rows, ("int64",))
        expect_dtype(f"table.{number}.values", table_values, (str(values.dtype),))
        expect_shape(f"table.{number}.values", table_values, (rows.size, values.shape[-1]), "rows, and the values' dim")
        inside = rows.ndim == 1 and (not rows.size or 0 <= rows.min() <= rows.max() < vocab)
        if not inside or (np.diff(rows) <= 0).any():
            raise SchemaError(
                f"holds {brief(rows)} as table.{number}.rows: expected rows of a table of {vocab}, ascending"
            )
    dim = values.shape[-1]
    return tuple(
        RowSparse(arrays[f"table.{number}.rows"], arrays[f"table.{number}.values"], (vocab, dim))
        for number in range(count)
    )


def _checked_certificate(certificate: Any) -> Certificate | None:
    if certificate is None:
        return None
    figures = ("expected", "found", "uncertainty", "tolerance")
    try:
        slopes, rest = certificate["slopes"], (certificate["scatter"], certificate["independence"])
        numbers = [slope[name] for slope in slopes for name in figures] + [
            figure for figure in rest if figure is not None
        ]
        are_numbers = all(isinstance(figure, float) or _INTEGER.accepts(figure) for figure in numbers)
        if not are_numbers or not all(isinstance(slope["direction"], str) for slope in slopes):
            raise TypeError("a measurement is not a number, or a direction is not text")
        return Certificate.from_dict(certificate)
    except (KeyError, TypeError) as error:
        raise SchemaError(f"holds an invalid certificate: {error!r}; {EXPECTED}") from error
