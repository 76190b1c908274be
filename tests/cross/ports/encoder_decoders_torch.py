"""A port written by hand in PyTorch: an encoder-decoder, T5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import nn

from tests.cross.ports.by_hand import State
from tests.cross.ports.by_hand_torch import GELUS, before, bucket, embedding, linear, parameter
from tests.cross.ports.own_settings import Settings

SIDES: Final = ("encoder", "decoder")


class T5Norm(nn.Module):
    def __init__(self, weight: np.ndarray, s: Any) -> None:
        super().__init__()
        self.weight, self.s = parameter(weight), s

    def forward(self, x: Any) -> Any:
        x = x - x.mean(-1, keepdim=True) if self.s.centred else x
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class T5Attention(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s
        for part in "qkvo":
            setattr(self, part, linear(state[f"{name}.{part}.weight"]))

    def forward(self, x: Any, given: Any, seen: Any, bias: Any) -> Any:
        q, k, v = (
            part(values).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part, values in ((self.q, x), (self.k, given), (self.v, given))
        )
        scores = q @ k.transpose(-1, -2) * self.s.scale + bias
        if self.s.mask == "added":
            scores = scores - 1e4 * (~seen).float()
        else:
            scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class T5Block(nn.Module):
    def __init__(self, state: State, name: str, heads: int, crosses: bool, s: Any) -> None:
        super().__init__()
        self.s = s
        self.attention = T5Attention(state, f"{name}.layer.0.SelfAttention", heads, s)
        self.attention_norm = T5Norm(state[f"{name}.layer.0.layer_norm.weight"], s)
        if crosses:
            self.cross = T5Attention(state, f"{name}.layer.1.EncDecAttention", heads, s)
            self.cross_norm = T5Norm(state[f"{name}.layer.1.layer_norm.weight"], s)
        last = f"{name}.layer.{2 if crosses else 1}"
        self.gate, self.up, self.down = (
            linear(state[f"{last}.DenseReluDense.{part}.weight"]) for part in ("wi_0", "wi_1", "wo")
        )
        self.feed_norm = T5Norm(state[f"{last}.layer_norm.weight"], s)

    def forward(self, x: Any, seen: Any, bias: Any, memory: Any = None, memory_seen: Any = None) -> Any:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, seen, bias)
        if memory is not None:
            x = x + self.cross(self.cross_norm(x), memory, memory_seen, bias=0.0)
        normed = self.feed_norm(x)
        gate, up, act = self.gate(normed), self.up(normed), GELUS["tanh"]
        return x + self.down(act(gate) * up if self.s.gated else gate * act(up))


class PlainT5(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"scale": 1.0, "mask": "fill", "centred": False, "gated": True, "one_sided": True, "longest": 128, "late": 0},
        **{"first_alone": False, "cross_padded": True, "flipped": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, heads = settings.at(), config.num_heads
        self.embed = embedding(state["shared.weight"])
        self.encoder, self.decoder = (
            nn.ModuleList(
                T5Block(state, f"{side}.block.{number}", heads, side == "decoder", settings.at(number))
                for number in range(config.num_layers)
            )
            for side in SIDES
        )
        of_first = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        self.biases = nn.ParameterDict({side: parameter(state[f"{side}.{of_first}"]) for side in SIDES})
        self.encoder_norm, self.decoder_norm = (
            T5Norm(state[f"{side}.final_layer_norm.weight"], self.s) for side in SIDES
        )

    def bias(self, side: str, length: int) -> Any:
        table, one_sided = self.biases[side], side == "decoder" and self.s.one_sided
        ahead = torch.arange(length)[None] - torch.arange(length)[:, None] + self.s.late
        ahead = -ahead if self.s.flipped else ahead
        return table[bucket(ahead, len(table), self.s.longest, both=not one_sided)].permute(2, 0, 1)[None]

    def forward(self, input_ids: Any, attention_mask: Any = None, decoder_input_ids: Any = None) -> Any:
        across = attention_mask[:, None, None].bool()
        x, bias = self.embed(input_ids), self.bias("encoder", input_ids.shape[1])
        for number, block in enumerate(self.encoder):
            x = block(x, across, 0.0 if self.s.first_alone and number else bias)
        memory = self.encoder_norm(x)
        x, length = self.embed(decoder_input_ids), decoder_input_ids.shape[1]
        seen = before(length)
        across = across if self.s.cross_padded else torch.ones_like(across)
        bias = self.bias("decoder", length)
        for number, block in enumerate(self.decoder):
            x = block(x, seen, 0.0 if self.s.first_alone and number else bias, memory, across)
        return self.decoder_norm(x)
