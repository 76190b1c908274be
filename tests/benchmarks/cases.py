"""The modes, models, batches and random checkpoints of the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.checkpoints.load_bert import bert_names

#: Each way of running a model, and its framework.
MODES: Final = {
    "PyTorch": "torch",
    "TensorFlow, eager": "tensorflow",
    "TensorFlow, compile=True": "tensorflow",
    "TensorFlow, SavedModel": "tensorflow",
    "Gluon, imperative": "gluon",
    "Gluon, hybridised": "gluon",
    "Gluon, SymbolBlock": "gluon",
    "JAX": "jax",
    "JAX, compile=True": "jax",
    "NumPy, the reference": "reference",
}

#: The frameworks that are measured by default.
FRAMEWORKS: Final = ("torch", "tensorflow", "gluon", "jax")

#: Examples and positions for MiniLM, and the size of the limits.
SIZES: Final = ((1, 16), (4, 64), (16, 128), (32, 256))
QUICK_SIZES: Final = SIZES[:2]
LIMIT_SIZE: Final = (16, 128)

#: The number of processes that measure that size, and the factor of their duration: limits are hundredths, and the time of one
#: graph varies by a tenth between processes.
PROCESSES: Final = 3
LONGER: Final = 5

#: The ways to compute each example's own table.
ONCE: Final = "one backward pass, and per_example()"
SPLIT: Final = "split=True, a backward pass an example"
SPLIT_BY_HAND: Final = "by hand, a backward pass an example"

#: The position of an objective that reads one position.
POSITION: Final = 3

#: The modes of the smaller measurements, one per framework.
PLAIN: Final = ("PyTorch", "TensorFlow, eager", "Gluon, imperative", "NumPy, the reference")


@dataclass(frozen=True)
class Case:
    """One model on one batch.

    Attributes:
        checkpoint: the folder of a BERT.
        objective: "pooled", the sum of the pooled output, or "position", that of the last layer at one position.
    """

    checkpoint: str
    examples: int
    positions: int
    objective: str = "pooled"

    def config(self) -> Any:
        return json.loads((Path(self.checkpoint) / "config.json").read_text(encoding="utf-8"))

    def batch(self, convention: str = "huggingface") -> embgrad.TokenBatch:
        shape = (self.examples, self.positions)
        ids = np.random.default_rng(0).integers(1000, self.config()["vocab_size"] - 1000, shape)
        return embgrad.TokenBatch(ids, np.ones(shape), np.zeros(shape), convention=convention)

    def embgrad_objective(self, pooled: str = "pooled", sequence: str = "sequence") -> embgrad.Objective:
        if self.objective == "pooled":
            return embgrad.Sum(output=pooled)
        return embgrad.Sum(output=sequence, position=POSITION)


def drawn_bert(folder: Path, *, layers: int, dim: int, vocab: int) -> str:
    config = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": dim,
        "intermediate_size": 4 * dim,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "num_attention_heads": max(2, dim // 32),
        "num_hidden_layers": layers,
        "type_vocab_size": 2,
        "vocab_size": vocab,
    }
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(dict(_weights(config)), folder / "model.safetensors")
    return str(folder)


def _weights(config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    random = np.random.default_rng(1)
    dim, inner = config["hidden_size"], config["intermediate_size"]
    tables = {
        "word_embeddings": config["vocab_size"],
        "position_embeddings": config["max_position_embeddings"],
        "token_type_embeddings": config["type_vocab_size"],
    }
    for name in bert_names(config["num_hidden_layers"]):
        table = next((rows for part, rows in tables.items() if part in name), None)
        outputs = inner if "intermediate.dense" in name else dim
        inputs = inner if name.endswith("output.dense.weight") and "attention" not in name else dim
        shape = (table, dim) if table else (outputs, inputs)
        if name.endswith("LayerNorm.weight"):
            # Not all ones: the sum of a plain norm's output is constant, so that its gradient is only rounding.
            yield name, random.uniform(0.5, 1.5, dim).astype(np.float32)
        elif name.endswith("bias"):
            yield name, np.zeros(outputs, np.float32)
        else:
            yield name, random.normal(0, 0.05, shape).astype(np.float32)
