"""A port written by hand in PyTorch: BERT's masked language model around PyTorch's own `nn.TransformerEncoder`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

ACTIVATIONS = {
    "gelu": nn.functional.gelu,
    "tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": torch.relu,
    "none": lambda x: x,
}


class MlmHead(nn.Module):
    def __init__(self, width: int, table: nn.Parameter, s: Any) -> None:
        super().__init__()
        self.s = s
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width, eps=s.eps)
        self.table, self.bias = table, nn.Parameter(torch.zeros(len(table)))
        if s.head is not None:
            drawn = np.random.default_rng(s.head).normal(0, 0.2, table.shape)
            self.table = nn.Parameter(torch.tensor(drawn, dtype=torch.float32))

    def forward(self, x: Any) -> Any:
        x = ACTIVATIONS[self.s.head_act](self.dense(x))
        x = self.norm(x) if self.s.head_norm else x
        return x @ self.table.T + self.bias * self.s.bias_times


class LibraryMlm(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "act": "gelu", "norm_first": False, "mask": "padding", "order": ("query", "key", "value")},
        **{"head_act": "gelu", "head_norm": True, "bias_times": 1.0, "head": None, "first": 0, "types": True},
        **{"embedding_norm": True, "embed_scale": 1.0, "heads": 4, "by_position": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s = self.s = settings.at()
        width = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, width)
        self.position = nn.Embedding(config.max_position_embeddings, width)
        self.segment = nn.Embedding(config.type_vocab_size, width)
        self.norm = nn.LayerNorm(width, eps=s.eps)

        def layer(s: Any) -> nn.TransformerEncoderLayer:
            return nn.TransformerEncoderLayer(
                width,
                s.heads,
                config.intermediate_size,
                dropout=0.0,
                activation=ACTIVATIONS[s.act],
                layer_norm_eps=s.eps,
                batch_first=not s.by_position,
                norm_first=s.norm_first,
            )

        self.encoder = nn.TransformerEncoder(layer(s), config.num_hidden_layers, enable_nested_tensor=False)
        self.encoder.layers = nn.ModuleList(layer(settings.at(n)) for n in range(config.num_hidden_layers))
        self.head = MlmHead(width, self.word.weight, s)
        found = self.renamed(state, config.num_hidden_layers, settings)
        if s.head is not None:
            found.pop("head.table")
        self.load_state_dict({name: torch.tensor(value) for name, value in found.items()}, strict=s.head is None)

    @staticmethod
    def renamed(state: State, count: int, settings: Settings) -> dict[str, np.ndarray]:
        """Return a checkpoint of transformers under the names of PyTorch's encoder."""
        head, table = "cls.predictions", state["bert.embeddings.word_embeddings.weight"]
        found = {"word.weight": table, "head.table": table, "head.bias": state[f"{head}.bias"]}
        found["position.weight"] = state["bert.embeddings.position_embeddings.weight"]
        found["segment.weight"] = state["bert.embeddings.token_type_embeddings.weight"]
        pairs = {"norm": "bert.embeddings.LayerNorm", "head.dense": f"{head}.transform.dense"}
        pairs["head.norm"] = f"{head}.transform.LayerNorm"
        for n in range(count):
            own, theirs = f"encoder.layers.{n}", f"bert.encoder.layer.{n}"
            for kind in ("weight", "bias"):
                parts = [state[f"{theirs}.attention.self.{part}.{kind}"] for part in settings.at(n).order]
                found[f"{own}.self_attn.in_proj_{kind}"] = np.concatenate(parts)
            pairs[f"{own}.self_attn.out_proj"] = f"{theirs}.attention.output.dense"
            pairs[f"{own}.norm1"] = f"{theirs}.attention.output.LayerNorm"
            pairs[f"{own}.linear1"], pairs[f"{own}.linear2"] = f"{theirs}.intermediate.dense", f"{theirs}.output.dense"
            pairs[f"{own}.norm2"] = f"{theirs}.output.LayerNorm"
        kinds = ("weight", "bias")
        return {**found, **{f"{own}.{kind}": state[f"{name}.{kind}"] for own, name in pairs.items() for kind in kinds}}

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        s = self.s
        places = torch.arange(input_ids.shape[1]) + s.first
        types = self.segment(token_type_ids if s.types else torch.zeros_like(token_type_ids))
        x = self.word(input_ids) * s.embed_scale + self.position(places) + types
        x = self.norm(x) if s.embedding_norm else x
        hidden = {"padding": attention_mask == 0, "real": attention_mask == 1, "none": None}[s.mask]
        x = x.transpose(0, 1) if s.by_position else x
        x = self.encoder(x, src_key_padding_mask=hidden)
        return self.head(x.transpose(0, 1) if s.by_position else x)
