"""A search that is interrupted goes on from its file and ends as if it had not been; files of other searches are refused."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import embgrad
from embgrad.common.safetensors import write_tensors
from embgrad.results.search import Search
from embgrad.testing.reference import ReferenceModel
from embgrad.token_search import GCG, HotFlip
from embgrad.token_search import checkpoint as checkpoints
from embgrad.token_search.search import METHODS as BY_NAME
from embgrad.token_search.search import search
from tests.unit.attribution.models import BATCH, curved
from tests.unit.refusals import refused

#: By name the arguments of a small search by each method.
SMALL: dict[str, dict[str, Any]] = {
    "gcg": {"steps": 4, "candidates": 5, "top": 4},
    "hotflip": {"steps": 3, "beam": 2, "candidates": 4},
    "pez": {"steps": 4, "learning_rate": 0.5},
    "universal_trigger": {"length": 2, "steps": 3, "candidates": 3, "examples": 1},
}
METHODS = {
    **{name: method(**SMALL[name]) for name, method in BY_NAME.items()},
    "hotflip that resizes": HotFlip(steps=3, beam=2, candidates=4, insert=True, delete=True),
}
OBJECTIVE = embgrad.Logit(1)


class Interrupted(KeyboardInterrupt):
    """The user's Ctrl-C."""


def stop() -> None:
    raise Interrupted


def found(to: Path | None = None, method: Any = METHODS["gcg"], **changes: Any) -> Search:
    arguments = {"model": curved(), "batch": BATCH, "objective": OBJECTIVE, "method": method, **changes}
    return search(**arguments, to=to)


def counting(stop: float = float("inf")) -> tuple[ReferenceModel, list[int]]:
    """Return a model that counts its forward passes, and is interrupted in one of them."""
    model, calls = curved(), [0]
    forward = model.forward

    @functools.wraps(forward)
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == stop:
            raise Interrupted
        return forward(*args, **kwargs)

    model.forward = counted
    return model, calls


def expect_equal(first: Search, second: Search) -> None:
    assert second.batch == first.batch
    for name in ("objective_before", "objective"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    for name in ("objective", "ids", "evaluations", "gradients"):
        assert getattr(first.history, name).tobytes() == getattr(second.history, name).tobytes()
        assert getattr(first.history, name).shape == getattr(second.history, name).shape
    assert (np.diff(second.history.seconds) >= 0).all()


@pytest.mark.parametrize("name", METHODS)
def test_an_interrupted_search_ends_as_if_it_had_not_been(tmp_path: Path, name: str) -> None:
    method, path = METHODS[name], tmp_path / "run.safetensors"
    whole = found(None, method)
    model, calls = counting()
    expect_equal(whole, found(path, method, model=model))
    passes = calls[0]
    for stop in range(4, passes + 1, max(1, passes // 12)):
        path.unlink(missing_ok=True)
        with pytest.raises(Interrupted):
            found(path, method, model=counting(stop)[0])
        assert os.listdir(tmp_path) in ([path.name], [])
        model, calls = counting()
        expect_equal(whole, found(path, method, model=model))
        if stop > passes * 3 // 4:  # the first passes are repeated
            assert calls[0] < passes, "the steps before the interruption were done again"


def test_an_interruption_loses_the_current_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.safetensors"

    with pytest.raises(Interrupted):
        found(path, progress=lambda done, total: stop() if done == 3 else None)
    reported: list[int] = []
    expect_equal(found(), found(path, progress=lambda done, total: reported.append(done)))
    assert reported == [3, 4]


def test_what_is_recorded_of_an_interrupted_step_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, path = checkpoints.Checkpoint.put, tmp_path / "run.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "EVERY", 1e9)  # the second step is written at the end
        patch.setattr(checkpoints.Checkpoint, "put", lambda own, at, *of: put(own, at, *of) if at < 3 else stop())
        with pytest.raises(Interrupted):
            found(path)
    expect_equal(found(), found(path))


def test_a_finished_search_is_read_back_and_goes_on_with_more_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    half = found(path, GCG(steps=2, candidates=5, top=4))
    written = path.read_bytes()
    expect_equal(half, found(path, GCG(steps=2, candidates=5, top=4)))
    assert path.read_bytes() == written
    more = found(path)
    expect_equal(found(), more)
    np.testing.assert_array_equal(more.history.seconds[:3], half.history.seconds)
    with refused(embgrad.errors.FileFormatError, "holds 4 steps, and the method takes 2: raise steps to go on"):
        found(path, GCG(steps=2, candidates=5, top=4))


def test_a_search_that_stopped_at_its_rule_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    until = float(found().objective.min()) - 0.1
    first = found(path, until=until)
    assert first.success is not None
    assert first.success.all()
    expect_equal(first, found(path, GCG(steps=9, candidates=5, top=4), until=until))


def unlike(model: ReferenceModel) -> ReferenceModel:
    model["W"].value[0, 0] += 0.5
    return model


class Sub(ReferenceModel):
    """A model of another class."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": GCG(steps=4, candidates=6, top=4)}, "method.candidates was 5 and is 6"),
        ({"method": GCG(steps=4, candidates=5, top=4, seed=1)}, "method.seed was 0 and is 1"),
        ({"method": HotFlip(steps=4)}, "method was {'class': 'GCG'"),
        ({"objective": embgrad.Logit(0)}, "objective was "),
        ({"objective": lambda outputs: outputs.sum(1), "run_id": "a"}, "objective was "),
        ({"goal": "minimize"}, "goal was 'maximize' and is 'minimize'"),
        ({"until": 4.0}, "until was 3.0 and is 4.0"),
        ({"until": [3.0, 3.0]}, "until was 3.0 and is [3.0, 3.0]"),
        ({"until": None}, "until was 3.0 and is None"),
        ({"positions": [1]}, "positions was "),
        ({"allowed": [1, 2, 3]}, "allowed was "),
        ({"model": unlike(curved())}, "weights was "),
        ({"model": Sub(curved().forward, {name: curved()[name].value for name in ("E", "U", "W")})}, "model was "),
        ({"batch": BATCH.replace(ids=BATCH.ids[::-1])}, "batch was "),
        ({"call": lambda model, inputs: model(**inputs), "run_id": "a"}, "call was None"),
    ],
)  # fmt: skip
def test_another_search_is_refused_and_its_file_stays(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "run.safetensors"
    found(path, until=3.0)
    before = path.read_bytes()
    with refused(embgrad.errors.FileFormatError, "run.safetensors holds another search: ", message, "Repeat the call"):
        found(path, **{"until": 3.0, **changes})
    assert path.read_bytes() == before
    found(path, until=3.0)


def test_what_is_no_file_of_a_search_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    result = found()
    for write in (lambda: path.write_bytes(b"garbage"), lambda: result.save(path)):
        write()
        before = path.read_bytes()
        with refused(embgrad.errors.FileFormatError, "run.safetensors is not "):
            found(path)
        assert path.read_bytes() == before
    for entry in ("[]", "{", "{}", '{"format": 1, "steps": true, "run": {}, "flags": [], "sha256": ""}', "[" * 100_000):
        write_tensors(path, {"x": np.zeros(1)}, {"embgrad_search": entry})
        with refused(
            embgrad.errors.FileFormatError, "is not the file of a search: expected what embgrad.search(..., to=...)"
        ):
            found(path)


def test_a_changed_file_and_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    found(path)
    arrays = safetensors.numpy.load_file(path)
    with safetensors.safe_open(str(path), "numpy") as file:
        entry = json.loads(file.metadata()["embgrad_search"])
    other = {**arrays, "objective": arrays["objective"] + 1}
    for held, changes in ((other, {}), (arrays, {"steps": 3}), (arrays, {"flags": ["x"]})):
        write_tensors(path, held, {"embgrad_search": json.dumps({**entry, **changes})})
        with refused(embgrad.errors.FileFormatError, "run.safetensors was changed after it was written: remove it"):
            found(path)
    write_tensors(path, arrays, {"embgrad_search": json.dumps({**entry, "format": 2})})
    with refused(embgrad.errors.FileFormatError, "holds a search in format 2, and this embgrad reads 1"):
        found(path)


def test_the_file_is_no_result(tmp_path: Path) -> None:
    found(tmp_path / "run.safetensors")
    with refused(embgrad.errors.FileFormatError, "run.safetensors holds the state of a search: repeat its call"):
        embgrad.load(tmp_path / "run.safetensors")


@pytest.mark.parametrize(
    ("to", "message"),
    [
        (3, "to is 3: expected the path of a file or folder"),
        (".", "which is a folder: expected the name of a file in a folder that exists"),
        ("no/run.safetensors", "which lies in a folder that does not exist: expected the name of a file"),
    ],
)
def test_where_no_file_can_be_is_said_before_the_model_runs(to: Any, message: str) -> None:
    model, calls = counting()
    with refused(embgrad.EmbgradError, message):
        found(to, model=model)
    assert calls == [0]


def test_what_cannot_be_identified_is_refused(tmp_path: Path) -> None:
    class Holds:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    own = lambda model, inputs: model(inputs["input_ids"])  # noqa: E731
    for options, what in (({}, "call"), ({"batch": BATCH.replace(extras={"lock": Holds()})}, "the batch")):
        call = own if what == "call" else None
        with refused(embgrad.errors.UnsupportedError, f"{what} is or holds", "give run_id='...'", "or omit to"):
            found(tmp_path / "run.safetensors", call=call, **options)
    first = found(tmp_path / "run.safetensors", call=own, run_id="first")
    expect_equal(first, found(tmp_path / "run.safetensors", call=own, run_id="first"))
    with refused(embgrad.errors.FileFormatError, "run_id was 'first' and is 'second'"):
        found(tmp_path / "run.safetensors", call=own, run_id="second")


def test_the_state_is_written_once_a_second_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = [0.0], []
    real = checkpoints.write_tensors

    def writing(path: Path, *args: Any) -> None:
        now[0] += 0.01
        written.append(now[0])
        real(path, *args)

    def wait(done: int, total: int) -> None:
        now[0] += 0.3

    monkeypatch.setattr(checkpoints, "write_tensors", writing)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    found(tmp_path / "run.safetensors", GCG(steps=12, candidates=2, top=2), progress=wait)
    assert written == pytest.approx([0.01, 1.22, 2.43, 3.64])
