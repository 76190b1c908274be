"""Everything in a Gluon model, and in MXNet, that a call must leave as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embgrad_gluon.importing import import_mxnet

from embgrad.testing.snapshot import Same

mx = import_mxnet()


def state(model: Any) -> Mapping[str, Any]:
    """Parameters, gradient buffers, attributes, hooks and graphs of every block, and MXNet's settings."""
    return {
        "settings": _settings(),
        "parameters": {name: _parameter(one) for name, one in model._collect_params_with_prefix().items()},
        "blocks": {number: _block(block) for number, block in enumerate(_blocks(model))},
        "functions": {f"{owner.__name__}.{name}": Same(getattr(owner, name)) for owner, name in _FUNCTIONS},
    }


#: What one could put another function in the place of.
_FUNCTIONS = (
    (mx.ndarray.register, "_imperative_invoke"),
    (mx.gluon.HybridBlock, "_call_cached_op"),
    (mx.gluon.HybridBlock, "__call__"),
    (mx.gluon.HybridBlock, "forward"),
    (mx.gluon.Block, "__call__"),
    (mx.gluon.Block, "forward"),
    (mx.gluon.Parameter, "data"),
    (mx.autograd, "backward"),
    (mx.autograd, "grad"),
    (mx.autograd, "record"),
    (mx.autograd.Function, "__call__"),
    (mx.nd.NDArray, "backward"),
    (mx.nd, "Embedding"),
)


def _settings() -> dict[str, Any]:
    names, scope = (getattr(one._current, "value", None) for one in (mx.name.NameManager, mx.gluon.block._BlockScope))
    return {
        "recording": mx.autograd.is_recording(),
        "training": mx.autograd.is_training(),
        "numpy": (mx.util.is_np_array(), mx.util.is_np_shape()),
        "context": str(mx.context.current_context()),
        "names": (Same(names), dict(getattr(names, "_counter", {}))),
        "scope": (Same(scope), dict(getattr(scope, "_counter", {}))),
        "attributes": Same(getattr(mx.attribute.AttrScope._current, "value", None)),
    }


def _parameter(parameter: Any) -> dict[str, Any]:
    def arrays(held: Any) -> Any:
        return held and [(Same(array), array._fresh_grad, array.asnumpy().tobytes()) for array in held]

    return {
        "grad_req": parameter.grad_req,
        "data": arrays(parameter._data),
        "gradients": arrays(parameter._grad),
        "own": {
            name: value if isinstance(value, (bool, str, int, float, tuple)) else Same(value)
            for name, value in vars(parameter).items()
            if name != "_var"
        },
    }


def _block(block: Any) -> dict[str, Any]:
    methods = ("__call__", "forward", "hybrid_forward", "hybridize", "cast")
    held = {name: value for name, value in vars(block).items() if isinstance(value, (dict, list, tuple, set))}
    return {
        "kind": Same(type(block)),
        "own": {
            name: value if isinstance(value, (bool, str, int, float)) else Same(value)
            for name, value in vars(block).items()
        },
        "held": {name: list(map(Same, value)) for name, value in held.items()},
        "hooks": [list(hooks.items()) for hooks in (block._forward_hooks, block._forward_pre_hooks)],
        "methods": {name: Same(getattr(type(block), name, None)) for name in methods},
    }


def _blocks(block: Any) -> list[Any]:
    return [block, *(inner for child in block._children.values() for inner in _blocks(child))]
