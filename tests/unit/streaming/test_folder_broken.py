"""Broken and hostile folders of results are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import EmbgradError, FileFormatError
from embgrad.streaming import folder as reading
from tests.unit.streams import run

pytestmark = pytest.mark.usefixtures("small_shards")


def _edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        read = json.loads(path.read_text())
        change(read)
        path.write_text(json.dumps(read))

    return edit


BROKEN: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "a list": lambda path: path.write_text("[]"),
    "twice": lambda path: path.write_text(path.read_text().replace('"complete"', '"keep": "all", "complete"', 1)),
    "later": _edited(lambda read: read.update({"embgrad-stream": 2})),
    "no version": _edited(lambda read: read.pop("embgrad-stream")),
    "a word as version": _edited(lambda read: read.update({"embgrad-stream": "1"})),
    "another field": _edited(lambda read: read.update(more=1)),
    "no field": _edited(lambda read: read.pop("run")),
    "keep": _edited(lambda read: read.update(keep="some")),
    "names": _edited(lambda read: read.update(names=[1])),
    "no names": _edited(lambda read: read.update(names=[])),
    "a name twice": _edited(lambda read: read.update(names=["a", "a"], single=False)),
    "single": _edited(lambda read: read.update(names=["a", "b"])),
    "run": _edited(lambda read: read.update(run=[])),
    "complete": _edited(lambda read: read.update(complete=1)),
    "shards": _edited(lambda read: read.update(shards={})),
    "a shard": _edited(lambda read: read["shards"].append(3)),
    "a shard with a path": _edited(lambda read: read["shards"][0].update(file="../../etc/passwd")),
    "a count": _edited(lambda read: read["shards"][0].update(results=-1)),
    "a count of nothing": _edited(lambda read: read["shards"][0].update(results=0)),
    "a count that is no number": _edited(lambda read: read["shards"][0].update(examples=True)),
    "a great count": _edited(lambda read: read["shards"][0].update(examples=10**400)),
    "a digest": _edited(lambda read: read["shards"][0].update(sha256="../")),
    "full": _edited(lambda read: read["shards"][0].update(full=None)),
    "a gap": _edited(lambda read: read["shards"][1].update(first=4)),
    "order": _edited(lambda read: read["shards"].reverse()),
    "not full in the middle": _edited(lambda read: read["shards"][0].update(full=False)),
    "two sums": _edited(lambda read: read.update(keep="table", shards=read["shards"][:2])),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_manifests_are_refused(tmp_path: Path, name: str) -> None:
    run(tmp_path).finish()
    BROKEN[name](tmp_path / "manifest.json")
    with pytest.raises(FileFormatError, match="manifest"):
        embgrad.open_stream(tmp_path)
    with pytest.raises(FileFormatError, match="manifest"):
        run(tmp_path)


@pytest.mark.parametrize("keep", ["all", "table"])
def test_a_manifest_without_shards_has_no_sum(tmp_path: Path, keep: str) -> None:
    run(tmp_path, keep=keep).finish()
    _edited(lambda read: read.update(shards=[], complete=False))(tmp_path / "manifest.json")
    actual = embgrad.open_stream(tmp_path)
    assert (len(actual), actual.complete) == (0, False)
    with pytest.raises(EmbgradError, match="no batch is finished: expected one at least, to sum up"):
        actual.table()


@pytest.mark.parametrize("keep", ["all", "saliency", "table"])
def test_broken_shards_are_refused(tmp_path: Path, keep: str) -> None:
    def read() -> None:
        actual = embgrad.open_stream(tmp_path)
        actual.table() if keep == "table" else list(actual)

    run(tmp_path, keep=keep).finish()
    shard = sorted(tmp_path.glob("shard-*"))[0]
    whole = shard.read_bytes()
    for index in range(0, len(whole), max(1, len(whole) // 7)):
        changed = bytearray(whole)
        changed[index] ^= 1
        shard.write_bytes(changed)
        with pytest.raises(FileFormatError, match="SHA-256"):
            read()
    shard.write_bytes(whole[:-1])
    with pytest.raises(FileFormatError):
        read()
    shard.unlink()
    with pytest.raises(FileFormatError, match="is missing, which the manifest names"):
        read()


def _rewritten(folder: Path, data: bytes) -> None:
    import hashlib

    shard = sorted(folder.glob("shard-*"))[0]
    shard.write_bytes(data)
    _edited(lambda read: read["shards"][0].update(sha256=hashlib.sha256(data).hexdigest()))(folder / "manifest.json")


@pytest.mark.parametrize("keep", ["all", "saliency", "table"])
def test_shards_of_other_content_are_refused(tmp_path: Path, keep: str) -> None:
    import safetensors.numpy

    def read() -> Iterator[Any]:
        actual = embgrad.open_stream(tmp_path)
        return iter([actual.table()] if keep == "table" else list(actual))

    run(tmp_path / "other", keep="saliency" if keep == "all" else "all").finish()
    other = sorted((tmp_path / "other").glob("shard-*"))[0].read_bytes()
    tmp_path = tmp_path / "run"
    run(tmp_path, keep=keep).finish()
    whole = sorted(tmp_path.glob("shard-*"))[0].read_bytes()
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    key, text = next(iter(header["__metadata__"].items()))
    arrays = safetensors.numpy.load(whole)
    broken = [b"", other, safetensors.numpy.save(arrays, {key: "{}"}), safetensors.numpy.save(arrays, {key: "[1]"})]
    broken.append(safetensors.numpy.save(arrays, {key: text.replace('"format": ', '"format": 9')}))
    broken.append(safetensors.numpy.save(arrays, {key: text.replace("word", "wood")}))
    for name in [name for name in arrays if "objective" not in name][:6]:
        less = {other: array for other, array in arrays.items() if other != name}
        broken.append(safetensors.numpy.save(less, {key: text}) if "mask" not in name and "types" not in name else b"")
        broken.append(safetensors.numpy.save({**arrays, name: arrays[name][..., :1].repeat(9, -1)}, {key: text}))
        broken.append(safetensors.numpy.save({**arrays, name: arrays[name].astype(np.float16)}, {key: text}))
    for data in broken:
        _rewritten(tmp_path, data)
        with pytest.raises(FileFormatError):
            list(read())
    _rewritten(tmp_path, whole)
    assert list(read())


@pytest.mark.parametrize(
    ("keep", "old", "new", "message"),
    [
        ("table", "word", "wood",
            r"\.safetensors holds the sums \['wood'\]: expected \['word'\], as the manifest says"),
        ("all", "0 word", "0 wood",
            r"\.safetensors holds other results than the manifest says: expected 3; fetch it again"),
        ("saliency", "0 word", "0 wood",
            r"\.safetensors holds other results than the manifest says: expected 3; fetch"),
    ],
)  # fmt: skip
def test_the_message_says_what_is_wrong_with_a_shard(
    tmp_path: Path, keep: str, old: str, new: str, message: str
) -> None:
    import safetensors.numpy

    run(tmp_path, keep=keep).finish()
    whole = sorted(tmp_path.glob("shard-*"))[0].read_bytes()
    key, text = next(iter(json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"].items()))
    assert old in text
    _rewritten(tmp_path, safetensors.numpy.save(safetensors.numpy.load(whole), {key: text.replace(old, new)}))
    actual = embgrad.open_stream(tmp_path)
    with pytest.raises(FileFormatError, match=message):
        actual.table() if keep == "table" else list(actual)


def test_a_shard_that_is_deleted_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path).finish()
    actual = embgrad.open_stream(tmp_path)
    digest = reading.file_digest

    def gone(path: Path) -> str:
        path.unlink()
        return digest(path)

    monkeypatch.setattr(reading, "file_digest", gone)
    message = (
        r"shard-00000000-000003\.safetensors cannot be read: .*No such file.*; fetch it again, or write the folder anew"
    )
    with pytest.raises(FileFormatError, match=message):
        list(actual)
