"""Finds a model's trainable variables, and names them as their framework does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import tensorflow as tf

from embgrad.backend import Weight
from embgrad.backend.keras_inputs import is_keras
from embgrad.backend.locks import model_lock
from embgrad.backend.signature import as_parts
from embgrad.common.arrays import owned
from embgrad_tensorflow.state import expect_eager, other_tapes_paused
from embgrad_tensorflow.walk import Node, handle_of, is_saved, native_variable, walk

__all__ = ["Parameters", "alone", "checkpoint_name", "putter", "weights"]

#: The attributes under which a saved object may list its variables for those who load it.
LISTS: Final = ("variables", "trainable_variables", "non_trainable_variables")


class Parameters:
    """The trainable variables of a model's parts, each once, in the model's order.

    A module with a list of its own of what is trainable decides on all variables that it holds, as a frozen Keras layer does;
    the outermost one has the say.

    Attributes:
        trainable: the variables by name: `name` in Keras 2 and of plain `tf.Variable`s, `path` in Keras 3. Repeats have `#1`,
            `#2`, …; with several parts a name begins with the part's number.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        found = [(number, variable, trains) for number, part in enumerate(parts) for variable, trains in _held(part)]
        self._names: dict[int, tuple[Any, str]] = {}
        self._variables: dict[str, Any] = {}
        self.trainable: dict[str, Any] = {}
        spelled: Counter[str] = Counter()
        for number, variable, trains in sorted(found, key=lambda one: not one[2]):  # the others are named after them
            handle = handle_of(variable)
            if handle is None or id(handle) in self._names:
                continue
            plain = f"{number}." * (len(parts) > 1) + _spelled(variable)
            name = f"{plain}#{spelled[plain]}" if spelled[plain] else plain
            spelled[plain] += 1
            self._names[id(handle)], self._variables[name] = (handle, name), variable
            if trains:
                self.trainable[name] = variable

    def name(self, handle: Any) -> str | None:
        """The name of a variable, trainable or not; None for none of the model's."""
        return self._names[id(handle)][1] if handle is not None and id(handle) in self._names else None

    def items(self) -> Iterable[tuple[str, Any]]:
        """All variables with their names, the trainable ones first."""
        return self._variables.items()

    def variable(self, name: str) -> Any:
        """The variable of that name, trainable or not."""
        return self._variables[name]


def is_hub_layer(module: Any) -> bool:
    """Return whether the layer is a `hub.KerasLayer`."""
    return any(base.__module__.startswith("tensorflow_hub") for base in type(module).__mro__)


def _spelled(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def _held(part: Any) -> Iterator[tuple[Any, bool]]:
    """The variables of a part, and whether each is trainable."""
    nodes = list(walk([part]))
    copies = _copies(nodes)
    claimed: set[int] = set()
    decided: list[str] = []
    for node in nodes:
        beneath = any(not path or node.path == path or node.path.startswith(f"{path}.") for path in decided)
        if is_hub_layer(node.value):
            decided.append(node.path)  # on all that it has loaded, which says of itself that it is trainable
        if node.kind == "variable":
            # a Keras layer lists what it trains; what else hangs on it, such as a model's counters, is none of that
            trains = node.value.trainable and not is_keras(node.owner)
            held, trainable = [node.value], [node.value] if trains else []
        else:
            # the trainable ones first, which makes the order that users know
            trainable = _listed(node.value, "trainable_variables")
            held = [*trainable, *_listed(node.value, "variables")]
        kept = set() if beneath else {id(handle_of(one)) for one in trainable}
        for variable in held:
            handle = handle_of(variable)
            if handle is not None and id(handle) not in claimed and id(handle) not in copies:
                claimed.add(id(handle))
                yield variable, id(handle) in kept


def _copies(nodes: Iterable[Node]) -> set[int]:
    """The handles of variables that saving has left over beside those that a saved object lists, and that nothing it runs reads.

    So Keras 3 exports every variable once more, under `_all_variables`, where no function refers to it.
    """
    saved = [node for node in nodes if node.kind == "module" and is_saved(node.value)]
    listing = [node.path for node in saved if _listed(node.value, "variables")]
    if not listing:
        return set()
    known = {id(handle_of(one)) for node in saved for name in LISTS for one in _listed(node.value, name)}
    known |= {id(one) for node in saved for function in _functions(node.value) for one in function.captured_inputs}
    return {
        id(handle_of(node.value))
        for node in nodes
        if node.kind == "variable"
        and id(handle_of(node.value)) not in known
        and any(not path or node.path.startswith(f"{path}.") for path in listing)
    }


def _functions(module: Any) -> Iterator[Any]:
    """The compiled functions of a saved object, its signatures included."""
    for value in [*vars(module).values(), *dict(getattr(module, "signatures", None) or {}).values()]:
        yield from getattr(value, "concrete_functions", None) or ([value] if hasattr(value, "captured_inputs") else ())


def _listed(module: Any, name: str) -> list[Any]:
    if is_keras(module) and not module.built:  # some refuse to tell what they have not made yet
        return []
    return list(getattr(module, name, None) or ())


# Weights to be read and replaced


#: What TensorFlow's BERT names otherwise than the checkpoint.
LAST_NAMES: Final = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}


def weights(model: Any) -> list[Weight]:
    """The floating variables by name, each once: the trainable ones first, in the model's order."""
    expect_eager()
    parts = as_parts(model)
    nodes = list(walk(parts))
    owners = {id(handle_of(node.value)): node for node in nodes if node.kind == "variable"}
    canonical = _canonical(nodes)
    found = []
    for name, variable in Parameters(parts).items():
        native = native_variable(variable)
        node = owners.get(id(handle_of(variable)))
        if native.dtype.is_floating and not (node is not None and _is_metric(node.owner)) and _has_value(native):
            found.append(_weight(name, node, native, canonical.get(id(handle_of(variable)))))
    return found


def alone(model: Any) -> AbstractContextManager[None]:
    """Meanwhile no other thread runs the model."""
    return model_lock(as_parts(model))


def putter(variable: Any) -> Callable[[np.ndarray], None]:
    """Return a function that writes values into a variable."""
    native = native_variable(variable)

    def put(value: np.ndarray) -> None:
        expect_eager()
        with other_tapes_paused():
            native.assign(tf.cast(tf.constant(value), native.dtype))

    return put


def checkpoint_name(name: str) -> tuple[str, bool]:
    """Return the checkpoint's name of a BERT's variable, and whether the variable is its transpose.

    `.../bert/encoder/layer_._0/output/dense/kernel:0` is `encoder.layer.0.output.dense.weight`, transposed.
    """
    path = name.split("/bert/", 1)[1].removesuffix(":0")
    *modules, last = re.sub(r"layer_\._(\d+)", r"layer/\1", path).split("/")
    return ".".join([*modules, LAST_NAMES.get(last, last)]), last == "kernel"


def _weight(name: str, node: Node | None, native: Any, canonical: tuple[str, bool] | None) -> Weight:
    def get() -> np.ndarray:
        expect_eager()
        with other_tapes_paused():
            return owned(native.numpy())

    shape = tuple(map(int, native.shape))
    source, transposed = canonical or (None, False)
    owner = "" if node is None else _owner(node, native)
    return Weight(name, owner, shape, str(native.dtype.name), get, putter(native), source, transposed)


def _owner(node: Node, native: Any) -> str:
    """The path of the layer that holds a variable; in a saved model, which only lists them, the scope that it was made in."""
    if is_saved(node.owner) and "/" in native.name:
        return str(native.name).rpartition("/")[0]
    return node.owner_path


def _has_value(native: Any) -> bool:
    return bool(native.shape.is_fully_defined() and native.is_initialized())


def _is_metric(owner: Any) -> bool:
    """Return whether the object is a metric of a training loop, which is no part of the forward pass."""
    return any(base.__qualname__ == "Metric" for base in type(owner).__mro__)


def _canonical(nodes: Iterable[Node]) -> dict[int, tuple[str, bool]]:
    """Return the checkpoint's names of an encoder's variables by their handles, where the model holds one BERT."""
    encoders = [node.value for node in nodes if node.kind == "module" and _is_bert(node.value)]
    if len(encoders) != 1:
        return {}
    return {id(handle_of(one)): checkpoint_name(one.name) for one in _named(encoders[0])}


def _named(encoder: Any) -> Iterator[Any]:
    return (one for one in encoder.weights if "/bert/" in one.name)


def _is_bert(module: Any) -> bool:
    return any(
        base.__module__.startswith("transformers.") and base.__qualname__ == "TFBertMainLayer"
        for base in type(module).__mro__
    )
