"""What a backend is: it supplies values and pullbacks at named points of a forward pass, as NumPy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from embgrad.batch import TokenBatch
from embgrad.points import Lookup, Point
from embgrad.watching import PointWatch

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

#: Calls the model in the user's own way: `call(model, inputs) -> outputs`. `inputs` is what `TokenBatch.inputs` gives, with
#: native tensors in place of arrays: a dict, a tuple, or of bare ids one tensor.
Call = Callable[[Any, Any], Any]

#: Outputs by the names under which they were asked for → sets of cotangents, by the same names: one, several, or none where
#: only the objective's values are asked for. A cotangent has its output's shape and is float64; the backend casts it to the
#: output's dtype.
Respond = Callable[[Mapping[str | None, np.ndarray]], Sequence[Mapping[str | None, np.ndarray]]]


#: The name under which an output was asked for and its shape → (examples, positions), two arrays of whole numbers of one
#: length, where `respond` is to get only `output[examples, positions]`, with a cotangent of that shape; None for the whole.
Reads = Callable[[str | None, tuple[int, ...]], tuple[np.ndarray, np.ndarray] | None]

#: A tensor's values, in memory of the function's own, → others of the same shape.
Change = Callable[[np.ndarray], np.ndarray]

#: Everything that a backend may support, and what it then does.
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


@dataclass(frozen=True)
class NativeObjective:
    """An objective of the user's, computed by the framework on the model's own return value.

    Attributes:
        function: takes what the model returned; gives a native tensor, of shape (example,), or () with `scalar`.
        scalar: whether the user reduces over the examples.
    """

    function: Callable[[Any], Any]
    scalar: bool


def reads_the_whole(name: str | None, shape: tuple[int, ...]) -> None:
    """All rows of an output are wanted, see `Reads`."""
    return


@dataclass(frozen=True)
class Request:
    """What is asked of a forward and backward pass, in names and NumPy.

    Points go by "word", the only lookup of the batch's ids, or by their keys, see `Point.key`. At one point `override`
    comes first, then `add`.

    Attributes:
        points: the points to read.
        respond: the objective: either a callback between forward and backward, on outputs in NumPy, or the
            user's own on native outputs.
        outputs: the names of the outputs that `respond` reads, roles or native; None is the default output.
            Only these cross to NumPy. Empty with a native objective.
        training: run as in training; else in evaluation mode.
        several: there are several sets of cotangents, so that the graph must outlive the first pullback: those that
            `respond` gives, or of a native objective one an example.
        call: calls the model in place of the backend's own way: `call(model, inputs) -> outputs`.
        override: by key what takes the place of the value: a function of the value, of which it gets a copy, that gives an
            array of the same shape. The gradient ends there; the point's own is that at the new value.
        add: by key what is added to the value, likewise. The gradient goes on.
        edit: by key what takes the place of the gradient on its way up: a function of it, of which it gets a copy.
        parameters: give the gradient of every trainable parameter; `points` is then empty.
        tables: give for each lookup asked for what reaches its table by other ways than the lookups asked for.
        compiled: True where the model's Python does not change from call to call, so that a trace of it may be kept and run in
            its place. Nothing of `respond`, `reads` or the changes is part of the trace. Where none can be had, the model
            runs as without, and `Run.uncompiled` says why. None where only what is a graph already runs as one. False
            where nothing does, so that a check goes another way.
        times: where the points were found by another pass: by the paths of the lookups' tables, and of all modules with a colon
            behind, how often that came by them. Where this pass does another number of times, the points may be others, and
            `PointWatch.resolve` says so. None where nothing is to be counted.
        reads: by the name and the shape of an output which of its rows `respond` is to get in its place, see `Reads`.
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
        """All points that the forward pass must come by: those to read, and those at which something is changed."""
        return tuple(dict.fromkeys((*self.points, *self.override, *self.add, *self.edit)))


@dataclass(frozen=True)
class ParameterValues:
    """What was read at a parameter.

    Attributes:
        shape: the parameter's.
        gradient: its gradient, of that shape; None where the graph has no way to it.
        dtype: the parameter's dtype, such as "float32".
    """

    shape: tuple[int, ...]
    gradient: np.ndarray | None
    dtype: str

    def filled(self) -> np.ndarray:
        """The gradient; zeros where there is no way."""
        dtype = np.float64 if self.dtype == "float64" else np.float32
        return np.zeros(self.shape, dtype) if self.gradient is None else self.gradient


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of floating point, trainable or not.

    Attributes:
        name: as `parameter_gradients` names it, in the framework's spelling.
        module: the attribute path of the module that owns it, as `embgrad.points` spells it; "" for the model itself, and where
            no module is known to own it.
        shape: its shape.
        dtype: its dtype, such as "float32" or "bfloat16".
        get: gives a copy of its values, float32, or float64 where it is that.
        put: puts values of that shape in their place, in its own dtype; the parameter stays the same object, on its device,
            with its gradient buffer.
        canonical: in a BERT's encoder the name of the checkpoint's weight that belongs there, as `load_bert` reads it; else None.
        transposed: it is the transpose of that.
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
    """What reaches a table by other ways than the lookups asked for, such as by a head that shares it.

    Attributes:
        gradient: (rows, dim); None where there is no other way.
        names: the parameters that share the table's memory, the table itself first, as `parameters` names them.
    """

    gradient: np.ndarray | None
    names: tuple[str, ...]


@dataclass(frozen=True)
class PointValues:
    """What was read at one point, in the framework's own axes.

    Attributes:
        activation: the value that went on.
        gradients: its gradient, one for each set of cotangents, as it went on up; None where the graph has no way from
            the objective to the point.
        lookup: the lookup that was made there; None at a module.
        before: where the gradient was edited, what it was before, one for each set of cotangents; else empty.
        rest: with `tables` at a lookup what else reaches its table.
    """

    activation: np.ndarray
    gradients: tuple[np.ndarray | None, ...]
    lookup: Lookup | None
    before: tuple[np.ndarray | None, ...] = ()
    rest: TableRest | None = None


@dataclass(frozen=True)
class Run:
    """What a forward and backward pass gave.

    Attributes:
        points: by the names under which they were asked for.
        compute_dtype: the dtype in which the model computed, such as "float32" or "bfloat16": see
            `embgrad.answering.compute_dtype`.
        unused: what the batch held and the model could not take: of "mask", "types" and the extras' names.
        objective: the values of a native objective, shape (example,) or (); else None.
        parameters: with `Request.parameters` by name, in the model's order; else None.
        uncompiled: where a trace was asked for why no kept trace was run; else None.
        masked_id: the id at which a model that cannot take the mask makes one of its own, as under Keras's `mask_zero`; "mask"
            then stands in `unused` only where that one differs. None where the model makes none.
    """

    points: Mapping[str, PointValues]
    compute_dtype: str
    unused: tuple[str, ...] = ()
    objective: np.ndarray | None = None
    parameters: Mapping[str, ParameterValues] | None = None
    uncompiled: str | None = None
    masked_id: int | None = None


class Listener(Protocol):
    """What hears of the user's own forward and backward passes, see `Backend.capture`."""

    def begin(self, arguments: Mapping[str, Any], discover: Callable[[TokenBatch], Sequence[Point]]) -> PointWatch:
        """A forward pass of the model begins.

        Args:
            arguments: those arguments of the call that are integer tensors, in NumPy, by the names of the parameters.
            discover: makes the same forward pass once before it, without a trace, and gives the points that it reached;
                the batch stands for the ids.

        Returns:
            What takes the forward pass down.
        """
        ...

    def end(self, watch: PointWatch, values: Mapping[str, np.ndarray], compute_dtype: str) -> Any:
        """It ended.

        Args:
            watch: what took it down.
            values: by key the values at the points that were kept.
            compute_dtype: the dtype in which the model computed at the first of them, see `Run`.

        Returns:
            What stands for the pass. The backend keeps it no longer than the pass's graph lives.

        Raises:
            PointError: a point that is listened to was not reached, or is ambiguous.
        """
        ...

    def step(self, gradients: Sequence[tuple[Any, str, np.ndarray]]) -> None:
        """A backward pass ended that reached points: what stands for the forward pass, the key, the gradient of each."""
        ...

    def outside(self, path: str) -> None:
        """A module of the model is called outside of any call of the model, with gradients: a wrapper's `forward` is not used."""
        ...


@runtime_checkable
class Backend(Protocol):
    """One framework. A class of this shape, without arguments, is what an entry point names.

    Its module imports the framework only inside the functions that need it. What every backend would have to write again is
    there to be used: `embgrad.calling`, `answering`, `watching`, `structures`, `arrays` and `locks`.

    Attributes:
        name: the name under which users ask for it.
        package: the framework's import name, such as "torch".
        extra: the extra of embgrad that installs the framework; None where nothing is to install.
        supports: abilities, of `ABILITIES`; asking for what is absent is an UnsupportedError.

    A backend may have a mapping `instead` as well: by an absent ability the end of the error's message, which says what to do.
    """

    name: str
    package: str
    extra: str | None
    supports: frozenset[str]

    def owns(self, part: object) -> bool:
        """Whether the object is a model of this framework, told by its type, without importing the framework."""
        ...

    def versions(self) -> Mapping[str, str]:
        """The versions of the framework and of the libraries that take part, for the provenance."""
        ...

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """The points that a forward pass on the batch reaches, see `PointWatch.points`. In evaluation mode.

        It takes the same way as the forward pass of `run`, also where that depends on whether gradients are taken.
        """
        ...

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """One forward pass, and a pullback for each set of cotangents; leaves the model as it was, also on errors.

        Returned arrays are the caller's own, never a view of the framework's memory.
        """
        ...

    def paths(self, model: Any) -> Collection[str]:
        """The attribute paths of the model's modules and tables, and other names under which they can be named."""
        ...

    def capture(self, model: Any, listener: Listener) -> AbstractContextManager[None]:
        """While it is open, the user's own passes through the model in this thread are told to the listener.

        They compute what they would have computed, bit for bit. A backend without the ability "capture" need not have it.
        """
        ...

    def weights(self, model: Any) -> Sequence[Weight]:
        """Every parameter and buffer of floating point that has values, shared ones once, in the model's order.

        A backend without the ability "weights" need not have it.
        """
        ...

    def alone(self, model: Any) -> AbstractContextManager[None]:
        """Holds what `points` and `run` hold of a model, so that meanwhile no other thread's run sees what is changed in it.

        A backend without the ability "weights" need not have it.
        """
        ...
