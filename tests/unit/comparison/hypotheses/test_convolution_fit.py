"""The convolutions of a reference are found by its weights and its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from embgrad import TokenBatch
from embgrad.comparison.hypotheses.convolution_fit import Fit, fits
from embgrad.comparison.hypotheses.site import Site
from tests.unit.comparison.hypotheses.convolved import BIASES, KERNELS, RANDOM, X, convolve, relu, stored, text_site
from tests.unit.comparison.hypotheses.modules import IDS, REAL, module_site

PRODUCTS = tuple(convolve(X, kernel, bias) for kernel, bias in zip(KERNELS, BIASES, strict=True))
A = np.concatenate([relu(each).max(1) for each in PRODUCTS], -1)
KERNEL, BIAS = KERNELS[1], BIASES[1]


def only(site: Site) -> Fit:
    fit = next(fits(site))
    np.testing.assert_allclose(fit.convolutions.run(X, REAL), site.a, rtol=1e-9, atol=1e-9)
    return fit


def weights(*kernels: np.ndarray) -> Mapping[str, np.ndarray]:
    return {
        f"convs.{number}.{part}": values
        for number, kernel in enumerate(kernels)
        for part, values in (("bias", BIASES[number]), ("kernel", kernel))
    }


STORED = {
    "PyTorch": weights(*map(stored, KERNELS)),
    "Keras": weights(*KERNELS),
    "images in PyTorch": weights(*(kernel.transpose(2, 0, 1)[:, None] for kernel in KERNELS)),
    "images in Keras": weights(*(kernel[:, :, None] for kernel in KERNELS)),
}


@pytest.mark.parametrize("held", STORED.values(), ids=STORED)
def test_kernels_may_be_stored_in_other_orders_of_their_axes(held: Mapping[str, np.ndarray]) -> None:
    fit = only(text_site(A, A + 1, held))
    for layer, kernel, bias in zip(fit.convolutions.layers, KERNELS, BIASES, strict=True):
        np.testing.assert_array_equal(layer.kernel, kernel)
        np.testing.assert_array_equal(layer.bias, bias)
        assert layer.activation.name == "ReLU"


def test_weights_of_one_module_belong_together_by_name() -> None:
    held = {f"one.{name}": values for name, values in STORED["Keras"].items()}
    site = text_site(A, A + 1, {name.replace(".", "/").replace("/", ".", 1): held[name] for name in sorted(held)})
    assert len({weight.module for weight in site.recordings[0].weights}) == 1
    assert [bias.name for _, bias in only(site).held if bias is not None] == ["one.convs/0/bias", "one.convs/1/bias"]


def test_a_bias_may_be_missing() -> None:
    a = np.concatenate([relu(convolve(X, kernel, 0 * BIAS)).max(1) for kernel in KERNELS], -1)
    held = {name: values for name, values in STORED["Keras"].items() if "kernel" in name}
    fit = only(text_site(a, a + 1, held))
    assert not any(layer.bias.any() for layer in fit.convolutions.layers)


ENDS = {
    "the mean of tanh": (lambda y: np.tanh(y).mean(1), "tanh", "the mean over all positions", False),
    "ReLU of the mean": (lambda y: relu(y.mean(1) + 4), "ReLU", "the mean over all positions", True),
    "the largest as they are": (lambda y: y.max(1), "missing", "the largest over all positions", False),
    "those that read tokens": (
        lambda y: np.stack([y[0].max(0), y[1, : 3 - (5 - y.shape[1])].max(0)]),
        "missing",
        "the largest over tokens",
        False,
    ),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_activation_and_the_pooling_are_found(end: tuple) -> None:
    function, activation, pool, pools_first = end
    lifted = 4.0 if pools_first else 0.0
    held = {name: values + lifted * ("bias" in name) for name, values in STORED["Keras"].items()}
    a = np.concatenate([function(each) for each in PRODUCTS], -1)
    for layer in only(text_site(a, a + 1, held)).convolutions.layers:
        assert (layer.activation.name, layer.pool, layer.pools_first) == (activation, pool, pools_first)


def test_the_largest_outputs_may_be_those_of_relu_where_all_are_positive() -> None:
    held = {name: values + 100 * ("bias" in name) for name, values in STORED["Keras"].items()}
    a = np.concatenate([each.max(1) + 100 for each in PRODUCTS], -1)
    assert {layer.activation.name for layer in only(text_site(a, a + 1, held)).convolutions.layers} == {"ReLU"}


@pytest.mark.parametrize("dilation", [2, 3, 4])
def test_each_convolution_has_settings_of_its_own(dilation: int) -> None:
    second = convolve(X * REAL[..., None], KERNEL, BIAS, (dilation, dilation), dilation)
    a = np.concatenate([np.tanh(PRODUCTS[0]).max(1), relu(second).max(1)], -1)
    first, layer = only(text_site(a, a + 1, STORED["Keras"])).convolutions.layers
    assert (first.dilation, first.masked, first.activation.name) == (1, False, "tanh")
    assert (layer.dilation, layer.masked, layer.activation.name) == (dilation, True, "ReLU")
    assert layer.padding == "pads texts at both ends to outputs of their length"


@pytest.mark.parametrize("turned", [False, True])
def test_a_convolution_may_have_an_output_for_each_token(turned: bool) -> None:
    a = relu(convolve(X, KERNEL, BIAS, (1, 1)) + 4)
    site = module_site(
        *((a, a + 1) if not turned else (a.swapaxes(1, 2), a.swapaxes(1, 2) + 1)),
        {"mixed:input": X, "other": X + 1},
        key="mixed:output#0",
        held_a={"mixed.weight": stored(KERNEL), "mixed.bias": BIAS + 4, "other.weight": stored(KERNELS[0])},
        real=np.ones((2, 12 if turned else 5), bool),
    )
    fit = only(site)
    assert fit.convolutions.turned == turned
    assert fit.convolutions.layers[0].padding == "pads texts at both ends to outputs of their length"
    assert (fit.entry.name, fit.convolutions.layers[0].pool) == ("mixed:input", "")


@pytest.mark.parametrize("axes", [(2, 1, 0), (0, 2, 1)], ids=["PyTorch", "Keras"])
def test_a_depthwise_convolution_is_found(axes: tuple[int, int, int]) -> None:
    kernel = KERNEL[:, :1]
    a = np.concatenate([convolve(X[..., [it]], kernel[..., [it]], BIAS[[it]], (2, 0)) for it in range(12)], -1)
    held = {"mixed.weight": kernel.transpose(axes), "mixed.bias": BIAS}
    fit = only(module_site(a, a + 1, {"mixed:input": X}, key="mixed:output#0", held_a=held))
    assert fit.convolutions.layers[0].padding == "pads texts in front alone"


def test_what_stands_at_padding_does_not_count_where_each_token_has_an_output() -> None:
    a = convolve(X, KERNEL, BIAS, (1, 1)) * REAL[..., None]
    held = {"mixed.weight": stored(KERNEL), "mixed.bias": BIAS}
    site = module_site(a, a + 1, {"mixed:input": X}, key="mixed:output#0", held_a=held)
    fit = next(fits(site))
    assert fit.off(fit.convolutions, site.a) < 1e-12
    assert fit.off(fit.convolutions, site.b) > 0.1


def test_texts_that_differ_most_are_compared() -> None:
    three = np.concatenate([X, X[:1] * 2])
    a = np.concatenate([relu(convolve(three, *own)).max(1) for own in zip(KERNELS, BIASES, strict=True)], -1)
    for example in range(3):
        b = a.copy()
        b[example, -1] += 1e-2
        site = text_site(a, b, before={"words": three})
        batch = TokenBatch(IDS[[0, 1, 0]], REAL[[0, 1, 0]].astype(int))
        fit = next(fits(replace(site, recordings=tuple(replace(it, batch=batch) for it in site.recordings))))  # type: ignore[arg-type]
        assert fit.off(fit.convolutions, site.a) < 1e-12
        assert fit.off(fit.convolutions, site.b) > 1e-5


WRONG = {
    "other vectors": (A + RANDOM.normal(size=A.shape), STORED["Keras"], {}),
    "no kernels": (A, {"first.weight": KERNELS[0][0], "first.bias": BIASES[0]}, {}),
    "fewer outputs": (A[:, :12], STORED["Keras"], {}),
    "inputs of another width": (A, STORED["Keras"], {"words": X[..., :4]}),
    "inputs of another text": (A, STORED["Keras"], {"words": X[:, :4]}),
    "the last output differs": (A + (np.arange(24) == 23), STORED["Keras"], {}),
    "one differs": (np.concatenate([A[:, :12], A[:, 12:] ** 2 + A[:, 12:]], -1), STORED["Keras"], {}),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_convolutions_do_not_lead_to_is_not_found(wrong: tuple) -> None:
    a, held, before = wrong
    assert next(fits(text_site(a, a + 1, held, before)), None) is None


def test_kernels_with_many_taps_are_not_tried() -> None:
    """They are the matrices of experts or of heads."""
    kernel = RANDOM.normal(size=(33, 12, 12))
    a = convolve(X, kernel, BIAS, (32, 0))
    held = {"mixed.kernel": kernel, "mixed.bias": BIAS}
    assert next(fits(module_site(a, a + 1, {"mixed:input": X}, key="mixed:output#0", held_a=held)), None) is None
    held["mixed.kernel"] = kernel[1:]
    a = convolve(X, kernel[1:], BIAS, (31, 0))
    assert next(fits(module_site(a, a + 1, {"mixed:input": X}, key="mixed:output#0", held_a=held)), None) is not None
