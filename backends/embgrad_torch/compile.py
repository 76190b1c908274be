"""Run the modules of a model that contain no lookup and no point as compiled code, for one pass."""

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
from embgrad_torch.inputs import is_quantised
from embgrad_torch.lookup import HANDLERS, PAIRED, LookupMode
from embgrad_torch.readers import READERS
from embgrad_torch.state import DEVICES, Shared
from embgrad_torch.walk import (
    Structure,
    children_of,
    held_parameters,
    is_compiled_wrapper,
    is_embedding,
    scripted_name,
)

__all__ = ["CompiledModules", "reason_against"]

#: By module, the function that runs its forward compiled, or the reason why there is none. Neither refers to the module.
_outcomes: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

#: Allows compilation inside a pass, which runs everything else uncompiled.
_compiling: Final = Shared(lambda: torch.compiler.set_stance("default"))


def _repeatable() -> AbstractContextManager[Any]:
    """Let compiled backward passes keep their operands for the next one, and be compiled with the forward pass.

    PyTorch reads both settings when it compiles, and the first also when the code runs.
    """
    config = torch._functorch.config
    wanted = {"donated_buffer": False, "force_non_lazy_backward_lowering": True}
    patched: AbstractContextManager[Any] = config.patch(
        {name: wanted[name] for name in wanted if hasattr(config, name)}
    )
    return patched


#: Settings of PyTorch's compiler: draw the random numbers of the uncompiled model, and see `_compile_graph`.
INDUCTOR: Final = {"fallback_random": True, "inplace_buffers": False}

#: The functions that `LookupMode` handles, and that compiled code may call: one-hot rows for a product come from uncompiled code.
UNHANDLED: Final = (
    *(torch._C._set_grad_enabled, torch.nn.functional.linear, torch.Tensor.to, torch.einsum),
    *PAIRED,
)

#: Modules that only contain others.
CONTAINERS: Final = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)


class LookupFoundError(Exception):
    """A module that is being compiled makes a lookup, which has to be recorded."""


class NotCompiledError(Exception):
    """A compiled function ran as plain Python, such as inside a dispatch mode."""


def reason_against(request: Request, structure: Structure, *, frozen: bool) -> str | None:
    """Return why a pass runs uncompiled, to follow "compile=True: "; None for no reason."""
    if request.training:
        return "in training mode compiled code draws other random numbers than the model"
    if request.parameters or request.tables:
        return "compiled code is made for frozen weights, and gradients of weights are requested"
    if not frozen:
        return "the model or the objective takes gradients itself"
    if request.repeats and not all(
        parameter.is_cpu for parameter in structure.parameters()
    ):  # on others threads run it
        return "a compiled backward pass runs only once on this device, and several are requested"
    if any(map(is_quantised, structure.parameters())):
        return "the model has quantised weights"  # and compiled code hides a product without a backward pass
    if parametrize._cache_enabled:  # its cached weights would become constants
        return "torch.nn.utils.parametrize.cached is in force"
    if any(map(torch.is_autocast_enabled, DEVICES)):
        return "torch.autocast is in force"
    if modules_of_torch._has_any_global_hook():
        return "hooks are registered for all modules, which compiled code does not run"
    scripted = scripted_name(structure)
    return None if scripted is None else f"{scripted} is a TorchScript module"


class CompiledModules:
    """The modules that run compiled in one pass: the largest ones without lookups, hooks and points inside.

    Their `forward` is replaced for the pass. A module that cannot be compiled runs uncompiled, and its children are tried.

    Args:
        mode: records the pass; it is off while compiled code runs.
        reason: why no module may run compiled, or None.
    """

    def __init__(self, mode: LookupMode, reason: str | None) -> None:
        self._mode = mode
        self._reason = reason
        self._replaced: list[Any] = []
        self._called: set[Any] = set()
        self._failed: list[str] = []
        self._ran = False

    @contextlib.contextmanager
    def on(self, structure: Structure) -> Iterator[None]:
        """Replace the forward functions while the context is open."""
        if self._reason is not None:
            yield
            return
        with _repeatable(), contextlib.ExitStack() as stack:
            stack.callback(sys.setrecursionlimit, sys.getrecursionlimit())  # the compiler raises it
            tensors = (*structure.parameters(), *structure.buffers())
            stack.callback(self._restore, [(tensor, vars(tensor).copy()) for tensor in tensors])
            refused = ((module, _known_reason(module)) for module in structure.modules)
            self._failed += [_failure(module, reason) for module, reason in refused if reason is not None]
            self._replace(structure.parts)
            yield
            for module in self._replaced:
                if module not in self._called and children_of(module):
                    _outcomes[module] = "the model calls its children instead"
                    self._failed.append(_failure(module, _outcomes[module]))

    def _restore(self, attributes: Sequence[tuple[Any, dict[str, Any]]]) -> None:
        for module in self._replaced:
            vars(module).pop("forward", None)
        for tensor, before in attributes:
            for name in vars(tensor).keys() - before:  # attributes that the compiler has set
                delattr(tensor, name)

    @property
    def uncompiled(self) -> str | None:
        """The reason why nothing ran compiled, or None."""
        if self._ran or self._reason is not None:
            return self._reason
        return next(iter(self._failed), "every module with weights has a lookup, a hook or a point inside")

    def call(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Run a module's forward, compiled where that is possible."""
        if not self._mode.is_innermost():  # a call in another thread, or in a function of the user
            return type(module).forward(module, *args, **kwargs)
        self._called.add(module)
        compiled = _outcomes.get(module) or _compiled()
        self._mode.__exit__(None, None, None)
        try:
            with _compiling:
                returned = compiled(module, args, kwargs)
        except NotCompiledError as error:
            reason, permanent = str(error), False
        except Exception as error:  # a fault of the module raises again in the uncompiled run
            reason, permanent = str(getattr(error, "inner_exception", error)).strip().partition("\n")[0], True
        else:
            self._ran = True
            _outcomes[module] = compiled
            return returned
        finally:
            self._mode.__enter__()
        return self._run_uncompiled(module, args, kwargs, reason, permanent=permanent)

    def _run_uncompiled(self, module: Any, args: Any, kwargs: Any, reason: str, *, permanent: bool) -> Any:
        """Run a module's forward uncompiled; its children may run compiled where the reason is permanent."""
        self._failed.append(_failure(module, reason))
        vars(module).pop("forward", None)
        if permanent:
            self._replace(children_of(module))
        returned = type(module).forward(module, *args, **kwargs)
        if permanent:
            _outcomes[module] = reason
        else:
            _outcomes.pop(module, None)  # PyTorch may not compile the same function later
        return returned

    def _replace(self, roots: Sequence[Any]) -> None:
        """Replace the forward functions of the largest modules in `roots`.

        A single layer gains nothing from compilation: it runs compiled only in small models, which have nothing else.
        """
        visited: dict[int, tuple[bool, list[Any]]] = {}
        largest = [module for root in roots for module in _largest(root, visited)[1]]
        parents = [module for module in largest if children_of(module)]
        for module in parents if parents or self._failed else largest:
            if "forward" not in vars(module):
                self._replaced.append(module)
                vars(module)["forward"] = _Forward(module, self)


class _Forward:
    """A module's forward function for one pass. A copy of it, in a copy of the module, is the original forward."""

    def __init__(self, module: Any, compiled: CompiledModules) -> None:
        functools.update_wrapper(self, module.forward)
        self._call = functools.partial(compiled.call, module)
        self._method = (type(module).forward, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(args, kwargs)

    def __reduce__(self) -> Any:
        return types.MethodType, self._method


def _largest(module: Any, visited: dict[int, tuple[bool, list[Any]]]) -> tuple[bool, list[Any]]:
    """Return whether a module can run as part of compiled code, and the largest modules in it that can run compiled.

    Args:
        module: the module.
        visited: by identity, the results for other modules.
    """
    if id(module) in visited:
        return visited[id(module)]
    visited[id(module)] = False, []  # for a module that contains itself
    largest, whole = [], _may_be_compiled(module)
    for child in children_of(module):
        child_whole, inside = _largest(child, visited)
        whole = whole and child_whole and not _is_hooked(child)
        largest += inside
    has_matrix = any(weight is not None and weight.dim() > 1 for weight in held_parameters(module))
    if whole and (largest or has_matrix) and not isinstance(module, CONTAINERS):
        largest = [module]
    visited[id(module)] = whole, largest
    return whole, largest


def _failure(module: Any, reason: str) -> str:
    return f"{type(module).__name__}: {reason}"


def _is_hooked(module: Any) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def _may_be_compiled(module: Any) -> bool:
    """Return whether a module's forward may run compiled, whatever its children do."""
    if is_embedding(module) or is_compiled_wrapper(module) or "forward" in vars(module):
        return False
    return _is_hashed_by_identity(module) and _known_reason(module) is None


def _is_hashed_by_identity(module: Any) -> bool:
    """Return whether the module can be a key that no other module equals."""
    module_class: Any = type(module)
    return bool(module_class.__hash__ is object.__hash__)


def _known_reason(module: Any) -> str | None:
    """Return why a module could not be compiled in an earlier pass, or None."""
    outcome = _outcomes.get(module) if _is_hashed_by_identity(module) else None
    return outcome if isinstance(outcome, str) else None


def _compiled() -> Callable[..., Any]:
    """Return a function that runs a module's forward compiled; each has new code, since PyTorch limits recompilations by code."""
    function = types.FunctionType(_run.__code__.replace(), _run.__globals__, "_run")
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=True, backend=_compile_graph)
    return compiled


def _run(module: Any, args: Any, kwargs: Any) -> Any:
    if not torch.compiler.is_compiling():
        raise NotCompiledError("compiled code ran as Python")
    return type(module).forward(module, *args, **kwargs)


def _compile_graph(graph: Any, inputs: Any) -> Any:
    """Compile a graph by PyTorch's own compiler, unless it contains a lookup.

    A backward pass may run several times, see `_repeatable`, so that it must not write into its operands (`inplace_buffers`):
    unlike `donated_buffer`, that setting is part of the key of PyTorch's cache.
    """
    for part in graph.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if _is_handled(node):
                name = getattr(node.target, "__name__", node.target)
                raise LookupFoundError(f"it calls {name}, which has to be recorded")
    return torch._dynamo.lookup_backend("inductor")(graph, inputs, config_patches=INDUCTOR)


def _is_handled(node: Any) -> bool:
    """Return whether a node of a graph calls a lookup or another function that `LookupMode` handles."""
    if node.op == "call_method":
        function = getattr(torch.Tensor, node.target, None)
    elif node.op == "call_function":
        function = torch.Tensor.__getitem__ if node.target is operator.getitem else node.target
    else:
        return False
    if function is torch.nn.functional.one_hot:  # a product with it may look rows up
        return True
    if function in UNHANDLED or function not in HANDLERS:
        return False
    args, kwargs = pytree.tree_map_only(
        torch.fx.Node, lambda argument: argument.meta.get("example_value"), (node.args, node.kwargs)
    )
    return function not in READERS or READERS[function](*args, **kwargs) is not None
