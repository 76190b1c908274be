"""Streams of attributions: the same as alone, in whatever batch, and continued where they stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import EmbgradError, FileFormatError, PointError, UnsupportedError
from tests.unit.streams import COUNT, LABELLED, labels, model, rows, texts, tokenizer

pytestmark = pytest.mark.usefixtures("small_shards")

METHODS: dict[str, embgrad.attribution.Method] = {
    "saliency": embgrad.methods.Saliency(),
    "input_x_gradient": embgrad.methods.InputXGradient(),
    "integrated_gradients": embgrad.methods.IntegratedGradients(20, baseline=5, tolerance=1e-3),
    "smooth_grad": embgrad.methods.SmoothGrad(4, seed=3),
    "gradient_shap": embgrad.methods.GradientShap([0, 5], samples=5, sigma=0.1, seed=2),
    "sequential": embgrad.methods.SequentialIntegratedGradients(20, baseline=0),
    "discretized": embgrad.methods.DiscretizedIntegratedGradients(20, baseline=0),
    "occlusion": embgrad.methods.Occlusion(0),
    "lime": embgrad.methods.Lime(64, baseline=0, seed=1),
    "kernel_shap": embgrad.methods.KernelShap(64, baseline=0, seed=4),
}


def streamed(method: Any = METHODS["gradient_shap"], to: Path | None = None, **options: Any) -> embgrad.results.Stream:
    asked: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 4, "method": method, "to": to, **options}
    return embgrad.stream(model(dtype="float64"), rows(COUNT), LABELLED, **asked)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore:with .* steps:embgrad.errors.EmbgradWarning")
def test_a_streamed_attribution_equals_that_of_the_example_alone(method: str) -> None:
    plain = list(streamed(METHODS[method]))
    assert [len(result.ids) for result in plain] == [4, 4, 4, 4, 4, 3]
    number = 0
    for result in plain:
        for example in range(len(result.ids)):
            objective = embgrad.CrossEntropy([labels(COUNT)[number]])
            alone = embgrad.attribute(
                model(dtype="float64"), [texts(COUNT)[number]], objective, METHODS[method], tokenizer=tokenizer
            )
            np.testing.assert_allclose(
                result.scores[example][result.real[example]], alone.scores[0], rtol=1e-9, atol=1e-11
            )
            np.testing.assert_allclose(result.objective[example], alone.objective[0], rtol=1e-9)
            number += 1


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


@pytest.mark.parametrize("keep", ["all", "saliency"])
def test_an_interrupted_run_continues_to_the_same_bytes(keep: str, tmp_path: Path) -> None:
    whole = list(streamed(to=tmp_path / "whole", keep=keep))
    with streamed(to=tmp_path / "part", keep=keep) as parts:
        for _ in range(3):
            next(parts)
    assert not embgrad.open_stream(tmp_path / "part").complete
    folder = streamed(to=tmp_path / "part", keep=keep).finish()
    assert files(tmp_path / "part") == files(tmp_path / "whole")
    assert (len(folder), folder.examples, folder.complete) == (6, COUNT, True)
    for first, second in zip(whole, folder, strict=True):
        assert isinstance(second, embgrad.results.Attribution)
        assert (second.values is None) == (keep == "saliency")
        assert first.delta is not None
        assert second.delta is not None
        np.testing.assert_array_equal(second.scores, first.scores)
        np.testing.assert_array_equal(second.delta, first.delta)
        np.testing.assert_array_equal(second.baseline_objective, first.baseline_objective)
        assert dict(first.provenance) == dict(second.provenance)


def test_another_method_is_another_run(tmp_path: Path) -> None:
    method = METHODS["gradient_shap"]
    with streamed(method, to=tmp_path) as parts:
        next(parts)
    with pytest.raises(FileFormatError, match=r"of another run: method\.seed was 2 and is 3\. Pass the same"):
        streamed(replace(method, seed=3), to=tmp_path)  # type: ignore[type-var]
    with pytest.raises(FileFormatError, match=r"of another run: method was .*GradientShap.* and is .*'Saliency'"):
        streamed("saliency", to=tmp_path)
    with pytest.raises(FileFormatError, match=r"of another run: method was .*GradientShap.* and is None"):
        streamed(None, to=tmp_path)
    assert list(streamed(method, to=tmp_path))


def test_attributions_are_streamed_in_training_mode() -> None:
    made = [result for options in ({}, {"training": True}) for result in streamed("saliency", **options)]
    assert [result.provenance["training"] for result in made] == [False] * 6 + [True] * 6


def test_a_folder_of_gradients_has_no_method(tmp_path: Path) -> None:
    streamed(None, to=tmp_path).finish()
    assert "method" not in embgrad.open_stream(tmp_path).run


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"keep": "table"}, UnsupportedError,
            "keep='table' is for gradients, and method computes attributions: omit one"),
        ({"check": True}, UnsupportedError, "check=True is for gradients, and method computes attributions"),
        ({"method": None, "keep": "saliency", "split": True}, UnsupportedError,
            "split=True is for gradients, and keep='saliency' computes attributions: omit one of the two"),
        ({"add": {"word": np.zeros(4)}}, UnsupportedError, "add is for gradients"),
        ({"at": ["word", "block"]}, PointError,
            "at is .*: expected the name of a point.*; make a stream for each point"),
        ({"method": "integrated_gradient"}, EmbgradError, "Did you mean 'integrated_gradients'"),
        ({"method": embgrad.methods.Lime}, EmbgradError, "the method is the class Lime: expected an instance"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_for_attributions_is_refused(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        streamed(**options)


def test_a_scalar_objective_is_refused() -> None:
    objective = embgrad.Labelled(lambda labels: embgrad.Scalar(lambda out: out.sum()))
    with pytest.raises(
        UnsupportedError, match="a Scalar objective reduces over the batch, and an attribution is of each"
    ):
        list(embgrad.stream(model(), rows(4), objective, tokenizer=tokenizer, method="saliency"))


def test_attributions_have_no_table(tmp_path: Path) -> None:
    with pytest.raises(
        EmbgradError, match="attributions have no table gradients: expected keep='table' or 'all', and no method"
    ):
        streamed("saliency").table()
    folder = streamed("saliency", to=tmp_path).finish()
    with pytest.raises(EmbgradError, match="the folder holds attributions, which have no table gradients"):
        folder.table()
