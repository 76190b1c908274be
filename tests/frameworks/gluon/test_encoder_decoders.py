"""Encoder-decoders of one's own, whose decoder's ids have another name than Hugging Face's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from tests.frameworks.gluon.helpers import mx

nn, nd = mx.gluon.nn, mx.nd

IDS = np.array([[5, 6, 7], [8, 9, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
TARGET = np.array([[3, 11, 2], [4, 12, 6]])


class Translator(nn.Block):  # type: ignore[misc]  # mxnet has no types
    """The decoder's embeddings, and the mean of the encoder's."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.source = nn.Embedding(20, 4)
        self.target = self.source if shared else nn.Embedding(20, 4)

    def forward(self, src_seq: Any, tgt_seq: Any) -> Any:
        """Return (example, position, dim)."""
        return self.target(tgt_seq) + self.source(src_seq).mean(axis=1, keepdims=True)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("lengths", [[2, 3], None])
def test_decoder_ids_under_a_name_of_the_models_own(shared: bool, lengths: Any) -> None:
    model = Translator(shared)
    model.initialize(mx.init.Normal(1))
    states = model(nd.array(IDS), nd.array(TARGET)).asnumpy()
    further = {} if lengths is None else {"tgt_valid_length": np.array(lengths)}
    real = np.arange(3) < np.array([[3], [3]] if lengths is None else lengths).reshape(2, 1)
    batch = embgrad.TokenBatch(IDS, MASK, extras={"tgt_seq": TARGET, **further})
    call = lambda model, inputs: model(inputs["input_ids"], inputs["tgt_seq"])  # noqa: E731
    g = embgrad.gradients(model, batch, embgrad.Sum(), call=call)
    np.testing.assert_allclose(g.objective, (states * real[..., None]).sum((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(g.values, np.broadcast_to(real.sum(1)[:, None, None] / 3, (2, 3, 4)), rtol=1e-6)
