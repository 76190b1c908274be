"""Run the modules of a model in which nothing is watched as code that `torch.compile` has made, for the length of one pass."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch.nn.modules import module as modules_of_torch
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from embgrad.backend import Request
from embgrad_torch.lookup import HANDLERS, READERS, LookupMode
from embgrad_torch.state import Shared
from embgrad_torch.walk import EMBEDDINGS, Structure, is_compiled_wrapper

__all__ = ["CompiledModules", "reason_against"]

#: By module the function that runs its forward compiled, or the reason why there is none. None of them holds the module.
_known: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

#: Code is compiled though passes have everything else run uncompiled.
_compiling: Final = Shared(lambda: torch.compiler.set_stance("default"))


def _lasting() -> AbstractContextManager[Any]:
    """Have compiled backward passes leave their operands to the next one, and be compiled with the forward pass.

    Both are asked about when code is compiled, and the first when it runs, too.
    """
    config = torch._functorch.config
    wanted = {"donated_buffer": False, "force_non_lazy_backward_lowering": True}
    settings: AbstractContextManager[Any] = config.patch(
        {name: wanted[name] for name in wanted if hasattr(config, name)}
    )
    return settings


#: Settings of PyTorch's compiler: the numbers that the model draws without it, and see `_compile_graph`.
INDUCTOR: Final = {"fallback_random": True, "inplace_buffers": False}

#: Modules that hold others and are not called.
CONTAINERS: Final = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)


class LookupFoundError(Exception):
    """A module that was to be compiled makes a lookup, which has to be watched."""


class NotCompiledError(Exception):
    """A compiled function ran as plain Python, such as inside a dispatch mode."""


def reason_against(request: Request, known: Structure, *, frozen: bool) -> str | None:
    """Return why a pass runs uncompiled, as "compile=True: ..." goes on; None for no reason."""
    if request.training:
        return "in training mode compiled code draws other random numbers than the model"
    if request.parameters or request.tables:
        return "compiled code is made for frozen weights, and gradients of weights are asked for"
    if not frozen:
        return "the model or the objective takes gradients by itself"
    if request.several and not all(one.is_cpu for one in known.parameters()):  # where other threads run backward passes
        return "compiled backward passes run but once on this device, and several are asked for"
    if parametrize._cache_enabled:  # what it keeps would be a part of the code
        return "torch.nn.utils.parametrize.cached is in force"
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        return "torch.autocast is in force"
    if modules_of_torch._has_any_global_hook():
        return "hooks are registered for all modules, which compiled code does not run"
    scripted = [path or type(one).__name__ for path, one in known.walked if isinstance(one, torch.jit.ScriptModule)]
    return f"{scripted[0]} is a TorchScript module" if scripted else None


class CompiledModules:
    """The modules that run compiled in one pass: the largest ones without lookups, hooks and points inside.

    Each gets a `forward` of its own meanwhile. One that cannot be compiled runs as it is, and its children are tried.

    Args:
        mode: watches the pass; it is off while compiled code runs.
        reason: why none is to run compiled.
    """

    def __init__(self, mode: LookupMode, reason: str | None) -> None:
        self._mode = mode
        self._reason = reason
        self._replaced: list[Any] = []
        self._called: set[Any] = set()
        self._failed: list[str] = []
        self._ran = False

    @contextlib.contextmanager
    def on(self, known: Structure) -> Iterator[None]:
        """Replace the forward functions meanwhile."""
        if self._reason is not None:
            yield
            return
        with _lasting(), contextlib.ExitStack() as stack:
            stack.callback(sys.setrecursionlimit, sys.getrecursionlimit())  # the compiler raises it
            stack.callback(self._put_back, [(one, vars(one).copy()) for one in (*known.parameters(), *known.buffers())])
            refused = ((module, _reason_known(module)) for module in known.modules)
            self._failed += [_told(module, why) for module, why in refused if why is not None]
            self._replace(known.parts)
            yield
            for module in self._replaced:
                if module not in self._called and any(True for _ in module.children()):
                    _known[module] = "the model calls the modules inside of it"
                    self._failed.append(_told(module, _known[module]))

    def _put_back(self, attributes: Sequence[tuple[Any, dict[str, Any]]]) -> None:
        for module in self._replaced:
            vars(module).pop("forward", None)
        for tensor, before in attributes:
            for name in vars(tensor).keys() - before:  # which the compiler has set
                delattr(tensor, name)

    @property
    def uncompiled(self) -> str | None:
        """The reason why nothing ran compiled, or None."""
        if self._ran or self._reason is not None:
            return self._reason
        return next(iter(self._failed), "no module with weights runs without a lookup, a hook or a point inside")

    def call(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Run a module's forward, compiled where that is possible."""
        if not self._mode.is_innermost():  # a call of another thread's, or of a function of the user's
            return type(module).forward(module, *args, **kwargs)
        self._called.add(module)
        made = _known.get(module) or _compiled()
        self._mode.__exit__(None, None, None)
        try:
            with _compiling:
                returned = made(module, args, kwargs)
        except NotCompiledError as error:
            why, stays = str(error), False
        except Exception as error:  # the module itself says what is wrong, where the fault is not the compiler's
            why, stays = str(getattr(error, "inner_exception", error)).strip().partition("\n")[0], True
        else:
            self._ran = True
            _known[module] = made
            return returned
        finally:
            self._mode.__enter__()
        return self._as_it_is(module, args, kwargs, why, stays=stays)

    def _as_it_is(self, module: Any, args: Any, kwargs: Any, why: str, *, stays: bool) -> Any:
        """Run a module's forward uncompiled, but for its children where the reason stays."""
        self._failed.append(_told(module, why))
        vars(module).pop("forward", None)
        if stays:
            self._replace(list(module.children()))
        returned = type(module).forward(module, *args, **kwargs)
        if stays:
            _known[module] = why
        else:
            _known.pop(module, None)  # PyTorch may not compile the same function later
        return returned

    def _replace(self, among: Sequence[Any]) -> None:
        """Replace the forward functions of the largest modules among some.

        A single layer gains nothing by being compiled: it counts in small models, which have nothing else.
        """
        known: dict[int, tuple[bool, list[Any]]] = {}
        largest = [module for one in among for module in _largest(one, known)[1]]
        wholes = [module for module in largest if any(True for _ in module.children())]
        for module in wholes if wholes or self._failed else largest:
            if "forward" not in vars(module):
                self._replaced.append(module)
                vars(module)["forward"] = _Forward(module, self)


class _Forward:
    """A module's forward function for one pass. In a copy of the module it is the module's own."""

    def __init__(self, module: Any, compiled: CompiledModules) -> None:
        functools.update_wrapper(self, module.forward)
        self._call = functools.partial(compiled.call, module)
        self._own = (type(module).forward, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(args, kwargs)

    def __reduce__(self) -> Any:
        return types.MethodType, self._own


def _largest(module: Any, known: dict[int, tuple[bool, list[Any]]]) -> tuple[bool, list[Any]]:
    """Return whether a module can run as part of compiled code, and the largest modules in it that can run compiled.

    Args:
        module: the module.
        known: by their identities what was found of others.
    """
    if id(module) in known:
        return known[id(module)]
    known[id(module)] = False, []  # of one that lies inside itself
    found, whole = [], _may_be_compiled(module)
    for child in module.children():
        child_whole, inside = _largest(child, known)
        whole = whole and child_whole and not _is_hooked(child)
        found += inside
    has_matrix = any(one is not None and one.dim() > 1 for one in module._parameters.values())
    if whole and (found or has_matrix) and not isinstance(module, CONTAINERS):
        found = [module]
    known[id(module)] = whole, found
    return whole, found


def _told(module: Any, why: str) -> str:
    return f"{type(module).__name__}: {why}"


def _is_hooked(module: Any) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def _may_be_compiled(module: Any) -> bool:
    """Return whether a module's own forward may run compiled, whatever its children do."""
    if isinstance(module, EMBEDDINGS) or is_compiled_wrapper(module) or "forward" in vars(module):
        return False
    return _is_plain(module) and _reason_known(module) is None


def _is_plain(module: Any) -> bool:
    """Return whether modules of its class are told apart by identity, so that one can be a key."""
    kind: Any = type(module)
    return bool(kind.__hash__ is object.__hash__)


def _reason_known(module: Any) -> str | None:
    """Return why a module could not be compiled in an earlier pass, or None."""
    known = _known.get(module) if _is_plain(module) else None
    return known if isinstance(known, str) else None


def _compiled() -> Callable[..., Any]:
    """Return a function that runs a module's forward compiled; its code is its own, and with it the limit of recompilations."""
    own = types.FunctionType(_run.__code__.replace(), _run.__globals__, "_run")
    made: Callable[..., Any] = torch.compile(own, fullgraph=True, dynamic=True, backend=_compile_graph)
    return made


def _run(module: Any, args: Any, kwargs: Any) -> Any:
    if not torch.compiler.is_compiling():
        raise NotCompiledError("compiled code ran as Python")
    return type(module).forward(module, *args, **kwargs)


def _compile_graph(graph: Any, inputs: Any) -> Any:
    """Compile a graph by PyTorch's own compiler, after a look at each function in it.

    A backward pass may run several times, see `_lasting`, so that it must not write into its operands either: that setting is
    part of what PyTorch keeps compiled code under, which the other is not.
    """
    for part in graph.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if _is_watched(node):
                name = getattr(node.target, "__name__", node.target)
                raise LookupFoundError(f"it calls {name}, which has to be watched")
    return torch._dynamo.lookup_backend("inductor")(graph, inputs, config_patches=INDUCTOR)


def _is_watched(node: Any) -> bool:
    """Return whether a node of a graph is a lookup or another function that `LookupMode` looks at."""
    if node.op == "call_method":
        function = getattr(torch.Tensor, node.target, None)
    elif node.op == "call_function":
        function = torch.Tensor.__getitem__ if node.target is operator.getitem else node.target
    else:
        return False
    if function is torch._C._set_grad_enabled or function not in HANDLERS:
        return False
    args, kwargs = pytree.tree_map_only(
        torch.fx.Node, lambda one: one.meta.get("example_value"), (node.args, node.kwargs)
    )
    return function not in READERS or READERS[function](*args, **kwargs) is not None
