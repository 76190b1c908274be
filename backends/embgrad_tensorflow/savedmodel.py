"""Opens compiled functions: while a model runs, its saved graphs are run operation by operation, where each is seen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import function_type_utils
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.saved_model.function_deserialization import RestoredFunction

from embgrad.interception import Interception
from embgrad.locks import process_lock
from embgrad_tensorflow.interpreter import Observer, run_program
from embgrad_tensorflow.program import ClosedGraphError, Program, build
from embgrad_tensorflow.symbolic import GraphInterpreter, Heard, UntraceableError

__all__ = ["GraphOpening", "Opening", "function_calls", "opened", "opened_by", "program_of"]

# Whatever is compiled ends in the first: signatures, restored functions, `hub.KerasLayer`, the user's own concrete functions.
function_calls = Interception(lambda: ConcreteFunction, "_call_flat")
# A restored function is traced anew, around the saved one, for each new shape; nothing is to be left behind in its cache.
_dispatch = Interception(lambda: RestoredFunction, "_call")

#: Takes a program that is about to run; gives what sees it run.
Observe = Callable[[Program], Observer]

_programs: WeakKeyDictionary[Any, Program | str] = WeakKeyDictionary()


class Opening:
    """Runs this thread's compiled functions openly.

    Args:
        observe: gives for each run of a program what sees it.

    Attributes:
        closed: why functions could not be opened, which then ran as compiled.
    """

    def __init__(self, observe: Observe | None = None) -> None:
        self.closed: list[str] = []
        self._observe = observe

    def run(self, original: Any, function: Any, tensor_inputs: Sequence[Any], captured_inputs: Sequence[Any]) -> Any:
        """In place of `ConcreteFunction._call_flat`."""
        if not tf.executing_eagerly() or not _has_gradient(function):
            return original(function, tensor_inputs, captured_inputs)
        program = program_of(function)
        if isinstance(program, str):
            self.closed.append(program)
            return original(function, tensor_inputs, captured_inputs)
        if record.could_possibly_record():
            for variable in function.graph.variables:
                resource_variable_ops.variable_accessed(variable)
        inputs = [_tensor(one) for one in (*tensor_inputs, *captured_inputs)]
        observer = self.observed(program)
        outputs = run_program(program, inputs, observer)
        observer.ended()
        return function.function_type.pack_output(outputs)

    def observed(self, program: Program) -> Observer:
        """What sees a run of a program."""
        return Observer() if self._observe is None else self._observe(program)

    def expects(self) -> bool:
        """Whether functions are run in the way that this opens."""
        return bool(tf.executing_eagerly())

    def dispatch(self, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of `RestoredFunction._call`: calls the saved function that fits, and traces nothing around it."""
        if not self.expects():
            return original(function, *args, **kwargs)
        bound = function_type_utils.canonicalize_function_inputs(
            args, kwargs, function._function_type, function._default_values, function._is_pure
        )
        given = tf.nest.map_structure(_converted, (bound.args, bound.kwargs))
        return function._python_function(*given[0], **given[1])


class GraphOpening(Opening):
    """Writes this thread's compiled functions openly into the graph that is being traced.

    Args:
        observe: gives for each run of a program what sees it.
        heard: is told of each operation.
    """

    def __init__(self, observe: Observe, heard: Heard) -> None:
        super().__init__(observe)
        self._heard = heard

    def run(self, original: Any, function: Any, tensor_inputs: Sequence[Any], captured_inputs: Sequence[Any]) -> Any:
        """In place of `ConcreteFunction._call_flat`."""
        if tf.executing_eagerly() or not _has_gradient(function):
            return original(function, tensor_inputs, captured_inputs)
        program = program_of(function)
        if isinstance(program, str):
            raise UntraceableError(program)
        observer = self.observed(program)
        inputs = [_tensor(one) for one in (*tensor_inputs, *captured_inputs)]
        outputs = GraphInterpreter(observer, self._heard).run(program, inputs)
        observer.ended()
        return function.function_type.pack_output(outputs)

    def expects(self) -> bool:
        """Whether functions are run in the way that this opens."""
        return not tf.executing_eagerly()


@contextlib.contextmanager
def opened(observe: Observe | None = None) -> Iterator[Opening]:
    """Run compiled functions openly while inside, those of this thread.

    Args:
        observe: gives for each run of a program what sees it.
    """
    with opened_by(Opening(observe)) as opening:
        yield opening


@contextlib.contextmanager
def opened_by(opening: Opening) -> Iterator[Opening]:
    """The compiled functions of this thread are run in that way while inside."""
    with function_calls.by(opening.run), _dispatch.by(opening.dispatch):
        yield opening


def program_of(function: Any) -> Program | str:
    """A ConcreteFunction's program, kept as long as the function; or why there is none."""
    with process_lock:
        if function not in _programs:
            try:
                _programs[function] = build(function)
            except ClosedGraphError as error:
                _programs[function] = f"{tf.compat.as_str(function.name)}: {error}"
        return _programs[function]


def _has_gradient(function: Any) -> bool:
    """Whether a gradient can come through it: not through a tokenizer's graph, say."""
    return any(one.dtype.is_floating or one.dtype in (tf.variant, tf.resource) for one in function.graph.outputs)


def _tensor(value: Any) -> Any:
    return value.handle if resource_variable_ops.is_resource_variable(value) else tf.convert_to_tensor(value)


def _converted(value: Any) -> Any:
    """An array as a tensor of its own dtype, as tracing takes it."""
    return tf.constant(value) if isinstance(value, (np.ndarray, np.generic)) else value
