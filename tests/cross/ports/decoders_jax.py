"""Ports written by hand in JAX: decoders as a function, scanned, and as modules of Flax NNX, apart, fused and with experts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.cross.ports.by_hand import State
from tests.cross.ports.by_hand_jax import ACTIVATIONS, Gain, attend, before, dense, listed, multiplied, rotated
from tests.cross.ports.own_settings import Settings

# Llama as a function of a dict of parameters


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
    x, seen = p["embed"][ids], before(ids.shape[1]) & (mask[:, None, None] > 0)
    for number, own in enumerate(p["layers"]):
        s = settings.at(number)
        normed = multiplied(x, own["before"], s.epsilon, half=s.half)
        q, k, v = (jnp.einsum("bsm,hdm->bshd", normed, own[name]) for name in ("wq", "wk", "wv"))
        q, k = (rotated(y, s.base, s.start, interleaved=s.interleaved, half=s.rounded) for y in (q, k))
        mixed = attend(q, k, v, seen, 0.25, mask=s.mask, axis=s.axis, tile=s.tile)
        mixed = mixed.swapaxes(2, 3).reshape(mixed.shape) if s.inside else mixed
        x = (normed if s.late_residual else x) + jnp.einsum("bshd,hdm->bsm", mixed, own["wo"])
        normed = multiplied(x, own["after"], s.epsilon, half=s.half)
        gate, up, act = normed @ own["gate"], normed @ own["up"], jax.nn.silu
        x = x + (act(gate) * up if s.gated else gate * act(up)) @ own["down"]
    s = settings.at()
    return multiplied(x, p["norm"], s.epsilon, half=s.half) @ p["embed"].T


def plain_llama(state: State, config: Any, settings: Settings) -> Any:
    """Return the function of parameters and a batch, and the parameters."""
    return functools.partial(llama, settings), llama_parameters(state, config)


plain_llama.usual = {  # type: ignore[attr-defined]
    **{"mask": "where", "axis": -1, "tile": False, "epsilon": 1e-5, "half": False, "base": 1e4, "rounded": False},
    **{"interleaved": False, "start": 0, "gated": True, "late_residual": False, "inside": False},
}


# OPT scanned over layers whose weights are stacked


def load_opt(state: State, config: Any, s: Any) -> dict[str, Any]:
    """Return OPT's weights; those of blocks have an axis of layers in front."""
    names = [f"decoder.layers.{number}" for number in range(config.num_hidden_layers)]
    names = sorted(names) if s.sorted else names
    names = names[: s.depth]

    def stack(name: str) -> np.ndarray:
        values = np.stack([state[f"{prefix}.{name}"] for prefix in names])
        square = values.ndim == 3 and values.shape[1] == values.shape[2]
        return values if values.ndim == 2 or (square and name in s.as_stored) else values.swapaxes(1, 2)

    parts = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.out_proj"}
    parts |= {"up": "fc1", "down": "fc2", "ln1": "self_attn_layer_norm", "ln2": "final_layer_norm"}
    blocks = {
        own: {kind: stack(f"{theirs}.{full}") for kind, full in (("w", "weight"), ("b", "bias"))}
        for own, theirs in parts.items()
    }
    tree = {
        "tokens": state["decoder.embed_tokens.weight"],
        "positions": state["decoder.embed_positions.weight"],
        "blocks": blocks,
        "ln_f": {"w": state["decoder.final_layer_norm.weight"], "b": state["decoder.final_layer_norm.bias"]},
    }
    return jax.tree.map(jnp.asarray, tree)


def layer_norm(x: Any, p: Any) -> Any:
    mean, var = jnp.mean(x, axis=-1, keepdims=True), jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-5) * p["w"] + p["b"]


def linear(x: Any, p: Any) -> Any:
    return jnp.dot(x, p["w"]) + p["b"]


def opt_block(s: Any, heads: int, bias: Any, x: Any, p: Any) -> Any:
    batch, length, width = x.shape

    def attention(h: Any) -> Any:
        q, k, v = (linear(h, p[n]).reshape(batch, length, heads, -1) for n in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q * 8**-0.5, k * s.key_scale) + bias
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
        return linear(mixed.reshape(batch, length, width), p["o"])

    def feed(h: Any) -> Any:
        return linear(ACTIVATIONS[s.act](linear(h, p["up"])), p["down"])

    if s.pre_norm:
        x = x + attention(layer_norm(x, p["ln1"]))
        return x + feed(layer_norm(x, p["ln2"]))
    x = layer_norm(x + attention(x), p["ln1"])
    return layer_norm(x + feed(x), p["ln2"])


def opt(s: Any, heads: int, params: Any, ids: Any, mask: Any) -> Any:
    places = jnp.cumsum(mask, axis=1) * mask - 1 + s.offset
    x = params["tokens"][ids] + params["positions"][places]
    bias = jnp.where(before(ids.shape[1])[None] & (mask[:, None] > 0), 0.0, s.least)[:, None]
    body = functools.partial(opt_block, s, heads, bias)
    if s.unrolled:
        for number in range(params["blocks"]["q"]["w"].shape[0]):
            x = body(x, jax.tree.map(lambda leaf, number=number: leaf[number], params["blocks"]))
    else:
        x, _ = jax.lax.scan(lambda carry, p: (body(carry, p), None), x, params["blocks"])
    return layer_norm(x, params["ln_f"])


def scanned_opt(state: State, config: Any, settings: Settings) -> Any:
    """Return the function of parameters and a batch, and the parameters."""
    s = settings.at()
    return functools.partial(opt, s, config.num_attention_heads), load_opt(state, config, s)


scanned_opt.usual = {  # type: ignore[attr-defined]
    **{"sorted": False, "depth": None, "as_stored": (), "act": "relu", "key_scale": 1.0, "pre_norm": True},
    **{"offset": 2, "least": -1e9, "unrolled": False},
}


# Qwen 2 in NNX


class QwenBlock(nnx.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        self.s = s
        self.q, self.k, self.v, self.o = (
            dense(state, f"{name}.self_attn.{part}_proj", biased=part not in s.unbiased) for part in "qkvo"
        )
        self.gate, self.up, self.down = (dense(state, f"{name}.mlp.{part}_proj") for part in ("gate", "up", "down"))
        self.pre, self.mid = (
            Gain(state[f"{name}.{part}_layernorm.weight"], 1e-5, offset=s.offset)
            for part in ("input", "post_attention")
        )

    def __call__(self, x: Any, seen: Any) -> Any:
        s, normed = self.s, self.pre(x)
        q, k, v = (part(normed).reshape(*x.shape[:2], -1, 16) for part in (self.q, self.k, self.v))
        q = rotated(q, s.base, backwards=s.backwards)
        k = rotated(k, s.base, backwards=s.backwards) if "k" in s.turned else k
        x = x + self.o(attend(q, k, v, seen, 0.25).reshape(x.shape)) * s.residual
        normed = self.mid(x)
        return x + self.down(ACTIVATIONS[s.act](self.gate(normed)) * self.up(normed)) * s.residual


class Qwen(nnx.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"padded": True, "offset": 0.0, "base": 1e6, "turned": "qk", "backwards": False, "act": "silu"},
        **{"residual": 1.0, "unbiased": ()},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        table, numbers = state["embed_tokens.weight"], range(config.num_hidden_layers)
        self.embed = nnx.Embed(*table.shape, rngs=nnx.Rngs(0))
        self.embed.embedding.value = jnp.asarray(table)
        self.blocks = listed([QwenBlock(state, f"layers.{number}", settings.at(number)) for number in numbers])
        self.s = settings.at()
        self.last = Gain(state["norm.weight"], 1e-5, offset=self.s.offset)

    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        x, seen = self.embed(input_ids), before(input_ids.shape[1])[None, None]
        seen = seen & (attention_mask[:, None, None] > 0) if self.s.padded else seen
        for block in self.blocks:
            x = block(x, seen)
        return self.last(x)


# Llama in NNX with fused projections


class FusedBlock(nnx.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        self.heads, self.s = config.num_attention_heads, s
        own = {part: state[f"{name}.self_attn.{part}_proj.weight"] for part in "qkvo"}
        qkv = np.concatenate([own[part] for part in "qkv"])
        if s.by_group:
            groups = [own[part].reshape(config.num_key_value_heads, -1, config.hidden_size) for part in "qkv"]
            qkv = np.concatenate(groups, 1).reshape(-1, config.hidden_size)
        feed = np.concatenate([state[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up")])
        fused = {"qkv": qkv, "out": own["o"], "gate_up": feed, "down": state[f"{name}.mlp.down_proj.weight"]}
        for part, weight in fused.items():
            setattr(self, part, dense({f"{part}.weight": weight}, part))
        self.norm1, self.norm2 = (
            Gain(state[f"{name}.{part}_layernorm.weight"], 1e-5, centred=s.centred)
            for part in ("input", "post_attention")
        )

    def __call__(self, x: Any, seen: Any) -> Any:
        s, wide = self.s, self.heads * 16
        fused = self.qkv(self.norm1(x) if s.norms else x)
        q, k, v = jnp.split(fused, [wide, (fused.shape[-1] + wide) // 2], -1)
        q, k, v = (part.reshape(*x.shape[:2], -1, 16) for part in (q, k, v))
        mixed = attend(rotated(q, 1e4), rotated(k, 1e4), v, seen, 0.25, tile=s.tile)
        x = x + self.out(mixed.reshape(x.shape))
        gate, up = jnp.split(self.gate_up(self.norm2(x)), 2, -1)
        return x + self.down(jax.nn.silu(gate) * up if s.gated else gate * jax.nn.silu(up))


class FusedLlama(nnx.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"ahead": 0, "tile": False, "centred": False, "gated": True, "norms": True, "by_group": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        self.table, numbers = nnx.Param(jnp.asarray(state["embed_tokens.weight"])), range(config.num_hidden_layers)
        self.layers = listed([FusedBlock(state, f"layers.{n}", config, settings.at(n)) for n in numbers])
        self.s = settings.at()
        self.norm = Gain(state["norm.weight"], 1e-5, centred=self.s.centred)

    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        x, seen = self.table.value[input_ids], before(input_ids.shape[1], self.s.ahead)
        for layer in self.layers:
            x = layer(x, seen & (attention_mask[:, None, None] > 0))
        return self.norm(x)


# Qwen 2's mixture of experts in NNX


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
        self.pre, self.mid = (
            Gain(state[f"{name}.{part}_layernorm.weight"], 1e-6) for part in ("input", "post_attention")
        )
        self.experts = Experts(state, f"{name}.mlp", config.num_experts, s)

    def __call__(self, x: Any) -> Any:
        s, h = self.s, self.pre(x)
        q, k, v = (part(h).reshape(*x.shape[:2], -1, self.size) for part in (self.q, self.k, self.v))
        q, k = rotated(q, 1e4), rotated(k, 1e4)
        if s.tiled:
            k, v = (jnp.tile(part, (1, 1, self.times, 1)) for part in (k, v))
        x = x + self.o(jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))
        return x + self.experts(self.mid(x), x)


class BatchedMoe(nnx.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"reshaped": False, "taken": 2, "normalised": False, "capacity": None, "routed_by": "normed"},
        **{"form": "einsum", "gated": True, "shared": "gated", "tiled": False, "jit": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        self.table, numbers = nnx.Param(jnp.asarray(state["embed_tokens.weight"])), range(config.num_hidden_layers)
        self.layers = listed([MoeLayer(state, f"layers.{n}", config, settings.at(n)) for n in numbers])
        self.norm, self.s = Gain(state["norm.weight"], 1e-6), settings.at()

    def encode(self, ids: Any) -> Any:
        x = self.table.value[ids]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def __call__(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return (nnx.jit(BatchedMoe.encode) if self.s.jit else BatchedMoe.encode)(self, input_ids)
