"""Where the library makes its errors: each place in the source, by its function, its class and the words of its message."""

from __future__ import annotations

import ast
import functools
import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embgrad import errors

__all__ = ["CLASSES", "ROOT", "Site", "at", "sites"]

ROOT = Path(__file__).parents[2]
#: What is read, with the folder that its modules are named from.
_SOURCES = (
    ("embgrad", ROOT),
    ("backends", ROOT / "backends"),
    ("_embgrad_pytest.py", ROOT),
)
#: Every error of `embgrad.errors` by its name; those of the commands and of Ray, which are kinds of them, are added by `_named`.
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if name in errors.__all__ and inspect.isclass(kind) and issubclass(kind, errors.EmbgradError)
}


@dataclass(frozen=True)
class Site:
    """A place that makes an error.

    Attributes:
        module: the module's name, as in `embgrad.batch`.
        function: the function's name with those that it lies in; empty at the module's top.
        error: the name of the class.
        message: the message's own words; what is filled in stands as `…`.
        number: counts from 0 where all of the above are the same.
        lines: the first and the last line of the expression.
    """

    module: str
    function: str
    error: str
    message: str
    number: int
    lines: tuple[int, int]

    @property
    def key(self) -> str:
        """What names the place as long as its message and its function's name stay, whatever its line."""
        again = f" ({self.number + 1})" if self.number else ""
        return f"{self.module}:{self.function} {self.error}: {self.message}{again}"


@functools.cache
def sites() -> tuple[Site, ...]:
    """Every place, by module and line."""
    found: list[Site] = []
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in _modules()}
    known = {*CLASSES, *_named(trees.values())}
    for module, tree in sorted(trees.items()):
        seen: Counter[tuple[str, str, str]] = Counter()
        for function, call in _calls(tree, known):
            error = _name(call.func)
            message = _words(call.args[0]) if call.args else ""
            same = (function, error, message)
            last = call.end_lineno or call.lineno
            found.append(Site(module, function, error, message, seen[same], (call.lineno, last)))
            seen[same] += 1
    return tuple(found)


def at(module: str, line: int) -> Site | None:
    """The place that holds the line; None where none does."""
    held = [site for site in _by_module().get(module, ()) if site.lines[0] <= line <= site.lines[1]]
    return min(held, key=lambda site: site.lines[1] - site.lines[0]) if held else None


@functools.cache
def _by_module() -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = {}
    for site in sites():
        found.setdefault(site.module, []).append(site)
    return found


def _modules() -> Iterator[tuple[str, Path]]:
    for name, base in _SOURCES:
        source = ROOT / name
        for path in [source] if source.is_file() else sorted(source.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _named(trees: object) -> set[str]:
    """The names of classes, defined anywhere in the library, that derive from an error of `embgrad.errors`."""
    found: set[str] = set()
    for tree in trees:  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(_name(base) in CLASSES for base in node.bases):
                found.add(node.name)
    return found - CLASSES.keys()


def _calls(tree: ast.AST, known: set[str], function: str = "") -> Iterator[tuple[str, ast.Call]]:
    for node in ast.iter_child_nodes(tree):
        inner = function
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            inner = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.Call) and _name(node.func) in known:
            yield function, node
        yield from _calls(node, known, inner)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _words(node: ast.expr) -> str:
    """The constant parts of a message, with a … for each other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        return "".join(parts).replace("……", "…")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_words(node.left) + _words(node.right)).replace("……", "…")
    return "…"
