"""The values that stand for an absent input: zeros, a row of the table, or an array."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from embgrad.attribution.passes import Passes
from embgrad.backend.protocol import Request
from embgrad.common.arrays import to_numpy
from embgrad.engine.locate import locate
from embgrad.errors import BatchError, EmbgradError, UnsupportedError, brief, did_you_mean
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.special_tokens import id_of_special
from embgrad.results.special_positions import special_positions

__all__ = ["NAMES", "absent_positions", "baseline_values", "check_baseline", "id_of"]

#: The names of baselines.
NAMES: Final = ("zero", "pad", "mask")


def check_baseline(baseline: Any, name: str = "baseline") -> str | int | np.ndarray:
    """Return a baseline as a name, an id or an array of real numbers.

    Raises:
        EmbgradError: it is none of these.
    """
    if isinstance(baseline, str):
        if baseline not in NAMES:
            raise EmbgradError(
                f"{name} is {baseline!r}: expected 'zero', 'pad', 'mask', an id, or an array at the point."
                f"{did_you_mean(baseline, NAMES)}"
            )
        return baseline
    if isinstance(baseline, (int, np.integer)) and not isinstance(baseline, bool):
        if baseline < 0:
            raise EmbgradError(f"{name} is {baseline}: expected an id, which is not negative")
        return int(baseline)
    try:
        array = to_numpy(baseline)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "iuf" or not array.ndim or not np.isfinite(array).all():
        raise EmbgradError(
            f"{name} is {brief(baseline)}: expected 'zero', 'pad', 'mask', an id, or an array of finite numbers at the point"
        )
    return np.asarray(array, np.float64)


def baseline_values(passes: Passes, baseline: Any, tokenizer: Any, keep_special: bool) -> np.ndarray:
    """Return the values of a baseline at the point, float64, (example, position, dim).

    A name or an id replaces every real position, with `keep_special` but for special tokens; the other positions keep their
    values. At a hidden state an id means the hidden state of that id at these positions.

    Args:
        passes: the passes of the method.
        baseline: "zero", "pad", "mask", an id, or an array that broadcasts to the point.
        tokenizer: knows the ids of the padding and of the mask; None where there is none.
        keep_special: see above.

    Raises:
        BatchError: the id of the padding or of the mask is not known, or the id lies outside the table.
        EmbgradError: the array does not broadcast to the point.
        UnsupportedError: an id is the baseline of a lookup of other indices than the batch's ids.
    """
    own = passes.inputs
    baseline = check_baseline(baseline)
    if isinstance(baseline, np.ndarray):
        try:
            return np.broadcast_to(baseline, own.shape)
        except ValueError:
            raise EmbgradError(
                f"baseline has the shape {baseline.shape}: expected values that broadcast to the point's, {own.shape}"
            ) from None
    absent = absent_positions(passes, tokenizer, keep_special)
    if baseline == "zero":
        return np.where(absent[..., None], 0.0, own)
    if not np.array_equal(passes.state.ids, passes.batch.ids):
        raise UnsupportedError(
            f"the lookup at {passes.at!r} does not read the batch's ids, so that {baseline!r} is no baseline there: give 'zero' "
            "or an array"
        )
    id_ = baseline if isinstance(baseline, int) else id_of(baseline, passes, tokenizer)
    values = _values_with(passes, np.where(absent, id_, passes.batch.ids))
    return np.where(absent[..., None], values, own)


def absent_positions(passes: Passes, tokenizer: Any, keep_special: bool) -> np.ndarray:
    """Return a bool array, (example, position): true where a baseline replaces the value.

    Raises:
        BatchError: special tokens are to be kept, and neither tokens nor a tokenizer show which those are.
    """
    real = passes.batch.real
    if not keep_special:
        return np.asarray(real)
    special = special_positions(passes.batch, tokenizer)
    if special is None:
        raise BatchError(
            "keep_special=True, and neither the batch's tokens nor a tokenizer show which tokens are special: build the batch "
            "with embgrad.encode(texts, tokenizer), or give tokenizer=..."
        )
    return np.asarray(real & ~special)


def _values_with(passes: Passes, ids: np.ndarray) -> np.ndarray:
    """Return the values at the point with other ids, float64."""
    count = len(ids)
    size = min(passes.size, count)
    pieces = [np.arange(start, min(start + size, count)) for start in range(0, count, size)]
    return np.concatenate([_values_of(passes, passes.batch.take(piece), ids[piece]) for piece in pieces])


def _values_of(passes: Passes, batch: TokenBatch, ids: np.ndarray) -> np.ndarray:
    """Return the values at the point of some examples with other ids, float64."""
    changed = batch.replace(ids=ids)
    path, call = passes.state.provenance["path"], passes.bound.call
    request = Request((path,), training=passes.training, call=call, pullback=False)
    (point,) = passes.bound.run(changed, request).points.values()
    values = point.activation
    expected = (*batch.shape, *passes.state.shape[2:])
    if values.shape != expected or batch.shape[0] == batch.shape[1]:  # its first axes may be the other way around
        values = locate(passes.bound, (passes.at,), batch)[passes.at].arrangement.to_user_axes(values)
    return np.asarray(values, np.float64)


def id_of(name: str, passes: Passes, tokenizer: Any) -> int:
    """Return the id of the padding, "pad", or of the mask, "mask".

    Raises:
        BatchError: it is not known.
    """
    known = id_of_special(tokenizer, name)
    if known is None and name == "pad":
        padding = np.unique(passes.batch.ids[~passes.batch.real])
        known = padding[0] if padding.size == 1 else None
    if known is None:
        raise BatchError(
            f"the id of the {'padding' if name == 'pad' else 'mask'} is not known, which '{name}' puts in place of tokens: give "
            f"the id itself in place of '{name}', or tokenizer=... that has a {name}_token_id"
        )
    return int(known)
