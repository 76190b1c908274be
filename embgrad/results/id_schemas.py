"""The stored fields of substitutions, searches and influences, which have ids that the batch does not have: see `schemas`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from embgrad.common.schema import FLAG, Array, SchemaError, expect_names
from embgrad.errors import EmbgradError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.results.history import ARRAYS as OF_HISTORY
from embgrad.results.history import History
from embgrad.results.schema import (
    EXPECTED,
    Arrays,
    Fields,
    Schema,
    check_tokens,
    provenance_of,
    provenance_of_method,
    tokens_of,
)

__all__ = ["INFLUENCE", "SEARCH", "SUBSTITUTIONS"]

# Substitutions


class _NamedSchema(Schema):
    """The stored fields of a class with the tokens of ids by id, `names`."""

    def entry_of(self, result: Any) -> dict[str, Any]:
        """Return the fields of a result that are not arrays; `names` with ids as text, as keys in JSON are."""
        names = result.names
        of_ids = None if names is None else {str(id_): token for id_, token in names.items()}
        return super().entry_of(result) | {"names": of_ids}


def _expect_scores_of_ids(arrays: Arrays) -> None:
    if not ((arrays["ids"] >= 0) | np.isinf(arrays["scores"])).all():
        raise SchemaError("holds scores that are not infinite where there is no id")


def _names(names: Any, _: Arrays) -> dict[int, str] | None:
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


def _goal(provenance: Any, arrays: Arrays) -> dict[str, Any]:
    """Return the provenance, which has the goal and the class of the objective."""
    checked = provenance_of(provenance, arrays)
    for key, value in (("goal", checked.get("goal")), ("objective", checked.get("objective", {}).get("class"))):
        if not isinstance(value, str) or (key == "goal" and value not in ("maximize", "minimize")):
            raise SchemaError(
                f"holds the {key} {brief(value)}: expected 'maximize' or 'minimize', and the class of the objective"
            )
    return checked


SUBSTITUTIONS: Final = _NamedSchema(
    {
        "ids": Array("example position top", "int64", -1),
        "scores": Array("example position top"),
        "objective": Array("example"),
        "original": Array("example position", "int64", 0),
        "mask": Array("example position", "int64", 0, 1, optional=True),
    },
    {"tokens": tokens_of("original"), "names": _names, "provenance": _goal},
    rules=(_expect_scores_of_ids,),
)


# Searches

#: By the beginning of their arrays' names, the attributes of a search that are batches.
SIDES: Final = {"before_": "before", "after_": "batch"}

#: The arrays of a batch, without those of further inputs, which are not stored, and its other fields.
OF_BATCH: Final = ("ids", "mask", "types", "words", "truncated", "offsets", "parts")
OTHERS: Final = ("tokens", "texts", "convention", "mask_is_bool")


class _SearchSchema(Schema):
    """The stored fields of a `Search`, of which two are batches and one is its history."""

    def arrays_of(self, result: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a search by their names in a file; truth values are 0 and 1."""
        arrays = {name: getattr(result, name) for name in ("objective_before", "objective", "success", "trigger")}
        for prefix, side in SIDES.items():
            arrays |= {f"{prefix}{name}": getattr(getattr(result, side), name) for name in OF_BATCH}
        arrays |= {f"history_{name}": getattr(result.history, name) for name in OF_HISTORY}
        present = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
        return {name: array.astype(np.int64) if array.dtype == bool else array for name, array in present.items()}

    def entry_of(self, result: Any) -> dict[str, Any]:
        """Return the fields of a search that are not arrays."""
        sides = {side: {name: getattr(getattr(result, side), name) for name in OTHERS} for side in SIDES.values()}
        return super().entry_of(result) | sides

    def fields_of(self, arrays: Arrays, entry: Mapping[str, Any]) -> Fields:
        """Return the arguments of the class, checked, see `Schema.fields_of`."""
        fields = super().fields_of(arrays, entry)
        success = fields["success"]
        return {
            **{name: fields[name] for name in (*self.entry, "objective_before", "objective", "trigger")},
            "success": None if success is None else success.astype(bool),
            "history": History(**{name: arrays[f"history_{name}"] for name in OF_HISTORY}),
        }


def _batch(prefix: str) -> Callable[[Any, Arrays], TokenBatch]:
    side = SIDES[prefix]

    def batch(entry: Any, arrays: Arrays) -> TokenBatch:
        own: dict[str, Any] = {name: arrays[f"{prefix}{name}"] for name in OF_BATCH if f"{prefix}{name}" in arrays}
        if not isinstance(entry, dict):
            raise SchemaError(f"holds {brief(entry)} as {side}: expected an object")
        expect_names(f"fields of {side}", entry, OTHERS)
        FLAG.check("mask_is_bool", entry["mask_is_bool"])
        tokens, texts = check_tokens(entry["tokens"], own["ids"].shape), entry["texts"]
        if isinstance(texts, list):
            texts = [tuple(text) if isinstance(text, list) else text for text in texts]  # JSON has no tuples
        try:
            return TokenBatch(**own, **{**entry, "tokens": tokens, "texts": texts})
        except EmbgradError as error:
            raise SchemaError(f"holds a batch {side!r} that is not valid: {error.message}") from error

    return batch


def _texts_of_search(name: str) -> Callable[[Any, Arrays], tuple[str, ...] | None]:
    def texts_of(texts: Any, arrays: Arrays) -> tuple[str, ...] | None:
        count = len(arrays["objective"])
        if texts is None:
            return None
        if not isinstance(texts, list) or len(texts) != count or not all(isinstance(text, str) for text in texts):
            raise SchemaError(f"holds {brief(texts)} as {name}: expected a text for each of {count} examples")
        return tuple(texts)

    return texts_of


def _stopping_rule(provenance: Any, arrays: Arrays) -> dict[str, Any]:
    """Return the provenance, whose goal is text, and whose stopping rule is a number, one for each example, or none."""
    checked, count = provenance_of_method(provenance, arrays), len(arrays["objective"])
    goal, until = checked.get("goal"), checked.get("until")
    if goal not in ("maximize", "minimize"):
        raise SchemaError(f"holds {brief(goal)} as provenance['goal']: expected 'maximize' or 'minimize'")
    numbers: list[Any] = until if isinstance(until, list) else [] if until is None else [until]
    finite = all(type(number) in (int, float) and abs(number) < 2.0**1023 for number in numbers)
    if not finite or (isinstance(until, list) and len(until) != count) or ("success" in arrays) != (until is not None):
        raise SchemaError(
            f"holds {brief(until)} as provenance['until']: expected a number, or one for each of {count} examples, where "
            "there is success, and none elsewhere"
        )
    return checked


def _arrays_of_side(prefix: str) -> dict[str, Array]:
    """Return the arrays of a batch, which its class checks further."""
    axes = f"example {prefix}position"
    return {
        f"{prefix}ids": Array(axes, "int64"),
        **{f"{prefix}{name}": Array(axes, "int64", optional=True) for name in ("mask", "types", "words", "parts")},
        f"{prefix}truncated": Array("example", "int64"),
        f"{prefix}offsets": Array(f"{axes} 2", "int64", optional=True),
    }


SEARCH: Final = _SearchSchema(
    {
        "objective_before": Array("example"),
        "objective": Array("example"),
        **_arrays_of_side("before_"),
        **_arrays_of_side("after_"),
        "success": Array("example", "int64", 0, 1, optional=True),
        "trigger": Array("length", "int64", 0, optional=True),
        "history_objective": Array("step example"),
        "history_ids": Array("step example width", "int64", -1),
        "history_evaluations": Array("step example", "int64", 0),
        "history_gradients": Array("step example", "int64", 0),
        "history_seconds": Array("step"),
    },
    {
        "before": _batch("before_"),
        "batch": _batch("after_"),
        "texts_before": _texts_of_search("texts_before"),
        "texts": _texts_of_search("texts"),
        "provenance": _stopping_rule,
    },
)

# Influence


def _count(count: Any, arrays: Arrays) -> int:
    """Return the number of training examples, above the index of each."""
    most = max(int(arrays[kind].max()) for kind in ("proponents", "opponents"))
    if type(count) is not int or count <= most:
        raise SchemaError(
            f"holds {brief(count)} as count: expected a whole number above {most}, an index of an example"
        )
    return count


def _expect_terms(arrays: Arrays) -> None:
    if len({f"{kind}_{name}" in arrays for kind in ("proponent", "opponent") for name in ("ids", "terms")}) > 1:
        raise SchemaError(f"lacks some of the ids and terms of tokens: {EXPECTED}")


INFLUENCE: Final = _NamedSchema(
    {
        "proponents": Array("example top", "int64", 0),
        "proponent_scores": Array("example top"),
        "opponents": Array("example top", "int64", 0),
        "opponent_scores": Array("example top"),
        **{
            f"{kind}_ids": Array(f"example top {kind}_token", "int64", -1, optional=True)
            for kind in ("proponent", "opponent")
        },
        **{f"{kind}_terms": Array(f"example top {kind}_token", optional=True) for kind in ("proponent", "opponent")},
    },
    {"count": _count, "names": _names, "provenance": provenance_of},
    rules=(_expect_terms,),
)
