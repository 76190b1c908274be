"""`embgrad.attribute_tokens`: how much each token before an output token contributes to its log-probability."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.attribution.attribute import method_from
from embgrad.attribution.baselines import NEEDS_DIRECTION, absent_positions, check_baseline, id_of, is_auto
from embgrad.attribution.completeness import ADVICE, RANDOM, SHARE
from embgrad.attribution.continuations import compare_continuations
from embgrad.attribution.gradient_methods import InputXGradient, Saliency
from embgrad.attribution.hops import check_hops, follow, intermediate_tokens
from embgrad.attribution.method import Method
from embgrad.attribution.path_methods import IntegratedGradients
from embgrad.attribution.perturbation_methods import Occlusion
from embgrad.attribution.targets import NONE, Targets, targets_of
from embgrad.attribution.text_inputs import expect_no_copies
from embgrad.attribution.token_lines import Made, integrate_tokens
from embgrad.attribution.token_passes import TokenPasses, decoder_of
from embgrad.backend.protocol import BoundModel, Call, Reduce
from embgrad.backend.registry import bind
from embgrad.common.keywords import explain_arguments
from embgrad.common.metrics import lengths
from embgrad.common.options import count_or_none, expect_flag, lists_choices
from embgrad.common.progress import Progress, reporter
from embgrad.engine.encoder_decoders import further_text, takes_decoder
from embgrad.engine.generate import generate_tokens
from embgrad.engine.options import expect_one_name
from embgrad.engine.probe import with_shared
from embgrad.errors import (
    BatchError,
    EmbgradError,
    EmbgradWarning,
    PointError,
    UnsupportedError,
    level_of_user,
    quote,
)
from embgrad.inputs.alignment import Alignment, align
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of, tokenizer_of
from embgrad.inputs.decoder import IDS, MASK, decoder_names, with_decoder_ids
from embgrad.inputs.encode import with_known_tokens
from embgrad.model_points.points import WORD
from embgrad.results.token_attribution import TokenAttribution

__all__ = ["attribute_tokens"]

#: The largest share of an output's largest score that may be rounding.
ROUNDING: Final = 1e-5


@explain_arguments
def attribute_tokens(
    model: Any,
    batch: Any,
    targets: Any = None,
    contrast: Any = None,
    method: Any = "input_x_gradient",
    *,
    generate: Any = None,
    hops: int = 0,
    through: Any = None,
    at: str = WORD,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
    batch_size: int | None = None,
    progress: Progress | bool | None = None,
) -> TokenAttribution:
    """Return how much each token before an output contributes to the output's log-probability; an output is a token or a span.

    All outputs share a forward pass; each takes a pullback of its own, which is reduced to a number for each position
    when it arrives, so that memory does not grow with the number of output tokens. Examples that are padded on the left are moved
    to the left for the pass, so that a causal model computes for each the same as for the example alone.

    Args:
        model: a causal language model, or an encoder-decoder, whose logits are its output; see `gradients`. So are `tokenizer`,
            `max_length` and `call`.
        batch: texts with their continuations, see `gradients`; with `generate` the prompts. For an encoder-decoder the further
            input `decoder_input_ids` holds the output tokens, after the token with which its decoder starts.
        targets: the outputs. None is every real token after an example's first, with `generate` the generated ones, and a slice
            is each token of a slice of an example's real tokens. A position is a token, for all examples, where a negative one
            counts back from the last real token. A text is a span: its tokens together, whose L is the sum of their
            log-probabilities. In a list, a slice and None are a span as well: `[slice(4, None)]` is one output, the continuation
            from the fifth token on. A list of lists has outputs for each example. In an encoder-decoder they are the decoder's.
        contrast: another id, or the text of other tokens, for all outputs, or one for each, (output,) or (example, output); or
            ids of several tokens, (example, output, token). L is then how much more likely the output is than this in its place,
            log p(output) - log p(contrast). If one of them has several tokens, the contrast is read from a pass of its own, in
            which it stands after the tokens before the output, whatever its length. Yin and Neubig, "Interpreting language models
            with contrastive explanations", 2022.
        method: `Saliency`, `InputXGradient`, `IntegratedGradients` or `Occlusion`, or a name, such as "integrated_gradients".
            `Occlusion` changes input tokens, and still asks for the same output tokens.
        generate: continue the prompts by the model's own method `generate` first: the number of new tokens, for greedy
            search, or a dict of the method's own arguments, such as {"max_new_tokens": 20, "do_sample": False}.
        hops: how many times the contributions of intermediate tokens, such as those of a model's reasoning, are passed on to the
            tokens before them, of which the model made them: what such a token contributes to an output is divided among these in
            proportion to the sizes of their contributions to the token itself. The sum of an output's contributions stays what it
            is. With as many hops as there are intermediate tokens nothing remains on them. Each takes a pullback of its own. As
            in Pan et al., "Towards long-horizon interpretability", 2026 (FlashTrace).
        through: the intermediate tokens, in the forms of `targets`, of which those count that stand before an output; None for
            those that `generate` made.
        at: the point whose values are the inputs, see `attribute`; in an encoder-decoder "word".
        training: see `attribute`. Tokens are generated in evaluation mode.
        batch_size: how many examples or steps one pass runs at most; None for as many as have 2,048 positions.
        progress: True for a line on the terminal, or a function that takes the number of pullbacks done and that of all, None
            where it is not known; occlusion counts its forward passes.

    Returns:
        A `TokenAttribution`, whose `scores` are (example, output, position).

    Raises:
        EmbgradError: a target is not a token with a real token before it; the method is not among those above; or as `gradients`
            raises.
        BatchError: the model is an encoder-decoder, and there are no decoder ids.
        UnsupportedError: the model has no method `generate`, or that of keras-hub; prompts have further inputs than ids, mask and
            types; or the backend cannot pull back several objectives.
    """
    chosen = _method(method)
    expect_one_name(at, "make a call for each point")
    size = count_or_none(batch_size, "batch_size")
    expect_flag(training, "training")
    hops = check_hops(hops, through, generate)
    tokens = batch_of(batch, tokenizer, max_length, model)
    known = tokenizer_of(model, tokenizer)
    bound = bind(model, call)
    start = 0
    if generate is not None:
        tokens, start = generate_tokens(bound, tokens, generate, known)
    _expect_decoder(bound, tokens)
    if tokens.extras:
        tokens = with_shared(bound, tokens, repeated=True)
    moved, move, decoder_move = align(tokens)
    decoder = decoder_of(bound, tokens)
    side = tokens if decoder is None else decoder
    wanted = targets_of(targets, contrast, side, known, start)
    side_move = move if decoder is None else decoder_move
    names = _names(bound, moved, at)
    contributions = next(function for cls, function in _METHODS.items() if isinstance(chosen, cls))

    def compute(methods: Sequence[Method], passes: TokenPasses) -> Made:
        return _mean([contributions(single, passes, known) for single in methods])

    methods = _with_moved_baseline(chosen, move).by_baseline()

    def attribute(passes: TokenPasses, outputs: Targets) -> TokenAttribution:
        made = (
            compare_continuations(passes, methods, compute) if outputs.needs_continuations else compute(methods, passes)
        )
        return _result(made, chosen, passes, outputs, tokens, decoder, (move, decoder_move), known)

    between = intermediate_tokens(through, wanted, side, known, start) if hops else None
    outputs = [wanted] if between is None else [wanted, between]
    passes = [TokenPasses(bound, moved, _move(each, side_move), names, size, training) for each in outputs]
    with reporter(progress, "pullbacks") as report:
        counter = _Counter(report, _count_pullbacks(methods, passes))
        done = [
            attribute(replace(single, on_pullback=counter), each) for single, each in zip(passes, outputs, strict=True)
        ]
    return done[0] if between is None else follow(done[0], done[1], hops)


class _Counter:
    """A counter of pullbacks, which reports each; the total is None where it is not known, or was passed."""

    def __init__(self, report: Progress, total: int | None) -> None:
        self.report, self.total, self.done = report, total, 0
        report(0, total)

    def __call__(self) -> None:
        self.done += 1
        if self.total is not None and self.done > self.total:
            self.total = None
        self.report(self.done, self.total)


def _count_pullbacks(methods: Sequence[Method], passes: Sequence[TokenPasses]) -> int | None:
    """Return how many pullbacks the methods take, lines that are refined aside; None for occlusion, which takes none."""
    if any(isinstance(method, Occlusion) for method in methods):
        return None
    # Steps at the baseline and at the inputs give L there.
    times = [method.steps + 2 if isinstance(method, IntegratedGradients) else 1 for method in methods]
    return sum(single.count_pullbacks(each) for single in passes for each in times)


def _method(method: Any) -> Method:
    chosen = method_from(method)
    if not isinstance(chosen, tuple(_METHODS)):
        raise EmbgradError(
            f"method is {type(chosen).__name__}: output tokens are attributed by {quote([cls.__name__ for cls in _METHODS])}. "
            "For another method call embgrad.attribute with embgrad.LogProbability for each output token"
        )
    return chosen


def _expect_decoder(bound: BoundModel, batch: TokenBatch) -> None:
    # Labels do not suffice: the model shifts them, so that they stand one position before the decoder's ids.
    if decoder_names(batch.extras) is not None:
        return
    text = further_text(bound, batch)
    if text is not None:
        raise BatchError(
            f"the model looks up the further input {text.name!r} beside the batch's ids, and whether it holds the output tokens "
            f"is not known: give the decoder's ids as {IDS!r}, and their mask as {MASK!r}, which call=... can pass on under "
            "other names"
        )
    if takes_decoder(bound.model):
        raise BatchError(
            f"{type(bound.model).__name__} is an encoder-decoder, and the batch has no {IDS!r}: give the ids of the output "
            "there, after the token with which the decoder starts, or generate=..."
        )


def _move(targets: Targets, move: Alignment | None) -> Targets:
    if move is None or not move.shifts.any():
        return targets
    shifts = np.expand_dims(move.shifts, tuple(range(1, targets.positions.ndim)))
    return replace(targets, positions=np.where(targets.positions != NONE, targets.positions - shifts, NONE))


def _with_moved_baseline(method: Method, move: Alignment) -> Method:
    """Return the method with an array as baseline moved as the batch is."""
    if not isinstance(method, IntegratedGradients) or not move.shifts.any():
        return method
    if lists_choices(method.baseline):
        return replace(method, baseline=[_move_baseline(entry, move) for entry in method.baseline])
    return replace(method, baseline=_move_baseline(method.baseline, move))


def _move_baseline(own: Any, move: Alignment) -> Any:
    """Return a single baseline, of which an array with positions is moved."""
    baseline = own if is_auto(own) else check_baseline(own)
    count, length = len(move.shifts), move.length
    if not isinstance(baseline, np.ndarray) or baseline.shape[:-1] not in {(length,), (1, length), (count, length)}:
        return own  # it is the same at each position, or does not fit, which the method says
    return move.move_rows(np.broadcast_to(baseline, (count, length, baseline.shape[-1])))


def _names(bound: BoundModel, batch: TokenBatch, at: str) -> tuple[str, ...]:
    """Return the names of the points whose values are the inputs, one for each side."""
    decoder = decoder_of(bound, batch)
    if decoder is None:
        return (at,)
    if at != WORD:
        raise PointError(
            f"at is {at!r}: expected 'word' for an encoder-decoder, whose inputs are the rows of two lookups"
        )
    points = bound.points(batch)
    word = next((point.key for point in points if WORD in point.roles), None)
    lookups = [
        point.key
        for point in points
        if point.lookup is not None and point.key != word and np.array_equal(point.lookup.indices, decoder.ids)
    ]
    if len(lookups) != 1:
        raise PointError(
            f"{len(lookups)} lookups have the decoder's ids as indices ({quote(lookups)}): expected one. Call embgrad.gradients "
            "with a list of embgrad.LogProbability, and name the decoder's lookup in at=[...]"
        )
    return (WORD, lookups[0])


def _mean(made: Sequence[Made]) -> Made:
    """Return the mean of the contributions from several baselines."""
    first = made[0]
    if len(made) == 1:
        return first

    def mean(name: str) -> np.ndarray | None:
        arrays = [getattr(single, name) for single in made]
        return None if arrays[0] is None else np.mean(arrays, axis=0)

    scores = [np.mean(arrays, axis=0) for arrays in zip(*(single.scores for single in made), strict=True)]
    steps = [single.notes["steps_taken"] for single in made if single.notes]
    notes = {"steps_taken": np.sum(steps, axis=0).tolist()} if steps else {}
    flats = [single.flat for single in made if single.flat is not None]
    flat = np.any(flats, axis=0) if flats else None
    return Made(scores, first.objectives, mean("before"), first.provenance, mean("error"), notes, flat)


def _by_gradient(method: Method, passes: TokenPasses, tokenizer: Any) -> Made:
    def norm(key: str, gradient: np.ndarray, value: np.ndarray) -> np.ndarray:
        return np.asarray(lengths(gradient.astype(np.float64))[..., None])

    def product(key: str, gradient: np.ndarray, value: np.ndarray) -> np.ndarray:
        return np.asarray(np.einsum("...d,...d->...", gradient, value, dtype=np.float64)[..., None])

    def whole(key: str, gradient: np.ndarray, value: np.ndarray) -> np.ndarray:
        return gradient.astype(np.float64)

    of_saliency = whole if passes.paired else norm  # the norm of a difference is not the difference of the norms
    reduce: Reduce = of_saliency if isinstance(method, Saliency) else product
    done = [passes.score(rows, reduce, quiet=number > 0) for number, rows in enumerate(passes.pieces(1))]
    scores = [np.concatenate(arrays, 1) for arrays in zip(*(part.scores for part in done), strict=True)]
    objectives = np.concatenate([part.objectives for part in done], 1)
    return Made(scores, objectives, None, dict(done[0].provenance))


def _by_integration(method: Method, passes: TokenPasses, tokenizer: Any) -> Made:
    assert isinstance(method, IntegratedGradients)
    return integrate_tokens(method, passes, tokenizer)


def _by_occlusion(method: Method, passes: TokenPasses, tokenizer: Any) -> Made:
    assert isinstance(method, Occlusion)
    if not isinstance(method.replacement, (str, int, np.integer)) or method.replacement in ("zero", "mean"):
        raise UnsupportedError(
            f"replacement is {method.replacement!r}: input tokens are replaced by an id here. Give 'mask', 'pad' or an id"
        )
    if method.keep_special and len(passes.names) > 1:
        raise UnsupportedError(
            "keep_special=True leaves special tokens, and those of a decoder are not known: give keep_special=False for an "
            "encoder-decoder"
        )
    replacement = method.replacement
    id_ = id_of(replacement, passes.first, tokenizer) if isinstance(replacement, str) else int(replacement)
    provenance = dict(passes.describe())
    expect_no_copies(passes.first)
    done = [passes.evaluate(rows, passes.batch.take(rows)) for rows in passes.pieces(1)]
    objectives = np.concatenate(done, 1)
    scores = [np.zeros((len(objectives), *side.shape)) for side in passes.sides]
    for number, (side, total) in enumerate(zip(passes.sides, scores, strict=True)):
        absent = absent_positions(passes.first, tokenizer, method.keep_special) if number == 0 else side.real
        for rows, at, chosen in passes.places(absent):
            ids = side.ids[rows].copy()
            ids[np.arange(len(rows)), at] = id_
            batch = passes.batch.take(rows)
            batch = batch.replace(ids=ids) if number == 0 else with_decoder_ids(batch, ids)
            changes = objectives[:, rows] - passes.evaluate(rows, batch)
            total[:, rows[chosen], at[chosen]] = changes[:, chosen]
    return Made(scores, objectives, None, provenance)


#: The methods that attribute output tokens, each with the function that computes its contributions.
_METHODS: Final[dict[type[Method], Callable[[Method, TokenPasses, Any], Made]]] = {
    Saliency: _by_gradient,
    InputXGradient: _by_gradient,
    IntegratedGradients: _by_integration,
    Occlusion: _by_occlusion,
}


def _result(
    made: Made,
    method: Method,
    passes: TokenPasses,
    targets: Targets,
    batch: TokenBatch,
    decoder: TokenBatch | None,
    moves: tuple[Alignment, Alignment | None],
    tokenizer: Any,
) -> TokenAttribution:
    """Return the result for the batch as the user gave it."""
    named = with_known_tokens(batch, tokenizer)
    named_decoder = None if decoder is None else with_known_tokens(decoder, tokenizer)
    side = named if named_decoder is None else named_decoder
    scores = [np.swapaxes(array, 0, 1) for array in made.scores]
    absent = ~targets.present
    own = None if made.contrast is None else np.swapaxes(made.contrast, 0, 1)
    sums = sum(array.sum(-1) for array in (scores if own is None else [*scores, own]))
    before = None if made.before is None else np.where(absent, np.nan, made.before.T)
    objective = np.where(absent, np.nan, made.objectives.T)
    delta = None if before is None else np.where(absent, np.nan, sums - (objective - before))
    error = None if made.error is None else np.where(absent, np.nan, made.error.T)
    _warn_of_missed(delta, objective, before, method, passes, made)
    by_side = [move.move_back(array) for move, array in zip(moves, scores, strict=False) if move is not None]
    _warn_of_later(by_side[-1], targets)
    return TokenAttribution(
        scores=_clear(by_side[0], absent, batch.real),
        outputs=targets.positions,
        output_ids=targets.ids,
        objective=objective,
        contrast_ids=targets.contrast,
        baseline_objective=before,
        delta=delta,
        ids=batch.ids.copy(),
        mask=None if batch.mask is None else batch.mask.copy(),
        types=None if batch.types is None else batch.types.copy(),
        tokens=named.tokens,
        words_of=None if batch.words is None else batch.words.copy(),
        output_tokens=None if side.tokens is None else _output_tokens(side.tokens, targets),
        provenance={
            **copy.deepcopy(made.provenance),
            "objective": {"class": "LogProbability", "contrast": targets.contrast is not None},
            "method": {**method.describe(), **made.notes},
            **({"random": passes.first.is_random} if passes.training and passes.bound.supports("override") else {}),
            "truncated": batch.truncated.tolist(),
        },
        decoder_scores=None if decoder is None else _clear(by_side[1], absent, decoder.real),
        decoder_ids=None if decoder is None else decoder.ids.copy(),
        decoder_mask=None if decoder is None or decoder.mask is None else decoder.mask.copy(),
        decoder_tokens=None if named_decoder is None else named_decoder.tokens,
        texts=batch.texts,
        offsets=None if batch.offsets is None else batch.offsets.copy(),
        parts=None if batch.parts is None else batch.parts.copy(),
        error=error,
        contrast_scores=own,
    )


def _output_tokens(tokens: Sequence[Sequence[str]], targets: Targets) -> Any:
    """Return the texts of the output tokens, for each example a tuple with a text, or with a tuple of texts, for each output."""
    several = targets.positions.ndim > 2
    made = []
    for row, spans in zip(tokens, targets.spans, strict=True):
        texts = [tuple(row[at] for at in span[span != NONE].tolist()) for span in spans if (span != NONE).any()]
        made.append(tuple(texts) if several else tuple(text for (text,) in texts))
    return tuple(made)


def _clear(scores: np.ndarray, absent: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Return the scores with zeros at padding and for outputs that an example does not have."""
    return np.ascontiguousarray(np.where(absent[..., None] | ~real[:, None], 0.0, scores))


def _warn_of_later(scores: np.ndarray, targets: Targets) -> None:
    """Warn where an output token depends on itself or on a token after it, as in a model that is not causal.

    Smaller scores than rounding leaves, as differences of L have, become zero.
    """
    later = (np.arange(scores.shape[-1]) >= targets.last[..., None]) & targets.present[..., None]
    scores[later & (np.abs(scores) <= ROUNDING * np.abs(scores).max(-1, keepdims=True))] = 0
    dependent = np.argwhere((scores != 0) & later)
    if len(dependent):
        example, output, position = dependent[0].tolist()
        warnings.warn(
            f"the log-probability of the output token at position {targets.last[example, output]} of example {example} "
            f"depends on position {position}: the model is not causal, and its logits before a token may know the token. Use a "
            "causal language model, or embgrad.attribute with embgrad.LogProbability(..., shift=False)",
            EmbgradWarning,
            stacklevel=level_of_user() + 1,
        )


def _warn_of_missed(
    delta: np.ndarray | None,
    objective: np.ndarray,
    before: np.ndarray | None,
    method: Method,
    passes: TokenPasses,
    made: Made,
) -> None:
    """Warn of output tokens whose contributions do not sum to the difference of L, beyond 1 % of it or the tolerance."""
    if delta is None or before is None or made.error is None:
        return
    tolerance = getattr(method, "tolerance", None)
    share, errors = (SHARE, np.abs(delta)) if tolerance is None else (tolerance, made.error.T)
    difference = np.abs(objective - before)
    rounding = 1e-5 * (np.abs(objective) + np.abs(before))
    missed = np.nan_to_num(errors) > np.nan_to_num(share * difference + rounding)
    if missed.any():
        examples = missed.any(1)
        is_flat = made.flat is not None and bool(made.flat[examples].any())
        advice = NEEDS_DIRECTION if is_flat else ADVICE[tolerance is not None]
        advice = RANDOM if passes.first.is_random else advice
        worst = np.unravel_index(int(np.argmax(np.where(missed, errors, -1))), delta.shape)
        warnings.warn(
            f"with {max(made.notes['steps_taken'])} steps the contributions to {int(missed.sum())} of "
            f"{int(np.isfinite(delta).sum())} output tokens miss the difference of L by more than {share:.3g} of it, at most by "
            f"{errors[worst]:.3g} of {difference[worst]:.3g} (example {worst[0]}, output {worst[1]}). {advice}",
            EmbgradWarning,
            stacklevel=level_of_user() + 1,
        )
