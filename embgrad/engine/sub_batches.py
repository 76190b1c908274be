"""Runs of a batch in sub-batches, whose objectives are compared with those of the whole batch where the model keeps a state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from embgrad.common.progress import Progress, reporter
from embgrad.common.tracebacks import errors_of_model
from embgrad.engine.call_errors import explain_errors
from embgrad.engine.company import tolerance_of
from embgrad.engine.question import Question
from embgrad.engine.run import run_located
from embgrad.errors import UnsupportedError, quote
from embgrad.toolkit.recorded_changes import changes_recorded

__all__ = ["compare_sub_batch", "run_in_sub_batches"]

T = TypeVar("T")


def run_in_sub_batches(
    question: Question, batch_size: int | None, progress: Progress | bool | None, run: Callable[[Question], T]
) -> list[T]:
    """Return what a function returns for each sub-batch of at most `batch_size` examples, in order, or for the whole batch.

    Args:
        run: takes the question for some of the examples.
    """
    batch, count = question.batch, len(question.batch)
    is_cut = question.is_cut(batch_size)
    size = min(batch_size or count, count)
    explained = explain_errors(question.bound, batch, size=size if is_cut else None)
    done = []
    with explained, reporter(progress) as report:
        report(0, count)
        for start in range(0, count, size):
            end = min(start + size, count)
            part = question.part(start, end) if is_cut else question
            # The other sub-batches have as many examples as the first; a model that draws random numbers computes something else
            # in each pass.
            is_compared = is_cut and not question.options.training and (not start or end - start != size)
            with compare_sub_batch(question, part, start) if is_compared else contextlib.nullcontext():
                done.append(run(part))
            report(end, count)
    return done


@contextlib.contextmanager
def compare_sub_batch(question: Question, part: Question, start: int) -> Iterator[None]:
    """Refuse a sub-batch, which is run in this context, where a state makes the objectives others than in the whole batch.

    A state may be kept for one number of examples alone: that of the sub-batch, or that of the batch.
    """
    with changes_recorded() as changes:
        yield
    if changes.names or (len(question.batch) in changes.numbers and not start):
        _expect_same_alone(question, part, start, [*changes.names])


def _expect_same_alone(question: Question, part: Question, start: int, changed: Sequence[str]) -> None:
    """See `compare_sub_batch`; `changed` are the names of what the model changed in the pass on the sub-batch."""
    with changes_recorded() as changes:
        try:
            whole, dtype = _forward_values(question)
        except errors_of_model():
            if changed:
                raise
            return  # few arrays as long as the batch are a state, and the whole batch may not fit into memory
    names = list(dict.fromkeys((*changed, *changes.names)))
    for own, values in zip(_forward_values(part)[0], whole, strict=True) if names else ():
        apart = np.abs(own - values[start : start + len(own)])
        scale = max(float(np.abs(values).max()), float(np.abs(own).max()))
        if (apart > tolerance_of(dtype) * scale).any():
            place = int(apart.argmax())
            raise UnsupportedError(
                f"the model keeps {quote(names)} from call to call, and L of example {start + place} is "
                f"{own[place]:.6g} in a pass of {len(own)} examples and {values[start + place]:.6g} in one of {len(values)}: "
                f"expected the same in both. Give batch_size={len(values)}, or reset what the model keeps before the call"
            )


def _forward_values(question: Question) -> tuple[list[np.ndarray], str]:
    """Return the values of each objective from a forward pass, and the dtype in which the model computed."""
    changes = {option: changes for option, changes in question.options.changes.items() if option != "edit"}
    options = replace(question.options, names=(), changes=changes, split=False, compile=False)
    run, _ = run_located(replace(question, options=options, pullback=False, quiet=True))
    return [response.values for response in run.objectives], run.compute_dtype
