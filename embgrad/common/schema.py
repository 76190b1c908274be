"""Checks of what is read from files: JSON objects, and arrays by their named axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.errors import brief, quote

__all__ = [
    "FLAG",
    "OBJECT",
    "TEXT",
    "Array",
    "Rule",
    "SchemaError",
    "expect_arrays",
    "expect_names",
    "expect_object",
    "list_of",
    "number",
    "or_null",
    "whole",
]


class SchemaError(ValueError):
    """The content of a file does not follow its format; the message is a clause that lacks its subject, the file."""


@dataclass(frozen=True)
class Rule:
    """The values that a field may have."""

    accepts: Callable[[Any], bool]
    expected: str

    def check(self, name: str, value: Any) -> None:
        """Raise SchemaError if the value of the field `name` is not valid."""
        if not self.accepts(value):
            raise SchemaError(f"says {name} {brief(value)}: expected {self.expected}")


TEXT: Final = Rule(lambda value: isinstance(value, str), "text")
FLAG: Final = Rule(lambda value: isinstance(value, bool), "true or false")
OBJECT: Final = Rule(lambda value: isinstance(value, dict), "an object")


def whole(least: int, most: float = math.inf) -> Rule:
    """Return the rule for whole numbers from `least` to `most`."""
    return Rule(lambda value: type(value) is int and least <= value <= most, f"a whole number of at least {least}")


def number(least: float, most: float = math.inf) -> Rule:
    """Return the rule for numbers from `least` to `most` that are finite as floats."""
    expected = f"a finite number of at least {least}" if most == math.inf else f"a number from {least} to {most}"
    return Rule(lambda value: type(value) in (int, float) and least <= value <= most and value < 2.0**1023, expected)


def or_null(rule: Rule) -> Rule:
    """Return the rule for null and for values that follow a rule."""
    return Rule(lambda value: value is None or rule.accepts(value), f"{rule.expected} or null")


def list_of(rule: Rule) -> Rule:
    """Return the rule for lists of values that each follow a rule."""
    return Rule(
        lambda value: isinstance(value, list) and all(map(rule.accepts, value)),
        f"a list, of which each is {rule.expected}",
    )


def expect_object(name: str, value: Any, rules: Mapping[str, Rule], optional: Collection[str] = ()) -> None:
    """Check an object with exactly these fields, of which those in `optional` may be missing."""
    OBJECT.check(name, value)
    expect_names("fields", value, rules, optional)
    for key, field in value.items():
        rules[key].check(key, field)


def expect_names(what: str, present: Iterable[str], known: Collection[str], optional: Collection[str] = ()) -> None:
    """Raise SchemaError if one of the known names is missing that is not in `optional`, or if any other name is present."""
    names = set(present)
    if missing := [name for name in known if name not in names and name not in optional]:
        raise SchemaError(f"lacks the {what} {missing}")
    if unknown := sorted(names - set(known)):
        raise SchemaError(f"holds the {what} {brief(unknown)}: expected {quote(known, 30)}")


class Array:
    """The array of a field.

    Args:
        axes: the names of its axes, such as "example position"; axes of one name have one length in all arrays of a result. A
            number is an axis of that length, and a name that begins with "*" stands for any number of axes, none included.
        dtypes: the dtypes that it may have, such as "float32 float64"; or "=values", that of the array of this name.
        least: the smallest number that it may hold, None for any; `most` likewise the largest.
        optional: whether a result may lack it.
    """

    def __init__(
        self,
        axes: str,
        dtypes: str = "float64",
        least: int | None = None,
        most: int | None = None,
        *,
        optional: bool = False,
    ) -> None:
        self.axes, self.dtypes = axes.split(), dtypes.split()
        self.least, self.most, self.optional = least, most, optional

    def check(self, name: str, arrays: Mapping[str, np.ndarray], lengths: dict[str, tuple[int, ...]]) -> None:
        """Raise SchemaError if the array of this name is not valid, and add the lengths of its axes to those that are known."""
        array = arrays[name]
        dtypes = [str(arrays[dtype[1:]].dtype) if dtype.startswith("=") else dtype for dtype in self.dtypes]
        if str(array.dtype) not in dtypes:
            raise SchemaError(f"holds {name} of dtype {array.dtype}: expected {' or '.join(dtypes)}")
        own = self._lengths_in(array.shape)
        if own is None or any(lengths.get(axis, length) != length for axis, length in own.items()):
            raise SchemaError(f"holds {name} of shape {array.shape}: expected {self._expect(lengths)}")
        if not array.size:
            raise SchemaError(
                f"holds {name} of shape {array.shape}: expected {self._expect({})}, with one of each at least"
            )
        lengths.update(own)
        if self.least is not None and array.min() < self.least:
            raise SchemaError(f"holds {array.min()} in {name}: expected no number below {self.least}")
        if self.most is not None and array.max() > self.most:
            raise SchemaError(f"holds {array.max()} in {name}: expected no number above {self.most}")

    def _lengths_in(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]] | None:
        """Return the lengths of the axes by name in a shape; None where it has more or fewer, or one of another length."""
        first = next((number for number, axis in enumerate(self.axes) if axis.startswith("*")), len(self.axes))
        several = len(shape) - len(self.axes) + 1 if first < len(self.axes) else 0
        if several < 0 or (first == len(self.axes) and len(shape) != first):
            return None
        parts: list[tuple[int, ...]] = [(length,) for length in shape[:first]]
        if first < len(self.axes):
            parts += [shape[first : first + several], *((length,) for length in shape[first + several :])]
        lengths = dict(zip(self.axes, parts, strict=True))
        fits = all(length == (int(axis),) for axis, length in lengths.items() if axis.isdigit())
        return lengths if fits else None

    def _expect(self, lengths: Mapping[str, tuple[int, ...]]) -> str:
        names = ["…" if axis.startswith("*") else axis for axis in self.axes]
        known = [
            str(length) for axis, name in zip(self.axes, names, strict=True) for length in lengths.get(axis, (name,))
        ]
        return _tuple(known) if known == names or names == ["…"] else f"{_tuple(known)}, {_tuple(names)}"


def _tuple(entries: Sequence[str]) -> str:
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"


def expect_arrays(arrays: Mapping[str, np.ndarray], known: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """Check arrays by their names, and return the lengths of their axes."""
    expect_names("arrays", arrays, known, [name for name, array in known.items() if array.optional])
    lengths: dict[str, tuple[int, ...]] = {}
    for name, array in known.items():
        if name in arrays:
            array.check(name, arrays, lengths)
    return lengths
