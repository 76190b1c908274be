"""Gradients of a source of any length: an iterator of results in bounded memory, which can be resumed."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embgrad.attribution.method import Method
from embgrad.backend.protocol import Call
from embgrad.backend.registry import bind
from embgrad.common.files import check_path
from embgrad.common.options import count_or_none
from embgrad.common.progress import Progress, reporter
from embgrad.common.text import visible
from embgrad.engine.options import check_options, expect_one_name
from embgrad.errors import EmbgradError, brief, did_you_mean
from embgrad.model_points.points import WORD
from embgrad.objectives.objectives import Sum, as_objective
from embgrad.streaming.attributions import attributions_of, expect_of_attributions, method_from
from embgrad.streaming.broadcast import for_all_batches
from embgrad.streaming.digest import update
from embgrad.streaming.folder import StreamFolder, open_stream, table_of
from embgrad.streaming.manifest import KEEP
from embgrad.streaming.objectives import Labelled, Objectives, PerBatch
from embgrad.streaming.run import Plan, State, results_of
from embgrad.streaming.source import Source
from embgrad.streaming.tables import TabularResults
from embgrad.streaming.totals import Total
from embgrad.streaming.writer import Writer

__all__ = ["Labelled", "PerBatch", "Stream", "StreamFolder", "open_stream", "stream"]

#: The default number of texts in a result.
BATCH_SIZE = 32


def stream(
    model: Any,
    source: Iterable[Any],
    objective: Any,
    *,
    tokenizer: Any = None,
    max_length: int | None = None,
    batch_size: int | None = None,
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
    progress: Progress | bool | None = None,
    to: str | os.PathLike[str] | None = None,
    run_id: str | None = None,
    keep: str = "all",
    method: Method | str | None = None,
) -> Stream:
    """Return an iterator over the gradients of a source of any length; each result is as `gradients` returns it.

    With `method` each result is an `Attribution`, as `attribute` returns it.

    The source is read when a result is asked for, one batch at a time. A generator is closed with the stream: at its end, at an
    error, when the stream is closed (`with` closes it) or no longer referenced. An error of the source or of the tokenizer is
    raised unchanged, after the results before it.

    Args:
        model: as in `gradients`, likewise `at`, `call`, `training`, `pads`, `split`, `edit`, `check` and `compile`.
        source: with `tokenizer` an iterable of texts and pairs of texts: a list, a generator, a data set's column, or an open
            file, whose lines are read without their ends. Otherwise an iterable of batches, each in any form that `gradients`
            accepts.
        objective: as in `gradients`. Arguments with one entry an example are for the whole source, in its order:
            `CrossEntropy(all_labels)`. Where labels come with the texts, use `embgrad.Labelled(embgrad.CrossEntropy)`; each
            item of the source is then (text, label), or (batch, labels). `embgrad.PerBatch(function)` makes an objective for
            each batch.
        tokenizer: see `embgrad.encode`, likewise `max_length`.
        batch_size: for texts, the number of texts in a result, 32 by default; the last result may have fewer. For batches,
            the largest number of examples that are run at once.
        override: as in `gradients`; arrays broadcast to each batch and must not have an example axis. Likewise `add`.
        progress: a function of (examples done, total number of examples, or None where it is not known); or True for a line
            on stderr where that is a terminal.
        to: a folder, in which the results are written as safetensors files with a manifest. A run that was interrupted, in
            any way, continues where it stopped when the same call is repeated with the same source from its beginning:
            finished results are read back, not computed. The folder is then the same to the last byte. `open_stream` reads it.
        run_id: with `to` a text that identifies the run's functions and objects of your own classes: the objective, `call`, and
            others. What they compute cannot be compared, so that a call that has any needs this, and a new text whenever they
            change.
        keep: the part of each result that is stored and yielded: "all"; "saliency" for an attribution without its `values`, one
            number a position, by `method`, or by the method "saliency", the gradient's length; "table" for the sum of all table
            gradients alone, see `Stream.table`, without `method`.
        method: an attribution method, or its name, see `attribute`; None for gradients. Only `at`, one point, and `pads` of the
            options of `gradients` go with it. An example has the same scores in any batch, up to rounding, sampled methods
            included: their draws depend on the seed and the example's own ids. For batches without `tokenizer`, `batch_size`
            is how many examples or steps one pass runs at most.

    Returns:
        A `Stream`, which yields a result for each batch, in the order of the source.

    Raises:
        BackendError, BatchError, ObjectiveError, PointError, UnsupportedError: as `gradients`, here or while iterating; or an
            option does not go with `method`.
        UnsupportedError: with `to`, an argument is a function, and `run_id` is not given.
        FileFormatError: the folder holds another run (other weights, objective, method, options, or source), or is broken.
        EmbgradError: another stream writes to the folder, or there is no such method.
    """
    folder = None if to is None else check_path(to, "to")
    objectives = Objectives(objective)
    max_length = count_or_none(max_length, "max_length")
    size = count_or_none(batch_size, "batch_size")
    options = check_options(
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
    asked = "method" if method is not None else "keep='saliency'"
    method = "saliency" if keep == "saliency" and method is None else method
    chosen = None if method is None else method_from(method)
    if chosen is not None:
        expect_one_name(at, "make a stream for each point")
        expect_of_attributions(options, ["keep='table'"] if keep == "table" else [], asked)
    of_all = as_objective(Sum() if objectives.fixed is None else objectives.fixed)
    bound, options = bind(model, call), for_all_batches(options)
    options.expect_supported(bound, of_all)
    reader = Source(
        source, tokenizer, max_length, size or BATCH_SIZE, objectives.labelled, None if folder is None else update
    )
    plan = Plan(bound, options, reader, objectives, size, keep, run_id=run_id)
    if chosen is not None:
        plan = replace(plan, method=chosen, compute=partial(attributions_of, chosen, tokenizer))
    return Stream(plan, folder, progress)


#: Streams that write. They are closed before the interpreter shuts down, when `__del__` could no longer write files.
_WRITING: weakref.WeakSet[Stream] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    with contextlib.ExitStack() as stack:
        for writing in list(_WRITING):
            if writing.is_idle:  # a busy one is iterated by a daemon thread, which may never end
                stack.callback(writing.close)


class Stream(TabularResults, Iterator[Any]):
    """The iterator of results that `embgrad.stream` returns. It may be closed, used with `with`, or simply dropped.

    Several threads may iterate over it: each waits for its turn, and gets the next result.
    """

    def __init__(self, plan: Plan, to: Path | None, progress: Any) -> None:
        self._plan = plan
        self._to = to
        self._state = State(quiet=plan.keep == "table")
        self._stack = contextlib.ExitStack()
        self._results: Generator[Any, None, None] | None = None
        self._ended = False
        self._busy = False
        self._lock = threading.RLock()
        self._process = os.getpid()
        try:
            if to is not None:
                self._folder = to.absolute()  # the process may change its working directory
                self._state.writer = Writer(self._folder, plan.manifest())
                self._stack.callback(self._state.writer.close)
                _WRITING.add(self)
            self._state.report = self._stack.enter_context(reporter(progress))
        except BaseException:
            self._stack.close()
            raise

    def __repr__(self) -> str:
        what = "gradients" if self._plan.method is None else type(self._plan.method).__name__
        names = ", ".join(map(repr, self._plan.options.names))
        return visible(f"Stream({what} at {names}, keep={self._plan.keep!r}, {self.examples} examples done)")

    @property
    def is_idle(self) -> bool:
        """True while no thread waits for a result."""
        return not self._busy

    @property
    def examples(self) -> int:
        """The number of examples that are done."""
        return self._state.examples

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        """Return the next result: of `gradients` or `attribute`, or a dict with `at=[...]`."""
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
        """Write finished results, and release the folder. A closed stream yields no more results.

        While another thread waits for a result, this call waits for it.
        """
        if self._ended:
            return
        if os.getpid() != self._process:
            self._ended = True  # a copy in a forked process, where no other thread exists that could release the lock
            return
        with self._exclusive("closed"):
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
        """Run to the end and return the folder, without reading back the results that were finished before.

        Raises:
            EmbgradError: `to` was not given, or the stream was closed, or failed, before its end.
        """
        if self._to is None:
            raise EmbgradError(
                "the stream writes no files, since to was not given: pass to=folder, or iterate over the stream"
            )
        self._exhaust()
        folder = open_stream(self._to if self._to.absolute() == self._folder else self._folder)
        if not folder.complete:
            raise EmbgradError(
                f"the stream was closed or failed before the end of its source, and {self._to} holds {len(folder)} results. Make "
                "the same call again, which continues where this one stopped"
            )
        return folder

    def table(self) -> Any:
        """Run to the end and return the sum of all table gradients: a RowSparse, or a dict of them for several points.

        The sum is computed in float64. With `to` and keep="table" an interrupted sum continues where it stopped.

        Raises:
            EmbgradError: a method or keep="saliency" was given, or results were taken from a stream that does not write them.
            PointError: a point is not a lookup.
        """
        if self._plan.method is not None:
            raise EmbgradError("attributions have no table gradients: expected keep='table' or 'all', and no method")
        if self._to is not None:
            return self.finish().table()
        self._expect_unread("sum", "table()")
        self._state.totals = {name: Total() for name in self._plan.options.names}
        self._exhaust()
        return table_of(self._state.totals, self._plan.options.single)

    def _from_the_first(self) -> Iterator[Any]:
        self._expect_unread("tables", "to_pandas()")
        return self

    def _expect_unread(self, what: str, call: str) -> None:
        """Check that no result was taken."""
        if self._results is not None or self._ended:
            raise EmbgradError(
                f"the stream has yielded results, which the {what} would miss: call {call} on a new stream"
            )

    def _exhaust(self) -> None:
        self._state.quiet = True
        while True:
            try:
                self._next()
            except StopIteration:
                return

    def _next(self) -> Any:
        self._expect_own_process()
        with self._exclusive("asked for its next result"):
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

    def _expect_own_process(self) -> None:
        """Refuse a copy in a forked process, which shares the source and must not write the folder."""
        if os.getpid() != self._process and not self._ended and (self._results is not None or self._to is not None):
            raise EmbgradError(
                "the stream belongs to the process from which this one was forked, which continues it: create a new stream in "
                "this process"
            )

    @contextlib.contextmanager
    def _exclusive(self, what: str) -> Iterator[None]:
        """Hold the lock, so that no other thread takes a result or closes the stream."""
        with self._lock:
            if self._busy:
                raise EmbgradError(
                    f"the stream is {what} from within the model, the objective, the source or the progress function that it "
                    "calls for a result. Do so in the code that iterates over it; to stop from within, raise an exception"
                )
            yield


# Checks


def _expect_keep(keep: Any) -> None:
    if not isinstance(keep, str) or keep not in KEEP:
        expected = " or ".join(map(repr, KEEP))
        raise EmbgradError(f"keep is {brief(keep)}: expected {expected}.{did_you_mean(str(keep), KEEP)}")
