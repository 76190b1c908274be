"""The stored fields of each class of results: a table for each, from which files are written, and by which they are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Final

import numpy as np

from embgrad.common.schema import OBJECT, TEXT, Array, Rule, SchemaError, expect_object, list_of, number, or_null, whole
from embgrad.errors import brief
from embgrad.results.certificate import Certificate, Slope
from embgrad.results.id_schemas import INFLUENCE, SEARCH, SUBSTITUTIONS
from embgrad.results.row_sparse import RowSparse
from embgrad.results.schema import (
    EXPECTED,
    OFFSETS,
    Arrays,
    Fields,
    Schema,
    all_texts,
    check_tokens,
    positions,
    provenance_of,
    provenance_of_method,
    texts_of,
    tokens_of,
)

__all__ = ["GRADIENTS", "SCHEMAS"]

#: The integers that fit into a float.
INTEGER: Final = whole(-(2**1023), 2**1023)

#: The fields of a certificate and of its slopes.
FIGURE: Final = Rule(lambda value: isinstance(value, float) or INTEGER.accepts(value), "a number")
SLOPE: Final = {
    "direction": TEXT,
    **dict.fromkeys(("expected", "found", "uncertainty", "tolerance"), FIGURE),
}
CERTIFICATE: Final = {
    "slopes": list_of(OBJECT),
    **dict.fromkeys(("scatter", "independence", "neighbours", "order", "padding"), or_null(FIGURE)),
    "untested": list_of(whole(0)),
    "unrun": Rule(lambda value: isinstance(value, dict) and all(map(TEXT.accepts, value.values())), "texts by test"),
}


# Gradients


class _GradientSchema(Schema):
    """The stored fields of an `EmbeddingGradients`, which has a table for each example where it was split."""

    def arrays_of(self, result: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a result by their names in a file."""
        arrays = super().arrays_of(result)
        for number_, table in enumerate(result.tables or ()):
            arrays.update({f"table.{number_}.rows": table.rows, f"table.{number_}.values": table.values})
        return arrays

    def entry_of(self, result: Any) -> dict[str, Any]:
        """Return the fields of a result that are not arrays."""
        certificate = result.certificate
        return super().entry_of(result) | {"certificate": None if certificate is None else certificate.to_dict()}

    def fields_of(self, arrays: Arrays, entry: Mapping[str, Any]) -> Fields:
        """Return the arguments of the class, checked, see `Schema.fields_of`."""
        tables = {name: array for name, array in arrays.items() if name.startswith("table.")}
        fields = super().fields_of({name: array for name, array in arrays.items() if name not in tables}, entry)
        if fields["objective"] is None and not fields["provenance"].get("captured"):
            raise SchemaError("lacks the arrays ['objective']")
        return {**fields, "tables": _tables(tables, fields["values"], fields["objective"], fields["vocab"])}


def _expect_values_at_positions(arrays: Arrays) -> None:
    if arrays["values"].ndim < 2:
        raise SchemaError(f"holds values of shape {arrays['values'].shape}: expected (example, position, dim)")
    if "objective" in arrays and arrays["objective"].ndim > 1:
        raise SchemaError(
            f"holds an objective of shape {arrays['objective'].shape}: expected (example,), or () where the reduction "
            "was the user's"
        )


def _vocab(vocab: Any, arrays: Arrays) -> int | None:
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


def _pad_leak(pad_leak: Any, _: Arrays) -> float:
    number(0).check("pad_leak", pad_leak)
    return float(pad_leak)


def _tables(
    arrays: Arrays, values: np.ndarray, objective: np.ndarray | None, vocab: int | None
) -> tuple[RowSparse, ...] | None:
    """Return the tables of a split result, one for each value of the objective."""
    if not arrays:
        return None
    count = len(arrays) // 2 if objective is None else objective.size
    if set(arrays) != {f"table.{number}.{part}" for number in range(len(arrays) // 2) for part in ("rows", "values")}:
        raise SchemaError(f"holds the arrays {brief(sorted(arrays))}: expected rows and values of each table from 0 on")
    if vocab is None or len(arrays) != 2 * count:
        raise SchemaError(f"holds {len(arrays) // 2} tables, of {vocab} rows, for {count} examples: {EXPECTED}")
    tables = []
    for number_ in range(count):
        rows, of_rows = arrays[f"table.{number_}.rows"], arrays[f"table.{number_}.values"]
        is_like = rows.dtype == np.int64 and of_rows.dtype == values.dtype
        if not is_like or rows.ndim != 1 or of_rows.shape != (len(rows), values.shape[-1]):
            raise SchemaError(
                f"holds the table {number_} of {rows.dtype} {rows.shape} and {of_rows.dtype} {of_rows.shape}: expected int64 "
                f"(row,) and {values.dtype} (row, {values.shape[-1]})"
            )
        if rows.size and (rows[0] < 0 or rows[-1] >= vocab or (np.diff(rows) <= 0).any()):
            raise SchemaError(
                f"holds {brief(rows)} as table.{number_}.rows: expected rows of a table of {vocab}, ascending"
            )
        tables.append(RowSparse(rows, of_rows, (vocab, values.shape[-1])))
    return tuple(tables)


def _certificate(certificate: Any, _: Arrays) -> Certificate | None:
    if certificate is None:
        return None
    try:
        expect_object("certificate", certificate, CERTIFICATE)
        for slope in certificate["slopes"]:
            expect_object("slope", slope, SLOPE)
    except SchemaError as error:
        raise SchemaError(f"holds an invalid certificate, which {error}") from error
    slopes = tuple(Slope(**slope) for slope in certificate["slopes"])
    return Certificate(**{**certificate, "slopes": slopes, "untested": tuple(certificate["untested"])})


GRADIENTS: Final = _GradientSchema(
    {
        "values": Array("example *place dim", "float32 float64"),
        "activations": Array("example *place dim", "=values"),
        "objective": Array("*reduced", optional=True),
        **positions("*index"),
        "before": Array("example *place dim", "=values", optional=True),
    },
    {
        "tokens": tokens_of(),
        "vocab": _vocab,
        "pad_leak": _pad_leak,
        "provenance": provenance_of,
        "certificate": _certificate,
    },
    rules=(_expect_values_at_positions,),
)


# Attributions

ATTRIBUTION: Final = Schema(
    {
        **positions(),
        "scores": Array("example position"),
        "objective": Array("example"),
        "values": Array("example position dim", "float32 float64", optional=True),
        "baseline_objective": Array("example", optional=True),
        "delta": Array("example", optional=True),
        "error": Array("example", optional=True),
        **OFFSETS,
    },
    {"tokens": tokens_of(), "texts": texts_of, "provenance": provenance_of_method},
)


def _expect_outputs(arrays: Arrays) -> None:
    """Refuse outputs that are not positions, with -1 after an example's last output and after an output's last token."""
    outputs = arrays["outputs"]
    if max(outputs.ndim, arrays.get("contrast_ids", outputs).ndim) > 3:
        raise SchemaError(
            "holds outputs of more than three axes: expected (example, output) or (example, output, token)"
        )
    present = [arrays[name] >= 0 for name in ("outputs", "output_ids", "contrast_ids") if name in arrays]
    firsts = [array if array.ndim == 2 else array[..., 0] for array in present]
    for name, first in zip(("output_ids", "contrast_ids"), firsts[1:], strict=False):
        if (first != firsts[0]).any() or (name == "output_ids" and (present[1] != present[0]).any()):
            raise SchemaError(f"holds {name} that are not -1 where there is no output, and 0 or more elsewhere")
    width = arrays.get("decoder_ids", arrays["ids"]).shape[1]
    of_tokens = [array for array in present if array.ndim == 3]
    if (
        outputs.max() >= width
        or (np.diff(firsts[0].astype(int)) > 0).any()
        or any((np.diff(array.astype(int)) > 0).any() for array in of_tokens)
    ):
        raise SchemaError(f"holds outputs that are not positions below {width}, with -1 after an example's last")
    if (
        "contrast_scores" in arrays
        and arrays["contrast_scores"].shape != np.atleast_3d(arrays.get("contrast_ids", 0)).shape
    ):
        raise SchemaError(f"holds contrast_scores that are not one for each of contrast_ids: {EXPECTED}")


def _decoder_tokens(tokens: Any, arrays: Arrays) -> tuple[tuple[str, ...], ...] | None:
    """Return the decoder's tokens, after checking that all of a decoder is there, or nothing."""
    present = [name for name in ("decoder_scores", "decoder_ids") if name in arrays]
    others = "decoder_mask" in arrays or tokens is not None
    if len(present) == 1 or (others and not present):
        raise SchemaError(f"holds a part of a decoder alone: {EXPECTED}")
    return check_tokens(tokens, arrays["decoder_ids"].shape) if present else None


def _output_tokens(tokens: Any, arrays: Arrays) -> tuple[tuple[Any, ...], ...] | None:
    if tokens is None:
        return None
    outputs = arrays["outputs"]
    of_each = [outputs] if outputs.ndim == 2 else [outputs[..., 0], outputs]
    listed = isinstance(tokens, list) and all(isinstance(example, list) for example in tokens)
    if not listed or [len(example) for example in tokens] != (of_each[0] >= 0).sum(axis=1).tolist():
        raise SchemaError(f"holds output tokens that are not one for each output: {EXPECTED}")
    if outputs.ndim == 2:
        return all_texts("output token", tokens)
    counts = [[count for count in row if count] for row in (outputs >= 0).sum(axis=2).tolist()]
    if any(not isinstance(span, list) for example in tokens for span in example) or counts != [
        [len(span) for span in example] for example in tokens
    ]:
        raise SchemaError(f"holds output tokens that are not a list for each output: {EXPECTED}")
    return tuple(all_texts("output token", example) for example in tokens)


TOKEN_ATTRIBUTION: Final = Schema(
    {
        **positions(),
        "outputs": Array("example output *token", "int64", -1),
        "output_ids": Array("example output *token", "int64", -1),
        "contrast_ids": Array("example output *contrast_token", "int64", -1, optional=True),
        "contrast_scores": Array("example output contrast_token", optional=True),
        "scores": Array("example output position"),
        "objective": Array("example output"),
        "baseline_objective": Array("example output", optional=True),
        "delta": Array("example output", optional=True),
        "error": Array("example output", optional=True),
        "decoder_ids": Array("example decoder_position", "int64", 0, optional=True),
        "decoder_mask": Array("example decoder_position", "int64", 0, 1, optional=True),
        "decoder_scores": Array("example output decoder_position", optional=True),
        **OFFSETS,
    },
    {
        "tokens": tokens_of(),
        "output_tokens": _output_tokens,
        "decoder_tokens": _decoder_tokens,
        "texts": texts_of,
        "provenance": provenance_of_method,
    },
    rules=(_expect_outputs,),
)


# Attributions of pairs

#: The arrays of a pair beside those of its sides.
OF_PAIRS: Final = ("scores", "similarity", "explained", "delta")


class _PairSchema(Schema):
    """The stored fields of a `PairAttribution`, of which two are attributions, whose arrays begin with "a_" and "b_"."""

    def arrays_of(self, result: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a result by their names in a file."""
        arrays = {name: getattr(result, name) for name in OF_PAIRS}
        for side in "ab":
            of_side = ATTRIBUTION.arrays_of(getattr(result, side))
            arrays |= {f"{side}_{name}": array for name, array in of_side.items()}
        return {name: np.asarray(array) for name, array in arrays.items()}

    def entry_of(self, result: Any) -> dict[str, Any]:
        """Return the fields of a result that are not arrays."""
        return {side: ATTRIBUTION.entry_of(getattr(result, side)) for side in "ab"}

    def fields_of(self, arrays: Arrays, entry: Mapping[str, Any]) -> Fields:
        """Return the arguments of the class, with those of an `Attribution` as `a` and `b`, see `Schema.fields_of`."""
        fields = super().fields_of(arrays, entry)
        return {name: fields[name] for name in (*OF_PAIRS, *self.entry)}


def _side(side: str) -> Callable[[Any, Arrays], Fields]:
    def fields_of_side(entry: Any, arrays: Arrays) -> Fields:
        if not isinstance(entry, dict):
            raise SchemaError(f"holds {brief(entry)} as {side}: expected an object")
        prefix = f"{side}_"
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        return ATTRIBUTION.fields_of(own, entry)

    return fields_of_side


def _arrays_of_pair(side: str) -> dict[str, Array]:
    """Return the arrays of an attribution of one side, whose positions are those of an axis of the scores."""
    renamed = {"example": "pair", "position": f"{side}_position"}
    arrays = {f"{side}_{name}": copy(array) for name, array in ATTRIBUTION.arrays.items() if name != "values"}
    for array in arrays.values():
        array.axes = [renamed.get(axis, axis) for axis in array.axes]
    return arrays


PAIR_ATTRIBUTION: Final = _PairSchema(
    {
        "scores": Array("pair a_position b_position"),
        **{name: Array("pair") for name in OF_PAIRS[1:]},
        **_arrays_of_pair("a"),
        **_arrays_of_pair("b"),
    },
    {side: _side(side) for side in "ab"},
)


#: The schemas by the names of the results' classes, apart from that of checks of ports.
SCHEMAS: Final[dict[str, Schema]] = {
    "EmbeddingGradients": GRADIENTS,
    "Attribution": ATTRIBUTION,
    "TokenAttribution": TOKEN_ATTRIBUTION,
    "PairAttribution": PAIR_ATTRIBUTION,
    "Substitutions": SUBSTITUTIONS,
    "Search": SEARCH,
    "Influence": INFLUENCE,
}
