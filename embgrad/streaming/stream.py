"""The gradients of as many texts as there are: an iterator of results, read ahead, in bounded memory, resumable."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.files import checked_path
from embgrad.common.options import count_or_none
from embgrad.common.progress import Progress, reporter
from embgrad.engine.bound_model import bind
from embgrad.engine.interventions import ForAll
from embgrad.engine.options import GradientOptions
from embgrad.engine.task import Task
from embgrad.errors import BatchError, EmbgradError, UnsupportedError, brief, did_you_mean
from embgrad.forward.points import WORD
from embgrad.objectives.native import as_objective
from embgrad.objectives.objectives import Sum
from embgrad.streaming.folder import StreamFolder, open_stream, table_of
from embgrad.streaming.manifest import KEEP
from embgrad.streaming.objectives import Labelled, Objectives, PerBatch
from embgrad.streaming.run import Plan, State, results_of
from embgrad.streaming.sorting import expect_window
from embgrad.streaming.source import Source
from embgrad.streaming.totals import Total
from embgrad.streaming.writer import Writer

__all__ = ["Labelled", "PerBatch", "Stream", "StreamFolder", "open_stream", "stream"]

#: How many texts a result is of where nothing else is said.
BATCH_SIZE = 32


def stream(
    model: Any,
    source: Iterable[Any],
    objective: Any,
    *,
    tokenizer: Any = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    window: int | None = None,
    at: str | Sequence[str] = WORD,
    call: Call | None = None,
    training: bool = False,
    pads: str = "keep",
    split: bool = False,
    override: Mapping[str, Any] | None = None,
    add: Mapping[str, Any] | None = None,
    edit: Mapping[str, Callable[[np.ndarray], np.ndarray | None]] | None = None,
    check: bool = False,
    compile: bool = False,
    ahead: int = 2,
    progress: Progress | bool | None = None,
    to: str | os.PathLike[str] | None = None,
    keep: str = "all",
) -> Stream:
    """The gradients of a source of any length, as an iterator of results in its order; each is as `gradients` gives it.

    The source is read, and texts are made into ids, in a thread of its own, a few batches ahead. That thread ends when the
    stream does: at its end, when something raises, when it is closed (`with` closes it) or no longer referred to. What the
    source or the tokenizer raises comes out as itself, after the results before it.

    Args:
        model: as in `gradients`; so are `at`, `call`, `training`, `pads`, `split`, `edit`, `check` and `compile`.
        source: with `tokenizer` an iterable of texts and pairs of texts: a list, a generator, a data set's column, an open file,
            whose lines are read without their ends. Else an iterable of batches, each in any form that `gradients` takes.
        objective: as in `gradients`. Arguments with one entry an example are for the whole source, in its order:
            `CrossEntropy(all_labels)`. Where labels come with the texts, `embgrad.Labelled(embgrad.CrossEntropy)`; the source
            then gives (text, label), or (batch, labels). `embgrad.PerBatch(function)` makes one for each batch.
        tokenizer: see `embgrad.encode`; so is `max_length`.
        batch_size: of texts how many a result is of, 32 unless given; the last one may be of fewer. Of batches the most examples
            that are run at once.
        window: put texts of like length together, over so many in a row (1,024, say), and run those; results are the same
            batches in the same order all the same, each example's numbers the same to rounding. At masked positions that were
            not run values and activations are zeros. Holds the results of a window in memory. Not with `split`, `training`
            or a Scalar objective, where it counts who is in a batch, nor with a model to which padding counts: an example is run
            alone, to see that.
        override: as in `gradients`; arrays broadcast to each batch, and have no example axis of their own. So does `add`.
        ahead: how many batches (windows) may be ready before they are asked for; 0 for none, and no thread. With `training`
            it is 0: a source that runs the same model would find it in training mode now and then.
        progress: a function that is told (examples done, of how many, or None where that is not known); or True for a line on
            stderr, where that is a terminal.
        to: a folder, in which the results are written as safetensors files with a manifest. A run that was interrupted, in
            any way, goes on where it stopped when the same call is made again with the same source from its beginning: what is
            finished is read back, not run. What is in the folder then is the same to the last byte. `open_stream` reads it.
        keep: what is kept, and given, of each result: "all"; "saliency", an `embgrad.Saliencies`, one number a position;
            "table", nothing but the sum of all table gradients, see `Stream.table`.

    Raises:
        BackendError, BatchError, ObjectiveError, PointError, UnsupportedError: as `gradients`, here or while iterating.
        FileFormatError: the folder holds another run (other weights, objective, options, or source), or is broken.
        EmbgradError: another stream writes to the folder.
    """
    folder = None if to is None else checked_path(to, "to")
    objectives = Objectives(objective)
    window, ahead = count_or_none(window, "window"), _expect_ahead(ahead)
    max_length = count_or_none(max_length, "max_length")
    size = count_or_none(batch_size, "batch_size")
    options = GradientOptions.checked(
        at,
        training=training,
        pads=pads,
        split=split,
        override=override,
        add=add,
        edit=edit,
        check=check,
        compile=compile,
    )
    _expect_keep(keep)
    _expect_no_example_axis(options.changes)
    changes = {option: _for_all(given) for option, given in options.changes.items()}
    objective_now = Sum() if objectives.fixed is None else objectives.fixed
    task = Task(bind(model, call), as_objective(objective_now), replace(options, changes=changes))
    read = Source(source, tokenizer, max_length, size or BATCH_SIZE, objectives.labelled, folder is not None)
    if window is not None:
        expect_window(task, read, objective)
    plan = Plan(task, read, objectives, size, window, 0 if training else ahead, keep)
    return Stream(plan, folder, progress)


#: Streams that write, to be closed while Python still works: when it ends, it is too late for `__del__` to write anything.
_WRITING: weakref.WeakSet[Stream] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    with contextlib.ExitStack() as stack:
        for one in list(_WRITING):
            if one.is_idle:  # else a thread that Python does not wait for takes its results, and may do so for ever
                stack.callback(one.close)


class Stream(Iterator[Any]):
    """What `embgrad.stream` gives: an iterator of results, to be closed, used with `with`, or simply let go.

    Several threads may take results from it: each waits for its turn, and gets the next one.
    """

    def __init__(self, plan: Plan, to: Path | None, progress: Any) -> None:
        self._plan = plan
        self._to = to
        self._state = State(quiet=plan.keep == "table")
        self._stack = contextlib.ExitStack()
        self._results: Generator[Any, None, None] | None = None
        self._ended = False
        self._busy = False
        self._turn = threading.RLock()
        self._process = os.getpid()
        try:
            if to is not None:
                self._place = to.absolute()  # wherever the process goes meanwhile
                self._state.writer = Writer(self._place, plan.manifest())
                self._stack.callback(self._state.writer.close)
                _WRITING.add(self)
            self._state.report = self._stack.enter_context(reporter(progress))
        except BaseException:
            self._stack.close()
            raise

    @property
    def is_idle(self) -> bool:
        """Whether no thread waits for a result."""
        return not self._busy

    @property
    def examples(self) -> int:
        """How many examples are done."""
        return self._state.examples

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        """The next result: a result of `gradients`, a dict of them with `at=[...]`, or `Saliencies` with keep="saliency"."""
        if self._plan.keep == "table":
            raise EmbgradError("keep='table' keeps no result of a batch: expected .table(), or keep='all'")
        return self._next()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_ended"):
            self.close()

    def close(self) -> None:
        """End the thread, write what is finished, and let the folder go. A closed stream gives nothing more.

        Where another thread waits for a result, it is closed after that one.
        """
        if self._ended:
            return
        if os.getpid() != self._process:
            self._ended = True  # a fork's copy, of a stream that goes on elsewhere; who had its turn is not here
            return
        with self._taking_turns("closed", closing=True):
            if not self._ended:
                self._ended = True
                self._end()

    def _end(self) -> None:
        with self._stack:
            if self._results is not None:
                self._results.close()
            elif isinstance(self._plan.source.items, Generator):
                self._plan.source.items.close()
            if self._state.writer is not None:
                self._state.writer.flush()

    def finish(self) -> StreamFolder:
        """Run to the end for what is written, without reading back what was finished before.

        Raises:
            EmbgradError: nothing is written: `to` was not given. Or the stream was closed, or failed, before its end.
        """
        if self._to is None:
            raise EmbgradError(
                "the stream writes nothing, as it was not told where: expected to=folder; else iterate over it"
            )
        self._exhaust()
        folder = open_stream(self._to if self._to.absolute() == self._place else self._place)
        if not folder.complete:
            raise EmbgradError(
                f"the stream ended before its source did, closed or by an error, and {self._to} holds {len(folder)} results: "
                "expected a stream that goes on; make the same call again, which begins where this one stopped"
            )
        return folder

    def table(self) -> Any:
        """Run to the end, and sum up all table gradients: a RowSparse; with several points a dict of them.

        Added up in float64. With `to` and keep="table" an interrupted sum goes on where it stopped.

        Raises:
            EmbgradError: only saliencies are kept, or results were taken from a stream that does not write them.
            PointError: a point is no lookup.
        """
        if self._plan.keep == "saliency":
            raise EmbgradError("keep='saliency' keeps no table gradients: expected keep='table' or keep='all'")
        if self._to is not None:
            return self.finish().table()
        if self._results is not None or self._ended:
            raise EmbgradError(
                "results were taken from the stream already, and are not in the sum: expected a new stream"
            )
        self._state.totals = {name: Total() for name in self._plan.task.options.names}
        self._exhaust()
        return table_of(self._state.totals, self._plan.task.options.single)

    def _exhaust(self) -> None:
        self._state.quiet = True
        while True:
            try:
                self._next()
            except StopIteration:
                return

    def _next(self) -> Any:
        self._expect_here()
        with self._taking_turns("asked for its next result"):
            if self._ended:
                raise StopIteration
            if self._results is None:
                self._results = results_of(self._plan, self._state)
            try:
                self._busy = True
                try:
                    return next(self._results)
                finally:
                    self._busy = False
            except BaseException:
                self.close()
                raise

    def _expect_here(self) -> None:
        """Refuse to go on in a fork: the thread that reads is not there, and what is written is written by who was forked.

        Raises:
            EmbgradError: this is a fork's copy of a stream that has begun, or that writes.
        """
        if os.getpid() != self._process and not self._ended and (self._results is not None or self._to is not None):
            raise EmbgradError(
                "the stream was begun, or writes, in the process that this one was forked from, which goes on with it: expected "
                "a stream of this process's own; make one here"
            )

    @contextlib.contextmanager
    def _taking_turns(self, what: str, *, closing: bool = False) -> Iterator[None]:
        """Meanwhile no other thread takes a result or closes the stream.

        Raises:
            EmbgradError: this is called by what is called for a result: it would wait for itself.
        """
        reading = threading.current_thread() is self._state.reader
        taken = self._turn.acquire(blocking=not reading)
        try:
            if not taken or self._busy or (reading and not closing):
                raise EmbgradError(
                    f"the stream is {what} by the model, the objective, the source or the progress function that it calls for "
                    "a result: expected that of who takes the results; stop it there with an exception of your own"
                )
            yield
        finally:
            if taken:
                self._turn.release()


# What is refused


def _expect_keep(keep: Any) -> None:
    if not isinstance(keep, str) or keep not in KEEP:
        expected = " or ".join(map(repr, KEEP))
        raise EmbgradError(f"keep is {brief(keep)}: expected {expected}.{did_you_mean(str(keep), KEEP)}")


def _expect_ahead(ahead: Any) -> int:
    if isinstance(ahead, bool) or not isinstance(ahead, (int, np.integer)) or ahead < 0:
        raise BatchError(f"ahead is {brief(ahead)}: expected a whole number, 0 for no thread")
    return int(ahead)


def _for_all(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, where an array's axes are looked at once the point's are known."""
    return {name: ForAll(change) if isinstance(change, np.ndarray) else change for name, change in changes.items()}


def _expect_no_example_axis(changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse arrays that look as if they had an entry for each example: of which batch would it be?"""
    for option, given in changes.items():
        for name, change in given.items():
            if isinstance(change, np.ndarray) and change.ndim > 2 and len(change) > 1:
                raise UnsupportedError(
                    f"{option}[{name!r}] has the shape {change.shape}, an entry an example as it seems, and a stream has many "
                    "batches: expected an array for all examples alike, or a function of the value"
                )
