"""Lazy attributes of packages and classes: names that are imported when they are first used."""

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["attach", "defer"]


def attach(
    package: str,
    names: Mapping[str, Sequence[str]],
    namespaces: Collection[str] = (),
    rooms: Collection[str] = (),
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return a package's `__getattr__`, `__dir__` and `__all__`.

    Args:
        package: the package's name.
        names: the names by the modules, below `embgrad`, that define them.
        namespaces: modules of the package that need no import of their own. The names in their `__all__` are attributes of the
            package as well, and are not listed.
        rooms: further modules that need no import of their own, and are not listed.
    """
    modules = {name: f"embgrad.{module}" for module, found in names.items() for name in found}

    def use(name: str) -> object:
        owner = import_module(package)
        if name in modules:
            value = getattr(import_module(modules[name]), name)
        elif name in namespaces or name in rooms:
            value = import_module(f"{package}.{name}")
        elif name.startswith("_"):  # which Python and notebooks look for on every object: nothing is imported for them
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=owner)
        else:
            spaces = [import_module(f"{package}.{space}") for space in namespaces]
            homes = {public: space for space in spaces for public in space.__all__}
            if name not in homes:
                raise AttributeError(_refusal(package, name, [*modules, *namespaces, *homes]))
            value = getattr(homes[name], name)
        setattr(owner, name, value)
        return value

    def list_names() -> list[str]:
        own = {name for name in vars(import_module(package)) if name.startswith("__")}
        return sorted({*own, *modules, *namespaces})

    return use, list_names, sorted(modules)


def defer(module: str, name: str) -> Any:
    """Return a method that calls a function of a module without its object; the module is imported at the first call.

    Args:
        module: the module's name.
        name: the function's name in it.
    """

    def call(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call


def _refusal(package: str, name: str, known: Collection[str]) -> str:
    """Return the message for a name that a package does not have."""
    from embgrad.errors import did_you_mean  # for messages alone

    hint = did_you_mean(name, known)
    return f"module {package!r} has no attribute {name!r}" + (f".{hint}" if hint else "")
