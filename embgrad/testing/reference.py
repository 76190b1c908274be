"""The backend for models in NumPy, with hand-written pullbacks: the oracle, and the shortest example of a backend."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.cotangents import Cotangents, compute_dtype
from embgrad.backend.model_pass import ModelPass, Pullback
from embgrad.backend.parameters import ParameterValues, TableRest, table_rests
from embgrad.backend.point_changes import PointChanges, additions
from embgrad.backend.protocol import Call, Listener, PassListener, Perturber, Request, Run, Weight
from embgrad.common.arrays import copy_owned
from embgrad.common.pytree import copy_nest
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.descent import Reached
from embgrad.model_points.points import UNNAMED_TABLE
from embgrad.model_points.recorder import PassRecorder
from embgrad.testing.tensors import ReferenceModel, Tensor, hearing, lookup, observing, pull_back
from embgrad.toolkit.arguments import integer_arguments, named_arguments
from embgrad.toolkit.locks import model_lock
from embgrad.toolkit.module_calls import ModuleCalls, RecordedCall, call_recorded
from embgrad.toolkit.object_state import ObjectState
from embgrad.toolkit.signature import as_parts, expect_single, parameters_of, plan_call

__all__ = ["ReferenceBackend", "ReferenceModel", "Tensor", "lookup", "pull_back"]


class _Observer:
    """The observer of a forward pass, which applies the requested changes and records the points.

    Attributes:
        kept: for each point's key the tensor at which its gradient is taken, and the tensor with which the model continued.
        before: the gradients before an `edit` in the last pullback, by key.
        tables: the tables of the lookups by key.
        listening: whether it is a user's pass, in which no table may be detached.
        perturbing: whether it is a user's pass that is changed, so that observers of the same pass come after it.
    """

    def __init__(
        self,
        parts: Sequence[ReferenceModel],
        watch: PassRecorder,
        request: Request,
        *,
        listening: bool = False,
        perturbing: bool = False,
        outer: _Observer | None = None,
    ) -> None:
        self.watch = watch
        self.kept: dict[str, tuple[Tensor, Tensor]] = {}
        self.before: dict[str, np.ndarray | None] = {}
        self.tables: dict[str, Tensor] = {}
        self._changes = PointChanges(
            request,
            lambda tensor: np.array(tensor.value),
            lambda array, like: Tensor(np.asarray(array, like.value.dtype)),
            _run_unobserved,
        )
        self._calls = ModuleCalls(watch, lambda value: isinstance(value, Tensor), self._tap)
        self.listening = listening
        self.perturbing = perturbing
        self._outer = outer
        self._prefixes = {id(part): prefix for prefix, part in _number(parts)}
        self._paths = {id(table): name for name, table in _parameters(parts).items()}

    def at_lookup(self, table: Tensor, indices: np.ndarray, compute: Callable[[], Tensor]) -> Tensor:
        """Return the rows with which the pass continues, detached from the table if they are a requested point."""
        keys = [observer.see(table, indices) for observer in self._of_this_pass()]
        rows = compute()
        for observer, key in zip(self._of_this_pass(), keys, strict=True):
            rows = observer.continue_with(key, table, rows)
        return rows

    def see(self, table: Tensor, indices: np.ndarray) -> str | None:
        """Record a lookup, and return its key if it may be a requested point."""
        return self.watch.see(self._paths.get(id(table), UNNAMED_TABLE), indices, *table.value.shape)

    def continue_with(self, key: str | None, table: Tensor, rows: Tensor) -> Tensor:
        """Return the rows of the last lookup with which the pass continues."""
        self.watch.record_output(rows)
        if key is None:
            return rows
        self.tables[key] = table
        new = self._tap(key, rows if self.listening or table.sources else rows.detach())
        self.watch.replace_tensor(rows, new)
        return new

    def table_names(self) -> dict[str, list[str]]:
        """Return the names of the tables by the keys of their lookups, for tables that are parameters."""
        names = {key: self._paths.get(id(table)) for key, table in self.tables.items()}
        return {key: [name] for key, name in names.items() if name is not None}

    def at_module(self, model: ReferenceModel, path: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call a module, and return the output with which the pass continues."""
        records = [
            RecordedCall(observer._calls, observer._prefixes.get(id(model), "") + path)
            for observer in self._of_this_pass()
        ]
        return call_recorded(records, function, function.__name__, args, {})

    def _of_this_pass(self) -> list[_Observer]:
        """Return the observers of the same pass: those that change it, then the others, in the order in which they began."""
        chain = [self]
        while chain[0]._outer is not None:
            chain.insert(0, chain[0]._outer)
        return sorted(chain, key=lambda observer: not observer.perturbing)

    def _tap(self, key: str, tensor: Tensor) -> Tensor:
        """Return the tensor with which the pass continues, with all changes at its point applied."""
        value = self._changes.value(key, tensor)
        mark = Tensor(value.value, [(value, lambda g: g)])
        self.kept[key] = (mark, mark)
        if not self._changes.edits(key):
            return mark

        def back(g: np.ndarray) -> np.ndarray:
            gradient = self._changes.gradient(key, Tensor(g)).value
            self.before[key] = self._changes.before[key]
            return gradient

        return Tensor(mark.value, [(mark, back)])


class ReferencePass(ModelPass):
    """A forward pass of a `ReferenceModel`, see `ModelPass`."""

    def prepare(self) -> contextlib.AbstractContextManager[None]:
        """Set the mode, and hold the locks."""
        return _running(self.model, self.request.training)

    def call(self) -> Any:
        """Call the model under an observer."""
        parts, call = as_parts(self.model), self.request.call
        self.tensors = ReferenceTensors()
        self._observer = _Observer(parts, self.recorder, self.request)
        self._parameters = _parameters(parts)
        with _observe(self._observer):
            if call is not None:
                return call(self.model, copy_nest(self.batch.inputs()))
            expect_single(self.model)
            plan = plan_call(parameters_of(self.model.forward)[1:], self.batch)
            self.unused = plan.unused
            return self.model(*copy_nest(plan.args), **copy_nest(dict(plan.kwargs)))

    def activations(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values at points."""
        return {key: self._observer.kept[key][1].value.copy() for key in keys}

    def pull_back(self, cotangents: Cotangents, keys: Sequence[str]) -> Pullback:
        """Pull one set of cotangents back to the points, and to the parameters where a request needs them."""
        wanted = self._parameters if self.request.parameters or self.request.tables else {}
        self._observer.before = {}
        gradients = pull_back(cotangents, [*(self._observer.kept[key][0] for key in keys), *wanted.values()])
        copies = [None if gradient is None else np.array(gradient) for gradient in gradients]
        at_points = dict(zip(keys, copies, strict=False))
        return Pullback(at_points, self._observer.before, dict(zip(wanted, copies[len(keys) :], strict=True)))

    def compute_dtype(self, keys: Sequence[str], outputs: Sequence[Any], returned: Any) -> str:
        """Return the coarsest dtype of the points and the outputs that were read."""
        read = [*(self._observer.kept[key][0] for key in keys), *outputs]
        return compute_dtype(_dtypes(read), _dtypes(self._parameters.values()))

    def parameters(self, gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, ParameterValues] | None:
        """Return the gradients of the parameters."""
        if not self.request.parameters:
            return None
        return {
            name: ParameterValues(parameter.shape, gradients[name], str(parameter.value.dtype))
            for name, parameter in self._parameters.items()
        }

    def rests(self, keys: Sequence[str], gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, TableRest] | None:
        """Return the gradients that reach the tables of lookups in other ways."""
        return table_rests(self._observer.table_names(), gradients) if self.request.tables else None


class ReferenceBackend:
    """The backend for `ReferenceModel`: the oracle of the core tests, which need no framework."""

    name: Final = "reference"
    package: Final = "numpy"
    extra: Final = None
    supports: Final = frozenset(
        {
            "word",
            "training",
            "split",
            "native",
            "float64",
            "modules",
            "override",
            "add",
            "edit",
            "parameters",
            "tables",
            "capture",
            "perturb",
            "weights",
        }
    )

    def owns(self, part: object) -> bool:
        """Return whether an object is a ReferenceModel."""
        return isinstance(part, ReferenceModel)

    def versions(self) -> Mapping[str, str]:
        """Return NumPy's version."""
        return {"numpy": np.__version__}

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Reached:
        """Return the points that a forward pass reaches."""
        return ReferencePass(model, batch, Request(call=call), PassRecorder(batch, None)).points()

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass, and a pullback for each set of cotangents."""
        return ReferencePass(model, batch, request).run()

    def weights(self, model: Any) -> Sequence[Weight]:
        """Return the parameters as weights; each belongs to the module whose path its name begins with."""
        return [
            _weight(prefix, part, name, parameter)
            for prefix, part, name, parameter in _unique_parameters(as_parts(model))
        ]

    def alone(self, model: Any) -> contextlib.AbstractContextManager[None]:
        """Prevent other threads from running the model while the context is open."""
        return model_lock(as_parts(model))

    def paths(self, model: Any) -> Collection[str]:
        """Return the paths of the parameters and of the modules."""
        parts = as_parts(model)
        modules = [prefix + path for prefix, part in _number(parts) for path in part.modules]
        return [*_parameters(parts), *modules]

    @contextlib.contextmanager
    def capture(self, model: Any, listener: Listener) -> Iterator[None]:
        """Report calls of the model and pullbacks in this thread to the listener while the context is open."""
        marks: WeakKeyDictionary[Tensor, tuple[Any, str]] = WeakKeyDictionary()

        def hear(gradients: Mapping[int, np.ndarray]) -> None:
            reached = [(*passed, gradients[id(mark)].copy()) for mark, passed in marks.items() if id(mark) in gradients]
            if reached:
                listener.step(reached)

        def ended(observer: _Observer, passed: Any) -> None:
            marks.update({mark: (passed, key) for key, (mark, _) in observer.kept.items()})

        token = hearing.set((*hearing.get(), hear))
        try:
            with self._user_passes(model, listener, partial(_Observer, [model], request=Request()), ended):
                yield
        finally:
            hearing.reset(token)

    def perturb(self, model: Any, perturber: Perturber) -> contextlib.AbstractContextManager[None]:
        """Add what the perturber returns to values in this thread's calls of the model while the context is open."""

        def observer(watch: PassRecorder, **options: Any) -> _Observer:
            return _Observer([model], watch, additions(perturber, watch), perturbing=True, **options)

        return self._user_passes(model, perturber, observer, lambda observer, passed: None)

    @contextlib.contextmanager
    def _user_passes(
        self,
        model: Any,
        listener: PassListener,
        observer_of: Callable[..., _Observer],
        ended: Callable[[_Observer, Any], None],
    ) -> Iterator[None]:
        """Observe this thread's calls of the model while the context is open, and call `ended` after each."""
        inside: list[ReferenceModel] = []
        thread = threading.get_ident()

        def around(part: ReferenceModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            def proceed() -> Any:
                return part.forward(part, *args, **kwargs) if before is None else before(part, args, kwargs)

            outer = observing.get()
            # The pass is embgrad's, or the model calls itself.
            if isinstance(outer, _Observer) and (not outer.listening or inside):
                return part.forward(part, *args, **kwargs)
            if threading.get_ident() != thread:
                return proceed()
            arguments = named_arguments(parameters_of(part.forward)[1:], args, kwargs)
            integers = integer_arguments(arguments or {}, _whole_numbers)

            def discover(batch: TokenBatch) -> Reached:
                def call(*_: Any) -> Any:
                    return part.forward(part, *args, **kwargs)

                reached = self.points(model, batch, call)
                return reached.repeat_by(
                    lambda request: self.run(model, batch, replace(request, call=call)), (args, kwargs)
                )

            watch = listener.begin(integers, discover)
            others = outer if isinstance(outer, _Observer) else None
            observer = observer_of(watch=watch, listening=True, outer=others)
            inside.append(part)
            try:
                with _observe(observer):
                    returned = proceed()
            finally:
                inside.pop()
            values = {key: tensor.value.copy() for key, (_, tensor) in observer.kept.items()}
            dtype = next((str(tensor.dtype) for tensor in values.values()), "float64")
            ended(observer, listener.end(watch, values, dtype))
            return returned

        def report_outside(path: str) -> None:
            if threading.get_ident() == thread:
                listener.outside(path)

        before, model.around = model.around, around
        outside, model.outside = model.outside, report_outside
        try:
            yield
        finally:
            model.around, model.outside = before, outside


def _number(parts: Sequence[ReferenceModel]) -> list[tuple[str, ReferenceModel]]:
    return [(f"{number}." if len(parts) > 1 else "", part) for number, part in enumerate(parts)]


def _parameters(parts: Sequence[ReferenceModel]) -> dict[str, Tensor]:
    """Return the parameters of all parts by path."""
    return {prefix + name: value for prefix, part in _number(parts) for name, value in part.parameters.items()}


def _unique_parameters(parts: Sequence[ReferenceModel]) -> Iterator[tuple[str, ReferenceModel, str, Tensor]]:
    """Yield the parameters, each once, with the part that holds it."""
    seen: set[int] = set()
    for prefix, part in _number(parts):
        for name, parameter in part.parameters.items():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield prefix, part, name, parameter


def _weight(prefix: str, part: ReferenceModel, name: str, parameter: Tensor) -> Weight:
    def put(value: np.ndarray) -> None:
        parameter.value = np.array(value, parameter.value.dtype)  # a new array: the old one may be the caller's

    owner = max((path for path in part.modules if name.startswith(f"{path}.")), key=len, default="")
    path = (prefix + owner).removesuffix(".")
    dtype = str(parameter.value.dtype)
    return Weight(
        prefix + name,
        path,
        parameter.shape,
        dtype,
        lambda: copy_owned(parameter.value),
        lambda indices: copy_owned(parameter.value[indices]),
        put,
    )


def _dtypes(tensors: Iterable[Tensor]) -> list[str]:
    return [str(tensor.value.dtype) for tensor in tensors]


@contextlib.contextmanager
def _running(model: Any, training: bool) -> Iterator[None]:
    """Set the mode for one pass, and restore it and all other attributes afterwards."""
    parts = as_parts(model)
    with model_lock(parts):
        state = ObjectState(
            map(vars, parts), skip={"modules", "parameters"}
        )  # a model may build itself in its first call
        try:
            for part in parts:
                part.training = training
            yield
        finally:
            state.restore()


def _run_unobserved() -> contextlib.AbstractContextManager[None]:
    """Let a function of the user's run unobserved while the context is open; it may call the model."""
    return _observe(_Observer([], PassRecorder(TokenBatch([[0]]), ()), Request()))


@contextlib.contextmanager
def _observe(observer: _Observer) -> Iterator[None]:
    token = observing.set(observer)
    try:
        yield
    finally:
        observing.reset(token)


class ReferenceTensors:
    """Access to the reference backend's tensors, see `embgrad.backend.cotangents.Tensors`."""

    kind = "a Tensor"
    scalars: tuple[tuple[int, ...], ...] = ((),)

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is a Tensor."""
        return isinstance(value, Tensor)

    def dtype(self, tensor: Tensor) -> str:
        """Return the dtype's name."""
        return str(tensor.value.dtype)

    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        """Return a copy of the values."""
        return np.array(tensor.value)

    def rows(self, tensor: Tensor, examples: np.ndarray, positions: np.ndarray) -> Tensor:
        """Return the selected rows; their gradients flow back to the tensor."""

        def back(g: np.ndarray) -> np.ndarray:
            whole = np.zeros_like(tensor.value)
            np.add.at(whole, (examples, positions), g)
            return whole

        return Tensor(tensor.value[examples, positions], [(tensor, back)])


def _whole_numbers(_name: str, value: object) -> np.ndarray | None:
    return value.copy() if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else None
