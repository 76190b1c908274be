"""What is measured: the modes, the models and batches, and the checkpoints drawn for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.checkpoints.load_bert import bert_names

#: Each way of running a model, and the framework that it is in.
MODES: Final = {
    "PyTorch": "torch",
    "PyTorch, compile=True": "torch",
    "TensorFlow, eager": "tensorflow",
    "TensorFlow, compile=True": "tensorflow",
    "TensorFlow, SavedModel": "tensorflow",
    "Gluon, imperative": "gluon",
    "Gluon, hybridised": "gluon",
    "Gluon, SymbolBlock": "gluon",
    "NumPy, the reference": "reference",
}

#: What is measured unless it is said; the reference, which needs none of them, on request.
FRAMEWORKS: Final = ("torch", "tensorflow", "gluon")

#: Examples and positions at MiniLM's size, and the size that the limits are about.
SIZES: Final = ((1, 16), (4, 64), (16, 128), (32, 256))
QUICK_SIZES: Final = SIZES[:2]
LIMIT_SIZE: Final = (16, 128)

#: How many processes measure that size, and how many times longer than other sizes each does: limits are about hundredths, and
#: one graph takes up to a tenth more or less from process to process.
PROCESSES: Final = 3
LONGER: Final = 5

#: The ways to each example's own table.
ONCE: Final = "one backward pass, and per_example()"
SPLIT: Final = "split=True, a backward pass an example"
SPLIT_BY_HAND: Final = "by hand, a backward pass an example"

#: The position that an objective reads that reads one only.
POSITION: Final = 3

#: The modes that the smaller questions are asked in: one a framework.
PLAIN: Final = ("PyTorch", "TensorFlow, eager", "Gluon, imperative", "NumPy, the reference")


@dataclass(frozen=True)
class Case:
    """One model on one batch.

    Attributes:
        checkpoint: the folder of a BERT.
        examples: of the batch; so is `positions`.
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

    def asked(self, pooled: str = "pooled", sequence: str = "sequence") -> embgrad.Objective:
        """The objective, with the names that the model's outputs go by."""
        if self.objective == "pooled":
            return embgrad.Sum(output=pooled)
        return embgrad.Sum(output=sequence, position=POSITION)

    def describe(self) -> dict[str, Any]:
        return asdict(self)


def drawn_bert(folder: Path, *, layers: int, dim: int, vocab: int) -> str:
    """A checkpoint of a BERT with random weights; its path."""
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
            # Not all ones: the sum of what a plain norm gives is always the same, so that its gradient is only rounding.
            yield name, random.uniform(0.5, 1.5, dim).astype(np.float32)
        elif name.endswith("bias"):
            yield name, np.zeros(outputs, np.float32)
        else:
            yield name, random.normal(0, 0.05, shape).astype(np.float32)
