"""keras-hub's models with one set of weights on each Keras backend: the same plain call gives the same values, and a bisection
with a Hugging Face BERT in PyTorch names what differs.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import embgrad
from tests.cross.keras.bisecting import CHANGES, ROLES, changes_on
from tests.cross.keras.worker import BACKENDS, COMPARED, OFTEN, bisected, file_of, run, weights_of
from tests.support import keras_hub_zoo as zoo
from tests.support.sampling import slow


def most(name: str) -> float:
    """Return the largest difference of a model; Keras's own operations differ most in this one, by 2e-7 in float64 already."""
    return 1e-5 if name.startswith("Roberta") else 5e-6


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    for name in COMPARED:
        zoo.save(zoo.build(name), weights_of(folder, name))
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small BERT with random weights."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = BertModel(BertConfig(**sizes, intermediate_size=48, max_position_embeddings=20, initializer_range=0.15))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    path: Path = tmp_path_factory.mktemp("bert")
    model.save_pretrained(path, safe_serialization=True)
    return path


@pytest.fixture(scope="module")
def results(weights: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of results, made by a process for each backend, which also checks products of a layer (see `products`)."""
    folders = {backend: tmp_path_factory.mktemp(backend) for backend in BACKENDS}
    for backend, folder in folders.items():
        run(backend, weights, checkpoint, folder)
    return folders


def found(results: dict[str, Path], backend: str, fault: str) -> dict[str, Any]:
    """Return what the bisection with a fault found on a Keras backend."""
    told: dict[str, Any] = json.loads(bisected(results[backend]).read_text(encoding="utf-8"))[fault]
    return told


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize(
    ("name", "side"), [case if case in OFTEN else slow(case) for case in itertools.product(COMPARED, zoo.SIDES)]
)
def test_the_same_values_on_each_backend(results: dict[str, Path], backend: str, name: str, side: str | None) -> None:
    for role in sorted(zoo.MODELS[name].roles):
        first, other = (embgrad.load(file_of(results[one], name, side, role)) for one in (BACKENDS[0], backend))
        assert (first.provenance["backend"], other.provenance["backend"]) == (BACKENDS[0], backend)
        np.testing.assert_array_equal(other.ids, first.ids)
        assert first.mask is not None
        assert other.values.dtype == first.values.dtype == np.float32
        # What attends to nothing, as masked positions on the left do in Llama, is not the same in each Keras backend.
        real = first.mask == 1
        for actual, expected in (
            (other.values, first.values),
            (other.activations[real], first.activations[real]),
            (other.objective, first.objective),
        ):
            assert actual.shape == expected.shape
            assert np.abs(actual - expected).max() <= most(name) * np.abs(expected).max(), role
        assert embgrad.compare(first, other).agrees, role


@pytest.mark.parametrize(("name", "side"), [OFTEN[0], OFTEN[-1]])
def test_the_weights_make_the_difference(results: dict[str, Path], name: str, side: str | None) -> None:
    """Models that share no weights differ by far more than the limit, so that the comparison could fail."""
    word = embgrad.load(file_of(results[BACKENDS[0]], name, side, "word"))
    model = zoo.build(name)
    path = "token_embedding/embeddings"
    zoo.set_weights(model, {**zoo.weights(model), path: zoo.weights(model)[path][::-1]})
    batch = zoo.batch(model, side)
    other = embgrad.gradients(model, batch, zoo.objective(name, batch["padding_mask"]))
    assert np.abs(other.values - word.values).max() > 0.1 * np.abs(word.values).max()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["", "turned", "after all"])
def test_the_same_weights_agree_at_every_role(results: dict[str, Path], backend: str, name: str) -> None:
    result = found(results, backend, name)
    assert result["first"] is None
    assert result["forward"] < 3e-6
    steps = [step for step in result["steps"] if step in ROLES]
    tables = ("position", "type")  # each model looks them up in its own order
    assert sorted(steps[1:3]) == sorted(tables)
    assert [step for step in steps if step not in tables] == [role for role in ROLES if role not in tables]


@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        (backend, fault) if fault in changes_on(backend) else slow((backend, fault))
        for backend, fault in itertools.product(BACKENDS, CHANGES)
    ],
)
def test_a_change_is_found_and_named(results: dict[str, Path], backend: str, fault: str) -> None:
    """Keras's dense layers apply the activation themselves, which is no difference."""
    result = found(results, backend, fault)
    assert result["direction"] == "forward"
    if fault == "activation":  # as keras-hub's own conversion of a checkpoint approximates GELU
        assert (result["first"], result["differing"]) == ("layer.1", [])
        assert (
            "the activation is GELU by the error function in a and GELU by the tanh approximation in b"
            in result["text"]
        )
        return
    assert result["differing"] == [fault]
    assert result["module"] == fault.rpartition(".")[0]
    if fault.startswith("encoder.layer."):
        assert result["first"] == f"layer.{fault.split('.')[2]}"
