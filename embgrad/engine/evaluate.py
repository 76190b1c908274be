"""`embgrad.evaluate`: the objective of each example, from forward passes alone."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.backend.objective_callback import Respond, objective_values
from embgrad.backend.protocol import Call, Run
from embgrad.common.keywords import explained
from embgrad.common.options import count_or_none
from embgrad.common.progress import Progress, reporter
from embgrad.engine.bound_model import bind
from embgrad.engine.call_errors import explained_decoder, explained_errors
from embgrad.engine.locate import forget, locate_in_sub_batch
from embgrad.engine.located import Located
from embgrad.engine.options import checked_options
from embgrad.engine.probe import with_shared
from embgrad.engine.run import located_for
from embgrad.engine.task import Task
from embgrad.errors import AmbiguousPointError, PointNotReachedError, UnsupportedError
from embgrad.forward.points import WORD
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of
from embgrad.objectives.native import NativeObjective, as_objective

__all__ = ["evaluate", "evaluated"]


@explained
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
) -> np.ndarray:
    """Return the objective L of each example, from forward passes without gradients.

    The numbers are those of `gradients(...).objective`. The model is restored afterwards, even after an exception.

    Args:
        model: as in `gradients`; so are `batch`, `objective`, `tokenizer`, `max_length`, `call` and `training`.
        override: by the names of points the values to put in place of theirs, see `gradients`; `add` likewise, values to add.
        batch_size: run at most so many examples at once.
        progress: see `gradients`.

    Returns:
        float64, shape (example,); shape () for a `Scalar` objective.

    Raises:
        EmbgradError: as `gradients` raises, but for errors of gradients.
    """
    options = checked_options(
        WORD,
        training=training,
        pads="keep",
        split=False,
        override=override,
        add=add,
        edit=None,
        check=False,
        compile=False,
    )
    tokens = batch_of(batch, tokenizer, max_length, model)
    size = count_or_none(batch_size, "batch_size")
    task = Task(bind(model, call), as_objective(objective), replace(options, names=()))
    return evaluated(task, tokens, size, progress)


def evaluated(
    task: Task, batch: TokenBatch, batch_size: int | None = None, progress: Progress | bool | None = None
) -> np.ndarray:
    """Return the objective of each example, float64, (example,), from sub-batches of at most `batch_size` examples.

    Raises:
        EmbgradError: as `evaluate` raises.
    """
    bound, count = task.bound, len(batch)
    if batch.extras and batch_size is not None:
        batch = with_shared(bound, batch)
    is_cut = batch_size is not None and batch_size < count
    if is_cut:
        task.expect_cuttable(batch_size, count)
    done: list[np.ndarray] = []
    with explained_errors(bound, batch, sub_batches=is_cut, size=batch_size), reporter(progress) as report:
        end = 0
        report(end, count)
        for sub_batch in batch.micro_batches(batch_size or count) if is_cut else (batch,):
            start, end = end, end + len(sub_batch)
            done.append(_run(task.for_examples(slice(start, end), count) if is_cut else task, sub_batch))
            report(end, count)
    return np.concatenate(done) if is_cut else done[0]


def _run(task: Task, batch: TokenBatch) -> np.ndarray:
    """Return the objective's values from one forward pass on the batch."""
    with explained_decoder(task.bound, batch):
        run, respond = _forward(task, batch)
    task.warn(batch, run.unused, run.masked_id)
    return objective_values(respond, run)


def _forward(task: Task, batch: TokenBatch) -> tuple[Run, Respond | NativeObjective]:
    """Return the run and the objective after it; points to change are located by a pass of a few examples if that is enough."""
    if not task.options.changed:
        return _request(task, batch, None)
    sighting = None if task.options.training else locate_in_sub_batch(task.bound, task.options.changed, batch)
    arranged = None if sighting is None else sighting.arranged(task.options.changed, batch)
    if sighting is not None and arranged is not None:
        with contextlib.suppress(AmbiguousPointError, PointNotReachedError, UnsupportedError):
            return _request(task, batch, arranged, sighting.times)
        forget(task.bound)
    return _request(task, batch, located_for(task, batch))


def _request(
    task: Task, batch: TokenBatch, located: Mapping[str, Located] | None, times: Mapping[str, int] | None = None
) -> tuple[Run, Respond | NativeObjective]:
    respond = task.respond(batch, 0)
    return task.bound.run(batch, task.request(respond, (), located, times=times)), respond
