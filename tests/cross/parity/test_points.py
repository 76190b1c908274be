"""The same roles name the same tensors in each framework's BERT, on MiniLM's weights."""

from __future__ import annotations

import numpy as np

import embgrad
from embgrad.cli.demo import example_batch
from embgrad.loading.minilm import minilm_folder
from embgrad.loading.models import FRAMEWORKS

#: The points that have the same role in each framework's BERT.
POINTS = ("word", "embeddings", "layer.0", "layer.3", "layer.-1")


def test_the_gradient_at_each_role_is_one_in_all_frameworks() -> None:
    batch, objective = example_batch(minilm_folder()), embgrad.Sum(output="pooled")
    found = {
        framework: embgrad.gradients(
            embgrad.zoo.load_bert(minilm_folder(), framework), batch, objective, at=list(POINTS)
        )
        for framework in FRAMEWORKS
    }
    for framework in FRAMEWORKS[1:]:
        for point in POINTS:
            assert embgrad.compare(found["torch"][point], found[framework][point]).figures.relative_l2 < 1e-5


def test_parameters_under_one_spelling() -> None:
    batch = embgrad.TokenBatch([[101, 7592, 2088, 102], [101, 2204, 102, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]])
    found = {
        framework: embgrad.tables.parameter_gradients(
            embgrad.zoo.load_bert(minilm_folder(), framework), batch, embgrad.Sum(output="pooled"), names="canonical"
        )
        for framework in FRAMEWORKS
    }
    reference = found["torch"]
    for framework in FRAMEWORKS[1:]:
        assert found[framework].keys() == reference.keys()
        for name, expected in reference.items():
            assert found[framework][name].shape == expected.shape
            if name.endswith("key.bias"):  # a softmax does not change with it: rounding alone
                continue
            assert np.linalg.norm(found[framework][name] - expected) < 1e-5 * np.linalg.norm(expected), name
        assert found[framework].unreached == ()
