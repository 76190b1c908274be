"""Language models in NumPy: the logits at a position are linear in the mean of the embeddings up to it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from embgrad.testing.reference import ReferenceModel, Tensor, lookup

VOCAB, DIM = 12, 3
#: Two pairs of texts for an encoder-decoder, the second padded on the left.
SOURCE = np.array([[2, 7, 1, 5], [0, 4, 9, 3]])
SOURCE_MASK = np.array([[1, 1, 1, 1], [0, 1, 1, 1]])
DECODER = np.array([[11, 8, 6, 10, 2], [0, 0, 11, 6, 7]])
DECODER_MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
PAIR = {
    "input_ids": SOURCE,
    "attention_mask": SOURCE_MASK,
    "decoder_input_ids": DECODER,
    "decoder_attention_mask": DECODER_MASK,
}


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    shapes = {"E": (VOCAB, DIM), "D": (VOCAB, DIM), "W": (DIM, VOCAB)}
    return {name: random.normal(size=shape) for name, shape in shapes.items()}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def means(rows: Tensor, mask: Any) -> Tensor:
    """Return for each position the mean of the real rows up to it."""
    real = np.ones(rows.shape[:2]) if mask is None else np.asarray(mask, np.float64)
    count = np.maximum(real.cumsum(1), 1)[..., None]
    up_to = Tensor(np.triu(np.ones((rows.shape[1],) * 2)))
    sums = ((rows * Tensor(real[..., None])).swap(1, 2) @ up_to).swap(1, 2)
    return sums * Tensor(1 / count)


def _causal(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    return means(lookup(model["E"], input_ids), attention_mask) @ model["W"]


def causal() -> ReferenceModel:
    """Return a causal language model."""
    return ReferenceModel(_causal, weights())


def headless() -> ReferenceModel:
    """Return a causal model without a language-model head: its output is hidden states."""
    return ReferenceModel(
        lambda model, input_ids, attention_mask=None: means(lookup(model["E"], input_ids), attention_mask), weights()
    )


def _encoder_decoder(
    model: Any,
    input_ids: np.ndarray,
    attention_mask: Any = None,
    decoder_input_ids: Any = None,
    decoder_attention_mask: Any = None,
    *,
    with_axis: bool = False,
) -> Tensor:
    mask = np.ones(input_ids.shape) if attention_mask is None else attention_mask
    rows = lookup(model["E"], input_ids[:, None] if with_axis else input_ids)
    source = (rows.reshape(*input_ids.shape, DIM) * Tensor(mask[..., None].astype(float))).sum(1)
    source = source * Tensor(1 / mask.sum(1, keepdims=True))
    states = means(lookup(model["D"], decoder_input_ids), decoder_attention_mask)
    return (states + source.reshape(len(input_ids), 1, DIM)) @ model["W"]


def encoder_decoder() -> ReferenceModel:
    """Return an encoder-decoder, whose logits add the mean of the encoder's embeddings."""
    return ReferenceModel(_encoder_decoder, weights())


def encoder_decoder_with_axis() -> ReferenceModel:
    """Return the encoder-decoder; its encoder looks up ids of shape (example, 1, position)."""
    return ReferenceModel(partial(_encoder_decoder, with_axis=True), weights())


class Ids(Tensor):
    """Ids that a model generates, which convert themselves to NumPy as a framework's tensors do."""

    def numpy(self) -> np.ndarray:
        """Return the value."""
        return self.value


class Config:
    """A configuration that declares the id at which a text ends."""

    eos_token_id: Any = None


class Generating(ReferenceModel):
    """A causal language model or an encoder-decoder with the method `generate` of Hugging Face, greedy.

    Attributes:
        decoder: whether it is an encoder-decoder.
        config: the configuration.
    """

    def __init__(self, decoder: bool = False, eos: Any = None) -> None:
        super().__init__(_encoder_decoder if decoder else _causal, weights())
        self.decoder = decoder
        self.config = Config()
        self.config.eos_token_id = eos

    def generate(
        self,
        input_ids: np.ndarray,
        attention_mask: Any = None,
        max_new_tokens: int = 1,
        eos_token_id: Any = None,
        **options: Any,
    ) -> Ids:
        """Return the ids, continued with the likeliest; after an end of the text with 0."""
        config = options.get("generation_config", self.config)
        eos = config.eos_token_id if eos_token_id is None else eos_token_id
        ids = np.zeros((len(input_ids), 1), np.int64) if self.decoder else input_ids
        mask = np.ones(ids.shape, int) if self.decoder or attention_mask is None else attention_mask
        ended = np.zeros(len(ids), bool)
        for _ in range(max_new_tokens):
            logits = self(input_ids, attention_mask, ids) if self.decoder else self(ids, mask)
            new = np.where(ended, 0, logits.value[:, -1].argmax(-1))
            ids = np.concatenate([ids, new[:, None]], 1)
            mask = np.concatenate([mask, ~ended[:, None]], 1).astype(int)
            ended |= np.isin(new, [] if eos is None else eos)
        return Ids(ids)
