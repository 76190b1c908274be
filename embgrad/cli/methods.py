"""Methods of attribution and of search on the command line: names with hyphens, and arguments as NAME=VALUE."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

from embgrad.attribution.attribute import METHODS
from embgrad.attribution.method import Method
from embgrad.errors import did_you_mean, quote
from embgrad.loading.errors import UsageError

__all__ = ["instances_of", "methods_from"]

#: The attribution methods by their names on the command line.
NAMES: Final = {name.replace("_", "-"): cls for name, cls in METHODS.items()}

#: The methods that the argument `of` of SmoothGrad may name.
OF_GRADIENTS: Final = ("saliency", "input-x-gradient", "integrated-gradients")

M = TypeVar("M")

#: Values of arguments that Python spells in another way.
WORDS: Final = {"true": True, "false": False, "none": None}


def methods_from(names: Sequence[str], arguments: Sequence[str]) -> dict[str, Method]:
    """Return the attribution methods of --method by name, with the arguments of --set, see `instances_of`."""
    return instances_of(names, arguments, NAMES)


def instances_of(names: Sequence[str], arguments: Sequence[str], known_methods: Mapping[str, type[M]]) -> dict[str, M]:
    """Return the methods of --method by name, with the arguments of --set; each argument is for all methods that have it.

    Args:
        known_methods: the methods by their names on the command line.
    """
    classes = {name: known_methods[name] for name in (_name(spelled, names=known_methods) for spelled in names)}
    if len(classes) < len(names):
        raise UsageError(f"--method names {quote(names)}: expected each method once")
    values = _values(arguments)
    known = {name: [entry.name for entry in fields(cls)] for name, cls in classes.items()}  # type: ignore[arg-type]
    for argument in values:
        if not any(argument in held for held in known.values()):
            held = "; ".join(f"{name} has {quote(held) or 'none'}" for name, held in known.items())
            every = [entry for held in known.values() for entry in held]
            raise UsageError(f"--set {argument}: there is no such argument; {held}.{did_you_mean(argument, every)}")
    return {
        name.replace("-", "_"): cls(**{key: value for key, value in values.items() if key in known[name]})
        for name, cls in classes.items()
    }


def _name(spelled: str, option: str = "--method", names: Collection[str] = NAMES) -> str:
    name = spelled.replace("_", "-")
    if name not in names:
        raise UsageError(f"{option} is {spelled!r}: expected one of {quote(names, 20)}.{did_you_mean(name, names)}")
    return name


def _values(arguments: Sequence[str]) -> Mapping[str, Any]:
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        name = key.strip().replace("-", "_")
        if not equals or not name or not text.strip():
            raise UsageError(f"--set {argument!r}: expected an argument of the method as NAME=VALUE, such as steps=50")
        if name in values:
            raise UsageError(f"--set gives {name} twice: expected each argument once")
        values[name] = NAMES[_name(text.strip(), "--set of", OF_GRADIENTS)]() if name == "of" else _value(text.strip())
    return values


def _value(text: str) -> Any:
    """Return a number, a list or a truth value as itself, anything else as text, such as the name of a baseline."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
