"""The format of results in files: safetensors arrays with JSON metadata, all of which is checked when read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.files import check_path, once
from embgrad.common.safetensors import read_tensors, write_tensors
from embgrad.common.schema import SchemaError, whole
from embgrad.errors import EmbgradError, FileFormatError, brief, quote
from embgrad.results.port_schema import PORT_REPORT
from embgrad.results.schema import EXPECTED, Fields, Schema
from embgrad.results.schemas import SCHEMAS as OF_TEXTS

__all__ = ["FORMAT", "Saved", "Stored", "plain", "read_results", "write_results"]

#: The version of the file format; a reader refuses a later one.
FORMAT: Final = 1

#: The schemas by the names of the results' classes.
SCHEMAS: Final[Mapping[str, Schema]] = {**OF_TEXTS, "PortReport": PORT_REPORT}

#: The safetensors names of the dtypes that a result's arrays may have.
_DTYPES: Final = ("F32", "F64", "I64")


class Stored(NamedTuple):
    """A result as read from a file."""

    kind: str
    fields: Fields


def write_results(named: Mapping[str, Any], path: object, *, single: bool, durable: bool = False) -> None:
    """Write results to a safetensors file, which appears whole or not at all.

    Args:
        named: the results by name, objects of the classes that `SCHEMAS` names.
        single: whether the file is of one result, which needs no name.

    Raises:
        EmbgradError: a result holds values that the format does not support, such as float16.
    """
    target = check_path(path)
    arrays: dict[str, np.ndarray] = {}
    entries = []
    for number, (name, result) in enumerate(named.items()):
        schema = SCHEMAS[_kind(result)]
        result_arrays, entry = schema.arrays_of(result), _as_json(schema.entry_of(result), name)
        try:
            schema.fields_of(result_arrays, json.loads(entry))  # write only what can be read back
        except SchemaError as error:
            where = "" if single else f" {brief(name)}"
            raise EmbgradError(f"the result{where} cannot be saved, since it {error}") from error
        arrays.update(result_arrays if single else {f"{number}.{key}": array for key, array in result_arrays.items()})
        head = {"class": _kind(result)} if single else {"name": name, "class": _kind(result)}
        entries.append(f"{json.dumps(head)[:-1]}, {entry[1:]}")
    text = f"{entries[0][1:]}" if single else f'"results": [{", ".join(entries)}]}}'
    write_tensors(target, arrays, {"embgrad": f'{{"format": {FORMAT}, {text}'}, durable=durable)


class Saved:
    """A base class of results that a file can hold."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a safetensors file, which `embgrad.load` reads back bit for bit.

        Args:
            path: the file's path; its folder must exist.

        Raises:
            EmbgradError: the provenance cannot be stored as JSON.
            OSError: the file cannot be written.
        """
        write_results({"": self}, path, single=True)


def read_results(path: object) -> tuple[dict[str, Stored], bool]:
    """Read a file's results.

    Returns:
        The results by name, in the order written, and whether the file is of one result, whose name is "".

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file is incomplete, was not written by embgrad, or has a later version of the format.
        EmbgradError: `path` is not a path.
    """
    file = check_path(path)
    arrays, metadata = read_tensors(file, _DTYPES)
    described = _describe(file, metadata)
    try:
        if "results" in described:
            return _several(arrays, described), False
        return {"": _store(arrays, described)}, True
    except SchemaError as error:
        raise FileFormatError(f"{file} {error}; write or fetch it again") from error


# Writing


def _kind(result: Any) -> str:
    """Return the name of the class among those that can be stored."""
    return next(cls.__name__ for cls in type(result).__mro__ if cls.__name__ in SCHEMAS)


def _as_json(entry: Mapping[str, Any], name: str) -> str:
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


def _describe(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the file's own description of its content, after checking that its version can be read."""
    foreign = f"{path} is a safetensors file, but not one of embgrad's: {EXPECTED}"
    if "embgrad_search" in metadata:
        raise FileFormatError(
            f"{path} holds the state of a search: repeat its call with to=... to get its result, whose method save writes a file"
        )
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
    return {name: value for name, value in described.items() if name != "format"}


def _several(arrays: Mapping[str, np.ndarray], described: Mapping[str, Any]) -> dict[str, Stored]:
    entries = described.get("results")
    if not isinstance(entries, list) or not entries or set(described) != {"results"}:
        raise SchemaError(f"lists no results: {EXPECTED}")
    groups: dict[str, dict[str, np.ndarray]] = {str(number): {} for number in range(len(entries))}
    for key, array in arrays.items():
        number, _, local_key = key.partition(".")
        if number not in groups:
            raise SchemaError(
                f"holds the array {brief(key)}, which belongs to none of its {len(entries)} results: {EXPECTED}"
            )
        groups[number][local_key] = array
    results: dict[str, Stored] = {}
    for entry, group in zip(entries, groups.values(), strict=True):
        name = entry.pop("name", None) if isinstance(entry, dict) else None
        if not isinstance(name, str) or name in results:
            raise SchemaError(f"names a result {brief(name)}: expected names that are text, each once")
        try:
            results[name] = _store(group, entry)
        except SchemaError as error:
            raise SchemaError(f"at {brief(name)} {error}") from error
    return results


def _store(arrays: Mapping[str, np.ndarray], entry: dict[str, Any]) -> Stored:
    kind = entry.pop("class", None)
    if not isinstance(kind, str) or kind not in SCHEMAS:
        raise SchemaError(f"holds a result of the class {brief(kind)}: expected {quote(SCHEMAS)}")
    return Stored(kind, SCHEMAS[kind].fields_of(arrays, entry))
