"""The architectures of `transformers` that must work: a small random model of each, and the roles that it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers

VOCAB = 40
IDS = np.random.default_rng(0).permutation(np.arange(4, 36))[:12].reshape(2, 6)
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
TYPES = np.array([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]])
DECODER = np.array([[2, 1, 3], [2, 37, 39]])  # none of them among the ids

USUAL = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
}  # fmt: skip
#: transformers before 4.52 makes GPT-2's mask of float64 as float32, which overflows, but where its attention is written out.
OF_GPT2 = (
    {} if tuple(map(int, transformers.__version__.split(".")[:2])) >= (4, 52) else {"attn_implementation": "eager"}
)
ROTARY = {**USUAL, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0}


@dataclass(frozen=True)
class Architecture:
    """An architecture of `transformers`.

    Attributes:
        name: as in the classes' names.
        settings: of its configuration.
        word: the path of the word table in the bare model.
        layer: the path of the layers, with their number left open; that of the one that all share where they do.
        roles: the roles that it has, besides `layer.N`.
        embeddings: where `embeddings` is, as a native name; None where it has none.
        layers: the setting that says how many layers there are.
    """

    name: str
    settings: Mapping[str, Any]
    word: str
    layer: str
    roles: tuple[str, ...]
    embeddings: str | None
    layers: str = "num_hidden_layers"
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)

    def build(self, layers: int = 2, **changes: Any) -> Any:
        """A bare model in float64 and evaluation mode, with random weights."""
        torch.manual_seed(1)
        settings = {**self.settings, self.layers: layers, **changes}
        config = getattr(transformers, f"{self.name}Config")(**settings)
        return getattr(transformers, f"{self.name}Model")(config).double().eval()

    def batch(self, *, mask: bool = True) -> dict[str, Any]:
        """Inputs by name, in NumPy."""
        return {"input_ids": IDS, **({"attention_mask": MASK} if mask else {}), **self.inputs}


def _of(*entries: Architecture) -> dict[str, Architecture]:
    return {entry.name: entry for entry in entries}


ADDED = ("word", "position", "type", "embeddings")

ARCHITECTURES: dict[str, Architecture] = _of(
    Architecture("Bert", USUAL, "embeddings.word_embeddings", "encoder.layer.{}", ADDED, "embeddings",
        inputs={"token_type_ids": TYPES}),
    Architecture("Roberta", {**USUAL, "max_position_embeddings": 20}, "embeddings.word_embeddings", "encoder.layer.{}",
        ADDED, "embeddings"),
    Architecture("DistilBert", {"vocab_size": VOCAB, "dim": 16, "n_heads": 2, "hidden_dim": 24},
        "embeddings.word_embeddings", "transformer.layer.{}", ("word", "position", "embeddings"), "embeddings",
        layers="n_layers"),
    Architecture("Albert", {**USUAL, "embedding_size": 8}, "embeddings.word_embeddings",
        "encoder.albert_layer_groups.0#{}", ADDED, "embeddings"),
    Architecture("Electra", {**USUAL, "embedding_size": 8}, "embeddings.word_embeddings", "encoder.layer.{}", ADDED,
        "embeddings"),
    Architecture("DebertaV2",
        {**USUAL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 2},
        "embeddings.word_embeddings", "encoder.layer.{}", ADDED, "embeddings"),
    Architecture("GPT2", {"vocab_size": VOCAB, "n_embd": 16, "n_head": 2, "pad_token_id": 0, **OF_GPT2}, "wte", "h.{}",
        ("word", "position", "embeddings"), "drop", layers="n_layer"),
    Architecture("Llama", ROTARY, "embed_tokens", "layers.{}", ("word", "embeddings"), "embed_tokens"),
    Architecture("Gemma", ROTARY, "embed_tokens", "layers.{}", ("word", "embeddings"), "layers.0:input"),
    Architecture("T5", {"vocab_size": VOCAB, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}, "shared",
        "encoder.block.{}", ("word", "embeddings"), "encoder.dropout#0", layers="num_layers",
        inputs={"decoder_input_ids": DECODER}),
    Architecture(
        "Bart",
        {"vocab_size": VOCAB, "d_model": 16, "decoder_layers": 2,
            **{f"{half}_attention_heads": 2 for half in ("encoder", "decoder")}},
        "shared", "encoder.layers.{}",
        ("word", "position", "embeddings"),
        "encoder.layernorm_embedding",
        layers="encoder_layers",
        inputs={"decoder_input_ids": DECODER},
    ),
)  # fmt: skip


def native(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs as tensors."""
    return {name: torch.tensor(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}


def weighted(out: Any) -> torch.Tensor:
    """An objective that every entry of the last hidden state enters: shape (example,)."""
    last = out.last_hidden_state.flatten(1)
    return (last * torch.linspace(-1, 1, last.shape[1], dtype=last.dtype)).sum(1)
