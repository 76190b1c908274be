"""A port written by hand as an engine in another language has it: Llama in loops, which writes a dump with names of its own."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.cross.ports import architectures
from tests.cross.ports.by_hand import State
from tests.cross.ports.own_settings import Settings

#: The engine's names of a layer's tensors, and those of transformers.
NAMES = {
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{"attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Return rows in the order in which neighbours are turned together, as converters write them for such engines."""
    split = values.reshape(heads, 2, values.shape[0] // heads // 2, -1)
    return split.swapaxes(1, 2).reshape(values.shape)


def in_blocks(values: np.ndarray) -> np.ndarray:
    """Return a matrix as it comes out of 8 bits with a scale in float16 for 32 entries of a row."""
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    return (np.round(blocks / scales) * scales).reshape(values.shape).astype(np.float32)


def converted(state: State, config: Any, settings: Settings) -> dict[str, np.ndarray]:
    """Return a checkpoint under the engine's names."""
    s, heads, groups = settings.at(), config.num_attention_heads, config.num_key_value_heads
    tensors = {"token_embd": state["model.embed_tokens.weight"], "output_norm": state["model.norm.weight"]}
    for n in range(config.num_hidden_layers):
        for own, theirs in NAMES.items():
            tensors[f"blk.{n}.{own}"] = state[f"model.layers.{n}.{theirs}.weight"]
        if "q" in s.permuted:
            tensors[f"blk.{n}.attn_q"] = permuted(tensors[f"blk.{n}.attn_q"], heads)
        if "k" in s.permuted:
            tensors[f"blk.{n}.attn_k"] = permuted(tensors[f"blk.{n}.attn_k"], s.key_heads or groups)
    stored = {
        "float32": lambda values: values,
        "float16": lambda values: values.astype(np.float16).astype(np.float32),
        "q8_0": in_blocks,
    }[s.stored]
    return {name: stored(value) if value.ndim == 2 and "blk" in name else value for name, value in tensors.items()}


class Engine:
    """Evaluates one text at a time, without padding."""

    def __init__(self, tensors: Mapping[str, np.ndarray], config: Any, settings: Settings) -> None:
        self.tensors, self.config, self.settings = tensors, config, settings
        self.found: dict[str, np.ndarray] = {}

    def matmul(self, name: str, x: np.ndarray) -> np.ndarray:
        self.found[f"{name}:input"] = x
        self.found[name] = x @ self.tensors[name].T
        return self.found[name]

    def norm(self, name: str, x: np.ndarray, s: Any) -> np.ndarray:
        self.found[f"{name}:input"] = x
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(s.eps))
        self.found[name] = x * scale * self.tensors[name]
        return self.found[name]

    def rope(self, x: np.ndarray, s: Any) -> np.ndarray:
        """Return turned heads; x is (position, head, feature)."""
        turned, size = x.copy(), x.shape[-1]
        for pair in range(size // 2):
            angle = np.arange(len(x), dtype=np.float32)[:, None] * np.float32(1e4 ** (-2 * pair / size))
            first, second = (2 * pair, 2 * pair + 1) if s.neighbours else (pair, pair + size // 2)
            turned[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
            turned[..., second] = x[..., first] * np.sin(angle) + x[..., second] * np.cos(angle)
        return turned

    def attention(self, x: np.ndarray, prefix: str, s: Any) -> np.ndarray:
        heads, groups = self.config.num_attention_heads, self.config.num_key_value_heads
        q, k, v = (
            self.matmul(f"{prefix}.attn_{part}", x).reshape(len(x), count, -1)
            for part, count in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = self.rope(q, s), self.rope(k, s)
        out = np.zeros_like(q)
        for head in range(heads):
            group = head % groups if s.modulo else head // (heads // groups)
            for at in range(len(x)):
                last = at + 1
                scores = k[:last, group] @ q[at, head] * np.float32(q.shape[-1] ** -0.5)
                weights = np.exp(scores - scores.max())
                out[at, head] = (weights / weights.sum()) @ v[:last, group]
        return self.matmul(f"{prefix}.attn_output", out.reshape(len(x), -1))

    def evaluate(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return the tensors of a text by their names, in the order in which they are computed."""
        self.found = {"token_embd": self.tensors["token_embd"][ids]}
        x = self.found["token_embd"]
        for n in range(self.config.num_hidden_layers):
            s, prefix = self.settings.at(n), f"blk.{n}"
            x = x + self.attention(self.norm(f"{prefix}.attn_norm", x, s), prefix, s)
            h = self.norm(f"{prefix}.ffn_norm", x, s)
            gate, up = self.matmul(f"{prefix}.ffn_gate", h), self.matmul(f"{prefix}.ffn_up", h)
            acted, other = (gate, up)
            x = x + self.matmul(f"{prefix}.ffn_down", acted / (1 + np.exp(-acted)) * other)
            self.found[f"{prefix}.out"] = x
        s = self.settings.at()
        x = self.norm("output_norm", x, s) if s.final else x
        self.found["output"] = x @ self.tensors["token_embd"].T
        return self.found


def dumped_llama(state: State, config: Any, settings: Settings) -> Path:
    """Return the folder of a dump."""
    tensors, batch = converted(state, config, settings), architectures.token_batch("llama-lm")
    engine, (count, length) = Engine(tensors, config, settings), batch.ids.shape
    arrays: dict[str, np.ndarray] = {}
    for row in range(count):
        real = int(batch.mask.sum(1)[row])
        for name, values in engine.evaluate(batch.ids[row, :real]).items():
            whole = arrays.setdefault(f"values/{name}", np.zeros((count, length, values.shape[-1]), np.float32))
            whole[row, :real] = values
    points = [{"name": name.removeprefix("values/")} for name in arrays]
    roles = {"token_embd": "word", **{f"blk.{n}.out": f"layer.{n}" for n in range(config.num_hidden_layers)}}
    points = [{**point, **({"roles": [roles[point["name"]]]} if point["name"] in roles else {})} for point in points]
    arrays["ids/token_embd"] = batch.ids
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    save_file(arrays, folder / "sites.safetensors")
    named = {f"{name}.weight": np.ascontiguousarray(value) for name, value in tensors.items()}
    save_file(named, folder / "weights.safetensors")
    manifest = {"embgrad-dump": 1, "ids": batch.ids.tolist(), "mask": batch.mask.tolist(), "dtype": "float32"}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "points": points}), encoding="utf-8")
    return folder


dumped_llama.usual = {  # type: ignore[attr-defined]
    **{"permuted": "", "key_heads": None, "stored": "float32", "eps": 1e-5, "neighbours": False, "modulo": False},
    **{"final": True},
}
