"""Record the calls of a model's modules: Keras 2 and 3 layers, and `tf.Module`s by their classes' `__call__`."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import tensorflow as tf

from embgrad.keras import further_names, is_keras
from embgrad.toolkit import CallRecorder, Interception, ModuleCalls, RecordedCall, call_recorded, process_lock
from embgrad_tensorflow.fingerprint import structure
from embgrad_tensorflow.state import depth

__all__ = ["Calls", "Modules", "around", "intercept_calls", "is_floating"]

#: Where each Keras has the class of all layers.
LAYERS: Final = {"tf_keras": "tf_keras.src.engine.base_layer", "keras": "keras.src.layers.layer"}

_interceptions: WeakKeyDictionary[type, Interception] = WeakKeyDictionary()

#: Takes the key of a point and its tensor; gives what goes on.
Replace = Callable[[str, Any], Any]


class Modules:
    """The names of a model's modules: attribute paths and their aliases."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._known: dict[int, tuple[Any, str, tuple[str, ...]]] = {}
        self._strangers: dict[int, Any] = {}
        self.classes: tuple[type, ...] = ()
        self._learn()

    def name(self, module: Any) -> tuple[str, tuple[str, ...]] | None:
        """Return a module's path, and its other names; None for none of the model's."""
        if id(module) not in self._known and id(module) not in self._strangers:
            self._learn()  # a layer that was built just now
        if id(module) not in self._known:
            self._strangers[id(module)] = module
            return None
        _, path, also = self._known[id(module)]
        return path, also

    def names(self) -> list[str]:
        """All names."""
        all_names = [(path, *also) for _, path, also in self._known.values()]
        return list(dict.fromkeys(name for names in all_names for name in names if name))

    def _learn(self) -> None:
        model = structure(self._parts)
        aliases = model.aliases()
        nodes = [node for node in model.nodes if node.kind == "module"]
        also = further_names(nodes, aliases)
        self._known = {id(node.value): (node.value, node.path, also[id(node.value)]) for node in nodes}
        self.classes = tuple(dict.fromkeys(cls for node in nodes if (cls := _caller(node.value)) is not None))


def _caller(module: Any) -> type | None:
    """Return the class whose `__call__` a call of the module goes through."""
    cls = type(module)
    if is_keras(module):
        return next(base for base in cls.__mro__ if _is_layer_class(base))
    return next((base for base in cls.__mro__ if base is not object and "__call__" in vars(base)), None)


def _is_layer_class(cls: type) -> bool:
    root = cls.__module__.partition(".")[0]
    return root in LAYERS and cls is importlib.import_module(LAYERS[root]).Layer


class Calls:
    """The recorder of module calls in one forward pass, which replaces tensors at the points of a request.

    Args:
        idle: returns whether the current computation is not the model's.
        traced: whether the pass is traced into a graph, and not run.

    Attributes:
        opened: the modules whose calls are open, the outermost first.
    """

    def __init__(
        self,
        watch: CallRecorder,
        modules: Modules,
        replace: Replace,
        idle: Callable[[], bool] = lambda: False,
        *,
        traced: bool = False,
    ) -> None:
        self._calls = ModuleCalls(watch, is_symbolic if traced else is_floating, replace)
        self._modules = modules
        self._idle = idle
        self._traced = traced
        self._depth = depth()
        self.opened: list[Any] = []

    def around(self, function: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        """Run and record a call of a module, in place of `__call__`."""
        return around([self], function, module, *args, **kwargs)

    def record_of(self, module: Any) -> RecordedCall | None:
        """Return a call of a module for `call_recorded`; None where it is not the pass's, or `super().__call__` of another."""
        nested = bool(self.opened) and self.opened[-1] is module
        named = None if nested or not self._is_active() else self._modules.name(module)
        return None if named is None else RecordedCall(self._calls, *named)

    def _is_active(self) -> bool:
        return depth() == self._depth and not self._idle() and tf.executing_eagerly() != self._traced


def around(passes: Sequence[Calls], function: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a call of a module, in place of `__call__`, and record it in several passes.

    Args:
        passes: the calls of the passes, those first whose replacements the others see.
        function: the function in whose place it is called.
        module: the module.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    recording = [(calls, record) for calls in passes if (record := calls.record_of(module)) is not None]
    if not recording:
        return function(module, *args, **kwargs)

    def proceed(*args: Any, **kwargs: Any) -> Any:
        for calls, _ in recording:
            calls.opened.append(module)
        try:
            return function(module, *args, **kwargs)
        finally:
            for calls, _ in recording:
                calls.opened.pop()

    return call_recorded([record for _, record in recording], proceed, type(module).__name__, args, kwargs)


@contextlib.contextmanager
def intercept_calls(handler: Callable[..., Any], classes: Iterable[type]) -> Iterator[None]:
    """This thread's calls of modules of these classes go to the handler, as `handler(function, module, *args)`."""

    def bound(original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        return handler(_method(original), module, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for cls in classes:
            stack.enter_context(_interception(cls).by(bound))
        yield


def _interception(cls: type) -> Interception:
    with process_lock:
        if cls not in _interceptions:
            _interceptions[cls] = Interception(weakref.ref(cls), "__call__")
        return _interceptions[cls]


def _method(original: Any) -> Callable[..., Any]:
    """Return a class's attribute as a function of the module, since a `tf.function` keeps its traces by the module."""
    if not hasattr(original, "python_function"):
        return original  # type: ignore[no-any-return]
    return lambda module, *args, **kwargs: original.__get__(module, type(module))(*args, **kwargs)


def is_floating(value: object) -> bool:
    """Return whether the value is a floating-point tensor with values."""
    return isinstance(value, tf.Tensor) and hasattr(value, "numpy") and value.dtype.is_floating


def is_symbolic(value: object) -> bool:
    """Return whether the value is a floating-point tensor in a graph that is being traced."""
    return isinstance(value, tf.Tensor) and value.dtype.is_floating
