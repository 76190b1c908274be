"""The check of a port: whether a model computes what another one computes, and if not, at which points and why."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.keywords import explain_arguments
from embgrad.comparison.causes import causes_of, share_explained
from embgrad.comparison.examine import (
    Examination,
    as_stored,
    examine,
    examine_gradients,
    explain_sites,
    faint_sites,
    layers_of,
    permuted_before,
)
from embgrad.comparison.floor import ROUNDOFFS, accumulated_floors, name_of_roundoff, roundoff_for
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.recording import Recording
from embgrad.comparison.report import port_weights
from embgrad.comparison.settings import differing_settings
from embgrad.comparison.sides import batch_of_dumps, borrow_weights, models_of, record_side
from embgrad.comparison.sites import Pair, can_be_led, difference, pair_points
from embgrad.comparison.unled import NOTE as UNLED
from embgrad.comparison.weights import Matching, match_weights
from embgrad.errors import BatchError, EmbgradError, brief, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of
from embgrad.results.port_records import PortPoint
from embgrad.results.port_report import PortReport
from embgrad.toolkit.signature import expect_callable

__all__ = ["check_port"]

#: The number of floors beyond which the last point differs although every part agrees by itself.
MOST_APART: Final = 100.0

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
            None for double precision if both compute in it, otherwise single precision.

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
    clock = _Clock()
    texts = batch_of_dumps((reference, port)) if texts is None else texts
    batches = _batches(texts, tokenizer, max_length, models_of((reference, port)))
    with clock.of("reference"):
        a = record_side(reference, batches[0], objective, calls[0])
    with clock.of("port"):
        b = record_side(port, batches[1], objective, calls[1])
    a, b = borrow_weights(a, b, "a"), borrow_weights(b, a, "b")
    with clock.of("weights"):
        matching = match_weights(a.weights, b.weights)
        pairs = pair_points(a, b, matching)
    _expect_pairs(a, b, matching, pairs)
    roundoff = roundoff_for(a, b, floor)
    examined, explained = _explained(pairs, (a, b), matching, roundoff, clock)
    sites = examined.sites
    found = [(site, explanation) for site, explanation in explained if explanation is not None]
    with clock.of("gradients"):
        examined, behind = examine_gradients(examined, (a, b), roundoff)
    with clock.of("floor"):
        accumulated = accumulated_floors(examined.pairs, a, roundoff)
    with clock.of("causes"):
        faint = faint_sites(examined, (a, b), matching, [explanation for _, explanation in found])
        causes = causes_of([*found, *faint])
    with clock.of("share"):
        share = share_explained(examined.pairs, a, b, found)
    points = tuple(_points(examined, a, b, accumulated, behind))
    settings = differing_settings(a.settings, b.settings, causes, all_explained=len(found) == len(sites))
    notes = [f"{name}: {side.failure}" for name, side in (("a", a), ("b", b)) if side.failure]
    notes += [*a.notes, *b.notes, *([] if can_be_led(a) or can_be_led(b) else [UNLED])]
    apart = points[-1].values > MOST_APART * max(points[-1].floor, roundoff)
    if apart and not sites:
        notes.append(f"the models differ at {points[-1].name!r}, and no pair of points shows where")
    if behind:
        notes.append(
            f"all values agree, and the gradient differs first at {behind[0]!r} on the way back from the objective: check for a "
            "custom backward pass or a detached tensor"
        )
    unexplained = [site.name for site, explanation in explained if explanation is None]
    return PortReport(
        agrees=not (sites or apart or behind),
        first=next(iter([*(site.name for site in sites), *behind]), None),
        causes=causes,
        unexplained=(*unexplained, *behind),
        settings=settings,
        weights=port_weights(matching),
        points=points,
        explained=share,
        labels=(a.label, b.label),
        floor=floor or name_of_roundoff(roundoff),
        notes=tuple(notes),
        seconds=clock.seconds,
    )


@dataclass
class _Clock:
    """The time that each step takes, in seconds."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Measure a step."""
        start = time.perf_counter()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start


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


def _expect_pairs(a: Recording, b: Recording, matching: Matching, pairs: Sequence[Pair]) -> None:
    if len(pairs) > 1:
        return
    sizes = [
        f"{len(side.weights)} weights, {sum(int(np.prod(weight.shape)) for weight in side.weights)} numbers"
        for side in (a, b)
    ]
    raise EmbgradError(
        f"the two models have nothing in common that can be compared: a is {a.label} with {sizes[0]}, b is {b.label} with "
        f"{sizes[1]}, and {len(matching.matches)} weights of a have a partner in b. Pass a port with the reference's weights"
    )


def _explained(
    pairs: Sequence[Pair],
    recordings: tuple[Recording, Recording],
    matching: Matching,
    roundoff: float,
    clock: _Clock,
) -> tuple[Examination, list[tuple[Site, Explanation | None]]]:
    """Return the sites at which two models differ, with their explanations.

    Where a site is unexplained, and a weight before it has its rows in another order, the order may be the fault and not a
    choice: the examination with the features in the order in which b holds them counts if it leaves fewer unexplained.
    """
    with clock.of("led"):
        examined = examine(pairs, recordings, matching, roundoff)
    with clock.of("causes"):
        explained = explain_sites(examined)
    suspects = permuted_before(examined, [site for site, explanation in explained if explanation is None])
    if not suspects:
        return examined, explained
    with clock.of("led"):
        again = examine(as_stored(pairs, suspects), recordings, matching, roundoff)
    with clock.of("causes"):
        explained_again = explain_sites(again)
    left, left_again = (sum(explanation is None for _, explanation in both) for both in (explained, explained_again))
    return (again, explained_again) if left_again < left else (examined, explained)


def _points(
    examined: Examination, a: Recording, b: Recording, accumulated: Sequence[float], behind: Sequence[str]
) -> Iterator[PortPoint]:
    layer_of, led, real = layers_of(a), examined.led, a.batch.real
    differing = {*(site.name for site in examined.sites), *behind}
    for number, pair in enumerate(examined.pairs):
        first, second = a.tensors[pair.a], b.tensors[pair.b]
        gradients = [first.whole_gradient, second.whole_gradient]
        own = pair.in_a(first.values) if led.follower == "b" else pair.in_b(second.values)
        own_gradient = gradients[0] if led.follower == "b" else gradients[1]
        yield PortPoint(
            name=pair.name,
            port_name=pair.b,
            layer=layer_of(first.time),
            values=difference(pair.in_a(first.values), pair.in_b(second.values), real),
            gradient=None
            if gradients[0] is None or gradients[1] is None
            else difference(pair.in_a(gradients[0]), pair.in_b(gradients[1]), real),
            floor=accumulated[number],
            local=difference(own, led.values[number], real) if number in led.values else None,
            local_gradient=None
            if number not in led.gradients or own_gradient is None
            else difference(
                pair.in_a(own_gradient) if led.follower == "b" else pair.in_b(own_gradient), led.gradients[number], real
            ),
            agrees=pair.name not in differing,
        )
