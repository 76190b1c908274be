"""The same roles name the same tensors in each framework's BERT, on MiniLM's weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embgrad
from embgrad.cli.demo import FRAMEWORKS, minilm_folder
from tests.cross.parity.table import POINTS, main
from tests.frameworks.torch.architecture_table import page


def test_the_table_of_points(capsys: pytest.CaptureFixture[str]) -> None:
    """Within 1e-5 relative L2 at every point, or the command says no."""
    assert main([]) == 0
    printed = capsys.readouterr().out
    for point in POINTS:
        assert point in printed


def test_the_same_roles_and_values() -> None:
    batch = embgrad.TokenBatch([[101, 7592, 2088, 102, 0], [101, 2204, 102, 0, 0]], [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
    roles, values = {}, {}
    at = ["word", "position", "embeddings", "layer.0", "layer.5"]
    for framework in FRAMEWORKS:
        model = embgrad.load_bert(minilm_folder(), framework)
        roles[framework] = {role for point in embgrad.points(model, batch) for role in point.roles}
        values[framework] = embgrad.gradients(model, batch, embgrad.Sum(output="pooled"), at=at)
    for framework in FRAMEWORKS[1:]:
        assert roles[framework] - {"type"} == roles["torch"] - {"type"}
        for name in at:
            one, other = values["torch"][name], values[framework][name]
            assert np.linalg.norm(one.values - other.values) < 1e-5 * np.linalg.norm(one.values), name
            real = batch.real
            assert np.abs(one.activations[real] - other.activations[real]).max() < 1e-4, name


def test_edits_agree_over_the_frameworks() -> None:
    ids = [[101, 7592, 2088, 102], [101, 2204, 2154, 102]]
    options = {
        "add": {"layer.1": np.linspace(-0.5, 0.5, 384)},
        "edit": {"layer.3": lambda grad: grad * (np.arange(384) % 3 == 0)},
    }
    found = {
        framework: embgrad.gradients(
            embgrad.load_bert(minilm_folder(), framework),
            ids if framework != "gluon" else embgrad.TokenBatch(ids, convention="gluonnlp"),
            embgrad.Sum(output="pooled"),
            **options,
        )
        for framework in FRAMEWORKS
    }
    for framework in FRAMEWORKS[1:]:
        assert embgrad.compare(found["torch"], found[framework]).figures.relative_l2 < 1e-5


def test_parameters_under_one_spelling() -> None:
    batch = embgrad.TokenBatch([[101, 7592, 2088, 102], [101, 2204, 102, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]])
    found = {
        framework: embgrad.parameter_gradients(
            embgrad.load_bert(minilm_folder(), framework), batch, embgrad.Sum(output="pooled"), names="canonical"
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


def test_the_page_on_architectures_is_what_they_give() -> None:
    assert (Path(__file__).parents[3] / "docs" / "architectures.md").read_text(encoding="utf-8") == page()
