"""Results in files: what is written comes back bit for bit, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import example, given
from hypothesis import strategies as st

import embgrad
from embgrad.testing.reference import ReferenceModel, lookup
from tests.unit.stored import CERTIFICATE, FULL_CERTIFICATE, IDS, TABLES, expect_same_bits, result, through_a_file

STORED_MODEL = ReferenceModel(lambda model, ids: lookup(model["E"], ids).mean(1), {"E": np.eye(4)})
SHARING_MODEL = ReferenceModel(
    lambda model, ids: lookup(model["E"], ids).mean(1) + lookup(model["P"], np.array([[0, 1]])).mean(1),
    {"E": np.eye(4), "P": np.ones((2, 4))},
)
OPTIONAL = st.fixed_dictionaries(
    {},
    optional={
        "mask": st.none(),
        "types": st.none(),
        "tokens": st.one_of(
            st.none(),
            st.just((("\ud800", "\x00", '"\\'), ("電影", "", "🎬"))),
            st.tuples(*[st.tuples(*[st.text()] * 3)] * 2),
        ),
        "words_of": st.none(),
        "objective": st.just(np.array([np.pi, 1e-300])),
        "pad_leak": st.floats(0, 1e30),
        "tables": st.just(TABLES),
        "before": st.just(np.full((2, 3, 4), 3.0, np.float32)),
        "certificate": st.sampled_from([CERTIFICATE, FULL_CERTIFICATE]),
        "provenance": st.dictionaries(
            st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)
        ).filter(lambda one: not set(one) & {"backend", "model", "point", "path", "objective", "versions", "captured"}),
    },
)


@given(OPTIONAL)
def test_a_file_gives_the_result_back_bit_for_bit(changes: dict[str, Any]) -> None:
    one = result(**changes)
    expect_same_bits(one, through_a_file(one))


def test_a_string_and_a_path_name_a_file(tmp_path: Path) -> None:
    result().save(str(tmp_path / "gradients élève.safetensors"))
    expect_same_bits(result(), embgrad.load(tmp_path / "gradients élève.safetensors"))
    embgrad.save(result(), str(tmp_path / "g.safetensors"))
    assert (tmp_path / "g.safetensors").read_bytes() == (tmp_path / "gradients élève.safetensors").read_bytes()


def test_a_file_outlasts_a_power_failure_where_this_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    path = tmp_path / "g.safetensors"
    result().save(path)
    embgrad.save(result(), path)
    assert not synced
    embgrad.save(result(), path, durable=True)
    assert path.stat().st_size in synced


SPECIAL = np.array([[[np.nan, -0.0, np.inf, 5e-324]]])


@pytest.mark.parametrize(
    "stored",
    [
        result(np.float64, objective=np.array(0.1)),
        result(
            **{"values": SPECIAL, "activations": SPECIAL, "objective": np.zeros(1), "ids": IDS[:1, :1]},
            **dict.fromkeys(("mask", "types", "tokens", "words_of")),
        ),
        embgrad.gradients(STORED_MODEL, [[0, 1], [2, 3]], embgrad.Sum()),
        embgrad.gradients(STORED_MODEL, [[0, 1], [2, 3]], embgrad.Scalar(lambda output: output.column(0).sum(0))),
        result(values=np.asfortranarray(result().values), ids=IDS[:, ::-1][:, ::-1]),
        embgrad.gradients(SHARING_MODEL, [[0, 1], [2, 3], [3, 3]], embgrad.Sum(), at="P"),
        result(objective=None, provenance={**result().provenance, "captured": True}),
    ],
    ids=["float64", "special values", "of a run", "of a scalar objective", "strided", "of a shared table", "captured"],
)
def test_results_come_back(stored: embgrad.results.EmbeddingGradients) -> None:
    expect_same_bits(stored, through_a_file(stored))


def test_provenance_that_json_cannot_hold() -> None:
    provenance = {"objective": {"class": "Mine", "factor": np.float32(0.5), "weights": np.arange(2), "other": object}}
    kept = through_a_file(result(provenance=provenance)).provenance["objective"]
    assert (kept["factor"], kept["weights"]) == (0.5, [0, 1])
    assert "object" in kept["other"]


def test_a_file_is_any_safetensors_reader_s(tmp_path: Path) -> None:
    result().save(tmp_path / "g.safetensors")
    tensors = safetensors.numpy.load_file(tmp_path / "g.safetensors")
    np.testing.assert_array_equal(tensors["values"], result().values)
    assert set(tensors) == {"values", "activations", "objective", "ids", "mask", "types", "words"}
    with safetensors.safe_open(str(tmp_path / "g.safetensors"), "numpy") as file:
        assert json.loads(file.metadata()["embgrad"])["format"] == 1


@pytest.mark.parametrize("path", [3, None, [], b"bytes"])
def test_invalid_paths_are_refused(path: Any) -> None:
    with pytest.raises(embgrad.EmbgradError, match=r"path is .*: expected the path of a file or folder"):
        embgrad.load(path)
    with pytest.raises(embgrad.EmbgradError, match=r"path is .*: expected the path of a file or folder"):
        embgrad.save(result(), path)
    with pytest.raises(embgrad.EmbgradError, match=r"folder is .*: expected the path"):
        embgrad.open_stream(path)
    with pytest.raises(embgrad.EmbgradError, match=r"folder is .*: expected the path"):
        embgrad.zoo.load_bert(path, "reference")


NAMES = st.lists(st.text(max_size=20), unique=True, min_size=1, max_size=4)


@given(NAMES)
@example(["layer.-1", "a/b", "", "word#1", "élève", "\ud800", "\x00", '"', "0", "0.values", "name", "../../x"])
def test_several_results_come_back_by_any_name_in_order(names: list[str]) -> None:
    results = {
        name: result(values=np.full((2, 3, 4), number, np.float32), tables=TABLES if number % 2 else None)
        for number, name in enumerate(names)
    }
    again = through_a_file(results)
    assert list(again) == names
    for name, one in results.items():
        expect_same_bits(one, again[name])


def test_a_mapping_of_one_comes_back_as_a_mapping() -> None:
    assert list(through_a_file({"word": result()})) == ["word"]


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (
            {},
            "results is empty: expected a result of .*, embgrad.check_port or embgrad.tables.influence, .*, of one",
        ),
        (
            3,
            "results is of type int: expected a result of embgrad.gradients, embgrad.attribute, embgrad.attribute_tokens, "
            "embgrad.attribute_pairs, embgrad.substitutions, embgrad.search, embgrad.check_port or embgrad.tables.influence, "
            "or a mapping",
        ),
        ([1], "results is of type list"),
        ({"a": 3}, "results holds 'a': int: expected a result"),
        ({1: result()}, "results holds 1: EmbeddingGradients: expected .* names"),
        ("g.safetensors", "results is 'g.safetensors': .* the path comes second"),
    ],
)
def test_anything_but_results_is_not_saved(tmp_path: Path, results: Any, message: str) -> None:
    with pytest.raises(embgrad.EmbgradError, match=message):
        embgrad.save(results, tmp_path / "g.safetensors")
    assert not os.listdir(tmp_path)


LOOP: dict[str, Any] = {}
LOOP["itself"] = LOOP


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": np.ones((2, 3, 4), np.float16)}, "holds values of dtype float16: expected float32 or float64"),
        ({"activations": np.ones((2, 3, 4))}, "activations of dtype float64: expected float32"),
        ({"ids": IDS.astype(np.int32)}, "ids of dtype int32: expected int64"),
        ({"tokens": (("a",), ("b",))}, "tokens that are not one for each of the ids"),
        ({"vocab": 7}, "holds the id 7: expected rows of its table of 7"),
        ({"pad_leak": float("nan")}, "says pad_leak nan"),
        ({"provenance": LOOP}, "its provenance cannot be stored as JSON"),
        ({"provenance": {(1, 2): 3}}, "its provenance cannot be stored as JSON"),
        ({"provenance": {"model": 3}}, r"3 as provenance\['model'\]: expected text"),
    ],
)
def test_unreadable_results_are_not_written(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    for results in (result(**changes), {"fine": result(), "not": result(**changes)}):
        with pytest.raises(embgrad.EmbgradError, match=message):
            embgrad.save(results, tmp_path / "g.safetensors")
    assert not os.listdir(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    for path, said in {tmp_path / "nowhere" / "g.safetensors": "No such file", tmp_path: "Is a directory"}.items():
        with pytest.raises(OSError, match=said) as raised:
            result().save(path)
        assert raised.value.filename == str(path), "and not the temporary file's name"
    with pytest.raises(FileNotFoundError, match="does not exist: expected a safetensors file"):
        embgrad.load(tmp_path / "nothing.safetensors")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_or_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        small = result(values=np.zeros((2, 3, 4), np.float32))
        small.save(path)
        (tmp_path / "g.safetensors").write_bytes(os.read(reader, 1 << 16))
    finally:
        os.close(reader)
    assert path.is_fifo()
    assert not embgrad.load(tmp_path / "g.safetensors").values.any()
