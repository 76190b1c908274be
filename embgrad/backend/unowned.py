"""The message for an object that no backend takes: what it looks like, and what to install or to pass instead."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, Final

from embgrad.backend.protocol import Backend
from embgrad.errors import quote

__all__ = ["KERAS_FRAMEWORKS", "describe", "describe_unowned", "nothing_registered"]

#: Packages whose classes identify a model's framework: what such a model is called, and the extra that installs the backend.
KNOWN_PACKAGES: Final[Mapping[str, tuple[str, str | None]]] = {
    "torch": ("a PyTorch module", "torch"),
    "tensorflow": ("a TensorFlow model", "tensorflow"),
    "keras": ("a Keras model", "tensorflow"),
    "tf_keras": ("a Keras 2 model", "tensorflow"),
    "mxnet": ("a Gluon block", "mxnet"),
    "flax": ("a Flax module", "jax"),
    "equinox": ("an Equinox module", "jax"),
    "jax": ("a JAX function", "jax"),
    "jaxlib": ("a JAX function", "jax"),
    "onnx": ("an ONNX model", "onnx"),
    "onnxruntime": ("an ONNX model", "onnx"),
    "haiku": ("a Haiku module", None),
    "paddle": ("a Paddle layer", None),
}

#: Keras's backends on which embgrad takes models, which are also the names of embgrad's backends and of their extras.
KERAS_FRAMEWORKS: Final = ("tensorflow", "torch", "jax")

#: Keras's other backends, which compute no gradients.
OTHER_KERAS: Final = ("numpy", "openvino")

#: The code that goes with the parameters of a function of JAX.
_AS_TREE: Final = "call=lambda parameters, inputs: function(parameters, inputs)"

#: By the classes' modules and names, objects that are no models by themselves: what they are, and what to pass.
_INCOMPLETE: Final[Mapping[tuple[str, str], str]] = {
    ("flax.linen.module", "Module"): (
        "it is a Flax Linen module, which holds no weights. Pass (module, variables) with "
        "call=lambda parts, inputs: parts[0].apply(parts[1], inputs), where inputs are the ids, or the batch's dict if it is one"
    ),
    ("flax.nnx.graph", "GraphDef"): (
        "it is an nnx.GraphDef, a module without its variables. Pass the module, nnx.merge(graphdef, state)"
    ),
    ("flax.nnx.graphlib", "GraphDef"): (
        "it is an nnx.GraphDef, a module without its variables. Pass the module, nnx.merge(graphdef, state)"
    ),
}


def describe_unowned(
    parts: Sequence[Any], foreign: Sequence[Any], backends: Mapping[str, Backend], failures: Mapping[str, str]
) -> str:
    """Return the message for a model that no backend takes.

    Args:
        foreign: those of them that no backend takes even alone; empty if each part has a backend, though not the same.
        failures: the reason for each backend that does not work, by name.
    """
    message = f"no installed backend takes {describe(parts)}"
    advice = _advice(parts)
    if advice is not None:
        return f"{message}: {advice}"
    causes = foreign or parts
    subject = "it" if len(parts) == 1 else f"the part of type {type(causes[0]).__qualname__}"
    looks = [look for part in causes if (look := _look(part)) is not None]
    if len({extra for _, extra in looks}) > 1:
        return f"{message}: its parts are {quote(what for what, _ in looks)}; expected parts of one framework"
    extras = {extra for _, extra in looks}
    known = next((backend for backend in backends.values() if backend.extra and backend.extra in extras), None)
    if known is not None:
        what, _ = looks[0]
        message += (
            f": {subject} is from the same package as {what}, but is not one; the backend {known.name!r} expects a model, not a "
            "tensor, a function or an optimizer"
        )
    elif looks:
        what, extra = looks[0]
        message += f": {subject} looks like {what}"
        message += (
            f", install the extra {extra!r}: pip install 'embgrad[{extra}]'"
            if extra
            else ", for which embgrad has no backend; see embgrad.backend.Backend for how to write one"
        )
    else:
        message += (
            ": expected a model of one of the frameworks, a torch.nn.Module, a TensorFlow or Keras model, a Gluon block, a Flax "
            f"NNX or Equinox module, or, with call=..., a sequence of such parts{_instead(causes[0])}"
        )
    broken = "; ".join(f"{name}: {why}" for name, why in failures.items())
    return (
        message
        + f". Backends: {quote(backends)}"
        + (f"; broken: {broken}" if broken else "")
        + nothing_registered(backends, failures)
    )


def nothing_registered(backends: Mapping[str, Backend], failures: Mapping[str, str]) -> str:
    """Return the end of a message where no backend is registered; otherwise an empty string."""
    if backends or failures:
        return ""
    return " No backend is registered at all: install embgrad itself with pip, so that its entry points are known"


def describe(parts: Sequence[Any]) -> str:
    """Return the types of a model's parts for a message."""
    kinds = [f"{type(part).__module__}.{type(part).__qualname__}" for part in parts]
    return f"a model of type {kinds[0]}" if len(kinds) == 1 else f"a model of parts of the types {', '.join(kinds)}"


def _advice(parts: Sequence[Any]) -> str | None:
    """Return what to do about a model that is recognised as more than a class of a known package; None for any other."""
    keras = next((name for part in parts if (name := _keras_backend(part)) in OTHER_KERAS), None)
    if keras is not None:
        return (
            f"it is a Keras model on Keras's own backend {keras!r}, which embgrad does not support. Set KERAS_BACKEND to "
            "'tensorflow', 'torch' or 'jax' before keras is imported, and load the model there"
        )
    part, *further = parts
    if further:
        return None
    for base in type(part).__mro__:
        if (base.__module__, base.__qualname__) in _INCOMPLETE:
            return _INCOMPLETE[base.__module__, base.__qualname__]
    if _is_jitted(part):
        return (
            "it is a function under jit, which holds no weights. Pass the module that it calls, or its parameters with "
            f"{_AS_TREE}"
        )
    return None


def _look(part: Any) -> tuple[str, str | None] | None:
    """Return what a part looks like by the packages of its classes, and the extra that installs its backend."""
    keras = _keras_backend(part)
    if keras is not None:
        return f"a Keras model on {keras}", keras
    return next((KNOWN_PACKAGES[package] for package in _packages(part) if package in KNOWN_PACKAGES), None)


def _instead(value: Any) -> str:
    """Return a message's advice on what to pass in place of a name, a dict or a function."""
    if isinstance(value, str) and value.endswith(".onnx"):
        return "; in place of a file's name, pass the model that embgrad_onnx.load(path) returns"
    if isinstance(value, str):
        return "; in place of a name, pass the model that from_pretrained(...) or embgrad.zoo.load_bert(folder) returns"
    if isinstance(value, Mapping):
        return (
            "; in place of a dict of weights, pass the model that holds them; a dict of inputs is the second argument"
        )
    if hasattr(value, "_torchdynamo_orig_callable"):
        return (
            "; in place of a function that torch.compile made, pass the torch.nn.Module whose weights it uses, compiled or "
            "not, and the function as call=..."
        )
    if isinstance(value, types.FunctionType):
        return (
            "; in place of a function that builds a model, pass what it returns, and in place of a function of JAX its "
            f"parameters, with {_AS_TREE}"
        )
    return ""


def _keras_backend(part: Any) -> str | None:
    """Return the name of the Keras backend that a Keras 3 model runs on, or None if the object is no Keras 3 model."""
    bases = type(part).__mro__
    if not any(base.__module__.startswith("keras.") and base.__qualname__ == "Layer" for base in bases):
        return None
    modules = (base.__module__.split(".") for base in bases)
    return next((names[3] for names in modules if names[:3] == ["keras", "src", "backend"] and len(names) > 3), None)


def _is_jitted(part: Any) -> bool:
    """Return whether an object is a function that `jax.jit` or `nnx.jit` has wrapped."""
    return type(part).__module__.partition(".")[0] in ("jax", "jaxlib", "flax") and hasattr(part, "__wrapped__")


def _packages(part: Any) -> list[str]:
    """Return the top-level packages of an object's type and its bases, in method resolution order."""
    return [base.__module__.partition(".")[0] for base in type(part).__mro__]
