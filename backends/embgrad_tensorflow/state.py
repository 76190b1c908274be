"""Restore variables, attributes, losses, modes, other tapes and process-wide settings."""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.ops import stateful_random_ops

from embgrad.errors import UnsupportedError
from embgrad.keras import is_keras
from embgrad.toolkit import (
    Interception,
    ObjectState,
    SharedGenerator,
    contains,
    is_generator,
    may_be_state,
    process_lock,
    record_change,
    record_kept,
)
from embgrad_tensorflow.fingerprint import Structure, structure
from embgrad_tensorflow.walk import Node, bookkeeping, handle_of, has_base, is_restored, kinds, on_devices

__all__ = [
    "Snapshot",
    "as_user_code",
    "depth",
    "eagerly",
    "expect_eager",
    "find_shared",
    "functions_inlined",
    "in_mode",
    "mark_nested",
    "other_tapes_paused",
    "preserve_random_state",
    "refuse_gradient_overrides",
    "refuse_replica_sync",
    "tape_pushes",
    "tapes_of_this_thread",
    "wants_eager",
]

#: Variables with more entries, such as tables, are not copied in evaluation mode. A write to one is an error.
LARGE: Final = 1 << 20

#: Classes whose variables are a random generator's state, which advances in training mode.
GENERATORS: Final = ("SeedGenerator", "Generator")

#: The kinds of a model's parts.
GROWN: Final = frozenset({"variable", "module"})

#: The wrappers that Keras and TensorFlow put around the user's containers, with the attribute that holds the container.
CONTENTS: Final = {"ListWrapper": "_storage", "_DictWrapper": "__wrapped__", "_TupleWrapper": "__wrapped__"}

#: Called by a tape that begins to record.
tape_pushes: Final = Interception(lambda: tf.GradientTape, "_push_tape")


@functools.cache
def _function_class() -> type:
    """Return the class of what `tf.function` makes."""
    return type(tf.function(lambda: None))


#: Called for a function that `tf.function` has made.
_functions: Final = Interception(_function_class, "__call__")

_overridden: Final = Interception(lambda: tf.Graph, "gradient_override_map")

#: Called where a replica waits for the others.
_merged: Final = Interception(lambda: tf.distribute.ReplicaContext, "merge_call")

#: The number of nested embgrad passes in this thread.
_depth: ContextVar[int] = ContextVar("depth", default=0)

#: TensorFlow's settings before each open `eagerly`, the outermost first, with a lock that is held for a moment only.
_user_settings: Final[list[bool]] = []
_setting = threading.Lock()


def expect_eager() -> None:
    """Refuse to work while a graph is being traced, where there are no values."""
    if not tf.executing_eagerly():
        raise UnsupportedError(
            "embgrad was called inside a tf.function (or another graph), and its results are NumPy arrays. Call it outside, or "
            "through tf.py_function"
        )


@contextlib.contextmanager
def mark_nested() -> Iterator[None]:
    """Mark this thread's calls as embgrad's own, and not the user's loop."""
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)


def depth() -> int:
    """Return how many passes of embgrad run in this thread, one inside the other; 0 in the user's own loop."""
    return _depth.get()


@contextlib.contextmanager
def refuse_replica_sync() -> Iterator[None]:
    """Refuse to wait for other replicas, which may wait for a lock that this call holds."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        yield
        return

    def refuse(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            f"embgrad was called in one of {replica.num_replicas_in_sync} replicas (tf.distribute.Strategy.run), and the model "
            "waits there for the other replicas, for example to write to a mirrored variable. Call embgrad outside of "
            "Strategy.run, with the examples of all replicas"
        )

    with _merged.by(refuse):
        yield


class Snapshot:
    """A model's variables and attributes, to be restored after a forward pass.

    Containers in a module's attributes are restored with their entries, objects of the user's classes as references.

    Attributes:
        generators: the random generators of Python's and NumPy's in its attributes.
    """

    def __init__(self, parts: Sequence[Any], training: bool) -> None:
        self._take(structure(parts), training, all_nodes=True)

    @classmethod
    def of_graph(cls, known: Structure, training: bool) -> Snapshot:
        """Return a snapshot for a pass that runs no Python of the model: it holds what `keep` is called for alone."""
        snapshot = cls.__new__(cls)
        snapshot._take(known, training, all_nodes=False)
        return snapshot

    def _take(self, known: Structure, training: bool, *, all_nodes: bool) -> None:
        self.structure = known
        self.nodes = self.structure.nodes
        self._variables: dict[int, tuple[Any, Any]] = {}
        self._names: dict[int, str] = {}
        self._weights: set[int] = set()
        self._large: dict[int, tuple[Any, str]] = {}
        dictionaries: list[dict[str, Any]] = []
        self._losses: list[tuple[Any, list[Any]]] = []
        # Keras empties and fills these in place; Keras 2 holds some by thread
        losses = [name for name, kind in bookkeeping().items() if "loss" in name and issubclass(kind, (list, set))]
        local = [name for name, kind in bookkeeping().items() if issubclass(kind, threading.local)]
        for node in self.nodes if all_nodes else ():
            if node.kind == "variable":
                self._take_variable(node, training)
            elif is_restored(node.value):  # it has no Python that could change it
                continue
            elif not (is_keras(node.value) and not node.value.built):  # its first call builds it
                attributes = getattr(node.value, "__dict__", None)
                if attributes is not None:
                    dictionaries.append(attributes)
                    self._losses += [(entry, list(entry)) for entry in map(attributes.get, losses) if entry is not None]
                    dictionaries += [vars(attributes[name]) for name in local if name in attributes]
        self._attributes = ObjectState(dictionaries, bookkeeping().keys(), _is_part, unwrap)
        self._bookkeeping = [(dictionary, dictionary.copy()) for dictionary in dictionaries]
        values = [
            value
            for dictionary in dictionaries
            for value in map(dictionary.__getitem__, dictionary.keys() - bookkeeping().keys())
        ]
        self._lists = [
            (entry, vars(entry).copy(), [*unwrap(entry)])
            for entry in values
            if type(entry).__qualname__ == "ListWrapper"
        ]
        self._dicts = [(entry, dict(unwrap(entry))) for entry in values if type(entry).__qualname__ == "_DictWrapper"]
        self.generators = [entry for entry in self._attributes.values if is_generator(type(entry))]  # type: ignore[arg-type]

    def keep(self, handle: Any, dtype: Any) -> None:
        """Keep a variable to which a graph may write, of any size."""
        self._large.pop(id(handle), None)
        if id(handle) not in self._variables:
            self._variables[id(handle)] = (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))

    def restore(self, written: Sequence[Any]) -> None:
        """Restore everything.

        Args:
            written: the resources of the variables that were written to; None stands for unknown ones.
        """
        self._attributes.record_changes()
        values = (value for key, (_, value) in self._variables.items() if key not in self._weights)
        record_kept((*values, *(entry for entry in self._attributes.values if isinstance(entry, tf.Tensor))))
        ids = {id(handle) for handle in written}
        for key in self._names.keys() & ids:
            record_change(self._names[key])
        all_known = ids <= self._variables.keys()
        for handle, value in [self._variables[key] for key in (ids if all_known else self._variables)]:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        changed = [(wrapper, known) for wrapper, known, before in self._lists if not _are_same(unwrap(wrapper), before)]
        for wrapper, entries in self._dicts:
            _restore_dict(wrapper, entries)
        self._attributes.restore()
        for wrapper, known in changed:  # else a list changed behind the wrapper cannot be saved
            vars(wrapper).update(known)
        for attributes, before in self._bookkeeping:
            for name in before.keys() & bookkeeping().keys():
                if attributes.get(name) is not before[name] and not _holds_part(attributes.get(name)):
                    attributes[name] = before[name]
        for losses, collected in self._losses:
            losses.clear()
            (losses.update if isinstance(losses, set) else losses.extend)(collected)
        lost = [self._large[id(handle)][1] for handle in written if id(handle) in self._large]
        if lost:
            raise UnsupportedError(
                f"the model wrote to the variable {lost[0]!r} in evaluation mode, and the variable, which is too large to be "
                "copied beforehand, keeps the new value. Make the forward pass write to no weights in evaluation mode"
            )

    def _take_variable(self, node: Node, training: bool) -> None:
        if handle_of(node.value) is None:
            return
        if training and has_base(node.owner, *GENERATORS):
            return
        for native in on_devices(node.value):
            handle = native.handle
            self._names[id(handle)] = node.path
            if not may_be_state(node.owner, trainable=node.value.trainable):
                self._weights.add(id(handle))
            if not training and (native.shape.num_elements() or 0) > LARGE:
                self._large[id(handle)] = (handle, node.path)
                continue
            with contextlib.suppress(tf.errors.FailedPreconditionError):  # a variable without a value
                self._variables[id(handle)] = (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=native.dtype))


def unwrap(value: Any) -> Any:
    """Return the container inside of one of TensorFlow's wrappers, or the value itself."""
    name = CONTENTS.get(type(value).__qualname__)
    return value if name is None else getattr(value, name)


def _are_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _restore_dict(wrapper: Any, entries: dict[Any, Any]) -> None:
    """Restore a wrapped dict through the wrapper, which refuses to be saved where its dict was changed elsewhere."""
    now = unwrap(wrapper)
    if _are_same([*now], [*entries]) and _are_same([*now.values()], [*entries.values()]):
        return
    if _holds_part(now) or _holds_part(entries):
        return
    for key in [*now]:
        del wrapper[key]
    for key, value in entries.items():
        wrapper[key] = value


def _is_part(value: Any) -> bool:
    """Return whether it is a variable or a module."""
    return kinds[type(value)] in GROWN


def _holds_part(value: Any) -> bool:
    return contains(value, _is_part, unwrap)


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Run the bodies of `tf.function`s as they stand: nothing is traced, so no trace is left behind or gone stale."""
    with process_lock:
        with _setting:
            previous = tf.config.functions_run_eagerly()
            _user_settings.append(previous)
            tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            with _setting:
                _user_settings.pop()
                tf.config.run_functions_eagerly(previous)


@contextlib.contextmanager
def refuse_gradient_overrides() -> Iterator[None]:
    """Refuse gradient overrides, which have no effect on the body of a `tf.function` that runs eagerly."""
    overrides: list[Any] = []

    def ask(original: Callable[..., Any], graph: Any, *args: Any) -> Any:
        if tf.executing_eagerly():  # `tf.custom_gradient` uses it in graphs
            overrides.append(args)
        return original(graph, *args)

    with _overridden.by(ask):
        yield
    if overrides:
        raise UnsupportedError(
            "the model overrides gradients in a graph (tf.Graph.gradient_override_map), which have no effect in eager "
            "execution, in which embgrad runs the model. Use tf.custom_gradient, which works in both"
        )


@contextlib.contextmanager
def functions_inlined() -> Iterator[None]:
    """While a graph is traced under `eagerly`, write the user's `tf.function`s out in it, with their control flow."""

    def as_graph(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        python = function.python_function
        restored = type(function) is not _function_class()  # a restored function has no Python
        if tf.executing_eagerly() or restored or not isinstance(python, types.FunctionType):
            return original(function, *args, **kwargs)
        try:
            python = tf.autograph.to_graph(python)
        except Exception:  # without source TensorFlow, too, runs it unconverted
            return original(function, *args, **kwargs)
        return python(*args, **kwargs)

    with _functions.by(as_graph):
        yield


def wants_eager() -> bool:
    """Return whether the user has set TensorFlow to run functions eagerly, which `eagerly` sets for all threads."""
    with _setting:
        return _user_settings[0] if _user_settings else bool(tf.config.functions_run_eagerly())


@contextlib.contextmanager
def in_mode(training: bool) -> Iterator[None]:
    """Set the mode of layers that receive none: Keras 2's learning phase and Keras 3's call context."""
    with contextlib.ExitStack() as stack:
        if "tf_keras" in sys.modules:
            from tf_keras.src import backend as keras2

            stack.enter_context(keras2.deprecated_internal_learning_phase_scope(int(training)))
        if "keras" in sys.modules:
            stack.enter_context(_keras3_mode(training))
        yield


@contextlib.contextmanager
def _keras3_mode(training: bool) -> Iterator[None]:
    from keras.src.backend.common import global_state
    from keras.src.layers.layer import CallContext

    previous = global_state.get_global_attribute("current_call_ctx")
    context = CallContext(entry_layer=None)
    context.training = training
    global_state.set_global_attribute("current_call_ctx", context)
    try:
        yield
    finally:
        global_state.set_global_attribute("current_call_ctx", previous)


@contextlib.contextmanager
def other_tapes_paused() -> Iterator[None]:
    """Keep the user's tapes from recording our work, and ours from being stopped by theirs.

    Where a `tf.autodiff.ForwardAccumulator` records, they go on: a tape that was stopped and begins again lies inside of it, and
    no more records the derivatives that it gives, by which the user's second derivatives are taken.
    """
    with contextlib.ExitStack() as stack:
        if pywrap_tfe.TFE_Py_TapeSetIsStopped():
            pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
            stack.callback(pywrap_tfe.TFE_Py_TapeSetStopOnThread)
        tapes = tapes_of_this_thread()
        if tapes and not any(accumulator._recording for accumulator in _of_type(tf.autodiff.ForwardAccumulator)):
            for tape in tapes:
                stack.enter_context(tape.stop_recording())
        yield


def tapes_of_this_thread() -> list[Any]:
    """TensorFlow keeps them where Python does not see them: a tape is ours if what it watches is to be recorded here."""
    if pywrap_tfe.TFE_Py_TapeSetIsEmpty():
        return []
    tapes = []
    for tape in _of_type(tf.GradientTape):
        probe = tf.zeros(())
        if tape._recording and not pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop([probe]):
            tape.watch(probe)
            if pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop([probe]):
                tapes.append(tape)
    return tapes


def _of_type(kind: type) -> list[Any]:
    return [value for value in gc.get_objects() if issubclass(type(value), kind)]


# Random numbers


def find_shared() -> list[Any]:
    """Return the variables of TensorFlow's global generator and Keras 3's of this thread, where they exist."""
    variables = []
    if stateful_random_ops.global_generator is not None:
        variables.append(stateful_random_ops.global_generator.state)
    if "keras" in sys.modules:
        from keras.src.backend.common import global_state
        from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

        generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        # A variable of TensorFlow's where that is Keras's backend.
        state = getattr(getattr(generator, "state", None), "_value", None)
        variables += [] if state is None else [state]
    return variables


def _read() -> list[tuple[Any, Any]]:
    return [
        (variable, tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype))
        for variable in find_shared()
    ]


def _write(states: Sequence[tuple[Any, Any]]) -> None:
    for variable, state in states:
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=state)


_generators: Final = SharedGenerator(_read, _write)

#: Entered while a callback runs inside a pass, whose random draws count.
as_user_code: Final = _generators.for_user_code


def preserve_random_state(*, training: bool) -> AbstractContextManager[Any]:
    """Outside training mode, random numbers that a pass draws even so are as if they had not been drawn."""
    return contextlib.nullcontext() if training else _generators.preserve()
