"""Values and pullbacks at lookups: one eager forward pass under a tape that records only what lies behind them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from embgrad.arrays import owned
from embgrad.backend import NativeObjective, Point, PointValues, Request, Run
from embgrad.batch import TokenBatch
from embgrad.calling import as_parts
from embgrad.errors import EmbgradWarning, ObjectiveError, OutputError, PointNotReachedError, UnsupportedError
from embgrad.locks import model_lock
from embgrad.outputs import choose_output, name_outputs
from embgrad.points import WORD, LookupWatch
from embgrad_tensorflow.inputs import Plan, plan
from embgrad_tensorflow.lookup import Watcher
from embgrad_tensorflow.state import Snapshot, eagerly, expect_eager, in_mode, other_tapes_paused, whole_tracebacks
from embgrad_tensorflow.walk import Tables

__all__ = ["points", "run"]

#: Cotangents by the number of the target that they belong to.
Cotangents = Mapping[int, np.ndarray]


def points(model: Any, batch: TokenBatch, call: Callable[[Any, Any], Any] | None) -> list[Point]:
    """The lookups that a forward pass on the batch makes, in order."""
    with _working(model):
        planned = _planned(model, batch, False, call)
        watcher = Watcher(LookupWatch(batch, ()), Tables(as_parts(model)))
        _forward(model, planned, watcher, training=False)
    return [Point(seen.name, WORD if seen.layout is not None else None, seen) for seen in watcher.watch.lookups]


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """One forward pass, and a pullback for each set of cotangents."""
    native = isinstance(request.respond, NativeObjective)
    with _working(model):
        planned = _planned(model, batch, request.training, request.call)
        tape = tf.GradientTape(persistent=not native, watch_accessed_variables=False)
        watcher = Watcher(LookupWatch(batch, request.points), Tables(as_parts(model)), tape.watch)
        with tape:
            returned = _forward(model, planned, watcher, request.training)
        chosen = _resolve(watcher)
        answer = (
            _native_answer(returned, batch, request.respond, tape) if native else _answer(returned, planned, request)
        )
        rows = [watcher.kept[number] for number in chosen.values()]
        gradients = [_pull_back(tape, answer.targets, cotangents, rows) for cotangents in answer.sets]
        found = {
            name: PointValues(
                activation=owned(rows[place].numpy()),
                gradients=tuple(one[place] for one in gradients),
                lookup=watcher.watch.lookups[number],
            )
            for place, (name, number) in enumerate(chosen.items())
        }
        return Run(found, rows[0].dtype.name, planned.unused, answer.objective)


@dataclass(frozen=True)
class _Answer:
    """What to pull back.

    Attributes:
        targets: native tensors.
        sets: sets of cotangents.
        objective: the values of a native objective.
    """

    targets: Sequence[Any]
    sets: Sequence[Cotangents]
    objective: np.ndarray | None = None


@contextlib.contextmanager
def _working(model: Any) -> Iterator[None]:
    """Nobody else changes the model's state, and nobody's tape records what is done."""
    expect_eager()
    with model_lock(as_parts(model)), other_tapes_paused():
        yield


def _forward(model: Any, planned: Plan, watcher: Watcher, training: bool) -> Any:
    """The model's own return value; the model is as it was, also when it raises."""
    with eagerly(), whole_tracebacks():
        snapshot = Snapshot(as_parts(model), training)
        try:
            with in_mode(training), watcher.watching():
                return planned.call()
        finally:
            snapshot.restore(watcher.written)


def _planned(model: Any, batch: TokenBatch, training: bool, call: Callable[[Any, Any], Any] | None) -> Plan:
    for part in as_parts(model):
        if _is_compiled(part):
            raise UnsupportedError(
                f"the model is a {type(part).__qualname__}, a graph that was saved or compiled without its Python, as of TF Hub: "
                "its lookups cannot be seen yet; expected a Keras model, a tf.Module or a tf.function"
            )
    return plan(model, batch, training, call)


def _is_compiled(part: Any) -> bool:
    bases = [(base.__module__, base.__qualname__) for base in type(part).__mro__]
    return any(
        module.startswith(("tensorflow.python.saved_model", "tensorflow_hub"))
        or name in ("ConcreteFunction", "TFSMLayer")
        for module, name in bases
    )


def _resolve(watcher: Watcher) -> dict[str, int]:
    """The lookups that are asked for; what ran where they cannot be seen is said."""
    if not watcher.graphs:
        return watcher.watch.resolve()
    hint = (
        f"The model ran {len(watcher.graphs)} compiled graph(s), such as {watcher.graphs[0]!r}, and lookups inside those are "
        "not seen"
    )
    try:
        chosen = watcher.watch.resolve(hint)
    except PointNotReachedError as error:
        raise UnsupportedError(
            f"{error}. A SavedModel (TF Hub, hub.KerasLayer, tf.saved_model.load), a concrete function and tf.vectorized_map "
            "run as such graphs: give the model as Keras layers, a tf.Module or a tf.function"
        ) from error
    warnings.warn(f"{hint}: what they look up has no gradient in the result", EmbgradWarning, stacklevel=6)
    return chosen


def _native_answer(returned: Any, batch: TokenBatch, objective: Any, tape: Any) -> _Answer:
    """The user's own objective, computed under the tape."""
    with tape:
        values = objective.function(returned)
    expected = () if objective.scalar else (len(batch),)
    wanted = f"a floating-point tensor of shape {expected}" + ("" if objective.scalar else ", one number an example")
    if not isinstance(values, tf.Tensor):
        raise ObjectiveError(f"the objective function gave {type(values).__qualname__}: expected {wanted}")
    if tuple(values.shape) != expected or not values.dtype.is_floating:
        hint = (
            "" if objective.scalar or values.shape.rank else "; embgrad.Scalar(function) takes a sum over the examples"
        )
        raise ObjectiveError(
            f"the objective function gave a tensor of shape {tuple(values.shape)} and dtype {values.dtype.name}: expected "
            f"{wanted}{hint}"
        )
    return _Answer([values], [{0: np.ones(expected)}], owned(values.numpy()))


def _answer(returned: Any, planned: Plan, request: Request) -> _Answer:
    """The objective in NumPy, on the outputs that it reads."""
    assert not isinstance(request.respond, NativeObjective)
    named = name_outputs(returned, lambda value: isinstance(value, tf.Tensor), planned.outputs)
    outputs = {wanted: named[choose_output(named, wanted)] for wanted in request.outputs}
    for wanted, output in outputs.items():
        if not output.dtype.is_floating:
            raise OutputError(
                f"the output {wanted!r} is of dtype {output.dtype.name}, which has no gradient: expected floating point; "
                "name another with output=..."
            )
    numbers = {wanted: number for number, wanted in enumerate(outputs)}
    sets = request.respond({wanted: owned(output.numpy()) for wanted, output in outputs.items()})
    return _Answer(list(outputs.values()), [{numbers[wanted]: one[wanted] for wanted in one} for one in sets])


def _pull_back(
    tape: Any, targets: Sequence[Any], cotangents: Cotangents, rows: Sequence[Any]
) -> list[np.ndarray | None]:
    """The gradient at each lookup; None where the tape has no way to it."""
    reached = [targets[number] for number in cotangents]
    given = [tf.cast(tf.constant(one), targets[number].dtype) for number, one in cotangents.items()]
    gradients = tape.gradient(reached, list(rows), output_gradients=given)
    # what was looked up in the rows again comes as IndexedSlices
    return [None if one is None else owned(tf.convert_to_tensor(one).numpy()) for one in gradients]
