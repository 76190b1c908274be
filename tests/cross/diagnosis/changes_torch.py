"""PyTorch: what can go wrong in a model, by the framework's own means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from tests.cross.diagnosis.changes_of_weights import Weights, changes_of_weights
from tests.cross.diagnosis.native_torch import Block, Own, Port, core, table_of


class AlwaysDropping(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.rate, training=True)


def _layers(model: Any) -> list[Any]:
    inner = core(model)
    if isinstance(inner, Own):
        return list(inner.blocks)
    return list(inner.transformer.h) if hasattr(inner, "transformer") else list(inner.encoder.layer)


def _gelu(model: Any, _: Any) -> Any:
    for layer in _layers(model):
        if hasattr(layer, "intermediate"):
            layer.intermediate.intermediate_act_fn = nn.GELU(approximate="tanh")
        elif hasattr(layer, "mlp"):
            layer.mlp.act = nn.GELU()  # GPT-2's own is the approximate one
        else:
            layer.act = nn.GELU(approximate="tanh")
    return model


def _epsilon(model: Any, _: Any) -> Any:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-3
    return model


def _always_dropping(model: Any, _: Any) -> Any:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Dropout):
                setattr(module, name, AlwaysDropping(0.1))
    return model


def _without_residual(model: Any, _: Any) -> Any:
    layer = _layers(model)[1]
    if isinstance(layer, Block):
        inner = layer.forward
        layer.forward = lambda x, mask: inner(x, mask) - x
        return model
    output = layer.output

    def forward(hidden: torch.Tensor, _input: torch.Tensor) -> torch.Tensor:
        return output.LayerNorm(output.dropout(output.dense(hidden)))

    output.forward = forward
    return model


def _head_zeroed(model: Any, _: Any) -> Any:
    dense = _layers(model)[1].attention.output.dense
    dense.register_forward_pre_hook(lambda _, given: (_silenced(given[0]),))
    return model


def _silenced(context: torch.Tensor) -> torch.Tensor:
    kept = torch.ones(context.shape[-1])
    kept[: context.shape[-1] // 4] = 0
    return context * kept


def _hot_attention(model: Any, _: Any) -> Any:
    _find(model, 1, "query").register_forward_hook(lambda _m, _i, output: output * 1.7)
    return model


def _detached(model: Any, _: Any) -> Any:
    dense = _layers(model)[1].attention.output.dense
    dense.register_forward_hook(lambda _m, _i, output: output * 0.5 + output.detach() * 0.5)
    return model


def _find(model: Any, number: int, name: str) -> Any:
    layer = _layers(model)[number]
    if name == "up":
        return layer.intermediate.dense if hasattr(layer, "intermediate") else layer.up
    if name == "output":
        return layer.attention.output.dense if hasattr(layer, "attention") else layer.out
    return getattr(layer.attention.self if hasattr(layer, "attention") else layer, name)


def _write(parameter: Any, value: np.ndarray) -> None:
    parameter.data = torch.tensor(value, dtype=parameter.dtype)


WEIGHTS: Final = Weights(
    find=_find,
    parameter=getattr,
    table=lambda model: table_of(model).weight,
    every=lambda model: list(model.parameters()),
    read=lambda parameter: parameter.detach().numpy().copy(),
    write=_write,
)


MODIFICATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    **changes_of_weights(WEIGHTS),
    "gelu": _gelu,
    "epsilon-1e-3": _epsilon,
    "always-dropping": _always_dropping,
    "float16": lambda model, _: model.half(),
    "bfloat16": lambda model, _: model.bfloat16(),
    "ignores-mask": lambda model, _: Port(model, drop="attention_mask").eval(),
    "ignores-types": lambda model, _: Port(model, drop="token_type_ids").eval(),
    "offsets-positions": lambda model, _: Port(model, offset=2).eval(),
    "without-residual": _without_residual,
    "head-zeroed": _head_zeroed,
    "hot-attention": _hot_attention,
    "detached": _detached,
}
