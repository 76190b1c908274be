"""A long prompt: the memory that a call takes, and its time, with and without gradient checkpointing.

`python -m tests.benchmarks.long_prompts --positions 2000`: a Llama of SmolLM2-135M's shape with random weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import embgrad
from embgrad.common.memory_meter import process_meter

MIB = 2**20


def smollm2(layers: int, attention: str) -> Any:
    """Return a Llama of the shape of SmolLM2-135M with random weights."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
    shape = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": layers}
    config = LlamaConfig(**shape, **heads, max_position_embeddings=8192, attn_implementation=attention)
    return LlamaForCausalLM(config).eval()


def measured(model: Any, ids: np.ndarray, outputs: int) -> dict[str, float]:
    """Return the peak and the processor seconds of an attribution of the last tokens."""
    meter = process_meter()
    meter.restart()
    before, _ = meter.read()
    start = time.process_time()
    embgrad.attribute_tokens(model, ids, slice(-outputs, None), progress=True)
    seconds = time.process_time() - start
    after = meter.read()[1]
    return {
        "taken, MiB": (after - before) / MIB,
        "seconds": seconds,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.long_prompts", description=__doc__)
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--outputs", type=int, default=2)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    parser.add_argument("--only", choices=["plain", "checkpointed"])
    options = parser.parse_args(arguments)
    ids = np.random.default_rng(0).integers(1, 49000, (1, options.positions))
    model = smollm2(options.layers, options.attention)
    for kind in ("plain", "checkpointed"):
        if options.only not in (None, kind):
            continue
        if kind == "checkpointed":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                model.gradient_checkpointing_enable()
        figures = measured(model, ids, options.outputs)
        sys.stdout.write(
            json.dumps({"kind": kind, **{name: round(value, 3) for name, value in figures.items()}}) + "\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
