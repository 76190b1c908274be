"""How the actors are started: what they may take of the cluster, and what cannot be sent to them or asked of Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import ray
import ray.data

import embgrad
import embgrad.ray
from embgrad.errors import EmbgradError
from tests.unit.ray import models
from tests.unit.ray.models import labelled
from tests.unit.ray.test_runs import close, of_one_process

Items = Callable[..., list[dict[str, Any]]]


def test_actors_that_leave_no_cpu_are_warned_of(items: Items) -> None:
    dataset = ray.data.from_items(items(4))
    with pytest.warns(embgrad.EmbgradWarning, match=r"leave none of the cluster's 2 CPUs to read the dataset"):
        embgrad.ray.gradients(dataset, models.reference, labelled, ids="ids_", num_cpus=1)
    with pytest.warns(embgrad.EmbgradWarning, match=r"^2 actors of num_cpus=1 leave none"):
        embgrad.ray.gradients(dataset, models.reference, labelled, ids="ids_", actor_options={"num_cpus": 1})


@pytest.mark.slow
@pytest.mark.filterwarnings("error::embgrad.EmbgradWarning")
def test_gradients_of_gradients_do_not_wait_for_each_other(items: Items) -> None:
    """Both pools of actors are there at once, and somebody has to read the rows: on two CPUs there was none left to do so."""
    rows = items(20)
    first = embgrad.ray.gradients(
        ray.data.from_items(rows), models.reference, embgrad.Logit(0), ids="ids_", prefix="a_", batch_size=2
    )
    second = embgrad.ray.gradients(
        first.map(lambda row: row), models.reference, embgrad.Logit(1), ids="ids_", prefix="b_", batch_size=2
    )
    found: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: found.extend(second.take_all()), daemon=True)
    reader.start()
    reader.join(120)
    assert sorted(row["key"] for row in found) == list(range(20))
    for index, prefix in enumerate("ab"):
        expected = of_one_process(models.reference(), rows, embgrad.Logit(index)).saliency()
        for row in found:
            close(row[f"{prefix}_saliency"], expected[row["key"], : len(row["ids_"])])
    with pytest.warns(
        embgrad.EmbgradWarning,
        match=r"and those that produce the dataset, with num_cpus=1 in all, leave none .*materialize",
    ):
        embgrad.ray.gradients(first, models.reference, labelled, ids="ids_", num_cpus=0.5)
    kept = first.materialize()
    assert embgrad.ray.gradients(kept, models.reference, labelled, ids="ids_", num_cpus=0.5) is not None


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
        ({"actor_options": 3}, r"^actor_options is 3: expected a dict of what ray.remote takes, such as"),
        ({"verify": "no"}, r"^verify is 'no': expected True or False"),
    ],
)
def test_options_that_ray_does_not_take(items: Items, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EmbgradError, match=message):
        embgrad.ray.table(
            ray.data.from_items(items(3)), models.reference, labelled, ids="ids_", **{"verify": False, **options}
        )


def test_what_cannot_be_sent_to_the_actors_is_named(items: Items) -> None:
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
        with pytest.raises(embgrad.BackendError, match=message):
            embgrad.ray.table(rows, build, objective, ids="ids_", verify=False, **options)
