"""The same roles name the same tensors in each framework's BERT, on MiniLM's weights."""

from __future__ import annotations

import numpy as np
import pytest

import embgrad
from embgrad.loading.minilm import minilm_folder
from embgrad.loading.models import FRAMEWORKS
from tests.cross.parity.table import POINTS, main


def test_the_table_of_points(capsys: pytest.CaptureFixture[str]) -> None:
    """Within 1e-5 relative L2 at every point, or the command says no."""
    assert main([]) == 0
    printed = capsys.readouterr().out
    for point in POINTS:
        assert point in printed


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
