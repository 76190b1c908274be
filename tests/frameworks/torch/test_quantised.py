"""Quantised layers without a backward pass, and weights that are loaded for the pass: errors instead of wrong numbers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from embgrad.engine.weights import substitute, weights_of

IDS = np.array([[3, 1, 4], [1, 5, 2]])
REFUSED = (
    r"a linear layer of the model multiplies by quantised weights \({}\) without a backward pass, so that the gradient would "
    r"silently leave the layer out\. Quantise the weights alone \(torchao's weight-only configurations, bitsandbytes\), or pass "
)


class Rounded(torch.Tensor):
    """A matrix of whole numbers and a scale, as libraries of quantisation make them."""

    @staticmethod
    def __new__(cls, whole: torch.Tensor, scale: float, differentiable: bool) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=torch.float32)

    def __init__(self, whole: torch.Tensor, scale: float, differentiable: bool) -> None:
        self.whole, self.scale, self.differentiable = whole, scale, differentiable

    def dequantize(self) -> torch.Tensor:
        return self.whole * self.scale

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            features, weight, *bias = args
            product = features @ weight.dequantize().T
            product = product if weight.differentiable else product.detach()
            return product + bias[0] if bias and bias[0] is not None else product
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].whole, args[0].scale, args[0].differentiable)
        raise NotImplementedError(func)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, ids: Any) -> Any:
        rows = self.words(ids)
        return self.head((rows + self.inner(rows)).mean(1))


def residual(differentiable: bool | None = None) -> Any:
    torch.manual_seed(0)
    model = Residual().eval()
    if differentiable is not None:
        whole = torch.tensor([[1, 2, -3, 0], [4, 0, 1, 1], [-2, 1, 0, 5], [3, 3, -1, 2]])
        model.inner.weight = nn.Parameter(Rounded(whole, 0.25, differentiable), requires_grad=False)
    return model


def test_quantised_weights_through_which_gradients_flow() -> None:
    model = residual(True)
    plain = residual()
    plain.inner.weight.data = model.inner.weight.dequantize()
    ours, expected = (embgrad.gradients(other, IDS, embgrad.Logit(1)).values for other in (model, plain))
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.parametrize("native", [False, True])
def test_quantised_weights_without_a_backward_pass_are_refused(native: bool) -> None:
    """Also where a trainable bias gives the product a gradient, which a native objective keeps."""
    objective = (lambda logits: logits[:, 1]) if native else embgrad.Logit(1)
    model = residual(False)
    with pytest.raises(embgrad.errors.UnsupportedError, match=REFUSED.format("Rounded")):
        embgrad.gradients(model, IDS, objective)
    values = embgrad.evaluate(model, IDS, embgrad.Logit(1))  # no gradient is asked for
    np.testing.assert_allclose(values, model(torch.tensor(IDS))[:, 1].detach().numpy(), rtol=1e-6)
    assert model.inner.bias.requires_grad


def test_layers_that_pytorch_quantises_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = torch.ao.quantization.quantize_dynamic(residual(), {"inner"})
    with pytest.raises(embgrad.errors.UnsupportedError, match=REFUSED.format("quantized.linear_dynamic")):
        embgrad.gradients(model, IDS, embgrad.Logit(1))
    assert embgrad.evaluate(model, IDS, embgrad.Logit(1)).shape == (2,)


def test_quantised_weights_are_read_and_not_replaced() -> None:
    model = residual(True)
    weight = next(weight for weight in weights_of(model) if weight.name == "inner.weight")
    np.testing.assert_array_equal(weight.get(), model.inner.weight.dequantize().numpy())
    message = (
        r"a weight of shape \(4, 4\) is a quantised Rounded, which holds no other values than those that it was made"
    )
    with (
        pytest.raises(embgrad.errors.UnsupportedError, match=message),
        substitute(model, {"inner.weight": np.zeros((4, 4))}),
    ):
        pass


def offloaded() -> Any:
    """Load the inner layer's weights for each call, as accelerate does."""
    model = residual()
    values = {name: parameter.detach() for name, parameter in model.inner.named_parameters()}

    def put(module: Any, device: str) -> None:
        for name, value in values.items():
            required = module._parameters[name].requires_grad
            module._parameters[name] = nn.Parameter(value.to(device), requires_grad=required)

    put(model.inner, "meta")
    model.inner.register_forward_pre_hook(lambda module, args: put(module, "cpu"))
    model.inner.register_forward_hook(lambda module, args, returned: put(module, "meta"))
    return model


def test_parameters_that_are_loaded_for_the_pass_have_no_gradient() -> None:
    model = offloaded()
    message = (
        r"the trainable parameter 'inner\.weight' is on the device 'meta', so that its gradient cannot be read: a device_map "
        r"that offloads weights loads them anew for each pass\. Load the model without offloading, or freeze this parameter"
    )
    with pytest.raises(embgrad.errors.UnsupportedError, match=message):
        embgrad.tables.parameter_gradients(model, IDS, embgrad.Logit(1))
    ledger = embgrad.tables.table_gradients(model, IDS, embgrad.Logit(1))
    assert ledger.own is None
    np.testing.assert_array_equal(ledger.total, embgrad.tables.table_gradients(residual(), IDS, embgrad.Logit(1)).total)
    model.inner.requires_grad_(False)
    assert set(embgrad.tables.parameter_gradients(model, IDS, embgrad.Logit(1))) == {
        "words.weight",
        "head.weight",
        "head.bias",
    }
