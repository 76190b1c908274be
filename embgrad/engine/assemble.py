"""Assemble results from the arrays that a backend returned: check and arrange them, and join those of sub-batches."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import BoundModel, PointValues
from embgrad.common.arrays import take_owned
from embgrad.common.finite import not_finite
from embgrad.errors import EmbgradWarning, NoGradientError, UnsupportedError, level_of_user, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import IDS as DECODER_IDS
from embgrad.inputs.extras import equals, mask_of_further
from embgrad.model_points.axes import Arrangement
from embgrad.objectives.native import NativeObjective
from embgrad.results.certificate import worst
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.row_sparse import RowSparse, scatter

__all__ = ["assemble", "in_own_order", "join", "warn_of_leak"]

#: The attributes of a result with one entry for each position.
PER_POSITION: Final = ("ids", "mask", "types", "words_of")

#: The provenance's "order" where nothing shows which examples and positions a tensor's entries belong to.
UNKNOWN: Final = "the model's own"

#: The largest gradient at padding, as a share of the largest at real positions, that is not warned of: rounding stays far below.
LEAST_LEAK: Final = 1e-3


def assemble(
    name: str,
    values: PointValues,
    arrangement: Arrangement,
    batch: TokenBatch,
    objective: np.ndarray,
    provenance: Mapping[str, Any],
    pads: str,
    *,
    split: bool,
    overridden: Sequence[str] = (),
    of_table: bool = True,
    extras: Mapping[str, Any] | None = None,
) -> EmbeddingGradients:
    """Return the result at one point.

    Args:
        values: the values that the backend read; several pullbacks are one for each example. The result takes the arrays.
        overridden: the other points that were overridden, through which no gradient passes.
        of_table: whether a lookup's value comes from its table, as it does unless it was overridden.
        extras: the further inputs, with the decoder ids that the model derives from labels; None for those of the batch.
    """
    gradients = _pullbacks(name, values, values.gradients, arrangement, split, overridden)
    before = _pullbacks(name, values, values.before, arrangement, split, overridden) if values.before else None
    extras = batch.extras if extras is None else extras
    is_batch = arrangement.is_batch and not _is_of_decoder(values, arrangement, batch, extras)
    mask = batch.mask if is_batch else _mask_of_lookup(values, arrangement, extras)
    leak = max(_leak(pullback, mask) for pullback in gradients)
    for pullback in (*gradients, *(before or ())):
        _expect_finite(name, values, pullback)
        if pads == "zero" and mask is not None:
            pullback[mask == 0] = 0
    if pads == "zero" and mask is None and batch.padded:
        raise UnsupportedError(
            f"pads='zero' sets the gradient at padding to zero, and the point {name!r} has the shape {arrangement.shape}: "
            f"expected (example, position, …), {batch.shape} first; omit pads"
        )
    rows = values.lookup.rows if values.lookup is not None and of_table else None
    same = is_batch or (values.lookup is None and arrangement.in_order)
    return EmbeddingGradients(
        values=_by_example(gradients, split),
        activations=take_owned(arrangement.to_user_axes(values.activation)),
        objective=np.array(objective, np.float64),
        ids=np.array(arrangement.ids),
        mask=_copy(batch.mask if same else mask),
        types=_copy(batch.types if same else None),
        tokens=batch.tokens if same else None,
        words_of=_copy(batch.words if same else None),
        vocab=rows,
        pad_leak=leak,
        provenance={**provenance, **_order(values, arrangement, batch)},
        tables=tuple(scatter(arrangement.ids, pullback, rows) for pullback in gradients)
        if split and rows is not None
        else None,
        before=None if before is None else _by_example(before, split),
    )


def _order(values: PointValues, arrangement: Arrangement, batch: TokenBatch) -> dict[str, str]:
    """Return the entry of the provenance for a point of which the examples and positions are not known to be the batch's."""
    if not arrangement.in_order:
        return {"order": UNKNOWN}
    is_other = values.lookup is not None and not arrangement.is_batch and arrangement.shape[:2] == batch.shape
    return {"order": "not that of the batch's ids"} if is_other else {}


def _is_of_decoder(values: PointValues, arrangement: Arrangement, batch: TokenBatch, extras: Mapping[str, Any]) -> bool:
    """Return whether a lookup reads the ids of an encoder-decoder's decoder, which may be as long as the batch's ids."""
    if values.lookup is None or DECODER_IDS not in extras or np.array_equal(arrangement.ids, batch.ids):
        return False
    return equals(extras[DECODER_IDS], arrangement.ids)


def _mask_of_lookup(values: PointValues, arrangement: Arrangement, extras: Mapping[str, Any]) -> np.ndarray | None:
    """Return the mask of a lookup whose indices are one of the further inputs; None where there is none."""
    if values.lookup is None or tuple(arrangement.shape[:2]) != arrangement.ids.shape:
        return None
    return mask_of_further(extras, arrangement.ids)


def _pullbacks(
    name: str,
    values: PointValues,
    gradients: Sequence[np.ndarray | None],
    arrangement: Arrangement,
    split: bool,
    overridden: Sequence[str],
) -> list[np.ndarray]:
    """Return the gradients in the axes that users see: one for each example with `split`, else their sum."""
    present = [gradient for gradient in gradients if gradient is not None]
    if not present:
        raise _no_gradient(name, values, overridden)
    filled = [np.zeros_like(present[0]) if gradient is None else gradient for gradient in gradients]
    pullbacks = [take_owned(arrangement.to_user_axes(gradient)) for gradient in filled]
    if arrangement.shared and len(pullbacks) > 1:  # each is the gradient of one example's L at the shared tensor
        combined = np.zeros_like(pullbacks[0])
        for example, pullback in enumerate(pullbacks):
            combined[example] = pullback[example]
            if split:
                pullback[np.arange(len(pullback)) != example] = 0
        return pullbacks if split else [combined]
    if not split and len(pullbacks) > 1:
        return [np.sum(pullbacks, axis=0, dtype=np.float64).astype(pullbacks[0].dtype)]
    return pullbacks


def _by_example(pullbacks: Sequence[np.ndarray], split: bool) -> np.ndarray:
    return (
        np.stack([pullback[i] for i, pullback in enumerate(pullbacks)])
        if split and len(pullbacks) > 1
        else pullbacks[0]
    )


def _no_gradient(name: str, values: PointValues, overridden: Sequence[str]) -> NoGradientError:
    where = f"the point {name!r}" + (f" ({values.lookup})" if values.lookup is not None else "")
    if overridden:
        return NoGradientError(
            f"the objective does not depend on {where}, or only through {quote(overridden)}, whose value was overridden, so "
            "that the gradient ends there: expected a point after it; use add=... for a change through which the gradient flows"
        )
    return NoGradientError(
        f"the objective does not depend on {where}: no path in the graph leads from it to the point. Check whether the "
        "model detaches the value or converts it to integers, and whether the objective reads the right output"
    )


def _expect_finite(name: str, values: PointValues, gradient: np.ndarray) -> None:
    wrong = not_finite(gradient)
    if wrong is not None:
        path = f" ({values.lookup.path})" if values.lookup is not None else ""
        raise NoGradientError(
            f"the gradient at {name!r}{path} is {wrong.at('example', 'position')}: expected finite numbers. The backward pass "
            "overflows or divides by zero there; check the model's inputs, mask and dtype"
        )


def _leak(gradient: np.ndarray, mask: np.ndarray | None) -> float:
    if mask is None or mask.all():
        return 0.0
    return float(np.abs(gradient[mask == 0]).max())


def _copy(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else array.copy()


def join(pieces: Sequence[EmbeddingGradients], objective: Mapping[str, Any]) -> EmbeddingGradients:
    """Return one result, joined from the results of sub-batches in order.

    Args:
        pieces: the results of the sub-batches.
        objective: the description of the whole objective, for the provenance.
    """
    first = pieces[0]
    if len(pieces) == 1:
        return first
    for piece in pieces[1:]:
        if piece.values.shape[1:] != first.values.shape[1:] or len(piece.values) != len(piece.objective):
            raise UnsupportedError(
                f"the point {first.provenance['point']!r} has the shapes {first.values.shape} and {piece.values.shape} in two "
                "sub-batches: expected examples on its first axis; omit batch_size"
            )
    if any(piece.provenance.get("order") == UNKNOWN for piece in pieces):
        raise UnsupportedError(in_own_order(first.provenance["point"]))

    def concatenate(name: str) -> Any:
        arrays = [getattr(piece, name) for piece in pieces]
        return None if arrays[0] is None else np.concatenate(arrays)

    tables: tuple[RowSparse, ...] = tuple(table for piece in pieces for table in piece.tables or ())
    truncated = [count for piece in pieces for count in piece.provenance["truncated"]]
    return replace(
        first,
        **{name: concatenate(name) for name in ("values", "activations", "objective", "before", *PER_POSITION)},
        tokens=None if first.tokens is None else tuple(row for piece in pieces for row in piece.tokens or ()),
        pad_leak=max(piece.pad_leak for piece in pieces),
        provenance={
            **first.provenance,
            "objective": objective,
            "unused": list(dict.fromkeys(name for piece in pieces for name in piece.provenance["unused"])),
            "truncated": truncated,
            "batch_size": len(first.ids),
            "output_shape": _joint_shape([piece.provenance["output_shape"] for piece in pieces]),
        },
        tables=tables or None,
        certificate=None if first.certificate is None else worst([piece.certificate for piece in pieces]),
    )


def in_own_order(name: str) -> str:
    """Return the message for a point that has its examples in an order of the model's own, where the batch's is needed."""
    return (
        f"the point {name!r} has its examples in an order of the model's own: split=... and batch_size=... need the batch's. "
        "Omit them, or pass the batch in the model's order"
    )


def _joint_shape(shapes: Sequence[Sequence[int] | None]) -> list[int] | None:
    """Return the shape of the output of all sub-batches together."""
    known = [shape for shape in shapes if shape is not None]
    return [sum(shape[0] for shape in known), *known[0][1:]] if len(known) == len(shapes) else None


def warn_of_leak(result: EmbeddingGradients, objective: Any, bound: BoundModel) -> None:
    """Warn where a model that took the mask reads padding nevertheless, as some recurrent layers and convolutions do.

    Where the user calls the model, or a function is the objective, these may read it on purpose.
    """
    if bound.call is not None or isinstance(objective, NativeObjective) or not result.pad_leak or result.mask is None:
        return
    if "mask" in result.provenance["unused"]:
        return
    real = np.asarray(result.mask, bool)
    largest = float(np.abs(result.values[real]).max(initial=0.0))
    if result.pad_leak <= LEAST_LEAK * largest or not real.any(1).all():
        return
    share = f", {result.pad_leak / largest:.0%} of the largest at real positions" if largest else ""
    warnings.warn(
        f"the model reads padding though it was given a mask: at {result.provenance['point']!r} the gradient at padding is up to "
        f"{result.pad_leak:.2g}{share}, so that an example's result depends on its padding. Pad on the other side, or run texts "
        "of one length at a time, without padding",
        EmbgradWarning,
        stacklevel=level_of_user() + 1,
    )
