"""A port written by hand in PyTorch: a recurrent decoder, RWKV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.by_hand import State
from tests.cross.ports.by_hand_torch import embedding, linear, norm, parameter
from tests.cross.ports.own_settings import Settings

# RWKV in one file


def shared(x: Any, mix: Any, s: Any) -> Any:
    """Return shares of each position and of its predecessor, which is zero before the first."""
    before = x if s.shift == 0 else F.pad(x, (0, 0, s.shift, 0))[:, : x.shape[1]]
    return x * (1 - mix) + before * mix if s.mix_turned else x * mix + before * (1 - mix)


def summed(k: Any, v: Any, decay: Any, first: Any, s: Any) -> Any:
    """Return the mean of values so far, weighed by keys that fade."""
    w = decay.exp() if s.decay == "exp" else -decay.exp()
    if s.form == "matrix":
        at = torch.arange(k.shape[1])
        apart = (at[:, None] - at - 1)[..., None]
        weights = torch.where(apart >= 0, apart * w, torch.where(apart == -1, first, -torch.inf))
        shares = (weights + k[:, None]).softmax(2)
        return torch.einsum("bqkd,bkd->bqd", shares, v)
    top, below, states = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), []
    for now, value in zip(k.unbind(1), v.unbind(1), strict=True):
        e = (now + first if s.bonus else now).exp()
        states.append((top + e * value) / (below + e))
        top, below = top * w.exp() + now.exp() * value, below * w.exp() + now.exp()
    return torch.stack(states, 1)


class TimeMix(nn.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        self.s = s
        self.key, self.value, self.receptance, self.output = (
            linear(state[f"{name}.{part}.weight"]) for part in ("key", "value", "receptance", "output")
        )
        self.mix_k, self.mix_v, self.mix_r = (
            parameter(state[f"{name}.time_mix_{part}"]) for part in ("key", "value", "receptance")
        )
        self.decay, self.first = parameter(state[f"{name}.time_decay"]), parameter(state[f"{name}.time_first"])

    def forward(self, x: Any) -> Any:
        s = self.s
        k, v, r = (
            part(shared(x, mix, s))
            for part, mix in ((self.key, self.mix_k), (self.value, self.mix_v), (self.receptance, self.mix_r))
        )
        return self.output((r.sigmoid() if s.receptance else r) * summed(k, v, self.decay, self.first, s))


class ChannelMix(nn.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        self.s = s
        self.key, self.value, self.receptance = (
            linear(state[f"{name}.{part}.weight"]) for part in ("key", "value", "receptance")
        )
        self.mix_k, self.mix_r = (parameter(state[f"{name}.time_mix_{part}"]) for part in ("key", "receptance"))

    def forward(self, x: Any) -> Any:
        s, k = self.s, self.key(shared(x, self.mix_k, self.s)).relu()
        r = self.receptance(shared(x, self.mix_r, s))
        return r.sigmoid() * self.value(k * k if s.squared else k)


class FileRwkv(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"shift": 1, "mix_turned": False, "decay": "minus exp", "bonus": True, "form": "loop"},
        **{"receptance": True, "squared": True, "pre_norm": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = settings.at()
        self.emb = embedding(state["rwkv.embeddings.weight"])
        self.ln0, self.ln_out = norm(state, "rwkv.blocks.0.pre_ln", 1e-5), norm(state, "rwkv.ln_out", 1e-5)
        self.head, self.blocks = linear(state["head.weight"]), nn.ModuleList()
        for n in range(config.num_hidden_layers):
            own, name = settings.at(n), f"rwkv.blocks.{n}"
            time, channels = TimeMix(state, f"{name}.attention", own), ChannelMix(state, f"{name}.feed_forward", own)
            norms = {f"ln{m}": norm(state, f"{name}.ln{m}", 1e-5) for m in (1, 2)}
            self.blocks.append(nn.ModuleDict({"att": time, "ffn": channels, **norms}))

    def forward(self, input_ids: Any) -> Any:
        x = self.emb(input_ids)
        x = self.ln0(x) if self.s.pre_norm else x
        for block in self.blocks:
            x = x + block["att"](block["ln1"](x))  # type: ignore[index]
            x = x + block["ffn"](block["ln2"](x))  # type: ignore[index]
        return self.head(self.ln_out(x))
