"""What goes wrong in transformers' models in PyTorch, by their modules' attributes, classes and arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.cross.ports.fault import Plant

MaskChange = Callable[[torch.Tensor], torch.Tensor]


def modules(model: Any, pattern: str) -> list[tuple[str, Any]]:
    """Return the modules whose paths end in the pattern."""
    every = list(model.named_modules(remove_duplicate=False))
    found = [(path, module) for path, module in every if re.search(rf"(^|\.)(?:{pattern})$", path)]
    assert found, (pattern, [path for path, _ in every])
    return found


def _single(model: Any, pattern: str) -> list[Any]:
    """Return the modules whose paths end in the pattern, each once."""
    return list({id(module): module for _, module in modules(model, pattern)}.values())


def setting(pattern: str, **attributes: Any) -> Plant:
    """Return what sets attributes that the modules have."""

    def plant(model: Any) -> None:
        for path, module in modules(model, pattern):
            for name, value in attributes.items():
                assert hasattr(module, name), (path, name)
                setattr(module, name, value)

    return plant


def configured(**fields: Any) -> Plant:
    """Return what sets fields of the configuration that the model reads as it runs."""

    def plant(model: Any) -> None:
        for name, value in fields.items():
            assert hasattr(model.config, name), name
            setattr(model.config, name, value)

    return plant


def epsilon(pattern: str, value: float) -> Plant:
    """Return what sets the epsilon of norms, under either of its names."""

    def plant(model: Any) -> None:
        for _, module in modules(model, pattern):
            name = "eps" if hasattr(module, "eps") else "variance_epsilon"
            assert hasattr(module, name), module
            setattr(module, name, value)

    return plant


def replaced(pattern: str, make: Callable[[Any], nn.Module]) -> Plant:
    """Return what puts other modules in the place of modules."""

    def plant(model: Any) -> None:
        for path, module in modules(model, pattern):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, make(module).train(module.training))

    return plant


def subclassed(module: Any, **methods: Any) -> None:
    """Make a module one of a class that has other methods: a copy of the module has them too."""
    module.__class__ = type(type(module).__name__, (type(module),), methods)


def rewritten(pattern: str, forward: Callable[..., Any]) -> Plant:
    """Return what gives modules another forward pass, a function of the module and its arguments."""

    def plant(model: Any) -> None:
        for module in _single(model, pattern):
            subclassed(module, forward=forward)

    return plant


def returning(pattern: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """Return what changes the tensor that modules return."""

    def plant(model: Any) -> None:
        for module in _single(model, pattern):
            inner = type(module).forward
            subclassed(module, forward=lambda self, *given, inner=inner, **named: change(inner(self, *given, **named)))

    return plant


def masking(pattern: str, change: MaskChange) -> Plant:
    """Return what changes the mask, 0 where a position is seen, that attention is given: (example, 1, query or 1, key)."""

    def plant(model: Any) -> None:
        for module in _single(model, pattern):
            inner = type(module).forward

            def forward(self: Any, *given: Any, inner: Any = inner, **named: Any) -> Any:
                is_mask = [isinstance(value, torch.Tensor) and value.dim() == 4 for value in given]
                given = tuple(change(value) if mask else value for value, mask in zip(given, is_mask, strict=True))
                for name in ("attention_mask", "mask"):
                    if isinstance(named.get(name), torch.Tensor):
                        named = {**named, name: change(named[name])}
                return inner(self, *given, **named)

            subclassed(module, forward=forward)

    return plant


def _mask(seen: torch.Tensor) -> torch.Tensor:
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


def _real(mask: torch.Tensor) -> torch.Tensor:
    """Return which keys are real: some query sees these."""
    return (mask == 0).any(2, keepdim=True)


def _distance(mask: torch.Tensor) -> torch.Tensor:
    return torch.arange(mask.shape[-1])[:, None] - torch.arange(mask.shape[-1])


def all_seen(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(mask)


def not_causal(mask: torch.Tensor) -> torch.Tensor:
    return _mask(_real(mask)).expand_as(mask)


def causal(mask: torch.Tensor) -> torch.Tensor:
    return _mask((_distance(mask) >= 0) & _real(mask))


def one_ahead(mask: torch.Tensor) -> torch.Tensor:
    return _mask((_distance(mask) >= -1) & _real(mask))


def only_before(mask: torch.Tensor) -> torch.Tensor:
    return _mask((_distance(mask) >= 1) & (mask == 0))


def unpadded(mask: torch.Tensor) -> torch.Tensor:
    return _mask((_distance(mask) >= 0).expand_as(mask))


def windowed(width: int) -> MaskChange:
    """Return the change to a mask by which a query sees so many positions, its own among them."""

    def change(mask: torch.Tensor) -> torch.Tensor:
        return _mask((mask == 0) & (_distance(mask) < width))

    return change


def rotary_base(base: float) -> Plant:
    """Return what sets the base of rotary positions."""

    def plant(model: Any) -> None:
        for module in _single(model, "rotary_emb"):
            size = 2 * len(module.inv_freq)
            module.inv_freq = base ** -(torch.arange(0, size, 2) / size)

    return plant


def rotary_factor(factor: float) -> Plant:
    """Return what divides positions by a factor."""

    def plant(model: Any) -> None:
        for module in _single(model, "rotary_emb"):
            module.inv_freq = module.inv_freq / factor

    return plant


def without_rotary(model: Any) -> None:
    """Turn nothing."""
    for _, module in modules(model, "rotary_emb"):
        module.inv_freq = torch.zeros_like(module.inv_freq)


class RootMeanSquare(nn.Module):
    """What a norm with mean and bias becomes without the mean."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight + self.bias


class Centred(nn.Module):
    """What a norm by the root mean square becomes with mean."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight, None, self.eps)


class Offset(nn.Module):
    """A norm by the root mean square, which multiplies by weight + offset."""

    def __init__(self, norm: Any, offset: float) -> None:
        super().__init__()
        self.weight, self.offset = norm.weight, offset
        self.eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (self.weight + self.offset)


class InHalf(nn.Module):
    """A norm that computes in another dtype."""

    def __init__(self, norm: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias, self.dtype = norm.weight, getattr(norm, "bias", None), dtype
        self.eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = x.to(self.dtype)
        if self.bias is not None:
            given = given - given.mean(-1, keepdim=True)
        given = given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight.to(self.dtype)
        return (given if self.bias is None else given + self.bias.to(self.dtype)).to(x.dtype)


class AlwaysDropping(nn.Module):
    """Dropout that stays on."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.rate, training=True)


class Scaled(nn.Module):
    """A lookup whose rows are multiplied."""

    def __init__(self, table: Any, factor: float | None = None) -> None:
        super().__init__()
        self.weight, self.num_embeddings = table.weight, table.num_embeddings
        self.factor = math.sqrt(table.weight.shape[1]) if factor is None else factor

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids, self.weight) * self.factor


class Shifted(nn.Module):
    """A lookup at ids to which a number is added."""

    def __init__(self, table: Any, by: int) -> None:
        super().__init__()
        self.weight, self.num_embeddings, self.by = table.weight, table.num_embeddings, by

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding((ids + self.by) % len(self.weight), self.weight)


class FirstRow(nn.Module):
    """A lookup that takes the first row, whatever the ids."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.weight, self.num_embeddings = table.weight, table.num_embeddings

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(torch.zeros_like(ids), self.weight)


def gate_on_up(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Act on the other branch of a gated feed-forward part."""
    if hasattr(module, "gate_up_proj"):
        gate, up = module.gate_up_proj(x).chunk(2, -1)
        return module.down_proj(gate * module.activation_fn(up))
    return module.down_proj(module.gate_proj(x) * module.act_fn(module.up_proj(x)))


def without_sum(module: Any, hidden: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Leave out the residual of one of BERT's parts."""
    return module.LayerNorm(module.dropout(module.dense(hidden)))


def norm_inside(module: Any, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Add the residual after the norm in one of BERT's parts."""
    return module.LayerNorm(module.dropout(module.dense(hidden))) + residual
