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
from embgrad.engine.call_errors import explain_errors
from embgrad.engine.gradients import results_of
from embgrad.engine.options import check_options
from embgrad.engine.probe import with_shared
from embgrad.engine.question import Question
from embgrad.inputs.conventions import batch_of
from embgrad.model_points.points import WORD
from embgrad.objectives.objectives import as_objective
from embgrad.results.memory import Memory
from embgrad.results.schemas import GRADIENTS

__all__ = ["memory"]

#: From which growth, in bytes, between two sub-batches the memory of an example is computed. The peaks of equal runs differ by
#: some MiB, since allocators reuse memory in other orders.
ENOUGH: Final = 96 * 2**20

#: From which growth one and two examples suffice, although frameworks may treat a single example differently.
PLENTY: Final = 512 * 2**20


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
) -> Memory:
    """Forecast the memory that `gradients` takes with the same arguments, so that `batch_size` can be chosen.

    The call is run on the first 1, 2, 4, … examples of the batch, with all of its positions, until the peak has grown enough to
    tell what an example takes; a line through the last two peaks gives that of `batch_size` examples. Of the only example of a
    batch all counts as the example's. The model is restored afterwards. `attribute_tokens` takes as much as `gradients` with the
    log-probability of a single token.

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

    Returns:
        The figures in bytes: `weights`, `activations`, `peak` and others.

    Raises:
        UnsupportedError: the system does not record a peak, as macOS and Windows, or the model is on several devices or on one
            whose memory cannot be read.
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
    base, measured, result = _measure(question, meter)
    fixed, per_example = _line(measured, 2 * result if meter.holds_results else 0)
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
    most, count = len(question.batch), 1
    while True:
        base, peak, result = _peak(question, meter, count)
        growth = peak - max(measured.values(), default=0)
        measured[count] = peak
        if count >= most or (growth >= ENOUGH and count > 2) or (growth >= PLENTY and count > 1):
            return base, measured, math.ceil(result / count)
        count = min(2 * count, most)


def _peak(question: Question, meter: MemoryMeter, count: int) -> tuple[int, int, int]:
    """Return the bytes in use before a run of the first examples, what it took beyond that, and the size of its results."""
    if question.options.compile:
        _run(question, count)  # another number of examples may be compiled
    meter.restart()
    base, _ = meter.read()
    result = _run(question, count)
    return base, meter.read()[1] - base, result


def _run(question: Question, count: int) -> int:
    """Return the size of the first examples' results in bytes."""
    part = question if count == len(question.batch) else question.part(0, count)
    with explain_errors(question.bound, question.batch, size=count):
        return sum(
            array.nbytes for result in results_of(part).values() for array in GRADIENTS.arrays_of(result).values()
        )


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
    return sum(math.prod(weight.shape) * int(re.findall(r"\d+", weight.dtype)[0]) for weight in weights) // 8
