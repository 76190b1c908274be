"""Run a stream batch by batch: read finished results back, and write every new result before it is yielded."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from embgrad.attribution.method import Method
from embgrad.backend.protocol import BoundModel
from embgrad.common.memory_meter import trim
from embgrad.common.progress import Progress
from embgrad.engine.gradients import results_of as gradients_of
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.engine.weights import weights_sums
from embgrad.errors import BatchError, EmbgradError, FileFormatError, quote
from embgrad.objectives.objectives import as_objective
from embgrad.streaming.folder import read_shard
from embgrad.streaming.manifest import Manifest
from embgrad.streaming.objectives import Objectives
from embgrad.streaming.run_identity import identity, weights_digest
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
        weights_recorded: whether the weights behind the written results are recorded.
    """

    quiet: bool
    writer: Writer | None = None
    totals: dict[str, Total] = field(default_factory=dict)
    report: Progress = lambda done, total: None
    examples: int = 0
    weights_recorded: bool = False


@dataclass(frozen=True)
class Plan:
    """The arguments of a stream.

    Attributes:
        method: the attribution method; None for gradients.
        run_id: the user's name for the run, which its functions need; None for none.
        compute: the function that returns the results of one batch by point; its last argument is the size of sub-batches.
    """

    bound: BoundModel
    options: GradientOptions
    source: Source
    objectives: Objectives
    size: int | None
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
        further = {"batch_size": size, "check": bool(self.options.check)}
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
    portions = plan.source.portions(finished)
    try:
        report(0, plan.total)
        if writer is not None and manifest is not None:
            if not state.quiet:
                yield from _read_back(plan, manifest, writer, state)
            writer.reload_last_shard()
            state.examples = manifest.examples
            report(state.examples, plan.total)
        last = None
        for portion in portions:
            last = portion
            _expect_source_as_before(portion, manifest)
            if portion.number >= finished:
                yield _result(plan, state, portion)
        if last is None and not finished:
            raise BatchError(
                "the source is empty: expected one text or batch at least; was it a generator, and read before?"
            )
        _expect_source_to_end(plan, last, manifest)
        if writer is not None:
            writer.flush(complete=True)
    finally:
        portions.close()


def _result(plan: Plan, state: State, portion: Portion) -> Any:
    """Return the result of a portion, after it was written and counted; None where results are not needed."""
    results = _run(plan, portion)
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
        return None
    return stored[plan.options.names[0]] if plan.options.single else stored


def _run(plan: Plan, portion: Portion) -> dict[str, Any]:
    """Return the results of a portion by point."""
    assert portion.batch is not None, "what is run was encoded"
    try:
        objective = as_objective(plan.objectives.of(portion.examples, portion.batch, portion.labels))
        question = Question(plan.bound, portion.batch, (objective,), plan.options)
        return plan.compute(question, plan.size if plan.source.tokenizer is None else None)
    except Exception as error:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"while streaming the examples {portion.start} to {portion.last} of the source")
        raise


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
                f"{portion.last}. Pass the same items in the same order, from the beginning, or name another folder"
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
