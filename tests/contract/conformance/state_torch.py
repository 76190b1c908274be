"""Everything in a PyTorch model, and in PyTorch, that a call must leave as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch._dynamo  # which leaves a variable in the environment when it is first imported
from torch import nn

from embgrad.testing.snapshot import Same


def state(model: nn.Module) -> Mapping[str, Any]:
    """Parameters, gradient buffers, flags, modes, hooks and attributes of every module, and PyTorch's settings."""
    return {
        "modules": {path: module_state(module) for path, module in model.named_modules()},
        **of_process(model),
    }


def of_process(model: nn.Module) -> Mapping[str, Any]:
    """PyTorch's settings and functions, and the methods of the model's classes."""
    return {
        "settings": _settings(),
        "methods": {kind.__qualname__: _methods(kind) for kind in {type(module) for module in model.modules()}},
        "functions": {f"{owner.__name__}.{name}": Same(getattr(owner, name)) for owner, name in _FUNCTIONS},
    }


#: What one could put another function in the place of.
_FUNCTIONS = (
    (torch, "embedding"),
    (torch.nn.functional, "embedding"),
    (torch.autograd, "grad"),
    (torch.autograd, "backward"),
    (torch.Tensor, "backward"),
    (torch.Tensor, "__getitem__"),
    (torch.utils.checkpoint, "checkpoint"),
)


def _settings() -> dict[str, Any]:
    hooks = {
        name: list(one.items()) if isinstance(one, dict) else one
        for name, one in vars(nn.modules.module).items()
        if name.startswith("_global_")
    }
    return {
        "grad enabled": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "function modes": [Same(mode) for mode in torch.overrides._get_current_function_mode_stack()],
        "dispatch modes": [Same(mode) for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack()],
        "saved tensors": getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)(True),
        "stance": torch._dynamo.eval_frame._stance.stance,
        "compiler": Same(torch._C._dynamo.eval_frame.get_eval_frame_callback()),
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "hooks of all modules": hooks,
    }


def _methods(kind: type) -> dict[str, Any]:
    """What its modules do when they are called, put into a mode, and asked for an attribute."""
    names = (
        "forward", "__call__", "_call_impl", "train", "eval", "__getattr__", "__setattr__", "parameters", "children",
    )  # fmt: skip
    return {name: Same(getattr(kind, name)) for name in names}


def module_state(module: nn.Module) -> dict[str, Any]:
    """A module's tensors, hooks and attributes."""
    tensors = {**module._parameters, **module._buffers}
    held = {name: value for name, value in vars(module).items() if isinstance(value, (dict, list, tuple, set))}
    return {
        "kind": Same(type(module)),
        "tensors": {name: None if tensor is None else tensor_state(tensor) for name, tensor in tensors.items()},
        "hooks": {name: list(value.items()) for name, value in held.items() if name.endswith("_hooks")},
        "attributes": {
            name: repr(value)
            for name, value in vars(module).items()
            if not name.startswith("_") and isinstance(value, (dict, list, tuple, set, torch.Tensor, np.ndarray))
        },
        "objects": {name: _known(value) for name, value in vars(module).items()},
        "held": {name: list(map(_known, value)) for name, value in held.items()},
    }


def _known(value: Any) -> Any:
    """Texts and numbers are as good as equal ones."""
    return value if isinstance(value, (bool, int, float, str)) else Same(value)


def tensor_state(tensor: torch.Tensor) -> dict[str, Any]:
    """A tensor's memory, flags, hooks and gradient."""
    return {
        "object": Same(tensor),
        "memory": tensor.data_ptr(),
        "bytes": _bytes(tensor),
        "version": tensor._version,
        "requires_grad": (tensor.requires_grad, tensor.retains_grad),
        "on a graph": Same(tensor.grad_fn),
        "hooks": [
            [(number, Same(hook)) for number, hook in (hooks or {}).items()]
            for hooks in (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
        ],
        "attributes": {name: Same(value) for name, value in vars(tensor).items()},
        "grad": None if tensor.grad is None else (Same(tensor.grad), tensor.grad._version, _bytes(tensor.grad)),
    }


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
