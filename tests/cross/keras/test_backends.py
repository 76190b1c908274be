"""keras-hub's models with one set of weights on each Keras backend: the same plain call gives the same values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embgrad
from tests.cross.keras.worker import BACKENDS, file_of, run, weights_of
from tests.support import keras_hub_zoo as zoo


def most(name: str) -> float:
    """Return the largest difference of a model; Keras's own operations differ most in this one, by 2e-7 in float64 already."""
    return 1e-5 if name == "RobertaTextClassifier" else 5e-6


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    for name, entry in zoo.MODELS.items():
        zoo.save(entry.build(), weights_of(folder, name))
    return folder


@pytest.fixture(scope="module")
def results(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of results, made by a process for each backend."""
    folders = {backend: tmp_path_factory.mktemp(backend) for backend in BACKENDS}
    for backend, folder in folders.items():
        run(backend, "worker", weights, folder)
    return folders


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("name", zoo.MODELS)
@pytest.mark.parametrize("side", zoo.SIDES)
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_products_of_a_layer_with_several_matrices_are_points(backend: str) -> None:
    run(backend, "products")


@pytest.mark.parametrize("name", ["BertTextClassifier", "GPT2CausalLM", "GemmaCausalLM"])
def test_the_weights_make_the_difference(results: dict[str, Path], name: str) -> None:
    """Models that share no weights differ by far more than the limit, so that the comparison could fail."""
    word = embgrad.load(file_of(results[BACKENDS[0]], name, None, "word"))
    model = zoo.build(name)
    path = "token_embedding/embeddings"
    zoo.set_weights(model, {**zoo.weights(model), path: zoo.weights(model)[path][::-1]})
    batch = zoo.batch(model, None)
    other = embgrad.gradients(model, batch, zoo.objective(name, batch["padding_mask"]))
    assert np.abs(other.values - word.values).max() > 0.1 * np.abs(word.values).max()
