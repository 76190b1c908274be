"""Prompts continued by a causal Gluon block, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from embgrad_gluon.importing import import_mxnet

from embgrad import attribute_tokens
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


def test_prompts_are_continued_by_the_blocks_own_method() -> None:
    net = built(Causal, IDS, "float64")
    result = attribute_tokens(net, IDS, generate=3)
    np.testing.assert_array_equal(result.outputs, [[5, 6, 7]] * 2)
    ids = net.generate(mx.nd.array(IDS), 3, False).asnumpy()
    np.testing.assert_array_equal(result.ids, ids)
    given = attribute_tokens(net, ids.astype(int), targets=slice(5, None))
    np.testing.assert_allclose(result.scores, given.scores, rtol=1e-12)
