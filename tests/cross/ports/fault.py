"""The record of a planted fault, and how a pair gets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.cross.ports import ports
from tests.cross.ports.causes import CAUSES
from tests.cross.ports.ports import Pair

#: Changes a model in place.
Plant = Callable[[Any], None]

SIDES: Final = ("reference", "port")


@dataclass(frozen=True)
class Fault:
    """One fault, planted in one side of a pair that agrees without it.

    Attributes:
        label: what is wrong, such as "epsilon-all".
        architecture: a key of `ARCHITECTURES`.
        framework: of the port.
        side: where it is planted, "reference" or "port".
        causes: the keys of `CAUSES` that are true; several where they are equally true.
        site: a regular expression that is found in the reference's path of the module at the site.
        plant: changes the side's model in place.
        values: the setting in the reference and in the port, where there is one: numbers as `f"{x:g}"` writes them, activations
            by their names in transformers' configurations, "none" for what is absent.
        layers: the numbers of the layers that have it; empty where it is in no layer.
        padding: the side on which the batch is padded.
    """

    label: str
    architecture: str
    framework: str
    side: str
    causes: tuple[str, ...]
    site: str
    plant: Plant
    values: tuple[str, str] | None = None
    layers: tuple[int, ...] = ()
    padding: str = "right"

    def __post_init__(self) -> None:
        assert self.side in SIDES, self.side
        assert self.causes, self.label
        assert set(self.causes) <= set(CAUSES), self.causes

    @property
    def name(self) -> str:
        return f"{self.architecture}-{self.framework}-{self.side}-{self.label}"

    def healthy(self, seed: int = 0) -> Pair:
        """Return the pair without the fault."""
        return ports.pair(self.architecture, self.framework, seed, self.padding)

    def plant_in(self, pair: Pair) -> None:
        """Plant the fault in the pair's side."""
        self.plant(pair.reference if self.side == "reference" else pair.port)


@dataclass(frozen=True)
class Entry:
    """A fault without its pair, as the lists write it."""

    label: str
    causes: str
    site: str
    plant: Plant
    values: tuple[str, str] | None = None
    layers: tuple[int, ...] = ()
    padding: str = "right"


def faults_of(architecture: str, framework: str, side: str, *entries: Entry) -> list[Fault]:
    """Return the faults of one pair's side; an entry's causes are separated by spaces."""
    return [
        Fault(
            entry.label,
            architecture,
            framework,
            side,
            tuple(entry.causes.split()),
            entry.site,
            entry.plant,
            entry.values,
            entry.layers,
            entry.padding,
        )
        for entry in entries
    ]
