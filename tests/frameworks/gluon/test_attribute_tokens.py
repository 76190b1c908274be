"""Attributions of output tokens in a causal Gluon block, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from embgrad_gluon.importing import import_mxnet

import embgrad
from embgrad import LogProbability, attribute_tokens
from tests.frameworks.gluon.helpers import DIM, ROWS, built

mx = import_mxnet()

IDS = np.array([[5, 2, 9, 4, 3], [6, 8, 7, 1, 10]])


class Causal(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A language model that predicts a token from the sum of the tokens before it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = mx.gluon.nn.Embedding(ROWS, DIM)
        self.hidden = mx.gluon.nn.Dense(6, activation="tanh", flatten=False)
        self.head = mx.gluon.nn.Dense(ROWS, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.head(self.hidden(F.cumsum(self.words(x), axis=1)))

    def generate(self, ids: Any, max_new_tokens: int, do_sample: bool) -> Any:
        """Return the ids, continued with the likeliest."""
        assert not do_sample
        for _ in range(max_new_tokens):
            new = self(ids)[:, -1].argmax(-1).expand_dims(1)
            ids = mx.nd.concat(ids.astype("float32"), new.astype("float32"), dim=1)
        return ids


@pytest.mark.parametrize("hybridised", [False, True])
@pytest.mark.parametrize(
    "method",
    ["saliency", "input_x_gradient", embgrad.methods.IntegratedGradients(10), embgrad.methods.Occlusion(3)],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*contributions:embgrad.EmbgradWarning")
def test_each_output_equals_a_single_call(method: Any, hybridised: bool) -> None:
    net = built(Causal, IDS, "float64")
    if hybridised:
        net.hybridize()
    result = attribute_tokens(net, IDS, method=method)
    assert result.shape == (2, 4, 5)
    for output in range(4):
        objective = LogProbability(np.where(np.arange(5) == output + 1, IDS, -100))
        if isinstance(method, str):
            single = embgrad.gradients(net, IDS, objective)
            products = (single.values * single.activations).sum(-1)
            expected = single.saliency("norm") if method == "saliency" else products
        else:
            expected = embgrad.attribute(net, IDS, objective, method).scores
        np.testing.assert_allclose(result.scores[:, output], expected, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(result.objective[:, output], embgrad.evaluate(net, IDS, objective), rtol=1e-12)


def test_prompts_are_continued_by_the_blocks_own_method() -> None:
    net = built(Causal, IDS, "float64")
    result = attribute_tokens(net, IDS, generate=3)
    np.testing.assert_array_equal(result.outputs, [[5, 6, 7]] * 2)
    ids = net.generate(mx.nd.array(IDS), 3, False).asnumpy()
    np.testing.assert_array_equal(result.ids, ids)
    given = attribute_tokens(net, ids.astype(int), targets=slice(5, None))
    np.testing.assert_allclose(result.scores, given.scores, rtol=1e-12)


class Prompted(Causal):
    """The same behind two virtual tokens."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = self.words(x)
        virtual = F.zeros_like(F.slice_axis(rows, axis=1, begin=0, end=1)) + 0.5
        return self.head(self.hidden(F.cumsum(F.concat(virtual, virtual, rows, dim=1), axis=1)))


@pytest.mark.parametrize("hybridised", [False, True])
def test_virtual_tokens_before_the_batchs_do_not_count(hybridised: bool) -> None:
    net = built(Prompted, IDS, "float64")
    if hybridised:
        net.hybridize()

    def cut(net: Any, inputs: Any) -> Any:
        return net(inputs)[:, 2:]

    for objective in (embgrad.Logit(4, position=-1), embgrad.Logit(4), LogProbability(IDS)):
        results = [embgrad.gradients(net, IDS, objective, call=call) for call in (None, cut)]
        np.testing.assert_allclose(results[0].values, results[1].values, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(results[0].objective, results[1].objective, rtol=1e-12)
    whole, own = (attribute_tokens(net, IDS, call=call).scores for call in (None, cut))
    np.testing.assert_allclose(whole, own, rtol=1e-10, atol=1e-14)
