"""Hypotheses that the target's gradient was requested differently: other inputs, another objective, or another point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np

from embgrad.backend.registry import backend_for
from embgrad.comparison.diagnosis.factors import LEAST_DIM
from embgrad.comparison.diagnosis.objectives import OtherMask, other_objectives
from embgrad.comparison.diagnosis.rearrangements import order_padded_on
from embgrad.comparison.diagnosis.rerun import Source, Variant
from embgrad.engine.table_gradients import table_gradients
from embgrad.engine.weights import weights_of
from embgrad.errors import EmbgradError
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import WORD
from embgrad.objectives.objectives import CrossEntropy

__all__ = ["REQUESTS", "head_shares"]

#: The common offsets of position ids and of token ids: RoBERTa begins its positions at 2.
OFFSETS: Final = (1, 2, -1, -2)


def _mask_ignored(source: Source) -> Iterator[Variant]:
    """Yield runs without the mask: in the model alone, and in both the model and the objective."""
    if source.batch.padded:
        text, batch = f"that {source.target} ran without the mask", source.batch.replace(mask=None)
        yield Variant(("mask-ignored",), text, batch, OtherMask(source.objective, source.batch.mask))
        yield Variant(("mask-ignored",), f"{text}, and counts padding", batch)


def _pads_counted(source: Source) -> Iterator[Variant]:
    """Yield an objective that counts padding, which the model masks."""
    if source.batch.padded:
        text = f"that {source.target}'s objective counts padding"
        yield Variant(("pads-counted",), text, objective=OtherMask(source.objective, None))


def _types_ignored(source: Source) -> Iterator[Variant]:
    """Yield runs with segment ids of zeros, which most models take for none, and without segment ids."""
    batch = source.batch
    if batch.types is None or not batch.types.any():
        return
    text = f"that {source.target} ran without the segment ids"
    yield Variant(("types-ignored",), text, batch.replace(types=np.zeros_like(batch.ids)))
    yield Variant(("types-ignored",), text, batch.replace(types=None))
    if batch.padded:
        text = f"that {source.target} ran with the ids alone, without the segment ids and the mask"
        alone = batch.replace(mask=None, types=None)
        yield Variant(("types-ignored", "mask-ignored"), text, alone, OtherMask(source.objective, batch.mask))


def _padding_side(source: Source) -> Iterator[Variant]:
    """Yield runs with the padding on the left, and on the right."""
    batch, objective = source.batch, source.objective
    for side in ("left", "right") if batch.padded else ():
        order = order_padded_on(batch.real, side)
        if (order == np.arange(order.shape[1])).all():
            continue
        kept = {name: getattr(batch, name) for name in ("ids", "mask", "types")}
        moved = {
            name: None if array is None else np.take_along_axis(array, order, axis=1) for name, array in kept.items()
        }
        other = None
        if isinstance(objective, CrossEntropy) and objective.labels.ndim == 2:
            labels = np.take_along_axis(objective.labels, order, axis=1)
            other = CrossEntropy(labels, objective.of, output=objective.output, position=objective.position)
        text = f"that {source.target} was padded on the {side}"
        yield Variant(("padding-side",), text, batch.replace(**moved, words=None, tokens=None), other, moved=True)


def _other_batch(source: Source) -> Iterator[Variant]:
    """Yield a run of the source's model on the target's ids, mask and types, if these differ."""
    case = source.case
    partners = case.alignment.examples()
    if (partners < 0).any() or not case.has_other_texts:
        return
    ids = case.target.ids[partners]
    mask, types = (None if array is None else array[partners] for array in (case.target.mask, case.target.types))
    batch = TokenBatch(ids, mask, types, convention=source.batch.convention)
    labels = getattr(source.target_objective, "labels", np.zeros(1))
    objective = source.target_objective if labels.ndim == 2 else None  # labels of positions move with the texts
    cause, text = "other-ids", f"the ids: {source.target} has other ids"
    if case.differs_only_in_padding:
        cause, text = "padding-side", f"the padding: {source.target} has its texts at other positions"
    yield Variant((cause,), text, batch, objective, moved=True)


def _other_ids(source: Source) -> Iterator[Variant]:
    """Yield ids shifted by one or two, or the ids whose rows the target contains."""
    vocab, batch = source.case.source.vocab, source.batch
    if vocab is None:
        return
    seen = _looked_up_ids(source)
    if seen is not None:
        example, position = (int(i) for i in np.argwhere(seen != batch.ids)[0])
        text = (
            f"that {source.target} looked up other rows of the same table, such as {seen[example, position]} for the id "
            f"{batch.ids[example, position]} at example {example}, position {position}"
        )
        yield Variant(("other-ids",), text, batch.replace(ids=seen))
        return
    for offset in OFFSETS:
        ids = batch.ids + offset
        if ids.min() >= 0 and ids.max() < vocab:
            text = f"that {source.target} looked up each id {offset:+d}"
            yield Variant(("other-ids",), text, batch.replace(ids=ids))


def _looked_up_ids(source: Source) -> np.ndarray | None:
    """Return the ids whose rows in the source's table are the target's embeddings; None if not found, or if no id differs."""
    case = source.case
    shown = case.alignment.arrange(case.target.activations.astype(np.float64))
    looked_up = case.source.activations.astype(np.float64)
    if shown.shape != looked_up.shape or np.allclose(shown[case.matched], looked_up[case.matched], atol=1e-7):
        return None
    shape = (case.source.vocab, case.values.shape[-1])
    for table in (weight.get() for weight in weights_of(case.model) if weight.shape == shape):
        rows = {row.astype(np.float32).tobytes(): number for number, row in enumerate(table)}
        ids = np.array([[rows.get(row.astype(np.float32).tobytes(), -1) for row in example] for example in shown])
        ids = np.where(case.matched, ids, source.batch.ids)
        if (ids >= 0).all():
            return ids
    return None


def _other_table(source: Source) -> Iterator[Variant]:
    """Yield a run with the target's embeddings in place of the source's, for the same ids."""
    case = source.case
    if case.source.vocab is None or case.target.vocab is None or source.at != case.target.provenance.get("point"):
        return
    if (case.alignment.arrange(case.target.ids) != case.source.ids)[case.matched].any():
        return  # the values may differ because the ids do
    looked_up = case.source.activations.astype(np.float64)
    shown = case.alignment.arrange(case.target.activations.astype(np.float64))
    if shown.shape != looked_up.shape:
        return
    shown[~case.matched] = looked_up[~case.matched]
    distance = float(np.linalg.norm(shown - looked_up) / (np.linalg.norm(looked_up) or 1.0))
    if distance > case.tolerance:
        text = f"the table: {source.target} looks up other values for the same ids (relative L2 {distance:.2g})"
        yield Variant(("different-table",), text, override={source.at: shown.astype(case.source.values.dtype)})


def _scaled_lookup(source: Source) -> Iterator[Variant]:
    """Yield the lookup's value and its gradient times √dim, as in Vaswani et al., 2017, and in Gemma, and both divided by it."""
    dim = source.case.values.shape[-1]
    if source.at != WORD or dim < LEAST_DIM:
        return
    ways = (
        (dim**0.5, f"multiplies its lookup by √{dim}"),
        (dim**-0.5, f"lacks the factor √{dim} after its lookup"),
    )
    for factor, what in ways:
        change = {WORD: partial(_times, factor=factor)}
        yield Variant(("scaled-lookup",), f"that {source.target} {what}", override=change, times=factor)


def _times(value: np.ndarray, factor: float) -> np.ndarray:
    return np.asarray(value * factor, value.dtype)


def _position_offset(source: Source) -> Iterator[Variant]:
    """Yield runs with the rows of the position table moved up and down: RoBERTa's position ids begin at 2."""
    backend = backend_for(source.case.model)
    seen = backend.points(source.case.model, source.batch, source.case.call)
    tables = {point.path for point in seen if "position" in point.roles}
    for weight in weights_of(source.case.model):
        named = "position" in (weight.canonical or weight.name).lower() or weight.module in tables
        if not named or len(weight.shape) != 2 or min(weight.shape) < 2:
            continue
        for offset in OFFSETS:
            rolled = np.roll(weight.get(), -offset, axis=0)
            text = f"that {source.target}'s position ids are offset by {offset:+d}"
            yield Variant(("position-ids-offset",), text, weights={weight.name: rolled})


def _other_point(source: Source) -> Iterator[Variant]:
    """Yield runs at the embedding block's output, and at the target's point."""
    if source.at != "embeddings":
        text = f"that {source.target} was taken after the embedding block (with its norm), and not at {source.at!r}"
        yield Variant(("after-norm",), text, at="embeddings")
    point = str(source.case.target.provenance.get("point") or source.at)
    if point not in (source.at, "embeddings"):
        yield Variant(("other-point",), f"the point: {source.target} was taken at {point!r}", at=point)


#: The functions that yield other ways to run the source's model that may give the target, each with its cause.
REQUESTS: Final[tuple[tuple[str, Callable[[Source], Iterator[Variant]]], ...]] = (
    ("mask-ignored", _mask_ignored),
    ("pads-counted", _pads_counted),
    ("types-ignored", _types_ignored),
    ("padding-side", _padding_side),
    ("other-ids", _other_batch),
    ("other-ids", _other_ids),
    ("different-table", _other_table),
    ("scaled-lookup", _scaled_lookup),
    ("position-ids-offset", _position_offset),
    ("other-point", _other_point),
    ("other-objective", other_objectives),
)


def head_shares(source: Source) -> Iterator[tuple[str, np.ndarray]]:
    """Yield descriptions and float64 values of a tied table's own gradient at each position, with the head's share."""
    try:
        ledger = table_gradients(source.case.model, source.batch, source.objective, call=source.case.call)
    except EmbgradError:  # there is no table that is a parameter, and so no head's share
        return
    if not ledger.head.any():
        return
    ids, target = source.batch.ids, source.target
    yield (
        f"that {target} holds the tied table's whole gradient, with the head's share, at each position of a token",
        ledger.total[ids].astype(np.float64),
    )
    yield f"that {target} has the tied head's share added", source.case.values + ledger.head[ids]
    yield f"that {target} holds the tied head's share alone", ledger.head[ids].astype(np.float64)
