"""The options of actors, what cannot be sent to them, and actors that do not hold the same model."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
import ray.data

import embgrad
import embgrad.ray
from embgrad.errors import BackendError, EmbgradError, EmbgradWarning
from embgrad.ray.columns import Wanted
from embgrad.ray.run import BATCHES_A_BLOCK, _cpus
from embgrad.ray.settings import settings
from embgrad.ray.worker import ROWS_RUN_ALONE, GradientWorker, expect_same_weights
from embgrad.testing.reference import ReferenceModel
from tests.unit.ray import models
from tests.unit.ray.models import labelled
from tests.unit.ray.test_runs import close, of_one_process

pytestmark = pytest.mark.usefixtures("cluster")

Items = Callable[..., list[dict[str, Any]]]


def test_ray_s_processes_alone_keep_transformers_from_tensorflow() -> None:
    """Files of tests that follow in this process load TensorFlow's classes."""
    switch = ray.remote(num_cpus=0)(lambda: os.environ.get("USE_TF")).remote()
    assert (ray.get(switch), os.environ.get("USE_TF")) == ("0", None)


def test_actors_that_leave_no_cpu_are_a_warning(items: Items) -> None:
    dataset = ray.data.from_items(items(4))
    with pytest.warns(EmbgradWarning, match=r"leave none of the cluster's 2 CPUs to read the dataset") as caught:
        embgrad.ray.gradients(dataset, models.reference, labelled, ids="ids_", num_cpus=1)
    assert caught[0].filename == __file__
    with pytest.warns(EmbgradWarning, match=r"^2 actors of num_cpus=1 leave none"):
        embgrad.ray.gradients(dataset, models.reference, labelled, ids="ids_", actor_options={"num_cpus": 1})


@pytest.mark.parametrize(
    ("resources", "asked", "expected"),
    [
        ({}, None, 1.0),
        ({"CPU": 1.0}, None, 0.0),
        ({"CPU": 2.0}, None, 0.25),
        ({"CPU": 9.0}, None, 1.0),
        ({}, 1, 1),
        ({"CPU": 3.0}, 1, 1),
    ],
)
@pytest.mark.filterwarnings("error::embgrad.EmbgradWarning")
def test_actors_leave_cpus_to_read_the_dataset(
    resources: dict[str, float], asked: float | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
    assert _cpus(asked, 2) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("error::embgrad.EmbgradWarning")
def test_gradients_of_gradients_do_not_deadlock(items: Items) -> None:
    rows = items(20)
    first = embgrad.ray.gradients(
        ray.data.from_items(rows), models.reference, embgrad.Logit(0), ids="ids_", prefix="a_", batch_size=2
    )
    second = embgrad.ray.gradients(
        first.map(lambda row: row), models.reference, embgrad.Logit(1), ids="ids_", prefix="b_", batch_size=2
    )
    actual: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: actual.extend(second.take_all()), daemon=True)
    reader.start()
    reader.join(120)
    assert sorted(row["key"] for row in actual) == list(range(20))
    for index, prefix in enumerate("ab"):
        expected = of_one_process(models.reference(), rows, embgrad.Logit(index)).saliency()
        for row in actual:
            close(row[f"{prefix}_saliency"], expected[row["key"], : len(row["ids_"])])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_cpus": "2"},
            r"^Ray does not accept these actors \(.*num_cpus.*\): pass num_cpus, num_gpus and actor_options as",
        ),
        ({"num_gpus": -1}, r"^Ray does not accept these actors \(.*num_gpus cannot be negative"),
        ({"actor_options": {"memry": 3}}, r"^Ray does not accept these actors \(Invalid option keyword memry"),
        ({"actor_options": {"max_restarts": "x"}}, r"^Ray does not accept these actors \(.*max_restarts"),
        ({"actor_options": 3}, r"^Ray does not accept these actors \(.*mapping"),
        ({"verify": "no"}, r"^verify is 'no': expected True or False"),
    ],
)
def test_options_that_ray_refuses(items: Items, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EmbgradError, match=message):
        embgrad.ray.table(
            ray.data.from_items(items(3)), models.reference, labelled, ids="ids_", **{"verify": False, **options}
        )


def test_what_cannot_be_pickled_is_named(items: Items) -> None:
    lock = threading.Lock()

    def locked(*given: Any) -> Any:
        with lock:
            return models.reference() if not given else labelled(*given)

    class Closed:
        def __call__(self, gradient: Any) -> None:
            """Leave the gradient as it is."""

        def __reduce__(self) -> Any:
            raise RuntimeError("not this\nmore")

    rows = ray.data.from_items(items(3))
    for build, objective, options, message in (
        (
            locked,
            labelled,
            {},
            r"^build cannot be sent to the actors \(TypeError: cannot pickle '_thread.lock' .*must be picklable",
        ),
        (models.reference, locked, {}, r"^the objective cannot be sent to the actors \(TypeError"),
        (
            models.reference,
            labelled,
            {"edit": {"word": Closed()}},
            r"^edit cannot be sent .*\(RuntimeError: not this\)",
        ),
    ):
        with pytest.raises(BackendError, match=message):
            embgrad.ray.table(rows, build, objective, ids="ids_", verify=False, **options)


SAID = r"^build\(\) returned different weights in different actors \('W'\): expected the same model in each"


def test_other_weights_than_those_of_the_first_actor_are_refused() -> None:
    run, built = uuid.uuid4().hex, models.drawn()
    for model in (built, ReferenceModel(built.forward, {name: item.value for name, item in built.parameters.items()})):
        expect_same_weights(run, model)
    with pytest.raises(embgrad.errors.BackendError, match=SAID):
        expect_same_weights(run, models.drawn())
    expect_same_weights(run, built)
    expect_same_weights(uuid.uuid4().hex, models.drawn())  # another run's


def test_an_actor_compares_its_weights_after_its_first_batch(items: Items) -> None:
    rows, wanted = pa.Table.from_pylist(items(2)), Wanted("saliency", "norm", None, "")
    job, _ = settings(models.drawn, labelled, {"ids": "ids_"})
    first, second = GradientWorker(job, wanted), GradientWorker(job, wanted)
    assert first(rows).equals(first(rows))
    with pytest.raises(embgrad.errors.BackendError, match=SAID):
        second(rows)
    unverified, _ = settings(models.drawn, labelled, {"ids": "ids_", "verify": False})
    for _ in range(2):
        assert GradientWorker(unverified, wanted)(rows).num_rows == 2


class Dying:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, rows: Any) -> embgrad.Objective:
        begun = len(list(self.folder.glob("begun-*")))
        (self.folder / f"begun-{begun}").touch()
        if begun == 2 * BATCHES_A_BLOCK + ROWS_RUN_ALONE:
            os.kill(os.getpid(), signal.SIGKILL)
        return labelled(rows)


def _written(rows: Any, objective: Any, folder: Path, **options: Any) -> None:
    embgrad.ray.write(rows, models.drawn, objective, folder / "out", **options)


def _summed(rows: Any, objective: Any, folder: Path, **options: Any) -> None:
    embgrad.ray.table(rows, models.drawn, objective, **options)


def _taken(rows: Any, objective: Any, folder: Path, **options: Any) -> None:
    with embgrad.ray.plain_errors():
        embgrad.ray.gradients(rows, models.drawn, objective, **options).take_all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [_written, _summed, _taken])
def test_a_restarted_actor_with_another_model_is_refused(
    make: Callable[..., None], items: Items, tmp_path: Path
) -> None:
    rows, folder = ray.data.from_items(items(60)), tmp_path / "refused"
    folder.mkdir()
    with pytest.raises(embgrad.errors.BackendError, match=SAID):
        make(rows, Dying(folder), folder, ids="ids_", batch_size=2, workers=1)
    assert not (folder / "out" / "_embgrad.json").exists()


@pytest.mark.slow
def test_weights_are_not_compared_without_verify(items: Items, tmp_path: Path) -> None:
    rows = ray.data.from_items(items(60))
    _summed(rows, Dying(tmp_path), tmp_path, ids="ids_", batch_size=2, workers=1, verify=False)
    assert len(list(tmp_path.glob("begun-*"))) > 30
