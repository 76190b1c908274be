"""Integrated gradients of output tokens: along the lines from a baseline, for all output tokens at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from embgrad.attribution.baselines import (
    NOT_FINITE,
    SCALE_FREE,
    SCALES,
    Visible,
    baseline_values,
    check_baseline,
    choose_visible,
    explain_zeros,
    id_of,
    is_auto,
    is_flat,
    is_zero,
    keep_first,
    note_first,
    notes_of,
)
from embgrad.attribution.lines import explain_end
from embgrad.attribution.passes import rounding_at
from embgrad.attribution.path_methods import IntegratedGradients
from embgrad.attribution.quadrature import error_along, nodes_and_weights
from embgrad.attribution.refinement import refine
from embgrad.attribution.token_passes import TokenPasses
from embgrad.backend.protocol import Reduce
from embgrad.engine.embedding_table import table_of
from embgrad.errors import BatchError, ObjectiveError, UnsupportedError

__all__ = ["Made", "integrate_tokens"]

#: The share of the difference of L above which the error of the line from zeros is compared with that of another line.
WANDERS: Final = 0.25


@dataclass
class Made:
    """The contributions to output tokens by a method, for the moved batch.

    Attributes:
        scores: for each point (output, example, position).
        objectives: L, (output, example).
        before: L at the baseline, likewise; None where the method has none.
        provenance: that of the first pass.
        error: a bound of the error of completeness, likewise, see `Attribution`.
        notes: further entries of the method's description in the provenance.
        flat: the examples that need another baseline than zeros, bool, (example,).
        contrast: the contributions of the tokens of continuations that outputs are compared with, (output, example, token); None
            where there are none.
    """

    scores: list[np.ndarray]
    objectives: np.ndarray
    before: np.ndarray | None
    provenance: dict[str, Any]
    error: np.ndarray | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    flat: np.ndarray | None = None
    contrast: np.ndarray | None = None


def integrate_tokens(method: IntegratedGradients, passes: TokenPasses, tokenizer: Any) -> Made:
    """Return the contributions by integrated gradients from one baseline."""
    inputs, notes = passes.values(), dict[str, Any]()
    if is_auto(method.baseline):
        line, flat, notes = _from_visible(method, passes, inputs, tokenizer)
    else:
        with explain_zeros(method.baseline):
            line = _along(method, passes, inputs, method.baseline, tokenizer)
        flat = line.flat_examples() if is_zero(method.baseline) else np.zeros(len(passes.batch), bool)
    taken = np.full(len(passes.batch), method.steps)
    if method.tolerance is not None and not passes.first.is_random:
        _refine(method, line, taken)
    notes["steps_taken"] = taken.tolist()
    return Made(line.scores, line.own, line.before, line.provenance, line.error, notes, flat)


def _from_visible(
    method: IntegratedGradients, passes: TokenPasses, inputs: list[np.ndarray], tokenizer: Any
) -> tuple[_TokenLine, np.ndarray, dict[str, Any]]:
    """Return the contributions from zeros or, where L does not change with their scale, another baseline, see `attribute`."""

    def choose() -> Visible | None:
        return choose_visible(passes.first, tokenizer, method.keep_special)

    try:
        line = _along(method, passes, inputs, "zero", tokenizer)
        flat, why = line.flat_examples(), SCALE_FREE
    except ObjectiveError:
        flat, why, chosen = np.ones(len(passes.batch), bool), NOT_FINITE, choose()
        if chosen is None:
            raise
        line = _along(method, passes, inputs, chosen.baseline, tokenizer)
    else:
        chosen = choose() if flat.any() else None
        if chosen is not None:
            line.take_from(_along(method, passes, inputs, chosen.baseline, tokenizer), flat)
    notes = notes_of(flat, chosen, why)
    wandering = (line.error_share() > WANDERS) & (passes.batch.real.sum(1) > 1)
    visible = choose() if wandering.any() and not method.keep_first and len(inputs) == 1 else None
    if visible is not None and not passes.first.is_random:
        kept = _along(replace(method, keep_first=True), passes, inputs, visible.baseline, tokenizer)
        better = wandering & (2 * kept.error_share() < line.error_share())
        line.take_from(kept, better)
        note_first(notes, better, visible)
    return line, flat & (chosen is None), notes


@dataclass
class _TokenLine:
    """The lines of the examples from a baseline to the values at the points, and the contributions along them.

    Attributes:
        origins: for each point the beginnings of the lines, (example, position, dim).
        differences: likewise the ends minus these.
        scores: for each point the contributions, (output, example, position).
        own: L at the inputs, (output, example).
        before: L at the baseline, likewise.
        error: the largest error of the sum on any stretch, likewise.
        nodes: the places of the steps, (step,).
        objectives: L there, (step, output, example).
    """

    passes: TokenPasses
    origins: list[np.ndarray]
    differences: list[np.ndarray]
    scores: list[np.ndarray]
    own: np.ndarray
    before: np.ndarray
    error: np.ndarray
    nodes: np.ndarray
    objectives: np.ndarray
    provenance: dict[str, Any]

    @property
    def rounding(self) -> float:
        """The share of an objective that is rounding."""
        return rounding_at(self.provenance["compute_dtype"])

    def take_from(self, other: _TokenLine, examples: np.ndarray) -> None:
        """Take the contributions of some examples, bool, (example,), from those along other lines."""
        for name in ("origins", "differences"):
            for own, theirs in zip(getattr(self, name), getattr(other, name), strict=True):
                own[examples] = theirs[examples]
        for own, theirs in zip(self.scores, other.scores, strict=True):
            own[:, examples] = theirs[:, examples]
        self.before[:, examples] = other.before[:, examples]
        self.error[:, examples] = other.error[:, examples]

    def error_share(self) -> np.ndarray:
        """Return the share of an example's error in its differences of L, all output tokens and both of a pair together."""
        error, size = self.error.sum(0), np.abs(self.own - self.before).sum(0)
        if self.passes.paired:
            error, size = (array + np.roll(array, self.examples // 2) for array in (error, size))
        return np.asarray(error / np.maximum(size, np.finfo(np.float64).tiny))

    def flat_examples(self) -> np.ndarray:
        """Return whether L of all of an example's output tokens is the same at all scales of its values, bool, (example,)."""
        flat = self._are_flat(self.objectives[self.nodes >= SCALES[0]])
        if flat.any():
            everyone = np.arange(self.examples)
            at_scales = [self.objectives_at(everyone, np.full(self.examples, scale)).T for scale in SCALES]
            flat &= self._are_flat(np.stack(at_scales))
        return self.passes.in_pairs(flat)

    def _are_flat(self, objectives: np.ndarray) -> np.ndarray:
        flat = is_flat(objectives, self.own, self.before, self.rounding)
        is_same = np.abs(self.own - self.before) <= self.rounding * (np.abs(self.own) + np.abs(self.before))
        return np.asarray((flat | is_same).all(0) & flat.any(0))

    @property
    def examples(self) -> int:
        """The number of examples."""
        return len(self.passes.batch)

    @property
    def is_free(self) -> bool:
        """Return whether a pass may run any examples, each as often as is needed."""
        return self.passes.is_free

    @property
    def at_once(self) -> int:
        """The most rows of a pass."""
        return self.passes.step_size

    def values_at(self, examples: np.ndarray, places: np.ndarray) -> list[np.ndarray]:
        """Return for each point the values at a place on the line of each of some examples, (row, position, dim)."""
        return [
            origin[examples] + places[:, None, None] * difference[examples]
            for origin, difference in zip(self.origins, self.differences, strict=True)
        ]

    def objectives_at(self, examples: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return L at one place on the line of each of some examples, (row, output), from forward passes."""
        found = [
            self.passes.objectives_at(examples[rows], self.values_at(examples[rows], places[rows]))
            for rows in _pieces(len(examples), max(self.at_once, 1 if self.is_free else self.examples))
        ]
        return np.asarray(np.concatenate(found, 1).T)

    def integrals(
        self, examples: np.ndarray, places: np.ndarray, weights: np.ndarray
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the contributions, for each point (row, output, position), and their sums, (row, output)."""
        count = len(examples)
        totals: list[np.ndarray] = []
        at, shares, members = places.ravel(), weights.ravel(), np.tile(examples, len(places))
        for rows in _pieces(len(at), self.at_once if self.is_free else count):
            scored = self.score(members[rows], at[rows], shares[rows] != 0).scores
            totals = totals or [np.zeros((count, len(array), array.shape[-1])) for array in scored]
            for total, array in zip(totals, scored, strict=True):
                np.add.at(total, rows % count, shares[rows, None, None] * array.swapaxes(0, 1))
        return totals, np.sum([total.sum(-1) for total in totals], axis=0)

    def score(self, examples: np.ndarray, places: np.ndarray, weighed: np.ndarray, *, quiet: bool = True) -> Any:
        """Return the results of one pass, see `TokenPasses.score`, with gradients times the differences."""
        reduce = _product_with([difference[examples] for difference in self.differences], self.passes.names)
        return self.passes.score(examples, reduce, self.values_at(examples, places), quiet=quiet, weighed=weighed)


def _pieces(count: int, size: int) -> list[np.ndarray]:
    return [np.arange(start, min(start + size, count)) for start in range(0, count, size)]


def _along(
    method: IntegratedGradients, passes: TokenPasses, inputs: list[np.ndarray], baseline: Any, tokenizer: Any
) -> _TokenLine:
    """Return the contributions by the method's rule along the lines from a baseline."""
    count, outputs = len(passes.batch), passes.targets.positions.shape[1]
    origins = _baselines(baseline, passes, inputs, tokenizer, method.keep_special)
    if method.keep_first:
        origins[0] = keep_first(passes.first, origins[0])
    differences = [own - origin for own, origin in zip(inputs, origins, strict=True)]
    nodes, weights = nodes_and_weights(method.rule, method.steps)
    # Steps at the baseline and at the inputs, without weight, give L there.
    places, shares = np.concatenate([[0.0], nodes, [1.0]]), np.concatenate([[0.0], weights, [0.0]])
    scores = [np.zeros((outputs, *own.shape[:2])) for own in inputs]
    objectives, slopes = np.zeros((2, len(places), outputs, count))
    line = _TokenLine(
        passes, origins, differences, scores, objectives[-1], objectives[0], objectives[0], nodes, objectives[1:-1], {}
    )
    for rows in passes.pieces(len(places)):
        step, example = np.divmod(rows, count)
        with explain_end(method.rule):
            part = line.score(example, places[step], shares[step] != 0, quiet=bool(line.provenance))
        line.provenance = line.provenance or dict(part.provenance)
        for total, scored in zip(scores, part.scores, strict=True):
            for row, (at, weight) in enumerate(zip(example, shares[step], strict=True)):
                total[:, at] += weight * scored[:, row]
            slopes[step, :, example] += scored.sum(-1).T
        objectives[step, :, example] = part.objectives.T
    delta = _sums(scores) - (line.own - line.before)
    line.error = error_along(method.rule, slopes[1:-1], line.objectives, line.before, delta)
    return line


def _sums(scores: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.sum([array.sum(-1) for array in scores], axis=0))


def _refine(method: IntegratedGradients, line: _TokenLine, taken: np.ndarray) -> None:
    """Refine the lines of examples with an output token whose error is too large, in `line` and `taken`."""
    assert method.tolerance is not None
    difference = line.own - line.before
    allowed = method.tolerance * line.passes.sizes(difference)
    rounding = line.rounding * (np.abs(line.own) + np.abs(line.before))
    missed = np.flatnonzero((line.error > allowed + rounding).any(0))
    if not missed.size:
        return
    ends = line.before.T, line.own.T
    refined = refine(line, missed, ends, allowed.T, rounding.T, method.rule, method.steps, method.most_steps)
    if refined is None:
        return
    taken[missed] = refined.taken
    # All output tokens of an example share its line: the finer one is taken where the worst of them has a smaller error.
    better = refined.error.max(1) < line.error[:, missed].max(0)
    chosen = missed[better]
    for total, array in zip(line.scores, refined.contributions, strict=True):
        total[:, chosen] = array[better].swapaxes(0, 1)
    delta = _sums(line.scores) - difference
    line.error[:, chosen] = np.maximum(refined.error[better].T, np.abs(delta[:, chosen]))


def _product_with(differences: Sequence[np.ndarray], names: Sequence[str]) -> Reduce:
    """Return a function that multiplies the gradient at a point by the difference there, and sums over dim."""

    def product(key: str, gradient: np.ndarray, value: np.ndarray) -> np.ndarray:
        side = int(key == names[-1] and len(names) > 1)  # the decoder's point is named by its key
        return np.asarray(np.einsum("rpd,rpd->rp", gradient, differences[side], dtype=np.float64)[..., None])

    return product


def _baselines(
    baseline: Any, passes: TokenPasses, inputs: list[np.ndarray], tokenizer: Any, keep_special: bool
) -> list[np.ndarray]:
    """Return the baseline's values at each point, (example, position, dim)."""
    origins = [baseline_values(passes.first, baseline, tokenizer, keep_special)]
    if len(inputs) == 1:
        return origins
    baseline = check_baseline(baseline)
    if isinstance(baseline, np.ndarray) or keep_special:
        raise UnsupportedError(
            "the baseline of an encoder-decoder is put in place of the encoder's and the decoder's tokens: expected 'auto', "
            "'zero', 'pad', 'mask', 'mean' or an id, and keep_special=False"
        )
    row: Any = 0.0
    if baseline != "zero":
        table = table_of(passes.bound, passes.batch, passes.names[1])
        if baseline == "mean":
            row = table.mean(0, dtype=np.float64)
        else:
            id_ = id_of(baseline, passes.first, tokenizer) if isinstance(baseline, str) else baseline
            if id_ >= len(table):
                raise BatchError(
                    f"the baseline's id {id_} is outside the decoder's table, which has {len(table)} rows: expected an id that "
                    "both tables have"
                )
            row = table[id_]
    origins.append(np.where(passes.sides[1].real[..., None], row, inputs[1]))
    return origins
