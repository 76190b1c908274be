"""Files are read as datasets of rows, and broken files are named."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import embgrad
from embgrad.errors import BatchError, FileFormatError
from embgrad.ray import plain_errors
from embgrad.ray.source import Lines, dataset_of, json_table
from tests.unit.ray import models
from tests.unit.results.test_io_hostile import at_once, unix

pytestmark = pytest.mark.usefixtures("cluster")


@unix
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.txt"])
def test_pipes_and_broken_links_are_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(FileFormatError, match="is not a regular file: expected one of Parquet, JSON lines or texts"):
        at_once(lambda: dataset_of(tmp_path / name))
    (tmp_path / "link.jsonl").symlink_to("nowhere")
    with pytest.raises(FileFormatError, match="does not exist: expected a file of Parquet"):
        dataset_of(tmp_path / "link.jsonl")


def test_each_line_is_a_text(tmp_path: Path) -> None:
    lines = ["one\u2028still one", "two\x85still two", "three\x0cstill three", "w1 é"]
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n \n\n".join(lines).encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\r".join(lines).encode()))
    for name in ("a.txt", "b.txt.gz"):
        assert dataset_of(tmp_path / name).take_all() == [{"text": line} for line in lines]
    (tmp_path / "blank.txt").write_bytes(b"\n \n")
    with pytest.raises(BatchError, match="the dataset holds no row"):
        embgrad.ray.table(tmp_path / "blank.txt", models.reference, embgrad.Sum())


def test_objects_are_read_from_lines_or_a_list(tmp_path: Path) -> None:
    lines = '{"ids": [1, 2], "text": "a\u2028b"}\r\n\n{"ids": [3]}\n'
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    (tmp_path / "a.json").write_text('[{"ids": [1, 2], "text": "a\u2028b"},\n {"ids": [3], "text": null}]')
    (tmp_path / "long.ndjson").write_text(
        '{"ids": [' + ", ".join(["7"] * 600_000) + "]}\n"
    )  # longer than Arrow's pieces
    for name in ("a.jsonl", "a.json"):
        assert dataset_of(tmp_path / name).take_all() == [
            {"ids": [1, 2], "text": "a\u2028b"},
            {"ids": [3], "text": None},
        ]
    ((row,),) = (dataset_of(tmp_path / "long.ndjson").take_all(),)
    assert row["ids"] == [7] * 600_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"ids": [1]}\n{"ids": [1\n',
            r"^a, line 2 cannot be read as JSON \(.*\): expected an object a line, with ",
        ),
        (b'{"ids": [1]}\n\n[1, 2]\n', r"^a, line 3 cannot be read as JSON \('\[1, 2\] is not an object'\)"),
        (
            b'{"ids": [1]}\n{"ids": "x"}\n',
            r"^the column 'ids' of a cannot be read as JSON \('cannot mix.*one type in each column",
        ),
        (b'[{"ids": [1]}, {"ids": "x"}]', r"^the column 'ids' of a cannot be read as JSON \('cannot mix"),
        (b'{"k": 1, "k": 2}', r"^a, line 1 cannot be read as JSON .*two values of one name, among 'k', 'k'"),
        (b"[1, 2]", r"^a cannot be read as JSON \('1 is not an object'\)"),
        (b'{"k": 1}\nnull\n', r"^a, line 2 cannot be read as JSON \('None is not an object'\)"),
        (b'{"k": ' + b"[" * 200 + b"]" * 200 + b"}", r"^the column 'k' of a cannot be read as JSON"),
        (b'{"k": ' * 30_000 + b"1" + b"}" * 30_000, "^a, line 1 cannot be read as JSON .*recursion"),
        (b'[{"k":\n' + b"[" * 5000 + b"]" * 5000 + b"}]", "^a cannot be read as JSON .*recursion"),
        (b'{"k": [1\n' * 200, "^a, line 1 cannot be read as JSON"),
        (b'{"k": 1}\n{"k": "caf\xe9"}\n', r"^a, line 2: byte 0xe9 at position 11 is not UTF-8"),
        ('{"k": "é"}'.encode("utf-16"), "^a is UTF-16: expected UTF-8"),
        (b'{"k": 1}\n{"k": 18446744073709551615}', "^the column 'k' of a cannot be read as JSON .*too large"),
        (b'[{"k": 1},\n{"k": [9223372036854775808]}]', "^the column 'k' of a cannot be read as JSON"),
        (b'{"k": "\\ud800"}', "^the column 'k' of a cannot be read as JSON .*surrogates"),
    ],
)
def test_other_lines_are_named(content: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        json_table(content, "a")


def test_numbers_are_read_exactly() -> None:
    lines = b"""{"key": 9223372036854775807, "text": "18446744073709551615", "far": 1e30}
        {"key": -9223372036854775808, "text": "", "far": 18446744073709551615.0}"""
    assert json_table(lines, "a").to_pylist() == [
        {"key": 2**63 - 1, "text": "18446744073709551615", "far": 1e30},
        {"key": -(2**63), "text": "", "far": 2.0**64},
    ]


def test_columns_may_begin_in_later_rows() -> None:
    rows = [{"a": 1}, {"a": 2, "note": "kept"}]
    for content in ('[{"a": 1}, {"a": 2, "note": "kept"}]', '{"a": 1}\n{"a": 2, "note": "kept"}'):
        assert json_table(content.encode(), "a").to_pylist() == [{**rows[0], "note": None}, rows[1]]


def test_texts_like_dates_are_texts() -> None:
    lines = b"""{"text": "2020-01-01", "more": {"at": ["2020-01-01T10:00:00Z"], "n": 1}, "label": 0}
        {"text": "1999-12-31", "more": {"at": ["2020-01-01 10:00"], "n": 2}, "label": null}"""
    assert json_table(lines, "a").to_pylist() == [
        {"text": "2020-01-01", "more": {"at": ["2020-01-01T10:00:00Z"], "n": 1}, "label": 0},
        {"text": "1999-12-31", "more": {"at": ["2020-01-01 10:00"], "n": 2}, "label": None},
    ]


def test_nested_values_within_the_limit_are_read(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(99):
        deep = {"k": [deep]} if not isinstance(deep, dict) else {"k": deep}
    rows = [{"text": '[[{"\\', "deep": None}] * 150 + [{"text": ":[", "deep": deep["k"]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert dataset_of(tmp_path / "a.jsonl").take_all() == rows


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.txt.gz", "b.parquet", "a.json.bz2"])
def test_broken_files_are_named(tmp_path: Path, name: str) -> None:
    if name == "b.parquet":
        parquet.write_table(pa.table({"text": [str(number) for number in range(10_000)]}), tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:400] + bytes(800) + whole[1200:])
    else:
        (tmp_path / name).write_bytes(b'{"text": "a"}\n')
    with pytest.raises(FileFormatError, match=rf"{name}'? cannot be read.*: .*expected") as caught:
        embgrad.ray.table(tmp_path / name, models.reading, embgrad.Sum())
    assert len(str(caught.value)) < 500


def test_truncated_files_are_named() -> None:
    whole = gzip.compress(b'{"text": "a"}\n' * 10_000)
    for content in (whole[:60], b'{"text": "a"}'):
        stream = pa.CompressedInputStream(pa.BufferReader(content), "gzip")
        with pytest.raises(
            FileFormatError, match=r"^a\.gz cannot be read \(.*\): expected a complete file, compressed as"
        ):
            list(Lines([str(Path(__file__))], json_table)._read_stream(stream, "a.gz"))


def test_errors_of_a_dataset_are_unchanged() -> None:
    import ray.data

    def broken(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("of the user's own")

    rows = ray.data.from_items([{"text": "w1"}]).map(broken)
    with pytest.raises(ray.exceptions.RayTaskError, match="of the user's own"):
        embgrad.ray.table(rows, models.reading, embgrad.Sum())


@pytest.mark.parametrize("name", ["", "a.jsonl", "a.parquet"])
def test_paths_with_a_question_mark_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        FileFormatError, match=r"what\?(/a\.\w+)? holds a '\?', after which Ray finds no files: rename it"
    ):
        dataset_of(tmp_path / "what?" / name)


def test_errors_in_files_are_extracted_from_those_of_ray(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"ids": [1]}\n{"ids": [1\n')
    (tmp_path / "a.txt").write_bytes(b"film\ncaf\xe9 noir\n")
    for name, message in (
        ("a.jsonl", "line 2 cannot be read as JSON"),
        ("a.txt", "line 2: byte 0xe9 at position 4 is not UTF-8"),
    ):
        with pytest.raises(FileFormatError, match=message) as caught, plain_errors():
            dataset_of(tmp_path / name).take_all()
        assert "Failed to" not in str(caught.value)  # what Ray says of it
    with pytest.raises(FileFormatError, match=r"a\.jsonl, line 2 cannot be read as JSON") as caught:
        embgrad.ray.table(tmp_path / "a.jsonl", models.reference, embgrad.Sum(), ids="ids")
    assert "Failed to" not in str(caught.value)


def test_paths_are_checked(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"does not exist"):
        dataset_of(tmp_path / "no.parquet")
    with pytest.raises(FileFormatError, match=r"^'foo://a.parquet' cannot be read: .*expected files of Parquet"):
        dataset_of("foo://a.parquet")
    (tmp_path / "a.csv").touch()
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.jsonl.gz").touch()
    with pytest.raises(FileFormatError, match=r"ends in '.csv': expected one of"):
        dataset_of(tmp_path / "a.csv")
    with pytest.raises(FileFormatError, match=r"of different formats"):
        dataset_of([tmp_path / "a.txt", tmp_path / "a.jsonl.gz"])
    with pytest.raises(
        FileFormatError, match=r"a\.txt is named more than once, but Ray reads a Parquet file only once"
    ):
        dataset_of([tmp_path / "a.txt", str(tmp_path / "a.txt")])
    for given in (3, [], [{"text": "a"}]):
        with pytest.raises(BatchError, match=r"expected a ray.data.Dataset, or the paths"):
            dataset_of(given)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.jsonl").touch()
    with pytest.raises(FileFormatError, match=r"inner is not a regular file: .* or a folder of Parquet files"):
        dataset_of(tmp_path / "inner")
    (tmp_path / "inner" / "a.parquet").touch()
    with pytest.raises(FileFormatError, match=r"a\.parquet' cannot be read: .*expected files of Parquet"):
        dataset_of(tmp_path / "inner" / "a.parquet")
    for folder, message in (
        (tmp_path / "a?b", r"a\?b holds a '\?', after which Ray finds no files: rename it"),
        (
            "foo://a/b",
            r"^foo://a/b cannot be written to \(.*foo.*\): expected a folder, or an address that pyarrow knows",
        ),
        (None, r"^the folder is None: expected the name of a new one"),
        (tmp_path / "a.txt" / "b", r"a\.txt/b cannot be written to \(.*Not a directory.*\): expected a folder"),
    ):
        with pytest.raises(FileFormatError, match=message):
            embgrad.ray.write(tmp_path / "a.txt", models.reference, embgrad.Sum(), folder)
    with pytest.raises(FileFormatError, match=r"holds 4 files"):
        embgrad.ray.write(tmp_path / "a.txt", models.reference, embgrad.Sum(), tmp_path)
    with pytest.raises(FileFormatError, match=r"a\.txt cannot be written to \(.*: expected a folder"):
        embgrad.ray.write(tmp_path / "a.txt", models.reference, embgrad.Sum(), tmp_path / "a.txt")
