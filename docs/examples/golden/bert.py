"""A BERT of two layers whose weights are the same on every machine and with every version of every framework."""

import json
import os
from pathlib import Path

import numpy as np
import safetensors.numpy

VOCAB, DIM, INNER, LAYERS, POSITIONS = 32, 32, 64, 2, 16

#: What may be changed in the model, by the environment variable EXAMPLE_CHANGE, to see the tests fail.
CHANGES = {
    "": {},
    "gelu": {"hidden_act": "gelu_new"},  # computed with tanh and not with erf
    "layer-norm-epsilon": {"layer_norm_eps": 1e-5},
}


def write_checkpoint(folder: Path) -> Path:
    """Write the model as a checkpoint folder in Hugging Face's format, and return the folder."""
    config = {
        "model_type": "bert",
        "vocab_size": VOCAB,
        "hidden_size": DIM,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        **CHANGES[os.environ.get("EXAMPLE_CHANGE", "")],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    safetensors.numpy.save_file(_weights(), folder / "model.safetensors")
    return folder


def _weights() -> dict[str, np.ndarray]:
    shapes = {
        "embeddings.word_embeddings.weight": (VOCAB, DIM),
        "embeddings.position_embeddings.weight": (POSITIONS, DIM),
        "embeddings.token_type_embeddings.weight": (2, DIM),
        **_linear("pooler.dense", DIM, DIM),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes.update(_linear(f"{name}.{part}", DIM, DIM))
        shapes.update(_linear(f"{name}.intermediate.dense", INNER, DIM))
        shapes.update(_linear(f"{name}.output.dense", DIM, INNER))
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
    for norm in norms:
        shapes.update({f"{norm}.weight": (DIM,), f"{norm}.bias": (DIM,)})

    # NumPy promises that RandomState gives the same integers for ever, which frameworks' own generators do not; multiples
    # of 1/256 are exact in every floating type.
    random = np.random.RandomState(0)
    weights = {name: (random.randint(-64, 65, shape) / 256).astype(np.float32) for name, shape in shapes.items()}
    return {name: value + np.float32("LayerNorm.weight" in name) for name, value in weights.items()}


def _linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
