"""The form of the tables of stored fields, and the checks of fields that several classes of results have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from embgrad.common.schema import Array, SchemaError, expect_arrays, expect_names
from embgrad.errors import BatchError, brief
from embgrad.inputs.checks import Text, check_offsets, check_texts

__all__ = [
    *("EXPECTED", "OFFSETS", "Arrays", "Fields", "Schema", "all_texts", "check_tokens", "positions"),
    *("provenance_of", "provenance_of_method", "texts_of", "tokens_of"),
]

#: The arguments of a result's class.
Fields: TypeAlias = dict[str, Any]

Arrays: TypeAlias = Mapping[str, np.ndarray]

EXPECTED: Final = "expected what embgrad.save writes"

#: The attributes that have another name than their array in a file.
ATTRIBUTES: Final = {"words": "words_of"}


@dataclass(frozen=True)
class Schema:
    """The stored fields of a class.

    Attributes:
        arrays: its arrays, by their names in a file.
        entry: by name the fields that are not arrays, each with a function of the stored value and of the arrays that returns the
            value, checked.
        rules: functions of the arrays that raise SchemaError where they do not fit together.
    """

    arrays: Mapping[str, Array]
    entry: Mapping[str, Callable[[Any, Arrays], Any]]
    rules: tuple[Callable[[Arrays], None], ...] = ()

    def arrays_of(self, result: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a result by their names in a file."""
        present = {name: getattr(result, ATTRIBUTES.get(name, name)) for name in self.arrays}
        return {name: np.asarray(value) for name, value in present.items() if value is not None}

    def entry_of(self, result: Any) -> dict[str, Any]:
        """Return the fields of a result that are not arrays."""
        entry = {name: getattr(result, name) for name in self.entry}
        return entry | {"provenance": dict(result.provenance)}

    def fields_of(self, arrays: Arrays, entry: Mapping[str, Any]) -> Fields:
        """Return the arguments of the class, checked so that none can cause an error later, far from the file.

        Raises:
            SchemaError: they are not what the class stores.
        """
        expect_names("fields", entry, self.entry)
        expect_arrays(arrays, self.arrays)
        for rule in self.rules:
            rule(arrays)
        return {
            **{ATTRIBUTES.get(name, name): arrays.get(name) for name in self.arrays},
            **{name: checked(entry[name], arrays) for name, checked in self.entry.items()},
        }


def positions(axes: str = "example position") -> dict[str, Array]:
    """Return the arrays with a number for each position: ids and, where a result has them, its mask, types and words."""
    return {
        "ids": Array(axes, "int64", 0),
        "mask": Array(axes, "int64", 0, 1, optional=True),
        "types": Array(axes, "int64", 0, optional=True),
        "words": Array(axes, "int64", -1, optional=True),
    }


OFFSETS: Final = {
    "offsets": Array("example position 2", "int64", optional=True),
    "parts": Array("example position", "int64", optional=True),
}


# Fields that several classes have


def check_tokens(tokens: Any, shape: tuple[int, ...]) -> tuple[tuple[str, ...], ...] | None:
    """Return the tokens' texts, one tuple for each example."""
    if tokens is None:
        return None
    listed = isinstance(tokens, list) and all(isinstance(example, list) for example in tokens)
    if len(shape) != 2 or not listed or (len(tokens), {*map(len, tokens)}) != (shape[0], {shape[1]}):
        raise SchemaError(f"holds tokens that are not one for each of the ids, whose shape is {shape}: {EXPECTED}")
    return all_texts("token", tokens)


def all_texts(what: str, tokens: list[list[Any]]) -> tuple[tuple[str, ...], ...]:
    if wrong := [token for example in tokens for token in example if not isinstance(token, str)]:
        raise SchemaError(f"holds the {what} {brief(wrong[0])}: expected text")
    return tuple(tuple(example) for example in tokens)


def tokens_of(name: str = "ids") -> Callable[[Any, Arrays], Any]:
    return lambda tokens, arrays: check_tokens(tokens, arrays[name].shape)


def texts_of(texts: Any, arrays: Arrays) -> tuple[Text, ...] | None:
    """Return the texts, after checking them and the offsets of the tokens in them."""
    shape = arrays["ids"].shape
    try:
        checked = None if texts is None else check_texts(texts, shape[0])
        if "offsets" in arrays or "parts" in arrays:
            check_offsets(arrays.get("offsets"), arrays.get("parts"), checked, shape)
    except BatchError as error:
        raise SchemaError(f"holds texts or offsets that do not fit: {error.message}") from error
    return checked


def provenance_of(provenance: Any, _: Arrays) -> dict[str, Any]:
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


def provenance_of_method(provenance: Any, arrays: Arrays) -> dict[str, Any]:
    """Return the provenance, which has the name of the method's class."""
    method = provenance_of(provenance, arrays).get("method")
    for described in (method, method.get("of", method) if isinstance(method, dict) else None):
        if not isinstance(described, dict) or not isinstance(described.get("class"), str):
            raise SchemaError(
                f"holds {brief(method)} as provenance['method']: expected an object with the name of the method's class"
            )
    return dict(provenance)
