"""Folders of results: interrupted runs end in the same bytes, and are read back bit for bit."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.common.safetensors import MOST_HEADER
from embgrad.errors import EmbgradError, FileFormatError
from embgrad.streaming import writer as writing
from embgrad.streaming.totals import Total
from embgrad.testing.reference import ReferenceModel
from tests.unit.streams import (
    COUNT,
    LABELLED,
    Pieces,
    by_hand,
    expect_same_bits,
    forward,
    model,
    rows,
    run,
    tokenizer,
)

pytestmark = pytest.mark.usefixtures("small_shards")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


def counted() -> tuple[ReferenceModel, list[int]]:
    runs: list[int] = []

    def counting(self: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Any:
        runs.append(len(input_ids))
        return forward(self, input_ids, attention_mask)

    return ReferenceModel(counting, {name: item.value for name, item in model().parameters.items()}), runs


def begin(results: int, to: Path, *source: Any, **options: Any) -> None:
    """Write some results of a run, and close it."""
    with run(to, *source, **options) as parts:
        for _ in range(results):
            next(parts)


def expect_same(expected: Any, actual: Any) -> None:
    if isinstance(expected, list):
        for array, same in zip(expected, actual, strict=True):
            expect_same(array, same)
    elif isinstance(expected, dict):
        assert list(expected) == list(actual)
        for name in expected:
            expect_same(expected[name], actual[name])
    elif isinstance(expected, embgrad.results.Attribution):
        for name in ("scores", "objective", "ids", "mask"):
            array, same = getattr(expected, name), getattr(actual, name)
            assert (array.dtype, array.shape, array.tobytes()) == (same.dtype, same.shape, same.tobytes())
        assert (expected.tokens, dict(expected.provenance)) == (actual.tokens, dict(actual.provenance))
    else:
        expect_same_bits(expected, actual)


def test_results_are_read_back_bit_for_bit(tmp_path: Path) -> None:
    given = list(run(tmp_path / "run"))
    actual = embgrad.open_stream(tmp_path / "run")
    assert (len(actual), actual.examples, actual.complete, actual.keep) == (12, COUNT, True, "all")
    assert repr(actual).endswith("12 results of 23 examples, keep='all', complete)")
    for first, second, third in zip(given, actual, by_hand(COUNT, 2), strict=True):
        expect_same_bits(first, second)
        expect_same_bits(first, third)
    expect_same_bits(actual[7], given[7])
    expect_same_bits(actual[-1], given[-1])
    with pytest.raises(IndexError):
        actual[12]


def test_results_are_indexed_by_whole_numbers_and_slices(tmp_path: Path) -> None:
    streamed = list(run(tmp_path / "run"))
    folder = embgrad.open_stream(tmp_path / "run")
    for part in (slice(3), slice(2, 11, 4), slice(None, None, -1), slice(-2, None), slice(20, 30), slice(None)):
        assert isinstance(folder[part], list)
        expect_same([*streamed[part]], [*folder[part]])
    expect_same_bits(folder[np.int64(-12)], streamed[0])
    for shard in (tmp_path / "run").glob("*.safetensors"):
        shard.unlink()
    expect_same_bits(folder[0], streamed[0])  # the shard that was read last stays in memory
    message = r"the number of a result is .*: expected a whole number, .*or a slice"
    for wrong in ("3", 1.0, None, (1, 2), slice(None, None, 0), slice("a")):
        with pytest.raises(EmbgradError, match=message):
            folder[wrong]


def test_the_sum_of_a_folder_equals_that_of_its_stream(tmp_path: Path) -> None:
    plain = run(tmp_path / "all").table()
    kept = run(tmp_path / "table", keep="table").table()
    both = run(tmp_path / "both", keep="table", at=["word"]).table()
    in_memory = embgrad.stream(model(), rows(COUNT), LABELLED, tokenizer=tokenizer, batch_size=2).table()
    for other in (kept, both["word"], in_memory, embgrad.open_stream(tmp_path / "all").table()):
        np.testing.assert_array_equal(other.rows, plain.rows)
        np.testing.assert_array_equal(other.values, plain.values)
    assert [name for name in files(tmp_path / "table") if name.startswith("shard")] == [
        "shard-00000000-000012.safetensors"
    ]
    with pytest.raises(EmbgradError, match=r"call \.table\(\)"):
        list(embgrad.open_stream(tmp_path / "table"))
    run(tmp_path / "saliency", keep="saliency").finish()
    with pytest.raises(
        EmbgradError, match="the folder holds attributions, which have no table gradients: expected a folder"
    ):
        embgrad.open_stream(tmp_path / "saliency").table()


@pytest.mark.parametrize("options", [{}, {"keep": "saliency"}, {"keep": "table"}, {"at": ["word", "block"]}])
@pytest.mark.parametrize("stops", [[1], [3], [5, 1, 4], [12]])
def test_an_interrupted_run_ends_in_the_same_bytes(tmp_path: Path, options: dict[str, Any], stops: list[int]) -> None:
    whole = run(tmp_path / "whole", **options)
    whole.finish()
    for stop in stops:
        with run(tmp_path / "parts", **options) as parts:
            for _ in range(stop):
                parts._next()
    given, runs = counted()
    last = run(tmp_path / "parts", given, **options)
    if options.get("keep") == "table":
        last.finish()
    else:
        expected = list(run(tmp_path / "another", **options))
        expect_same([*expected], [*last])
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    if options == {} and stops == [3]:
        assert sum(runs) == COUNT - 6  # what was finished is not run again


def test_finishing_a_run_does_not_read_its_results_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(3, tmp_path)

    def read_back(*_: Any) -> Any:
        raise AssertionError("results are read back where they are taken one by one alone")

    monkeypatch.setattr("embgrad.streaming.run._read_back", read_back)
    reported: list[Any] = []
    assert len(run(tmp_path, progress=lambda *pair: reported.append(pair)).finish()) == 12
    assert reported[:3] == [(0, None), (6, None), (8, None)]
    with pytest.raises(AssertionError, match="one by one alone"):
        next(run(tmp_path))


def test_a_complete_run_does_not_run_the_model_again(tmp_path: Path) -> None:
    run(tmp_path).finish()
    before = files(tmp_path)
    given, runs = counted()
    assert len(list(run(tmp_path, given))) == 12
    assert runs == []
    assert files(tmp_path) == before


MOMENTS = {
    "before the shard": (writing, "file_digest", True),
    "after the shard": (writing, "file_digest", False),
    "before the manifest": (writing, "write_manifest", True),
    "after the manifest": (writing, "write_manifest", False),
    "at the shard before": (Path, "unlink", True),
    "after a sum": (Total, "add", False),
}


@pytest.mark.parametrize("keep", ["all", "saliency", "table"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interruption_at_any_moment_counts_no_example_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, keep: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    run(tmp_path / "whole", keep=keep).finish()
    owner, name, before = MOMENTS[moment]
    step = getattr(owner, name)
    for stop in (1, 2, 4):
        calls = itertools.count(1)

        def stopping(*given: Any, stop: int = stop, calls: Iterator[int] = calls, **options: Any) -> Any:
            number = next(calls)
            if number == stop and before:
                raise KeyboardInterrupt
            actual = step(*given, **options)
            if number == stop:
                raise KeyboardInterrupt
            return actual

        parts = tmp_path / f"parts {stop}"
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, stopping)
            with contextlib.suppress(KeyboardInterrupt):
                run(parts, keep=keep).finish()
        (parts / ".shard-00000003-000003.safetensors.abc.part").write_bytes(b"half")  # as of a process that was killed
        run(parts, keep=keep).finish()
        assert files(parts) == files(tmp_path / "whole")


KILLED = """
import sys, time
from pathlib import Path
import embgrad
from embgrad.streaming import folder as reading
from embgrad.streaming import writer as writing
from tests.unit.streams import model, rows, tokenizer
writing.MOST_RESULTS = 3
def slowly():
    for number, row in enumerate(rows(400)):
        time.sleep(0.002)
        yield row
labelled = embgrad.Labelled(embgrad.CrossEntropy)
embgrad.stream(model(), slowly(), labelled, tokenizer=tokenizer, batch_size=2, to=sys.argv[1]).finish()
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_killed_run_is_continued(tmp_path: Path) -> None:
    for results in (6, 30):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "parts")]
        child = subprocess.Popen(command, cwd=Path(__file__).parents[3])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and _finished(tmp_path / "parts") < results:
            assert child.poll() is None
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert results <= _finished(tmp_path / "parts") < 200
    assert not embgrad.open_stream(tmp_path / "parts").complete
    given, runs = counted()
    run(tmp_path / "parts", given, rows(400)).finish()
    assert sum(runs) <= 400 - 60
    run(tmp_path / "whole", source=rows(400)).finish()
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


LEFT = """
import os, sys
import embgrad
from tests.unit.streams import model, rows, tokenizer
labelled = embgrad.Labelled(embgrad.CrossEntropy)
results = embgrad.stream(model(), rows(23), labelled, tokenizer=tokenizer, batch_size=2, to=sys.argv[1], keep=sys.argv[2])
for number in range(7):
    results._next()
if sys.argv[3] == "interrupted":
    raise KeyboardInterrupt
"""


@pytest.mark.parametrize("end", ["ended", "interrupted"])
@pytest.mark.parametrize("keep", ["all", "table"])
def test_a_process_that_ends_within_a_stream_loses_no_result(tmp_path: Path, keep: str, end: str) -> None:
    command = [sys.executable, "-c", LEFT, str(tmp_path), keep, end]
    actual = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert "Exception ignored" not in actual.stderr
    assert _finished(tmp_path) == 7


def test_a_forked_copy_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = run(tmp_path)
    next(parts)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        with pytest.raises(
            EmbgradError, match="belongs to the process from which this one was forked, which continues it"
        ):
            next(parts)
        parts.close()
        assert list(parts) == []
    assert files(tmp_path) == {}


@pytest.mark.parametrize("written", [False, True])
def test_a_forked_copy_returns_no_result(tmp_path: Path, written: bool) -> None:
    parts = run(tmp_path / "run" if written else None)
    next(parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
        child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            next(parts)
        except EmbgradError as error:
            os._exit(3 if "create a new stream in this process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert len(list(parts)) == len(by_hand(COUNT, 2)) - 1


def _finished(folder: Path) -> int:
    return len(embgrad.open_stream(folder)) if (folder / "manifest.json").exists() else 0


@pytest.mark.parametrize(
    "name", ["thesis.txt", "shard-00001-of-00002.safetensors", "shard-00000003-000003.safetensors"]
)
def test_files_without_a_manifest_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"weights")
    with pytest.raises(FileFormatError, match=rf"holds '{name}' and no manifest\.json"):
        run(tmp_path)
    (tmp_path / name).rename(tmp_path / "aside")
    (tmp_path / "aside").rename(tmp_path.parent / name)
    run(tmp_path).finish()
    (tmp_path.parent / name).rename(tmp_path / "shard-of-mine.safetensors")
    run(tmp_path).finish()
    assert (tmp_path / "shard-of-mine.safetensors").read_bytes() == b"weights"


def test_a_folder_without_a_manifest_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is not a folder: expected what embgrad.stream"):
        embgrad.open_stream(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"holds no manifest\.json"):
        embgrad.open_stream(tmp_path)


def test_a_stream_that_was_closed_before_its_end_has_no_sum(tmp_path: Path) -> None:
    def stop(done: int, count: int | None) -> None:
        if done == 6:
            raise KeyboardInterrupt

    parts = run(tmp_path, keep="table", progress=stop)
    with pytest.raises(KeyboardInterrupt):
        parts.table()
    for ask in (parts.table, parts.finish):
        with pytest.raises(
            EmbgradError, match=r"the stream was closed or failed before the end of its source.* holds 3 results"
        ):
            ask()
    actual = run(tmp_path, keep="table").table()
    expected = run(tmp_path / "whole", keep="table").table()
    np.testing.assert_array_equal(actual.rows, expected.rows)
    np.testing.assert_array_equal(actual.values, expected.values)


@pytest.mark.parametrize("keep", ["all", "saliency"])
def test_a_modified_result_is_not_written(tmp_path: Path, keep: str) -> None:
    def changed(result: Any) -> None:
        for name in ("values", "activations", "objective", "norm", "dot", "ids"):
            if getattr(result, name, None) is not None:
                getattr(result, name)[...] = 0

    expected = list(run(tmp_path / "one", keep=keep))
    for result in run(tmp_path / "other", keep=keep):
        changed(result)
    assert files(tmp_path / "one") == files(tmp_path / "other")
    folder = embgrad.open_stream(tmp_path / "other")
    for _ in range(2):
        actual = folder[3]
        np.testing.assert_array_equal(actual.objective, expected[3].objective)
        np.testing.assert_array_equal(actual.ids, expected[3].ids)
        changed(actual)


@pytest.mark.parametrize("inside", ["", "run", "run/deep"])
def test_a_file_where_the_folder_should_be_is_left_alone(tmp_path: Path, inside: str) -> None:
    file = tmp_path / "thesis.txt"
    file.write_text("chapter 1")
    with pytest.raises(FileFormatError, match=r"cannot be made, as \S+thesis\.txt is a file: expected an empty folder"):
        run(file / inside)
    assert file.read_text() == "chapter 1"


def test_a_relative_folder_is_resolved_when_the_stream_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = run(Path("run"))
    next(parts)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(parts.finish()) == 12
    assert (tmp_path / "run").is_dir()


def test_the_arguments_of_objectives_count_for_the_size_of_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MOST_RESULTS", 1000)
    monkeypatch.setattr(writing, "MOST_TEXT", 50_000)
    source = (embgrad.TokenBatch([[1, 2, 3]]) for _ in range(12))
    monkeypatch.setattr(embgrad.Projection, "describe", lambda self: {"class": "Projection", "v": [0.1] * 3000})
    stream = embgrad.stream(model(), source, embgrad.Projection([1.0, 2.0, 3.0]), to=tmp_path)
    assert len(stream.finish()) == 12
    assert len(list(tmp_path.glob("shard-*"))) == 3


def test_streams_split_long_texts_among_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * writing.MOST_TEXT < MOST_HEADER
    monkeypatch.setattr(writing, "MOST_RESULTS", 1000)
    monkeypatch.setattr(writing, "MOST_TEXT", 10_000)
    long = Pieces(lambda text: [letter * 2000 for letter in text])
    source = ["ab", "cd", "ef", "gh", "ij"]
    options = {"tokenizer": long, "batch_size": 1, "to": tmp_path, "run_id": "a"}
    embgrad.stream(model(), source, embgrad.Sum(), **options).finish()
    assert len(list(tmp_path.glob("shard-*"))) == 2
    assert [item.tokens[0][1][0] for item in embgrad.open_stream(tmp_path)] == ["a", "c", "e", "g", "i"]
