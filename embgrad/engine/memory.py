"""`embgrad.memory`: a forecast of the memory that `gradients` takes, from runs of sub-batches."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import BoundModel, Call
from embgrad.backend.registry import bind
from embgrad.common.keywords import explain_arguments
from embgrad.common.memory_meter import MemoryMeter, process_meter
from embgrad.common.options import count_or_none
from embgrad.common.tracebacks import errors_of_model
from embgrad.engine.call_errors import explain_errors
from embgrad.engine.gradients import results_of
from embgrad.engine.options import check_options
from embgrad.engine.probe import with_shared
from embgrad.engine.question import Question
from embgrad.errors import EmbgradError, ObjectiveError
from embgrad.inputs.conventions import batch_of
from embgrad.inputs.resized import resize
from embgrad.model_points.points import WORD
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import Objective, as_objective
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.memory import Memory
from embgrad.results.schemas import GRADIENTS

__all__ = ["memory"]

#: From which growth, in bytes, between two sub-batches the memory of an example is computed. The peaks of equal runs differ by
#: some MiB, since allocators reuse memory in other orders.
ENOUGH: Final = 96 * 2**20

#: From which growth one and two examples suffice, although frameworks may treat a single example differently.
PLENTY: Final = 512 * 2**20

#: How many times each sub-batch is run; the largest peak counts.
RUNS: Final = 2

#: The parts of `longest` at which an example is run.
PARTS: Final = (4, 2, 1)


@explain_arguments
def memory(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    at: str | Sequence[str] = WORD,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
    split: bool = False,
    override: Mapping[str, Any] | None = None,
    add: Mapping[str, Any] | None = None,
    edit: Mapping[str, Callable[[np.ndarray], np.ndarray | None]] | None = None,
    check: bool = False,
    batch_size: int | None = None,
    compile: bool = False,
    longest: int | None = None,
) -> Memory:
    """Forecast the memory that `gradients` takes with the same arguments, so that `batch_size` can be chosen.

    The call is run on the first 1, 2, 4, … examples of the batch, with all of its positions, until the peak has grown enough to
    tell what an example takes; a line through the last two peaks gives that of `batch_size` examples. The only example of a batch
    is also run twice at once, unless it takes 512 MiB. The model is restored afterwards.

    With `longest` a long text need not fit: the first example is run cut to so many positions, to half of them and to a quarter,
    and a parabola through the three peaks gives that of its own length, since attention may keep a number for each pair of
    positions. `attribute_tokens` takes as much as `gradients` with the log-probability of a single token.

    On the CPU the peak is that of the process's resident size as Linux records it (`VmHWM`), so that other work of the process in
    the meantime counts as well. On a CUDA GPU it is that of the bytes which PyTorch's or TensorFlow's allocator hands out;
    the GPU's driver, and blocks that the allocator keeps for later, come on top.

    The forecast is for sub-batches like the first examples. Equal runs differ by some MiB on the CPU: where `activations` is
    below about 50 MiB, or the batch too small for `measured` to grow by as much, `per_example` is that uncertain. With
    `compile=True` a first call takes more while it compiles.

    Args:
        model: as in `gradients`; so are all other arguments. Functions among them are called several times.
        training: run the model in training mode. Random generators then move as by the runs.
        batch_size: the most examples to run at once; None, or a number above that of the batch's examples, for all of them.
            `Memory.with_batch_size` gives the forecast for other numbers without further runs.
        longest: the most positions that are run; at least 4. The objective must not depend on the length, such as
            `LogProbability(id, position=-1)`. Half of the text's own positions are enough, and of thousands a quarter or fewer;
            the fewer there are, the less the parabola shows. None for all.

    Returns:
        The figures in bytes: `weights`, `activations`, `peak` and others; `largest_batch(limit)` is the largest `batch_size`
        that fits.

    Raises:
        UnsupportedError: the system does not record a peak, as macOS and Windows, or the model is on several devices or on one
            whose memory cannot be read.
        ObjectiveError: a function as objective does not accept some of the examples; or, with `longest`, shorter ones.
        EmbgradError: as `gradients` raises.
    """
    options = check_options(
        at,
        training=training,
        split=split,
        override=override,
        add=add,
        edit=edit,
        check=check,
        compile=compile,
    )
    tokens = batch_of(batch, tokenizer, max_length, model)
    bound, count = bind(model, call), len(tokens)
    size = min(count_or_none(batch_size, "batch_size") or count, count)
    question = Question(bound, tokens, (as_objective(objective),), options, quiet=True)
    question.expect_cuttable(size)
    meter = _meter_of(bound)
    if tokens.extras:
        question = replace(question, batch=with_shared(bound, tokens))
    cut = count_or_none(longest, "longest")
    if cut is None or cut >= tokens.shape[1]:
        base, measured, result = _measure(question, meter)
        fixed, per_example = _line(measured, 2 * result if meter.holds_results else 0)
    else:
        base, measured, result = _measure_lengths(question, meter, cut)
        fixed, per_example = 0, _parabola(measured, tokens.shape[1])
    return Memory(
        device=meter.device,
        examples=count,
        batch_size=size,
        weights=_size_of_weights(bound),
        base=base,
        fixed=fixed,
        per_example=per_example,
        result=result if meter.holds_results else 0,
        measured=measured,
    )


def _meter_of(bound: BoundModel) -> MemoryMeter:
    """Return the meter of the model's device: the backend's, or that of the process for models on the CPU."""
    device_meter = getattr(bound.backend, "device_meter", None)
    meter: MemoryMeter | None = None if device_meter is None else device_meter(bound.model)
    return process_meter() if meter is None else meter


def _measure(question: Question, meter: MemoryMeter) -> tuple[int, dict[int, int], int]:
    """Return the bytes in use before a run, what runs took beyond that by their numbers of examples, and an example's results.

    A first run does not count, since libraries allocate what they keep.
    """
    _run(question, 1)
    measured = dict[int, int]()
    most, count = max(len(question.batch), 2), 1
    while True:
        base, peak, result = _peak(question, meter, count)
        growth = peak - max(measured.values(), default=0)
        measured[count] = peak
        is_alone = len(question.batch) == 1
        if count >= most or (growth >= ENOUGH and count > 2) or (growth >= PLENTY and (count > 1 or is_alone)):
            return base, measured, math.ceil(result / count)
        count = min(2 * count, most)


def _peak(question: Question, meter: MemoryMeter, count: int) -> tuple[int, int, int]:
    """Return the bytes in use before runs of the first examples, what a run took beyond that, and the size of its results."""
    if question.options.compile:
        _run(question, count)  # another number of examples may be compiled
    base, result, peaks = 0, 0, []
    for _ in range(RUNS):
        meter.restart()
        base, _ = meter.read()
        result = _run(question, count)
        peaks.append(meter.read()[1] - base)
    return base, max(peaks), result


def _measure_lengths(question: Question, meter: MemoryMeter, longest: int) -> tuple[int, dict[int, int], int]:
    """Return the bytes in use before a run, what runs of the first example took beyond that by its positions, and its results."""
    lengths = [longest // part for part in PARTS]
    if lengths[0] < 1:
        raise EmbgradError(
            f"longest is {longest}: expected at least {PARTS[0]} positions, a quarter of which is run first"
        )
    first = question if len(question.batch) == 1 else question.part(0, 1)
    base, size, measured = 0, 0, dict[int, int]()
    for length in lengths:
        shorter = _cut(first, length)
        if not measured:
            _run(shorter, 1)
        base, measured[length], size = _peak(shorter, meter, 1)
    return base, measured, size * question.batch.shape[1] // longest


def _cut(question: Question, length: int) -> Question:
    """Return the question for the first positions of its example."""
    batch = question.batch
    types = None if batch.types is None else batch.types[:, :length]
    shorter = resize(
        batch,
        np.zeros(1, np.int64),
        batch.ids[:, :length],
        batch.real[:, :length],
        types,
        "Give longest=None, or a batch of shorter texts",
    )
    return replace(question, batch=shorter)


def _parabola(measured: Mapping[int, int], length: int) -> int:
    """Return what an example of a length takes: the value of the parabola through three points, or of a line if it bends down."""
    lengths, sizes = np.array(list(measured), float), np.array(list(measured.values()), float)
    bend = np.polyfit(lengths, sizes, 2)
    if bend[0] < 0:
        bend = np.polyfit(lengths[1:], sizes[1:], 1)
    return max(int(np.polyval(bend, length)), int(sizes.max()))


def _run(question: Question, count: int) -> int:
    """Return the size of the first examples' results in bytes; a batch of one example may be repeated.

    Raises:
        ObjectiveError: a function as objective fails on some of the examples, and the model does not.
    """
    part, batch = _part(question, count), question.batch
    try:
        with explain_errors(question.bound, batch, size=count):
            return sum(map(_size, results_of(part).values()))
    except EmbgradError:
        raise
    except errors_of_model() as failure:
        is_native = isinstance(question.objective, NativeObjective)
        if len(part.batch) == len(batch) or not is_native or not question.bound.accepts(part.batch):
            raise
        raise ObjectiveError(
            f"the objective raised {type(failure).__name__} for {count} of the batch's {len(batch)} examples, which are run "
            "to measure: expected a function of any number of examples, or an objective such as embgrad.CrossEntropy(labels)"
        ) from failure


def _part(question: Question, count: int) -> Question:
    """Return the question for the first examples, or for the only example repeated."""
    batch, objective = question.batch, question.objective
    if count <= len(batch):
        return question if count == len(batch) else question.part(0, count)
    repeated = np.zeros(count, np.int64)
    if isinstance(objective, Objective):
        objective = objective.take(repeated, len(batch))
    return replace(question, batch=batch.take(repeated), objectives=(objective,))


def _size(result: EmbeddingGradients) -> int:
    return sum(array.nbytes for array in GRADIENTS.arrays_of(result).values())


def _line(measured: Mapping[int, int], least: int) -> tuple[int, int]:
    """Return the intercept and the slope of the line through the last two points, neither below what is possible.

    Args:
        measured: bytes by numbers of examples in ascending order; with a single number all counts as the example's.
        least: the least slope: the framework's arrays and their copies in the results.
    """
    if len(measured) == 1:
        return 0, max(measured[1], least, 1)
    (fewer, before), (more, after) = list(measured.items())[-2:]
    slope = max((after - before) // (more - fewer), least, 1)
    if slope * more > after:
        return 0, max(after // more, least, 1)
    return after - slope * more, slope


def _size_of_weights(bound: BoundModel) -> int | None:
    if not bound.supports("weights"):
        return None
    weights = bound.backend.weights(bound.model)
    return sum(math.prod(weight.shape) * _bits(weight.dtype) for weight in weights) // 8


def _bits(dtype: str) -> int:
    """Return the size of a number of a floating dtype, such as 16 for "bfloat16" and 8 for "float8_e4m3fn"."""
    return int(re.findall(r"\d+", dtype)[0])
