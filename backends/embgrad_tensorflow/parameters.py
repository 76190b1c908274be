"""Find a model's trainable variables, and name them as their framework does."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import tensorflow as tf

from embgrad.backend import Weight
from embgrad.checkpoints import WeightTarget, keras_checkpoint
from embgrad.errors import UnsupportedError, quote
from embgrad.keras import is_keras
from embgrad.keras import layers as keras_layers
from embgrad.toolkit import MemoryMeter, as_parts, copy_owned, model_lock
from embgrad_tensorflow.state import expect_eager, other_tapes_paused
from embgrad_tensorflow.walk import Node, handle_of, has_base, is_saved, native_variable, walk

__all__ = ["Parameters", "alone", "checkpoint_target", "device_meter", "weights", "writer"]

#: The attributes under which a saved object may list its variables for those who load it.
LISTS: Final = ("variables", "trainable_variables", "non_trainable_variables")


class Parameters:
    """The trainable variables of a model's parts, each once, in the model's order.

    A module that lists its trainable variables decides on all variables that it holds, as a frozen Keras layer does; the
    outermost such module decides.

    Attributes:
        trainable: the variables by name: `name` in Keras 2 and of plain `tf.Variable`s, `path` in Keras 3. Repeats have `#1`,
            `#2`, …; with several parts a name begins with the part's number.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        variables = [
            (number, variable, trains)
            for number, part in enumerate(parts)
            for variable, trains in _variables_with_mode(part)
        ]
        self._names: dict[int, tuple[Any, str]] = {}
        self._variables: dict[str, Any] = {}
        self.trainable: dict[str, Any] = {}
        counts: Counter[str] = Counter()
        for number, variable, trains in sorted(
            variables, key=lambda entry: not entry[2]
        ):  # the trainable ones take names first
            handle = handle_of(variable)
            if handle is None or id(handle) in self._names:
                continue
            plain = f"{number}." * (len(parts) > 1) + str(getattr(variable, "path", None) or variable.name)
            name = f"{plain}#{counts[plain]}" if counts[plain] else plain
            counts[plain] += 1
            self._names[id(handle)], self._variables[name] = (handle, name), variable
            if trains:
                self.trainable[name] = variable

    def name(self, handle: Any) -> str | None:
        """Return the name of a variable, trainable or not; None for none of the model's."""
        return self._names[id(handle)][1] if handle is not None and id(handle) in self._names else None

    def items(self) -> Iterable[tuple[str, Any]]:
        """All variables with their names, the trainable ones first."""
        return self._variables.items()

    def variable(self, name: str) -> Any:
        """Return the variable of that name, trainable or not."""
        return self._variables[name]


def _variables_with_mode(part: Any) -> Iterator[tuple[Any, bool]]:
    """Return the variables of a part, and whether each is trainable."""
    nodes = list(walk([part]))
    copies = _duplicates(nodes)
    claimed: set[int] = set()
    decided: list[str] = []
    for node in nodes:
        is_decided = any(not path or node.path == path or node.path.startswith(f"{path}.") for path in decided)
        if has_base(node.value, "KerasLayer", package="tensorflow_hub"):
            decided.append(node.path)  # its variables are marked as trainable even where it is not
        if node.kind == "variable":
            # a Keras layer lists what it trains; its other variables, such as a model's counters, are not trained
            trains = node.value.trainable and not is_keras(node.owner)
            variables, trainable = [node.value], [node.value] if trains else []
        else:
            # the trainable ones first, in the order that users know
            trainable = _variables_listed(node.value, "trainable_variables")
            variables = [*trainable, *_variables_listed(node.value, "variables")]
        trained = set() if is_decided else {id(handle_of(entry)) for entry in trainable}
        for variable in variables:
            handle = handle_of(variable)
            if handle is not None and id(handle) not in claimed and id(handle) not in copies:
                claimed.add(id(handle))
                yield variable, id(handle) in trained


def _duplicates(nodes: Iterable[Node]) -> set[int]:
    """Return the handles of duplicate variables in a saved object.

    Keras 3 exports each variable a second time, under `_all_variables`, unlisted and read by no function.
    """
    saved = [node for node in nodes if node.kind == "module" and is_saved(node.value)]
    listing = [node.path for node in saved if _variables_listed(node.value, "variables")]
    if not listing:
        return set()
    known = {id(handle_of(entry)) for node in saved for name in LISTS for entry in _variables_listed(node.value, name)}
    known |= {id(entry) for node in saved for function in _functions(node.value) for entry in function.captured_inputs}
    return {
        id(handle_of(node.value))
        for node in nodes
        if node.kind == "variable"
        and id(handle_of(node.value)) not in known
        and any(not path or node.path.startswith(f"{path}.") for path in listing)
    }


def _functions(module: Any) -> Iterator[Any]:
    """Return the compiled functions of a saved object, its signatures included."""
    for value in [*vars(module).values(), *dict(getattr(module, "signatures", None) or {}).values()]:
        yield from getattr(value, "concrete_functions", None) or ([value] if hasattr(value, "captured_inputs") else ())


def _variables_listed(module: Any, name: str) -> list[Any]:
    if is_keras(module) and not module.built:  # some raise before they are built
        return []
    return list(getattr(module, name, None) or ())


# Reading and replacing weights


#: The names in TensorFlow's BERT that differ from the checkpoint's.
LAST_NAMES: Final = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}


def weights(model: Any) -> list[Weight]:
    """Return the floating variables by name, each once: the trainable ones first, in the model's order."""
    expect_eager()
    parts = as_parts(model)
    nodes = list(walk(parts))
    owners = {id(handle_of(node.value)): node for node in nodes if node.kind == "variable"}
    canonical = _canonical(parts, nodes)
    result = []
    for name, variable in Parameters(parts).items():
        native = native_variable(variable)
        node = owners.get(id(handle_of(variable)))
        is_metric = node is not None and has_base(node.owner, "Metric")  # metrics belong to the training loop
        if native.dtype.is_floating and not is_metric and _has_value(native):
            weight, target = _weight(name, node, native), canonical.get(id(handle_of(variable)))
            result.append(weight if target is None else target.with_name(weight))
    return result


def alone(model: Any) -> AbstractContextManager[None]:
    """Keep other threads from running the model while the context is open."""
    return model_lock(as_parts(model))


def device_meter(model: Any) -> MemoryMeter | None:
    """Return the meter of TensorFlow's allocator on the GPU that holds the model's floating variables; None for the CPU."""
    variables = [native_variable(variable) for _, variable in Parameters(as_parts(model)).items()]
    names = {variable.device for variable in variables if variable.dtype.is_floating and variable.device}
    devices = {
        ":".join(name.rsplit(":", 2)[-2:]) for name in names
    }  # such as "GPU:0" of "/job:localhost/.../device:GPU:0"
    if not devices or devices == {"CPU:0"}:
        return None
    device = next(iter(devices))
    if len(devices) > 1 or not device.startswith("GPU:"):
        raise UnsupportedError(
            f"the model is on {quote(sorted(devices))}: expected a model on the CPU or on one GPU, whose memory can be measured"
        )

    def restart() -> None:
        gc.collect()
        tf.config.experimental.reset_memory_stats(device)

    def read() -> tuple[int, int]:
        figures = tf.config.experimental.get_memory_info(device)
        return int(figures["current"]), int(figures["peak"])

    return MemoryMeter(device, restart, read)


def writer(variable: Any) -> Callable[[np.ndarray], None]:
    """Return a function that writes values into a variable."""
    native = native_variable(variable)

    def put(value: np.ndarray) -> None:
        expect_eager()
        with other_tapes_paused():
            native.assign(tf.cast(tf.constant(value), native.dtype))

    return put


def checkpoint_target(variable: Any) -> WeightTarget:
    """Return where a checkpoint's weight goes in a variable of a TFBertModel.

    `.../bert/encoder/layer_._0/output/dense/kernel:0` is the transpose of `encoder.layer.0.output.dense.weight`.
    """
    path = variable.name.split("/bert/", 1)[1].removesuffix(":0")
    *modules, last = re.sub(r"layer_\._(\d+)", r"layer/\1", path).split("/")
    source, shape = ".".join([*modules, LAST_NAMES.get(last, last)]), tuple(map(int, variable.shape))
    return WeightTarget(source, shape, writer(variable), variable.name, transposed=last == "kernel")


def _weight(name: str, node: Node | None, native: Any) -> Weight:
    def get() -> np.ndarray:
        expect_eager()
        with other_tapes_paused():
            return copy_owned(native.numpy())

    def rows(indices: np.ndarray) -> np.ndarray:
        expect_eager()
        with other_tapes_paused():
            return copy_owned(tf.gather(native, tf.constant(indices)).numpy())

    shape = tuple(map(int, native.shape))
    owner = "" if node is None else _owner(node, native)
    path = None if node is None or keras_layers.is_of_library(node.owner) else node.path
    return Weight(name, owner, shape, str(native.dtype.name), get, rows, writer(native), path=path)


def _owner(node: Node, native: Any) -> str:
    """Return the path of the layer that holds a variable; in a saved model the scope in which it was created."""
    if is_saved(node.owner) and "/" in native.name:
        return str(native.name).rpartition("/")[0]
    return node.owner_path


def _has_value(native: Any) -> bool:
    return bool(native.shape.is_fully_defined() and native.is_initialized())


def _canonical(parts: Sequence[Any], nodes: Iterable[Node]) -> dict[int, WeightTarget]:
    """Return the checkpoint's weights of an encoder's variables by their handles, where the model holds one BERT."""
    modules = [node.value for node in nodes if node.kind == "module"]
    encoders = [value for value in modules if has_base(value, "TFBertMainLayer", package="transformers.")]
    if len(encoders) == 1:
        named = [variable for variable in encoders[0].weights if "/bert/" in variable.name]
        return {id(handle_of(variable)): checkpoint_target(variable) for variable in named}
    pairs = [] if encoders else keras_checkpoint(parts)
    return {id(handle_of(variable)): target for variable, target in pairs}
