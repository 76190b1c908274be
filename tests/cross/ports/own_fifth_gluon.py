"""A port written by hand in MXNet Gluon: GPT-2 of hybrid blocks, whose head shares the parameters of its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from embgrad_gluon.importing import import_mxnet

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

mx = import_mxnet()
nn = mx.gluon.nn


class Gpt2Cell(nn.HybridBlock):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, number: int, s: Any) -> None:
        super().__init__()
        self.heads, self.number, self.s, self.size = heads, number, s, width // heads
        with self.name_scope():
            self.ln_1, self.ln_2 = (nn.LayerNorm(epsilon=s.eps, in_channels=width) for _ in range(2))
            sizes = {"c_attn": (3 * width, width), "c_proj": (width, width), "c_fc": (4 * width, width)}
            for name, (units, given) in {**sizes, "c_out": (width, 4 * width)}.items():
                setattr(self, name, nn.Dense(units, flatten=False, in_units=given))

    def heads_of(self, F: Any, x: Any) -> tuple[Any, ...]:
        """Return queries, keys and values, each (example * head, position, feature)."""
        fused = self.c_attn(x)
        if self.s.split == "by role":
            axes, order = (0, 0, 3, self.heads, -1), (2, 0, 3, 1, 4)
        else:
            axes, order = (0, 0, self.heads, 3, -1), (3, 0, 2, 1, 4)
        parts = F.split(F.transpose(F.reshape(fused, axes), order), 3, axis=0, squeeze_axis=True)
        return tuple(F.reshape(part, (-1, 0, 0), reverse=True) for part in parts)

    def hybrid_forward(self, F: Any, x: Any, seen: Any) -> Any:
        s, h = self.s, self.ln_1(x)
        q, k, v = self.heads_of(F, h)
        scores = F.batch_dot(q, k, transpose_b=True) * self.size**-0.5
        scores = scores / (self.number + 1) if s.by_layer else scores
        if s.masked == "chosen":
            scores = F.where(F.broadcast_like(seen, scores), scores, F.ones_like(scores) * -1e9)
        else:
            scores = F.broadcast_add(scores, (1 - seen) * -1e9)
        weights = F.softmax(scores, axis=-1)
        mixed = F.reshape(F.batch_dot(weights, v), (-1, self.heads, 0, 0), reverse=True)
        mixed = F.reshape(F.transpose(mixed, (0, 2, 1, 3)), (0, 0, -1))
        x = (h if s.carried == "normed" else x) + self.c_proj(mixed)
        y = self.c_fc(self.ln_2(x))
        if s.act == "tanh":
            y = 0.5 * y * (1 + F.tanh(0.7978845608028654 * (y + 0.044715 * y * y * y)))
        else:
            y = F.LeakyReLU(y, act_type=s.act)
        return x + self.c_out(y)


class GluonGpt2(nn.Block):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-5, "as_stored": (), "split": "by role", "by_layer": False},
        **{"carried": "sum", "act": "tanh", "masked": "chosen", "first": 0, "embed_scale": 1.0},
        **{"head": None, "hybrid": True, "reversed": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = s = settings.at()
        width, vocab = config.n_embd, config.vocab_size
        with self.name_scope():
            self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(config.n_positions, width)
            self.ln_f, self.cells = nn.LayerNorm(epsilon=s.eps, in_channels=width), nn.Sequential()
            for n in range(config.n_layer):
                self.cells.add(Gpt2Cell(width, config.n_head, n, settings.at(n)))
            tied = {} if s.head is not None else {"params": self.wte.params}
            self.head = nn.Dense(vocab, flatten=False, in_units=width, use_bias=False, **tied)
        self.initialize()

        def put(parameter: Any, value: np.ndarray) -> None:
            parameter.set_data(mx.nd.array(value))

        put(self.wte.weight, state["transformer.wte.weight"])
        put(self.wpe.weight, state["transformer.wpe.weight"])
        if s.head is not None:
            put(self.head.weight, np.random.default_rng(s.head).normal(0, 0.2, (vocab, width)))
        names = {"ln_1": "ln_1", "ln_2": "ln_2", "c_attn": "attn.c_attn", "c_proj": "attn.c_proj"}
        names |= {"c_fc": "mlp.c_fc", "c_out": "mlp.c_proj"}
        pairs = [(self.ln_f, "transformer.ln_f", "ln_f")]
        for n, cell in enumerate(self.cells):
            own = config.n_layer - 1 - n if s.reversed else n
            pairs += [(getattr(cell, mine), f"transformer.h.{own}.{theirs}", mine) for mine, theirs in names.items()]
        for block, theirs, mine in pairs:
            weight, bias = (state[f"{theirs}.{kind}"] for kind in ("weight", "bias"))
            if hasattr(block, "gamma"):
                put(block.gamma, weight)
                put(block.beta, bias)
                continue
            put(block.weight, weight if mine in s.as_stored else weight.T)  # inputs come first in the checkpoint
            put(block.bias, bias)
        if s.hybrid:
            for cell in self.cells:
                cell.hybridize()

    def forward(self, ids: Any) -> Any:
        s, length = self.s, ids.shape[1]
        places = mx.nd.arange(s.first, s.first + length)
        x = mx.nd.broadcast_add(self.wte(ids) * s.embed_scale, self.wpe(places).expand_dims(0))
        at = mx.nd.arange(length)
        seen = mx.nd.broadcast_lesser_equal(at.expand_dims(0), at.expand_dims(1)).expand_dims(0)
        for cell in self.cells:
            x = cell(x, seen)
        return self.head(self.ln_f(x))
