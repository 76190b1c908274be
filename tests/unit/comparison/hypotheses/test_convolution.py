"""Convolutions compute what their sums position by position do."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad.comparison.hypotheses.convolution import Convolution, Convolutions
from embgrad.comparison.hypotheses.functions import ACTIVATIONS
from tests.unit.comparison.hypotheses.convolved import BIASES, KERNELS, X, convolve, relu
from tests.unit.comparison.hypotheses.modules import REAL

RELU = next(function for function in ACTIVATIONS if function.name == "ReLU")
KERNEL, BIAS = KERNELS[1], BIASES[1]

#: By the way of padding: the positions before and behind a text for kernels of two and of three taps.
ENDS = {
    "adds no padding": ((0, 0), (0, 0)),
    "pads texts at both ends to outputs of their length": ((0, 1), (1, 1)),
    "pads texts at both ends, in front more, to outputs of their length": ((1, 0), (1, 1)),
    "pads texts by half the kernel at both ends": ((1, 1), (1, 1)),
    "pads texts in front alone": ((1, 0), (2, 0)),
    "pads texts at the end alone": ((0, 1), (0, 2)),
    "pads texts by the kernel but a tap at both ends": ((1, 1), (2, 2)),
}


@pytest.mark.parametrize(("padding", "ends"), ENDS.items(), ids=ENDS)
def test_texts_are_padded(padding: str, ends: tuple[tuple[int, int], tuple[int, int]]) -> None:
    for kernel, bias, own in zip(KERNELS, BIASES, ends, strict=True):
        wanted = convolve(X, kernel, bias, own)
        np.testing.assert_allclose(Convolution(kernel, bias, padding).run(X, REAL), wanted, rtol=1e-12)


def test_the_taps_are_apart_and_the_padding_grows_with_them() -> None:
    wide = Convolution(KERNEL, BIAS, "pads texts at both ends to outputs of their length", dilation=2)
    np.testing.assert_allclose(wide.run(X, REAL), convolve(X, KERNEL, BIAS, (2, 2), 2), rtol=1e-12)


def test_texts_shorter_than_the_kernel_have_no_outputs() -> None:
    assert np.isnan(Convolution(KERNEL, BIAS, dilation=3).run(X, REAL)).all()
    assert np.isnan(Convolution(KERNELS[0], BIAS, dilation=5, pool="the largest over all positions").run(X, REAL)).all()


def test_inputs_at_padding_are_set_to_zero() -> None:
    wanted = convolve(X * REAL[..., None], KERNEL, BIAS)
    np.testing.assert_allclose(Convolution(KERNEL, BIAS, masked=True).run(X, REAL), wanted, rtol=1e-12)


def test_a_depthwise_convolution_has_a_kernel_for_each_output() -> None:
    """Outputs 0 and 1 read input 0, outputs 2 and 3 read input 1."""
    kernel, bias, x = KERNEL[:, :1, :4], BIAS[:4], X[..., :2]
    wanted = [convolve(x[..., [it // 2]], kernel[..., [it]], bias[[it]]) for it in range(4)]
    np.testing.assert_allclose(Convolution(kernel, bias).run(x, REAL), np.concatenate(wanted, -1), rtol=1e-12)


def test_some_outputs_are_the_first() -> None:
    for kernel in (KERNEL, KERNEL[:, :1]):
        convolution = Convolution(kernel, BIAS, activation=RELU)
        np.testing.assert_allclose(
            convolution.finish(convolution.products(X, REAL, 4), REAL), convolution.run(X, REAL)[..., :4], rtol=1e-12
        )


def test_the_activation_is_before_the_pooling_or_behind_it() -> None:
    products = convolve(X, KERNEL, BIAS)
    pool = "the mean over all positions"
    before = Convolution(KERNEL, BIAS, activation=RELU, pool=pool).run(X, REAL)
    behind = Convolution(KERNEL, BIAS, activation=RELU, pool=pool, pools_first=True).run(X, REAL)
    np.testing.assert_allclose(before[:, 0], relu(products).mean(1), rtol=1e-12)
    np.testing.assert_allclose(behind[:, 0], relu(products.mean(1)), rtol=1e-12)


def test_an_output_counts_where_the_last_token_that_it_reads_is_real() -> None:
    """The second text has three tokens, which are one window of three taps, and with a padded front three."""
    pool = "the largest over tokens"
    plain = Convolution(KERNEL, BIAS, pool=pool).run(X, REAL)
    np.testing.assert_allclose(plain[1, 0], convolve(X, KERNEL, BIAS)[1, 0], rtol=1e-12)
    causal = Convolution(KERNEL, BIAS, "pads texts in front alone", pool=pool).run(X, REAL)
    np.testing.assert_allclose(causal[1, 0], convolve(X, KERNEL, BIAS, (2, 0))[1, :3].max(0), rtol=1e-12)


def test_outputs_stand_side_by_side_in_an_order() -> None:
    layers = tuple(
        Convolution(kernel, bias, pool="the first vector") for kernel, bias in zip(KERNELS, BIASES, strict=True)
    )
    order = np.arange(24).reshape(2, 12).T.reshape(-1)
    whole = Convolutions(layers, order)
    first, second = (layer.run(X, REAL)[:, 0] for layer in layers)
    np.testing.assert_array_equal(whole.run(X, REAL)[:, 0], np.stack([first, second], 2).reshape(2, 24))


def test_features_may_be_before_positions() -> None:
    turned = Convolutions((Convolution(KERNEL, BIAS),), np.arange(12), turned=True)
    outputs = turned.run(X, REAL)
    np.testing.assert_allclose(outputs, convolve(X, KERNEL, BIAS).swapaxes(1, 2), rtol=1e-12)
