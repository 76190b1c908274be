"""Each mode and point that the benchmarks compare gives, small, what code by hand gives; so compiled and plain agree."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks import jobs, measuring, way, worker
from tests.benchmarks.cases import MODES, PLAIN, Case, drawn_bert
from tests.benchmarks.jobs import LANGUAGE
from tests.benchmarks.points import POINTS, PRICED, prices
from tests.support.sampling import slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return drawn_bert(tmp_path_factory.mktemp("models") / "small", layers=2, dim=32, vocab=3000)


ASKED = [*((name, "pooled") for name in MODES), *((name, "position") for name in PLAIN)]
#: The plain modes run with the ordinary tests.
ORDINARY = [(name, "pooled") for name in PLAIN]


@pytest.mark.parametrize(("mode", "objective"), [*ORDINARY, *(slow(one) for one in ASKED if one not in ORDINARY)])
def test_gradients_are_those_by_hand(mode: str, objective: str, checkpoint: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        built = worker._maker(mode)(Case(checkpoint, 2, 7, objective))
        found, functions = measuring.checked(built)
        for name in ("forward", "backward"):
            functions[name]()
    assert "refused" not in found, found
    assert found["distance"] < 2e-5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", LANGUAGE)
def test_language_models(mode: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.benchmarks import language

    monkeypatch.setattr(language, "SIZES", {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 3000})
    found, _ = measuring.checked(language.MODES[mode](Case(checkpoint, 2, 7)))
    assert "refused" not in found, found
    assert found["distance"] < 2e-5


#: Those that take a process of their own, as Keras does for each of its backends, or half a minute.
LONG = [mode for mode, (_, _, backend) in PRICED.items() if backend is not None or "compile" in mode]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", [*(mode for mode in PRICED if mode not in LONG), *(slow(mode) for mode in LONG)])
def test_points_are_those_by_hand(mode: str, tmp_path: Path) -> None:
    _, _, backend = PRICED[mode]
    sizes = {"layers": 2, "dim": 32, "sizes": [(2, 7)], "seconds": 0.0}
    if backend is None:
        rows = prices(mode, **sizes)
    else:
        job = jobs._job(mode, "points", "points", mode=mode, **sizes)
        environment = {"KERAS_BACKEND": backend, "TF_USE_LEGACY_KERAS": "0", **job.environment}
        rows = jobs.run(replace(job, environment=environment), tmp_path)
    assert isinstance(rows, list), rows
    assert [row["what"] for row in rows] == [", ".join(at) for at in POINTS]
    assert {row["passes"] for row in rows} == ({0} if "compile" in mode else {1})


@pytest.mark.parametrize("mode", ["PyTorch", *map(slow, ("TensorFlow, Keras 2", "Gluon", "JAX"))])
def test_the_way_of_a_call_is_followed(mode: str) -> None:
    rows = list(way.rows_of(mode))
    assert [(row["at"], row["passes"]) for row in rows] == [("word", 1), ("layer.-1", 1)]
    for row in rows:
        assert row["depth"] == len(row["stack"])
        assert "gradients" in row["stack"]
        assert row["files"] < row["functions"] < row["lines"]
