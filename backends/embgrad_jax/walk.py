"""Walk a model: its arrays and modules, each by its path, and how a copy of it is made of other arrays."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import types
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from embgrad.errors import UnsupportedError
from embgrad.keras import is_keras
from embgrad.toolkit import as_parts, is_recorded, may_be_state
from embgrad_jax.leaves import Leaf, record_changes
from embgrad_jax.modules import dress, is_marked

__all__ = [
    "Family",
    "Leaf",
    "Structure",
    "class_names",
    "has_base",
    "is_companion",
    "is_equinox",
    "is_huggingface",
    "is_linen",
    "is_model",
    "is_nnx",
    "is_tree",
]

#: The name under which Flax's `Embed`, in Linen and NNX, and others hold their table.
TABLES: Final = ("embedding", "embeddings", "weight")

#: The class names of modules that own a table by one of these names.
EMBEDS: Final = ("Embed", "Embedding")


class Family(Protocol):
    """Parts of a model that are taken apart in one way.

    Attributes:
        leaves: the arrays, in the model's order, shared ones once.
        modules: the class names of the modules by path.
        structure: everything that determines the parts beside the values of their arrays, comparable.
    """

    @property
    def leaves(self) -> Sequence[Leaf]:
        """The arrays of the parts in the model's order, shared ones once."""
        ...

    @property
    def modules(self) -> Mapping[str, str]:
        """The modules."""
        ...

    @property
    def structure(self) -> Hashable:
        """The structure."""
        ...

    @property
    def attributes(self) -> Sequence[dict[str, Any]]:
        """The attributes of modules that the copy of a part shares with it."""
        ...

    def open_parts(self, arrays: Sequence[Any], *, training: bool) -> Any:
        """Return a context manager: while it is open, its result holds the parts by index, made of other arrays and marked.

        The second entry of its result returns the values that the parts' random states have, in the order of `leaves`.
        """
        ...


def class_names(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the module and the qualified name of a class and its bases."""
    return ((base.__module__, base.__qualname__) for base in cls.__mro__)


def has_base(part: object, module: str, name: str) -> bool:
    """Return whether an object's class has a base of that name from that module."""
    return any(base == (module, name) for base in class_names(type(part)))


def is_nnx(part: object) -> bool:
    """Return whether an object is a `flax.nnx.Module`."""
    return has_base(part, "flax.nnx.module", "Module")


def is_equinox(part: object) -> bool:
    """Return whether an object is an `equinox.Module`."""
    return any(module.startswith("equinox.") and name == "Module" for module, name in class_names(type(part)))


def is_linen(part: object) -> bool:
    """Return whether an object is a `flax.linen.Module`, which holds no arrays."""
    return has_base(part, "flax.linen.module", "Module")


def is_huggingface(part: object) -> bool:
    """Return whether an object is a Flax model of Hugging Face, which holds a Linen module and its parameters."""
    return has_base(part, "transformers.modeling_flax_utils", "FlaxPreTrainedModel")


def is_companion(part: object) -> bool:
    """Return whether an object holds no arrays and goes with a part that does: a Linen module, a graph definition, a function."""
    if is_linen(part) or isinstance(part, (types.FunctionType, types.MethodType, functools.partial)):
        return True
    return class_names(type(part)).__next__()[1] in ("GraphDef", "PjitFunction")


def is_tree(part: object) -> bool:
    """Return whether an object is a pytree with JAX's arrays in it, such as a dict of parameters, and no array itself."""
    jax = sys.modules.get("jax")
    if jax is None or isinstance(part, (jax.Array, list, tuple, str, bytes, int, float, type(None))):
        return False
    try:
        return any(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(part))
    except (TypeError, ValueError):  # such as a dict whose keys cannot be sorted
        return False


def is_model(part: object) -> bool:
    """Return whether an object is a model of JAX or a part of one."""
    if is_keras(part):
        roots = {module.partition(".")[0] for module, _ in class_names(type(part))}
        # A model of tf_keras, Keras 2, runs on TensorFlow alone, whatever Keras 3 runs on and whether it is imported.
        return "tf_keras" not in roots and bool(sys.modules["keras"].config.backend() == "jax")
    return is_nnx(part) or is_equinox(part) or is_huggingface(part) or is_companion(part) or is_tree(part)


class Structure:
    """The structure of a model: its arrays and modules.

    Args:
        model: a model, or a sequence of parts.

    Attributes:
        leaves: the arrays, in order.
        families: the parts by how they are taken apart.
    """

    def __init__(self, model: Any) -> None:
        parts = as_parts(model)
        whole = not isinstance(model, (list, tuple))
        holders = [index for index, part in enumerate(parts) if not is_companion(part)]
        prefixes = {index: "" if whole or len(holders) == 1 else f"{index}." for index in holders}
        self._parts = parts
        self._whole = whole
        self.families: list[Family] = []
        nnx = [index for index in holders if is_nnx(parts[index]) and not is_keras(parts[index])]
        keras = [index for index in holders if is_keras(parts[index])]
        if nnx:
            self.families.append(NnxParts({index: parts[index] for index in nnx}, prefixes))
        if keras:
            from embgrad_jax.keras import KerasParts

            self.families.append(KerasParts({index: parts[index] for index in keras}, prefixes))
        self.families += [
            HuggingFacePart(index, parts[index], prefixes[index])
            if is_huggingface(parts[index])
            else TreePart(index, parts[index], prefixes[index], linen=any(map(is_linen, parts)))
            for index in holders
            if index not in nnx and index not in keras
        ]
        self.leaves = [leaf for family in self.families for leaf in family.leaves]
        matrices = Counter(leaf.module for leaf in self.leaves if leaf.trainable and leaf.array.ndim > 1)
        self.leaves = [
            replace(leaf, alone=matrices[leaf.module] > 1 or not leaf.module) if leaf.alone is None else leaf
            for leaf in self.leaves
        ]
        self.structure = (
            tuple(family.structure for family in self.families),
            tuple(part for part in parts if is_companion(part)),
            tuple((leaf.array.shape, str(leaf.array.dtype)) for leaf in self.leaves),
        )

    @property
    def arrays(self) -> list[Any]:
        """The values of the arrays."""
        return [leaf.array for leaf in self.leaves]

    def paths(self) -> Collection[str]:
        """Return the paths of modules and tables."""
        modules = [path for family in self.families for path in family.modules if path]
        tables = [leaf.table for leaf in self.leaves if leaf.floating and leaf.array.ndim == 2]
        return list(dict.fromkeys([*modules, *tables]))

    @contextlib.contextmanager
    def open_parts(self, arrays: Sequence[Any], *, training: bool) -> Iterator[tuple[Any, Callable[[], list[Any]]]]:
        """Yield the model made of other arrays, its modules marked, and a function that returns its random states' values."""
        copies, randoms, start = dict(enumerate(self._parts)), [], 0
        with contextlib.ExitStack() as stack:
            for family in self.families:
                own = arrays[start : start + len(family.leaves)]
                start += len(family.leaves)
                made, random_values = stack.enter_context(family.open_parts(own, training=training))
                copies.update(made)
                randoms.append(random_values)
            model = copies[0] if self._whole else type(self._parts)(copies[index] for index in range(len(copies)))
            yield model, lambda: [value for values in randoms for value in values()]


class NnxParts:
    """The parts that are Flax NNX modules, which may share variables."""

    def __init__(self, parts: dict[int, Any], prefixes: dict[int, str]) -> None:
        from flax import nnx

        self._nnx = nnx
        self._indices = list(parts)
        self._graph, state = nnx.split(tuple(parts.values()))
        values, self._tree = jax.tree_util.tree_flatten(state)
        named = [prefixes[index] for index in parts]
        reached = [(path, node) for path, node in nnx.iter_graph(tuple(parts.values())) if path]
        variables = {_join(named, path): node for path, node in reached if isinstance(node, nnx.Variable)}
        nodes = [(path, node) for path, node in reached if isinstance(node, nnx.Module)]
        self._modules = {_join(named, path): node for path, node in nodes}
        self.modules = {path: type(node).__name__ for path, node in self._modules.items()}
        self.attributes = [vars(node) for node in self._modules.values()]
        self._at = {path: _join(named, path) for path, _ in nodes}
        self.leaves = [self._leaf(path, value, named, variables) for path, value in self._flat(state, values)]
        self.structure = (self._graph, self._tree)

    def _flat(self, state: Any, values: Sequence[Any]) -> list[tuple[tuple[Any, ...], Any]]:
        """Return the path of each array with it; several arrays of one variable have a number at the end of their paths."""
        kinds = tuple({self._nnx.Variable, vars(self._nnx).get("VariableState", self._nnx.Variable)})
        nodes = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda node: isinstance(node, kinds))[0]
        flat: list[tuple[tuple[Any, ...], Any]] = []
        for keys, node in nodes:
            path = tuple(_key(key) for key in keys)
            inside = jax.tree_util.tree_leaves(node)
            flat += [(path if not number else (*path, number), value) for number, value in enumerate(inside)]
        assert len(flat) == len(values)
        return flat

    def _leaf(self, path: tuple[Any, ...], value: Any, named: Sequence[str], variables: dict[str, Any]) -> Leaf:
        name = _join(named, path)
        module, _, attribute = name.rpartition(".")
        variable = variables.get(name)
        owner = self._modules.get(module)
        is_table = isinstance(owner, self._nnx.Embed) and attribute == "embedding"

        def get() -> Any:
            assert variable is not None, "an array outside of variables is no weight"
            return variable.get_value() if hasattr(variable, "get_value") else variable.value

        def put(new: Any) -> None:
            assert variable is not None, "an array outside of variables is no weight"
            variable.set_value(new) if hasattr(variable, "set_value") else setattr(variable, "value", new)

        kind = type(variable)
        return Leaf(
            name,
            module,
            module if is_table and module else name,
            issubclass(kind, self._nnx.Param),
            issubclass(kind, self._nnx.RngState),
            value,
            get,
            put,
            may_be_state(owner, trainable=issubclass(kind, self._nnx.Param)),
        )

    @contextlib.contextmanager
    def open_parts(self, arrays: Sequence[Any], *, training: bool) -> Iterator[Any]:
        """Merge copies of the parts, set their mode, and dress their modules."""
        nnx = self._nnx
        copies = nnx.merge(self._graph, jax.tree_util.tree_unflatten(self._tree, arrays))
        for copied in copies:
            copied.train() if training else copied.eval()
        marked = {path: name for path, name in self._at.items() if is_marked(name)}
        for path, module in list(nnx.iter_graph(copies)) if marked else ():
            if path in marked and callable(module):
                object.__setattr__(module, "__class__", dress(_class_of(module), marked[path]))

        def random_values() -> list[Any]:
            leaves = jax.tree_util.tree_leaves(nnx.split(copies)[1])
            return [value for leaf, value in zip(self.leaves, leaves, strict=True) if leaf.random]

        yield dict(zip(self._indices, copies, strict=True)), random_values
        if is_recorded():
            record_changes(self.leaves, arrays, jax.tree_util.tree_leaves(nnx.split(copies)[1]))


class TreePart:
    """A part that is a pytree: an Equinox module, Linen's variables, or any nest of parameters.

    Args:
        linen: whether it holds the variables of a Linen module.
    """

    def __init__(self, index: int, part: Any, prefix: str, *, linen: bool) -> None:
        self._index = index
        self._prefix = prefix
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(part)
        self._values = [None if _is_numeric(value) else value for _, value in leaves]
        self._numeric = [number for number, (_, value) in enumerate(leaves) if _is_numeric(value)]
        self._modules = dict(_equinox_modules(part, ()))
        self.attributes: Sequence[dict[str, Any]] = ()
        self.modules = {self._path_of(path): type(module).__name__ for path, module in self._modules.items()}
        self.leaves = [self._leaf(part, *leaves[number], linen=linen) for number in self._numeric]
        if linen:
            self.modules |= {leaf.module: "" for leaf in self.leaves}
        self.structure = (self._tree, tuple(value for value in self._values if value is not None))

    def _path_of(self, path: Sequence[str]) -> str:
        return (self._prefix + ".".join(path)).rstrip(".")

    def _leaf(self, part: Any, keys: Sequence[Any], value: Any, *, linen: bool) -> Leaf:
        path = [_key(key) for key in keys]
        name = self._path_of(path)
        module = self._path_of(path[1:-1] if linen else path[:-1])
        owner = self._modules.get(tuple(path[:-1]))
        is_table = path[-1] in TABLES and (linen or (owner is not None and type(owner).__name__ in EMBEDS))
        table = module if is_table and module else self._path_of(path[1:] if linen else path)
        array = jnp.asarray(value)
        # Linen's other variables and Equinox's states are such as running averages.
        is_state = path[0] != "params" if linen else has_base(part, "equinox.nn._stateful", "State")
        trainable = not is_state and bool(jnp.issubdtype(array.dtype, jnp.floating))
        random = bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))
        get, put = lambda: jnp.asarray(_value_at(part, keys)), lambda new: _put(part, keys, new)
        alone = None if linen or self._modules else True
        return Leaf(name, module, table, trainable, random, array, get, put, alone=alone)

    @contextlib.contextmanager
    def open_parts(self, arrays: Sequence[Any], *, training: bool) -> Iterator[Any]:
        """Make the tree of the arrays, and dress and set the mode of its Equinox modules."""
        values = list(self._values)
        for number, array in zip(self._numeric, arrays, strict=True):
            values[number] = array
        copied = jax.tree_util.tree_unflatten(self._tree, values)
        if self._modules:
            import equinox

            copied = equinox.nn.inference_mode(copied, value=not training)
            for path, module in _equinox_modules(copied, ()):
                if callable(module):
                    object.__setattr__(module, "__class__", dress(_class_of(module), self._path_of(path)))
        yield {self._index: copied}, lambda: [array for leaf, array in zip(self.leaves, arrays) if leaf.random]  # noqa: B905


class HuggingFacePart(TreePart):
    """A part that is a Flax model of Hugging Face."""

    def __init__(self, index: int, part: Any, prefix: str) -> None:
        try:
            params = part.params
        except ValueError as error:
            raise UnsupportedError(
                f"the model is a {type(part).__name__} without parameters, as _do_init=False makes it. Pass them beside it, "
                "(model, params), with call=lambda parts, inputs: parts[0](**inputs, params=parts[1])"
            ) from error
        super().__init__(index, {"params": params}, prefix, linen=True)
        self._part = part

    @contextlib.contextmanager
    def open_parts(self, arrays: Sequence[Any], *, training: bool) -> Iterator[Any]:
        """Make a copy of the model with other parameters."""
        with super().open_parts(arrays, training=training) as (made, random_values):
            copied = copy.copy(self._part)
            copied.params = made[self._index]["params"]
            yield {self._index: copied}, random_values


def _equinox_modules(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the object of each Equinox module in a tree."""
    if is_equinox(value):
        yield path, value
        entries: Any = vars(value).items()
    elif isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, (list, tuple)):
        entries = enumerate(value)
    else:
        return
    for name, entry in entries:
        yield from _equinox_modules(entry, (*path, str(name)))


def _class_of(module: Any) -> Any:
    return type(module)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray)) and (isinstance(value, jax.Array) or value.dtype.kind in "biuf")


def _key(key: Any) -> str:
    """Return the name of one step of a pytree's path."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _join(named: Sequence[str], path: Sequence[Any]) -> str:
    """Return the path of a node in one of several parts, whose prefixes are given."""
    first, *others = path
    return (named[int(first)] + ".".join(map(str, others))).rstrip(".")


def _put(part: Any, keys: Sequence[Any], value: Any) -> None:
    """Replace an array in a tree, in the container that holds it."""
    holder = _value_at(part, keys[:-1])
    name = _key(keys[-1])
    if isinstance(holder, dict):
        holder[getattr(keys[-1], "key", name)] = value
    elif isinstance(holder, list):
        holder[int(name)] = value
    else:
        object.__setattr__(holder, name, value)


def _value_at(part: Any, keys: Sequence[Any]) -> Any:
    """Return the entry of a tree at the end of a path."""
    value = part
    for key in keys:
        value = (
            getattr(value, key.name) if hasattr(key, "name") else value[getattr(key, "key", getattr(key, "idx", None))]
        )
    return value
