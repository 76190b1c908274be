"""Run a stream batch by batch: read finished results back, and write every new result before it is yielded."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

import numpy as np

from embgrad.attribution.method import Method
from embgrad.backend.protocol import BoundModel
from embgrad.common.progress import Progress
from embgrad.common.tracebacks import errors_of_model
from embgrad.engine.gradients import results_of as gradients_of
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.engine.weights import weights_sums
from embgrad.errors import BatchError, EmbgradError, EmbgradWarning, FileFormatError, brief, level_of_user, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.collate import pad
from embgrad.objectives.objectives import as_objective, describe
from embgrad.streaming.buckets import Group, Piece, group_portions, per_window, restore
from embgrad.streaming.folder import read_shard
from embgrad.streaming.manifest import Manifest
from embgrad.streaming.objectives import Objectives
from embgrad.streaming.padding_invariance import compare_alone, follows_positions
from embgrad.streaming.prefetch import Ahead
from embgrad.streaming.run_identity import identity, weights_digest
from embgrad.streaming.sorting import expect_restorable, expect_same, expect_sortable
from embgrad.streaming.source import Portion, Source
from embgrad.streaming.totals import Total
from embgrad.streaming.writer import Writer, select_stored

__all__ = ["Plan", "State", "results_of"]

#: The number of results after which free memory is returned: often enough to bound it, seldom enough to cost nothing.
TRIMMED_EVERY: Final = 25


@dataclass
class State:
    """The state of a running stream.

    Attributes:
        quiet: whether the results themselves are not needed.
        writer: the writer of the folder; None where nothing is written.
        totals: the sums of table gradients, by the names of the points, where they are requested.
        report: the function that receives the progress.
        examples: the number of examples that are done.
        padding_checked: whether padding is known not to change the model's results, see `compare_alone`.
        by_position: whether the second axis is the position, for the points where this is known.
        reader: the thread that reads the source; None where the consumer's own thread reads it.
        weights_recorded: whether the weights behind the written results are recorded.
    """

    quiet: bool
    writer: Writer | None = None
    totals: dict[str, Total] = field(default_factory=dict)
    report: Progress = lambda done, total: None
    examples: int = 0
    padding_checked: bool = False
    by_position: Mapping[str, bool] = field(default_factory=dict)
    reader: threading.Thread | None = None
    weights_recorded: bool = False


@dataclass(frozen=True)
class Plan:
    """The arguments of a stream.

    Attributes:
        bound: the model.
        options: the options of each batch.
        size: the argument `batch_size`.
        method: the attribution method; None for gradients.
        run_id: the user's name for the run, which its functions need; None for none.
        compute: the function that returns the results of one batch by point; its last argument is the size of sub-batches.
    """

    bound: BoundModel
    options: GradientOptions
    source: Source
    objectives: Objectives
    size: int | None
    window: int | None
    ahead: int
    keep: str
    method: Method | None = None
    run_id: str | None = None
    compute: Callable[[Question, int | None], dict[str, Any]] = gradients_of

    def manifest(self) -> Manifest:
        """Return the manifest of the run, without finished results."""
        return Manifest(self.keep, self.options.names, self.options.single, self.run())

    def run(self) -> dict[str, Any]:
        """Return the identity of the run, by option."""
        size = self.size if self.source.tokenizer is None else self.source.size
        further = {"batch_size": size, "window": self.window, "check": bool(self.options.check)}
        return identity(self.bound, self.options, self.source, self.objectives, further, self.method, self.run_id)

    @property
    def total(self) -> int | None:
        """The number of examples in the source; None where it is not known."""
        return self.source.examples if self.source.examples is not None else self.objectives.count


def results_of(plan: Plan, state: State) -> Generator[Any, None, None]:
    """Yield the results of the stream, in order."""
    writer, report = state.writer, state.report
    manifest = None if writer is None else writer.manifest
    finished = 0 if manifest is None else manifest.results
    skipped = finished if plan.window is None else finished - finished % per_window(plan.window, plan.source.size)
    portions = plan.source.portions(skipped)
    groups = Ahead(group_portions(portions, plan.source.size, plan.window, plan.source.padding, finished), plan.ahead)
    state.reader = groups.thread
    try:
        report(0, plan.total)
        if writer is not None and manifest is not None:
            if not state.quiet:
                yield from _read_back(plan, manifest, writer, state)
            writer.reload_last_shard()
            state.examples = manifest.examples
            report(state.examples, plan.total)
        last = None
        for group in groups:
            for portion in group.portions:
                last = portion
                _expect_source_as_before(portion, manifest)
            yield from _group_results(plan, state, group, finished)
        if last is None and not finished:
            raise BatchError(
                "the source is empty: expected one text or batch at least; was it a generator, and read before?"
            )
        _expect_source_to_end(plan, last, manifest)
        if writer is not None:
            writer.flush(complete=True)
    finally:
        groups.close()


def _group_results(plan: Plan, state: State, group: Group, finished: int) -> Generator[Any, None, None]:
    """Yield the results of a group's portions, without those that were finished before."""
    if not group.pieces:
        return
    batch_results: list[dict[str, Any]] = []
    for number in range(len(group.pieces)):
        batch_results.append(_run(plan, group, number))
        if plan.window is not None:
            expect_restorable([piece.batch for piece in group.pieces[: number + 1]], batch_results)
            if not state.padding_checked:
                _check_padding(plan, state, group, number, batch_results[-1])
    for number, portion in enumerate(group.portions):
        if portion.number < finished:
            continue
        results = batch_results[0] if plan.window is None else _in_order(plan, state, group, batch_results, number)
        stored = {name: select_stored(plan.keep, result) for name, result in results.items()}
        for name, total in state.totals.items():
            total.add(results[name].table())
        if state.writer is not None:
            _write(plan, state, state.writer, portion, results, stored)
        state.examples += portion.count
        state.report(state.examples, plan.total)
        del results
        if (portion.number + 1) % TRIMMED_EVERY == 0:
            trim()
        if state.quiet:
            yield None
        else:
            yield stored[plan.options.names[0]] if plan.options.single else stored


def _run(plan: Plan, group: Group, number: int) -> dict[str, Any]:
    """Return the results of one batch of a group."""
    piece = group.pieces[number]
    owners = [group.portions[owner] for owner, _ in piece.members]
    examples = np.array([owner.start + row for owner, (_, row) in zip(owners, piece.members, strict=True)])
    labels = [
        owner.labels[row] for owner, (_, row) in zip(owners, piece.members, strict=True) if owner.labels is not None
    ]
    try:
        objective = plan.objectives.of(examples, piece.batch, labels if plan.objectives.labelled else None)
        if plan.window is not None:
            expect_sortable(objective, plan.source.padding.side)
        question = Question(plan.bound, piece.batch, (as_objective(objective),), plan.options)
        return plan.compute(question, plan.size if plan.source.tokenizer is None else None)
    except Exception as error:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"while streaming the examples {_range_text(examples)} of the source")
        raise


def _check_padding(plan: Plan, state: State, group: Group, number: int, results: Mapping[str, Any]) -> None:
    """Check that padding does not change the results, by one example run with less padding, or with that of its own batch.

    The outcome is recorded in the state. With a method the gradients at the example's own values are compared.

    Raises:
        UnsupportedError: the example's results differ, or cannot be restored to the example's own batch.
    """
    piece = group.pieces[number]
    lengths, padded_length = piece.batch.real.sum(1), piece.batch.shape[1]
    own_lengths = np.array([_length_of(group.portions[owner]) for owner, _ in piece.members])
    candidates = np.flatnonzero((lengths > 0) & (lengths < np.maximum(own_lengths, padded_length)))
    if not candidates.size:
        return
    if plan.method is not None:
        plan = replace(plan, method=None, compute=gradients_of)
        results = _run(plan, group, number)
    shortest = int(candidates[np.argmin(lengths[candidates])])
    without_padding = lengths[shortest] < padded_length
    row = shortest if without_padding else int(candidates[np.argmax(own_lengths[candidates])])
    unchecked = replace(plan, options=replace(plan.options, check=False))
    length = 0 if without_padding else int(own_lengths[row])
    probe = _run_alone(unchecked, group, number, row, length)
    if probe is None:
        state.padding_checked = True
        return
    batch, probe_results = probe
    expect_restorable([piece.batch, batch], [results, probe_results])
    state.by_position = {name: follows_positions([result, probe_results[name]]) for name, result in results.items()}

    def again() -> Mapping[str, Any]:
        if without_padding:
            return _run(unchecked, group, number)
        second_probe = _run_alone(unchecked, group, number, row, length)
        return probe_results if second_probe is None else second_probe[1]

    beside, alone, rows = (results, probe_results, (row, 0)) if without_padding else (probe_results, results, (0, row))
    owner, index = piece.members[row]
    verdict = compare_alone(beside, alone, rows, plan.source.padding.side, again)
    state.padding_checked = expect_same(group.portions[owner].start + index, verdict)


def _length_of(portion: Portion) -> int:
    assert portion.batch is not None, "what is run was encoded"
    return portion.batch.shape[1]


def _run_alone(
    plan: Plan, group: Group, number: int, row: int, length: int
) -> tuple[TokenBatch, Mapping[str, Any]] | None:
    """Return an example of a batch, padded to a length or not at all, with its results.

    The example is run alone or, where the model accepts only one number of examples, repeated as often as the batch has
    examples. Returns None with a warning where the model accepts neither.
    """
    piece = group.pieces[number]
    owner, index = piece.members[row]
    refusal: Exception | None = None
    for count in dict.fromkeys((1, len(piece.batch))):
        batch = pad([group.portions[owner].texts[index]] * count, plan.source.padding, length)
        try:
            return batch, _run(plan, replace(group, pieces=(Piece(batch, (piece.members[row],) * count),)), 0)
        except errors_of_model() as error:  # of any class: the model does not accept the batch
            refusal = error
    padding = f"padded to {length} positions" if length else "without padding"
    warnings.warn(
        "window sorts examples by length, but whether padding changes the results could not be checked: the model did not "
        f"accept example {group.portions[owner].start + index} of the source {padding} ({brief(refusal, 160)}). "
        "Compare some results with those of a stream without window",
        EmbgradWarning,
        stacklevel=level_of_user() + 1,
    )
    return None


def _in_order(
    plan: Plan, state: State, group: Group, batch_results: Sequence[Mapping[str, Any]], number: int
) -> dict[str, Any]:
    """Return the results of one portion of a window."""
    portion = group.portions[number]
    assert plan.window is not None, "pieces are portions but for a window"
    assert portion.batch is not None, "what was run was encoded"
    objective = as_objective(plan.objectives.of(portion.examples, portion.batch, portion.labels))
    by_position = {
        name: plan.method is not None
        or state.by_position.get(name, follows_positions([results[name] for results in batch_results]))
        for name in batch_results[0]
    }
    return restore(group, batch_results, number, by_position, describe(objective), plan.window, plan.source.padding)


def _write(
    plan: Plan, state: State, writer: Writer, portion: Portion, results: Mapping[str, Any], stored: Mapping[str, Any]
) -> None:
    if not state.weights_recorded:
        _record_weights(plan, writer, first=portion.number == 0)
        state.weights_recorded = True
    # The user may modify a result's arrays before its shard is full.
    writer.add(portion.count, portion.digest, results, stored if state.quiet else deepcopy(dict(stored)))


def _record_weights(plan: Plan, writer: Writer, *, first: bool) -> None:
    """Record the weights behind the results that are written from here on, and check them before every later write.

    A model may create weights in its first batch, and may receive others until the first result.
    """
    first_sums, digest, run = weights_sums(plan.bound.model), weights_digest(plan.bound), writer.manifest.run
    if first:
        writer.replace_run({**run, "weights": digest})

    def expect_same() -> None:
        current_sums = weights_sums(plan.bound.model)
        changed = [
            name
            for name in dict.fromkeys([*first_sums, *current_sums])
            if first_sums.get(name) != current_sums.get(name)
        ]
        if changed or (not first and digest != run["weights"]):
            raise EmbgradError(
                f"the model's weights have changed since the stream began ({quote(changed) or 'before its first result'}), and "
                f"{writer.folder} holds results of the former ones. Repeat the call with these, or name another folder"
            )

    writer.expect(expect_same)


def _read_back(plan: Plan, manifest: Manifest, writer: Writer, state: State) -> Generator[Any, None, None]:
    """Yield the results that were finished before."""
    for shard in manifest.shards:
        for stored in read_shard(writer.folder, manifest, shard):
            yield stored[plan.options.names[0]] if plan.options.single else stored
        state.examples += shard.examples
        state.report(state.examples, plan.total)


def trim() -> None:
    """Give freed memory back to the operating system (malloc_trim): a heap for arrays of many sizes keeps growing otherwise."""
    trimmed = _malloc_trim()
    if trimmed is not None:
        trimmed(0)


@cache
def _malloc_trim() -> Callable[[int], Any] | None:
    """Return glibc's `malloc_trim`, or None: other allocators have no such function, and need none."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        function: Callable[[int], Any] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except OSError:
        return None
    return function


# Checks


def _expect_source_as_before(portion: Portion, manifest: Manifest | None) -> None:
    """Check that the source is the one behind the finished results."""
    if manifest is None:
        return
    if manifest.complete and portion.number >= manifest.results:
        raise FileFormatError(
            f"the folder holds a complete run of {manifest.examples} examples, but the source now has more: pass the same "
            "source, or name another folder"
        )
    for shard in manifest.shards:
        if portion.number == shard.first + shard.results - 1 and portion.digest != shard.source:
            raise FileFormatError(
                "the source is not the one of the results in the folder: it differs at or before example "
                f"{portion.start + portion.count - 1}. Pass the same items in the same order, from the beginning, or name "
                "another folder"
            )


def _expect_source_to_end(plan: Plan, last: Portion | None, manifest: Manifest | None) -> None:
    """Check that the source reached the end of the finished results and of the objective's arguments."""
    examples = 0 if last is None else last.start + last.count
    if manifest is not None and (0 if last is None else last.number + 1) < manifest.results:
        raise FileFormatError(
            f"the source ended after {examples} examples, but the folder holds the results of {manifest.examples}. Pass the same "
            "source from its beginning; a generator can be read only once"
        )
    plan.objectives.expect_all_used(examples)


def _range_text(examples: np.ndarray) -> str:
    first, last = int(examples.min()), int(examples.max())
    return f"{first} to {last}" if last - first == len(examples) - 1 else f"{brief(sorted(examples.tolist()))}"
