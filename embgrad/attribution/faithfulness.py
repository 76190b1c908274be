"""`embgrad.metrics.faithfulness`: whether the tokens that attributions rank first are those on which the objective depends."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.attribution.passes import passes_of
from embgrad.attribution.removal import Removal, removal_of
from embgrad.attribution.scores import scores_by_name
from embgrad.backend.protocol import Call
from embgrad.common.arrays import to_numpy
from embgrad.common.keywords import explain_arguments
from embgrad.common.options import expect_flags
from embgrad.engine.call_errors import explain_errors
from embgrad.errors import EmbgradError, EmbgradWarning, brief, level_of_user
from embgrad.inputs.conventions import tokenizer_of
from embgrad.model_points.points import WORD
from embgrad.objectives.objectives import describe
from embgrad.results.attribution import Attribution
from embgrad.results.faithfulness import Faithfulness

__all__ = ["faithfulness", "kendall"]

#: The shares of ferret; those of ERASER are 0.01, 0.05, 0.1, 0.2 and 0.5.
SHARES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

#: The objectives that rise with a class's logit, while its cross-entropy falls.
RISING: Final = ("Logit", "Margin", "Probability")

#: How far an objective may be from that of an attribution, as a share of its size, before that is warned of.
APART: Final = 1e-3

#: How far below a whole number a product of a share and a number of tokens may be by rounding.
ROUNDING: Final = 1e-9


@explain_arguments
def faithfulness(
    model: Any,
    batch: Any,
    objective: Any,
    attribution: Any,
    *,
    remove: str | int = "delete",
    shares: Sequence[float] = SHARES,
    positive: bool = True,
    skip_repeats: bool = False,
    leave_one_out: bool = True,
    curves: bool = True,
    at: str = WORD,
    keep_special: bool = True,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
    batch_size: int | None = None,
) -> Faithfulness:
    """Return how faithful attributions are: whether L changes as they say when tokens are removed.

    L(S) is the objective of an example with the tokens S alone. For a ranking of an example's n tokens by their scores and a
    share s of them, comprehensiveness is L(all) − L(all but the top s), and sufficiency L(all) − L(the top s alone); their
    means over the shares are called AOPC, the area over the perturbation curve. A faithful attribution has a high
    comprehensiveness and a low sufficiency. This sign is meant for every objective: scores and L must be of the same thing, so
    that a token with a positive score raises L. For a class give `embgrad.Probability(label)`, as the sources do, or
    `Logit(label)`. With a loss, such as `CrossEntropy`, explain the loss as well: comprehensiveness is then how far the loss
    falls without the tokens that raise it.

    DeYoung et al., "ERASER: a benchmark to evaluate rationalized NLP models", 2020; the defaults are those of Attanasio,
    Pastor, Di Bonaventura and Nozza, "ferret: a framework for benchmarking explainers on transformers", 2023; the curves are
    from Petsiuk, Das and Saenko, "RISE: randomized input sampling for explanation of black-box models", 2018.

    Args:
        model: as in `gradients`; so are `batch`, `objective`, `tokenizer`, `max_length`, `call` and `training`.
        attribution: what `attribute` returned for this batch, an array of scores, (example, position), or several: a mapping of
            names to these, or a list. Tokens of equal scores are ranked by their positions, the first first.
        remove: "delete" makes the text shorter: ids, mask, types and `position_ids`; texts of equal length run together,
            without padding. "pad", "mask", "zero" or an id replace the values at the removed positions, see
            `IntegratedGradients`.
        shares: the shares of tokens, above 0 and at most 1, rising. Of n tokens a share s is s·n, rounded down.
        positive: of a share's tokens remove, or keep, those alone whose scores are positive. The curves take all tokens.
        skip_repeats: leave out of the means over the shares those at which no token, or no other tokens than at the share
            before, are removed, as ferret does. Where that leaves none, the mean is the value with no token removed, or kept.
        leave_one_out: compute L without each token, and the rank correlation of the scores with the change of L.
        curves: compute L as tokens are removed, and added, one by one. Without it long texts need far fewer passes.
        at: the point at which "pad", "mask" and "zero" replace values, such as a hidden state. Deletion is of tokens, whatever
            point the attribution is of.
        keep_special: never remove special tokens, which `tokenizer` or the batch's tokens show. Otherwise padding alone stays.
        batch_size: how many examples one pass runs at most; None for as many as have 2,048 positions. With a function as
            objective one pass runs the whole batch with one removal from each example.

    Returns:
        A `Faithfulness`, with values for each method and example, and a table of the means.

    Raises:
        EmbgradError: an argument is malformed, the attribution is of another batch, a score is not finite, or as `evaluate`
            raises.
        BatchError: the special tokens, or the id of the padding or of the mask, are not known.
        UnsupportedError: tokens cannot be deleted: the objective is a function or has labels for each position, a further input
            has an entry for each position, nothing would stay of a text, or the model takes no shorter text.
    """
    checked = _check_shares(shares)
    expect_flags(positive=positive, skip_repeats=skip_repeats, leave_one_out=leave_one_out, curves=curves)
    passes = passes_of(model, batch, objective, at, tokenizer, max_length, call, batch_size, training=training)
    tokenizer = tokenizer_of(model, tokenizer)
    with explain_errors(passes.bound, passes.batch):
        removal = removal_of(passes, remove, keep_special, tokenizer)
        scores = scores_by_name(attribution, passes.batch, removal.removable)
        _warn_of_opposite_signs(attribution, describe(passes.objective))
        plan = _Plan(removal, list(scores.values()), checked, positive, leave_one_out, curves)
        objectives = removal.objectives([np.stack(rows) for rows in plan.rows])
        if not (training and passes.is_random):
            _warn_of_other_values(
                attribution, describe(passes.objective), np.array([of_example[0] for of_example in objectives])
            )
    return Faithfulness(
        methods=tuple(scores),
        shares=checked,
        **plan.measure(objectives, skip_repeats),
        provenance={
            "backend": passes.bound.backend.name,
            "model": type(passes.bound.model).__name__,
            "objective": describe(passes.objective),
            "remove": removal.remove,
            "point": at,
            "training": bool(training),
            "keep_special": bool(keep_special),
            "positive": bool(positive),
            "skip_repeats": bool(skip_repeats),
            "texts": sum(map(len, plan.rows)),
        },
    )


class _Plan:
    """The texts that the metrics need, each once, and the metrics from their objectives.

    Each text is the user's with the tokens before or after a place of a ranking removed, or with one token removed.

    Attributes:
        rows: for each example the positions that stay in each of its texts, bool, (position,); the first is the whole.
    """

    def __init__(
        self,
        removal: Removal,
        scores: Sequence[np.ndarray],
        shares: np.ndarray,
        positive: bool,
        alone: bool,
        curves: bool,
    ) -> None:
        self._removal = removal
        self.removable = removal.removable
        self.real = removal.passes.batch.real
        self.scores = scores
        self.tokens = self.removable.sum(1)
        self.counts = np.array([self._counts(of_method, shares, positive) for of_method in scores])
        self.rows: list[list[np.ndarray]] = []
        self._numbers: list[dict[bytes, int]] = []
        self.alone, self.curves = alone, curves
        shape = (len(scores), len(self.tokens), int(self.tokens.max()) + 1)
        # The numbers of the texts of each ranking, by how many tokens are removed or kept; -1 where no metric needs it.
        self.deleted, self.inserted = np.full(shape, -1), np.full(shape, -1)
        self.without = np.full(self.real.shape, -1)
        for example in range(len(self.tokens)):
            self.rows.append([])
            self._numbers.append({})
            self._add_example(example)

    def _counts(self, scores: np.ndarray, shares: np.ndarray, positive: bool) -> np.ndarray:
        """Return how many tokens each share removes, or keeps, (example, share)."""
        counts = np.floor(shares * self.tokens[:, None] + ROUNDING).astype(np.int64)
        most = (self.removable & (scores > 0)).sum(1)[:, None]
        return np.asarray(np.minimum(counts, most) if positive else counts)

    def _add_example(self, example: int) -> None:
        real = self.real[example]
        self._number(example, real)
        positions = np.flatnonzero(self.removable[example])
        if self.alone:
            for position in positions:
                self.without[example, position] = self._number(example, real & (np.arange(len(real)) != position))
        for method, scores in enumerate(self.scores):
            ranked = positions[np.argsort(-scores[example, positions], kind="stable")]
            for count in range(len(ranked) + 1) if self.curves else sorted({0, *self.counts[method, example].tolist()}):
                for numbers, removed in ((self.deleted, ranked[:count]), (self.inserted, ranked[count:])):
                    stays = real.copy()
                    stays[removed] = False
                    numbers[method, example, count] = self._number(example, stays)

    def _number(self, example: int, stays: np.ndarray) -> int:
        """Return the number of a text, which is added unless it is there."""
        numbers, rows = self._numbers[example], self.rows[example]
        number = numbers.setdefault(self._removal.key(example, stays), len(rows))
        if number == len(rows):
            rows.append(stays.copy())
        return number

    def measure(self, objectives: Sequence[np.ndarray], skip_repeats: bool) -> dict[str, Any]:
        """Return the metrics as fields of a `Faithfulness`, from the objectives of each example's texts."""
        whole = np.array([of_example[0] for of_example in objectives])
        deletion, insertion = (_read(objectives, numbers) for numbers in (self.deleted, self.inserted))
        comprehensiveness, sufficiency = (
            whole[:, None] - np.take_along_axis(curve, self.counts, 2) for curve in (deletion, insertion)
        )
        counted = _not_repeated(self.counts) if skip_repeats else np.ones(self.counts.shape, bool)
        changes = np.where(self.removable, whole[:, None] - _read(objectives, self.without[None])[0], 0.0)
        return {
            "objective": whole,
            "tokens": self.tokens,
            "counts": self.counts,
            "comprehensiveness": comprehensiveness,
            "sufficiency": sufficiency,
            "aopc_comprehensiveness": _mean(comprehensiveness, counted, whole - deletion[:, :, 0]),
            "aopc_sufficiency": _mean(sufficiency, counted, whole - insertion[:, :, 0]),
            "leave_one_out": changes if self.alone else None,
            "loo_correlation": self._correlations(changes) if self.alone else None,
            "deletion": deletion if self.curves else None,
            "insertion": insertion if self.curves else None,
            "deletion_area": self._areas(deletion) if self.curves else None,
            "insertion_area": self._areas(insertion) if self.curves else None,
        }

    def _correlations(self, changes: np.ndarray) -> np.ndarray:
        def of_example(scores: np.ndarray, example: int) -> float:
            own = self.removable[example]
            return kendall(scores[example, own], changes[example, own])

        return np.array([[of_example(scores, example) for example in range(len(changes))] for scores in self.scores])

    def _areas(self, curves: np.ndarray) -> np.ndarray:
        """Return the areas under curves over the share of tokens by the trapezoidal rule, (method, example)."""

        def area(curve: np.ndarray, tokens: int) -> float:
            points = curve[: tokens + 1]
            return float((points[1:] + points[:-1]).mean() / 2 if tokens else points[0])

        return np.array(
            [[area(curve, tokens) for curve, tokens in zip(rows, self.tokens, strict=True)] for rows in curves]
        )


def _read(objectives: Sequence[np.ndarray], numbers: np.ndarray) -> np.ndarray:
    """Return the objectives of the texts with these numbers, (method, example, …), NaN where there is none."""
    values = np.full(numbers.shape, np.nan)
    for example, of_example in enumerate(objectives):
        own = numbers[:, example]
        values[:, example] = np.where(own < 0, np.nan, of_example[own])
    return values


def _not_repeated(counts: np.ndarray) -> np.ndarray:
    """Return at which shares tokens are removed, and more than at the share before, bool, (method, example, share)."""
    before = np.concatenate([np.zeros_like(counts[..., :1]), counts[..., :-1]], -1)
    return np.asarray(counts > before)


def _mean(values: np.ndarray, counted: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Return the means over the last axis of the counted values; `otherwise` where none counts."""
    total = counted.sum(-1)
    return np.where(total, np.where(counted, values, 0.0).sum(-1) / np.maximum(total, 1), otherwise)


def _check_shares(shares: Any) -> np.ndarray:
    try:
        array = np.atleast_1d(to_numpy(shares))
    except ValueError:
        array = np.array([None])
    fits = array.dtype.kind in "iuf" and array.ndim == 1 and array.size
    if not fits or not ((array > 0) & (array <= 1)).all() or not (np.diff(array) > 0).all():
        raise EmbgradError(
            f"shares is {brief(shares)}: expected numbers above 0 and at most 1 that rise, such as [0.1, 0.2, 0.5]"
        )
    return array.astype(np.float64)


def _attributions(attribution: Any) -> list[Attribution]:
    """Return the entries of the argument that are attributions, not arrays of scores."""
    entries = list(attribution.values()) if isinstance(attribution, Mapping) else attribution
    entries = entries if isinstance(entries, (list, tuple)) else [entries]
    return [entry for entry in entries if isinstance(entry, Attribution)]


def _warn_of_other_values(attribution: Any, objective: Mapping[str, Any], whole: np.ndarray) -> None:
    """Warn where an attribution explains another value of the same objective, as of a text with padding that the model counts."""
    for entry in _attributions(attribution):
        apart = np.abs(entry.objective - whole)
        wrong = np.flatnonzero(apart > APART * max(1.0, float(np.abs(whole).max())))
        if entry.provenance.get("objective") == objective and wrong.size:
            worst = int(apart.argmax())
            warnings.warn(
                f"the attribution explains L = {entry.objective[worst]:.6g} at example {worst}, and L is {whole[worst]:.6g} for "
                "the same tokens here: the model counts padding, or it is another model. Pad on the right, or take remove='mask'",
                EmbgradWarning,
                stacklevel=level_of_user() + 1,
            )
            return


def _warn_of_opposite_signs(attribution: Any, objective: Mapping[str, Any]) -> None:
    """Warn where an attribution explains a loss and the objective is none, or the other way around."""
    for entry in _attributions(attribution):
        explained = entry.provenance.get("objective", {}).get("class")
        ours = objective["class"]
        if any({explained, ours} == {"CrossEntropy", rising} for rising in RISING):
            warnings.warn(
                f"the attribution explains {explained} and the objective is {ours}: one falls as the other rises, so that the "
                "tokens ranked first are those that lower the objective. Attribute the objective itself",
                EmbgradWarning,
                stacklevel=level_of_user() + 1,
            )
            return


def kendall(a: np.ndarray, b: np.ndarray) -> float:
    """Return Kendall's tau-b of two arrays of shape (n,): the concordant pairs minus the discordant ones, scaled to -1 to 1.

    A pair that is tied in one of them counts in neither. Kendall, "The treatment of ties in ranking problems", 1945.

    Returns:
        NaN where all entries of an array are equal, or there are fewer than two.
    """
    first, second = (np.sign(array[:, None] - array) for array in (a, b))
    untied = np.count_nonzero(first) * np.count_nonzero(second)
    return float((first * second).sum() / np.sqrt(float(untied))) if untied else float("nan")
