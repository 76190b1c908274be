"""The registry of backends: discovery in named stages, and the choice of the backend that owns a model."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from embgrad.backend.protocol import Backend, BoundModel, Call
from embgrad.backend.unowned import describe, describe_unowned, nothing_registered
from embgrad.errors import BackendError, brief, did_you_mean, quote
from embgrad.toolkit.signature import as_parts, expect_callable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "backend_for",
    "backend_named",
    "bind",
    "broken_backends",
    "is_installed",
    "is_model",
    "list_backends",
    "model_in",
    "refresh_backends",
]

GROUP: Final = "embgrad.backends"

#: The members that a backend must have, see `embgrad.backend.Backend`.
MEMBERS: Final = ("name", "package", "extra", "supports", "owns", "versions", "points", "run", "paths")


@dataclass(frozen=True)
class Discovery:
    """The result of a discovery: the working backends, and the reasons why others do not work.

    Attributes:
        owners: the backend that owns models of a type, by the type, as far as known.
    """

    backends: Mapping[str, Backend]
    failures: Mapping[str, str]
    owners: WeakKeyDictionary[type, Backend] = field(default_factory=WeakKeyDictionary, compare=False)


def list_backends() -> dict[str, Backend]:
    """Return the backends that are installed and work, by name. Imports no framework."""
    return dict(_discover().backends)


def broken_backends() -> dict[str, str]:
    """Return the reason why each broken backend does not work, by name. Imports no framework."""
    return dict(_discover().failures)


def refresh_backends() -> None:
    """Clear the cached discovery, so that the next call discovers anew (after an installation in the running process)."""
    _discover.cache_clear()


def backend_named(name: str, also: Sequence[str] = ()) -> Backend:
    """Return the backend with this name, whose framework is installed.

    Args:
        also: names that are no backends, but are also valid where the name comes from, for messages.

    Raises:
        BackendError: the name is not a string or is unknown, the backend is broken, or its framework is not installed.
    """
    discovery = _discover()
    if not isinstance(name, str):
        raise BackendError(
            f"the framework is {brief(name)}: expected the name of a backend, one of {quote([*discovery.backends, *also])}"
        )
    if name in discovery.failures:
        raise BackendError(f"the backend {name!r} cannot be used: {discovery.failures[name]}")
    if name not in discovery.backends:
        known = [*discovery.backends, *discovery.failures, *also]
        raise BackendError(
            f"there is no backend {name!r}: expected one of {quote(known)}.{did_you_mean(name, known)}"
            f"{nothing_registered(discovery.backends, discovery.failures)}"
        )
    backend = discovery.backends[name]
    if not is_installed(backend.package):
        wanted = f"'embgrad[{backend.extra}]'" if backend.extra else backend.package
        raise BackendError(
            f"the backend {name!r} needs the package {backend.package!r}, which is not installed: pip install {wanted}"
        )
    return backend


def is_model(value: Any) -> bool:
    """Return whether a backend owns the object. Imports no framework."""
    return any(_owns(backend, value) for backend in _discover().backends.values())


def backend_for(model: Any) -> Backend:
    """Return the one backend that owns the model, or every part of it."""
    discovery = _discover()
    cached = discovery.owners.get(type(model))
    if cached is not None and _owns(cached, model):
        return cached
    parts = as_parts(model)
    classes = [part.__qualname__ for part in parts if isinstance(part, type)]
    if classes:
        raise BackendError(f"the model is the class {classes[0]}: expected an instance; write {classes[0]}(...)")
    if not parts:
        raise BackendError("the model is an empty sequence of parts: expected at least one part")
    is_sequence = isinstance(model, (list, tuple))
    owners, current = _owners(parts, discovery, is_sequence=is_sequence)
    if len(owners) == 1:
        # A backend whose owns() raised here may claim the next model of this type, so nothing is cached then.
        if current is discovery and not is_sequence:
            discovery.owners[type(model)] = owners[0]
        return owners[0]
    if owners:
        raise BackendError(
            f"the backends {quote(backend.name for backend in owners)} all claim {describe(parts)}: expected only one to. "
            "Uninstall the others"
        )
    foreign = [part for part in parts if not _owners([part], current, is_sequence=is_sequence)[0]]
    raise BackendError(describe_unowned(parts, foreign, current.backends, current.failures))


def model_in(value: Any) -> Any:
    """Return the model in the attribute `model` of an object such as a pipeline, or the object itself if it has none."""
    inner = None if isinstance(value, (type, list, tuple)) else getattr(value, "model", None)
    return value if inner is None or is_model(value) or not is_model(inner) else inner


def bind(model: Any, call: Call | None = None) -> BoundModel:
    """Return the model, or the model that an object such as a pipeline holds, with its backend.

    Raises:
        BackendError: no backend takes the model.
        BatchError: `call` is not a function.
    """
    expect_callable(call)
    model = model_in(model)
    return BoundModel(backend_for(model), model, call)


def _owns(backend: Backend, part: Any) -> bool:
    """Return whether the backend claims the model; treat an exception as no, since `_owners` reports it."""
    try:
        return backend.owns(part)
    except Exception:  # a third party's backend may raise anything
        return False


def _owners(parts: Sequence[Any], discovery: Discovery, *, is_sequence: bool) -> tuple[list[Backend], Discovery]:
    """Return the backends that own every part, and the discovery with those whose `owns` raised moved to the failures.

    A backend may take objects in a sequence that are no models alone, such as a function beside its parameters.
    """
    owners, failures = [], {}
    for name, backend in discovery.backends.items():
        try:
            owns = getattr(backend, "owns_part", backend.owns) if is_sequence else backend.owns
            if all(owns(part) for part in parts):
                owners.append(backend)
        except Exception as error:  # a third party's backend may raise anything; it must not hide the others
            failures[name] = f"its owns() raised {type(error).__name__}: {error}"
    if not failures:
        return owners, discovery
    working = {name: backend for name, backend in discovery.backends.items() if name not in failures}
    return owners, Discovery(working, {**discovery.failures, **failures})


@functools.lru_cache(maxsize=1)
def _discover() -> Discovery:
    return discover(entry_points(group=GROUP))


def entry_points(group: str) -> Iterable[EntryPoint]:
    """Return the installed entry points of a group. `importlib.metadata` is imported here because its import is slow."""
    from importlib import metadata

    return metadata.entry_points(group=group)


def discover(points: Iterable[EntryPoint]) -> Discovery:
    """Run all stages of discovery: drop duplicates, load, check."""
    unique, clashes = drop_duplicates(points)
    loaded, broken = load(unique)
    backends, misshapen = check(loaded)
    return Discovery(backends, {**clashes, **broken, **misshapen})


def drop_duplicates(points: Iterable[EntryPoint]) -> tuple[list[EntryPoint], dict[str, str]]:
    """Return one entry point for each name, and the errors for names with several.

    Identical entry points count as one. If two different ones share a name, neither is used.
    """
    by_name: dict[str, dict[str, EntryPoint]] = {}
    for point in points:
        by_name.setdefault(point.name, {})[point.value] = point
    unique = [next(iter(entries.values())) for entries in by_name.values() if len(entries) == 1]
    clashes = {
        name: "two distributions provide it, "
        + " and ".join(_origin(point) for point in entries.values())
        + ": uninstall one"
        for name, entries in by_name.items()
        if len(entries) > 1
    }
    return unique, clashes


def load(points: Iterable[EntryPoint]) -> tuple[dict[str, Backend], dict[str, str]]:
    """Return instances of the backends, and the errors of those that raised; no error hides another backend."""
    loaded, broken = {}, {}
    for point in points:
        try:
            loaded[point.name] = point.load()()
        except (
            Exception
        ) as error:  # a third party's module may raise anything; the error is shown when the backend is requested
            broken[point.name] = f"{_origin(point)} raised {type(error).__name__}: {error}"
    return loaded, broken


def check(loaded: Mapping[str, Any]) -> tuple[dict[str, Backend], dict[str, str]]:
    """Return the backends that have all required members and their registered name, and the errors of the others."""
    good, bad = {}, {}
    for name, backend in loaded.items():
        missing = [member for member in MEMBERS if not hasattr(backend, member)]
        if missing:
            bad[name] = f"{type(backend).__qualname__} lacks {quote(missing)}; see embgrad.backend.Backend"
        elif backend.name != name:
            bad[name] = f"it is registered as {name!r} and calls itself {backend.name!r}"
        else:
            good[name] = backend
    return good, bad


def is_installed(package: str) -> bool:
    """Return whether a package is installed. Imports nothing."""
    spec = importlib.util.find_spec(package)
    return (
        spec is not None and spec.origin is not None
    )  # a folder of that name (a namespace package) is not an installation


def _origin(point: EntryPoint) -> str:
    distribution = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
    return f"{distribution} ({point.value})"
