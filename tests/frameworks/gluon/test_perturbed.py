"""Perturbed passes in Gluon loops: hybridised nets, SymbolBlocks, mx.np, half precision."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.frameworks.gluon.exporting import exported
from tests.frameworks.gluon.helpers import DIM, ROWS, distinct_ids, mx
from tests.frameworks.gluon.test_capture import cross_entropy, make
from tests.unit.refusals import refused

nn, nd, autograd, gluon = mx.gluon.nn, mx.nd, mx.autograd, mx.gluon

RANDOM = np.random.default_rng(0)
LABELS = np.array([2, 0])
LOOP = [distinct_ids(2, length, seed) for seed, length in enumerate((5, 3, 5, 4))]


def backward(net: Any, ids: np.ndarray) -> None:
    with autograd.record():
        loss = cross_entropy(net(nd.array(ids)), nd.array(LABELS))
    loss.backward()


@pytest.mark.parametrize("captured_first", [False, True])
@pytest.mark.parametrize("at", ["word", "layer.1", "layers.1:input", "layers.0.norm", "drop:input"])
@pytest.mark.parametrize("hybrid", [None, {}])
def test_what_is_captured_is_what_goes_on(hybrid: dict[str, Any] | None, at: str, captured_first: bool) -> None:
    net, ids = make(0.0, dtype="float64", hybrid=hybrid), LOOP[0]
    add = {name: RANDOM.normal(size=(*ids.shape, DIM)) for name in (at, "word")}
    expected = embgrad.gradients(net, ids, embgrad.CrossEntropy(LABELS), at=at, add=add)
    with contextlib.ExitStack() as stack:
        if captured_first:
            tap = stack.enter_context(embgrad.capture(net, at))
        stack.enter_context(embgrad.perturbed(net, add))
        if not captured_first:
            tap = stack.enter_context(embgrad.capture(net, at))
        _step(net, ids)
    np.testing.assert_allclose(tap.steps[0].activations, expected.activations, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(tap.steps[0].values, expected.values, rtol=1e-9, atol=1e-12)
    _expect_state(net, hybrid)


def _step(net: Any, ids: np.ndarray) -> None:
    with autograd.record(train_mode=False):
        loss = cross_entropy(net(nd.array(ids, dtype="float64")), nd.array(LABELS, dtype="float64"))
    loss.backward(train_mode=False)


def _expect_state(net: Any, hybrid: dict[str, Any] | None) -> None:
    assert net._active is (hybrid is not None)
    assert not autograd.is_recording()


@pytest.mark.parametrize("hybrid", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_passes_that_are_not_recorded_are_perturbed_too(hybrid: dict[str, Any] | None) -> None:
    net, ids = make(hybrid=hybrid), LOOP[0]
    delta = RANDOM.normal(size=(*ids.shape, DIM))
    plain = net(nd.array(ids)).asnumpy()
    expected = embgrad.evaluate(net, ids, embgrad.Logit(1), add={"word": delta})
    with embgrad.perturbed(net, {"word": delta}) as perturbation:
        logits = net(nd.array(ids)).asnumpy()
        with autograd.train_mode():
            dropped = net(nd.array(ids)).asnumpy()
    assert perturbation.passes == 2
    assert np.abs(dropped - logits).max() > 1e-3
    np.testing.assert_allclose(logits[:, 1], expected, rtol=1e-5, atol=1e-6)
    assert np.abs(logits - plain).max() > 1e-3
    np.testing.assert_allclose(net(nd.array(ids)).asnumpy(), plain, rtol=1e-5, atol=1e-6)


def test_half_precision() -> None:
    net, ids = nn.Embedding(ROWS, DIM, dtype="float16"), LOOP[0]
    net.initialize()
    net.weight.set_data(nd.array(RANDOM.normal(size=(ROWS, DIM)), dtype="float16"))
    delta = RANDOM.normal(size=(*ids.shape, DIM))
    with embgrad.perturbed(net, {"word": delta}), embgrad.capture(net) as tap:
        with autograd.record():
            total = net(nd.array(ids, dtype="float16")).sum()
        total.backward()
    rows = net.weight.data().asnumpy()[ids] + delta.astype(np.float16)
    np.testing.assert_array_equal(tap.steps[0].activations, rows.astype(np.float32))
    assert tap.steps[0].provenance["compute_dtype"] == "float16"


def test_a_symbol_block(tmp_path: Any) -> None:
    whole, ids = make(0.0, hybrid={}), LOOP[0]
    block = exported(whole, [nd.array(ids)], tmp_path)
    delta = RANDOM.normal(size=(*ids.shape, DIM))
    query, norm = whole.layers[0].query.name, whole.layers[0].norm.name
    add = {"word": delta, query: 1.0}
    with embgrad.perturbed(block, add), embgrad.capture(block, norm) as tap:
        backward(block, ids)
    with (
        embgrad.perturbed(whole, {"word": delta, "layers.0.query": 1.0}),
        embgrad.capture(whole, "layers.0.norm") as by,
    ):
        backward(whole, ids)
    np.testing.assert_allclose(tap.steps[0].activations, by.steps[0].activations, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tap.steps[0].values, by.steps[0].values, rtol=1e-4, atol=1e-6)
    with (
        refused(
            embgrad.errors.UnsupportedError,
            "name points at one value of SymbolBlock",
            "Name points at different layers",
        ),
        embgrad.perturbed(block, {query: 1.0}),
        embgrad.capture(block, query),
    ):
        backward(block, ids)


def test_an_array_with_a_gradient_is_refused_and_another_is_taken() -> None:
    net, ids = make(0.0), LOOP[0]
    delta = nd.ones((DIM,))
    with embgrad.perturbed(net, {"word": delta}), embgrad.capture(net) as tap:
        backward(net, ids)
    np.testing.assert_array_equal(tap.steps[0].activations, net.words.weight.data().asnumpy()[ids] + 1)
    delta.attach_grad()
    with refused(embgrad.errors.PointError, "add['word'] is", "which requires a gradient"):
        embgrad.perturbed(net, {"word": delta})
