"""A decoder written anew in PyTorch, as people port one: each setting is an attribute of a module, and so can be got wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn

#: Functions by the names of Hugging Face's configurations, and others that a port may take in their place.
ACTIVATIONS: Final[Mapping[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_pytorch_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": nn.functional.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": nn.functional.mish,
}


class Norm(nn.Module):
    """A norm by the root mean square, or one with mean.

    Attributes:
        offset: what is added to the weight.
        kind: "rms", "layer" or "none".
        dtype: in which it computes.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float, offset: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.epsilon, self.offset, self.kind, self.dtype = epsilon, offset, "rms", torch.float32

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "none":
            return x
        given = x.to(self.dtype)
        if self.kind == "layer":
            given = given - given.mean(-1, keepdim=True)
        scaled = given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return scaled.to(x.dtype) * (self.weight + self.offset)


class Rotary(nn.Module):
    """Rotary positions.

    Attributes:
        layout: "halves" or "interleaved".
        share: of a head's entries that are rotated.
        factor: by which positions are divided.
        start: the first position.
        used: whether anything is rotated.
    """

    def __init__(self, base: float) -> None:
        super().__init__()
        self.base, self.layout, self.share, self.factor, self.start, self.used = base, "halves", 1.0, 1.0, 0, True
        self.frequencies: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.used:
            return x
        size = int(x.shape[-1] * self.share)
        turned, kept = x[..., :size], x[..., size:]
        frequencies = self.base ** -(torch.arange(0, size, 2) / size) if self.frequencies is None else self.frequencies
        angles = (torch.arange(x.shape[1]) + self.start)[:, None] / self.factor * frequencies
        cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
        if self.layout == "halves":
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)
        else:
            a, b = turned[..., ::2], turned[..., 1::2]
            turned = torch.stack([a * cosine - b * sine, b * cosine + a * sine], -1).flatten(-2)
        return torch.cat([turned, kept], -1)


class Core(nn.Module):
    """Attention of queries to keys.

    Attributes:
        window: how many positions a query sees, its own among them; None for all before it.
        ahead: how many positions after its own a query sees; -1 where it does not see its own. None for all.
        padded: whether padding is masked.
        grouping: "repeat", where neighbouring queries share a key, or "tile".
        rate: of dropout, always on.
    """

    def __init__(self, scale: float, cap: float | None, window: int | None) -> None:
        super().__init__()
        self.scale, self.cap, self.window = scale, cap, window
        self.ahead: int | None = 0
        self.padded, self.grouping, self.rate = True, "repeat", 0.0

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        times = query.shape[2] // key.shape[2]
        if self.grouping == "repeat":
            key, value = key.repeat_interleave(times, 2), value.repeat_interleave(times, 2)
        else:
            key, value = key.repeat(1, 1, times, 1), value.repeat(1, 1, times, 1)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * self.scale
        if self.cap is not None:
            scores = torch.tanh(scores / self.cap) * self.cap
        distance = torch.arange(query.shape[1])[:, None] - torch.arange(query.shape[1])
        seen = torch.ones_like(distance, dtype=torch.bool) if self.ahead is None else distance >= -self.ahead
        if self.window is not None:
            seen = seen & (distance < self.window)
        seen = seen[None, None]
        if self.padded and mask is not None:
            seen = seen & mask[:, None, None].bool()
        shares = torch.softmax(scores.masked_fill(~seen, torch.finfo(scores.dtype).min), -1)
        shares = nn.functional.dropout(shares, self.rate, training=True)
        return torch.einsum("bhqk,bkhd->bqhd", shares, value)


class Attention(nn.Module):
    """Attention with its matrices, in which queries and keys may have norms."""

    def __init__(self, heads: int, rotary: Rotary, core: Core) -> None:
        super().__init__()
        self.heads = heads
        self.rotary_query, self.rotary_key, self.core = rotary, Rotary(rotary.base), core
        self.rotary_key.frequencies = rotary.frequencies
        self.query_norm: Norm | None = None
        self.key_norm: Norm | None = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        size = self.q.out_features // self.heads
        query, key, value = (part(x).unflatten(-1, (-1, size)) for part in (self.q, self.k, self.v))
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        seen = self.core(self.rotary_query(query), self.rotary_key(key), value, mask)
        return self.o(seen.flatten(-2))


class Feed(nn.Module):
    """The gated feed-forward part.

    Attributes:
        side: "gate" or "up", on which the activation acts.
    """

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation, self.side = activation, "gate"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate(x), self.up(x)
        act = ACTIVATIONS[self.activation]
        return self.down(act(gate) * up if self.side == "gate" else gate * act(up))


class Block(nn.Module):
    """A layer.

    Attributes:
        norm_first: whether the norms stand before the parts, or after the sums.
        scale: by which what is added to the residual is multiplied.
        keeps: whether the residual of each part is kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm_first, self.scale, self.keeps = True, 1.0, (True, True)
        self.attention_after: Norm | None = None
        self.feed_after: Norm | None = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        if not self.norm_first:
            x = self.norm(x + self.attention(x, mask) * self.scale)
            return self.feed_norm(x + self.feed(x) * self.scale)
        added = self.attention(self.norm(x), mask)
        added = added if self.attention_after is None else self.attention_after(added)
        x = (x if self.keeps[0] else 0) + added * self.scale
        added = self.feed(self.feed_norm(x))
        added = added if self.feed_after is None else self.feed_after(added)
        return (x if self.keeps[1] else 0) + added * self.scale


class OwnDecoder(nn.Module):
    """A decoder.

    Attributes:
        scale: by which the looked-up rows are multiplied.
        shift: what is added to each id.
        logit_scale, logit_cap: of the logits, where there is a head.
        order: the numbers of the layers in the order in which they run; None for all of them.
    """

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(table.detach().clone(), freeze=False)
        self.layers = nn.ModuleList()
        self.head: nn.Linear | None = None
        self.scale, self.shift, self.logit_scale = 1.0, 0, 1.0
        self.logit_cap: float | None = None
        self.order: tuple[int, ...] | None = None

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.embed((input_ids + self.shift) % self.embed.num_embeddings) * self.scale
        for number in range(len(self.layers)) if self.order is None else self.order:
            x = self.layers[number](x, attention_mask)
        x = self.norm(x)
        if self.head is None:
            return {"last_hidden_state": x}
        logits = self.head(x) * self.logit_scale
        return {"logits": logits if self.logit_cap is None else torch.tanh(logits / self.logit_cap) * self.logit_cap}


def own_decoder(first: Any) -> OwnDecoder:
    """Return a reference written anew: Llama, Mistral, Qwen 2 and 3, Gemma 2 or Phi-3, with or without a head."""
    config = first.config
    source = first.model if hasattr(first, "lm_head") else first
    is_gemma = config.model_type == "gemma2"
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    scale = (config.query_pre_attn_scalar if is_gemma else size) ** -0.5
    made = OwnDecoder(source.embed_tokens.weight)
    made.scale = math.sqrt(config.hidden_size) if is_gemma else 1.0

    def norm(of: Any) -> Norm:
        return Norm(of.weight, config.rms_norm_eps, 1.0 if is_gemma else 0.0)

    for layer in source.layers:
        full = getattr(layer, "attention_type", "") == "full_attention"
        window = None if full else getattr(config, "sliding_window", None)
        rotary = Rotary(config.rope_theta)
        if getattr(config, "rope_scaling", None) is not None:
            rotary.frequencies = source.rotary_emb.inv_freq.clone()
        core = Core(scale, getattr(config, "attn_logit_softcapping", None), window)
        block, attention, feed = Block(), Attention(config.num_attention_heads, rotary, core), _feed(layer.mlp, config)
        keys = config.num_key_value_heads * size
        for name, linear in _projections(layer.self_attn, config.num_attention_heads * size, keys).items():
            setattr(attention, name, linear)
        if hasattr(layer.self_attn, "q_norm"):
            attention.query_norm, attention.key_norm = norm(layer.self_attn.q_norm), norm(layer.self_attn.k_norm)
        block.norm, block.attention, block.feed = norm(layer.input_layernorm), attention, feed
        if is_gemma:
            block.attention_after, block.feed_after = norm(layer.post_attention_layernorm), None
            block.feed_norm = norm(layer.pre_feedforward_layernorm)
            block.feed_after = norm(layer.post_feedforward_layernorm)
        else:
            block.feed_norm = norm(layer.post_attention_layernorm)
        made.layers.append(block)
    made.norm = norm(source.norm)
    if hasattr(first, "lm_head"):
        made.head = _linear(first.lm_head.weight, None)
        if config.tie_word_embeddings:
            made.head.weight = made.embed.weight
        made.logit_cap = getattr(config, "final_logit_softcapping", None)
    return made.eval()


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight.data = weight.detach().clone()
    if bias is not None:
        linear.bias.data = bias.detach().clone()
    return linear


def _feed(source: Any, config: Any) -> Feed:
    name = "hidden_activation" if config.model_type == "gemma2" else "hidden_act"
    feed = Feed(getattr(config, name))
    fused = hasattr(source, "gate_up_proj")
    gate, up = source.gate_up_proj.weight.chunk(2) if fused else (source.gate_proj.weight, source.up_proj.weight)
    feed.gate, feed.up, feed.down = _linear(gate, None), _linear(up, None), _linear(source.down_proj.weight, None)
    return feed


def _projections(source: Any, queries: int, keys: int) -> dict[str, nn.Linear]:
    if hasattr(source, "qkv_proj"):
        query, key, value = source.qkv_proj.weight.split([queries, keys, keys])
        made = {"q": _linear(query, None), "k": _linear(key, None), "v": _linear(value, None)}
    else:
        parts = {"q": source.q_proj, "k": source.k_proj, "v": source.v_proj}
        made = {name: _linear(part.weight, part.bias) for name, part in parts.items()}
    return {**made, "o": _linear(source.o_proj.weight, None)}
