"""Actors that do not hold the same model are refused."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray.data

import embgrad
import embgrad.ray
from embgrad.ray.actors import BATCHES_A_BLOCK
from embgrad.ray.weight_check import expect_same_weights
from embgrad.ray.worker import ROWS_RUN_ALONE
from embgrad.testing.reference import ReferenceModel
from tests.unit.ray import models
from tests.unit.ray.models import labelled

Items = Callable[..., list[dict[str, Any]]]

SAID = r"^build\(\) returned different weights in different actors \('W'\): expected the same model in each"


def test_other_weights_than_those_of_the_first_actor_are_refused() -> None:
    run, built = uuid.uuid4().hex, models.drawn()
    for model in (built, ReferenceModel(built.forward, {name: item.value for name, item in built.parameters.items()})):
        expect_same_weights(run, model)
    with pytest.raises(embgrad.BackendError, match=SAID):
        expect_same_weights(run, models.drawn())
    expect_same_weights(run, built)
    expect_same_weights(uuid.uuid4().hex, models.drawn())  # another run's


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
    with pytest.raises(embgrad.BackendError, match=SAID):
        make(rows, Dying(folder), folder, ids="ids_", batch_size=2, workers=1)
    assert not (folder / "out" / "_embgrad.json").exists()


@pytest.mark.slow
def test_weights_are_not_compared_without_verify(items: Items, tmp_path: Path) -> None:
    rows = ray.data.from_items(items(60))
    _summed(rows, Dying(tmp_path), tmp_path, ids="ids_", batch_size=2, workers=1, verify=False)
    assert len(list(tmp_path.glob("begun-*"))) > 30
