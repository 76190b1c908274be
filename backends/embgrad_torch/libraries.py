"""Tells models whose Python is all PyTorch's and transformers' own from those in which code of the user's runs.

Code of the user's may look up rows anywhere, by any function, and in some batches only. That of these libraries looks up rows of
the ids in modules that do little else, so that watching these shows all lookups.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.nn.modules import module as _of_all

__all__ = ["FUNCTIONS", "are_of_libraries", "forwards_of", "is_of_libraries"]

#: The libraries, as their modules' names begin.
LIBRARIES: Final = frozenset({"torch", "transformers"})

#: The types of functions that an attribute may hold, to be called in a forward pass or in place of one.
FUNCTIONS: Final = frozenset({types.FunctionType, types.MethodType, functools.partial})

#: What Python makes of functions that are written in C.
_COMPILED: Final = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType)


def are_of_libraries(kinds: Iterable[type], functions: Iterable[Any]) -> bool:
    """Whether classes of modules, their `forward` as it is now and further functions are the libraries' own.

    A graph module is none: its Python is made of somebody else's, and may have both ways of a condition in it.
    """
    if _of_all._global_forward_hooks or _of_all._global_forward_pre_hooks:
        return False
    return all(map(_is_module_of_libraries, kinds)) and all(map(is_of_libraries, functions))


def forwards_of(kinds: Iterable[type]) -> list[Callable[..., Any]]:
    """What modules of these classes do."""
    return [one.forward for one in kinds]  # type: ignore[attr-defined]


def is_of_libraries(function: Any) -> bool:
    """Whether a function, with all that it is made around, is written in one of the libraries, or in C."""
    while isinstance(function, (functools.partial, types.MethodType)) or hasattr(function, "__wrapped__"):
        if isinstance(function, types.FunctionType) and not _is_in_libraries(function.__globals__.get("__name__")):
            return False
        function = _inner(function)
    if isinstance(function, types.FunctionType):  # whose own name of its module is copied from what it stands for
        return _is_in_libraries(function.__globals__.get("__name__"))
    return isinstance(function, _COMPILED) or _is_in_libraries(type(function).__module__)


def _inner(function: Any) -> Any:
    """What a function is made around."""
    if isinstance(function, functools.partial):
        return function.func
    return function.__func__ if isinstance(function, types.MethodType) else function.__wrapped__


def _is_module_of_libraries(kind: type) -> bool:
    graph = issubclass(kind, torch.fx.GraphModule)
    return not graph and _is_in_libraries(kind.__module__) and is_of_libraries(kind.forward)  # type: ignore[attr-defined]


def _is_in_libraries(module: Any) -> bool:
    return str(module).partition(".")[0] in LIBRARIES
