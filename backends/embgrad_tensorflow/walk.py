"""Walk a model's attributes: its modules and variables, each by its shortest attribute path."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from embgrad.backend import UNNAMED_TABLE
from embgrad.errors import UnsupportedError
from embgrad.keras import Node, is_keras
from embgrad.keras import layers as keras_layers

__all__ = [
    "Node",
    "Tables",
    "bookkeeping",
    "children",
    "handle_of",
    "has_base",
    "is_restored",
    "is_saved",
    "is_the_users",
    "kinds",
    "native_variable",
    "on_devices",
    "walk",
]

#: Libraries whose functions and plain objects hold no modules of the user's.
LIBRARIES: Final = frozenset(
    {"embgrad", "embgrad_tensorflow", "keras", "keras_hub", "numpy", "tensorflow", "tf_keras", "transformers"}
)

#: The attributes under which saved objects list their variables.
LISTED: Final = re.compile(r"\w*variables\.\d+")


def walk(parts: Sequence[Any], aliases: dict[int, list[str]] | None = None) -> Iterator[Node]:
    """Return the modules and variables of a model, as `keras_layers.walk` does.

    What only a plain object holds, or a function by its closure or its globals, is found too: it runs with the model.

    Args:
        parts: the model's parts.
        aliases: takes the other paths of the model's own attributes that lead to an object, by its id.
    """
    hidden = keras_layers.GRAPH.union(bookkeeping())

    def known(module: Any) -> Collection[str]:
        return hidden if is_keras(module) or isinstance(module, tf.Module) else ()

    def list_held(value: Any, kind: str) -> Iterable[tuple[str, Any]]:
        return () if kind == "function" and not is_the_users(value) else children(value, kind)

    return keras_layers.walk(parts, kinds, list_held, known, aliases)


@functools.cache
def bookkeeping() -> Mapping[str, type]:
    """Return the attributes that Keras gives every layer and model, and TensorFlow every module, with their types.

    They hold settings for building and training, and once more what the model's own attributes hold.
    """
    module = tf.Module()
    module.empty = []  # makes TensorFlow add its bookkeeping
    names = {name: type(value) for name, value in vars(module).items() if name != "empty"}
    return {**keras_layers.bookkeeping(), **names}


def _kind_of(cls: type) -> str | None:
    """Return what objects of a class are: "variable", "module", "list", "dict", "function", "object" (the user's) or None."""
    names = {base.__qualname__ for base in cls.__mro__}
    keras = {base.__qualname__ for base in cls.__mro__ if base.__module__.partition(".")[0] == "keras"}
    if issubclass(cls, tf.Variable) or "Variable" in keras:
        return "variable"
    if issubclass(cls, (list, tuple, set, frozenset, deque)) or not names.isdisjoint(("ListWrapper", "_TupleWrapper")):
        return "list"
    if issubclass(cls, Mapping) or "_DictWrapper" in names:
        return "dict"
    if issubclass(cls, tf.Module) or "AutoTrackable" in names or not keras.isdisjoint(("Metric", "SeedGenerator")):
        return "module"
    if issubclass(cls, (types.FunctionType, types.MethodType, functools.partial)) or "PolymorphicFunction" in names:
        return "function"
    if issubclass(cls, types.SimpleNamespace):
        return "object"
    root = cls.__module__.partition(".")[0]
    return None if root in LIBRARIES or (root in sys.stdlib_module_names and root != "__main__") else "object"


#: The kinds of all classes.
kinds: Final = keras_layers.Kinds(_kind_of)


def has_base(value: Any, *names: str, package: str = "") -> bool:
    """Return whether an object's class or a base of it has one of these names, in a package of that name."""
    return any(base.__qualname__ in names and base.__module__.startswith(package) for base in type(value).__mro__)


def is_the_users(function: Any) -> bool:
    """Return whether a function is the user's, as one made by `tf.function` is, and not a library's."""
    if not isinstance(function, types.FunctionType):
        return True
    root = (function.__module__ or "").partition(".")[0]
    return root not in LIBRARIES and root not in sys.stdlib_module_names - {"__main__"}


def is_restored(value: Any) -> bool:
    """Return whether an object or a function is of a class that TensorFlow makes where it loads a SavedModel."""
    return any(base.__module__.startswith("tensorflow.python.saved_model") for base in type(value).__mro__)


def is_saved(part: Any) -> bool:
    """Return whether the object was restored from a SavedModel without its Python; TensorFlow 1's have signatures alone."""
    return is_restored(part) or is_restored(getattr(part, "signatures", None))


def handle_of(variable: Any) -> Any:
    """Return the resource that operations know a variable by, or None where it has none (yet)."""
    native = native_variable(variable)
    try:
        return getattr(native, "handle", None)
    except ValueError as error:
        strategy = type(tf.distribute.get_strategy()).__name__
        raise UnsupportedError(
            f"the model's variables belong to a {strategy}, and embgrad was called in its scope(), where no device is "
            "selected. Call it outside of the scope, or in strategy.run"
        ) from error


def native_variable(variable: Any) -> Any:
    """Return TensorFlow's own variable, which a variable of Keras 3 wraps."""
    return getattr(variable, "_value", variable)


def on_devices(variable: Any) -> Sequence[Any]:
    """TensorFlow's own variables behind one, each with a resource: one for each device that a strategy has mirrored it on."""
    native = native_variable(variable)
    return native.values if isinstance(native, tf.distribute.DistributedValues) else (native,)


def children(value: Any, kind: str | None) -> Iterator[tuple[str, Any]]:
    """Return the objects that an object of that kind holds, each with its name."""
    if has_base(value, "ConcreteFunction"):
        return ((variable.name.removesuffix(":0"), variable) for variable in value.variables)
    if kind in ("list", "dict"):
        return keras_layers.entries(value, kind)
    if kind == "function":
        return _list_held_by(value)
    if kind == "object":
        return itertools.chain(keras_layers.attributes(value), _in_slots(value))
    return keras_layers.attributes(value)


def _list_held_by(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function reaches: the object that it is bound to, its closure, the globals that it names."""
    function = getattr(function, "python_function", function)  # of a `tf.function`
    method = getattr(function, "__wrapped__", function)  # TensorFlow wraps its bound methods
    if isinstance(method, types.MethodType):
        yield "self", getattr(method.__self__, "target", method.__self__)
        function = method.__func__
    if isinstance(function, functools.partial):
        yield "func", function.func
        yield from ((str(number), entry) for number, entry in enumerate(function.args))
        yield from function.keywords.items()
    if not isinstance(function, types.FunctionType):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # an empty cell is not set yet
            entry = cell.cell_contents
            yield name, entry() if isinstance(entry, weakref.ref) else entry
    names = function.__code__.co_names
    yield from ((name, function.__globals__[name]) for name in names if name in function.__globals__)


def _in_slots(value: Any) -> Iterator[tuple[str, Any]]:
    for base in type(value).__mro__:
        for name, slot in vars(base).items() if base.__module__ != "builtins" else ():
            if isinstance(slot, types.MemberDescriptorType) and name != "__dict__":
                with contextlib.suppress(AttributeError):  # an empty slot
                    yield name, slot.__get__(value)


class Tables:
    """The names of the tables that lookups are made in, by the resource of the variable."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._paths: dict[int, tuple[Any, str]] = {}
        self._nodes: dict[int, Node] = {}
        self._loose: dict[int, str] | None = None

    def loose(self, handle: Any) -> str | None:
        """Return the path of a variable by which products with it are points; None where they are none."""
        if self._loose is None:
            self.path(handle)
            self._loose = keras_layers.find_loose(self._nodes.values())
        node = self._nodes.get(id(handle))
        return None if node is None else self._loose.get(id(node.value))

    def path(self, handle: Any) -> str:
        """Return the attribute path of the table's layer, or of a bare variable; `UNNAMED_TABLE` outside of the model."""
        if handle is None:
            return UNNAMED_TABLE
        if id(handle) not in self._paths:  # the first lookup, or a layer that was built just now
            self.learn(walk(self._parts))
            self._paths.setdefault(id(handle), (handle, UNNAMED_TABLE))
        return self._paths[id(handle)][1]

    def padding(self, handle: Any) -> int | None:
        """Return the row that the table's owner declares to be padding: 0 under Keras's `mask_zero`."""
        node = None if handle is None else self._nodes.get(id(handle))
        return None if node is None else keras_layers.padding_row(node.owner)

    def variables(self, path: str) -> list[Any]:
        """Return the variables whose tables go by that path."""
        if not self._nodes:
            self.learn(walk(self._parts))
        return [
            self._nodes[number].value
            for number, (_, known) in self._paths.items()
            if known == path and number in self._nodes
        ]

    def paths(self) -> list[str]:
        """Return the paths of what may be a table."""
        self.learn(walk(self._parts))
        matrices = (number for number, node in self._nodes.items() if len(node.value.shape) == 2)
        return list(dict.fromkeys(self._paths[number][1] for number in matrices))

    def with_rows(self, rows: int) -> list[Any]:
        """Return the variables that may be a table of so many rows, those of layers included that were built just now."""
        self.learn(walk(self._parts))
        variables = (node.value for node in self._nodes.values())
        return [variable for variable in variables if len(variable.shape) == 2 and variable.shape[0] == rows]

    def learn(self, nodes: Iterable[Node], learned: dict[str, Any] | None = None) -> None:
        """Take the paths of these nodes of the parts, for a walk that has been made already.

        Args:
            nodes: what the parts are made of.
            learned: keeps the paths for as long as the parts are made so.
        """
        variables = [node for node in nodes if node.kind == "variable"]
        learned = {} if learned is None else learned
        if "tables" not in learned:
            learned["tables"] = [path or UNNAMED_TABLE for path in keras_layers.table_paths(variables, _table_path)]
        pairs = [(handle_of(node.value), node) for node in variables]
        named = zip(pairs, learned["tables"], strict=True)
        self._paths = {id(pair[0]): (pair[0], path) for pair, path in named if pair[0] is not None}
        self._nodes = {id(known): node for known, node in pairs if known is not None}
        self._loose = None


def _table_path(node: Node) -> str:
    """Return the path of the Embedding layer or of the variable; in a saved model, which lists its variables, its name."""
    attribute = node.path.removeprefix(f"{node.owner_path}.") if node.owner_path else node.path
    if is_saved(node.owner) and LISTED.fullmatch(attribute):
        # layers around saved objects, such as `hub.KerasLayer`, hold them in private attributes
        holder = [part for part in node.owner_path.split(".") if not part.startswith("_")]
        return ".".join([*filter(None, holder), node.value.name.removesuffix(":0")])
    return keras_layers.table_path(node)
