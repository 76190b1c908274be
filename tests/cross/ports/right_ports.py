"""Ports that are right, and must agree: other seeds, kernels, layouts of weights, dtypes and batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from tests.cross.ports import plants_torch as plants
from tests.cross.ports.ports import Pair, pair
from tests.cross.ports.weights import both, changed, halves_interleaved


@dataclass(frozen=True)
class RightPort:
    """A pair without a fault.

    Attributes:
        make: builds the pair.
        floor: the dtype by whose rounding it may differ, "float32", "tfloat32" or "bfloat16".
    """

    name: str
    make: Callable[[], Pair]
    floor: str = "float32"


#: Each way of porting, with weights and ids of another seed than the faults have.
_PLAIN: Final = (
    *("bert-keras", "bert-flax", "bert-tensorflow", "bert-gluon", "bert-jax", "bert-torch", "bert-lm-flax"),
    *("roberta-keras", "roberta-flax", "roberta-tensorflow", "distilbert-keras", "distilbert-flax", "albert-keras"),
    *("albert-tensorflow", "gpt2-keras", "gpt2-flax", "gpt2-tensorflow", "gpt2-lm-keras", "llama-keras", "llama-flax"),
    *("llama-own", "llama-lm-keras", "llama3-keras", "mistral-keras", "mistral-own", "qwen2-keras", "qwen3-keras"),
    *("qwen3-own", "gemma2-keras", "gemma2-lm-own", "phi3-keras", "gpt-neox-keras", "t5-keras", "t5-flax"),
    *("t5-tensorflow", "bart-keras", "bart-tensorflow"),
)


def _of(way: str, seed: int = 0, side: str = "right") -> Pair:
    architecture, _, framework = way.rpartition("-")
    return pair(architecture, framework, seed, side)


def _with_fused_kernel(way: str) -> Pair:
    """Run the reference's attention by PyTorch's own kernel."""
    made = _of(way, 2)
    made.reference.set_attn_implementation("sdpa")
    return made


def _in_double(way: str, *sides: str) -> Pair:
    """Compute a side in float64."""
    made = _of(way, 3)
    for side in sides:
        getattr(made, side).double()
    return made


def _interleaved(way: str) -> Pair:
    """Store rows of queries and keys in turn, and turn neighbours: the other layout, in both places."""
    made = _of(way, 4)
    both(
        changed(r"attention\.q\.weight", halves_interleaved(4, 0)),
        changed(r"attention\.k\.weight", halves_interleaved(2, 0)),
        plants.setting("rotary_(query|key)", layout="interleaved"),
    )(made.port)
    return made


def _inner_reordered(way: str, rows: str, columns: str) -> Pair:
    """Store the units of the feed-forward part in another order, in both of its matrices."""
    made = _of(way, 5)

    def order(axis: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda value: np.take(value, np.random.default_rng(0).permutation(value.shape[axis]), axis)

    both(changed(rows, order(0)), changed(columns, order(1)))(made.port)
    return made


def _of_rounded(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Multiply what is rounded to the ten bits of TF32."""
    return nn.functional.linear(_ten_bits(x), _ten_bits(module.weight), module.bias)


def _ten_bits(x: torch.Tensor) -> torch.Tensor:
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)
    return x + (rounded - x).detach()


def _rounded(way: str, pattern: str) -> Pair:
    made = _of(way, 6)
    plants.rewritten(pattern, _of_rounded)(made.port)
    return made


def _in_bfloat16(way: str) -> Pair:
    made = _of(way, 7)
    made.port.bfloat16()
    return made


def _unpadded(way: str) -> Pair:
    """Give both a batch without padding: the first example alone."""
    made = _of(way, 8)
    return replace(made, batch=made.batch[:1], port_batch=made.port_batch[:1])


def _listed() -> list[RightPort]:
    listed = [RightPort(way, functools.partial(_of, way, 1)) for way in _PLAIN]
    for way in ("bart-keras", "llama-keras", "gpt2-flax", "mistral-own"):
        listed.append(RightPort(f"{way}-fused-kernel", functools.partial(_with_fused_kernel, way)))
    listed += [
        RightPort("bert-copy-port-in-double", functools.partial(_in_double, "bert-copy", "port")),
        RightPort("llama-own-reference-in-double", functools.partial(_in_double, "llama-own", "reference")),
        RightPort("llama-own-interleaved-in-both-places", functools.partial(_interleaved, "llama-own")),
        RightPort("llama-own-inner-reordered",
            functools.partial(_inner_reordered, "llama-own", r"feed\.(gate|up)\.weight", r"feed\.down\.weight")),
        RightPort("llama-own-padded-on-the-left", functools.partial(_of, "llama-own", 9, "left")),
        RightPort("bert-flax-unpadded", functools.partial(_unpadded, "bert-flax")),
        RightPort("bert-copy-in-tfloat32", functools.partial(_rounded, "bert-copy", r"query|key|value|dense"),
            "tfloat32"),
        RightPort("llama-own-in-tfloat32", functools.partial(_rounded, "llama-own", r"[qkvo]|gate|up|down"),
            "tfloat32"),
        RightPort("llama-copy-in-bfloat16", functools.partial(_in_bfloat16, "llama-copy"), "bfloat16"),
    ]  # fmt: skip
    return listed


#: The right ports by their names.
RIGHT_PORTS: Final = {port.name: port for port in _listed()}
