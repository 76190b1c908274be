"""`embgrad.substitutions`: which other tokens would change the objective most, by a first-order estimate, at each position."""

from __future__ import annotations

from typing import Any

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.backend.registry import bind
from embgrad.common.keywords import explain_arguments
from embgrad.common.options import count_or_none, expect_flag
from embgrad.common.progress import Progress
from embgrad.engine.call_errors import explain_decoder, explain_errors
from embgrad.engine.embedding_table import word_table_reader
from embgrad.engine.gradients import results_of
from embgrad.engine.options import GradientOptions
from embgrad.engine.probe import with_shared
from embgrad.engine.question import Question
from embgrad.errors import BatchError, UnsupportedError
from embgrad.inputs.conventions import batch_of, tokenizer_of
from embgrad.model_points.points import WORD
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import as_objective
from embgrad.results.substitutions import Substitutions
from embgrad.token_search.estimates import top_substitutions_at
from embgrad.token_search.positions import searched_positions
from embgrad.token_search.rule import GOALS, expect_goal
from embgrad.token_search.vocabulary import allowed_ids, names_of

__all__ = ["substitutions"]


@explain_arguments
def substitutions(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    top: int = 256,
    goal: str = "maximize",
    allowed: Any = None,
    positions: Any = None,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
    batch_size: int | None = None,
    progress: Progress | bool | None = None,
) -> Substitutions:
    """Return for each position the other tokens that would change each example's objective most, by a first-order estimate.

    The estimate for the id v is (table[v] - e) · ∂L/∂e, where e is the row of the token in place: HotFlip's (Ebrahimi et al.
    2018). It takes one gradient, and is exact where L is linear in e; `evaluate` has L itself of a changed batch. The table is
    read in blocks, and no array is of the size of positions × vocabulary.

    Args:
        model: as in `gradients`; so are `batch`, `objective`, `tokenizer`, `max_length`, `call`, `training`, `batch_size` and
            `progress`.
        top: how many ids of each position, at most as many as are allowed.
        goal: "maximize" for the ids that raise L most, or "minimize" for those that lower it most.
        allowed: the tokens that may replace others. None for all, but where a tokenizer is known not for special tokens, unknown
            words and ids without a token. Or ids, or a bool array, shape (vocab,). Or a function that takes a token as the
            tokenizer writes it, such as "##ing" or "Ġfilm", and returns whether it is allowed, which is not asked about special
            tokens: `embgrad.token_search.is_word`, `embgrad.token_search.is_ascii` or your own. Or a list of these, which all
            must allow it.
        positions: the positions to search. None for every real position but those of special tokens, where the batch or a
            tokenizer shows which those are; a position or a list of them, of which negative ones count back from an example's
            last real one; a slice of the positions up to the last real one; or a bool array, shape (example, position).

    Returns:
        `Substitutions`, whose `ids` and `scores` have the shape (example, position, top).

    Raises:
        EmbgradError: there is no such goal; `allowed` names an id outside the table, or none; or as `gradients` raises.
        BatchError: `positions` names padding or no position; `allowed` needs a tokenizer, and there is none.
        UnsupportedError: the objective is a `Scalar`, which has no value for each example.
    """
    count = _check_top(top)
    expect_goal(goal)
    expect_flag(training, "training")
    size = count_or_none(batch_size, "batch_size")
    tokens = batch_of(batch, tokenizer, max_length, model)
    made = as_objective(objective)
    if isinstance(made, NativeObjective) and made.scalar:
        raise UnsupportedError(
            "a Scalar objective has one value for the whole batch, and substitutions are of each example: give a function of "
            "shape (example,)"
        )
    bound, tokenizer = bind(model, call), tokenizer_of(model, tokenizer)
    searched = searched_positions(positions, tokens, tokenizer)
    if tokens.extras and size is not None:
        tokens = with_shared(bound, tokens)
    with explain_errors(bound, tokens), explain_decoder(bound, tokens):
        table = word_table_reader(bound, tokens[:size], "embgrad.substitutions")
    may = allowed_ids(allowed, tokenizer, table.count)
    question = Question(bound, tokens, (made,), GradientOptions((WORD,), training=training))
    result = results_of(question, size, progress)[WORD]
    top = min(count, int(may.sum()))
    ids, scores = top_substitutions_at(
        result.values, result.activations, result.ids, searched, table, may, top, GOALS[goal]
    )
    return Substitutions(
        ids=ids,
        scores=scores,
        objective=np.array(result.objective),
        original=result.ids.copy(),
        mask=None if result.mask is None else result.mask.copy(),
        tokens=result.tokens,
        names=names_of(ids, tokenizer, table.count),
        provenance={
            **result.provenance,
            "goal": goal,
            "allowed": int(may.sum()),
            "vocab": table.count,
            "batch_size": size,
        },
    )


def _check_top(top: Any) -> int:
    count = count_or_none(top, "top")
    if count is None:
        raise BatchError("top is None: expected a whole number of at least 1")
    return count
