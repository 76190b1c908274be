"""The protocol of a backend, which supplies values and pullbacks at named points of a forward pass, as NumPy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.parameters import ParameterValues, TableRest
from embgrad.backend.prefix import Prefix
from embgrad.backend.responses import Respond, Response
from embgrad.errors import UnsupportedError, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import Lookup, Point
from embgrad.model_points.recorder import PassRecorder
from embgrad.objectives.native import NativeObjective

__all__ = ["ABILITIES", "Backend", "BoundModel", "Call", "CannotRecordError", "Change", "FixedChange", "Listener"]
__all__ += [
    "NativeObjective",
    "PassListener",
    "Perturber",
    "Point",
    "PointValues",
    "Reduce",
    "Request",
    "Run",
    "Weight",
]

T = TypeVar("T")

#: The user's way to call the model: `call(model, inputs) -> outputs`. `inputs` is the result of `TokenBatch.inputs` with native
#: tensors in place of arrays: a dict, a tuple, or for bare ids a single tensor.
Call = Callable[[Any, Any], Any]

#: Takes a point's key, the gradient there and the value there, both with the axes as the framework has them; returns an array.
Reduce = Callable[[str, np.ndarray, np.ndarray], np.ndarray]

#: Takes a copy of a tensor's values, and returns new values of the same shape.
Change = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class FixedChange:
    """A change that is the same at each call, such as one by an array, so that its results need not be recorded."""

    function: Change

    def __call__(self, value: np.ndarray) -> np.ndarray:
        """Return the function's result."""
        return self.function(value)


#: The abilities that a backend may have, with their meanings.
ABILITIES: Final[Mapping[str, str]] = {
    "word": "reads values and gradients at lookups, values alone with `values_only`; every backend does",
    "training": "runs the model in training mode, `Request.training`",
    "split": "pulls back several sets of cotangents through one forward pass, `Request.several` and several objectives",
    "native": "takes a user's function of native outputs as an objective, `NativeObjective`",
    "float64": "computes in float64 if the model's weights are float64",
    "load_bert": "has `bert` and `bert_targets`, for `embgrad.zoo.load_bert`",
    "modules": "reads values and gradients at the inputs and outputs of modules, and finds roles there",
    "override": "replaces a point's values, `Request.override`",
    "add": "adds to a point's values, `Request.add`",
    "edit": "changes gradients during the backward pass, `Request.edit`",
    "parameters": "returns the gradient of every trainable parameter, `Request.parameters`",
    "tables": "returns the gradient that reaches a lookup's table by other ways, `Request.tables`",
    "capture": "has `capture`, for the user's training loop",
    "perturb": "has `perturb`, which adds to values in the user's training loop",
    "weights": "has `weights` and `alone`, so that weights can be read and temporarily replaced",
    "compile": "keeps a trace of the model, `Request.compiled`",
}


@dataclass(frozen=True)
class Request:
    """A request for a forward and backward pass, in names and NumPy.

    A point is named "word", for the only lookup of the batch's ids, or by its key, see `Point.key`. At one point `override`
    is applied first, then `add`.

    Attributes:
        points: the points to read.
        objectives: the objectives of this forward pass, in order: each in NumPy, or a native objective, a user's function of
            native outputs. Their sets of cotangents are pulled back in turn, and each is called when its turn comes, so that the
            memory does not grow with their number.
        training: run the model in training mode; otherwise in evaluation mode.
        several: pull back several sets of cotangents for an objective: those that it returns, or with a native objective one for
            each example.
        call: calls the model in place of the backend's default, see `Call`.
        override: functions by key that return the value to replace a point's value with. No gradient flows further back; the
            point's gradient is taken at the new value.
        add: functions by key that return an array to add to a point's value. The gradient flows on.
        edit: functions by key that return the gradient to replace a point's gradient with; the new gradient flows on.
        parameters: return the gradient of every trainable parameter; `points` is then empty.
        tables: return for each lookup in `points` the gradient that reaches its table by other ways, see `TableRest`.
        compiled: with True the model's code does not change from call to call, so that a trace may be kept and run in place of
            the model. The trace contains nothing of the objectives or the changes. If no trace can be made the model runs
            without one, and `Run.uncompiled` states the reason. With None only a model that is already a graph runs as a graph.
            With False nothing runs as a graph, so that a check computes the numbers in a different way.
        times: if the points were found by another pass, the number of times that pass reached each of them, by the paths of the
            lookups' tables and by the paths of modules followed by a colon. If the counts of this pass differ, the points may be
            different ones, and `PassRecorder.resolve` raises. None to count nothing.
        order: with `times`, the paths of the modules in the order in which that pass called them. If this pass called them in
            another order, `PassRecorder.resolve` raises. None to compare no order.
        record: record every point of the pass, so that `Run.reached` can be returned. The points to read are then those that may
            turn out to be wanted: the pass need not reach them, and `Run.points` has those that it reached by their keys, see
            `PassRecorder.resolve`. A backend that cannot do both in one pass raises `CannotRecordError`.
        pullback: with False no gradient is requested, and the forward pass need not be recorded: the objectives return no set of
            cotangents, and that of a native objective is not pulled back.
        reduce: applied to the gradient at each point after each pullback, see `reduce_gradients`, so that only what it returns
            is kept; None keeps gradients as they are. It is called again where a pass is repeated.
    """

    points: tuple[str, ...] = ()
    objectives: tuple[Respond | NativeObjective, ...] = ()
    training: bool = False
    several: bool = False
    call: Call | None = None
    override: Mapping[str, Change] = field(default_factory=dict)
    add: Mapping[str, Change] = field(default_factory=dict)
    edit: Mapping[str, Change] = field(default_factory=dict)
    parameters: bool = False
    tables: bool = False
    compiled: bool | None = None
    times: Mapping[str, int] | None = None
    order: Sequence[str] | None = None
    record: bool = False
    pullback: bool = True
    reduce: Reduce | None = None

    @property
    def repeats(self) -> bool:
        """Return whether there may be several pullbacks, so that the graph must outlive the first."""
        return self.several or len(self.objectives) > 1

    @property
    def has_changes(self) -> bool:
        """Return whether a value or a gradient is changed at a point."""
        return bool(self.override or self.add or self.edit)

    @property
    def has_functions(self) -> bool:
        """Return whether a value or a gradient is changed by a function, which may give something else at each call."""
        changes = (*self.override.values(), *self.add.values(), *self.edit.values())
        return not all(isinstance(change, FixedChange) for change in changes)

    @property
    def has_native(self) -> bool:
        """Return whether any of the objectives is a user's function of native outputs."""
        return any(isinstance(objective, NativeObjective) for objective in self.objectives)

    def reduce_gradients(
        self, gradients: Mapping[str, np.ndarray | None], values: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray | None]:
        """Return the arrays that are kept of the gradients of one set of cotangents, by the points' keys.

        Args:
            gradients: the gradients by key; None where no path of the graph leads to the point.
            values: the values at the points by key.
        """
        if self.reduce is None:
            return gradients
        return {
            key: None if gradient is None else self.reduce(key, gradient, values[key])
            for key, gradient in gradients.items()
            if key in values
        }

    def recorder(self, batch: TokenBatch) -> PassRecorder:
        """Return a new record of a forward pass on a batch with this request."""
        return PassRecorder(batch, self.reached, self.times, order=self.order, record=self.record)

    def keys_to_read(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """Return the keys of the points to read by their names, of those that `PassRecorder.resolve` has returned."""
        return dict(chosen) if self.record else {name: chosen[name] for name in self.points}

    @property
    def reached(self) -> tuple[str, ...]:
        """The points that the forward pass must reach: the points to read, and those with a change."""
        return tuple(dict.fromkeys((*self.points, *self.override, *self.add, *self.edit)))


@dataclass(frozen=True)
class Weight:
    """A floating-point parameter or buffer, trainable or not.

    Attributes:
        name: its name in the framework's spelling, as in `parameter_gradients`.
        module: the attribute path of the module that owns it, as `embgrad.points` spells it; "" for the model itself, and if
            no module is known to own it.
        shape: its shape.
        dtype: its dtype, such as "float32" or "bfloat16".
        get: returns a copy of its values as float32, or as float64 if its dtype is float64.
        rows: takes indices along its first axis, whole numbers of shape (n,) with n of at least 1, and returns a copy of those
            entries, in the dtype of `get`; no others are converted to NumPy.
        put: writes values of that shape into it, cast to its dtype; the parameter stays the same object, on its device, with its
            gradient buffer.
        canonical: in a BERT's encoder the name of the corresponding checkpoint weight, as `load_bert` reads it; else None.
        transposed: whether it is the transpose of the checkpoint weight.
        path: its attribute path, by which products with it are points, if its name is another and its owner is no layer of a
            library; else None.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    get: Callable[[], np.ndarray] = field(repr=False)
    rows: Callable[[np.ndarray], np.ndarray] = field(repr=False)
    put: Callable[[np.ndarray], None] = field(repr=False)
    canonical: str | None = None
    transposed: bool = False
    path: str | None = None

    @property
    def is_matrix(self) -> bool:
        """Return whether it has two axes or more."""
        return len(self.shape) > 1


@dataclass(frozen=True)
class PointValues:
    """The values read at one point, with the axes as the framework has them.

    Attributes:
        activation: the value with which the model continued.
        gradients: its gradient for each set of cotangents, after any `edit`, or what `Request.reduce` returned for it; None if no
            gradient from the objective reaches the point.
        lookup: the lookup at the point; None at a module.
        before: the gradient before the `edit` for each set of cotangents; empty if there was no `edit`.
        rest: with `Request.tables` at a lookup, the gradient that reaches its table by other ways.
    """

    activation: np.ndarray
    gradients: tuple[np.ndarray | None, ...]
    lookup: Lookup | None
    before: tuple[np.ndarray | None, ...] = ()
    rest: TableRest | None = None


@dataclass(frozen=True)
class Run:
    """The result of a forward and backward pass.

    Attributes:
        points: the values by the names under which the points were requested.
        compute_dtype: the dtype in which the model computed, such as "float32" or "bfloat16": see
            `embgrad.backend.cotangents.compute_dtype`.
        unused: the names of the parts of the batch that the model could not take: "mask", "types" or names of extras.
        objectives: the responses of the objectives, without cotangents.
        parameters: with `Request.parameters` the gradients by name, in the model's order; else None.
        uncompiled: the reason why no kept trace was run although `Request.compiled` was True; else None.
        masked_id: the id that a model without a mask argument masks by itself, as under Keras's `mask_zero`; "mask" is then in
            `unused` only if the two masks differ. None if the model makes no mask.
        lookups: all lookups that the pass made, in order; None where the backend does not return them.
        reached: with `Request.record` all points that the pass reached, as `Backend.points` returns them; else None.
    """

    points: Mapping[str, PointValues]
    compute_dtype: str
    unused: tuple[str, ...] = ()
    objectives: Sequence[Response] = ()
    parameters: Mapping[str, ParameterValues] | None = None
    uncompiled: str | None = None
    masked_id: int | None = None
    lookups: Sequence[Lookup] | None = None
    reached: Sequence[Point] | None = None


class CannotRecordError(Exception):
    """Internal: a pass with this request cannot record every point, see `Request.record`; list the points by `Backend.points`."""


class PassListener(Protocol):
    """A listener to the user's own forward passes: a `Listener` or a `Perturber`."""

    def begin(self, arguments: Mapping[str, Any], discover: Callable[[TokenBatch], Sequence[Point]]) -> PassRecorder:
        """Begin a forward pass of the model, and return the watch that records it.

        Args:
            arguments: the integer tensors among the arguments of the call, in NumPy, by the names of the parameters.
            discover: runs the same forward pass once in advance, without recording gradients, and returns the points that it
                reached; its batch holds the ids.
        """
        ...

    def end(self, watch: PassRecorder, values: Mapping[str, np.ndarray], compute_dtype: str) -> Any:
        """End a forward pass, and return an object that identifies it, which the backend keeps no longer than the pass's graph.

        Args:
            watch: the watch that recorded the pass.
            values: the recorded values at the points, by key.
            compute_dtype: the dtype in which the model computed at the first of these points, see `Run`.

        Raises:
            PointError: a requested point was not reached, or is ambiguous.
        """
        ...

    def outside(self, path: str) -> None:
        """Note that a module was called with gradients outside any call of the model, such as by code that bypasses a wrapper."""
        ...


class Listener(PassListener, Protocol):
    """A listener to the user's own forward and backward passes, see `Backend.capture`."""

    def step(self, gradients: Sequence[tuple[Any, str, np.ndarray]]) -> None:
        """Take the gradients of a backward pass.

        Args:
            gradients: for each point reached the object that `end` returned for its forward pass, the point's key, and the
                gradient.
        """
        ...


class Perturber(PassListener, Protocol):
    """A listener to the user's own forward passes that adds to values at points, see `Backend.perturb`."""

    def addition(self, watch: PassRecorder, key: str, value: np.ndarray) -> np.ndarray:
        """Return the array to add at a point, of the value's shape; called at each point that the watch requests.

        Args:
            watch: the watch that records the pass.
            key: the point's key.
            value: a copy of the values there, with the axes as the framework has them.

        Raises:
            PointError: the user's array does not fit.
        """
        ...


@runtime_checkable
class Backend(Protocol):
    """The backend of a framework. An entry point names a class of this shape, which is instantiated without arguments.

    The module of the class imports the framework only inside the functions that need it. Code that backends share can be
    imported from `embgrad.backend`.

    Attributes:
        name: the name by which users select the backend.
        package: the framework's import name, such as "torch".
        extra: the extra of embgrad that installs the framework, or None if there is none.
        supports: the abilities that it has, of `ABILITIES`; requesting another one raises UnsupportedError.

    A backend may also have a mapping `instead`, from an absent ability to the end of the error's message, which says what to do;
    an attribute `values_only`, which is True where the framework computes no gradients, so that requests with a pullback are
    refused; a method `load(path)`, which returns the model in a file of the framework's own format;
    a method `device_meter(model)` that returns an `embgrad.common.memory_meter.MemoryMeter` of the model's device, or None
    for a model on the CPU, or raises UnsupportedError where that memory cannot be measured; a method `prefix(model)` that
    returns an empty `embgrad.backend.prefix.Prefix`, or None for a model that keeps nothing of a text; a method
    `generates(model)` that returns whether the model's own `generate` is called with NumPy outside of a pass; and a method
    `owns_part(part)`, which is asked in place of `owns` about the parts of a sequence, where some objects are a model only
    together, such as a function and its parameters.
    """

    name: str
    package: str
    extra: str | None
    supports: frozenset[str]

    def owns(self, part: object) -> bool:
        """Return whether an object is a model of this framework, judged by its type, without importing the framework."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the framework and of related libraries, for the provenance."""
        ...

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """Return the points that a forward pass on the batch in evaluation mode reaches, see `PassRecorder.points`.

        The pass takes the same path through the model as that of `run`, even if the path depends on whether gradients are taken.
        """
        ...

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass and a pullback for each set of cotangents; restore the model afterwards, even after an error.

        Returned arrays own their memory and are never views of the framework's.
        """
        ...

    def paths(self, model: Any) -> Collection[str]:
        """Return the attribute paths of the model's modules and tables, and other names by which points can be named."""
        ...

    def capture(self, model: Any, listener: Listener) -> AbstractContextManager[None]:
        """Report the user's passes through the model in this thread to the listener while the context is open.

        The passes compute the same numbers as without it, bit for bit. A backend without the ability "capture" need not have this
        method.
        """
        ...

    def perturb(self, model: Any, perturber: Perturber) -> AbstractContextManager[None]:
        """Add to values in the user's passes through the model in this thread while the context is open.

        The additions are constants, cast to the dtype of the values; everything else is computed as without them, and gradients
        flow on. What `capture` reports at a point is what goes on, whichever context was opened first. The values given to `end`
        may be missing. A backend without the ability "perturb" need not have this method.
        """
        ...

    def weights(self, model: Any) -> Sequence[Weight]:
        """Return the floating-point parameters and buffers that have values, shared ones once, in the model's order.

        A backend without the ability "weights" need not have this method.
        """
        ...

    def alone(self, model: Any) -> AbstractContextManager[None]:
        """Hold a model's locks as `points` and `run` do, so that no other thread's run sees changes made in this context.

        A backend without the ability "weights" need not have this method.
        """
        ...


@dataclass(frozen=True)
class BoundModel:
    """A model, ready to be run on batches.

    Attributes:
        call: the user's function that calls the model, `call(model, inputs) -> outputs`; None for the backend's own way.
    """

    backend: Backend
    model: Any
    call: Call | None = None

    def points(self, batch: TokenBatch) -> list[Point]:
        """Return the points that a forward pass in evaluation mode reaches, in order."""
        reached = self.backend.points(self.model, batch, self.call)
        return reached if isinstance(reached, list) else list(reached)

    def run(self, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass, and the pullbacks that the request asks for."""
        return self.backend.run(self.model, batch, request)

    def memory_of(self, memory: WeakKeyDictionary[Any, dict[Hashable, T]]) -> dict[Hashable, T] | None:
        """Return the dict of this model in a memory by model; None for several parts, and for a model without weak references."""
        try:
            return None if isinstance(self.model, (list, tuple)) else memory.setdefault(self.model, {})
        except TypeError:
            return None

    def prefix(self) -> Prefix | None:
        """Return what is to keep a text's keys and values; None where the model takes none, or the user calls it."""
        of_backend = getattr(self.backend, "prefix", None)
        if of_backend is None or self.call is not None or isinstance(self.model, (list, tuple)):
            return None
        kept: Prefix | None = of_backend(self.model)
        return kept

    def accepts(self, batch: TokenBatch) -> bool:
        """Return whether a forward pass on the batch raises no exception."""
        try:
            self.points(batch)
        except Exception:  # the framework's own, about shapes that do not fit together
            return False
        return True

    def supports(self, *abilities: str) -> bool:
        """Return whether the backend has all of these abilities."""
        return all(ability in self.backend.supports for ability in abilities)

    @property
    def has_gradients(self) -> bool:
        """Return whether the backend computes gradients, and not values alone."""
        return not getattr(self.backend, "values_only", False)

    def expect_gradients(self) -> None:
        """Raise UnsupportedError where the backend computes values only."""
        if not self.has_gradients:
            raise UnsupportedError(
                f"the backend {self.backend.name!r} computes values only, and no gradients: use embgrad.evaluate, or take the "
                "gradient of the model from which this one was exported"
            )

    def expect_ability(self, ability: str) -> None:
        """Raise UnsupportedError where the backend lacks an ability."""
        if ability not in self.backend.supports:
            supported = quote(sorted(self.backend.supports), 20)
            instead = getattr(self.backend, "instead", {}).get(ability, "leave it out")
            raise UnsupportedError(
                f"the backend {self.backend.name!r} does not support {ability!r}: it supports {supported}; {instead}"
            )
