"""Parsing of objectives on the command line: Python syntax with literal arguments, never evaluated."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any, Final

from embgrad.errors import did_you_mean, quote
from embgrad.loading.errors import UsageError
from embgrad.loading.texts import read_bytes
from embgrad.objectives import objectives
from embgrad.objectives.classes import CLASSES
from embgrad.objectives.objectives import Objective

__all__ = ["labels_from", "parse_objective"]

#: By objective, the argument that --labels sets.
LABELS: Final = {"CrossEntropy": "labels", "Logit": "index"}

EXAMPLE: Final = 'Sum(output="pooled"), Logit(0) or CrossEntropy([0, 1])'


def parse_objective(spelled: str | None, labels: Any = None) -> Objective | None:
    """Return the objective of --objective; a cross-entropy if only labels are given; None if neither is.

    Args:
        spelled: the text of --objective, such as 'Sum(output="pooled")'.
        labels: the labels of --labels, which the text of the objective then omits.
    """
    if spelled is None:
        return None if labels is None else objectives.CrossEntropy(labels)
    name, args, kwargs = _parse_call(spelled)
    cls = CLASSES[name]
    if labels is not None:
        if name not in LABELS:
            raise UsageError(f"--labels applies only to {quote(LABELS)}: the objective {spelled} takes no labels")
        if args or LABELS[name] in kwargs:
            raise UsageError(
                f"the objective {spelled} already has its {LABELS[name]}, and --labels gives others: pass only one"
            )
        kwargs[LABELS[name]] = labels
    _expect_arguments(cls, args, kwargs, spelled)
    return cls(*args, **kwargs)


def labels_from(value: str | None) -> Any:
    """Return the labels of --labels: whole numbers separated by commas or spaces, a JSON list, or a file of either."""
    if value is None:
        return None
    text, name = value, "--labels"
    if not re.fullmatch(r"[-\d\s,\[\]]+", value):
        if not Path(value).is_file():
            raise UsageError(f"--labels {value!r}: expected whole numbers such as 0,1,1, or a file of them")
        text, name = read_bytes(value).decode("utf-8-sig", "replace"), value
    try:
        if text.lstrip().startswith("["):
            return json.loads(text)
        # A trailing comma is accepted. Any other empty entry is an error: its example would have no label.
        return [int(label) for label in re.split(r"\s*,\s*|\s+", text.strip().removesuffix(",").rstrip())]
    except (ValueError, RecursionError):
        raise UsageError(f"{name} holds {text[:60]!r}: expected whole numbers such as 0,1,1, or a JSON list") from None


def _parse_call(spelled: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the class's name, its positional arguments and its keyword arguments."""
    try:
        call = ast.parse(spelled.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"the objective {spelled!r} is not valid Python ({_reason(error)}): expected {EXAMPLE}"
        ) from None
    function = call.func if isinstance(call, ast.Call) else call
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "embgrad":
        name = function.attr
    elif isinstance(function, ast.Name):
        name = function.id
    else:
        raise UsageError(f"the objective is {spelled!r}: expected the name of an objective, such as {EXAMPLE}")
    if name not in CLASSES:
        hint = ". Scalar takes a function: use embgrad.gradients in Python" if name == "Scalar" else ""
        raise UsageError(
            f"there is no objective {name!r} on the command line: expected one of {quote(CLASSES)}{hint}."
            f"{did_you_mean(name, CLASSES)}"
        )
    args = [_literal(node, spelled) for node in call.args] if isinstance(call, ast.Call) else []
    keywords = call.keywords if isinstance(call, ast.Call) else []
    if any(keyword.arg is None for keyword in keywords):
        raise UsageError(f"the objective {spelled!r} unpacks a dict with **: expected its arguments by name")
    names = [str(keyword.arg) for keyword in keywords]
    if repeated := [each for each in names if names.count(each) > 1]:
        raise UsageError(f"the objective {spelled!r} has {repeated[0]} twice: expected each argument once")
    return name, args, {str(keyword.arg): _literal(keyword.value, spelled) for keyword in keywords}


def _literal(node: ast.expr, spelled: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise UsageError(
            f"the objective {spelled!r} holds {ast.unparse(node)!r}: expected literals only (numbers, lists, quoted names), such "
            f"as {EXAMPLE}"
        ) from None


def _expect_arguments(cls: type[Objective], args: list[Any], kwargs: dict[str, Any], spelled: str) -> None:
    """Raise a UsageError that names the surplus, unknown or missing argument."""
    signature = inspect.signature(cls)
    unknown = [name for name in kwargs if name not in signature.parameters]
    if unknown:
        raise UsageError(
            f"{cls.__name__} has no argument {unknown[0]!r}: expected {quote(signature.parameters)}."
            f"{did_you_mean(unknown[0], signature.parameters)}"
        )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = ", or --labels" if cls.__name__ in LABELS else ""
        raise UsageError(
            f"the objective {spelled!r}: {error}; expected {cls.__name__}{_without_types(signature)}{hint}"
        ) from None


def _without_types(signature: inspect.Signature) -> str:
    """Return the parameters without their types."""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(bare))


def _reason(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
