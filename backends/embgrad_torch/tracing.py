"""Follows a model's Python once, without values, and gives the graph of what it does."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from embgrad.backend import NativeObjective, Request
from embgrad.batch import TokenBatch
from embgrad.drawing import DRAWS, Drawing
from embgrad.outputs import choose_output, name_outputs
from embgrad_torch.drawing import random_as_found
from embgrad_torch.escaped import Escaped
from embgrad_torch.inputs import Plan
from embgrad_torch.lookup import Read
from embgrad_torch.operators import ended, looked_up, passed
from embgrad_torch.places import Place, is_ordinary, memory_of, reached
from embgrad_torch.replaced import Replaced
from embgrad_torch.returned import UnknownError, mapped, tensors_in
from embgrad_torch.standins import Happening, Lookups, Modules, UntraceableError
from embgrad_torch.state import as_found
from embgrad_torch.structure import Structure
from embgrad_torch.walk import TablePaths, spelled

__all__ = ["Exported", "Happening", "PassingError", "UntraceableError", "exported", "is_tensor"]


class PassingError(UntraceableError):
    """No trace can be kept now, for a reason that may be another thread's."""


class _StoppedError(UntraceableError):
    """The model's Python stopped. PyTorch writes the graph that such an error carries to stderr, so it can carry none."""

    @property
    def partial_fx_graph(self) -> str:
        """The graph so far."""
        raise AttributeError("partial_fx_graph")

    @partial_fx_graph.setter
    def partial_fx_graph(self, graph: str) -> None:
        """Not kept."""


@dataclass(frozen=True)
class Exported:
    """The graph of what a model does, as functions of its weights and inputs.

    Attributes:
        program: what `torch.export` made; it gives the outputs, then all rows that were looked up.
        places: where the weights are, in the order of the graph's inputs; the tensors of the call come behind them.
        script: what happens, in order.
        rebuild: gives what the model returned, of the outputs.
        outputs: how many outputs there are.
        used: which of them the objective is pulled back from.
        attributes: by their names among the program's constants where those are that lie in modules' other attributes.
    """

    program: Any
    places: tuple[Place, ...]
    script: tuple[Happening, ...]
    rebuild: Callable[[Sequence[Any]], Any]
    outputs: int
    used: tuple[int, ...]
    attributes: Mapping[str, Place]


def is_tensor(value: object) -> bool:
    """Whether it is a tensor."""
    return isinstance(value, torch.Tensor)


def exported(known: Structure, batch: TokenBatch, request: Request, planned: Plan, used: tuple[int, ...]) -> Exported:
    """Follow the model's Python.

    Args:
        known: the model.
        batch: what the call is made with.
        request: what is asked.
        planned: the call.
        used: the places, among the tensors that the model returns, that a native objective depends on.

    Raises:
        UntraceableError: it cannot be followed.
    """
    places = _places(known)
    weights = [place.find(known.modules).detach() for place in places]
    leaves = planned.leaves
    following = _Following(known, batch, request, planned, places, used)
    escaping = following.escaping
    shapes = ([None] * len(weights), [_dimensions(one) for one in leaves])
    device = leaves[0].device if leaves else torch.device("cpu")
    from torch._dynamo.convert_frame import compile_lock  # which takes long to import

    try:
        with as_found(known, device, training=request.training), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # PyTorch follows one function at a time: what it changes meanwhile is the process's, not the thread's.
            with compile_lock, random_as_found(device, training=False), _no_hook_left():
                program = torch.export.export(
                    _Exporting(following.follow), (weights, leaves), strict=False, dynamic_shapes=shapes
                )
                program = program.run_decompositions({})
    except Exception as error:  # of whatever an export meets
        raise (PassingError if following.passing else UntraceableError)(_why(error)) from error
    finally:
        escaping.put_back()
        following.forget()
    if escaping.are_left():
        raise UntraceableError("the model keeps tensors of its passes where a trace would leave such as have no values")
    assert following.rebuild is not None
    return Exported(
        program,
        places,
        tuple(following.script),
        following.rebuild,
        following.outputs,
        tuple(following.used),
        _in_attributes(known, program.constants, following.replaced),
    )


@contextlib.contextmanager
def _no_hook_left() -> Iterator[None]:
    """Take away the hook on the buffers of all modules that an export leaves behind in PyTorch 2.6 where it fails."""
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    before = {*hooks}
    try:
        yield
    finally:
        for key, hook in [*hooks.items()]:
            if key not in before and "register_buffer_assignment_hook" in getattr(hook, "__qualname__", ""):
                del hooks[key]


def _dimensions(tensor: Any) -> dict[int, Any]:
    """Any size will do, but that one is apart from several."""
    hints = torch.export.Dim
    return {axis: hints.STATIC if size == 1 else hints.AUTO for axis, size in enumerate(tensor.shape)}


def _why(error: Exception) -> str:
    if isinstance(error, (UntraceableError, UnknownError)):
        return str(error)
    text = str(error).strip().split("\n")[0]
    if "DataDependent" in type(error).__name__ or "data-dependent" in text:
        return f"the model's Python depends on the values of tensors ({text})"
    return f"the model's Python cannot be followed without values ({type(error).__name__}: {text})"


def _places(known: Structure) -> tuple[Place, ...]:
    """Of each weight and buffer the first place."""
    found: dict[int, Place] = {}
    for number, module in enumerate(known.modules):
        for held in ("_parameters", "_buffers"):
            for name, tensor in getattr(module, held).items():
                if tensor is not None and id(tensor) not in found:
                    _expect_plain(known.paths[number], name, tensor)
                    found[id(tensor)] = Place(number, held, name)
    return tuple(found.values())


def _in_attributes(known: Structure, constants: Mapping[str, Any], replaced: Replaced) -> dict[str, Place]:
    """By name the places of those constants that lie in modules' attributes, where others may come.

    Raises:
        UntraceableError: there is a weight that others may come for, unseen by a trace, or numbers that Python has read.
    """
    if not (constants or replaced.others):
        return {}
    places = reached(known)
    in_graph = {memory_of(one) for one in constants.values() if is_ordinary(one)}
    for one in (*replaced.read, *[one for one in replaced.numbers if memory_of(one) not in in_graph]):
        if memory_of(one) in places:
            raise UntraceableError("the model's Python depends on the values of tensors (in its attributes)")
    for one in replaced.others.values():
        found = places.get(memory_of(one), ())
        if None in found or (not found and isinstance(one, torch.nn.Parameter)):
            raise UntraceableError(
                f"nothing leads from its modules to a tensor of the shape {tuple(one.shape)} that it uses"
            )
    in_places: dict[str, Place] = {}
    for name, constant in constants.items():
        own = [one for one in places.get(memory_of(constant), ()) if one is not None] if is_ordinary(constant) else []
        if own:
            in_places[name] = replace(own[0], also=tuple(own[1:]))
    return in_places


def _expect_plain(path: str, name: str, tensor: Any) -> None:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.layout is not torch.strided or tensor.is_inference() or tensor.is_quantized:
        raise UntraceableError(f"{spelled(path)}.{name} is no ordinary tensor")


class _Exporting(torch.nn.Module):  # type: ignore[misc]
    """What is exported. An export keeps the attributes of its module as they are, so this has none that change."""

    def __init__(self, follow: Callable[..., Any]) -> None:
        super().__init__()
        self._follow = follow

    def forward(self, weights: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """What the model returns, and all rows that are looked up."""
        try:
            return self._follow(weights, leaves)
        except Exception as error:  # of whatever the model's Python meets where it is followed
            raise _StoppedError(_why(error)) from error


class _Following:
    """Calls the model with other tensors in the place of its weights and inputs."""

    def __init__(
        self,
        known: Structure,
        batch: TokenBatch,
        request: Request,
        planned: Plan,
        places: Sequence[Place],
        used: tuple[int, ...],
    ) -> None:
        self.script: list[Happening] = []
        self.rebuild: Callable[[Sequence[Any]], Any] | None = None
        self.outputs = 0
        self.used: Sequence[int] = used
        self.passing = False
        self._known = known
        self.request = request
        self._planned = planned
        self.batch = batch
        self._places = places
        self.replaced = Replaced(())
        self.escaping = Escaped(known, request.call)
        self._rows: list[Any] = []
        self._into: list[Any] = []

    def follow(self, weights: Sequence[Any], leaves: Sequence[Any]) -> tuple[Any, ...]:
        """What the model returns, and all rows that are looked up."""
        known = self._known
        self.script.clear()
        with contextlib.ExitStack() as stack:
            own = [place.find(known.modules) for place in self._places]
            self.replaced = Replaced(zip(own, weights, strict=True))
            mode = Lookups(self, _table_paths(known, own, weights), self.replaced)
            Modules(self, mode).on(known, stack)
            with Drawing(self.escaping.generators) as drawing, mode:
                returned = self._planned.call(self._planned.filled(leaves))
        if drawing.seen or drawing.suspected:
            self.passing = not drawing.seen
            raise UntraceableError(DRAWS)
        outputs = self.replaced.of(self._chosen(returned))
        mode.expect_alike(outputs)
        _expect_followed([*outputs, *self._into])
        kept = [one if number in self.used else ended(one) for number, one in enumerate(outputs)]
        return (*kept, *self._rows)

    def forget(self) -> None:
        """Keep no tensor that stands for another."""
        self._rows.clear()
        self._into.clear()
        self.replaced.forget()

    def happen(self, happening: Happening) -> None:
        """Take down what happens."""
        self.script.append(happening)

    def look_up(self, path: str, read: Read) -> Any:
        """The rows of a lookup."""
        number = len(self.script)
        options = {"padding": read.padding, "indexing": read.indexing}
        self.happen(Happening("lookup", path, number, read=options))
        self._into.append(read.table)
        rows = looked_up(read.table, read.indices, number)
        self._rows.append(rows)
        return rows

    def looked_up_last(self, value: Any) -> bool:
        """Whether it is the rows of the last lookup."""
        return bool(self._rows) and self._rows[-1] is value

    def pass_by(self, value: Any, number: int) -> Any:
        """What goes on at a point of a module."""
        value = self.replaced.of(value)
        self._into.append(value)
        return passed(value, number)

    def _chosen(self, returned: Any) -> list[Any]:
        """The outputs that an objective may see."""
        if not isinstance(self.request.respond, NativeObjective):
            named = name_outputs(returned, is_tensor)
            names = list(dict.fromkeys(choose_output(named, wanted) for wanted in self.request.outputs))
            self.rebuild = lambda outputs: dict(zip(names, outputs, strict=True))
            self.used = range(len(names))
            self.outputs = len(names)
            return [named[name] for name in names]
        tensors = tensors_in(returned)
        self.outputs = len(tensors)
        blank = mapped(returned, lambda one: torch.empty((0,)))  # nothing of the trace is to be kept

        def rebuild(outputs: Sequence[Any]) -> Any:
            order = iter(outputs)
            return mapped(blank, lambda _: next(order))

        self.rebuild = rebuild
        return tensors


def _table_paths(known: Structure, own: Sequence[Any], weights: Sequence[Any]) -> TablePaths:
    """The paths of tables, also for the tensors in their places."""
    paths = TablePaths(known.walked)
    return TablePaths(
        known.walked, {id(new): paths.of(one) for one, new in zip(own, weights, strict=True) if one.dim() == 2}
    )


def _expect_followed(roots: Sequence[Any]) -> None:
    """Refuse backward passes that the model defines itself: the graph holds forward passes alone."""
    waiting = [one.grad_fn for one in roots if one.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            name = type(node).__name__.removesuffix("Backward")
            raise UntraceableError(
                f"{name} is a torch.autograd.Function, whose own backward pass a trace does not hold"
            )
        below = [one for one, _ in node.next_functions if one is not None and one not in seen]
        seen.update(below)
        waiting += below
