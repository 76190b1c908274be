"""The stored fields of a report on a port: figures as arrays by point, cause, weight and step, names and texts as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from embgrad.common.schema import FLAG, TEXT, Array, Rule, SchemaError, expect_object, list_of, number, or_null, whole
from embgrad.errors import brief
from embgrad.results.port_records import Cause, PortPoint, PortWeights, SettingDifference, WeightPair
from embgrad.results.schema import Arrays, Fields, Schema

__all__ = ["PORT_REPORT"]

#: The figures of each record that are stored as arrays of its name, such as `point.values`; NaN stands for None.
FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    "point": ("values", "gradient", "floor", "local", "local_gradient"),
    "cause": ("difference", "remaining"),
    "weight": ("distance",),
}

NAMES: Final = list_of(TEXT)
TWO: Final = Rule(lambda value: NAMES.accepts(value) and len(value) == 2, "two texts")
LAYER: Final = Rule(lambda value: value is None or whole(0).accepts(value), "a layer's index, or null")

#: The other fields of each record.
POINT: Final = {"name": TEXT, "port_name": TEXT, "layer": LAYER, "agrees": FLAG}
CAUSE: Final = {"cause": TEXT, "text": TEXT, "values": TWO, "sites": NAMES, "layers": list_of(whole(0))}
SETTING: Final = {
    **dict.fromkeys(("name", "a", "b"), TEXT),
    "where": TWO,
    "matters": Rule(lambda value: value is None or isinstance(value, bool), "true, false or null"),
}
WEIGHT: Final = {
    **dict.fromkeys(("a", "b", "relation"), TEXT),
    **dict.fromkeys(("is_equal", "transposed", "permuted", "by_value"), FLAG),
}
WEIGHTS: Final = {
    "matches": list_of(Rule(lambda value: isinstance(value, dict), "an object")),
    "parts": Rule(lambda value: isinstance(value, dict) and all(map(NAMES.accepts, value.values())), "names by name"),
    "alone_a": NAMES,
    "alone_b": NAMES,
}


class _PortSchema(Schema):
    """The stored fields of a `PortReport`."""

    def arrays_of(self, result: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a report by their names in a file."""
        records = {"point": result.points, "cause": result.causes, "weight": result.weights.matches}
        return {
            f"{kind}.{name}": np.array([getattr(record, name) for record in records[kind]], np.float64)
            for kind, names in FIGURES.items()
            for name in names
            if records[kind]
        }

    def entry_of(self, result: Any) -> dict[str, Any]:
        """Return the fields of a report that are not arrays."""
        weights = result.weights
        return {
            **{name: getattr(result, name) for name in self.entry},
            "points": _objects(result.points, POINT),
            "causes": _objects(result.causes, CAUSE),
            "settings": _objects(result.settings, SETTING),
            "weights": {
                "matches": _objects(weights.matches, WEIGHT),
                **{name: getattr(weights, name) for name in WEIGHTS if name != "matches"},
            },
            "seconds": dict(result.seconds),
        }

    def fields_of(self, arrays: Arrays, entry: Mapping[str, Any]) -> Fields:
        """Return the arguments of the class, checked, see `Schema.fields_of`; the arrays are in its records."""
        checked = super().fields_of(arrays, entry)
        return {name: checked[name] for name in self.entry}


def _objects(records: Sequence[Any], rules: Mapping[str, Rule]) -> list[dict[str, Any]]:
    return [{name: getattr(record, name) for name in rules} for record in records]


def _records(kind: str, cls: Any, rules: Mapping[str, Rule]) -> Callable[[Any, Arrays], Any]:
    """Return a function that returns the records of a list of objects and of the arrays of their figures."""

    def checked(value: Any, arrays: Arrays) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise SchemaError(f"says {kind}s {brief(value)}: expected a list")
        figures = {name: arrays.get(f"{kind}.{name}", np.zeros(0)) for name in FIGURES.get(kind, ())}
        for name, array in figures.items():
            if len(array) != len(value):
                raise SchemaError(f"holds {len(array)} numbers as {kind}.{name}: expected one for each of {len(value)}")
        records = []
        for index, entry in enumerate(value):
            expect_object(f"{kind}s", entry, rules)
            texts = {name: tuple(each) if isinstance(each, list) else each for name, each in entry.items()}
            numbers = {name: _number(cls, name, float(array[index])) for name, array in figures.items()}
            records.append(cls(**texts, **numbers))
        return tuple(records)

    return checked


def _number(cls: Any, name: str, value: float) -> float | None:
    """Return a figure, None for NaN where the record's field may be None."""
    optional = next("None" in str(field.type) for field in fields(cls) if field.name == name)
    return None if optional and np.isnan(value) else value


def _weights(value: Any, arrays: Arrays) -> PortWeights:
    expect_object("weights", value, WEIGHTS)
    return PortWeights(
        _records("weight", WeightPair, WEIGHT)(value["matches"], arrays),
        {name: tuple(others) for name, others in value["parts"].items()},
        tuple(value["alone_a"]),
        tuple(value["alone_b"]),
    )


def _field(name: str, rule: Rule) -> Callable[[Any, Arrays], Any]:
    def checked(value: Any, _: Arrays) -> Any:
        rule.check(name, value)
        return tuple(value) if isinstance(value, list) else value

    return checked


def _expect_no_negative(arrays: Arrays) -> None:
    if wrong := [name for name, array in arrays.items() if (array < 0).any()]:
        raise SchemaError(f"holds {arrays[wrong[0]].min()} in {wrong[0]}: expected no number below 0")


def _seconds(value: Any, _: Arrays) -> dict[str, float]:
    steps = Rule(lambda entry: isinstance(entry, dict) and all(map(number(0).accepts, entry.values())), "times by step")
    steps.check("seconds", value)
    return {name: float(time) for name, time in value.items()}


PORT_REPORT: Final = _PortSchema(
    {f"{kind}.{name}": Array(kind, optional=True) for kind, names in FIGURES.items() for name in names},
    {
        "agrees": _field("agrees", FLAG),
        "first": _field("first", or_null(TEXT)),
        "causes": _records("cause", Cause, CAUSE),
        "unexplained": _field("unexplained", NAMES),
        "settings": _records("setting", SettingDifference, SETTING),
        "weights": _weights,
        "points": _records("point", PortPoint, POINT),
        "explained": _field(
            "explained",
            Rule(lambda value: value is None or number(-(2.0**1022), 2.0**1022).accepts(value), "a number or null"),
        ),
        "labels": _field("labels", TWO),
        "floor": _field("floor", TEXT),
        "notes": _field("notes", NAMES),
        "seconds": _seconds,
    },
    rules=(_expect_no_negative,),
)
