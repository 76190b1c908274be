"""The registry of backends: discovery in named stages, and the choice of the backend that owns a model."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from embgrad.backend.protocol import Backend, BoundModel, Call
from embgrad.backend.signature import as_parts, expect_callable
from embgrad.errors import BackendError, brief, did_you_mean, listed

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "backend_for",
    "backend_named",
    "bind",
    "broken_backends",
    "is_model",
    "list_backends",
    "model_in",
    "refresh_backends",
]

GROUP: Final = "embgrad.backends"

#: Packages whose classes identify a model's framework: what such a model is called, and the extra that installs the backend.
KNOWN_PACKAGES: Final[Mapping[str, tuple[str, str | None]]] = {
    "torch": ("a PyTorch module", "torch"),
    "tensorflow": ("a TensorFlow model", "tensorflow"),
    "keras": ("a Keras model", "tensorflow"),
    "tf_keras": ("a Keras 2 model", "tensorflow"),
    "mxnet": ("a Gluon block", "mxnet"),
    "flax": ("a Flax module", None),
    "haiku": ("a Haiku module", None),
    "equinox": ("an Equinox module", None),
    "paddle": ("a Paddle layer", None),
}

#: Keras's backends that embgrad does not support as frameworks.
KERAS_BACKENDS: Final = ("jax", "numpy", "openvino")

#: The members that a backend must have, see `embgrad.backend.Backend`.
MEMBERS: Final = ("name", "package", "extra", "supports", "owns", "versions", "points", "run", "paths")


@dataclass(frozen=True)
class Discovery:
    """The result of a discovery: the working backends, and the reasons why others do not work.

    Attributes:
        backends: the working backends by name.
        failures: the reason for each backend that does not work, by name.
        owners: the backend that owns models of a type, by the type, as far as known.
    """

    backends: Mapping[str, Backend]
    failures: Mapping[str, str]
    owners: WeakKeyDictionary[type, Backend] = field(default_factory=WeakKeyDictionary, compare=False)


def list_backends() -> dict[str, Backend]:
    """Return the backends that are installed and work, by name. Imports no framework."""
    return dict(_discovered().backends)


def broken_backends() -> dict[str, str]:
    """Return the reason why each broken backend does not work, by name. Imports no framework."""
    return dict(_discovered().failures)


def refresh_backends() -> None:
    """Clear the cached discovery, so that the next call discovers anew (after an installation in the running process)."""
    _discovered.cache_clear()


def backend_named(name: str) -> Backend:
    """Return the backend with this name, whose framework is installed.

    Raises:
        BackendError: the name is not a string or is unknown, the backend is broken, or its framework is not installed.
    """
    discovery = _discovered()
    if not isinstance(name, str):
        raise BackendError(
            f"the framework is {brief(name)}: expected the name of a backend, one of {listed(discovery.backends)}"
        )
    if name in discovery.failures:
        raise BackendError(f"the backend {name!r} cannot be used: {discovery.failures[name]}")
    if name not in discovery.backends:
        known = [*discovery.backends, *discovery.failures]
        raise BackendError(
            f"there is no backend {name!r}: expected one of {listed(known)}.{did_you_mean(name, known)}{_nothing(discovery)}"
        )
    backend = discovery.backends[name]
    if not _installed(backend.package):
        wanted = f"'embgrad[{backend.extra}]'" if backend.extra else backend.package
        raise BackendError(
            f"the backend {name!r} needs the package {backend.package!r}, which is not installed: pip install {wanted}"
        )
    return backend


def is_model(value: Any) -> bool:
    """Return whether a backend owns the object. Imports no framework."""
    return any(_owns(backend, value) for backend in _discovered().backends.values())


def backend_for(model: Any) -> Backend:
    """Return the one backend that owns the model, or every part of it.

    Raises:
        BackendError: no backend owns it, or more than one; the message says what the model looks like and what to install.
    """
    discovery = _discovered()
    cached = discovery.owners.get(type(model))
    if cached is not None and _owns(cached, model):
        return cached
    parts = as_parts(model)
    classes = [part.__qualname__ for part in parts if isinstance(part, type)]
    if classes:
        raise BackendError(f"the model is the class {classes[0]}: expected an instance; write {classes[0]}(...)")
    if not parts:
        raise BackendError("the model is an empty sequence of parts: expected at least one part")
    owners, current = _owners(parts, discovery)
    if len(owners) == 1:
        # A backend whose owns() raised here may claim the next model of this type, so nothing is cached then.
        if current is discovery and not isinstance(model, (list, tuple)):
            discovery.owners[type(model)] = owners[0]
        return owners[0]
    if owners:
        raise BackendError(
            f"the backends {listed(backend.name for backend in owners)} all claim {_described(parts)}: expected only one to. "
            "Uninstall the others"
        )
    raise BackendError(_no_owner(parts, current))


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


def _owners(parts: Sequence[Any], discovery: Discovery) -> tuple[list[Backend], Discovery]:
    """Return the backends that own every part, and the discovery with those whose `owns` raised moved to the failures."""
    owners, failures = [], {}
    for name, backend in discovery.backends.items():
        try:
            if all(backend.owns(part) for part in parts):
                owners.append(backend)
        except Exception as error:  # a third party's backend may raise anything; it must not hide the others
            failures[name] = f"its owns() raised {type(error).__name__}: {error}"
    if not failures:
        return owners, discovery
    working = {name: backend for name, backend in discovery.backends.items() if name not in failures}
    return owners, Discovery(working, {**discovery.failures, **failures})


@functools.lru_cache(maxsize=1)
def _discovered() -> Discovery:
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
            bad[name] = f"{type(backend).__qualname__} lacks {listed(missing)}; see embgrad.backend.Backend"
        elif backend.name != name:
            bad[name] = f"it is registered as {name!r} and calls itself {backend.name!r}"
        else:
            good[name] = backend
    return good, bad


def _no_owner(parts: Sequence[Any], discovery: Discovery) -> str:
    message = f"no installed backend takes {_described(parts)}"
    keras = next((name for part in parts if (name := _keras_backend(part)) in KERAS_BACKENDS), None)
    if keras is not None:
        return (
            f"{message}: it is a Keras model on Keras's own backend {keras!r}, which embgrad does not support. Set KERAS_BACKEND "
            "to 'tensorflow' or 'torch' before keras is imported, and load the model there"
        )
    looks = {
        package: KNOWN_PACKAGES[package] for part in parts for package in _packages(part) if package in KNOWN_PACKAGES
    }
    if len({extra for _, extra in looks.values()}) > 1:
        return f"{message}: its parts are {listed(what for what, _ in looks.values())}; expected parts of one framework"
    known = next(
        (backend for backend in discovery.backends.values() if backend.extra and backend.extra in _extras(looks)), None
    )
    if known is not None:
        what, _ = next(iter(looks.values()))
        message += (
            f": it is from the same package as {what}, but is not one; the backend {known.name!r} expects a model, not a "
            "tensor, a function or an optimizer"
        )
    elif looks:
        what, extra = next(iter(looks.values()))
        message += f": it looks like {what}"
        message += (
            f", install the extra {extra!r}: pip install 'embgrad[{extra}]'"
            if extra
            else ", for which embgrad has no backend; see embgrad.backend.Backend for how to write one"
        )
    else:
        message += (
            ": expected a model of one of the frameworks, a torch.nn.Module, a TensorFlow or Keras model or a Gluon block, "
            f"or, with call=..., a sequence of such parts{_instead(parts[0])}"
        )
    failures = "; ".join(f"{name}: {why}" for name, why in discovery.failures.items())
    return (
        message
        + f". Backends: {listed(discovery.backends)}"
        + (f"; broken: {failures}" if failures else "")
        + _nothing(discovery)
    )


def _instead(value: Any) -> str:
    """Return a message's advice on what to pass in place of a name or a dict."""
    if isinstance(value, str):
        return "; in place of a name, pass the model that from_pretrained(...) or embgrad.load_bert(folder) returns"
    if isinstance(value, Mapping):
        return (
            "; in place of a dict of weights, pass the model that holds them; a dict of inputs is the second argument"
        )
    return ""


def _keras_backend(part: Any) -> str | None:
    """Return the name of the Keras backend that a Keras 3 model runs on, or None if the object is no Keras 3 model."""
    modules = (base.__module__.split(".") for base in type(part).__mro__)
    return next((names[3] for names in modules if names[:3] == ["keras", "src", "backend"] and len(names) > 3), None)


def _extras(looks: Mapping[str, tuple[str, str | None]]) -> set[str | None]:
    return {extra for _, extra in looks.values()}


def _nothing(discovery: Discovery) -> str:
    if discovery.backends or discovery.failures:
        return ""
    return " No backend is registered at all: install embgrad itself with pip, so that its entry points are known"


def _described(parts: Sequence[Any]) -> str:
    types = [f"{type(part).__module__}.{type(part).__qualname__}" for part in parts]
    return f"a model of type {types[0]}" if len(types) == 1 else f"a model of parts of the types {', '.join(types)}"


def _packages(part: Any) -> list[str]:
    """Return the top-level packages of an object's type and its bases, in method resolution order."""
    return [base.__module__.partition(".")[0] for base in type(part).__mro__]


def _installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return (
        spec is not None and spec.origin is not None
    )  # a folder of that name (a namespace package) is not an installation


def _origin(point: EntryPoint) -> str:
    distribution = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
    return f"{distribution} ({point.value})"
