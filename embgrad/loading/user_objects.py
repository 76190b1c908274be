"""Import of the user's objects, named as `module:name` or `path/to/file.py:name`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from embgrad.errors import did_you_mean
from embgrad.loading.errors import UsageError

__all__ = ["expect_function", "import_object", "is_reference"]


def is_reference(spelled: str) -> bool:
    """Return whether the text has the form `module:name` or `file.py:name`."""
    source, colon, name = spelled.rpartition(":")
    if not colon or not all(part.isidentifier() for part in name.split(".")):
        return False
    return source.endswith(".py") or all(part.isidentifier() for part in source.split("."))


def expect_function(spelled: str | None, option: str) -> None:
    """Check, before anything is run, that the text can name a function of the user; None is accepted."""
    if spelled is None:
        return
    if not is_reference(spelled):
        raise UsageError(f"{option} {spelled!r}: expected path/to/file.py:function or module:function")
    source = spelled.rpartition(":")[0]
    if source.endswith(".py"):
        _expect_file(source)


def _expect_file(path: str) -> None:
    if not Path(path).is_file():
        raise UsageError(f"{path} does not exist: expected a Python file, as in path/to/file.py:function")


def import_object(spelled: str) -> Any:
    """Import the object and return it; its module's code runs once, with `__name__` other than "__main__"."""
    source, _, name = spelled.rpartition(":")
    if source.endswith(".py"):
        _expect_file(source)
        target: Any = _file(str(Path(source).resolve()))
    else:
        target = _module(source)
    for part in name.split("."):
        if not hasattr(target, part):
            raise UsageError(
                f"{source} has no {name!r}.{did_you_mean(part, vars(target) if hasattr(target, '__dict__') else ())}"
            )
        target = getattr(target, part)
    return target


@functools.cache
def _file(path: str) -> ModuleType:
    stem = Path(path).stem
    name = stem if stem not in sys.modules and importlib.util.find_spec(stem) is None else f"_embgrad_user_{stem}"
    _search_in(str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    _search_in(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # another module, which the user's module imports, is missing
        raise UsageError(
            f"there is no module {error.name!r}: expected a module that Python can import from here, or path/to/file.py:name"
        ) from None


def _search_in(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
