"""Follow contributions through intermediate tokens, such as those of a model's reasoning, back to the tokens before these."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.attribution.targets import NONE, Targets, ids_at, pad_outputs, targets_of
from embgrad.errors import EmbgradError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.results.token_attribution import TokenAttribution

__all__ = ["check_hops", "follow", "intermediate_tokens"]


def check_hops(hops: Any, through: Any, generate: Any) -> int:
    """Return the number of hops."""
    if isinstance(hops, bool) or not isinstance(hops, (int, np.integer)) or hops < 0:
        raise EmbgradError(
            f"hops is {brief(hops)}: expected how many times the contributions of intermediate tokens are passed on, 0 or more"
        )
    if not hops and through is not None:
        raise EmbgradError(
            f"through is {brief(through)}, and hops is 0, so that nothing goes through it: give hops=1 or more"
        )
    if hops and through is None and generate is None:
        raise EmbgradError(
            f"hops is {hops}, and which tokens are intermediate is not known: give through=..., such as slice(20, -3) for an "
            "example's real tokens from the twenty-first to the fourth from the end, or generate=..."
        )
    return int(hops)


def intermediate_tokens(through: Any, wanted: Targets, batch: TokenBatch, tokenizer: Any, start: int) -> Targets | None:
    """Return the intermediate tokens as outputs of single tokens: those before the last output; None where there are none.

    Args:
        through: names them as `targets_of` takes outputs; None for those that are generated.
        batch: the ids in which positions count.
        tokenizer: see `targets_of`; so is `start`.
        start: the first position that was generated.
    """
    try:
        named = targets_of(through, None, batch, tokenizer, start).spans.reshape(len(batch), -1)
    except EmbgradError as error:
        raise EmbgradError(f"through: {error.message}") from error
    last = wanted.spans[..., 0].max(1)
    rows = [np.unique(row[(row != NONE) & (row < end)]) for row, end in zip(named, last, strict=True)]
    if not any(map(len, rows)):
        return None
    positions = pad_outputs([row[:, None].tolist() for row in rows])[..., 0]
    return Targets(positions, ids_at(batch.ids, positions), None)


def follow(result: TokenAttribution, between: TokenAttribution, hops: int) -> TokenAttribution:
    """Return an attribution whose contributions of intermediate tokens are passed on to the tokens before these.

    At each hop what an intermediate token contributes to an output is divided among the tokens before it, in proportion to the
    sizes of their contributions to the token itself, so that the sum over all tokens stays what it is.

    Args:
        result: the contributions to the outputs.
        between: those to the intermediate tokens, by the same method.
        hops: how many times.
    """
    scores, of_tokens = _join_sides(result), _join_sides(between)
    shift = 0 if result.decoder_scores is None else result.scores.shape[-1]
    for example, total in enumerate(scores):
        exists = between.outputs[example] >= 0
        positions = between.outputs[example, exists]
        sizes = np.abs(of_tokens[example, exists])
        sums = sizes.sum(-1, keepdims=True)
        shares = np.divide(sizes, sums, out=np.zeros_like(sizes), where=sums > 0)
        firsts = result.spans[example, :, 0]
        goes_on = (positions < firsts[:, None]) & (sums[:, 0] > 0)  # what depends on no token before it stays
        columns = shift + positions
        for _ in range(hops):
            passed = np.where(goes_on, total[:, columns], 0.0)
            if not passed.any():
                break
            total[:, columns] -= passed
            total += passed @ shares
    provenance = {**result.provenance, "hops": hops, "through": between.outputs.tolist()}
    if result.decoder_scores is None:
        return replace(result, scores=scores, provenance=provenance)
    sides = np.ascontiguousarray(scores[..., :shift]), np.ascontiguousarray(scores[..., shift:])
    return replace(result, scores=sides[0], decoder_scores=sides[1], provenance=provenance)


def _join_sides(result: TokenAttribution) -> np.ndarray:
    """Return a copy of the scores of both sides as one array, (example, output, position of either side)."""
    return np.concatenate([result.scores, *([] if result.decoder_scores is None else [result.decoder_scores])], axis=-1)
