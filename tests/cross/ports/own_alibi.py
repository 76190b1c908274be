"""A port written by hand in PyTorch: BLOOM with bare parameters, whose heads are axes of their own, and einsums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


def powers(count: int, first: int = 1) -> list[float]:
    """Return the slopes of a power of two of heads."""
    ratio = 2 ** (-8 / count)
    return [ratio ** (number + first) for number in range(count)]


def slopes(heads: int, kind: str) -> torch.Tensor:
    """Return the slope of each head."""
    whole = 2 ** math.floor(math.log2(heads))
    further = powers(2 * whole)
    kinds = {
        "paper": lambda: powers(whole) + further[0::2][: heads - whole],
        "geometric": lambda: powers(heads),
        "from-0": lambda: powers(whole, 0) + powers(2 * whole, 0)[0::2][: heads - whole],
        "sorted": lambda: sorted(powers(whole) + further[0::2][: heads - whole], reverse=True),
        "strided": lambda: (further[1::2] + further[0::2])[:heads],
        "rest-first": lambda: further[0::2][: heads - whole] + powers(whole),
    }
    return torch.tensor(kinds[kind]())


class EinsumBloom(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-5, "split": "by head", "slopes": "paper", "bias": "added", "sign": 1.0, "tanh": True},
        **{"embedding_norm": True, "residual": "stream", "causal": True, "padded": True, "distance": "keys"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.settings, self.heads, self.depth = settings, config.n_head, config.n_layer
        width = config.hidden_size
        s = settings.at()

        def put(name: str, values: np.ndarray) -> None:
            setattr(self, name, nn.Parameter(torch.tensor(np.ascontiguousarray(values))))

        def norm(name: str, theirs: str) -> None:
            put(f"{name}_g", state[f"{theirs}.weight"])
            put(f"{name}_b", state[f"{theirs}.bias"])

        put("table", state["word_embeddings.weight"])
        norm("ln_e", "word_embeddings_layernorm")
        norm("ln_f", "ln_f")
        for n in range(self.depth):
            own = f"h.{n}.self_attention"
            shape = (self.heads, 3, -1) if s.split == "by head" else (3, self.heads, -1)
            fused = state[f"{own}.query_key_value.weight"].reshape(*shape, width)
            bias = state[f"{own}.query_key_value.bias"].reshape(shape)
            axis = 1 if s.split == "by head" else 0
            for number, part in enumerate("qkv"):
                put(f"w_{part}{n}", fused.take(number, axis))
                put(f"b_{part}{n}", bias.take(number, axis))
            put(f"w_o{n}", state[f"{own}.dense.weight"].T.reshape(self.heads, -1, width))
            put(f"b_o{n}", state[f"{own}.dense.bias"])
            for part, name in (("up", "dense_h_to_4h"), ("down", "dense_4h_to_h")):
                put(f"w_{part}{n}", state[f"h.{n}.mlp.{name}.weight"].T)
                put(f"b_{part}{n}", state[f"h.{n}.mlp.{name}.bias"])
            norm(f"ln_a{n}", f"h.{n}.input_layernorm")
            norm(f"ln_m{n}", f"h.{n}.post_attention_layernorm")

    def norm(self, x: Any, name: str, s: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + s.eps).sqrt()
        return unit * getattr(self, f"{name}_g") + getattr(self, f"{name}_b")

    def attention(self, x: Any, n: int, alibi: Any, seen: Any, s: Any) -> Any:
        q, k, v = (
            torch.einsum("blm,hdm->bhld", x, getattr(self, f"w_{part}{n}")) + getattr(self, f"b_{part}{n}")[:, None]
            for part in "qkv"
        )
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        scale = q.shape[-1] ** -0.5
        if s.bias == "added":
            scores = scores * scale + alibi
        elif s.bias == "scaled":
            scores = (scores + alibi) * scale
        elif s.bias == "none":
            scores = scores * scale
        probabilities = scores.masked_fill(~seen, -1e9).softmax(-1)
        return torch.einsum("bhqk,bhkd,hdm->bqm", probabilities, v, getattr(self, f"w_o{n}")) + getattr(self, f"b_o{n}")

    def feed(self, x: Any, n: int, s: Any) -> Any:
        h = x @ getattr(self, f"w_up{n}") + getattr(self, f"b_up{n}")
        if s.tanh:
            h = 0.5 * h * (1 + torch.tanh(0.79788456 * h * (1 + 0.044715 * h * h)))
        else:
            h = 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))
        return h @ getattr(self, f"w_down{n}") + getattr(self, f"b_down{n}")

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, length = self.settings.at(), input_ids.shape[1]
        at = torch.arange(length)
        places = (
            (at[None] - at[:, None])[None]
            if s.distance == "between"
            else ((attention_mask.cumsum(-1) - 1) * attention_mask)[:, None]
        )
        alibi = s.sign * slopes(self.heads, s.slopes)[:, None, None] * places[:, None].float()
        seen = (at[:, None] >= at if s.causal else torch.ones(length, length, dtype=torch.bool))[None, None]
        seen = seen & attention_mask[:, None, None].bool() if s.padded else seen
        x = self.table[input_ids]
        x = self.norm(x, "ln_e", s) if s.embedding_norm else x
        for n in range(self.depth):
            s = self.settings.at(n)
            normed = self.norm(x, f"ln_a{n}", s)
            x = (x if s.residual == "stream" else normed) + self.attention(normed, n, alibi, seen, s)
            normed = self.norm(x, f"ln_m{n}", s)
            x = (x if s.residual == "stream" else normed) + self.feed(normed, n, s)
        return self.norm(x, "ln_f", self.settings.at())
