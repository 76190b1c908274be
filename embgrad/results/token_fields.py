"""The stored fields of a `TokenAttribution`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.common.schema import SchemaError, expect_names
from embgrad.errors import brief
from embgrad.results.attribution_fields import checked_method, checked_texts_of
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

#: The arrays that an attribution of output tokens must hold, and those that it may: from their names in a file to its attributes.
_REQUIRED: Final = {name: name for name in ("scores", "outputs", "output_ids", "objective", "ids")}
_OPTIONAL: Final = {
    **{name: name for name in ("contrast_ids", "baseline_objective", "delta", "mask", "types")},
    "words": "words_of",
    **{name: name for name in ("decoder_scores", "decoder_ids", "decoder_mask", "offsets", "parts")},
}
_ARRAYS: Final = {**_REQUIRED, **_OPTIONAL}
_FIELDS: Final = ("tokens", "output_tokens", "decoder_tokens", "texts", "provenance")


def arrays_of(attribution: Any) -> dict[str, np.ndarray]:
    """Return the arrays of an attribution by their names in a file."""
    return arrays_by_key(attribution, _ARRAYS)


def entry_of(attribution: Any) -> dict[str, Any]:
    """Return the fields that are not arrays."""
    return {name: getattr(attribution, name) for name in _FIELDS[:-1]} | {"provenance": dict(attribution.provenance)}


def fields_of(arrays: Mapping[str, np.ndarray], entry: Mapping[str, Any]) -> Fields:
    """Return the arguments of a `TokenAttribution`, checked so that none can cause an error later, far from the file."""
    expect_names("fields", entry, _FIELDS)
    expect_names("arrays", arrays, _ARRAYS, set(_OPTIONAL))
    ids = arrays["ids"]
    if ids.ndim != 2 or not ids.size:
        raise SchemaError(f"holds ids of shape {ids.shape}: expected (example, position), with one of each at least")
    check_positions(arrays)
    decoder_tokens = _checked_decoder(arrays, entry["decoder_tokens"])
    _check_outputs(arrays)
    return {
        **{name: arrays.get(key) for key, name in _ARRAYS.items()},
        "tokens": checked_tokens(entry["tokens"], ids.shape),
        "output_tokens": _checked_output_tokens(entry["output_tokens"], arrays["outputs"]),
        "decoder_tokens": decoder_tokens,
        "texts": checked_texts_of(entry["texts"], arrays),
        "provenance": checked_method(checked_provenance(entry["provenance"])),
    }


def _checked_decoder(arrays: Mapping[str, np.ndarray], tokens: Any) -> tuple[tuple[str, ...], ...] | None:
    """Check what there is of a decoder, and return its tokens."""
    present = [name for name in ("decoder_scores", "decoder_ids") if name in arrays]
    others = "decoder_mask" in arrays or tokens is not None
    if len(present) == 1 or (others and not present):
        raise SchemaError(f"holds a part of a decoder alone: {EXPECTED}")
    if not present:
        return None
    ids = arrays["decoder_ids"]
    if ids.ndim != 2 or len(ids) != len(arrays["ids"]) or not ids.size:
        raise SchemaError(f"holds decoder_ids of shape {ids.shape}: expected {len(arrays['ids'])} examples, as the ids")
    try:
        check_positions({"ids": ids} | ({"mask": arrays["decoder_mask"]} if "decoder_mask" in arrays else {}))
        return checked_tokens(tokens, ids.shape)
    except SchemaError as error:
        raise SchemaError(f"of the decoder {error}") from error


def _check_outputs(arrays: Mapping[str, np.ndarray]) -> None:
    """Check the arrays that have numbers for each output: -1 stands after an example's last."""
    outputs, ids = arrays["outputs"], arrays["ids"]
    if outputs.ndim != 2 or len(outputs) != len(ids) or not outputs.size:
        raise SchemaError(f"holds outputs of shape {outputs.shape}: expected (example, output), {len(ids)} examples")
    width = arrays.get("decoder_ids", ids).shape[1]
    for name in ("outputs", "output_ids", "contrast_ids"):
        if name in arrays:
            expect_dtype(name, arrays[name], ("int64",))
            expect_shape(name, arrays[name], outputs.shape, "outputs")
            if arrays[name].min() < -1 or ((arrays[name] >= 0) != (outputs >= 0)).any():
                raise SchemaError(f"holds {name} that are not -1 where there is no output, and 0 or more elsewhere")
    if outputs.max() >= width or (np.diff((outputs >= 0).astype(int)) > 0).any():
        raise SchemaError(f"holds outputs that are not positions below {width}, with -1 after an example's last")
    for name in ("objective", "baseline_objective", "delta"):
        if name in arrays:
            expect_dtype(name, arrays[name], ("float64",))
            expect_shape(name, arrays[name], outputs.shape, "outputs")
    for name, like in (("scores", "ids"), ("decoder_scores", "decoder_ids")):
        if name in arrays:
            expect_dtype(name, arrays[name], ("float64",))
            expect_shape(name, arrays[name], (*outputs.shape, arrays[like].shape[1]), f"outputs and {like}")


def _checked_output_tokens(tokens: Any, outputs: np.ndarray) -> tuple[tuple[str, ...], ...] | None:
    if tokens is None:
        return None
    listed = isinstance(tokens, list) and all(isinstance(example, list) for example in tokens)
    if not listed or [len(example) for example in tokens] != (outputs >= 0).sum(axis=1).tolist():
        raise SchemaError(f"holds output tokens that are not one for each output: {EXPECTED}")
    if wrong := [token for example in tokens for token in example if not isinstance(token, str)]:
        raise SchemaError(f"holds the output token {brief(wrong[0])}: expected text")
    return tuple(tuple(example) for example in tokens)
