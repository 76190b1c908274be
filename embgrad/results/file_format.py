"""The format of results in files: safetensors arrays with JSON metadata, all of which is checked when read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from embgrad.common import schema
from embgrad.common.files import checked_path, once
from embgrad.common.safetensors import read_tensors, write_tensors
from embgrad.common.schema import SchemaError, expect_names, whole
from embgrad.errors import EmbgradError, FileFormatError, brief
from embgrad.results.certificate import Certificate
from embgrad.results.row_sparse import RowSparse

__all__ = ["FORMAT", "Fields", "plain", "read_results", "write_results"]

#: The arguments of an `EmbeddingGradients`.
Fields: TypeAlias = dict[str, Any]

#: The version of the file format; a reader refuses a later one. A single result is written as version 1, which every
#: embgrad reads; several are version 2.
FORMAT: Final = 2

#: The safetensors names of the dtypes that a result's arrays may have.
_DTYPES: Final = ("F32", "F64", "I64")

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
#: The arrays with one number for each position, and the smallest number that each may hold.
_LEAST: Final = {"mask": 0, "types": 0, "words": -1}
_FIELDS: Final = ("tokens", "vocab", "pad_leak", "provenance", "certificate")

#: The integers that fit into a float.
_INTEGER: Final = whole(-(2**1023), 2**1023)

_EXPECTED: Final = "expected what embgrad.save writes"


def write_results(named: Mapping[str, Any], path: object, *, single: bool, durable: bool = False) -> None:
    """Write results to a safetensors file, which appears whole or not at all.

    Args:
        named: the `EmbeddingGradients` by name.
        path: the file's path; its folder must exist.
        single: whether the file is of one result, which needs no name.
        durable: return only when the file would survive a power failure.

    Raises:
        EmbgradError: a result holds values that the format does not support, such as float16.
        OSError: the file cannot be written.
    """
    target = checked_path(path)
    arrays: dict[str, np.ndarray] = {}
    entries = []
    for number, (name, result) in enumerate(named.items()):
        result_arrays, entry = _arrays_of(result), _entry_of(result, name)
        try:
            _fields_of(result_arrays, json.loads(entry))  # write only what can be read back
        except SchemaError as error:
            where = "" if single else f" {brief(name)}"
            raise EmbgradError(f"the result{where} cannot be saved, since it {error}") from error
        arrays.update(result_arrays if single else {f"{number}.{key}": array for key, array in result_arrays.items()})
        entries.append(entry if single else f'{{"name": {json.dumps(name)}, {entry[1:]}')
    text = f'{{"format": 1, {entries[0][1:]}' if single else f'{{"format": 2, "results": [{", ".join(entries)}]}}'
    write_tensors(target, arrays, {"embgrad": text}, durable=durable)


def read_results(path: object) -> tuple[dict[str, Fields], bool]:
    """Read the fields of a file's results.

    Returns:
        The fields of each result by name, in the order written, and whether the file is of one result, whose name is "".

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file is incomplete, was not written by embgrad, or has a later version of the format.
        EmbgradError: `path` is not a path.
    """
    file = checked_path(path)
    arrays, metadata = read_tensors(file, _DTYPES)
    described = _described(file, metadata)
    try:
        if described.pop("format") == 1:
            return {"": _fields_of(arrays, described)}, True
        return _several(arrays, described), False
    except SchemaError as error:
        raise FileFormatError(f"{file} {error}; write or fetch it again") from error


# Writing


def _arrays_of(result: Any) -> dict[str, np.ndarray]:
    present = {key: getattr(result, name) for key, name in _ARRAYS.items()}
    arrays = {key: np.asarray(value) for key, value in present.items() if value is not None}
    for number, table in enumerate(result.tables or ()):
        arrays.update({f"table.{number}.rows": table.rows, f"table.{number}.values": table.values})
    return arrays


def _entry_of(result: Any, name: str) -> str:
    """Return the fields that are not arrays, as a JSON object."""
    entry = {
        "tokens": result.tokens,
        "vocab": result.vocab,
        "pad_leak": result.pad_leak,
        "provenance": dict(result.provenance),
        "certificate": None if result.certificate is None else result.certificate.to_dict(),
    }
    try:
        return json.dumps(entry, default=plain)
    except (
        TypeError,
        ValueError,
        RecursionError,
    ) as error:  # keys that are not strings, or an object that contains itself
        raise EmbgradError(
            f"the result {brief(name)} cannot be saved: its provenance cannot be stored as JSON, {error}"
        ) from error


def plain(value: Any) -> Any:
    """Return a value that JSON does not support as one that it does: NumPy's as Python's, other objects as their repr."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


# Reading


def _described(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the file's own description of its content, after checking that its version can be read."""
    foreign = f"{path} is a safetensors file, but not one of embgrad's: {_EXPECTED}"
    try:
        described = json.loads(metadata["embgrad"], object_pairs_hook=once)
    except (KeyError, ValueError, RecursionError) as error:
        raise FileFormatError(foreign) from error
    version: Any = described.get("format") if isinstance(described, dict) else None
    if not whole(1).accepts(version):
        raise FileFormatError(foreign)
    if version > FORMAT:
        raise FileFormatError(
            f"{path} has format {brief(version)}, and this embgrad reads up to {FORMAT}: install a newer embgrad"
        )
    return dict(described)


def _several(arrays: Mapping[str, np.ndarray], described: Mapping[str, Any]) -> dict[str, Fields]:
    entries = described.get("results")
    if not isinstance(entries, list) or not entries or set(described) != {"results"}:
        raise SchemaError(f"lists no results: {_EXPECTED}")
    groups: dict[str, dict[str, np.ndarray]] = {str(number): {} for number in range(len(entries))}
    for key, array in arrays.items():
        number, _, local_key = key.partition(".")
        if number not in groups:
            raise SchemaError(
                f"holds the array {brief(key)}, which belongs to none of its {len(entries)} results: {_EXPECTED}"
            )
        groups[number][local_key] = array
    results: dict[str, Fields] = {}
    for entry, group in zip(entries, groups.values(), strict=True):
        name = entry.pop("name", None) if isinstance(entry, dict) else None
        if not isinstance(name, str) or name in results:
            raise SchemaError(f"names a result {brief(name)}: expected names that are text, each once")
        try:
            results[name] = _fields_of(group, entry)
        except SchemaError as error:
            raise SchemaError(f"at {brief(name)} {error}") from error
    return results


def _fields_of(arrays: Mapping[str, np.ndarray], entry: Mapping[str, Any]) -> Fields:
    """Return the fields of a result, checked so that none can cause an error later, far from the file."""
    expect_names("fields", entry, _FIELDS, optional=_FIELDS[-1:])
    provenance = _checked_provenance(entry["provenance"])
    optional = set(_ARRAYS) - {"values", "activations", "ids", *(() if provenance.get("captured") else ("objective",))}
    expect_names("arrays", [name for name in arrays if not name.startswith("table.")], _ARRAYS, optional)
    _check_arrays(arrays)
    vocab = _checked_vocab(entry["vocab"], arrays)
    schema.number(0).check("pad_leak", entry["pad_leak"])
    return {
        **{name: arrays.get(key) for key, name in _ARRAYS.items()},
        "tokens": _checked_tokens(entry["tokens"], arrays["ids"].shape),
        "vocab": vocab,
        "pad_leak": float(entry["pad_leak"]),
        "provenance": provenance,
        "tables": _checked_tables(arrays, vocab),
        "certificate": _checked_certificate(entry.get("certificate")),
    }


def _check_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    values, ids = arrays["values"], arrays["ids"]
    _expect_dtype("values", values, ("float32", "float64"))
    if values.ndim < 2 or not values.size or not ids.size:
        raise SchemaError(
            f"holds values of shape {values.shape} and ids of shape {ids.shape}: expected (example, position, dim) and "
            "(example, position), with one of each at least"
        )
    for name in ("activations", "before"):
        if name in arrays:
            _expect_dtype(name, arrays[name], (str(values.dtype),))
            _expect_shape(name, arrays[name], values.shape, "values")
    for name, least in {"ids": 0, **_LEAST}.items():
        if name in arrays:
            _expect_dtype(name, arrays[name], ("int64",))
            _expect_shape(name, arrays[name], ids.shape, "ids")
            if arrays[name].min() < least:
                raise SchemaError(f"holds {arrays[name].min()} in {name}: expected no number below {least}")
    if "mask" in arrays and arrays["mask"].max() > 1:
        raise SchemaError(f"holds {arrays['mask'].max()} in mask: expected 1 at real positions and 0 at padding")
    if "objective" in arrays:
        _expect_dtype("objective", arrays["objective"], ("float64",))
        if arrays["objective"].ndim > 1 or not arrays["objective"].size:
            raise SchemaError(
                f"holds an objective of shape {arrays['objective'].shape}: expected (example,), or () where the reduction "
                "was the user's"
            )


def _expect_dtype(name: str, array: np.ndarray, dtypes: Sequence[str]) -> None:
    if str(array.dtype) not in dtypes:
        raise SchemaError(f"holds {name} of dtype {array.dtype}: expected {' or '.join(dtypes)}")


def _expect_shape(name: str, array: np.ndarray, shape: tuple[int, ...], like: str) -> None:
    if array.shape != shape:
        raise SchemaError(f"holds {name} of shape {array.shape}: expected {shape}, as the {like}")


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


def _checked_tokens(tokens: Any, shape: tuple[int, ...]) -> tuple[tuple[str, ...], ...] | None:
    if tokens is None:
        return None
    listed = isinstance(tokens, list) and all(isinstance(example, list) for example in tokens)
    if len(shape) != 2 or not listed or (len(tokens), {*map(len, tokens)}) != (shape[0], {shape[1]}):
        raise SchemaError(f"holds tokens that are not one for each of the ids, whose shape is {shape}: {_EXPECTED}")
    if wrong := [token for example in tokens for token in example if not isinstance(token, str)]:
        raise SchemaError(f"holds the token {brief(wrong[0])}: expected text")
    return tuple(tuple(example) for example in tokens)


def _checked_tables(arrays: Mapping[str, np.ndarray], vocab: int | None) -> tuple[RowSparse, ...] | None:
    """Return the tables of a split result, one for each value of the objective."""
    names = {name for name in arrays if name.startswith("table.")}
    if not names:
        return None
    values, count = arrays["values"], arrays["objective"].size if "objective" in arrays else len(names) // 2
    if names != {f"table.{number}.{part}" for number in range(len(names) // 2) for part in ("rows", "values")}:
        raise SchemaError(f"holds the arrays {brief(sorted(names))}: expected rows and values of each table from 0 on")
    if vocab is None or len(names) != 2 * count:
        raise SchemaError(f"holds {len(names) // 2} tables, of {vocab} rows, for {count} examples: {_EXPECTED}")
    for number in range(count):
        rows, table_values = arrays[f"table.{number}.rows"], arrays[f"table.{number}.values"]
        _expect_dtype(f"table.{number}.rows", rows, ("int64",))
        _expect_dtype(f"table.{number}.values", table_values, (str(values.dtype),))
        _expect_shape(
            f"table.{number}.values", table_values, (rows.size, values.shape[-1]), "rows, and the values' dim"
        )
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


def _checked_provenance(provenance: Any) -> dict[str, Any]:
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
        raise SchemaError(f"holds an invalid certificate: {error!r}; {_EXPECTED}") from error
