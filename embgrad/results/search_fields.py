"""The stored fields of a `Search`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.common.schema import FLAG, SchemaError, expect_names
from embgrad.errors import EmbgradError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.results.attribution_fields import checked_method
from embgrad.results.field_checks import (
    EXPECTED,
    Fields,
    checked_provenance,
    checked_tokens,
    expect_dtype,
    expect_shape,
)
from embgrad.results.history import ARRAYS, History

__all__ = ["arrays_of", "entry_of", "fields_of"]

#: The arrays of a batch, without those of further inputs, which are not stored, and its other fields.
_OF_BATCH: Final = ("ids", "mask", "types", "words", "truncated", "offsets", "parts")
_OTHERS: Final = ("tokens", "texts", "convention", "mask_is_bool")

#: By the beginning of their arrays' names, the attributes that are batches.
_SIDES: Final = {"before_": "before", "after_": "batch"}

_TEXTS: Final = ("texts_before", "texts")
_FLOATS: Final = ("objective_before", "objective")


def arrays_of(search: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a search by their names in a file; truth values are 0 and 1."""
    arrays = {name: np.asarray(getattr(search, name)) for name in _FLOATS}
    for name in ("success", "trigger"):
        if (value := getattr(search, name)) is not None:
            arrays[name] = np.asarray(value).astype(np.int64) if name == "success" else np.asarray(value)
    for prefix, side in _SIDES.items():
        batch = getattr(search, side)
        arrays |= {f"{prefix}{name}": value for name in _OF_BATCH if (value := getattr(batch, name)) is not None}
    return arrays | {f"history_{name}": np.asarray(getattr(search.history, name)) for name in ARRAYS}


def entry_of(search: Any) -> dict[str, Any]:
    """Return the fields that are not arrays."""
    return {
        **{side: {name: getattr(getattr(search, side), name) for name in _OTHERS} for side in _SIDES.values()},
        **{name: getattr(search, name) for name in _TEXTS},
        "provenance": dict(search.provenance),
    }


def fields_of(arrays: Mapping[str, np.ndarray], entry: Mapping[str, Any]) -> Fields:
    """Return the arguments of a `Search`, checked so that none can cause an error later, far from the file."""
    expect_names("fields", entry, (*_SIDES.values(), *_TEXTS, "provenance"))
    known = {f"{prefix}{name}" for prefix in _SIDES for name in _OF_BATCH} | {f"history_{name}" for name in ARRAYS}
    required = {*_FLOATS, *(f"{prefix}{name}" for prefix in _SIDES for name in ("ids", "truncated"))}
    known |= {*_FLOATS, "success", "trigger"}
    expect_names("arrays", arrays, sorted(known), known - required - {f"history_{name}" for name in ARRAYS})
    sides = {side: _batch(side, prefix, arrays, entry[side]) for prefix, side in _SIDES.items()}
    count = len(sides["before"])
    if len(sides["batch"]) != count:
        raise SchemaError(f"holds {count} examples before and {len(sides['batch'])} after the search: {EXPECTED}")
    _check_values(arrays, count)
    history = {name: arrays[f"history_{name}"] for name in ARRAYS}
    _check_history(history, count)
    return {
        **sides,
        **{name: arrays[name] for name in _FLOATS},
        "success": arrays["success"].astype(bool) if "success" in arrays else None,
        "history": History(**history),
        **{name: _texts(name, entry[name], count) for name in _TEXTS},
        "trigger": arrays.get("trigger"),
        "provenance": _checked_rule(
            checked_method(checked_provenance(entry["provenance"])), count, "success" in arrays
        ),
    }


def _batch(side: str, prefix: str, arrays: Mapping[str, np.ndarray], entry: Any) -> TokenBatch:
    own: dict[str, Any] = {name: arrays[f"{prefix}{name}"] for name in _OF_BATCH if f"{prefix}{name}" in arrays}
    for name, array in own.items():
        expect_dtype(f"{prefix}{name}", array, ("int64",))
    if not isinstance(entry, dict):
        raise SchemaError(f"holds {brief(entry)} as {side}: expected an object")
    expect_names(f"fields of {side}", entry, _OTHERS)
    FLAG.check("mask_is_bool", entry["mask_is_bool"])
    if own["ids"].ndim != 2 or not own["ids"].size:
        raise SchemaError(f"holds {prefix}ids of shape {own['ids'].shape}: expected (example, position)")
    tokens = checked_tokens(entry["tokens"], own["ids"].shape)
    texts = entry["texts"]
    if isinstance(texts, list):
        texts = [tuple(text) if isinstance(text, list) else text for text in texts]  # JSON has no tuples
    try:
        return TokenBatch(
            **own,
            tokens=tokens,
            texts=texts,
            convention=entry["convention"],
            mask_is_bool=entry["mask_is_bool"],
        )
    except EmbgradError as error:
        raise SchemaError(f"holds a batch {side!r} that is not valid: {error.message}") from error


def _check_values(arrays: Mapping[str, np.ndarray], count: int) -> None:
    for name in (*_FLOATS, "success"):
        if name in arrays:
            expect_dtype(name, arrays[name], ("float64",) if name in _FLOATS else ("int64",))
            if arrays[name].shape != (count,):
                raise SchemaError(f"holds {name} of shape {arrays[name].shape}: expected {(count,)}, (example,)")
    if "success" in arrays and not np.isin(arrays["success"], (0, 1)).all():
        raise SchemaError(f"holds success other than 0 and 1: {EXPECTED}")
    if "trigger" in arrays:
        trigger = arrays["trigger"]
        expect_dtype("trigger", trigger, ("int64",))
        if trigger.ndim != 1 or (trigger < 0).any():
            raise SchemaError(f"holds a trigger of shape {trigger.shape}: expected ids, (length,)")


def _check_history(history: Mapping[str, np.ndarray], count: int) -> None:
    objective, ids = history["objective"], history["ids"]
    if objective.ndim != 2 or objective.shape[1] != count or not len(objective):
        raise SchemaError(f"holds history_objective of shape {objective.shape}: expected (step + 1, {count})")
    if ids.ndim != 3 or ids.shape[:2] != objective.shape:
        raise SchemaError(f"holds history_ids of shape {ids.shape}: expected {(*objective.shape, 'position')}")
    for name in ("evaluations", "gradients"):
        expect_shape(f"history_{name}", history[name], objective.shape, "history_objective")
    expect_shape("history_seconds", history["seconds"], objective.shape[:1], "steps")
    for name, array in history.items():
        expect_dtype(f"history_{name}", array, ("float64",) if name in ("objective", "seconds") else ("int64",))
        least = {"ids": -1, "evaluations": 0, "gradients": 0}.get(name)
        if least is not None and array.size and array.min() < least:
            raise SchemaError(f"holds {array.min()} in history_{name}: expected no number below {least}")


def _texts(name: str, texts: Any, count: int) -> tuple[str, ...] | None:
    if texts is None:
        return None
    if not isinstance(texts, list) or len(texts) != count or not all(isinstance(text, str) for text in texts):
        raise SchemaError(f"holds {brief(texts)} as {name}: expected a text for each of {count} examples")
    return tuple(texts)


def _checked_rule(provenance: dict[str, Any], count: int, has_success: bool) -> dict[str, Any]:
    """Return the provenance, whose goal is text, and whose stopping rule is a number, one for each example, or none."""
    goal, until = provenance.get("goal"), provenance.get("until")
    if goal not in ("maximize", "minimize"):
        raise SchemaError(f"holds {brief(goal)} as provenance['goal']: expected 'maximize' or 'minimize'")
    numbers: list[Any] = until if isinstance(until, list) else [] if until is None else [until]
    finite = all(type(number) in (int, float) and abs(number) < 2.0**1023 for number in numbers)
    if not finite or (isinstance(until, list) and len(until) != count) or has_success != (until is not None):
        raise SchemaError(
            f"holds {brief(until)} as provenance['until']: expected a number, or one for each of {count} examples, where "
            "there is success, and none elsewhere"
        )
    return provenance
