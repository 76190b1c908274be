"""The values that stand for an absent input: zeros, a row of the table, or an array; and the choice among them.

The choice is zeros, unless L does not change with the scale of the values, which a model may normalise at once.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.attribution.passes import Passes, Rows
from embgrad.backend.protocol import Request
from embgrad.common.arrays import to_numpy
from embgrad.common.metrics import lengths
from embgrad.common.options import lists_choices
from embgrad.engine.embedding_table import table_of
from embgrad.engine.locate import locate
from embgrad.errors import (
    BatchError,
    EmbgradError,
    EmbgradWarning,
    ObjectiveError,
    UnsupportedError,
    brief,
    did_you_mean,
    level_of_user,
    quote,
)
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.special_tokens import id_of_special
from embgrad.results.special_positions import special_positions

__all__ = [
    *("AUTO", "NAMES", "NEEDS_DIRECTION", "NOT_FINITE", "SCALES", "SCALE_FREE", "Visible", "absent_positions"),
    *("baseline_values", "check_baseline", "check_baselines", "choose_visible", "explain_zeros", "id_of", "is_auto"),
    *("is_flat", "is_scale_free", "is_zero", "keep_first", "known_id", "note_first", "notes_of", "rows_at_scales"),
    *("warn_of_no_direction",),
]

#: The names of baselines.
NAMES: Final = ("zero", "pad", "mask", "mean")

#: The name of the default of methods that integrate from a baseline, see `choose_visible`.
AUTO: Final = "auto"


#: The scales of the values at which L is compared; a norm's epsilon may matter below the first.
SCALES: Final = (0.02, 0.5)

#: The largest change of L, as a share of its difference to L at zeros, that counts as none.
FLAT: Final = 0.05

#: The shortest rows of a baseline, as a share of the mean length of those in their place: the padding's row may be zeros.
SHORT: Final = 1e-3

#: Why zeros are the baseline of an example.
CHANGES: Final = "L changes with the scale of the values"

#: Why they are not.
SCALE_FREE: Final = "L does not change with the scale of the values"
NOT_FINITE: Final = "L at zeros is not finite"

#: Why the first token stays in place. With one row at all positions a causal model computes at each what it computes at the
#: first, where the hidden states of trained decoders are a hundred times longer than elsewhere: Sun et al., "Massive activations
#: in large language models", 2024. Along the line each position loses these at a place of its own, at which L jumps.
WANDERING: Final = "the error from zeros is larger than a quarter of the difference of L"

#: What to do where zeros are the baseline of a model that normalises the values.
NEEDS_DIRECTION: Final = (
    "L does not change with the scale of the values, which the model normalises: give baseline='auto', 'pad', 'mean' or an id, "
    "not 'zero'"
)


def check_baselines(baseline: Any, name: str = "baseline", *, auto: bool = False) -> None:
    """Check a baseline, or each of several.

    Args:
        auto: whether the method can choose a baseline itself, "auto".
    """
    if auto and isinstance(baseline, str) and baseline == AUTO:
        return
    for entry in baseline if lists_choices(baseline) else (baseline,):
        check_baseline(entry, name)


def check_baseline(baseline: Any, name: str = "baseline") -> str | int | np.ndarray:
    """Return a baseline as a name, an id or an array of real numbers."""
    if isinstance(baseline, str):
        if baseline not in NAMES:
            raise EmbgradError(
                f"{name} is {baseline!r}: expected 'zero', 'pad', 'mask', 'mean', an id, or an array at the point."
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
    if array.dtype.kind not in "iuf" or not array.ndim or not array.size or not np.isfinite(array).all():
        raise EmbgradError(
            f"{name} is {brief(baseline)}: expected 'zero', 'pad', 'mask', 'mean', an id, or an array of finite numbers at the "
            "point"
        )
    return np.asarray(array, np.float64)


def baseline_values(passes: Passes, baseline: Any, tokenizer: Any, keep_special: bool) -> np.ndarray:
    """Return the values of a baseline at the point, float64, (example, position, dim).

    A name or an id replaces every real position, with `keep_special` but for special tokens; the other positions keep their
    values. At a hidden state an id means the hidden state of that id at these positions.

    Args:
        baseline: "zero", "pad", "mask", "mean", an id, or an array that broadcasts to the point.
        keep_special: see above.
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
    if baseline == "mean":
        return np.where(absent[..., None], _mean_row(passes), own)
    id_ = baseline if isinstance(baseline, int) else id_of(baseline, passes, tokenizer)
    values = _values_with(passes, np.where(absent, id_, passes.batch.ids))
    return np.where(absent[..., None], values, own)


def _mean_row(passes: Passes) -> np.ndarray:
    """Return the mean row of the table of the batch's ids, float64, (dim,)."""
    if passes.state.vocab is None and passes.values is None:
        raise UnsupportedError(
            f"the point {passes.at!r} has no table, whose mean row 'mean' puts in place of tokens: give at='word', or another "
            "baseline here"
        )
    return np.asarray(table_of(passes.bound, passes.batch, passes.at).mean(0, dtype=np.float64))


def absent_positions(passes: Passes, tokenizer: Any, keep_special: bool) -> np.ndarray:
    """Return a bool array, (example, position): true where a baseline replaces the value."""
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
    """Return the id of the padding, "pad", or of the mask, "mask"."""
    known = known_id(name, passes, tokenizer)
    if known is None:
        raise BatchError(
            f"the id of the {'padding' if name == 'pad' else 'mask'} is not known, which '{name}' puts in place of tokens: give "
            f"the id itself in place of '{name}', or tokenizer=... that has a {name}_token_id"
        )
    return known


def known_id(name: str, passes: Passes, tokenizer: Any) -> int | None:
    """Return the id of the padding, "pad", the mask, "mask", or the end of a text, "eos"; None where it is not known.

    The tokenizer knows it, the batch where it is padded, or the configuration of the model.
    """
    known = id_of_special(tokenizer, name)
    if known is None and name == "pad":
        padding = np.unique(passes.batch.ids[~passes.batch.real])
        known = int(padding[0]) if padding.size == 1 else None
    if known is None:
        configured = getattr(getattr(passes.bound.model, "config", None), f"{name}_token_id", None)
        first = configured[0] if isinstance(configured, (list, tuple)) and configured else configured
        known = first if isinstance(first, int) and not isinstance(first, bool) and first >= 0 else None
    return known


def is_auto(baseline: Any) -> bool:
    """Return whether the method chooses the baseline."""
    return isinstance(baseline, str) and baseline == AUTO


def is_zero(baseline: Any) -> bool:
    """Return whether a baseline is the zeros, by name or as an array."""
    if isinstance(baseline, str):
        return baseline == "zero"
    return hasattr(baseline, "shape") and len(baseline.shape) > 0 and not np.asarray(check_baseline(baseline)).any()


def is_flat(objectives: np.ndarray, own: np.ndarray, before: np.ndarray, rounding: float) -> np.ndarray:
    """Return whether L is the same at all scales of the values, and another at zeros, bool, (…).

    Args:
        objectives: L at some scales from that of `SCALES` on, (scale, …).
        own: L at the values themselves, (…).
        before: L at zeros, likewise; it may be not finite.
        rounding: the share of an objective that is rounding.
    """
    difference = np.abs(own - before)
    counts = ~np.isfinite(before) | (difference > rounding * (np.abs(own) + np.abs(before)))
    most = np.where(np.isfinite(before), FLAT * difference, rounding * np.abs(own))
    return np.asarray(counts & (np.abs(objectives - own) <= most).all(0))


def rows_at_scales(inputs: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Return the inputs at each of `SCALES`, (row, position, dim), where `origin` is the baseline of zeros."""
    return np.concatenate([origin + scale * (inputs - origin) for scale in SCALES])


def is_scale_free(passes: Passes, origin: np.ndarray) -> np.ndarray:
    """Return for each example whether L is the same at all scales of the values, bool, (example,), from forward passes."""
    count, scaled = len(origin), rows_at_scales(passes.inputs, origin)
    try:
        before, *at_scales = passes.objectives(Rows.of(np.concatenate([origin, scaled]), count)).reshape(-1, count)
    except ObjectiveError:  # at zeros
        before = np.full(count, np.nan)
        at_scales = list(passes.objectives(Rows.of(scaled, count)).reshape(-1, count))
    return is_flat(np.stack(at_scales), np.asarray(passes.state.objective), before, passes.rounding)


@dataclass(frozen=True)
class Visible:
    """A baseline that a model sees that normalises its values.

    Attributes:
        values: its values at the point, (example, position, dim).
    """

    baseline: str | int
    values: np.ndarray
    of: str


def choose_visible(passes: Passes, tokenizer: Any, keep_special: bool) -> Visible | None:
    """Return the row of the padding, of the end of a text, or the mean row, the first that is known and has a direction.

    None where there is none, as at a lookup of other indices than the ids.
    """
    absent = absent_positions(passes, tokenizer, keep_special)
    usual = lengths(passes.inputs)[absent].mean() if absent.any() else 0.0
    for name, of in (
        ("pad", "the padding's row"),
        ("eos", "the row of a text's end"),
        ("mean", "the table's mean row"),
    ):
        baseline = name if name == "mean" else known_id(name, passes, tokenizer)
        if baseline is None:
            continue
        try:
            values = baseline_values(passes, baseline, tokenizer, keep_special)
        except EmbgradError:  # it is no baseline at this point
            continue
        if (lengths(values)[absent] > SHORT * usual).all():
            return Visible(baseline, values, of)
    return None


def notes_of(flat: np.ndarray, chosen: Visible | None, why: str) -> dict[str, list[Any]]:
    """Return the entries of the provenance on the default baseline, each with an entry for each example.

    Args:
        flat: the examples that zeros do not serve, bool, (example,).
        chosen: the baseline in their place; None where none is known.
        why: why zeros do not serve them.
    """
    other, reason = (
        ("zero", f"{why}, and no other row is known") if chosen is None else (chosen.baseline, f"{why}: {chosen.of}")
    )
    return {
        "baseline_taken": [other if is_flat else "zero" for is_flat in flat.tolist()],
        "reason": [reason if is_flat else CHANGES for is_flat in flat.tolist()],
    }


def keep_first(passes: Passes, values: np.ndarray) -> np.ndarray:
    """Return the values of a baseline, (example, position, dim), with those of the text at each example's first real position."""
    first = np.zeros(passes.batch.shape, bool)
    first[np.arange(len(first)), passes.batch.real.argmax(1)] = True
    return np.where(first[..., None], passes.inputs, values)


def note_first(notes: dict[str, list[Any]], kept: np.ndarray, chosen: Visible) -> None:
    """Enter into the notes of `notes_of` the examples whose first token stays in place, bool, (example,)."""
    for example in np.flatnonzero(kept).tolist():
        notes["baseline_taken"][example] = chosen.baseline
        notes["reason"][example] = f"{WANDERING}: the first token in place, and {chosen.of}"
    notes["first_kept"] = kept.tolist()


@contextlib.contextmanager
def explain_zeros(baseline: Any) -> Iterator[None]:
    """Say in an error of an objective that is not finite what to do where zeros are the baseline."""
    try:
        yield
    except ObjectiveError as error:
        if not is_zero(baseline):
            raise
        raise ObjectiveError(
            f"{error.message}. The baseline of zeros has no direction, by which a model may divide: give baseline='auto', 'pad', "
            "'mean' or an id"
        ) from error


def warn_of_no_direction(flat: np.ndarray) -> None:
    """Warn of examples whose contributions from zeros show nothing, bool, (example,)."""
    if flat.any():
        named = quote(np.flatnonzero(flat).tolist())
        warnings.warn(
            f"the contributions from zeros of example(s) {named} do not show how L changes. {NEEDS_DIRECTION}",
            EmbgradWarning,
            stacklevel=level_of_user() + 1,
        )
