"""Attributions as columns: the same as in one process, and what has no meaning for them is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import embgrad
import embgrad.ray
from embgrad.errors import EmbgradError, UnsupportedError
from embgrad.ray.columns import Wanted
from embgrad.ray.settings import settings
from embgrad.ray.worker import GradientWorker
from tests.unit.ray import models
from tests.unit.ray.models import labelled

pytestmark = pytest.mark.usefixtures("cluster")

Items = Callable[..., list[dict[str, Any]]]

METHODS: dict[str, embgrad.attribution.Method] = {
    "saliency": embgrad.methods.Saliency(),
    "integrated_gradients": embgrad.methods.IntegratedGradients(8, baseline=0),
    "smooth_grad": embgrad.methods.SmoothGrad(4, seed=1),
    "gradient_shap": embgrad.methods.GradientShap(["zero", 0], samples=4, seed=2),
    "occlusion": embgrad.methods.Occlusion(0),
    "kernel_shap": embgrad.methods.KernelShap(16, baseline=0, seed=3),
}


def alone(row: dict[str, Any], method: embgrad.attribution.Method) -> embgrad.results.Attribution:
    batch, objective = embgrad.TokenBatch([row["ids_"]]), embgrad.CrossEntropy([row["label"]])
    return embgrad.attribute(models.reference(), batch, objective, method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore:with .* steps:embgrad.errors.EmbgradWarning")
def test_a_row_has_the_scores_that_it_has_alone(items: Items, method: str) -> None:
    rows, chosen = items(9), METHODS[method]
    job, _ = settings(models.reference, labelled, {"ids": "ids_", "batch_size": 4, "verify": False})
    worker = GradientWorker(job, Wanted("saliency", "norm", None, "a_", chosen))
    for row in worker(pa.Table.from_pylist(rows)).to_pylist():
        expected = alone(row, chosen)
        np.testing.assert_allclose(row["a_scores"], expected.scores[0], rtol=1e-9, atol=1e-12)
        assert row["a_objective"] == pytest.approx(expected.objective[0])
        assert row["a_ids"] == row["ids_"]
        assert "a_saliency" not in row
        for name in ("baseline_objective", "delta", "error"):
            value = getattr(expected, name)
            assert (f"a_{name}" in row) == (value is not None)
            if value is not None:
                assert row[f"a_{name}"] == pytest.approx(value[0], abs=1e-9)


@pytest.mark.filterwarnings("ignore:with .* steps:embgrad.errors.EmbgradWarning")
def test_attributions_are_written(items: Items, tmp_path: Path) -> None:
    rows, method = items(20), METHODS["integrated_gradients"]
    report = embgrad.ray.write(
        embgrad.ray.run.ray.data.from_items(rows),
        models.reference, labelled, tmp_path / "out", ids="ids_", method=method,
    )  # fmt: skip
    assert report.rows_out == 20
    written = pa.parquet.read_table(tmp_path / "out").to_pylist()
    for row in written:
        np.testing.assert_allclose(row["scores"], alone(row, method).scores[0], rtol=1e-9, atol=1e-12)
    manifest = json.loads((tmp_path / "out" / "_embgrad.json").read_text())
    assert (manifest["method"]["class"], manifest["method"]["steps"]) == ("IntegratedGradients", 8)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"output": "tables"}, UnsupportedError, "output='tables' is for gradients, and method computes attributions"),
        ({"kind": "dot"}, UnsupportedError, "kind='dot' is for gradients"),
        ({"check": True}, UnsupportedError, "check=True is for gradients"),
        ({"method": "occlusoin"}, EmbgradError, "Did you mean 'occlusion'"),
    ],
)
def test_what_has_no_meaning_for_attributions_is_refused(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        embgrad.ray.gradients([], models.reference, labelled, **{"ids": "ids_", "method": "lime", **options})


def test_an_error_of_the_method_names_the_row(items: Items) -> None:
    job, _ = settings(models.reference, labelled, {"ids": "ids_", "key": "key", "verify": False})
    worker = GradientWorker(job, Wanted("saliency", "norm", None, "", embgrad.methods.Occlusion("mask")))
    with pytest.raises(embgrad.errors.BatchError, match=r"the row with key=0: .*the id of the mask is not known"):
        worker(pa.Table.from_pylist(items(3)))
