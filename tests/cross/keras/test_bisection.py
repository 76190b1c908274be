"""Bisection between a Hugging Face BERT in PyTorch and keras-hub's BERT on each Keras backend, with the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from tests.cross.keras.bisecting import FAULTS, ROLES
from tests.cross.keras.worker import BACKENDS, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


@pytest.fixture(scope="module", params=BACKENDS)
def found(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was found on one Keras backend, by fault."""
    file = tmp_path_factory.mktemp("found") / "found.json"
    run(request.param, "bisecting", folder, file)
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return results


@pytest.mark.parametrize("name", ["", "turned", "after all"])
def test_the_same_weights_agree_at_every_role(found: dict[str, Any], name: str) -> None:
    assert found[name]["first"] is None
    assert found[name]["forward"] < 3e-6
    steps = [step for step in found[name]["steps"] if step in ROLES]
    tables = ("position", "type")  # each model looks them up in its own order
    assert sorted(steps[1:3]) == sorted(tables)
    assert [step for step in steps if step not in tables] == [role for role in ROLES if role not in tables]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_weight_is_found_and_named(found: dict[str, Any], fault: str) -> None:
    """Keras's dense layers apply the activation themselves, which is no difference."""
    result = found[fault]
    assert result["direction"] == "forward"
    assert result["differing"] == [fault]
    assert result["module"] == fault.rpartition(".")[0]
    if fault.startswith("encoder.layer."):
        assert result["first"] == f"layer.{fault.split('.')[2]}"


def test_another_activation_is_found_and_named(found: dict[str, Any]) -> None:
    """keras-hub's own conversion of a checkpoint approximates GELU in this way."""
    result = found["activation"]
    assert (result["first"], result["direction"], result["differing"]) == ("layer.1", "forward", [])
    assert "the activation is GELU by the error function in a and GELU by the tanh approximation in b" in result["text"]
