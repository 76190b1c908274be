"""GPT-2 in MXNet Gluon, written as gluonnlp's scripts/text_generation/model/gpt.py; the package gluonnlp holds no GPT-2."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from embgrad_gluon.importing import import_gluonnlp, import_mxnet

import embgrad
from tests.decoders.inputs import VOCAB, Cell, Inputs
from tests.decoders.inputs import measure as measure_decoder

mx = import_mxnet()
nlp = import_gluonnlp()
nn = mx.gluon.nn

DIM: Final = 32
HEADS: Final = 4
LONGEST: Final = 32


class Attention(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Masked self-attention, with the projections and the cell of gluonnlp's."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.cell = nlp.model.attention_cell.DotProductAttentionCell(scaled=True, dropout=0.0)
            self.queries_keys_values = nn.Dense(3 * DIM, flatten=False)
            self.projection = nn.Dense(DIM, flatten=False)

    def hybrid_forward(self, F: Any, hidden: Any) -> Any:
        parts = F.split(self.queries_keys_values(hidden), num_outputs=3, axis=-1)
        heads = [F.reshape(part, (0, 0, HEADS, -1)).transpose((0, 2, 1, 3)) for part in parts]
        query, key, value = [F.reshape(part, (-1, 0, 0), reverse=True) for part in heads]
        columns = F.contrib.arange_like(hidden, axis=1)
        causal = F.broadcast_lesser_equal(columns.reshape((1, -1)), columns.reshape((-1, 1)))
        mask = F.broadcast_axis(causal.expand_dims(0), axis=0, size=1)
        mask = F.broadcast_like(mask, query, lhs_axes=(0,), rhs_axes=(0,))
        mixed, _ = self.cell(query, key, value, mask)
        mixed = F.reshape(mixed, (-1, HEADS, 0, 0), reverse=True).transpose((0, 2, 1, 3))
        return self.projection(F.reshape(mixed, (0, 0, -1)))


class Layer(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Attention and a feed-forward net, each after a norm and beside the residual."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.attention_norm, self.attention = nn.LayerNorm(in_channels=DIM), Attention()
            self.norm, self.inner = nn.LayerNorm(in_channels=DIM), nn.Dense(64, flatten=False)
            self.outer = nn.Dense(DIM, flatten=False)
            self.gelu = nlp.model.GELU()

    def hybrid_forward(self, F: Any, hidden: Any) -> Any:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.outer(self.gelu(self.inner(self.norm(hidden))))


class GPT2Model(mx.gluon.HybridBlock):  # type: ignore[misc]
    """GPT-2 with a tied head; it takes no mask, and counts positions by column."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self._pos_embed = nn.Embedding(LONGEST, DIM)
            self._embed = nn.Embedding(VOCAB, DIM)
            self._logits_proj = nn.Dense(VOCAB, in_units=DIM, use_bias=False, flatten=False, params=self._embed.params)
            self._layers = nn.HybridSequential()
            for _ in range(2):
                self._layers.add(Layer())
            self._norm = nn.LayerNorm(in_channels=DIM)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        columns = F.contrib.arange_like(data, axis=1)
        hidden = F.broadcast_add(self._embed(data), self._pos_embed(columns).expand_dims(0))
        return self._logits_proj(self._norm(self._layers(hidden)))


def build(*, hybrid: bool) -> Any:
    """Return the model with random weights."""
    mx.random.seed(1)
    model = GPT2Model()
    model.initialize(mx.init.Normal(0.2))
    if hybrid:
        model.hybridize()
    model(mx.nd.array([[3, 4]]))
    return model


MODELS: Final[Mapping[str, bool]] = {"GPT-2": False, "GPT-2, hybridised": True}


def measure(name: str) -> Cell:
    """Run the model in float32, see `tests.decoders.cells.measure`."""
    model = build(hybrid=MODELS[name])
    given = [functools.partial(function, model) for function in (_gradients, own_gradients, _state)]
    return measure_decoder(*given, DIM, positions=False)


def own_gradients(
    model: Any, inputs: Inputs, added: np.ndarray | None = None, put: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return MXNet's gradient of the rows and of one-hot inputs, and the table; a product stands for the lookup."""
    nd = mx.nd
    table, one_hot = model._embed.weight.data().copy(), nd.one_hot(nd.array(inputs.batch["input_ids"]), VOCAB)
    labels, counted = nd.array(np.maximum(inputs.labels, 0)), nd.array(inputs.labels != -100)
    one_hot.attach_grad()
    change = nd.zeros((*inputs.mask.shape, DIM)) if added is None else nd.array(added)
    change.attach_grad()  # the rows' gradient is that of what is added to them
    columns = nd.arange(inputs.mask.shape[1])
    with mx.autograd.record(train_mode=False):
        rows = nd.dot(one_hot, table) + change
        if put is not None:
            rows = rows - rows.detach() + nd.array(put)
        hidden = rows + model._pos_embed(columns).expand_dims(0)
        logits = model._logits_proj(model._norm(model._layers(hidden)))
        losses = -nd.pick(nd.log_softmax(logits), labels)
        loss = (losses * counted).sum()
    loss.backward()
    return change.grad.asnumpy(), one_hot.grad.asnumpy(), table.asnumpy()


def _gradients(model: Any, inputs: Inputs, **options: Any) -> np.ndarray:
    batch = embgrad.TokenBatch(inputs.batch["input_ids"])
    return embgrad.gradients(model, batch, embgrad.CrossEntropy(inputs.labels), **options).values


def _state(model: Any) -> dict[str, Any]:
    return {
        name: (parameter.data().asnumpy().tobytes(), parameter.grad_req)
        for name, parameter in model._collect_params_with_prefix().items()
    }
