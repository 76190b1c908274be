"""Runs of a batch in sub-batches, whose objectives are compared with those of the whole batch where the model keeps a state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from embgrad.backend.recorded_changes import changes_recorded
from embgrad.common.progress import Progress, reporter
from embgrad.common.tracebacks import errors_of_model
from embgrad.engine.call_errors import explained_errors
from embgrad.engine.company import tolerance_of
from embgrad.engine.run import run_located
from embgrad.engine.task import Task
from embgrad.errors import UnsupportedError, listed
from embgrad.inputs.batch import TokenBatch

__all__ = ["Piece", "compared", "pieces_of"]


@dataclass(frozen=True)
class Piece:
    """Some examples of a batch, which are run at once.

    Attributes:
        task: the task for these examples.
        batch: the examples.
        compared: a context in which they are run, see `compared`; it can be entered once.
    """

    task: Task
    batch: TokenBatch
    compared: AbstractContextManager[None]


@contextlib.contextmanager
def pieces_of(
    task: Task, batch: TokenBatch, batch_size: int | None, progress: Progress | bool | None
) -> Iterator[Iterator[Piece]]:
    """Yield the sub-batches of at most `batch_size` examples, or the whole batch, to be run in order while the context is open.

    Args:
        task: the task for all examples.
        batch: all examples.
        batch_size: the most examples of a sub-batch; None for the whole batch.
        progress: see `gradients`.

    Raises:
        BatchError: an error of the model is explained, see `explained_errors`.
    """
    count = len(batch)
    is_cut = batch_size is not None and batch_size < count
    explained = explained_errors(task.bound, batch, sub_batches=is_cut, size=batch_size, objectives=task.objectives)
    with explained, reporter(progress) as report:
        yield _reported(task, batch, batch_size if is_cut else None, report)


def _reported(task: Task, batch: TokenBatch, size: int | None, report: Progress) -> Iterator[Piece]:
    count, end = len(batch), 0
    report(end, count)
    for sub_batch in (batch,) if size is None else batch.micro_batches(size):
        start, end = end, end + len(sub_batch)
        sub_task = task if size is None else task.for_examples(slice(start, end), count)
        # The other sub-batches have as many examples as the first; a model that draws random numbers computes something else in
        # each pass.
        is_compared = size is not None and not task.options.training and (not start or len(sub_batch) != size)
        comparison: AbstractContextManager[None] = (
            compared(task, batch, sub_task, sub_batch, start) if is_compared else contextlib.nullcontext()
        )
        yield Piece(sub_task, sub_batch, comparison)
        report(end, count)


@contextlib.contextmanager
def compared(task: Task, batch: TokenBatch, sub_task: Task, sub_batch: TokenBatch, start: int) -> Iterator[None]:
    """Refuse a sub-batch, which is run in this context, where a state makes the objectives others than in the whole batch.

    A state may be kept for one number of examples alone: that of the sub-batch, or that of the batch.

    Args:
        task: the task for all examples; `sub_task` is that for some of them.
        batch: all examples; `sub_batch` are those from the index `start` on.
        start: the index of the first of these.

    Raises:
        UnsupportedError: an objective differs by more than rounding.
    """
    with changes_recorded() as changes:
        yield
    if changes.names or (len(batch) in changes.numbers and not start):
        _expect_same_alone(task, batch, sub_task, sub_batch, start, [*changes.names])


def _expect_same_alone(
    task: Task, batch: TokenBatch, sub_task: Task, sub_batch: TokenBatch, start: int, changed: Sequence[str]
) -> None:
    """See `compared`; `changed` are the names of what the model changed in the pass on the sub-batch."""
    with changes_recorded() as changes:
        try:
            whole, dtype = _forward_values(task, batch)
        except errors_of_model():
            if changed:
                raise
            return  # few arrays as long as the batch are a state, and the whole batch may not fit into memory
    names = list(dict.fromkeys((*changed, *changes.names)))
    for own, values in zip(_forward_values(sub_task, sub_batch)[0], whole, strict=True) if names else ():
        apart = np.abs(own - values[start : start + len(own)])
        scale = max(float(np.abs(values).max()), float(np.abs(own).max()))
        if (apart > tolerance_of(dtype) * scale).any():
            place = int(apart.argmax())
            raise UnsupportedError(
                f"the model keeps {listed(names)} from call to call, and L of example {start + place} is "
                f"{own[place]:.6g} in a pass of {len(own)} examples and {values[start + place]:.6g} in one of {len(batch)}: "
                f"expected the same in both. Give batch_size={len(batch)}, or reset what the model keeps before the call"
            )


def _forward_values(task: Task, batch: TokenBatch) -> tuple[list[np.ndarray], str]:
    """Return the values of each objective from a forward pass, and the dtype in which the model computed."""
    changes = {option: changes for option, changes in task.options.changes.items() if option != "edit"}
    options = replace(task.options, names=(), changes=changes, split=False, compile=False)
    run, _ = run_located(replace(task, options=options, pullback=False, quiet=True), batch)
    return [response.values for response in run.objectives], run.compute_dtype
