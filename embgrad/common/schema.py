"""Checks of the JSON objects that are read from files."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from embgrad.errors import brief, listed

__all__ = [
    "FLAG",
    "OBJECT",
    "TEXT",
    "Rule",
    "SchemaError",
    "expect_names",
    "expect_object",
    "list_of",
    "number",
    "whole",
]


class SchemaError(ValueError):
    """The content of a file does not follow its format; the message is a clause that lacks its subject, the file."""


@dataclass(frozen=True)
class Rule:
    """The values that a field may have.

    Attributes:
        accepts: a function that returns whether a value is valid.
        expected: the valid values in words.
    """

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


def list_of(rule: Rule) -> Rule:
    """Return the rule for lists of values that each follow a rule."""
    return Rule(
        lambda value: isinstance(value, list) and all(map(rule.accepts, value)),
        f"a list, of which each is {rule.expected}",
    )


def expect_object(name: str, value: Any, rules: Mapping[str, Rule], optional: Collection[str] = ()) -> None:
    """Check an object with exactly these fields, of which those in `optional` may be missing.

    Raises:
        SchemaError: it is not an object, lacks a field, has another one, or a field's value is not valid.
    """
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
        raise SchemaError(f"holds the {what} {brief(unknown)}: expected {listed(known, 30)}")
