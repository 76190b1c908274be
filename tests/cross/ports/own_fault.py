"""The record of a fault in a port written by hand, and how a pair gets it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from torch import nn

from embgrad import TokenBatch
from tests.cross.ports import architectures
from tests.cross.ports.own_settings import Settings
from tests.cross.ports.ports import Pair, Port
from tests.cross.ports.weights import Change

State = dict[str, np.ndarray]


@dataclass(frozen=True)
class OwnPort:
    """A reference and a port of it.

    Attributes:
        reference: makes the reference.
        batch: makes the batch.
        port: the module of this folder and the name there of what makes the port of a state, a configuration and settings.
        call: the names of the inputs that the port is called with, or the name there of the function that calls it; "" where
            it is called as usual.
    """

    reference: Callable[[], Any]
    batch: Callable[[], TokenBatch]
    port: tuple[str, str]
    call: str = ""

    def make(self, change: Callable[[State], State], fault: OwnFault | None) -> tuple[Pair, Any]:
        """Return the pair, and how the port is called."""
        first, batch = self.reference(), self.batch()
        state = change({name: value.detach().numpy().copy() for name, value in first.state_dict().items()})
        module = importlib.import_module(f"tests.cross.ports.{self.port[0]}")
        build = getattr(module, self.port[1])
        settings = Settings(build.usual, fault and fault.settings, fault and fault.layers)
        made = build(state, first.config, settings)
        port = made.eval() if isinstance(made, nn.Module) else made
        way = Port(self.port[1], "own", lambda _: port, lambda batch: batch, architectures.forward("bert"))
        return Pair(first, port, batch, batch, way), self._call_of(module)

    def _call_of(self, module: Any) -> Callable[[Any, Any], Any] | None:
        """Return how the port is called; where it is a function, or a module of Linen, with its parameters."""
        if not self.call or hasattr(module, self.call):
            return getattr(module, self.call) if self.call else None

        def call(model: Any, inputs: Any) -> Any:
            given = [inputs[name] for name in self.call.split()]
            if not isinstance(model, Sequence):
                return model(*given)
            function, parameters = model
            return getattr(function, "apply", function)(parameters, *given)

        return call


@dataclass(frozen=True)
class OwnFault:
    """A fault in a port written by hand.

    Attributes:
        port: a key of `PORTS`.
        label: what is wrong, such as "exact-gelu".
        causes: the keys of `CAUSES` that are true; none where no known cause is, and naming none is right.
        site: a regular expression that is found in the reference's path of the module at the site.
        settings: the port's settings that are others.
        layers: the layers that have these; None for all.
        change: what is done to the reference's weights before the port takes them.
        may_be_unnamed: whether naming no cause is right as well.
        second: another fault of the same port, for two at once.
    """

    port: str
    label: str
    causes: tuple[str, ...]
    site: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[int, ...] | None = None
    change: Callable[[State], State] = dict
    may_be_unnamed: bool = False
    second: OwnFault | None = None

    @property
    def name(self) -> str:
        behind = "" if self.second is None else f"+{self.second.label}"
        return f"{self.port}-{self.label}{behind}"

    def make(self) -> tuple[Pair, Any]:
        """Return the pair with the fault, and how the port is called."""
        if self.second is None:
            return PORTS[self.port].make(self.change, self)
        both = replace(self, settings={**self.settings, **self.second.settings}, second=None)
        assert self.layers == self.second.layers, self.name
        return PORTS[self.port].make(lambda state: self.second.change(self.change(state)), both)  # type: ignore[union-attr]


@dataclass(frozen=True)
class OwnRight:
    """A port written by hand that is right, as it stands or written in another way."""

    port: str
    label: str = "plain"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.port}-{self.label}"

    def make(self) -> tuple[Pair, Any]:
        """Return the pair, and how the port is called."""
        return PORTS[self.port].make(dict, OwnFault(self.port, self.label, (), "", self.settings))


#: Every port by its name, which the lists fill.
PORTS: Final[dict[str, OwnPort]] = {}


@dataclass(frozen=True)
class OwnList:
    """Faults of some ports, two of them at once, and right ports, as they stand and written in other ways."""

    faults: tuple[OwnFault, ...]
    pairs: tuple[OwnFault, ...]
    right: tuple[OwnRight, ...]


def own_list(
    ports: Mapping[str, OwnPort],
    faults: tuple[OwnFault, ...],
    pairs: Iterable[tuple[str, str, str]],
    right: Iterable[tuple[str, str, Mapping[str, Any]]],
) -> OwnList:
    """Return a list: pairs have a port and two labels of its faults, and right ports a port, a label and its settings."""
    PORTS.update(ports)
    by_name = {fault.name: fault for fault in faults}
    both = (replace(by_name[f"{port}-{first}"], second=by_name[f"{port}-{second}"]) for port, first, second in pairs)
    return OwnList(faults, tuple(both), (*map(OwnRight, ports), *(OwnRight(*other) for other in right)))


def port_of(
    architecture: str, module: str, name: str, call: str = "", reference: Callable[[], Any] | None = None
) -> OwnPort:
    """Return a port of a reference, with the batch of an architecture, which is the reference's if none is given."""
    return OwnPort(
        reference or (lambda: architectures.reference(architecture)),
        lambda: architectures.token_batch(architecture),
        (module, name),
        call,
    )


def weights(*patterns: str, by: Change | str) -> Callable[[State], State]:
    """Return what changes the weights with a pattern, or takes those of another name in their place.

    Args:
        patterns: regular expressions of whole names.
        by: a function of the values; or the name of the weight that is taken, as `re.sub` writes it.
    """

    def change(state: State) -> State:
        found = {name: pattern for pattern in patterns for name in state if re.fullmatch(pattern, name)}
        assert found, patterns
        others = {
            name: state[re.sub(pattern, by, name)] if isinstance(by, str) else by(state[name])
            for name, pattern in found.items()
        }
        return {**state, **{name: np.asarray(value, np.float32).copy() for name, value in others.items()}}

    return change


def swapped(first: str, second: str) -> Callable[[State], State]:
    """Return what exchanges a part of weights' names with another."""

    def change(state: State) -> State:
        def other(name: str) -> str:
            return name.replace(first, second) if first in name else name.replace(second, first)

        assert any(first in name for name in state), first
        return {name: state[other(name)] for name in state}

    return change


def transposed(values: np.ndarray) -> np.ndarray:
    """Return a matrix transposed."""
    return values.T


def heads_inside(values: np.ndarray) -> np.ndarray:
    """Return rows of heads and their features as rows of features and their heads."""
    return values.reshape(4, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)


def moved(values: np.ndarray) -> np.ndarray:
    """Return rows one further, the last first."""
    return np.roll(values, 1, 0)


def planted(label: str, causes: str, site: str, **more: Any) -> OwnFault:
    """Return a fault of no port; causes are separated by spaces, and what is no field of a fault is a setting of the port."""
    own = {name: more.pop(name) for name in ("layers", "change", "may_be_unnamed") if name in more}
    return OwnFault("", label, tuple(causes.split()), site, more, **own)


def of(port: str, *faults: OwnFault) -> tuple[OwnFault, ...]:
    """Return the faults of a port."""
    return tuple(replace(fault, port=port) for fault in faults)


#: The inputs of ports, by their names.
IDS: Final = "input_ids"
MASKED: Final = "input_ids attention_mask"
TYPED: Final = "input_ids attention_mask token_type_ids"

#: Sites of faults: norms, attention, and the part behind it.
NORM: Final = "norm|ln_|layernorm|LayerNorm"
ATTENTION: Final = "attn|attention|SelfAttention"
FEED: Final = "mlp|ffn|fc|intermediate|output.dense|activation|DenseReluDense"

#: Causes of which each is true: of weights of another place, another residual, heads split otherwise, parts of a fused matrix or
#: of a gate or rows in another order, and an activation that is left out.
EPSILON: Final = "layer-norm-epsilon"
SWAP: Final = "swapped-weights different-weight"
STREAM: Final = "norm-order missing-residual"
HEADS: Final = "attention-heads permuted-weight"
FUSED: Final = "swapped-weights permuted-weight attention-heads"
GATE: Final = "gate-swapped swapped-weights permuted-weight"
ROWS: Final = "permuted-weight swapped-weights"
ACT: Final = "activation missing-part"
