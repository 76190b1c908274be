"""Keras 3 models on JAX: their layers and variables by Keras's names, and calls with other values in the variables' places."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import keras

from embgrad.errors import UnsupportedError
from embgrad.keras import keras_bases
from embgrad.keras import layers as keras_layers
from embgrad.toolkit import Interception, is_recorded, may_be_state
from embgrad_jax.leaves import Leaf, record_changes
from embgrad_jax.modules import mark

__all__ = ["KerasParts"]

_calls: Final = Interception(lambda: keras.Layer, "__call__")


class KerasParts:
    """The parts that are Keras layers or models, which may share layers."""

    def __init__(self, parts: Mapping[int, Any], prefixes: Mapping[int, str]) -> None:
        self._parts = parts
        aliases: dict[int, list[str]] = {}
        prefixed = [
            (node, prefixes[index])
            for index, part in parts.items()
            for node in _prefix(
                prefixes[index], keras_layers.walk([part], _kinds, _list_held, keras_layers.find_hidden, aliases)
            )
        ]
        nodes = {
            id(node.value): (node, prefix) for node, prefix in reversed(prefixed)
        }  # of the first part that holds it
        ordered = [nodes[key] for key in dict.fromkeys(id(node.value) for node, _ in prefixed)]
        layers = [node for node, _ in ordered if node.kind == "module"]
        variables = [
            (node, prefix)
            for node, prefix in ordered
            if node.kind == "variable" and keras_layers.value_of(node.value) is not None
        ]
        self._variables = [node for node, _ in variables]
        self._names = {id(node.value): node.path for node in layers}
        self._further = keras_layers.further_names(layers, aliases)
        self.modules = {node.path: type(node.value).__name__ for node in layers}
        self.attributes = [vars(node.value) for node in layers]
        for part in parts.values():
            _expect_built(part)
        tables = keras_layers.table_paths(self._variables)
        seen: Counter[str] = Counter()
        self._loose = keras_layers.find_loose(self._variables)
        self.leaves: Sequence[Leaf] = [
            self._leaf(node, prefix, table, seen) for (node, prefix), table in zip(variables, tables, strict=True)
        ]
        self.structure: Hashable = tuple((node.path, type(node.value), _plain(node.value)) for node in layers) + tuple(
            map(id, parts.values())
        )

    def _leaf(self, node: keras_layers.Node, prefix: str, table: str, seen: Counter[str]) -> Leaf:
        variable = node.value
        name = f"{prefix}{variable.path}"
        count = seen[name]
        seen[name] += 1
        return Leaf(
            name if not count else f"{name}#{count}",
            node.owner_path,
            table,
            bool(variable.trainable),
            "SeedGenerator" in keras_bases(type(node.owner)) or "seed_generator_state" in variable.path,
            keras_layers.value_of(variable),
            lambda: keras_layers.value_of(variable),
            variable.assign,
            may_be_state(node.owner, trainable=bool(variable.trainable)),
            keras_layers.padding_row(node.owner),
            alone=id(variable) in self._loose,
            path=None if keras_layers.is_of_library(node.owner) else node.path,
        )

    @contextlib.contextmanager
    def open_parts(
        self, arrays: Sequence[Any], *, training: bool
    ) -> Iterator[tuple[Mapping[int, Any], Callable[[], list[Any]]]]:
        """Put other values in the places of the variables, and mark the calls of layers."""
        variables = [node.value for node in self._variables]

        def called(call: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
            path = self._names.get(id(layer))
            if path is None:
                return call(layer, *args, **kwargs)
            proceed = lambda *args, **kwargs: call(layer, *args, **kwargs)  # noqa: E731
            return mark(proceed, path, type(layer).__name__, args, kwargs, self._further.get(id(layer), ()))

        scope = keras.StatelessScope(state_mapping=list(zip(variables, arrays, strict=True)))

        def random_values() -> list[Any]:
            values = [scope.get_current_value(variable) for variable in variables]
            return [value for leaf, value in zip(self.leaves, values, strict=True) if leaf.random]

        with scope, _calls.by(called):
            yield self._parts, random_values
            if is_recorded():
                record_changes(self.leaves, arrays, [scope.get_current_value(variable) for variable in variables])


def _expect_built(part: Any) -> None:
    """Raise an error for a model that is not built: Keras would create its weights during the trace."""
    if not part.built:
        raise UnsupportedError(
            f"the Keras model {type(part).__name__} has no weights yet, as it was never called. Call it once on a batch, or "
            "model.build(...), before you pass it"
        )


def _prefix(prefix: str, nodes: Iterable[keras_layers.Node]) -> Iterator[keras_layers.Node]:
    for node in nodes:
        path, owner = (f"{prefix}{name}".rstrip(".") for name in (node.path, node.owner_path))
        yield keras_layers.Node(path, node.value, node.kind, node.owner, owner)


def _kind_of(cls: type) -> str | None:
    """Return the kind of a class in a Keras model."""
    bases = keras_bases(cls)
    for base, kind in {"Layer": "module", "Variable": "variable", "SeedGenerator": "object"}.items():
        if base in bases:
            return kind
    return None


_kinds: Final = keras_layers.Kinds(_kind_of)


def _list_held(value: Any, kind: str) -> Iterable[tuple[str, Any]]:
    return keras_layers.attributes(value) if kind == "module" else vars(value).items()


def _plain(layer: Any) -> tuple[tuple[str, Any], ...]:
    """Return the plain attributes of a layer, on which its computation may depend."""
    plain = (bool, int, float, str, bytes, type(None), tuple)
    return tuple(sorted((name, repr(value)) for name, value in vars(layer).items() if isinstance(value, plain)))
