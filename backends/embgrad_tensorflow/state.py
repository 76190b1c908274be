"""Leaves everything as it was found: variables, attributes, losses, modes, other tapes, what is process-wide."""

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

from embgrad.backend.keras_inputs import is_keras
from embgrad.backend.locks import process_lock
from embgrad.backend.object_state import ObjectState, contains
from embgrad.backend.patching import Interception
from embgrad.backend.rng import SharedGenerator, is_generator
from embgrad.errors import UnsupportedError
from embgrad_tensorflow.fingerprint import structure
from embgrad_tensorflow.walk import Kinds, Node, bookkeeping, handle_of, on_devices

__all__ = [
    "Snapshot",
    "as_the_users",
    "depth",
    "eagerly",
    "expect_eager",
    "in_mode",
    "on_our_own",
    "operations_as_they_are",
    "other_tapes_paused",
    "preserve_random_state",
    "pushes",
    "replicas_apart",
    "shared",
    "tapes_of_this_thread",
    "wants_eager",
    "written_out",
]

#: Variables with more entries are not kept in evaluation mode: tables, which a read copies. A write to one is an error.
LARGE: Final = 1 << 20

#: Classes whose variables are a random generator's state: in training mode it moves, as by the user's own forward pass.
GENERATORS: Final = ("SeedGenerator", "Generator")

#: What a model is made of.
GROWN: Final = frozenset({"variable", "module"})

_kinds: Final = Kinds()

#: The wrappers that Keras and TensorFlow put around the user's containers, with the attribute that holds the container.
CONTENTS: Final = {"ListWrapper": "_storage", "_DictWrapper": "__wrapped__", "_TupleWrapper": "__wrapped__"}

#: Called by a tape that begins to record.
pushes: Final = Interception(lambda: tf.GradientTape, "_push_tape")


@functools.cache
def _function_class() -> type:
    """Return the class of what `tf.function` makes."""
    return type(tf.function(lambda: None))


#: Called for a function that `tf.function` has made.
_functions: Final = Interception(_function_class, "__call__")

_overridden: Final = Interception(lambda: tf.Graph, "gradient_override_map")

#: Called where a replica waits for the others.
_merged: Final = Interception(lambda: tf.distribute.ReplicaContext, "merge_call")

#: How many passes of embgrad's own are under way in this thread, one inside the other.
_depth: ContextVar[int] = ContextVar("depth", default=0)

#: What `eagerly` found that TensorFlow was told, the outermost first; with its lock, held for a moment only.
_found: Final[list[bool]] = []
_setting = threading.Lock()


def expect_eager() -> None:
    """Refuse to work while a graph is being traced, where there are no values.

    Raises:
        UnsupportedError: inside a `tf.function`.
    """
    if not tf.executing_eagerly():
        raise UnsupportedError(
            "embgrad was called inside a tf.function (or another graph): expected eager execution, since its results are "
            "NumPy arrays; call it outside, or through tf.py_function"
        )


@contextlib.contextmanager
def on_our_own() -> Iterator[None]:
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
def replicas_apart() -> Iterator[None]:
    """Refuse to wait for other replicas, which wait for what is held here until the call has ended.

    Raises:
        UnsupportedError: in one of several replicas the model does what they do together.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        yield
        return

    def refuse(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        raise UnsupportedError(
            f"embgrad was called in one of {replica.num_replicas_in_sync} replicas (tf.distribute.Strategy.run), and the model "
            "does there what all of them do together, such as a write to a variable that each has a copy of: expected a call "
            "outside of Strategy.run, with the examples of all replicas"
        )

    with _merged.by(refuse):
        yield


class Snapshot:
    """A model's variables and attributes, to be restored after a forward pass.

    Containers in a module's attributes are restored with what is in them, objects of the user's classes as references.

    Attributes:
        structure: the model's modules and variables, by path.
        nodes: those.
        generators: the random generators of Python's and NumPy's in its attributes.
    """

    def __init__(self, parts: Sequence[Any], training: bool) -> None:
        self.structure = structure(parts)
        self.nodes = self.structure.nodes
        self._variables: dict[int, tuple[Any, Any]] = {}
        self._large: dict[int, tuple[Any, str]] = {}
        owned: list[dict[str, Any]] = []
        self._losses: list[tuple[Any, list[Any]]] = []
        # Keras empties and fills these in place; Keras 2 holds some by thread
        losses = [name for name, kind in bookkeeping().items() if "loss" in name and issubclass(kind, (list, set))]
        local = [name for name, kind in bookkeeping().items() if issubclass(kind, threading.local)]
        for node in self.nodes:
            if node.kind == "variable":
                self._take_variable(node, training)
            elif not (is_keras(node.value) and not node.value.built):  # that is left to what its first call makes of it
                attributes = getattr(node.value, "__dict__", None)
                if attributes is not None:
                    owned.append(attributes)
                    self._losses += [(one, list(one)) for one in map(attributes.get, losses) if one is not None]
                    owned += [vars(attributes[name]) for name in local if name in attributes]
        self._attributes = ObjectState(owned, bookkeeping().keys(), _is_part, opened)
        self._bookkeeping = [(own, own.copy()) for own in owned]
        values = [value for own in owned for value in map(own.__getitem__, own.keys() - bookkeeping().keys())]
        self._lists = [
            (one, vars(one).copy(), [*opened(one)]) for one in values if type(one).__qualname__ == "ListWrapper"
        ]
        self._dicts = [(one, dict(opened(one))) for one in values if type(one).__qualname__ == "_DictWrapper"]
        self.generators = [one for one in self._attributes.values if _is_generator(one)]

    def keep(self, handle: Any, dtype: Any) -> None:
        """Keep a variable to which a graph may write, of any size."""
        self._large.pop(id(handle), None)
        if id(handle) not in self._variables:
            self._variables[id(handle)] = (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))

    def restore(self, written: Sequence[Any]) -> None:
        """Restore everything.

        Args:
            written: the resources of the variables that were written to; None stands for unknown ones.

        Raises:
            UnsupportedError: a variable was written to that is too large to be kept.
        """
        ids = {id(handle) for handle in written}
        all_known = ids <= self._variables.keys()
        for handle, value in [self._variables[one] for one in (ids if all_known else self._variables)]:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        changed = [(one, known) for one, known, before in self._lists if not _are_same(opened(one), before)]
        for wrapper, entries in self._dicts:
            _restore_dict(wrapper, entries)
        self._attributes.restore()
        for wrapper, known in changed:  # else it refuses to be saved, because its list was changed elsewhere
            vars(wrapper).update(known)
        for own, before in self._bookkeeping:
            for name in before.keys() & bookkeeping().keys():
                if own.get(name) is not before[name] and not _holds_part(own.get(name)):
                    own[name] = before[name]
        for losses, collected in self._losses:
            losses.clear()
            (losses.update if isinstance(losses, set) else losses.extend)(collected)
        lost = [self._large[id(handle)][1] for handle in written if id(handle) in self._large]
        if lost:
            raise UnsupportedError(
                f"the model writes to the variable {lost[0]!r} in its forward pass in evaluation mode, and it is too large "
                "for its value to be kept on the chance: it now holds what the forward pass wrote. Expected evaluation mode to "
                "change no weights"
            )

    def _take_variable(self, node: Node, training: bool) -> None:
        if handle_of(node.value) is None:
            return
        if training and any(base.__qualname__ in GENERATORS for base in type(node.owner).__mro__):
            return
        for native in on_devices(node.value):
            handle = native.handle
            if not training and (native.shape.num_elements() or 0) > LARGE:
                self._large[id(handle)] = (handle, node.path)
                continue
            with contextlib.suppress(tf.errors.FailedPreconditionError):  # it has no value yet
                self._variables[id(handle)] = (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=native.dtype))


def opened(value: Any) -> Any:
    """Return the container inside of one of TensorFlow's wrappers, or the value itself."""
    name = CONTENTS.get(type(value).__qualname__)
    return value if name is None else getattr(value, name)


def _are_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _restore_dict(wrapper: Any, entries: dict[Any, Any]) -> None:
    """Restore a wrapped dict through the wrapper, which refuses to be saved where its dict was changed elsewhere."""
    now = opened(wrapper)
    if _are_same([*now], [*entries]) and _are_same([*now.values()], [*entries.values()]):
        return
    if _holds_part(now) or _holds_part(entries):
        return
    for key in [*now]:
        del wrapper[key]
    for key, value in entries.items():
        wrapper[key] = value


def _is_generator(value: Any) -> bool:
    kind: type = type(value)
    return is_generator(kind)


def _is_part(value: Any) -> bool:
    """Return whether it is a variable or a module."""
    return _kinds[type(value)] in GROWN


def _holds_part(value: Any) -> bool:
    return contains(value, _is_part, opened)


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Run the bodies of `tf.function`s as they stand: nothing is traced, so no trace is left behind or gone stale."""
    with process_lock:
        with _setting:
            was = tf.config.functions_run_eagerly()
            _found.append(was)
            tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            with _setting:
                _found.pop()
                tf.config.run_functions_eagerly(was)


@contextlib.contextmanager
def operations_as_they_are() -> Iterator[None]:
    """Refuse what would give operations other gradients in the graph of a `tf.function`, of which the body runs eagerly here.

    Raises:
        UnsupportedError: something has asked for it.
    """
    asked: list[Any] = []

    def ask(original: Callable[..., Any], graph: Any, *given: Any) -> Any:
        if tf.executing_eagerly():  # else it is a graph's own, as `tf.custom_gradient` has it
            asked.append(given)
        return original(graph, *given)

    with _overridden.by(ask):
        yield
    if asked:
        raise UnsupportedError(
            "the model gives operations of a graph other gradients (tf.Graph.gradient_override_map), and embgrad runs the "
            "bodies of functions without a graph, where these have none: expected tf.custom_gradient, which counts in both"
        )


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """While a graph is traced under `eagerly`, write the user's `tf.function`s out in it, with their control flow."""

    def as_graph(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        python = function.python_function
        restored = type(function) is not _function_class()  # it has no Python of its own
        if tf.executing_eagerly() or restored or not isinstance(python, types.FunctionType):
            return original(function, *args, **kwargs)
        try:
            python = tf.autograph.to_graph(python)
        except Exception:  # its source cannot be read: TensorFlow, too, runs it as it stands then
            return original(function, *args, **kwargs)
        return python(*args, **kwargs)

    with _functions.by(as_graph):
        yield


def wants_eager() -> bool:
    """Return whether the user has set TensorFlow to run functions eagerly, which `eagerly` sets for all threads."""
    with _setting:
        return _found[0] if _found else bool(tf.config.functions_run_eagerly())


@contextlib.contextmanager
def in_mode(training: bool) -> Iterator[None]:
    """The mode in which layers are that are not told: Keras 2's learning phase, Keras 3's call context."""
    with contextlib.ExitStack() as held:
        if "tf_keras" in sys.modules:
            from tf_keras.src import backend as keras2

            held.enter_context(keras2.deprecated_internal_learning_phase_scope(int(training)))
        if "keras" in sys.modules:
            held.enter_context(_keras3_mode(training))
        yield


@contextlib.contextmanager
def _keras3_mode(training: bool) -> Iterator[None]:
    from keras.src.backend.common import global_state
    from keras.src.layers.layer import CallContext

    was = global_state.get_global_attribute("current_call_ctx")
    context = CallContext(entry_layer=None)
    context.training = training
    global_state.set_global_attribute("current_call_ctx", context)
    try:
        yield
    finally:
        global_state.set_global_attribute("current_call_ctx", was)


@contextlib.contextmanager
def other_tapes_paused() -> Iterator[None]:
    """Keep the user's tapes from recording our work, and ours from being stopped by theirs.

    Where a `tf.autodiff.ForwardAccumulator` records, they go on: a tape that was stopped and begins again lies inside of it, and
    no more records the derivatives that it gives, by which the user's second derivatives are taken.
    """
    with contextlib.ExitStack() as held:
        if pywrap_tfe.TFE_Py_TapeSetIsStopped():
            pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
            held.callback(pywrap_tfe.TFE_Py_TapeSetStopOnThread)
        tapes = tapes_of_this_thread()
        if tapes and not any(one._recording for one in _of_type(tf.autodiff.ForwardAccumulator)):
            for tape in tapes:
                held.enter_context(tape.stop_recording())
        yield


def tapes_of_this_thread() -> list[Any]:
    """TensorFlow keeps them where Python does not see them: a tape is ours if what it watches is to be recorded here."""
    if pywrap_tfe.TFE_Py_TapeSetIsEmpty():
        return []
    found = []
    for tape in _of_type(tf.GradientTape):
        probe = tf.zeros(())
        if tape._recording and not pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop([probe]):
            tape.watch(probe)
            if pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop([probe]):
                found.append(tape)
    return found


def _of_type(kind: type) -> list[Any]:
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


# Random numbers


def shared() -> list[Any]:
    """The variables of the generators that no model holds, if there are any: TensorFlow's, and Keras 3's of this thread."""
    found = []
    if stateful_random_ops.global_generator is not None:
        found.append(stateful_random_ops.global_generator.state)
    if "keras" in sys.modules:
        from keras.src.backend.common import global_state
        from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

        generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        # A variable of TensorFlow's where that is Keras's backend.
        state = getattr(getattr(generator, "state", None), "_value", None)
        found += [] if state is None else [state]
    return found


def _read() -> list[tuple[Any, Any]]:
    return [(one, tf.raw_ops.ReadVariableOp(resource=one.handle, dtype=one.dtype)) for one in shared()]


def _write(states: Sequence[tuple[Any, Any]]) -> None:
    for variable, state in states:
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=state)


_generators: Final = SharedGenerator(_read, _write)

#: A function of the user's runs inside a pass, and what it draws is drawn.
as_the_users: Final = _generators.for_user_code


def preserve_random_state(*, training: bool) -> AbstractContextManager[Any]:
    """Outside training mode, random numbers that a pass draws even so are as if they had not been drawn."""
    return contextlib.nullcontext() if training else _generators.preserved()
