"""The check of a port: whether a model computes what another one computes, and if not, at which points and why."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.keywords import explain_arguments
from embgrad.comparison.causes import share_explained
from embgrad.comparison.floor import ROUNDOFFS, coarser_half, name_of_roundoff, precision_of, roundoff_for
from embgrad.comparison.inspection import Clock, Inspection, inspect_recordings
from embgrad.comparison.led_pass import can_be_led
from embgrad.comparison.outputs import with_common_output
from embgrad.comparison.report import port_weights
from embgrad.comparison.settings import differing_settings
from embgrad.comparison.sides import batch_of_dumps, borrow_weights, models_of, record_side
from embgrad.comparison.sites import count_layers
from embgrad.comparison.unled import NOTE as UNLED
from embgrad.errors import BatchError, EmbgradError, brief, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of
from embgrad.results.port_records import Cause
from embgrad.results.port_report import PortReport
from embgrad.toolkit.signature import expect_callable

__all__ = ["check_port"]

#: What to do about tokenizers that differ.
ONE_TOKENIZER: Final = "Pass one tokenizer, or a batch of ids that both models take"


@explain_arguments
def check_port(
    reference: Any,
    port: Any,
    texts: Any = None,
    objective: Any = None,
    *,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | tuple[Call | None, Call | None] | None = None,
    floor: str | None = None,
) -> PortReport:
    """Check whether a model is a right port of another one, of the same framework or of another, and find why not.

    `check_port` says whether a port is right, and why not; `bisect` says where two models first diverge, by more than a tolerance
    of yours.

    Both models run once, and their points are paired: by roles, and by modules whose weights have equal values, whatever their
    names. Then the port runs again with the reference's values put in at every paired point, so that each part of it computes
    from the same inputs as the reference's: the parts whose outputs differ are at fault, each by itself. Known functions are
    fitted to their inputs and outputs in both models; the settings that differ are the causes.

    Args:
        reference: the model to measure against, as in `gradients`; an .onnx file; or the folder of a dump, see `embgrad.dump`.
        port: the model that is checked, likewise. Of two folders the first point that differs is found, no more.
        texts: the texts or the batch, as in `gradients`; so are `tokenizer` and `max_length`. A few texts of different lengths,
            with at least a dozen tokens, show most. A pair of TokenBatch objects if the two models take other forms of it.
            None for the batch of a dump.
        objective: as in `gradients`, to compare gradients too; None to compare values alone.
        tokenizer: the tokenizer of both models, or a pair of tokenizers, whose ids must be equal.
        max_length: as in `gradients`.
        call: a function that calls the models, as in `gradients`; a pair if the two are called in different ways.
        floor: the dtype whose rounding errors count as agreement: "float64", "float32", "tfloat32", "float16" or "bfloat16".
            None for double precision if both compute in it, otherwise single precision; two models in half precision are
            compared in that, and so is one in half precision with another, where the precision itself is a cause.

    Returns:
        A PortReport. Its `agrees` is True if the port computes the same up to rounding.

    Raises:
        BackendError: no backend takes a model.
        BatchError: the batch is malformed, the two tokenizers return different ids, or a dump is of another batch.
        FileFormatError: a folder holds no dump, or one that is incomplete or broken.
        EmbgradError: the two models have nothing in common that could be compared.
    """
    if floor is not None and floor not in ROUNDOFFS:
        raise EmbgradError(f"floor is {brief(floor)}: expected one of {quote(ROUNDOFFS)}, or None")
    calls = call if isinstance(call, tuple) else (call, call)
    for one in calls:
        expect_callable(one)
    clock = Clock()
    texts = batch_of_dumps((reference, port)) if texts is None else texts
    batches = _batches(texts, tokenizer, max_length, models_of((reference, port)))
    with clock.of("reference"):
        a = record_side(reference, batches[0], objective, calls[0])
    with clock.of("port"):
        b = record_side(port, batches[1], objective, calls[1])
        a, b = with_common_output(a, b)
    a, b = borrow_weights(a, b, "a"), borrow_weights(b, a, "b")
    precisions = precision_of(a), precision_of(b)
    half = coarser_half(precisions) if floor is None else None
    roundoff = roundoff_for(a, b, floor or half)
    inspection = inspect_recordings((a, b), roundoff, clock)
    sites, found, causes, behind = inspection.examined.sites, inspection.found, inspection.causes, inspection.behind
    points = inspection.points
    is_coarser = half is not None and precisions[0] != precisions[1]
    if is_coarser:
        causes = (_precision(inspection, precisions), *causes)
    with clock.of("share"):
        share = share_explained(inspection.examined.pairs, a, b, found)
    settings = differing_settings(a.settings, b.settings, causes, all_explained=len(found) == len(sites))
    notes = [f"{name}: {side.failure.message}" for name, side in (("a", a), ("b", b)) if side.failure]
    notes += [*a.notes, *b.notes, *([] if can_be_led(a) or can_be_led(b) else [UNLED])]
    notes += [f"{text}; what follows makes up for it" for text in inspection.made_up]
    layers = count_layers(a), count_layers(b)
    if layers[0] != layers[1] and all(layers):
        notes.append(f"a has {layers[0]} layer{'s' if layers[0] > 1 else ''}, and b {layers[1]}")
    if is_coarser and not sites:
        notes.append(
            f"up to rounding in {half} the port agrees at all points; pass floor={half!r} to accept that precision"
        )
    if inspection.is_apart and not sites:
        notes.append(f"the models differ at {points[-1].name!r}, and no pair of points shows where")
    if behind:
        notes.append(
            f"all values agree, and the gradient differs first at {behind[0]!r} on the way back from the objective: check for a "
            "custom backward pass or a detached tensor"
        )
    unexplained = [site.name for site, explanation in inspection.explained if explanation is None]
    return PortReport(
        agrees=not (causes or sites or inspection.is_apart or behind),
        first=next(iter([*(site.name for site in sites), *behind, *(cause.sites[0] for cause in causes)]), None),
        causes=causes,
        unexplained=(*unexplained, *behind),
        settings=settings,
        weights=port_weights(inspection.matching),
        points=points,
        explained=share,
        labels=(a.label, b.label),
        floor=floor or half or name_of_roundoff(roundoff),
        notes=tuple(notes),
        seconds=clock.seconds,
    )


def _precision(inspection: Inspection, precisions: tuple[str, str]) -> Cause:
    """Return the cause that one model computes in half precision."""
    least = ROUNDOFFS["float32"]
    differing = [point for point in inspection.points if not point.values <= least]
    return Cause(
        cause="half-precision",
        text=f"a computes in {precisions[0]} and b in {precisions[1]}",
        values=precisions,
        sites=tuple(point.name for point in differing),
        layers=tuple(sorted({point.layer for point in differing if point.layer is not None})),
        difference=max((point.values for point in differing), default=0.0),
        remaining=max((point.local or 0.0 for point in differing), default=0.0),
    )


def _batches(
    texts: Any, tokenizer: Any, max_length: int | None, models: tuple[Any, Any]
) -> tuple[TokenBatch, TokenBatch]:
    """Return the batch of each side, which hold the same ids."""
    pair = isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(part, TokenBatch) for part in texts)
    inputs = texts if pair else (texts, texts)
    tokenizers = tokenizer if isinstance(tokenizer, tuple) else (tokenizer, tokenizer)
    if len(tokenizers) != 2:
        raise BatchError(f"tokenizer is a tuple of {len(tokenizers)}: expected a tokenizer, or one for a and one for b")
    if not pair and tokenizers[0] is tokenizers[1]:
        batch = batch_of(texts, tokenizers[0], max_length, models[0])
        return batch, batch
    first, second = (
        batch_of(part, own, max_length, model) for part, own, model in zip(inputs, tokenizers, models, strict=True)
    )
    padded_alike = first.mask is None or second.mask is None or np.array_equal(first.real, second.real)
    if not padded_alike or first.shape != second.shape or (first.ids != second.ids)[first.real].any():
        raise BatchError(_first_other_token(first, second))
    return first, second


def _first_other_token(a: TokenBatch, b: TokenBatch) -> str:
    """Return the message about two batches of the same texts with different ids."""
    rows = ([ids[real] for ids, real in zip(side.ids, side.real, strict=True)] for side in (a, b))
    for number, (first, second) in enumerate(zip(*rows, strict=False)):
        common = min(len(first), len(second))
        differing = np.flatnonzero(first[:common] != second[:common])
        if differing.size or len(first) != len(second):
            at = int(differing[0]) if differing.size else common
            shown = [f"the id {side[at]}" if at < len(side) else "nothing" for side in (first, second)]
            return f"the tokenizers differ at text {number}, token {at}: a has {shown[0]}, and b {shown[1]}. {ONE_TOKENIZER}"
    if len(a.ids) == len(b.ids):
        shapes = f"in arrays of shape {a.ids.shape} and {b.ids.shape}"
        return f"the tokenizers return the same ids with padding at other positions, {shapes}. {ONE_TOKENIZER}"
    return f"the tokenizers return {len(a.ids)} and {len(b.ids)} texts. Pass the same texts for a and for b"
