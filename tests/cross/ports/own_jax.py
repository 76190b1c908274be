"""Ports written by hand in JAX: Llama as a function, Qwen 2 and a Llama with fused projections in Flax NNX, BERT in Linen."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

ACTIVATIONS: Final = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "exact": lambda x: jax.nn.gelu(x, approximate=False),
    "relu": jax.nn.relu,
}

#: The settings of a right Llama or Qwen, and those of attention alone.
_ATTENTION: Final = {
    "scale": 0.25, "mask": "where", "axis": -1, "causal": True, "ahead": 0, "padded": True, "tile": False,
}  # fmt: skip
_DECODER: Final = {
    **{**_ATTENTION, "epsilon": 1e-5, "offset": 0.0, "centred": False, "half": False, "base": 1e4,
        "interleaved": False},
    **{"start": 0, "turned": "qk", "backwards": False, "act": "silu", "gated": True, "late_residual": False,
        "norms": True},
    **{"final": True, "inside": False, "residual": 1.0},
}  # fmt: skip


def _norm(x: Any, weight: Any, s: Any) -> Any:
    given = x.astype(jnp.bfloat16) if s.half else x
    given = given - given.mean(-1, keepdims=True) if s.centred else given
    unit = given * jax.lax.rsqrt((given**2).mean(-1, keepdims=True) + s.epsilon)
    return unit.astype(x.dtype) * (weight + s.offset)


def _rotate(x: Any, s: Any) -> Any:
    """Return turned heads; x is (batch, position, head, feature)."""
    size = x.shape[-1]
    angles = (jnp.arange(x.shape[1]) + s.start)[:, None] / s.base ** (jnp.arange(0, size, 2) / size)
    cosine, sine = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None] * (-1 if s.backwards else 1)
    if s.interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return jnp.stack([a * cosine - b * sine, b * cosine + a * sine], -1).reshape(x.shape)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


def _attend(q: Any, k: Any, v: Any, mask: Any, s: Any) -> Any:
    """Return (batch, position, head, feature)."""
    times = q.shape[2] // k.shape[2]
    if times > 1:
        k, v = (jnp.tile(x, (1, 1, times, 1)) if s.tile else jnp.repeat(x, times, 2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * s.scale
    distance = jnp.arange(q.shape[1])[:, None] - jnp.arange(q.shape[1])
    seen = (distance >= -s.ahead if s.causal else jnp.ones_like(distance, bool))[None, None]
    seen = seen & (mask[:, None, None] > 0) if s.padded else seen
    if s.mask == "where":
        scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    elif s.mask == "added":
        scores = scores - 1e4 * (1 - seen)
    elif s.mask == "sign":
        scores = scores + 1e4 * (1 - seen)
    weights = jax.nn.softmax(scores, s.axis)
    weights = weights * seen if s.mask == "after" else weights
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _turned(q: Any, k: Any, s: Any) -> tuple[Any, Any]:
    return (_rotate(q, s) if "q" in s.turned else q), (_rotate(k, s) if "k" in s.turned else k)


# A function of a dict of parameters


def llama_parameters(state: State, config: Any) -> dict[str, Any]:
    """Return Llama's weights as einsums take them, (head, feature, dim)."""
    size = config.hidden_size // config.num_attention_heads

    def layer(name: str) -> dict[str, Any]:
        own = {part: state[f"{name}.self_attn.{part}_proj.weight"] for part in "qkvo"}
        heads = {f"w{part}": own[part].reshape(-1, size, config.hidden_size) for part in "qkv"}
        return {
            **heads,
            "wo": own["o"].T.reshape(config.num_attention_heads, size, config.hidden_size),
            **{part: state[f"{name}.mlp.{part}_proj.weight"].T for part in ("gate", "up", "down")},
            "before": state[f"{name}.input_layernorm.weight"],
            "after": state[f"{name}.post_attention_layernorm.weight"],
        }

    made = {
        "embed": state["model.embed_tokens.weight"],
        "layers": [layer(f"model.layers.{number}") for number in range(config.num_hidden_layers)],
        "norm": state["model.norm.weight"],
    }
    return jax.tree.map(jnp.asarray, made)


def llama(settings: Settings, p: Any, ids: Any, mask: Any) -> Any:
    x = p["embed"][ids]
    for number, own in enumerate(p["layers"]):
        s = settings.at(number)
        normed = _norm(x, own["before"], s) if s.norms else x
        q, k, v = (jnp.einsum("bsm,hdm->bshd", normed, own[name]) for name in ("wq", "wk", "wv"))
        mixed = _attend(*_turned(q, k, s), v, mask, s)
        if s.inside:
            mixed = mixed.swapaxes(2, 3).reshape(mixed.shape)
        added = jnp.einsum("bshd,hdm->bsm", mixed, own["wo"])
        x = (normed if s.late_residual else x) + added * s.residual
        normed = _norm(x, own["after"], s)
        gate, up, act = normed @ own["gate"], normed @ own["up"], ACTIVATIONS[s.act]
        x = x + (act(gate) * up if s.gated else gate * act(up)) @ own["down"]
    s = settings.at()
    return (_norm(x, p["norm"], s) if s.final else x) @ p["embed"].T


def plain_llama(state: State, config: Any, settings: Settings) -> Any:
    return functools.partial(llama, settings), llama_parameters(state, config)


plain_llama.usual = _DECODER  # type: ignore[attr-defined]


# Flax NNX


class Gain(nnx.Module):
    def __init__(self, weight: np.ndarray, s: Any) -> None:
        self.g, self.s = nnx.Param(jnp.asarray(weight)), s

    def __call__(self, x: Any) -> Any:
        return _norm(x, self.g.value, self.s)


def dense(state: State, name: str, *, biased: bool = True) -> nnx.Linear:
    weight = state[f"{name}.weight"].T
    made = nnx.Linear(*weight.shape, use_bias=biased and f"{name}.bias" in state, rngs=nnx.Rngs(0))
    made.kernel.value = jnp.asarray(weight)
    if made.bias is not None:
        made.bias.value = jnp.asarray(state[f"{name}.bias"])
    return made


class QwenBlock(nnx.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        self.s = s
        self.q, self.k, self.v, self.o = (
            dense(state, f"{name}.self_attn.{part}_proj", biased=part not in s.unbiased) for part in "qkvo"
        )
        self.gate, self.up, self.down = (dense(state, f"{name}.mlp.{part}_proj") for part in ("gate", "up", "down"))
        self.pre = Gain(state[f"{name}.input_layernorm.weight"], s)
        self.mid = Gain(state[f"{name}.post_attention_layernorm.weight"], s)

    def __call__(self, x: Any, mask: Any) -> Any:
        s, size = self.s, 16
        normed = self.pre(x) if s.norms else x
        if s.inside:
            q, k, v = (part(normed).reshape(*x.shape[:2], size, -1).swapaxes(2, 3) for part in (self.q, self.k, self.v))
        else:
            q, k, v = (part(normed).reshape(*x.shape[:2], -1, size) for part in (self.q, self.k, self.v))
        added = self.o(_attend(*_turned(q, k, s), v, mask, s).reshape(x.shape))
        x = (normed if s.late_residual else x) + added * s.residual
        normed, act = self.mid(x), ACTIVATIONS[s.act]
        gate, up = self.gate(normed), self.up(normed)
        return x + self.down(act(gate) * up if s.gated else gate * act(up)) * s.residual


class Qwen(nnx.Module):
    usual: ClassVar[Mapping[str, Any]] = {**_DECODER, "base": 1e6, "unbiased": ()}

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        table = state["embed_tokens.weight"]
        self.embed = nnx.Embed(*table.shape, rngs=nnx.Rngs(0))
        self.embed.embedding.value = jnp.asarray(table)
        blocks = [
            QwenBlock(state, f"layers.{number}", settings.at(number)) for number in range(config.num_hidden_layers)
        ]
        self.blocks = nnx.List(blocks) if hasattr(nnx, "List") else blocks
        self.last = Gain(state["norm.weight"], settings.at())
        self.s = settings.at()

    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x, attention_mask)
        return self.last(x) if self.s.final else x


# Flax NNX with fused projections


class FusedBlock(nnx.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        self.heads, self.s = config.num_attention_heads, s
        own = {part: state[f"{name}.self_attn.{part}_proj.weight"] for part in "qkvo"}
        if s.by_group:
            fused = [own[part].reshape(config.num_key_value_heads, -1, config.hidden_size) for part in "qkv"]
            qkv = np.concatenate(fused, 1).reshape(-1, config.hidden_size)
        else:
            qkv = np.concatenate([own[part] for part in s.stored])
        feed = np.concatenate([state[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up")])
        fused = {"qkv": qkv, "out": own["o"], "gate_up": feed, "down": state[f"{name}.mlp.down_proj.weight"]}
        for part, weight in fused.items():
            setattr(self, part, dense({f"{part}.weight": weight}, part))
        self.norm1 = Gain(state[f"{name}.input_layernorm.weight"], s)
        self.norm2 = Gain(state[f"{name}.post_attention_layernorm.weight"], s)

    def __call__(self, x: Any, mask: Any) -> Any:
        s, size = self.s, 16
        normed = self.norm1(x) if s.norms else x
        fused, wide = self.qkv(normed), self.heads * size
        q, k, v = jnp.split(fused, [wide, (fused.shape[-1] + wide) // 2], -1)
        q, k, v = (part.reshape(*x.shape[:2], -1, size) for part in (q, k, v))
        mixed = _attend(*_turned(q, k, s), v, mask, s)
        added = self.out((mixed.swapaxes(1, 2) if s.unturned else mixed).reshape(x.shape))
        x = (normed if s.late_residual else x) + added * s.residual
        gate, up = jnp.split(self.gate_up(self.norm2(x)), 2, -1)
        act = ACTIVATIONS[s.act]
        return x + self.down(act(gate) * up if s.gated else gate * act(up)) * s.residual


class FusedLlama(nnx.Module):
    usual: ClassVar[Mapping[str, Any]] = {**_DECODER, "by_group": False, "stored": "qkv", "unturned": False}

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        self.table = nnx.Param(jnp.asarray(state["embed_tokens.weight"]))
        numbers = range(config.num_hidden_layers)
        blocks = [FusedBlock(state, f"layers.{number}", config, settings.at(number)) for number in numbers]
        self.layers = nnx.List(blocks) if hasattr(nnx, "List") else blocks
        self.norm, self.s = Gain(state["norm.weight"], settings.at()), settings.at()

    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.table.value[input_ids]
        for layer in self.layers:
            x = layer(x, attention_mask)
        return self.norm(x) if self.s.final else x


# Flax Linen


class Attention(linen.Module):
    width: int
    heads: int
    s: Any

    def setup(self) -> None:
        self.wq, self.wk, self.wv, self.wo = (linen.Dense(self.width) for _ in range(4))

    def __call__(self, x: Any, mask: Any) -> Any:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (part(x).reshape(shape) for part in (self.wq, self.wk, self.wv))
        mixed = _attend(q, k, v, mask, self.s)
        mixed = mixed.swapaxes(1, 2) if self.s.unturned else mixed
        return self.wo(mixed.reshape(x.shape))


class Block(linen.Module):
    width: int
    heads: int
    inner: int
    s: Any

    def setup(self) -> None:
        s = self.s
        self.mixer = Attention(self.width, self.heads, s)
        self.grow, self.shrink = linen.Dense(self.inner), linen.Dense(self.width)
        self.ln_a, self.ln_b = linen.LayerNorm(epsilon=s.epsilon), linen.LayerNorm(epsilon=s.epsilon)

    def __call__(self, x: Any, mask: Any) -> Any:
        act = ACTIVATIONS[self.s.act]
        if self.s.pre_norm:
            x = x + self.mixer(self.ln_a(x), mask)
            return x + self.shrink(act(self.grow(self.ln_b(x))))
        mixed = self.mixer(x, mask)
        x = self.ln_a(mixed) + x if self.s.outside else self.ln_a(x + mixed)
        added = self.shrink(act(self.grow(x)))
        return self.ln_b(x + added if self.s.residual else added)


class Bert(linen.Module):
    """BERT without its pooler."""

    config: Any
    settings: Any

    def setup(self) -> None:
        config, s = self.config, self.settings.at()
        self.tok, self.pos, self.seg = (
            linen.Embed(count, config.hidden_size)
            for count in (config.vocab_size, config.max_position_embeddings, config.type_vocab_size)
        )
        self.ln = linen.LayerNorm(epsilon=s.epsilon)
        self.blocks = [
            Block(config.hidden_size, config.num_attention_heads, config.intermediate_size, self.settings.at(number))
            for number in range(config.num_hidden_layers)
        ]

    def __call__(self, ids: Any, mask: Any, types: Any) -> Any:
        s = self.settings.at()
        x = self.tok(ids) + self.pos(jnp.arange(ids.shape[1]) + s.first)[None]
        x = x + self.seg(types if s.types else jnp.zeros_like(types))
        x = self.ln(x) if s.embedding_norm else x
        for block in self.blocks:
            x = block(x, mask)
        return x


def linen_bert(state: State, config: Any, settings: Settings) -> Any:
    def dense(name: str) -> dict[str, Any]:
        return {"kernel": state[f"{name}.weight"].T, "bias": state[f"{name}.bias"]}

    def norm(name: str) -> dict[str, Any]:
        return {"scale": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    def block(name: str) -> dict[str, Any]:
        own = f"{name}.attention"
        parts = {"wq": "self.query", "wk": "self.key", "wv": "self.value", "wo": "output.dense"}
        return {
            "mixer": {part: dense(f"{own}.{theirs}") for part, theirs in parts.items()},
            **{"ln_a": norm(f"{own}.output.LayerNorm"), "ln_b": norm(f"{name}.output.LayerNorm")},
            **{"grow": dense(f"{name}.intermediate.dense"), "shrink": dense(f"{name}.output.dense")},
        }

    tables = {"tok": "word", "pos": "position", "seg": "token_type"}
    parameters = {
        **{own: {"embedding": state[f"embeddings.{name}_embeddings.weight"]} for own, name in tables.items()},
        "ln": norm("embeddings.LayerNorm"),
        **{f"blocks_{number}": block(f"encoder.layer.{number}") for number in range(config.num_hidden_layers)},
    }
    return Bert(config, settings), {"params": jax.tree.map(jnp.asarray, parameters)}


linen_bert.usual = {  # type: ignore[attr-defined]
    **{**_ATTENTION, "scale": 8**-0.5, "causal": False, "epsilon": 1e-12, "act": "exact", "pre_norm": False},
    **{"outside": False, "residual": True, "first": 0, "types": True, "embedding_norm": True, "unturned": False},
}
