"""A port written by hand in MXNet Gluon: BioGPT as one hybrid block over (position, example, feature)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from embgrad_gluon.importing import import_mxnet

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

mx = import_mxnet()
nn = mx.gluon.nn


class BioGptCell(nn.HybridBlock):  # type: ignore[misc]
    def __init__(self, config: Any, s: Any) -> None:
        super().__init__()
        width, inner, self.s, self.heads = config.hidden_size, config.intermediate_size, s, config.num_attention_heads
        sizes = dict.fromkeys(("q_proj", "k_proj", "v_proj", "out_proj"), (width, width))
        with self.name_scope():
            for name, (units, given) in {**sizes, "fc1": (inner, width), "fc2": (width, inner)}.items():
                setattr(self, name, nn.Dense(units, flatten=False, in_units=given))
            self.attn_ln, self.final_ln = (nn.LayerNorm(epsilon=s.eps, in_channels=width) for _ in range(2))

    def split(self, F: Any, x: Any) -> Any:
        """Return heads of (position, example, feature) as (example * head, position, feature)."""
        if self.s.inside:
            return F.reshape(F.transpose(F.reshape(x, (0, 0, -1, self.heads)), (1, 3, 0, 2)), (-3, 0, 0))
        return F.reshape(F.transpose(F.reshape(x, (0, 0, self.heads, -1)), (1, 2, 0, 3)), (-3, 0, 0))

    def attend(self, F: Any, x: Any, hidden: Any) -> Any:
        s, size = self.s, self.q_proj._units // self.heads
        q, k, v = (self.split(F, part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
        if s.product == "gemm":
            scores = F.linalg.gemm2(q, k, transpose_b=True, alpha=size**-0.5)
        else:
            scores = F.batch_dot(q, k, transpose_b=True) / (size if s.scale == "size" else size**0.5)
        mixed = F.batch_dot(F.softmax(F.broadcast_add(scores, hidden * -1e9), axis=-1), v)
        mixed = F.transpose(F.reshape(mixed, (-4, -1, self.heads, 0, 0)), (2, 0, 1, 3))
        return self.out_proj(F.reshape(mixed, (0, 0, -3)))

    def hybrid_forward(self, F: Any, x: Any, hidden: Any) -> Any:
        s = self.s
        for part, ln in ((self.attend, self.attn_ln), (self.feed, self.final_ln)):
            y = part(F, ln(x) if s.pre_norm else x, hidden)
            y = x + y if s.residual or part == self.attend else y
            x = y if s.pre_norm else ln(y)
        return x

    def feed(self, F: Any, x: Any, _: Any) -> Any:
        h = self.fc1(x)
        if self.s.act == "tanh":
            h = 0.5 * h * (1 + F.tanh(0.7978845608028654 * (h + 0.044715 * h * h * h)))
        else:
            h = F.LeakyReLU(h, act_type="gelu") if self.s.act == "gelu" else F.relu(h)
        return self.fc2(h)


class GluonBioGpt(nn.HybridBlock):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-5, "inside": False, "product": "dot", "scale": "root", "pre_norm": True, "residual": True},
        **{"act": "gelu", "lookup": 32**0.5, "scaled": "words", "first": 2, "last_norm": True, "head": None},
        **{"ahead": 0, "hybrid": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = s = settings.at()
        table, places = (state[f"biogpt.embed_{name}.weight"] for name in ("tokens", "positions"))
        with self.name_scope():
            self.words, self.places = nn.Embedding(*table.shape), nn.Embedding(*places.shape)
            self.cells, self.ln = nn.HybridSequential(), nn.LayerNorm(epsilon=s.eps, in_channels=config.hidden_size)
            for n in range(config.num_hidden_layers):
                self.cells.add(BioGptCell(config, settings.at(n)))
            self.head = nn.Dense(len(table), flatten=False, in_units=table.shape[1], use_bias=False)
        self.initialize()

        def put(block: Any, *values: np.ndarray) -> None:
            names = ("gamma", "beta") if hasattr(block, "gamma") else ("weight", "bias")
            for name, value in zip(names, values, strict=False):
                getattr(block, name).set_data(mx.nd.array(value))

        put(self.words, table)
        put(self.places, places)
        put(self.head, table if s.head is None else np.random.default_rng(s.head).normal(0, 0.15, table.shape))
        names = {"attn_ln": "self_attn_layer_norm", "final_ln": "final_layer_norm", "fc1": "fc1", "fc2": "fc2"}
        names |= {name: f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        pairs = [(self.ln, "biogpt.layer_norm")]
        for n, cell in enumerate(self.cells):
            pairs += [(getattr(cell, mine), f"biogpt.layers.{n}.{theirs}") for mine, theirs in names.items()]
        for block, name in pairs:
            put(block, state[f"{name}.weight"], state[f"{name}.bias"])
        if s.hybrid:
            self.hybridize()

    def hybrid_forward(self, F: Any, ids: Any) -> Any:
        s, ids = self.s, F.transpose(ids)
        at = F.contrib.arange_like(F.cast(ids, "float32"), axis=0)
        places = F.expand_dims(self.places(at + s.first), 1)
        x = F.broadcast_add(self.words(ids) * (1.0 if s.scaled == "sum" else s.lookup), places)
        x = x * s.lookup if s.scaled == "sum" else x
        hidden = F.broadcast_greater(F.expand_dims(at, 0), F.expand_dims(at, 1) + s.ahead)
        for cell in self.cells:
            x = cell(x, F.expand_dims(hidden, 0))
        return F.transpose(self.head(self.ln(x) if s.last_norm else x), (1, 0, 2))
