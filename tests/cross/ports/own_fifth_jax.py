"""Ports written by hand in JAX: Qwen2's mixture in NNX with all experts in one array, and Gemma 3 of einsums in Linen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

from tests.cross.ports.own_jax import dense
from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


def turned(x: Any, base: float, factor: float = 1.0) -> Any:
    """Return turned heads, (example, position, head, feature)."""
    size = x.shape[-1]
    angles = jnp.arange(x.shape[1])[:, None] / factor * base ** (-jnp.arange(0, size, 2) / size)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


# Qwen2's mixture of experts in NNX


class Gain(nnx.Module):
    def __init__(self, weight: np.ndarray, s: Any) -> None:
        self.weight, self.s = nnx.Param(jnp.asarray(weight)), s

    def __call__(self, x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.s.eps) * self.weight.value


class Experts(nnx.Module):
    """All experts' weights in two arrays, and the shared expert beside them."""

    def __init__(self, state: State, name: str, count: int, s: Any) -> None:
        self.count, self.s = count, s

        def stacked(part: str) -> np.ndarray:
            return np.stack([state[f"{name}.experts.{n}.{part}_proj.weight"] for n in range(count)])

        def kernels(weights: np.ndarray) -> Any:
            shape = (count, weights.shape[2], weights.shape[1])
            return nnx.Param(jnp.asarray(weights.reshape(shape) if s.reshaped else weights.swapaxes(1, 2)))

        self.wi = kernels(np.concatenate([stacked("gate"), stacked("up")], 1))
        self.wo = kernels(stacked("down"))
        self.router, self.shared_gate = dense(state, f"{name}.gate"), dense(state, f"{name}.shared_expert_gate")
        shared = f"{name}.shared_expert"
        self.gate, self.up, self.down = (dense(state, f"{shared}.{part}_proj") for part in ("gate", "up", "down"))

    def route(self, x: Any) -> tuple[Any, Any]:
        """Return the weights of the experts that are taken, and these as rows of ones and zeros."""
        s = self.s
        best, chosen = jax.lax.top_k(jax.nn.softmax(self.router(x)), s.taken)
        best = best / best.sum(-1, keepdims=True) if s.normalised else best
        taken = jax.nn.one_hot(chosen, self.count)
        if s.capacity:  # an expert drops the tokens behind
            rows = taken.reshape(-1, self.count)
            taken = (rows * (jnp.cumsum(rows, 0) <= s.capacity)).reshape(taken.shape)
        return best, taken

    def __call__(self, x: Any, unnormed: Any) -> Any:
        s = self.s
        best, taken = self.route(unnormed if s.routed_by == "residual" else x)
        if s.form == "gathered":
            chosen = taken.argmax(-1)
            gate, up = jnp.split(jnp.einsum("btd,btkdf->btkf", x, self.wi.value[chosen]), 2, -1)
            y = jnp.einsum("btkf,btkfd,btk->btd", jax.nn.silu(gate) * up, self.wo.value[chosen], best)
        else:
            gate, up = jnp.split(jnp.einsum("btd,edf->btef", x, self.wi.value), 2, -1)
            gate, up = (gate, up) if s.gated else (up, gate)
            combine = jnp.einsum("btk,btke->bte", best, taken)
            y = jnp.einsum("btef,efd,bte->btd", jax.nn.silu(gate) * up, self.wo.value, combine)
        shared = self.down(jax.nn.silu(self.gate(x)) * self.up(x))
        shared = shared * jax.nn.sigmoid(self.shared_gate(x)) if s.shared == "gated" else shared
        return y if s.shared == "none" else y + shared


class MoeLayer(nnx.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        self.size, self.s, own = config.hidden_size // config.num_attention_heads, s, f"{name}.self_attn"
        self.times = config.num_attention_heads // config.num_key_value_heads
        self.q, self.k, self.v, self.o = (dense(state, f"{own}.{part}_proj") for part in "qkvo")
        self.pre, self.mid = (Gain(state[f"{name}.{part}_layernorm.weight"], s) for part in ("input", "post_attention"))
        self.experts = Experts(state, f"{name}.mlp", config.num_experts, s)

    def __call__(self, x: Any) -> Any:
        s, h = self.s, self.pre(x)
        q, k, v = (part(h).reshape(*x.shape[:2], -1, self.size) for part in (self.q, self.k, self.v))
        q, k = turned(q, s.base), turned(k, s.base)
        if s.tiled:
            k, v = (jnp.tile(part, (1, 1, self.times, 1)) for part in (k, v))
        x = x + self.o(jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))
        return x + self.experts(self.mid(x), x)


class BatchedMoe(nnx.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-6, "reshaped": False, "taken": 2, "normalised": False, "capacity": None, "routed_by": "normed"},
        **{"form": "einsum", "gated": True, "shared": "gated", "base": 1e4, "tiled": False, "jit": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        self.table, numbers = nnx.Param(jnp.asarray(state["embed_tokens.weight"])), range(config.num_hidden_layers)
        layers = [MoeLayer(state, f"layers.{n}", config, settings.at(n)) for n in numbers]
        self.layers = nnx.List(layers) if hasattr(nnx, "List") else layers
        self.norm, self.s = Gain(state["norm.weight"], settings.at()), settings.at()

    def encode(self, ids: Any) -> Any:
        x = self.table.value[ids]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def __call__(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return (nnx.jit(BatchedMoe.encode) if self.s.jit else BatchedMoe.encode)(self, input_ids)


# Gemma 3 in Linen


class Einsum(nn.Module):
    shape: tuple[int, ...]

    @nn.compact
    def __call__(self, equation: str, x: Any) -> Any:
        return jnp.einsum(equation, x, self.param("w", nn.initializers.normal(), self.shape))


class RMSNorm(nn.Module):
    s: Any
    offset: float = 1.0

    @nn.compact
    def __call__(self, x: Any) -> Any:
        scale = self.param("scale", nn.initializers.zeros, x.shape[-1:])
        unit = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.s.eps)
        return unit * (self.offset + scale)


class GemmaAttention(nn.Module):
    config: Any
    is_global: bool
    s: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        s, config = self.s, self.config
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        size, width = config.head_dim, config.hidden_size
        q = Einsum((heads, width, size), name="q_einsum")("BTD,NDH->BTNH", x)
        k, v = Einsum((2, groups, width, size), name="kv_einsum")("BSD,CKDH->CBSKH", x)
        q = RMSNorm(s, s.head_offset, name="_query_norm")(q)
        k = RMSNorm(s, s.head_offset, name="_key_norm")(k)
        base = (s.base, s.factor) if self.is_global else (s.local_base,)
        q, k = turned(q, *base), turned(k, *base)
        q = q * s.scalar**-0.5 if s.scaled == "queries" else q
        q = q.reshape(*q.shape[:2], groups, heads // groups, size)
        logits = jnp.einsum("BTKGH,BSKH->BTKGS", q, k)
        logits = logits if s.scaled == "queries" else logits * s.scalar**-0.5
        at = jnp.arange(x.shape[1])
        seen = at <= at[:, None]
        seen = seen if self.is_global else seen & (at > at[:, None] - s.window)
        logits = jnp.where(seen[:, None, None], logits, -2.3819763e38)
        mixed = jnp.einsum("BTKGS,BSKH->BTKGH", jax.nn.softmax(logits), v)
        mixed = mixed.reshape(*x.shape[:2], heads, size)
        return Einsum((heads, size, width), name="attn_vec_einsum")("BTNH,NHD->BTD", mixed)


class GemmaBlock(nn.Module):
    config: Any
    is_global: bool
    s: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        s, width, inner = self.s, self.config.hidden_size, self.config.intermediate_size
        y = RMSNorm(s, name="pre_attention_norm")(x)
        y = GemmaAttention(self.config, self.is_global, s, name="attn")(y)
        x = x + RMSNorm(s, name="post_attention_norm")(y)
        y = RMSNorm(s, name="pre_ffw_norm")(x)
        gate, up = Einsum((2, inner, width), name="gating_einsum")("BTD,GFD->GBTF", y)
        y = Einsum((inner, width), name="linear")("BTF,FD->BTD", jax.nn.gelu(gate) * up)
        return x + RMSNorm(s, name="post_ffw_norm")(y)


class Gemma(nn.Module):
    config: Any
    settings: Any

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        s, config = self.settings.at(), self.config
        shape = (config.vocab_size, config.hidden_size)
        table = self.param("input_embedding", nn.initializers.normal(), shape)
        x = table[ids] * jnp.sqrt(config.hidden_size).astype(s.scale_dtype).astype(table.dtype)
        for n in range(config.num_hidden_layers):
            is_global = n % 6 == s.first_global
            x = GemmaBlock(config, is_global, self.settings.at(n), name=f"layer_{n}")(x)
        logits = RMSNorm(s, name="final_norm")(x) @ table.T
        return s.logit_cap * jnp.tanh(logits / s.logit_cap) if s.logit_cap else logits


_NORMS: Final = {
    **{"pre_attention_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"},
    **{"pre_ffw_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
}


def einsum_gemma(state: State, config: Any, settings: Settings) -> Any:
    """Return the function of a batch and its parameters, by the names of Google's code."""
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def layer(n: int) -> dict[str, Any]:
        name, s = f"model.layers.{n}", settings.at(n)
        own = {part: state[f"{name}.self_attn.{part}_proj.weight"] for part in "qkvo"}
        q = own["q"].reshape(heads, -1, size) if s.reshaped else own["q"].reshape(heads, size, -1).swapaxes(1, 2)
        kv = np.stack([own[part].reshape(groups, size, -1).swapaxes(1, 2) for part in s.stored])
        feed = {part: state[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down")}
        norms = {mine: {"scale": state[f"{name}.{theirs}.weight"]} for mine, theirs in _NORMS.items()}
        attention = {
            **{"q_einsum": {"w": q}, "kv_einsum": {"w": kv}},
            **{"attn_vec_einsum": {"w": own["o"].T.reshape(heads, size, -1)}},
            **{f"_{p}_norm": {"scale": state[f"{name}.self_attn.{p[0]}_norm.weight"]} for p in ("query", "key")},
        }
        gating = {"gating_einsum": {"w": np.stack([feed["gate"], feed["up"]])}, "linear": {"w": feed["down"].T}}
        return {"attn": attention, **norms, **gating}

    parameters = {
        "input_embedding": state["model.embed_tokens.weight"],
        "final_norm": {"scale": state["model.norm.weight"]},
        **{f"layer_{n}": layer(n) for n in range(config.num_hidden_layers)},
    }
    apply = Gemma(config, settings).apply
    return jax.jit(apply) if settings.at().jit else apply, {"params": jax.tree.map(jnp.asarray, parameters)}


einsum_gemma.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-6, "head_offset": 1.0, "base": 1e6, "factor": 4.0, "local_base": 1e4},
    **{"scalar": 20, "scaled": "queries", "window": 6, "first_global": 5},
    **{"scale_dtype": "float32", "logit_cap": 6.0, "reshaped": False, "stored": "kv", "jit": False},
}
