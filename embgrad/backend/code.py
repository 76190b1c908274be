"""What functions, classes and objects are made of: what code reads, what they hold, and whether a package brought them."""

from __future__ import annotations

import dis
import functools
import sys
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

__all__ = [
    *("HOLDERS", "OPEN", "attributes_of", "code_inside", "content_of", "globals_of", "is_installed"),
    *("members_of", "names_in", "root_of", "written_by"),
]

#: The modules of Python's own whose objects hold what the user has put there.
HOLDERS: Final = ("argparse", "collections", "types")

#: The packages of which the user's own classes may be made and stay theirs, whatever they hold.
OPEN: Final = {"embgrad", *sys.stdlib_module_names} - {"__main__"}

#: How the folders are called in which packages are installed, for all or for one user.
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

#: The instructions that read a global.
_READING: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


@functools.lru_cache(maxsize=1024)
def globals_of(code: CodeType) -> tuple[str, ...]:
    """The names of the globals that a piece of Python reads, and those inside it."""
    names = [one.argval for one in dis.get_instructions(code) if one.opname in _READING]
    inside = [name for one in code_inside(code) for name in globals_of(one)]
    return tuple(dict.fromkeys((*names, *inside)))


def written_by(code: CodeType) -> set[Any]:
    """The names of the globals that a piece of Python writes to, and those inside it."""
    own = {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    return own.union(*map(written_by, code_inside(code)))


@functools.lru_cache(maxsize=1024)
def names_in(code: CodeType) -> frozenset[str]:
    """All names in a piece of Python, attributes' too, and those inside it."""
    return frozenset(code.co_names).union(*map(names_in, code_inside(code)))


def code_inside(code: CodeType) -> list[CodeType]:
    """The code of the functions, classes and comprehensions that are written inside a piece of Python."""
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def content_of(cell: Any) -> Any:
    """What a closure's cell holds; None where it is empty as yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def members_of(kind: type) -> dict[str, list[Any]]:
    """What each member that a class itself has is made of, less what Python keeps there."""
    held = {name: _parts(one) for name, one in vars(kind).items()}
    return {name: parts for name, parts in held.items() if isinstance(parts[0], FunctionType) or not _is_pythons(name)}


def attributes_of(value: Any) -> dict[str, Any]:
    """An object's own attributes, in slots or not."""
    held: dict[str, Any] = {}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = [_mangled(name, kind) for name in ([slots] if isinstance(slots, str) else slots)]
        held.update({name: getattr(value, name) for name in names if name[:2] != "__" and hasattr(value, name)})
    held.update(getattr(value, "__dict__", {}))
    return held


def root_of(kind: type) -> str:
    """The package that a class is of."""
    return kind.__module__.partition(".")[0]


def _mangled(name: str, kind: type) -> str:
    """The name under which a slot is found: a private one is found under its class's."""
    private = name[:2] == "__" != name[-2:] and kind.__name__.strip("_")
    return f"_{kind.__name__.lstrip('_')}{name}" if private else name


@functools.lru_cache(maxsize=1024)
def is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python or to an installed package, and is another with another version of that."""
    if module is None:  # made by a decorator, such as that of data classes
        return False
    root = module.partition(".")[0]
    return root in OPEN or any(_lies_installed(sys.modules.get(name)) for name in (root, module))


def _lies_installed(module: Any) -> bool:
    file = getattr(module, "__file__", None) or ""  # what is written in C may have none, and its package has
    return not _INSTALLED.isdisjoint(Path(file).parts)


def _parts(member: Any) -> list[Any]:
    """What a member of a class is made of."""
    if isinstance(member, property):
        return [member.fget, member.fset]
    if isinstance(member, functools.cached_property):
        return [member.func]
    return [member.__func__ if isinstance(member, (staticmethod, classmethod)) else member]


def _is_pythons(name: str) -> bool:
    """Whether Python itself keeps something in a class under this name."""
    return name[:2] == name[-2:] == "__" or name == "_abc_impl"
