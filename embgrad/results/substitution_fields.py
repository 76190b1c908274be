"""The stored fields of `Substitutions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.common.schema import SchemaError, expect_names
from embgrad.errors import brief
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

__all__ = ["arrays_of", "entry_of", "fields_of"]

#: The arrays by their names in a file, which are those of the attributes.
_ARRAYS: Final = {name: name for name in ("ids", "scores", "objective", "original", "mask")}
_FIELDS: Final = ("tokens", "names", "provenance")


def arrays_of(substitutions: Any) -> dict[str, np.ndarray]:
    """Return the arrays by their names in a file."""
    return arrays_by_key(substitutions, _ARRAYS)


def entry_of(substitutions: Any) -> dict[str, Any]:
    """Return the fields that are not arrays; `names` with ids as text, as keys in JSON are."""
    names = substitutions.names
    return {
        "tokens": substitutions.tokens,
        "names": None if names is None else {str(id_): token for id_, token in names.items()},
        "provenance": dict(substitutions.provenance),
    }


def fields_of(arrays: Mapping[str, np.ndarray], entry: Mapping[str, Any]) -> Fields:
    """Return the arguments of `Substitutions`, checked so that none can cause an error later, far from the file."""
    expect_names("fields", entry, _FIELDS)
    expect_names("arrays", arrays, _ARRAYS, {"mask"})
    _check_arrays(arrays)
    return {
        **{name: arrays.get(name) for name in _ARRAYS},
        "tokens": checked_tokens(entry["tokens"], arrays["original"].shape),
        "names": _checked_names(entry["names"]),
        "provenance": _checked_goal(checked_provenance(entry["provenance"])),
    }


def _check_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    ids, original = arrays["ids"], arrays["original"]
    if ids.ndim != 3 or not ids.size:
        raise SchemaError(
            f"holds ids of shape {ids.shape}: expected (example, position, top), with one of each at least"
        )
    expect_dtype("ids", ids, ("int64",))
    expect_shape("original", original, ids.shape[:2], "first axes of ids")
    check_positions({"ids": original, **({"mask": arrays["mask"]} if "mask" in arrays else {})})
    for name in ("scores", "objective"):
        expect_dtype(name, arrays[name], ("float64",))
    expect_shape("scores", arrays["scores"], ids.shape, "ids")
    expect_shape("objective", arrays["objective"], ids.shape[:1], "first axis of ids")
    if ids.min() < -1 or not ((ids >= 0) | np.isinf(arrays["scores"])).all():
        raise SchemaError("holds ids below -1, or scores that are not infinite where there is no id")


def _checked_names(names: Any) -> dict[int, str] | None:
    if names is None:
        return None
    if not isinstance(names, dict):
        raise SchemaError(f"holds names that are no object: {EXPECTED}")
    wrong = [
        key
        for key, token in names.items()
        if not (key.isascii() and key.isdigit() and len(key) < 19 and isinstance(token, str))
    ]
    if wrong:
        raise SchemaError(f"holds {brief(wrong[0])} among the names of ids: expected ids with the text of their tokens")
    return {int(key): token for key, token in names.items()}


def _checked_goal(provenance: dict[str, Any]) -> dict[str, Any]:
    """Return the provenance, which has the goal and the class of the objective."""
    for key, value in (("goal", provenance.get("goal")), ("objective", provenance.get("objective", {}).get("class"))):
        if not isinstance(value, str) or (key == "goal" and value not in ("maximize", "minimize")):
            raise SchemaError(
                f"holds the {key} {brief(value)}: expected 'maximize' or 'minimize', and the class of the objective"
            )
    return provenance
