"""Multiplies, of a gradient of which only few rows are not zero, those rows alone with a layer's weights.

An objective that reads one position of each example, as a pooled output does, has such gradients from the last attention on,
and PyTorch multiplies their zeros with whole matrices. A row of zeros gives zeros here whatever it is multiplied by.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn import functional

__all__ = ["linear"]

#: Products with fewer multiplications are left as they are: looking the gradient through would take as long as it saves.
LEAST: Final = 1 << 26

#: Of so many rows one may be other than zero.
FEW: Final = 4

#: So many entries are looked at first: of a gradient that has few rows, most are zero.
SAMPLES: Final = 32

#: What is multiplied like this: half precision is computed in another way for other shapes.
DTYPES: Final = frozenset({torch.float32, torch.float64})


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """As `torch.nn.functional.linear`, bit for bit.

    Where it is worth it, its gradient with respect to the input is, of a gradient whose rows are few, the product of those with
    the weight.
    """
    return (_Linear.apply if _is_worth_it(input, weight, bias) else functional.linear)(input, weight, bias)


def _is_worth_it(rows: Any, weight: Any, bias: Any) -> bool:
    """Whether the gradient may be looked through: it is large, on the CPU, that of the rows alone, and nobody transforms it."""
    return (
        type(rows) is torch.Tensor
        and rows.requires_grad
        and not rows.is_nested
        and type(weight) in (torch.Tensor, torch.nn.Parameter)
        and weight.dim() == 2
        and rows.numel() * len(weight) >= LEAST
        and rows.dtype in DTYPES
        and rows.dtype is weight.dtype
        and rows.dim() > 1
        and rows.device.type == "cpu" == weight.device.type
        and rows.layout is weight.layout is torch.strided
        and not weight.requires_grad
        and (bias is None or not bias.requires_grad)
        and not torch.is_autocast_enabled("cpu")
        and not _is_transformed()
        and forward_ad._current_level < 0
    )


def _is_transformed() -> bool:
    """Whether this runs inside torch.vmap or another transform of torch.func."""
    return torch._C._functorch.maybe_current_level() is not None


def _is_batch(gradient: Any) -> bool:
    """Whether a gradient stands for many, as with `is_grads_batched=True`, which is none of torch.func's transforms."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(gradient))


class _Linear(torch.autograd.Function):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(weight)
        found = functional.linear(rows, weight, bias)
        # What is a view here could not be written to by the model, as what is given without this class can be.
        return torch.ops.aten._unsafe_view(found, found.shape) if found._is_view() else found

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (weight,) = ctx.saved_tensors
        with torch._C.DisableTorchFunction():  # the pullback is watched for lookups that are made again
            return _product(gradient, weight), None, None


def _product(gradient: Any, weight: Any) -> Any:
    """The gradient times the weight."""
    flat = gradient.reshape(-1, gradient.shape[-1])
    # A gradient of this gradient is not zero where this is, and one that is many at once cannot be looked at.
    places = None if torch.is_grad_enabled() or _is_transformed() or _is_batch(gradient) else _few(flat)
    if places is None:
        product = flat.mm(weight)
    else:
        product = flat.new_zeros((len(flat), weight.shape[1]))
        product.index_copy_(0, places, flat.index_select(0, places).mm(weight))
    return product.view(*gradient.shape[:-1], weight.shape[1])


@functools.lru_cache(maxsize=256)
def _sampled(count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Entries of a matrix of this shape, each of another row and column."""
    numbers = np.arange(min(SAMPLES, count))
    # an odd step, or examples of a length that is a power of two would show the same position only
    return numbers * (count // SAMPLES | 1) % count, numbers * 37 % dim


def _few(flat: Any) -> Any:
    """The numbers of the rows that are not zero, if these are few; else None."""
    count, dim = flat.shape
    some = flat.numpy(force=True)[
        _sampled(count, dim)
    ]  # which is the least that looking at all may cost, at each layer
    if 2 * np.count_nonzero(some) > len(some):
        return None
    places = (flat.amax(1).ne(0) | flat.amin(1).ne(0)).nonzero().squeeze(1)  # with NaN in a row, either is
    return places if FEW * len(places) <= count else None
