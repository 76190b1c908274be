"""Whole runs on a local Ray with two workers, on models of each framework, with actors killed in the middle."""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import ray
import ray.data

import embgrad
import embgrad.ray
from embgrad.errors import EmbgradError
from tests.unit.ray import models
from tests.unit.ray.models import Observed, kill, labelled

pytestmark = pytest.mark.usefixtures("cluster")

Items = Callable[..., list[dict[str, Any]]]
#: Two more rounding errors than one process makes: rows share other batches, and sums come in another order.
CLOSE = {"float32": 2e-6, "float64": 1e-12}


def of_one_process(
    built: Any, rows: list[dict[str, Any]], objective: Any = None, **batch: Any
) -> embgrad.results.EmbeddingGradients:
    model, tokenizer = built if isinstance(built, tuple) else (built, None)
    actual = embgrad.gradients(
        model,
        embgrad.encode([row["text"] for row in rows], tokenizer) if tokenizer is not None else _padded(rows),
        objective or embgrad.CrossEntropy([row["label"] for row in rows]),
    )
    assert isinstance(actual, embgrad.results.EmbeddingGradients)
    return actual


def _padded(rows: list[dict[str, Any]]) -> embgrad.TokenBatch:
    longest = max(len(row["ids_"]) for row in rows)
    gaps = [longest - len(row["ids_"]) for row in rows]
    return embgrad.TokenBatch(
        [row["ids_"] + [0] * gap for row, gap in zip(rows, gaps, strict=True)],
        [[1] * (longest - gap) + [0] * gap for gap in gaps],
    )


def close(actual: Any, expected: np.ndarray, dtype: str = "float64") -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=CLOSE[dtype] * np.abs(expected).max())


def assert_killed_in_the_middle(killed: list[int], seen: Observed, count: int) -> None:
    assert len(killed) == count
    others = seen.builders() - set(killed)
    for process in killed:
        assert seen.begun(process) >= 2
        assert max(seen.last(item) for item in others) > seen.last(process)


def written(rows: list[dict[str, Any]], folder: Path, files: int = 3) -> Any:
    for number in range(files):
        pa.parquet.write_table(pa.Table.from_pylist(rows[number::files]), folder / f"in{number}.parquet")
    return ray.data.read_parquet([str(folder / f"in{number}.parquet") for number in range(files)])


def test_parquet_files_with_a_killed_actor(items: Items, observed: Callable[..., Observed], tmp_path: Path) -> None:
    rows, seen = items(100), observed()
    killed = kill(seen, 1)
    out = tmp_path / "out"
    report = embgrad.ray.write(written(rows, tmp_path), seen, seen.objective, out, ids="ids_", key="key", batch_size=4)
    assert (report.rows_in, report.rows_out) == (100, 100)
    assert_killed_in_the_middle(killed, seen, 1)
    assert len(list(out.glob("*.parquet"))) == 1
    actual = sorted(pa.parquet.read_table(out).to_pylist(), key=lambda row: row["key"])
    assert [{name: row[name] for name in rows[0]} for row in actual] == rows
    expected = of_one_process(models.reference(), rows)
    for number, row in enumerate(actual):
        own = len(row["ids_"])
        close(row["saliency"], expected.saliency()[number, :own])
        close(row["objective"], expected.objective[number])
    said = json.loads((out / "_embgrad.json").read_text())
    assert (said["rows"], said["output"], said["inputs"]["ids"]) == (100, "saliency", "ids_")
    with pytest.raises(embgrad.errors.FileFormatError, match=r"expected a new or empty folder"):
        embgrad.ray.write(ray.data.read_parquet(str(out)), models.reference, labelled, out, ids="ids_")


@pytest.mark.slow
def test_the_mean_table_with_two_killed_actors(items: Items, observed: Callable[..., Observed], tmp_path: Path) -> None:
    rows, seen = items(200), observed(build=models.reference_float32, seconds=0.05)
    killed = kill(seen, 2)
    actual = embgrad.ray.table(written(rows, tmp_path), seen, seen.objective, reduce="mean", ids="ids_", batch_size=2)
    assert_killed_in_the_middle(killed, seen, 2)
    expected = of_one_process(models.reference_float32(), rows).table()
    assert actual.shape == expected.shape
    assert 0 not in actual.rows  # what fills up the shorter rows counts for nothing
    assert actual.values.dtype == np.float32
    close(actual.to_dense(), expected.to_dense() / len(rows), "float32")


def test_the_result_is_a_lazy_dataset(items: Items) -> None:
    rows = items(40)
    given = ray.data.from_items(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = embgrad.ray.gradients(
            given, models.reference, labelled, output="values", length=9, ids="ids_", batch_size=4
        )
    expected = of_one_process(models.reference(), rows).values
    actual = {row["key"]: row for row in dataset.filter(lambda row: row["key"] < 30).take_all()}
    assert sorted(actual) == list(range(30))
    for key, row in actual.items():
        assert row["values"].shape == (9, models.DIM)
        own = len(row["ids_"])
        close(row["values"][:own], expected[key, :own])


def test_an_error_names_the_row_and_is_short(items: Items) -> None:
    rows = items(20)
    rows[17]["ids_"] = [3, 99]
    with pytest.raises(
        embgrad.errors.BatchError, match=r"^the row with key=17: id 99 at .* is outside the table"
    ) as caught:
        embgrad.ray.table(ray.data.from_items(rows), models.reference, labelled, ids="ids_", key="key", verify=False)
    assert len(str(caught.value)) < 300


def test_a_dataset_that_changes_is_refused(items: Items) -> None:
    rows = ray.data.from_items(items(60)).map(
        lambda row: {**row, "ids_": [*row["ids_"], int(np.random.default_rng().integers(30))]}
    )
    with pytest.raises(embgrad.EmbgradError, match=r"60 rows went in and as many came out, but they are not the same"):
        embgrad.ray.table(rows, models.reference, labelled, ids="ids_")


def test_rows_that_are_lost_among_the_files_are_noticed(
    items: Items, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, read = ray.data.from_items(items(12)), ray.data.read_parquet
    monkeypatch.setattr(ray.data, "read_parquet", lambda *where, **options: read(*where, **options).limit(11))
    with pytest.raises(EmbgradError, match=r"written to .*lost does not hold each row once: 12 rows went in and 11 "):
        embgrad.ray.write(rows, models.reference, labelled, tmp_path / "lost", ids="ids_")
    assert not (tmp_path / "lost" / "_embgrad.json").exists()


@pytest.mark.slow
def test_rows_are_not_counted_without_verify(items: Items, tmp_path: Path) -> None:
    rows = ray.data.from_items(items(12))
    report = embgrad.ray.write(rows, models.reference, labelled, tmp_path / "out", ids="ids_", verify=False)
    assert (report.rows_in, report.rows_out) == (None, None)


def test_a_process_that_always_dies_ends_the_run(items: Items) -> None:
    def dies(rows: Any) -> embgrad.Objective:
        os._exit(1)

    limits = {"max_restarts": 1, "max_task_retries": 1}
    with pytest.raises(Exception, match=r"(?i)actor") as caught:
        embgrad.ray.table(
            ray.data.from_items(items(4)), models.reference, dies, ids="ids_", verify=False, actor_options=limits
        )
    assert isinstance(caught.value, ray.exceptions.RayError)


@pytest.mark.framework("torch")
def test_saliencies_of_texts_in_torch(items: Items) -> None:
    rows = items(24)
    dataset = embgrad.ray.gradients(ray.data.from_items(rows), models.torch_bert, labelled, kind="dot", batch_size=4)
    expected = of_one_process(models.torch_bert(), rows)
    actual = dataset.take_all()
    assert sorted(row["key"] for row in actual) == list(range(24))
    scale = np.abs(expected.saliency("dot")).max()
    for row in actual:
        own = len(row["ids_"])
        assert list(row["tokens"]) == ["[CLS]", *row["text"].split(), "[SEP]"]
        difference = np.abs(row["saliency"] - expected.saliency("dot")[row["key"], :own]).max()
        assert difference < CLOSE["float32"] * scale


@pytest.mark.slow
@pytest.mark.framework("tensorflow")
def test_the_sum_in_keras(items: Items) -> None:
    rows = items(24)
    actual = embgrad.ray.table(
        ray.data.from_items(rows), models.keras_net, labelled, ids="ids_", convention="ids", batch_size=4, verify=False
    )
    net = models.keras_net()
    each = [
        embgrad.gradients(net, np.array([row["ids_"]]), embgrad.CrossEntropy([row["label"]])).table().to_dense()
        for row in rows
    ]
    close(actual.to_dense(), np.sum(each, axis=0), "float32")


@pytest.mark.slow
@pytest.mark.framework("gluon")
def test_tables_of_each_row_in_gluon(items: Items) -> None:
    rows = items(24)
    objective = embgrad.Projection(np.linspace(-1, 1, 16), output="pooled")
    dataset = embgrad.ray.gradients(
        ray.data.from_items(rows), models.gluon_bert, objective, output="tables", convention="gluonnlp", batch_size=4
    )
    net, tokenizer = models.gluon_bert()
    batch = embgrad.encode([row["text"] for row in rows], tokenizer).replace(convention="gluonnlp")
    expected = embgrad.gradients(net, batch, objective).per_example()
    scale = max(np.abs(item.values).max() for item in expected)
    actual = dataset.take_all()
    assert sorted(row["key"] for row in actual) == list(range(24))
    for row in actual:
        table = embgrad.results.RowSparse(np.array(row["rows"]), np.array(row["values"]), (row["vocab"], 16))
        assert np.abs(table.to_dense() - expected[row["key"]].to_dense()).max() < CLOSE["float32"] * scale


class Scaled(embgrad.Sum):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "scale": self.scale}


@pytest.mark.slow
def test_the_arguments_of_an_objective_are_saved(items: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    embgrad.ray.write(
        ray.data.from_items(items(3)), models.reference, Scaled(np.float32(2)), out, ids="ids_", batch_size=4
    )
    assert json.loads((out / "_embgrad.json").read_text())["objective"] == {"class": "Scaled", "scale": 2.0}


@pytest.mark.parametrize("name", ["ray.data", "pyarrow"])
def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [module for module in sys.modules if module.startswith("embgrad.ray")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    message = r"^embgrad\.ray needs Ray Data, which cannot be imported \(.*\): pip install 'embgrad\[ray\]'"
    with pytest.raises(EmbgradError, match=message) as caught:
        importlib.import_module("embgrad.ray")
    assert isinstance(caught.value, ImportError)
