"""PyTorch: what can go wrong in a model, by the framework's own means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from tests.cross.diagnosis.changes_of_weights import Weights, changes_of_weights
from tests.cross.diagnosis.native_torch import Port, core, table_of


class AlwaysDropping(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.rate, training=True)


def _layers(model: Any) -> list[Any]:
    return list(core(model).encoder.layer)


def _gelu(model: Any, _: Any) -> Any:
    for layer in _layers(model):
        layer.intermediate.intermediate_act_fn = nn.GELU(approximate="tanh")
    return model


def _always_dropping(model: Any, _: Any) -> Any:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Dropout):
                setattr(module, name, AlwaysDropping(0.1))
    return model


def _without_residual(model: Any, _: Any) -> Any:
    output = _layers(model)[1].output

    def forward(hidden: torch.Tensor, _input: torch.Tensor) -> torch.Tensor:
        return output.LayerNorm(output.dropout(output.dense(hidden)))

    output.forward = forward
    return model


def _hot_attention(model: Any, _: Any) -> Any:
    _find(model, 1, "query").register_forward_hook(lambda _m, _i, output: output * 1.7)
    return model


def _detached(model: Any, _: Any) -> Any:
    dense = _layers(model)[1].attention.output.dense
    dense.register_forward_hook(lambda _m, _i, output: output * 0.5 + output.detach() * 0.5)
    return model


def _find(model: Any, number: int, name: str) -> Any:
    layer = _layers(model)[number]
    return layer.intermediate.dense if name == "up" else getattr(layer.attention.self, name)


def _write(parameter: Any, value: np.ndarray) -> None:
    parameter.data = torch.tensor(value, dtype=parameter.dtype)


WEIGHTS: Final = Weights(
    find=_find,
    parameter=getattr,
    table=lambda model: table_of(model).weight,
    read=lambda parameter: parameter.detach().numpy().copy(),
    write=_write,
)


MODIFICATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    **changes_of_weights(WEIGHTS),
    "gelu": _gelu,
    "always-dropping": _always_dropping,
    "float16": lambda model, _: model.half(),
    "bfloat16": lambda model, _: model.bfloat16(),
    "ignores-mask": lambda model, _: Port(model, drop="attention_mask").eval(),
    "ignores-types": lambda model, _: Port(model, drop="token_type_ids").eval(),
    "offsets-positions": lambda model, _: Port(model, offset=2).eval(),
    "without-residual": _without_residual,
    "hot-attention": _hot_attention,
    "detached": _detached,
}
