"""The source of the backends: their files, their imports, and the private names of frameworks that they use."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["circles", "files_of", "imports_of", "private_names"]

BACKENDS = Path(__file__).parents[2] / "backends"

#: Modules of the frameworks that their documentation does not list.
INTERNAL = ("keras.src", "mxnet.base", "tensorflow.core", "tensorflow.python", "tf_keras.src")

FRAMEWORKS = frozenset(
    {"equinox", "flax", "gluonnlp", "jax", "keras", "keras_hub", "mxnet", "onnx", "onnxruntime", "tensorflow",
        "tensorflow_hub", "tf_keras", "torch", "transformers"},
)  # fmt: skip

#: Functions whose second argument is the name of an attribute.
BY_NAME = frozenset({"delattr", "getattr", "hasattr", "setattr"})


def files_of(backend: str) -> list[Path]:
    """Return the modules of a backend, such as "embgrad_torch"."""
    return sorted((BACKENDS / backend).glob("*.py"))


def imports_of(backend: str) -> dict[str, set[str]]:
    """Return for each module of a backend the modules of the same backend that it imports, inside of functions too."""
    found = {}
    for path in files_of(backend):
        nodes = [node for node in ast.walk(_parsed(path)) if isinstance(node, ast.ImportFrom)]
        named = {name for node in nodes for name in _own_modules(node, backend)}
        found[path.stem] = named - {path.stem}
    return found


def circles(imports: Mapping[str, set[str]]) -> list[str]:
    """Return the modules from which a chain of imports leads back to them."""

    def reached(start: str) -> set[str]:
        waiting, seen = [*imports[start]], set[str]()
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(imports.get(name, ()))
        return seen

    return [name for name in imports if name in reached(name)]


def private_names(backend: str) -> dict[str, list[str]]:
    """Return the private names of other packages that a backend reads, and where: "state.py:12".

    A name is private where it begins with an underscore, or lies in a module that is not documented; such a module goes by its
    whole path.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in files_of(backend):
        tree = _parsed(path)
        own = set(_defined(tree))
        for name, line in _used(tree):
            if name not in own:
                found[name].append(f"{path.name}:{line}")
    return dict(found)


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _own_modules(node: ast.ImportFrom, backend: str) -> Iterator[str]:
    module = node.module or ""
    if module == backend:
        yield from (alias.name for alias in node.names)
    elif module.startswith(f"{backend}."):
        yield module.removeprefix(f"{backend}.")


def _is_private(name: object) -> bool:
    return (
        isinstance(name, str)
        and name.isidentifier()
        and name.startswith("_")
        and not name.startswith(("__", "_embgrad"))
    )


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines itself."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for one in ast.walk(target):
                    if isinstance(one, ast.Name):
                        yield one.id
                    elif isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self":
                        yield one.attr


def _used(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the private names that a module uses, with their lines."""
    documentation = {id(node.body[0].value) for node in ast.walk(tree) if _has_docstring(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if _is_internal(alias.name))
        elif isinstance(node, ast.ImportFrom) and _is_internal(node.module or ""):
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FRAMEWORKS:
            yield from ((alias.name, node.lineno) for alias in node.names if _is_private(alias.name))
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            yield node.attr, node.lineno
        elif isinstance(node, ast.Constant) and _is_private(node.value) and id(node) not in documentation:
            yield str(node.value), node.lineno  # as `getattr` takes it


def _is_internal(module: str) -> bool:
    parts = module.split(".")
    return parts[0] in FRAMEWORKS and (module.startswith(INTERNAL) or any(part.startswith("_") for part in parts))


def _has_docstring(node: ast.AST) -> bool:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    return isinstance(node, kinds) and bool(node.body) and isinstance(node.body[0], ast.Expr)
