"""Declares the protocol of a backend, which supplies values and pullbacks at named points of a forward pass, as NumPy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from embgrad.forward.points import Lookup, Point
from embgrad.forward.recorder import PointWatch
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.native import NativeObjective

__all__ = [
    "ABILITIES",
    "Backend",
    "Call",
    "Change",
    "Listener",
    "NativeObjective",
    "ParameterValues",
    "Point",
    "PointValues",
    "Reads",
    "Request",
    "Respond",
    "Run",
    "TableRest",
    "Weight",
]

#: Calls the model as the user says: `call(model, inputs) -> outputs`. `inputs` is the result of `TokenBatch.inputs` with native
#: tensors in place of arrays: a dict, a tuple, or for bare ids a single tensor.
Call = Callable[[Any, Any], Any]

#: Takes the outputs by the names under which they were asked for, and returns sets of cotangents by the same names: one set,
#: several, or none where only the objective's values are asked for. A cotangent has its output's shape and is float64; the
#: backend casts it to the output's dtype.
Respond = Callable[[Mapping[str | None, np.ndarray]], Sequence[Mapping[str | None, np.ndarray]]]

#: Takes the name under which an output was asked for and its shape. Returns (examples, positions), two arrays of whole numbers of
#: one length, where `respond` reads only `output[examples, positions]`, with a cotangent of that shape; None for the whole.
Reads = Callable[[str | None, tuple[int, ...]], tuple[np.ndarray, np.ndarray] | None]

#: Takes a copy of a tensor's values, and returns others of the same shape.
Change = Callable[[np.ndarray], np.ndarray]

#: The abilities that a backend may have, with what they mean.
ABILITIES: Final[Mapping[str, str]] = {
    "word": "reads values and gradients at lookups; every backend does",
    "training": "runs the model in training mode, `Request.training`",
    "split": "pulls back several sets of cotangents through one forward pass, `Request.several`",
    "native": "takes an objective of the user's on native outputs, `NativeObjective`",
    "float64": "computes in float64 where the model's weights are that",
    "load_bert": "has `bert` and `bert_targets`, for `embgrad.load_bert`",
    "modules": "reads values and gradients at what modules are given and give, and finds roles there",
    "override": "puts values in place of a point's, `Request.override`",
    "add": "adds to a point's values, `Request.add`",
    "edit": "changes gradients on their way up, `Request.edit`",
    "parameters": "gives the gradient of every trainable parameter, `Request.parameters`",
    "tables": "gives what else reaches a lookup's table, `Request.tables`",
    "capture": "has `capture`, for the user's own loop",
    "weights": "has `weights` and `alone`, so that weights can be read and for a while replaced",
    "compile": "keeps a trace of the model, `Request.compiled`",
}


def reads_the_whole(name: str | None, shape: tuple[int, ...]) -> None:
    """Return None: all rows of an output are read, see `Reads`."""
    return


@dataclass(frozen=True)
class Request:
    """A forward and backward pass as it is asked for, in names and NumPy.

    Points go by "word", the only lookup of the batch's ids, or by their keys, see `Point.key`. At one point `override`
    comes first, then `add`.

    Attributes:
        points: the points to read.
        respond: the objective: a callback between forward and backward on outputs in NumPy, or the user's own function on native
            outputs.
        outputs: the names of the outputs that `respond` reads, roles or native; None is the default output.
            Only these cross to NumPy. Empty with a native objective.
        training: run the model in training mode; otherwise in evaluation mode.
        several: there are several sets of cotangents, so that the graph must outlive the first pullback: those that `respond`
            returns, or with a native objective one for each example.
        call: calls the model in place of the backend's own way, see `Call`.
        override: functions by key that return the value to put in the place of a point's. The gradient ends there; the point's
            own gradient is that at the new value.
        add: functions by key that return an array to add to a point's value. The gradient goes on.
        edit: functions by key that return the gradient to put in the place of a point's, which then goes on.
        parameters: return the gradient of every trainable parameter; `points` is then empty.
        tables: return for each lookup in `points` what else reaches its table, see `TableRest`.
        compiled: True where the model's code does not change from call to call, so that a trace of it may be kept and run in its
            place. Nothing of `respond`, `reads` or the changes is part of the trace. Where no trace can be made the model runs
            without, and `Run.uncompiled` says why. With None only a model that is a graph already runs as one; with False
            nothing does, so that a check takes another way.
        times: where the points were found by another pass, how often that pass reached them: by the paths of the lookups' tables,
            and of modules with a colon behind. Where this pass differs the points may be others, and `PointWatch.resolve`
            says so. None where nothing is to be counted.
        reads: says which rows of an output `respond` gets in its place, see `Reads`.
    """

    points: tuple[str, ...]
    respond: Respond | NativeObjective
    outputs: tuple[str | None, ...] = ()
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
    reads: Reads = reads_the_whole

    @property
    def reached(self) -> tuple[str, ...]:
        """The points that the forward pass must reach: those to read, and those at which something is changed."""
        return tuple(dict.fromkeys((*self.points, *self.override, *self.add, *self.edit)))


@dataclass(frozen=True)
class ParameterValues:
    """The gradient at a parameter.

    Attributes:
        shape: the parameter's shape.
        gradient: its gradient, of that shape; None where no gradient reaches it.
        dtype: the parameter's dtype, such as "float32".
    """

    shape: tuple[int, ...]
    gradient: np.ndarray | None
    dtype: str

    def filled(self) -> np.ndarray:
        """Return the gradient, or zeros where no gradient reaches the parameter."""
        dtype = np.float64 if self.dtype == "float64" else np.float32
        return np.zeros(self.shape, dtype) if self.gradient is None else self.gradient


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of floating point, trainable or not.

    Attributes:
        name: its name in the framework's spelling, as in `parameter_gradients`.
        module: the attribute path of the module that owns it, as `embgrad.points` spells it; "" for the model itself, and where
            no module is known to own it.
        shape: its shape.
        dtype: its dtype, such as "float32" or "bfloat16".
        get: returns a copy of its values as float32, or as float64 where it is that.
        put: writes values of that shape into it, in its own dtype; the parameter stays the same object, on its device, with its
            gradient buffer.
        canonical: in a BERT's encoder the name of the checkpoint's weight that belongs there, as `load_bert` reads it; else None.
        transposed: whether it is the transpose of that weight.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    get: Callable[[], np.ndarray] = field(repr=False)
    put: Callable[[np.ndarray], None] = field(repr=False)
    canonical: str | None = None
    transposed: bool = False

    @property
    def is_matrix(self) -> bool:
        """Whether it has two axes or more."""
        return len(self.shape) > 1


@dataclass(frozen=True)
class TableRest:
    """The gradient that reaches a table past the lookups asked for, such as by a head that shares it.

    Attributes:
        gradient: (rows, dim); None where nothing else reaches the table.
        names: the parameters that share the table's memory, the table itself first, as `parameters` names them.
    """

    gradient: np.ndarray | None
    names: tuple[str, ...]


@dataclass(frozen=True)
class PointValues:
    """The values read at one point, in the framework's own axes.

    Attributes:
        activation: the value with which the model went on.
        gradients: its gradient for each set of cotangents, edited where that was asked for; None where no gradient reaches the
            point from the objective.
        lookup: the lookup at the point; None at a module.
        before: where the gradient was edited, the gradient before that for each set of cotangents; else empty.
        rest: with `Request.tables` at a lookup, what else reaches its table.
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
        points: the values by the names under which they were asked for.
        compute_dtype: the dtype in which the model computed, such as "float32" or "bfloat16": see
            `embgrad.backend.cotangents.compute_dtype`.
        unused: the parts of the batch that the model could not take: of "mask", "types" and the extras' names.
        objective: the values of a native objective, of shape (example,) or (); else None.
        parameters: with `Request.parameters` the gradients by name, in the model's order; else None.
        uncompiled: the reason why no kept trace was run although one was asked for; else None.
        masked_id: the id at which a model that cannot take the mask makes a mask itself, as under Keras's `mask_zero`; "mask" is
            then in `unused` only where the two differ. None where the model makes none.
    """

    points: Mapping[str, PointValues]
    compute_dtype: str
    unused: tuple[str, ...] = ()
    objective: np.ndarray | None = None
    parameters: Mapping[str, ParameterValues] | None = None
    uncompiled: str | None = None
    masked_id: int | None = None


class Listener(Protocol):
    """A listener to the user's own forward and backward passes, see `Backend.capture`."""

    def begin(self, arguments: Mapping[str, Any], discover: Callable[[TokenBatch], Sequence[Point]]) -> PointWatch:
        """Begin a forward pass of the model, and return the watch that records it.

        Args:
            arguments: the integer tensors among the arguments of the call, in NumPy, by the names of the parameters.
            discover: makes the same forward pass once before, without a trace, and returns the points that it reached; its batch
                stands for the ids.
        """
        ...

    def end(self, watch: PointWatch, values: Mapping[str, np.ndarray], compute_dtype: str) -> Any:
        """End a forward pass, and return an object that stands for it, which the backend keeps no longer than the pass's graph.

        Args:
            watch: the watch that recorded it.
            values: the values at the points that were kept, by key.
            compute_dtype: the dtype in which the model computed at the first of them, see `Run`.

        Raises:
            PointError: a point that is listened to was not reached, or is ambiguous.
        """
        ...

    def step(self, gradients: Sequence[tuple[Any, str, np.ndarray]]) -> None:
        """Take the gradients of a backward pass: for each point reached the object of its forward pass, its key, its gradient."""
        ...

    def outside(self, path: str) -> None:
        """Note that a module of the model is called with gradients outside of any call of the model, as around a wrapper."""
        ...


@runtime_checkable
class Backend(Protocol):
    """The backend of a framework. An entry point names a class of this shape, which is made without arguments.

    Its module imports the framework only inside the functions that need it. What backends have in common is in `embgrad.backend`,
    `embgrad.backend.signature`, `answering`, `watching`, `structures`, `arrays` and `locks`.

    Attributes:
        name: the name under which users ask for it.
        package: the framework's import name, such as "torch".
        extra: the extra of embgrad that installs the framework; None where nothing is to install.
        supports: the abilities that it has, of `ABILITIES`; asking for another is an UnsupportedError.

    A backend may have a mapping `instead` as well: by an absent ability the end of the error's message, which says what to do.
    """

    name: str
    package: str
    extra: str | None
    supports: frozenset[str]

    def owns(self, part: object) -> bool:
        """Return whether an object is a model of this framework, by its type, without importing the framework."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the framework and of the libraries that take part, for the provenance."""
        ...

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """Return the points that a forward pass on the batch in evaluation mode reaches, see `PointWatch.points`.

        The pass goes the same way as that of `run`, also where this depends on whether gradients are taken.
        """
        ...

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass, and a pullback for each set of cotangents; leave the model as it was, also after an error.

        Returned arrays own their memory, which is never the framework's.
        """
        ...

    def paths(self, model: Any) -> Collection[str]:
        """Return the attribute paths of the model's modules and tables, and other names by which points can be named."""
        ...

    def capture(self, model: Any, listener: Listener) -> AbstractContextManager[None]:
        """Report the user's own passes through the model in this thread to the listener while it is open.

        They compute the same numbers as without, bit for bit. A backend without the ability "capture" need not have it.
        """
        ...

    def weights(self, model: Any) -> Sequence[Weight]:
        """Return the parameters and buffers of floating point that have values, shared ones once, in the model's order.

        A backend without the ability "weights" need not have it.
        """
        ...

    def alone(self, model: Any) -> AbstractContextManager[None]:
        """Hold a model's locks as `points` and `run` do, so that no other thread's run sees changes made meanwhile.

        A backend without the ability "weights" need not have it.
        """
        ...
