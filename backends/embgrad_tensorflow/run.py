"""Values and pullbacks at lookups: one eager forward pass under a tape that records only what lies behind them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embgrad.answering import Answer, Cotangents, answer, native_answer, values_at
from embgrad.arrays import owned
from embgrad.backend import Call, NativeObjective, Point, Request, Run
from embgrad.batch import TokenBatch
from embgrad.calling import as_parts
from embgrad.errors import EmbgradWarning, PointNotReachedError, UnsupportedError
from embgrad.locks import model_lock
from embgrad.points import LookupWatch
from embgrad_tensorflow.inputs import Plan, TensorFlowTensors, plan
from embgrad_tensorflow.lookup import Watcher
from embgrad_tensorflow.state import Snapshot, eagerly, expect_eager, in_mode, other_tapes_paused, whole_tracebacks
from embgrad_tensorflow.walk import Tables

__all__ = ["points", "run"]


def points(model: Any, batch: TokenBatch, call: Call | None) -> list[Point]:
    """The lookups that a forward pass on the batch makes, in order."""
    with _working(model):
        planned = _planned(model, batch, False, call)
        watcher = Watcher(LookupWatch(batch, ()), Tables(as_parts(model)))
        with _as_found(model, call, watcher, training=False):
            planned.call()
    return watcher.watch.points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """One forward pass, and a pullback for each set of cotangents."""
    with _working(model):
        planned = _planned(model, batch, request.training, request.call)
        tape = tf.GradientTape(persistent=request.several, watch_accessed_variables=False)
        watcher = Watcher(LookupWatch(batch, request.points), Tables(as_parts(model)), tape.watch)
        with tape, _as_found(model, request.call, watcher, request.training):
            returned = planned.call()
        chosen = _resolve(watcher)
        answered = _answer(returned, planned, batch, request, tape)
        rows = [watcher.kept[number] for number in chosen.values()]
        with contextlib.ExitStack() as held:
            if watcher.recomputed:  # the pullback runs parts of the model once more
                again = Watcher(LookupWatch(batch, ()), Tables(as_parts(model)))
                held.enter_context(_as_found(model, request.call, again, request.training))
            gradients = [_pull_back(tape, cotangents, rows) for cotangents in answered.sets]
        activations = [owned(one.numpy()) for one in rows]
        found = values_at(chosen, watcher.watch.lookups, activations, gradients)
        return Run(found, rows[0].dtype.name, planned.unused, answered.objective)


@contextlib.contextmanager
def _working(model: Any) -> Iterator[None]:
    """Nobody else changes the model's state, and nobody's tape records what is done."""
    expect_eager()
    with model_lock(as_parts(model)), other_tapes_paused():
        yield


@contextlib.contextmanager
def _as_found(model: Any, call: Callable[..., Any] | None, watcher: Watcher, training: bool) -> Iterator[None]:
    """Run the model in its mode, watched; afterwards it is as it was, also when it raises, and so is what `call` holds."""
    with eagerly(), whole_tracebacks():
        snapshot = Snapshot([*as_parts(model), *([] if call is None else [call])], training)
        if call is None:
            watcher.tables.learn(snapshot.nodes)
        try:
            with in_mode(training), watcher.watching():
                yield
        finally:
            snapshot.restore(watcher.written)


def _planned(model: Any, batch: TokenBatch, training: bool, call: Call | None) -> Plan:
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
        or name in ("ConcreteFunction", "RevivedLayer", "TFSMLayer")
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


def _answer(returned: Any, planned: Plan, batch: TokenBatch, request: Request, tape: Any) -> Answer:
    if isinstance(request.respond, NativeObjective):
        with tape:
            value = request.respond.function(returned)
        return native_answer(value, request.respond, batch, TensorFlowTensors())
    return answer(returned, request, TensorFlowTensors(), planned.outputs)


def _pull_back(tape: Any, cotangents: Cotangents, rows: Sequence[Any]) -> list[np.ndarray | None]:
    """The gradient at each lookup; None where the tape has no way to it."""
    targets = [target for target, _ in cotangents]
    given = [tf.cast(tf.constant(one), target.dtype) for target, one in cotangents]
    gradients = tape.gradient(targets, list(rows), output_gradients=given)
    # what was looked up in the rows again comes as IndexedSlices
    return [None if one is None else owned(tf.convert_to_tensor(one).numpy()) for one in gradients]
