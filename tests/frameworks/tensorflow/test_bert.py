"""`load_bert` in TensorFlow: a checkpoint folder becomes a TFBertModel with the same weights."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
import transformers

import embgrad
from tests.support.loaded_bert import BATCH, DescribedBert, checkpoint


class TestTensorFlow(DescribedBert):
    framework = "tensorflow"

    def outputs(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        assert type(model).__name__ == "TFBertModel"
        outputs = model({name: tf.constant(value) for name, value in BATCH.to_huggingface().items()})
        return outputs.last_hidden_state.numpy(), outputs.pooler_output.numpy()

    @pytest.mark.parametrize(
        "changes", [{"add_cross_attention": True}, {"is_decoder": True}, {"hidden_act": "no such"}], ids=str
    )
    def test_another_configuration_is_refused(self, tmp_path: Path, changes: dict[str, Any]) -> None:  # type: ignore[override]
        checkpoint(tmp_path, **changes)
        with pytest.raises(
            embgrad.errors.UnsupportedError, match=rf"{next(iter(changes))}.* Load the model in PyTorch"
        ):
            embgrad.zoo.load_bert(tmp_path, "tensorflow")


@pytest.mark.parametrize("seeded", [False, True])
def test_loading_restores_random_generators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeded: bool) -> None:
    """Keras 2 draws its seeds from Python's generator, or, once it has a seed, from one of its own."""
    checkpoint(tmp_path)
    found = []
    for load in (False, True):
        tf_keras.utils.set_random_seed(7)
        if not seeded:
            monkeypatch.setattr(tf_keras.src.backend._SEED_GENERATOR, "generator", None)
        random.seed(3)
        np.random.seed(3)
        tf.random.set_seed(3)
        if load:
            embgrad.zoo.load_bert(tmp_path, "tensorflow")
        drawn = tf_keras.initializers.GlorotUniform()((2, 2)).numpy().tolist()
        found.append((random.random(), np.random.random(), float(tf.random.uniform(())), drawn))
    assert found[0] == found[1]


@pytest.mark.parametrize("installed", [True, False])
def test_missing_classes_of_transformers_are_an_error(tmp_path: Path, monkeypatch: Any, installed: bool) -> None:
    checkpoint(tmp_path)
    if installed:
        monkeypatch.setitem(vars(transformers), "TFBertModel", type("TFBertModel", (), {}))
    else:
        monkeypatch.setitem(sys.modules, "transformers", None)
    message = r"classes are not available \(.*transformers.*embgrad\[tensorflow\].*TF_USE_LEGACY_KERAS unset"
    with pytest.raises(embgrad.errors.BackendError, match=message):
        embgrad.zoo.load_bert(tmp_path, "tensorflow")
