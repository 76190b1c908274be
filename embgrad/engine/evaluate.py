"""`embgrad.evaluate`: the objective of each example, from forward passes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.backend.registry import bind
from embgrad.common.keywords import explain_arguments
from embgrad.common.options import count_or_none
from embgrad.common.progress import Progress
from embgrad.engine.options import OfForward, check_options
from embgrad.engine.probe import with_shared
from embgrad.engine.question import Question
from embgrad.engine.run import objectives_of
from embgrad.engine.sub_batches import run_in_sub_batches
from embgrad.inputs.conventions import batch_of
from embgrad.model_points.points import WORD
from embgrad.objectives.objectives import as_objectives

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["evaluate", "evaluate_each", "evaluate_question"]


@overload
def evaluate(
    model: Any, batch: Any, objective: list[Any] | tuple[Any, ...], **options: Unpack[OfForward]
) -> list[np.ndarray]: ...


@overload
def evaluate(model: Any, batch: Any, objective: Any, **options: Unpack[OfForward]) -> np.ndarray: ...


@explain_arguments
def evaluate(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
    override: Mapping[str, Any] | None = None,
    add: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    progress: Progress | bool | None = None,
) -> np.ndarray | list[np.ndarray]:
    """Return the objective L of each example, from forward passes without gradients.

    The numbers are those of `gradients(...).objective` up to rounding. No graph is recorded, unless the model or a
    function as objective takes gradients itself. The model is restored afterwards, even after an exception.

    Args:
        model: as in `gradients`; so are `batch`, `objective`, `tokenizer`, `max_length`, `call` and `training`.
        override: by the names of points the values to put in place of theirs, see `gradients`; `add` likewise, values to add.
        batch_size: run at most so many examples at once.
        progress: see `gradients`.

    Returns:
        float64, shape (example,); shape () for a `Scalar` objective. With a list of objectives a list of these, one for each.

    Raises:
        EmbgradError: as `gradients` raises, but for errors of gradients.
    """
    options = check_options(WORD, training=training, override=override, add=add)
    tokens = batch_of(batch, tokenizer, max_length, model)
    size = count_or_none(batch_size, "batch_size")
    objectives, is_list = as_objectives(objective)
    question = Question(bind(model, call), tokens, objectives, replace(options, names=()), pullback=False)
    values = evaluate_each(question, size, progress)
    return values if is_list else values[0]


def evaluate_question(question: Question, batch_size: int | None = None) -> np.ndarray:
    """Return the objective of each example, float64, (example,), from sub-batches of at most `batch_size` examples."""
    return evaluate_each(question, batch_size)[0]


def evaluate_each(
    question: Question, batch_size: int | None = None, progress: Progress | bool | None = None
) -> list[np.ndarray]:
    """Return for each objective of the question what `evaluate_question` returns of one, from the same forward passes."""
    batch = question.batch
    is_square = bool(question.options.named) and len(batch) == batch.shape[1]  # a probe shows which axis is which
    if batch.extras and (batch_size is not None or is_square):
        question = replace(question, batch=with_shared(question.bound, batch))
    question.expect_cuttable(batch_size)
    done = run_in_sub_batches(question, batch_size, progress, objectives_of)
    return [np.concatenate(pieces) if question.is_cut(batch_size) else pieces[0] for pieces in zip(*done, strict=True)]
