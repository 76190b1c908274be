"""Compare outputs with continuations of other tokens, each of which is read from a pass in which it stands in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from embgrad.attribution.method import Method
from embgrad.attribution.path_methods import IntegratedGradients
from embgrad.attribution.targets import NONE, Targets, ids_at
from embgrad.attribution.token_lines import Made
from embgrad.attribution.token_passes import TokenPasses
from embgrad.common.metrics import lengths
from embgrad.common.options import lists_choices
from embgrad.common.pytree import every
from embgrad.errors import UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import decoder_names, with_decoder_ids

__all__ = ["compare_continuations"]


def compare_continuations(
    passes: TokenPasses, methods: Sequence[Method], compute: Callable[[Sequence[Method], TokenPasses], Made]
) -> Made:
    """Return the contributions to the differences of log-probabilities: of each output, and of the continuation in its place.

    Both are functions of the tokens before the output, whose contributions are subtracted. From the output on each has tokens of
    its own: those of the continuation are `Made.contrast`. Each output takes passes of its own over twice as many examples.

    Args:
        methods: the method with each of its baselines.
        compute: returns the contributions by the methods to the outputs of passes.
    """
    made, own = [], []
    for output in range(passes.targets.spans.shape[1]):
        twice = _twice(passes, output)
        wide = twice.sides[-1].shape[1] != passes.sides[-1].shape[1]
        both = compute([_for_both(method, passes, wide) for method in methods], twice)
        made.append(_difference(both, passes, output))
        own.append(_of_contrast(both, passes, output))
    first = made[0]

    def join(name: str) -> np.ndarray | None:
        arrays = [getattr(single, name) for single in made]
        return None if arrays[0] is None else np.concatenate(arrays)

    notes = dict(first.notes)
    if "steps_taken" in notes:
        notes["steps_taken"] = np.max([single.notes["steps_taken"] for single in made], axis=0).tolist()
    flats = [single.flat for single in made if single.flat is not None]
    return Made(
        [np.concatenate(arrays) for arrays in zip(*(single.scores for single in made), strict=True)],
        np.concatenate([single.objectives for single in made]),
        join("before"),
        first.provenance,
        join("error"),
        notes,
        np.any(flats, axis=0) if flats else None,
        np.concatenate(own),
    )


def _twice(passes: TokenPasses, output: int) -> TokenPasses:
    """Return passes over the examples with an output, and after them the examples with the continuation in its place."""
    side, count = passes.sides[-1], len(passes.batch)
    spans, contrast = passes.targets.spans[:, output], passes.targets.contrasts[:, output]
    sizes = (contrast != NONE).sum(1)
    ends = np.where(sizes > 0, spans[:, 0] + sizes, 0)
    room = max(0, int(ends.max()) - side.shape[1])
    if room:
        _expect_no_positions(passes.batch, side.shape[1])
    ids, real = _widen(side.ids, room), np.pad(np.tile(side.real, (2, 1)), ((0, 0), (0, room)))
    types = None if side.types is None else _widen(side.types, room)
    positions = np.full((2 * count, 1, max(spans.shape[1], contrast.shape[1])), NONE)
    positions[:count, 0, : spans.shape[1]] = spans
    for example in np.flatnonzero(sizes):
        row, at = count + example, np.arange(spans[example, 0], ends[example])
        ids[row, at], real[row, at], real[row, ends[example] :] = contrast[example, : len(at)], True, False
        positions[row, 0, : len(at)] = at
        if types is not None:
            types[row, at] = types[row, at[0]]
    targets = Targets(positions, ids_at(ids, positions), None)
    batch = passes.batch.take(np.tile(np.arange(count), 2))
    mask = None if side.mask is None else real.astype(np.int64)
    if decoder_names(batch.extras) is not None and side is not passes.batch:
        batch = with_decoder_ids(batch, ids, mask)
    else:
        batch = batch.replace(ids=ids, mask=mask, types=types)
    return replace(passes, batch=batch, targets=targets, paired=True)


def _widen(array: np.ndarray, room: int) -> np.ndarray:
    """Return an array of (example, position) twice, with more positions, which have the numbers of the last."""
    return np.pad(np.tile(array, (2, 1)), ((0, 0), (0, room)), mode="edge")


def _expect_no_positions(batch: TokenBatch, width: int) -> None:
    known = decoder_names(batch.extras) or ()
    for name, value in batch.extras.items():
        shapes = [tuple(array.shape) for array in every(value, lambda entry: hasattr(entry, "shape"))]
        if name not in known and any(width in shape for shape in shapes):
            raise UnsupportedError(
                f"the contrast is longer than the room for it in the batch, and the further input {name!r} has {width} positions"
                ": pad the batch on the right, or give a shorter contrast"
            )


def _for_both(method: Method, passes: TokenPasses, wide: bool) -> Method:
    """Return the method for twice as many examples: with a baseline of its own for each of them again."""
    if not isinstance(method, IntegratedGradients) or lists_choices(method.baseline) or len(passes.sides) > 1:
        return method  # with two sides an array is refused, which the method says
    baseline, positions = method.baseline, passes.sides[0].shape[1]
    if not isinstance(baseline, np.ndarray) or baseline.ndim < 2:
        return method
    if wide and baseline.shape[-2] == positions > 1:
        raise UnsupportedError(
            f"the contrast is longer than the room for it in the batch, and the baseline has {positions} positions: pad both on "
            "the right, or give one vector as baseline"
        )
    both = baseline.ndim == 3 and len(baseline) == len(passes.batch)
    return replace(method, baseline=np.tile(baseline, (2, 1, 1))) if both else method


def _difference(made: Made, passes: TokenPasses, output: int) -> Made:
    """Return the contributions to one output minus those to its continuation, of the tokens of the batch."""
    count, before, error = len(passes.batch), made.before, made.error
    starts = passes.targets.spans[:, output, 0]
    scores = []
    for number, (array, side) in enumerate(zip(made.scores, passes.sides, strict=True)):
        first, second = _vectors(array)[:, :count], _vectors(array)[:, count:]
        if number == len(made.scores) - 1:
            is_before = np.arange(second.shape[2]) < starts[:, None]
            second = np.where(is_before[None, ..., None], second, 0.0)
        scores.append(_numbers(first - second, array)[:, :, : side.shape[1]])
    notes = {name: values[:count] for name, values in made.notes.items()}
    if "steps_taken" in notes:
        notes["steps_taken"] = np.max(np.split(np.array(made.notes["steps_taken"]), 2), axis=0).tolist()
    return Made(
        scores,
        made.objectives[:, :count] - made.objectives[:, count:],
        None if before is None else before[:, :count] - before[:, count:],
        made.provenance,
        None if error is None else error[:, :count] + error[:, count:],
        notes,
        None if made.flat is None else np.logical_or(*np.split(made.flat, 2)),
    )


def _of_contrast(made: Made, passes: TokenPasses, output: int) -> np.ndarray:
    """Return the contributions of the tokens of one output's continuation, (1, example, token)."""
    contrast = passes.targets.contrasts[:, output]
    vectors = _vectors(made.scores[-1])[:, len(passes.batch) :]
    at = passes.targets.spans[:, output, :1] + np.arange(contrast.shape[1])
    exists = contrast != NONE
    taken = np.take_along_axis(vectors, np.where(exists, at, 0)[None, ..., None], 2)
    return _numbers(np.where(exists[None, ..., None], 0.0 - taken, 0.0), made.scores[-1])


def _vectors(scores: np.ndarray) -> np.ndarray:
    """Return scores with an axis of numbers for each position, as `Saliency` has, whose scores are the gradients themselves."""
    return scores if scores.ndim == 4 else scores[..., None]


def _numbers(vectors: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return a number for each position: the vectors' lengths where scores are vectors."""
    return np.asarray(lengths(vectors) if scores.ndim == 4 else vectors[..., 0])
