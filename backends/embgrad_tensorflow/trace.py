"""A forward pass, the callback to the objective and the pullback as one graph, which is traced once and run again and again."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.saved_model.function_deserialization import RestoredFunction

from embgrad.backend import NativeObjective, Request
from embgrad.calling import as_parts
from embgrad.drawing import DRAWS, Drawing
from embgrad.interception import Interception
from embgrad.locks import process_lock
from embgrad.outputs import choose_output, name_outputs
from embgrad.tolerance import coarsest
from embgrad_tensorflow.containers import generators_of
from embgrad_tensorflow.escaped import escaping_from
from embgrad_tensorflow.exchange import ask
from embgrad_tensorflow.graphs import Opening, opened
from embgrad_tensorflow.inputs import Plan
from embgrad_tensorflow.modules import Calls, Modules, calls_go_to
from embgrad_tensorflow.returned import tensors_in, unknown_in
from embgrad_tensorflow.state import GENERATORS, Snapshot, in_mode
from embgrad_tensorflow.symbolic import UntraceableError
from embgrad_tensorflow.tap import Taps, dense
from embgrad_tensorflow.tracing import Script, Tracer
from embgrad_tensorflow.walk import Tables, handle_of, on_devices

__all__ = ["Trace", "is_placeholder", "traced"]

# The user's own compiled functions are written out, so that nothing is left in their caches, and all of them is seen.
_function_calls: Final = Interception(lambda: Function, "__call__")

#: What Keras, TensorFlow and terminals put around an error's own text.
WRAPPED: Final = re.compile(r"^(Exception encountered when calling|in user code:|\s*File \")")
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, eq=False)
class Trace:
    """What is kept of a model.

    Attributes:
        function: takes a run's number and the tensors among the arguments; gives the values at the points, then the gradients.
        script: what the forward pass comes by.
        chosen: by the name asked for the key of its point.
        keys: those to read, in order.
        reached: for each whether the objective depends on it.
        outputs: the names of the outputs that the objective reads, with whether it may ask for some rows alone.
        dtypes: those outputs'.
        returned: what the model returned, with the graph's tensors, for a native objective.
        used: which of the tensors in it the native objective depends on; of another objective the numbers of the outputs of
            which it reads one row of each example, so that the pullback begins with these. A trace without any serves for both.
        written: the resources of the variables that a run writes to and that are to be put back.
        compute_dtype: that of the first point, or else the first output; the coarsest where it is turned into others.
        computing: the names of the dtypes in the graph.
    """

    function: Any
    script: Script
    chosen: Mapping[str, str]
    keys: tuple[str, ...]
    reached: tuple[bool, ...]
    outputs: tuple[tuple[str | None, bool], ...]
    dtypes: tuple[Any, ...]
    returned: Any
    used: tuple[int, ...]
    written: tuple[Any, ...]
    compute_dtype: str
    computing: frozenset[str]


def traced(
    model: Any,
    planned: Plan,
    request: Request,
    chosen: Mapping[str, str],
    used: tuple[int, ...] = (),
    *,
    relaxed: bool = True,
) -> Trace:
    """A trace of the model. It does not refer to the model, nor to what of the request may differ from call to call.

    Args:
        model: as in `run`.
        planned: how it is called.
        request: what is asked.
        chosen: by the name of each point asked for its key.
        used: see `Trace.used`.
        relaxed: whether it is to take tensors of any lengths.

    Raises:
        UntraceableError: there is no such trace.
    """
    made = _Tracing(model, planned, request, chosen, used)
    leaves = [one for one in tf.nest.flatten(planned.arguments) if is_placeholder(one)]
    specs = [tf.TensorSpec([None] * one.shape.rank if relaxed else one.shape, one.dtype) for one in leaves]
    try:
        with process_lock, made.as_found(), _drawing_nothing(made.generators):
            number = tf.TensorSpec([], tf.int64)
            function = tf.function(made.body, autograph=False).get_concrete_function(number, *specs)
    except Exception as error:  # the model's own Python, which may do anything that a graph cannot
        raise UntraceableError(_why(error)) from error
    return made.kept(function)


@contextlib.contextmanager
def _drawing_nothing(own: Sequence[Any]) -> Iterator[None]:
    """Refuse what draws from generators of Python's or NumPy's: a trace would hold for good what was drawn."""
    with Drawing(own) as drawing:
        yield
    if drawing.seen:
        raise UntraceableError(DRAWS)


def is_placeholder(value: Any) -> bool:
    """Whether an argument is a tensor that a trace takes; a flag is a part of it."""
    return isinstance(value, tf.Tensor) and not (value.dtype == tf.bool and value.shape.rank == 0)


class _Tracing:
    """One trace in the making. What it comes by is held until it is made, and no longer.

    Attributes:
        generators: the random generators of Python's and NumPy's that the model has of its own, or its program.
    """

    def __init__(
        self, model: Any, planned: Plan, request: Request, chosen: Mapping[str, str], used: tuple[int, ...]
    ) -> None:
        self._model = model
        self._parts = as_parts(model)
        self._planned = planned
        self._request = request
        self._chosen = chosen
        self._used = used
        self._keys = tuple(dict.fromkeys(chosen[name] for name in request.points))
        self._reached: list[bool] = []
        self._seeds: set[int] = set()
        self.generators: Sequence[Any] = ()
        self._facts: dict[str, Any] = {}

    @contextlib.contextmanager
    def as_found(self) -> Iterator[None]:
        """Trace the model in its mode; afterwards it is as it was."""
        call = self._request.call
        snapshot = Snapshot([*self._parts, *([] if call is None else [call])], self._request.training)
        self._seeds = {
            id(handle_of(one))
            for node in snapshot.nodes
            if any(base.__qualname__ in GENERATORS for base in type(node.owner).__mro__)
            for one in on_devices(node.value)
        }
        modules = [node.value for node in snapshot.nodes if node.kind == "module"]
        escaping = escaping_from(self._parts, modules, call)
        self.generators = [*generators_of(modules), *escaping.generators]
        try:
            with in_mode(self._request.training):
                yield
        finally:
            snapshot.restore(())
            escaping.put_back()

    def body(self, number: Any, *tensors: Any) -> list[Any]:
        """What is traced."""
        tape = tf.GradientTape(watch_accessed_variables=False)  # a loop over the sets pulls back once in its body
        taps = _SymbolicTaps(tape, self._request, number)
        script = Script({*self._chosen.values(), *self._request.reached} - {"word"})
        tracer = Tracer(script, Tables(self._parts), taps)
        with tape, self._watched(script, tracer, taps):
            returned = self._planned.invoke(self._with(tensors))
        missing = [key for key in dict.fromkeys(self._chosen.values()) if key not in taps.kept]
        if missing:
            raise UntraceableError(f"the traced pass does not come by {missing[0]!r}")
        self._facts.update(script=script, written=tracer.written)
        marks = [taps.kept[key] for key in self._keys]
        targets, cotangents = self._answered(number, script, returned)
        start = [*marks, *targets, *self._facts["tensors"]][0].dtype
        self._facts["coarsest"] = coarsest(dtype.name for dtype in (start, *tracer.computing))
        return [*marks, *self._pulled(tape, targets, cotangents, marks)]

    def kept(self, function: Any) -> Trace:
        """The trace, of the function that was made."""
        facts = self._facts
        training = self._request.training
        written = {id(one): one for one in facts["written"] if not (training and id(one) in self._seeds)}
        dtypes = {one.dtype for operation in function.graph.get_operations() for one in operation.outputs}
        return Trace(
            function,
            facts["script"],
            dict(self._chosen),
            self._keys,
            tuple(self._reached),
            facts["outputs"],
            tuple(one.dtype for one in facts["targets"]),
            facts["returned"],
            self._used,
            tuple(written.values()),
            facts["coarsest"],
            frozenset(one.name for one in dtypes),
        )

    def _with(self, tensors: Sequence[Any]) -> Any:
        """The arguments, with others in the places of the tensors that the trace takes."""
        given = iter(tensors)
        return tf.nest.map_structure(lambda one: next(given) if is_placeholder(one) else one, self._planned.arguments)

    @contextlib.contextmanager
    def _watched(self, script: Script, tracer: Tracer, taps: Taps) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            if script.modules:
                modules = Modules(self._parts)
                calls = Calls(script, modules, taps.passed, lambda: taps.working, traced=True)
                held.enter_context(calls_go_to(calls.around, modules.classes))
            held.enter_context(opened(Opening(script, taps.passed, tracer.going_on, tracer.ran)))
            held.enter_context(_function_calls.by(_written_out))
            held.enter_context(tracer.watching())
            yield

    def _answered(self, number: Any, script: Script, returned: Any) -> tuple[list[Any], list[Any]]:
        """What is pulled back, and the cotangents, with an axis of sets first where there are several."""
        tensors = tensors_in(returned)
        self._facts.update(tensors=tensors, returned=None, outputs=())
        if isinstance(self._request.respond, NativeObjective):
            unknown = unknown_in(returned)
            if unknown is not None:  # it would be the graph's when the objective reads it
                raise UntraceableError(f"it returns a {unknown.__qualname__}, which is neither a tensor nor plain")
            targets = [tensors[place] for place in self._used]
            self._facts.update(returned=returned, targets=targets)
            dtypes = [one.dtype for one in targets]
            answer = ask(number, "native", [*script.tensors, *tensors], [*dtypes, tf.int32])[:-1]
            return targets, [self._shaped(one, target) for one, target in zip(answer, targets, strict=True)]
        named = name_outputs(returned, lambda value: isinstance(value, tf.Tensor), self._planned.outputs)
        targets = [named[choose_output(named, wanted)] for wanted in self._request.outputs]
        ranks = [one.shape.rank for one in targets]
        by_rows = [rank is None or rank == 3 for rank in ranks]
        self._facts.update(outputs=tuple(zip(self._request.outputs, by_rows, strict=True)), targets=targets)
        if not any(by_rows):
            dtypes = [one.dtype for one in targets]
            answer = ask(number, "whole", [*script.tensors, *targets], [*dtypes, tf.int32])[:-1]
            return targets, [self._shaped(one, target) for one, target in zip(answer, targets, strict=True)]
        return targets, self._by_rows(number, script, targets)

    def _by_rows(self, number: Any, script: Script, targets: Sequence[Any]) -> list[Any]:
        """The cotangents of outputs of which the objective may ask for some rows alone."""
        shapes = [tf.shape(one, out_type=tf.int64) for one in targets]
        places = ask(number, "places", [*script.tensors, *shapes], [tf.bool, tf.int64] * len(targets))
        read, few_of, rows_of = [], places[::2], places[1::2]
        for target, few, rows in zip(targets, few_of, rows_of, strict=True):
            few.set_shape([])
            rows.set_shape([None, 2])
            some = functools.partial(tf.gather_nd, target, rows)
            read.append(tf.cond(few, some, functools.partial(tf.identity, target)))
        answer = ask(number, "respond", read, [one.dtype for one in targets])
        whole = []
        for shape, few, rows, one in zip(shapes, few_of, rows_of, answer, strict=True):
            whole.append(self._of_any(one, few, rows, shape))
        return [self._shaped(one, target) for one, target in zip(whole, targets, strict=True)]

    def _of_any(self, one: Any, few: Any, rows: Any, shape: Any) -> Any:
        """The cotangents of an output, of those of some rows or of all."""
        sets = tf.shape(one, out_type=tf.int64)[:1]

        def scattered() -> Any:
            def alone(cotangent: Any) -> Any:
                return tf.scatter_nd(rows, cotangent, shape)

            if not self._request.several:
                return alone(one[0])[None]
            return tf.map_fn(alone, one, fn_output_signature=one.dtype)

        return tf.cond(few, scattered, lambda: tf.reshape(one, tf.concat([sets, shape], 0)))

    def _shaped(self, cotangents: Any, target: Any) -> Any:
        """Sets of cotangents, with the shape that is known of them."""
        if target.shape.rank is not None:
            cotangents.set_shape([None, *target.shape])
        return cotangents

    def _pulled(self, tape: Any, targets: Sequence[Any], cotangents: Sequence[Any], marks: Sequence[Any]) -> list[Any]:
        """The gradients at the points that the objective depends on; with an axis of sets first where there are several."""

        def pull_back(given: Sequence[Any]) -> list[Any]:
            pulled = (
                tape.gradient(list(targets), list(marks), output_gradients=list(given)) if marks and targets else []
            )
            self._reached[:] = [one is not None for one in pulled] or [False] * len(marks)
            return [dense(one) for one in pulled if one is not None]

        if not self._request.several:
            return pull_back([one[0] for one in cotangents])
        if not targets or not marks:
            return pull_back([])

        def one_set(given: Sequence[Any]) -> list[Any]:
            found = iter(pull_back(given))
            return [
                next(found) if reached else tf.zeros_like(mark)
                for mark, reached in zip(marks, self._reached, strict=True)
            ]

        stacked = tf.map_fn(
            one_set, list(cotangents), fn_output_signature=[one.dtype for one in marks], parallel_iterations=1
        )
        return [one for one, reached in zip(stacked, self._reached, strict=True) if reached]


class _SymbolicTaps(Taps):
    """The points of a pass that is traced: what changes a value or a gradient is asked for when the trace is run."""

    def __init__(self, tape: Any, request: Request, number: Any) -> None:
        super().__init__(tape, request)
        self._number = number

    def found(self, key: str, rows: Any) -> bool:
        """See `Taps.found`."""
        if pywrap_tfe.TFE_Py_TapeSetIsStopped():
            raise UntraceableError(f"the lookup {key!r} lies in a part of the model that is run again in the pullback")
        return super().found(key, rows)

    def changed(self, option: str, key: str, tensor: Any) -> Any:
        """See `Taps.changed`."""
        return self._asked(f"{option} {key}", tensor, tensor)

    def edited(self, key: str, gradient: Any, mark: Any) -> Any:
        """See `Taps.edited`."""
        return self._asked(f"edit {key}", gradient, mark)

    def _asked(self, name: str, tensor: Any, like: Any) -> Any:
        (changed,) = ask(self._number, name, [tensor], [like.dtype])
        changed.set_shape(like.shape)
        return changed


def _written_out(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of a call of a `tf.function` while a graph is traced: its Python, as TensorFlow would have traced it."""
    if tf.executing_eagerly() or isinstance(function, RestoredFunction):
        return original(function, *args, **kwargs)
    if not function._autograph:
        return function._python_function(*args, **kwargs)
    python = autograph_util.py_func_from_autograph(function._python_function, function._experimental_autograph_options)
    with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.UNSPECIFIED):
        return python(*args, **kwargs)


def _why(error: BaseException) -> str:
    """Why a model could not be traced. Keras wraps what is raised in a layer, and its text."""
    ours: BaseException | None = None
    now: BaseException | None = error
    while now is not None:
        ours = now if isinstance(now, UntraceableError) else ours
        now = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
    if ours is not None:
        return str(ours)
    lines = [line for line in COLOURS.sub("", str(error)).splitlines() if line.strip() and not WRAPPED.search(line)]
    said = lines[0].strip() if lines else ""
    said = said if len(said) <= 160 else f"{said[:159]}…"
    return f"the model's Python cannot be traced into a graph ({type(error).__name__}: {said})"
