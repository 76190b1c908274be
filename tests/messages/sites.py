"""The sites at which the library creates its errors, each with its function, its class and the constant text of its message."""

from __future__ import annotations

import ast
import functools
import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embgrad import errors
from embgrad.loading.errors import UsageError

ROOT = Path(__file__).parents[2]
#: The sources to read, each with the folder to which its modules' names are relative.
_SOURCES = (("embgrad", ROOT), ("backends", ROOT / "backends"))
#: Every error of `embgrad.errors` by its name.
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if name in errors.__all__ and inspect.isclass(kind) and issubclass(kind, errors.EmbgradError)
}

#: The names of all errors that derive from one of these. The commands' errors and those of `embgrad.ray` are listed by name, as
#: the latter cannot be imported without Ray.
ERRORS = frozenset(
    {*CLASSES, UsageError.__name__, "ArgumentError", "MissingPackageError", "NoColumnError", "_NotOpenedError"}
)


@dataclass(frozen=True)
class Site:
    """An expression in the source that creates an error.

    Attributes:
        module: the module's name, such as `embgrad.inputs.batch`.
        function: the function's qualified name; empty at the module's top level.
        error: the name of the error's class.
        message: the constant text of the message, with `…` for each value that is filled in.
        number: the index among the sites for which all of the above are the same.
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
        """The site's name, which depends on its function and message but not on its line."""
        again = f" ({self.number + 1})" if self.number else ""
        return f"{self.module}:{self.function} {self.error}: {self.message}{again}"


@functools.cache
def sites() -> tuple[Site, ...]:
    return tuple(site for module in sorted(_modules()) for site in sites_in(module))


def at(module: str, line: int) -> Site | None:
    """Return the innermost site that contains a line, or None."""
    containing = [site for site in sites_in(module) if site.lines[0] <= line <= site.lines[1]]
    return min(containing, key=lambda site: site.lines[1] - site.lines[0]) if containing else None


@functools.cache
def sites_in(module: str) -> tuple[Site, ...]:
    """Return the sites in a module; there are none in a module that is not the library's."""
    path = _modules().get(module)
    if path is None:
        return ()
    seen: Counter[tuple[str, str, str]] = Counter()
    module_sites = []
    for function, call in _calls(ast.parse(path.read_text(encoding="utf-8"))):
        error = _name(call.func)
        message = _words(call.args[0]) if call.args else ""
        same = (function, error, message)
        module_sites.append(
            Site(module, function, error, message, seen[same], (call.lineno, call.end_lineno or call.lineno))
        )
        seen[same] += 1
    return tuple(module_sites)


@functools.cache
def _modules() -> dict[str, Path]:
    paths = {}
    for name, base in _SOURCES:
        source = ROOT / name
        for path in [source] if source.is_file() else sorted(source.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def _calls(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call]]:
    for node in ast.iter_child_nodes(tree):
        inner = function
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            inner = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.Call) and _name(node.func) in ERRORS:
            yield function, node
        yield from _calls(node, inner)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _words(node: ast.expr) -> str:
    """Return the constant text of a message, with `…` for each other part."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        return "".join(parts).replace("……", "…")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_words(node.left) + _words(node.right)).replace("……", "…")
    return "…"
