"""Graphs that PyTorch's exporters write: the same points by the same names, with the same values, as in PyTorch."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import embgrad_onnx
import numpy as np
import pytest
import torch
import transformers
from torch.export import Dim

import embgrad
from embgrad.backend.protocol import Request
from embgrad.backend.registry import bind
from embgrad.engine.weights import weights_of

SMALL = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 32,
}  # fmt: skip
IDS = np.random.default_rng(0).integers(1, 60, (3, 7))
MASK = np.array([[1] * 7, [1] * 5 + [0] * 2, [1] * 7])


class Whole(torch.nn.Module):
    """A model that takes ids and mask, and returns its first output: the exporters take no model outputs with defaults."""

    def __init__(self, text: Any) -> None:
        super().__init__()
        self.text = text

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.text(input_ids=input_ids, attention_mask=attention_mask)[0]


MODELS = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SMALL), add_pooling_layer=False),
    "albert": lambda: transformers.AlbertModel(
        transformers.AlbertConfig(**SMALL, embedding_size=8), add_pooling_layer=False
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            **{"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "use_cache": False},
            bos_token_id=1,
            eos_token_id=2,
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=1, use_cache=False)
    ),
    "phi3": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(
            **SMALL, num_key_value_heads=1, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2
        )
    ),
    "t5": lambda: transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    ),
}


@functools.cache
def built(name: str) -> Any:
    torch.manual_seed(0)
    return Whole(MODELS[name]()).eval()


def exported(model: Any, path: Path, *, dynamo: bool) -> Any:
    ids = torch.randint(1, 60, (2, 5))
    names, args = ["input_ids", "attention_mask"], (ids, torch.ones_like(ids))
    axes: dict[str, Any]
    if dynamo:
        axes = {"dynamic_shapes": {name: {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for name in names}, "verbose": False}
    else:
        axes = {"dynamic_axes": {name: {0: "example", 1: "position"} for name in names}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing, and of the older exporter
        torch.onnx.export(model, args, str(path), input_names=names, dynamo=dynamo, **axes)
    return embgrad_onnx.load(path)


@pytest.mark.parametrize(
    ("name", "dynamo"),
    [*((name, False) for name in MODELS), ("albert", True), ("phi3", True)],
    ids=lambda value: {True: "dynamo", False: "torchscript"}.get(value, value),
)
def test_a_graph_has_the_points_and_values_of_its_model(name: str, dynamo: bool, tmp_path: Path) -> None:
    model, batch = built(name), embgrad.TokenBatch(IDS, MASK)
    graph = exported(model, tmp_path / "model.onnx", dynamo=dynamo)
    own = {point.key: point for point in bind(model).points(batch)}
    points = {point.key: point for point in bind(graph).points(batch)}
    renamed = {"text.shared#0": "text.encoder.embed_tokens#0"}  # T5's table, by the module that looks up in it
    missing = {key for key in own if renamed.get(key, key) not in points}
    # Dropout is in no graph, and rotary positions do not depend on the hidden states that their module is given.
    assert all("drop" in key or key.endswith("rotary_emb:input#0") for key in missing), missing
    assert [point.key for point in points.values() if "layer.-1" in point.roles] == [
        point.key for point in own.values() if "layer.-1" in point.roles
    ]
    pairs = {key: renamed.get(key, key) for key in own if key not in missing}
    ours = bind(model).run(batch, Request(tuple(pairs), pullback=False)).points
    theirs = bind(graph).run(batch, Request(tuple(pairs.values()), pullback=False)).points
    for key, other in pairs.items():
        expected = ours[key].activation
        assert theirs[other].activation.shape == expected.shape == points[other].shape, key
        np.testing.assert_allclose(theirs[other].activation, expected, atol=2e-5 * np.abs(expected).max(), err_msg=key)
    objective = embgrad.Sum()
    np.testing.assert_allclose(
        embgrad.evaluate(graph, batch, objective), embgrad.evaluate(model, batch, objective), rtol=1e-4, atol=1e-4
    )


def test_every_matrix_of_a_model_is_in_its_graph(tmp_path: Path) -> None:
    model = built("bert")
    graph = exported(model, tmp_path / "model.onnx", dynamo=False)
    found = {weight.module: weight.get() for weight in weights_of(graph) if weight.is_matrix}
    for weight in weights_of(model):
        if weight.is_matrix:
            own = weight.get()
            other = found[weight.module]
            np.testing.assert_array_equal(
                other if other.shape == own.shape and "embed" in weight.name else other.T, own
            )
