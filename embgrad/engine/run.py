"""Answer a question by one batch: locate its points, run the model, and assemble the results."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import numpy as np

from embgrad.backend.protocol import CannotRecordError, Change, PointValues, Reduce, Run
from embgrad.backend.replay import CallbackMemo
from embgrad.engine.assemble import assemble, in_own_order
from embgrad.engine.call_errors import explain_decoder, explain_pullback
from embgrad.engine.locate import (
    Meanings,
    ProbeInconclusiveError,
    are_roles,
    cannot_record,
    expect_each_once,
    expected_points,
    forget_meanings,
    locate,
    locate_in_pass,
    meanings,
    meanings_in_sub_batch,
    word_of,
)
from embgrad.engine.question import Memos, Question
from embgrad.errors import AmbiguousPointError, PointError, PointNotReachedError, UnsupportedError
from embgrad.model_points.axes import Arrangement, Located
from embgrad.model_points.points import WORD, could_be_positions
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import at_index
from embgrad.results.gradients import EmbeddingGradients

__all__ = [
    *("expect_examples_first", "locate_for", "objective_with", "objectives_of", "point_values", "reduce_run"),
    *("run_located", "run_question"),
]


def run_question(question: Question) -> list[dict[str, EmbeddingGradients]]:
    """Return for each objective the results of the batch, run at once, by the points' names."""
    with explain_decoder(question.bound, question.batch):
        run, located = run_located(question)
    question.warn(run.unused, run.masked_id)
    results, count = [], len(run.objectives)
    for index in range(count):
        run_of_objective = _of_objective(run, index, count)
        if not question.pullback:
            points = {
                name: replace(values, gradients=(np.zeros_like(values.activation),))
                for name, values in run_of_objective.points.items()
            }
            run_of_objective = replace(run_of_objective, points=points)
        with at_index(index, count):
            results.append(_results_of(question, run_of_objective, index, located))
    return results


def point_values(run: Run, name: str, point: Located) -> PointValues:
    """Return the values and gradients of a run at a point, which it has by its key, or by the name "word"."""
    return run.points[point.key if point.key in run.points else name]


def _of_objective(run: Run, index: int, count: int) -> Run:
    """Return the run with the gradients of one of several objectives alone, and with values of its own."""
    if count == 1:
        return run

    def of_objective(values: PointValues) -> PointValues:
        sets, before = len(values.gradients) // count, len(values.before) // count
        return replace(
            values,
            activation=values.activation if index == 0 else values.activation.copy(),
            gradients=values.gradients[index * sets : (index + 1) * sets],
            before=values.before[index * before : (index + 1) * before],
        )

    return replace(run, points={name: of_objective(values) for name, values in run.points.items()})


def _results_of(
    question: Question, run: Run, index: int, located: Mapping[str, Located]
) -> dict[str, EmbeddingGradients]:
    """Return the results of the objective with this index, by the points' names."""
    common = question.provenance(run, index)
    overridden = question.options.changes.get("override", ())
    names_of = Counter([located[name].key for name in question.options.names])
    results: dict[str, EmbeddingGradients] = {}
    for name in question.options.names:
        point = located[name]
        values = point_values(run, name, point)
        if names_of[point.key] > 1:  # each result owns its arrays
            values = deepcopy(values)
        results[name] = assemble(
            name,
            values,
            point.arrangement,
            question.batch,
            run.objectives[index].values,
            {**common, "point": name, "path": point.key},
            question.options.pads,
            split=question.options.split,
            overridden=[other for other in overridden if located[other].key != point.key],
            of_table=all(located[other].key != point.key for other in overridden),
            extras=question.decoded.extras,
        )
    return results


def objectives_of(question: Question) -> list[np.ndarray]:
    """Return the values of each objective, for each example, from one forward pass, for a question that reads no points."""
    with explain_decoder(question.bound, question.batch):
        run, _ = run_located(question)
    question.warn(run.unused, run.masked_id)
    return [response.values for response in run.objectives]


def locate_for(question: Question) -> dict[str, Located]:
    """Return all points that a question names, from a forward pass on its batch."""
    located = locate(question.bound, question.options.named, question.batch)
    _expect_each_once(question, located)
    return located


def expect_examples_first(question: Question, size: int | None) -> None:
    """Refuse points without an axis of examples, where sub-batches are run or each example's gradient is requested.

    Args:
        size: the most examples that are run at once; None for all.
    """
    whole = question.batch
    batch = whole[:size]
    other = whole[: len(batch) + 1] if len(batch) < len(whole) else whole[:-1]
    if question.options.names == (WORD,) or not len(other) or are_roles(question.bound, question.options.names, batch):
        return
    located = locate_for(replace(question, batch=batch))
    unknown = {
        name: located[name]
        for name in question.options.names
        if not located[name].by_role and located[name].arrangement.layout is None
    }
    shapes = {point.key: point.shape for point in question.bound.points(other)} if unknown else {}
    for name, point in unknown.items():
        native = point.arrangement.native
        if not point.arrangement.in_order:
            raise UnsupportedError(in_own_order(name))
        if shapes.get(point.key) != (len(other), *native[1:]) or native[0] != len(batch):
            raise UnsupportedError(
                f"the point {name!r} has the shape {native} with {len(batch)} examples, and "
                f"{shapes.get(point.key, 'is not reached')} with {len(other)}: split=... and batch_size=... need "
                "the examples on its first axis. Omit them, or name the point by a role"
            )


def objective_with(
    question: Question, located: Mapping[str, Located], key: str, change: Change
) -> tuple[np.ndarray, float]:
    """Return the objective's values with an array added at one point, without a backward pass.

    Args:
        change: returns the array to add, in the tensor's own axes.

    Returns:
        The values, and the largest change of their sum when every number from which it is computed changes by its own size:
        times the rounding error of the model's dtype, this is the error of the sum.
    """
    # A check computes the numbers in a different way.
    request = replace(question.request((), located, sets=0, sized=True), compiled=False)
    before = request.add.get(key)
    added = change if before is None else lambda value: before(value) + change(value)
    run = question.run(replace(request, add={**request.add, key: added}))
    (response,) = run.objectives
    # embgrad's objectives are computed in float64 from outputs in the model's dtype, the user's functions in that dtype.
    is_native = isinstance(question.objective, NativeObjective)
    return response.values, float(np.abs(response.values).sum()) if is_native else response.size


def run_located(question: Question, reduce: Reduce | None = None) -> tuple[Run, Mapping[str, Located]]:
    """Return the run of a question, and the points that it names.

    Args:
        reduce: applied to each gradient when it arrives, see `Request.reduce`, in the axes that users see where the point is
            known before the run; its result may have another length on the last axis. See `reduce_run`.
    """
    options, bound, batch = question.options, question.bound, question.batch
    if _is_plain(question):
        run = _run_once(question, None, reduce)
        lookup = run.points[WORD].lookup
        assert lookup is not None, "'word' is a lookup"
        return run, {WORD: word_of(bound, lookup, batch)}
    if not options.named:
        return _run_once(question, {}, reduce), {}
    memos: Memos = defaultdict(CallbackMemo)
    # In training mode the model is run once, whatever the run shows.
    located = None if options.training else _run_at_once(question, reduce, memos)
    if located is not None:
        return located
    points = locate_for(question)
    return _run_once(question, points, reduce, memos), points


#: A run, and the points that its names mean.
_LocatedRun = tuple[Run, Mapping[str, Located]]


def _run_at_once(question: Question, reduce: Reduce | None, memos: Memos) -> _LocatedRun | None:
    """Return a run that locates its points by itself; None where a pass of its own has to locate them.

    A run that makes the calls of an earlier one reads the points of that. Else it records every point, and reads those that the
    names probably mean. Where values are changed an earlier run is needed: it takes a few examples.
    """
    bound, options, batch = question.bound, question.options, question.batch
    known = meanings(bound, options.named, batch)
    done = None if known is None else _run_known(question, known, reduce, memos)
    if done is None and not (options.compile or options.changed or reduce):
        done = _run_recorded(question)
    if done is None:
        known = meanings_in_sub_batch(bound, options.named, batch)
        done = None if known is None else _run_known(question, known, reduce, memos)
    return done


def _run_known(question: Question, known: Meanings, reduce: Reduce | None, memos: Memos) -> _LocatedRun | None:
    """Return a run that reads what names meant in an earlier pass; None if it does not make the calls of that pass."""
    changed, batch = question.options.changed, question.batch
    expected = known.expect(changed, () if reduce is None else question.options.names, batch)
    if expected is None:
        return None
    _expect_each_once(question, expected)
    with contextlib.suppress(ProbeInconclusiveError, AmbiguousPointError, PointNotReachedError, UnsupportedError):
        run = _run_once(question, expected, reduce, memos, known)
        located = known.locate(question.bound, batch, run)
        pairs = {name: (located[name].arrangement, expected[name].arrangement) for name in located}
        used = {*changed, *(name for name in located if reduce and not pairs[name][0].keeps_axes)}
        alike = (
            now.is_like(then) if name in used else now.shared == then.shared for name, (now, then) in pairs.items()
        )
        if all(alike):
            return run, located
        memos.clear()  # the functions got arrays in another arrangement
    forget_meanings(question.bound)
    return None


def _run_recorded(question: Question) -> _LocatedRun | None:
    """Return a run that records every point, or another after it where the names mean points that it did not read.

    The result is None where nothing is expected of the names, or no pass of the model can record every point.
    """
    bound, batch = question.bound, question.batch
    names, split = question.options.names, question.options.split
    expected = expected_points(bound, names)
    if not expected:
        return None
    sets = (len(batch) if split else 1) if question.pullback else 0
    request = question.request(expected, sets=sets, several=split)
    try:
        with explain_pullback(bound, question.run, request):
            run = question.run(replace(request, record=True))
    except (CannotRecordError, PointNotReachedError, AmbiguousPointError):
        run = None
    if run is None or run.reached is None:
        cannot_record(bound)
        return None
    located = locate_in_pass(bound, names, batch, run.reached)
    points = [located[name] for name in names]
    if any(point.key not in run.points or point.arrangement.shared for point in points):
        return _run_once(question, located, None), located
    return run, located


def _is_plain(question: Question) -> bool:
    """Return whether one forward pass may suffice: only "word" is read, and nothing is changed.

    A pass in training mode draws random numbers and cannot be repeated, so its ids must determine "word".
    """
    is_open = question.options.training and could_be_positions(question.batch.ids)
    return question.options.named == (WORD,) and not question.options.changed and not is_open


def _run_once(
    question: Question,
    located: Mapping[str, Located] | None,
    reduce: Reduce | None,
    memos: Memos | None = None,
    known: Meanings | None = None,
) -> Run:
    """Return a run; without `located` the only point is "word"."""
    names, split = question.options.names, question.options.split
    shared = located is not None and any(located[name].arrangement.shared for name in names)
    if shared and question.is_scalar:
        raise UnsupportedError(
            f"all examples share one tensor at {names}, whose gradient for each example needs a pullback for each, and a Scalar "
            "objective has one for the whole batch: pass a function of shape (example,)"
        )
    sets = (len(question.batch) if split or shared else 1) if question.pullback else 0
    read = names if known is None else question.options.named  # those with changes too, to compare their arrangement
    points = names if located is None else tuple(dict.fromkeys(located[name].key for name in read))
    several = sets > 1 or split
    request = question.request(points, located, sets=sets, several=several, memos=memos)
    if known is not None and not question.options.compile:
        request = replace(request, times=known.times, order=known.order or None)
    try:
        kept = (
            None if reduce is None else _in_one_array(_arrange(reduce, located), len(request.objectives) * max(sets, 1))
        )
        with explain_pullback(question.bound, question.run, request):
            return question.run(replace(request, reduce=kept))
    except (AmbiguousPointError, PointNotReachedError) as error:
        if located is not None:
            raise
        return _run_resolved(question, reduce, error)


def _in_one_array(reduce: Reduce, count: int) -> Reduce:
    """Return a function that stores the results at a point, at most `count`, in one array, and returns this array.

    Many small arrays, each made between large ones, would keep the memory of the large ones from being used again.
    """
    arrays: dict[str, np.ndarray] = {}
    stored: Counter[str] = Counter()

    def storing(key: str, gradient: np.ndarray, value: np.ndarray) -> np.ndarray:
        reduced = reduce(key, gradient, value)
        if key not in arrays:
            arrays[key] = np.zeros((count, *reduced.shape), reduced.dtype)
        arrays[key][stored[key]] = reduced
        stored[key] += 1
        return arrays[key]

    return storing


def _arrange(reduce: Reduce, located: Mapping[str, Located] | None) -> Reduce:
    """Return a function that reduces gradients of known points in the axes that users see, and returns the tensor's own axes."""
    if located is None:
        return reduce
    arrangements = {point.key: point.arrangement for point in located.values()}

    def in_user_axes(key: str, gradient: np.ndarray, value: np.ndarray) -> np.ndarray:
        arrangement = arrangements[key]
        if arrangement.keeps_axes:  # its size may be that of the examples that located it
            return reduce(key, gradient, value)
        reduced = reduce(key, arrangement.to_user_axes(gradient), arrangement.to_user_axes(value))
        return _with_dim(arrangement, reduced.shape[-1]).to_native_axes(reduced)

    return in_user_axes


def reduce_run(values: PointValues, arrangement: Arrangement) -> list[np.ndarray | None]:
    """Return the reduced gradients of a run for each set of cotangents; None where none reaches the point.

    They are (example, position), or (example, position, number) where the function returned several numbers for a position.
    """
    if arrangement.shared or len(arrangement.shape) != 3:
        raise UnsupportedError(
            f"the point has the shape {arrangement.native} in the model: expected one vector for each example and position"
        )
    number = itertools.count()  # of the sets for which a result was stored
    arrays = [None if array is None else array[next(number)] for array in values.gradients]
    reduced = [
        None if array is None else _with_dim(arrangement, array.shape[-1]).to_user_axes(array) for array in arrays
    ]
    return [array if array is None or array.shape[-1] > 1 else array[..., 0] for array in reduced]


def _with_dim(arrangement: Arrangement, dim: int) -> Arrangement:
    """Return the arrangement of an array with another length of the last axis."""
    return replace(arrangement, native=(*arrangement.native[:-1], dim), shape=(*arrangement.shape[:-1], dim))


def _run_resolved(question: Question, reduce: Reduce | None, error: PointError) -> Run:
    """Run again after no lookup, or several, had the ids as indices: a probe shows which lookup follows them."""
    try:
        located = locate_for(question)
    except PointNotReachedError:
        raise error from None  # the message of the run says more about the reason
    run = _run_once(question, located, reduce)
    return replace(run, points={name: run.points[located[name].key] for name in question.options.names})


def _expect_each_once(question: Question, located: Mapping[str, Located]) -> None:
    for option, changes in question.options.changes.items():
        expect_each_once(option, changes, located)
