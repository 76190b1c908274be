"""Files that mean harm: whatever bytes a file holds, reading it is right or refused, at once and in the memory that is stated."""

from __future__ import annotations

import functools
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.common import files
from embgrad.common import safetensors as headers
from embgrad.common.files import open_regular, read_json
from embgrad.common.safetensors import MOST_HEADER, TYPES, read_shapes, read_tensors, write_tensors
from tests.unit.refusals import refused
from tests.unit.stored import everything, expect_refused_or_sound, result, saved_bytes

BITS = {kind: np.dtype(code) for kind, code in TYPES.items()}


def packed(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def of_every_type() -> bytes:
    """Return a file with an array of each type, and empty and scalar ones, by hand."""
    random, entries, data = np.random.default_rng(0), {}, b""
    for number, kind in enumerate(TYPES):
        shape = [(2, 3), (4,), (), (0, 5)][number % 4]
        part = random.bytes(int(np.prod(shape)) * BITS[kind].itemsize)
        part = bytes(byte & 1 for byte in part) if kind == "BOOL" else part
        entries[f"{kind}.é"] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    return packed({"__metadata__": {"a": "b", "ü": "\x00"}, **entries}, data)


SOUND = {
    "every type": of_every_type(),
    "results": saved_bytes({"word": everything(), "layer.-1": result(vocab=None)}),
    "one result": saved_bytes(result()),
    "weights": safetensors.numpy.save({f"layer.{i}": np.full((i, 3), i, np.float32) for i in range(4)}),
}


def in_a_file(data: bytes, read: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g.safetensors"
        path.write_bytes(data)
        return read(path)


def by_the_library(data: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]] | None:
    """Return what safetensors' own reader finds, or None if it refuses the file."""
    try:
        actual = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return None
    return {name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in actual}


def by_embgrad(data: bytes) -> dict[str, np.ndarray] | None:
    try:
        return dict(in_a_file(data, read_tensors)[0])
    except embgrad.errors.FileFormatError:
        return None


def bits_of(array: np.ndarray, kind: str) -> bytes:
    return (array.view(np.uint32) >> 16).astype("<u2").tobytes() if kind == "BF16" else array.tobytes()


def expect_as_the_library(data: bytes) -> None:
    """Expect that embgrad reads what the library reads, to the bit, apart from the stated exceptions, and nothing else."""
    ours, theirs = by_embgrad(data), by_the_library(data)
    if ours is None:
        assert theirs is None or _for_a_reason(data), "it is refused, and nothing is wrong with it"
        return
    if theirs is None:
        stated = b"-0" in data or (b'"C64"' in data and not _library_has_complex())  # -0, which both could read as 0
        assert stated, "it is taken, and safetensors refuses it"
        return
    assert ours.keys() == theirs.keys()
    for name, (kind, shape, bits) in theirs.items():
        assert (ours[name].shape, bits_of(ours[name], kind)) == (shape, bits)
        assert ours[name].flags.writeable
        assert ours[name].dtype.isnative


@functools.cache
def _library_has_complex() -> bool:
    """Return whether this version of safetensors knows complex numbers."""
    try:
        return bool(safetensors.numpy.save({"a": np.zeros(1, np.complex64)}))
    except safetensors.SafetensorError:
        return False


def _for_a_reason(data: bytes) -> bool:
    """Return whether embgrad alone refuses the header: a name twice, other types, odd entries."""
    pairs: list[Any] = []

    def kept(item: list[tuple[str, Any]]) -> dict[str, Any]:
        pairs.append(item)
        return dict(item)

    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]], object_pairs_hook=kept)
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    return (
        any(len(dict(item)) != len(item) for item in pairs)
        or any(not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"} for entry in entries)
        or any(entry["dtype"] not in TYPES or len(entry["shape"]) > headers.MOST_AXES for entry in entries)
        or any(size >= 2**31 for entry in entries for size in entry["shape"])
    )


@pytest.mark.parametrize("name", SOUND)
def test_sound_files_are_read_as_the_library_reads_them(name: str) -> None:
    expect_as_the_library(SOUND[name])
    assert by_embgrad(SOUND[name])


PIECES = b'0 9 - 1e9 [ ] { } " , null true NaN Infinity 1e999 [] {}'.split()
CHANGES = st.one_of(
    st.tuples(st.just("flip"), st.floats(0, 1), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.floats(0, 1), st.integers(1, 40)),
    st.tuples(
        st.just("insert"),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=9) | st.sampled_from([*PIECES, b"[[", b'"a":{},', b"\\ud800", b"9" * 400]),
    ),
    st.tuples(st.just("end"), st.floats(0, 1), st.just(0)),
)


def changed(data: bytes, changes: list[tuple[str, float, Any]], *, repaired: bool) -> bytes:
    """Return the file with these changes; `repaired` corrects the header's length."""
    length = struct.unpack("<Q", data[:8])[0]
    header, rest = bytearray(data[8 : 8 + length]), bytearray(data[8 + length :])
    for number, (kind, where, what) in enumerate(changes):
        part = header if number % 2 == 0 or not rest else rest
        index = min(int(where * len(part)), max(len(part) - 1, 0))
        if kind == "flip" and part:
            part[index] ^= what
        elif kind == "cut":
            del part[index : index + what]
        elif kind == "insert":
            part[index:index] = what
        elif kind == "end":
            del part[index:]
    return struct.pack("<Q", len(header) if repaired else length) + bytes(header) + bytes(rest)


def traced(work: Callable[[], Any]) -> int:
    """Return the most bytes that Python and NumPy held at once, in a second run, after all caches are filled."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def memory_of_a_refusal(read: Callable[[], Any], message: str | None = None) -> int:
    """Return the most bytes that were held at once while a file was refused with this message."""

    def attempt() -> None:
        with pytest.raises(embgrad.errors.FileFormatError, match=message):
            read()

    return traced(attempt)


@given(st.sampled_from(sorted(SOUND)), st.lists(CHANGES, min_size=1, max_size=4), st.booleans())
@settings(max_examples=200)
def test_changed_files_are_read_as_the_library_reads_them(name: str, changes: Any, repaired: bool) -> None:
    expect_as_the_library(changed(SOUND[name], changes, repaired=repaired))


@given(st.sampled_from(["results", "one result"]), st.lists(CHANGES, min_size=1, max_size=4), st.booleans())
@settings(max_examples=80)
def test_changed_results_are_refused_or_sound_in_little_memory(name: str, changes: Any, repaired: bool) -> None:
    data = changed(SOUND[name], changes, repaired=repaired)
    assert traced(lambda: expect_refused_or_sound(data)) < 2**21, "the file has some kilobytes"


@given(st.binary(max_size=300))
@settings(max_examples=80)
def test_any_bytes(data: bytes) -> None:
    expect_as_the_library(data)
    expect_as_the_library(packed(data))


F32 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
CLAIMS = {
    "no header": (b"", "its header should be 0 bytes long, but the file has only 0"),
    "a header beyond the file": (packed(b"{}", length=2**62), "its header should be 4611686018427387904 bytes long"),
    "a header of the largest number": (packed(b"{}", length=2**64 - 1), "header should be 18446744073709551615 bytes"),
    "no UTF-8": (packed(b'{"\xff":1}'), "can't decode byte 0xff"),
    "no JSON": (packed(b"{"), "Expecting property name"),
    "no object": (packed([1]), r"its header is \[1\], which is not an object"),
    "deep": (packed(b"[" * 10**6), "its header is nested too deeply"),
    "deep objects": (packed(b'{"a":' * 10**6), "its header is nested too deeply"),
    "a name twice": (packed(b'{"a":%s,"a":%s}' % ((json.dumps(F32).encode(),) * 2), bytes(4)), "a key is repeated"),
    "a field twice": (
        packed(b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
        "a key is repeated",
    ),
    "metadata of numbers": (packed({"__metadata__": {"a": 1}}), r"__metadata__ is \{'a': 1\}, and not a dict of texts"),
    "no entry": (packed({"a": 3}), "its entry for 'a' is 3: expected dtype, shape and data_offsets"),
    "a field too many": (packed({"a": {**F32, "x": 1}}, bytes(4)), "its entry for 'a' is .*: expected dtype, shape"),
    "an unknown type": (packed({"a": {**F32, "dtype": "F8_E4M3"}}, bytes(4)), "of the type 'F8_E4M3': expected one of"),
    "a type that is no text": (packed({"a": {**F32, "dtype": ["F32"]}}, bytes(4)), r"is of the type \['F32'\]"),
    "a size that is a float": (packed({"a": {**F32, "shape": [1.0]}}, bytes(4)), r"the shape \[1.0\]: expected up to"),
    "a size that is true": (packed({"a": {**F32, "shape": [True]}}, bytes(4)), r"has the shape \[True\]"),
    "a size below zero": (packed({"a": {**F32, "shape": [-1]}}, bytes(4)), r"has the shape \[-1\]"),
    "a size of NaN": (packed(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4)), "has the shape"),
    "a size of many digits": (packed(b'{"a":{"dtype":"F32","shape":[%s]}}' % (b"9" * 9999)), "Exceeds the limit"),
    "10^9 entries": (packed({"a": {**F32, "shape": [10**9]}}, bytes(4)), "needs 4000000000 bytes, but has 4"),
    "sizes that overflow": (packed({"a": {**F32, "shape": [2**62, 2**62]}}, bytes(4)), "needs 8507.* bytes, but has 4"),
    "many axes": (packed({"a": {**F32, "shape": [1] * 33}}, bytes(4)), "expected up to 32 whole numbers"),
    "an end before its begin": (packed({"a": {**F32, "data_offsets": [4, 0]}}, bytes(4)), "needs 4 bytes, but has -4"),
    "one offset": (packed({"a": {**F32, "data_offsets": [4]}}, bytes(4)), r"has the data_offsets \[4\]"),
    "overlapping": (
        packed({"a": {**F32, "shape": [2], "data_offsets": [0, 8]}, "b": {**F32, "data_offsets": [4, 8]}}, bytes(8)),
        "'b' begins at byte .* arrays overlap, or leave gaps",
    ),
    "a gap": (packed({"a": {**F32, "data_offsets": [4, 8]}}, bytes(8)), "'a' begins at byte .*, or leave gaps"),
    "beyond": (packed({"a": {**F32, "data_offsets": [0, 4]}}, bytes(2)), "its arrays end at byte .*, but the file has"),
    "bytes left over": (packed({"a": F32}, bytes(5)), "its arrays end at byte .*, but the file has"),
    "a surrogate": (packed(b'{"\\ud800":%s}' % json.dumps(F32).encode(), bytes(4)), r"'\\ud800', which is not a"),
    "an empty array of a huge shape": (packed({"a": {**F32, "shape": [2**62, 0, 2**62], "data_offsets": [0, 0]}}), ""),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_false_headers_are_refused_with_a_reason_in_little_memory(name: str) -> None:
    data, why = CLAIMS[name]
    message = f"is not a complete safetensors file: .*{why}.*write or fetch it again"
    for read in (embgrad.load, read_tensors):
        used = memory_of_a_refusal(lambda read=read: in_a_file(data, read), message)
        assert used < 2**20 + 30 * len(data)


def test_shapes_are_read_without_the_arrays(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(SOUND["every type"])
    assert read_shapes(path) == {name: array.shape for name, array in read_tensors(path)[0].items()}
    safetensors.numpy.save_file({"a": np.zeros(2**22, np.float32)}, path)
    assert traced(lambda: read_shapes(path)) < 2**20
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_shapes(tmp_path / "nowhere")


def test_reading_takes_the_memory_of_the_arrays(tmp_path: Path) -> None:
    large = np.ones((2, 3, 200_000), np.float32)
    path = tmp_path / "g.safetensors"
    result(values=large, activations=large).save(path)
    assert 2 * large.nbytes < traced(lambda: embgrad.load(path)) < 1.05 * path.stat().st_size


def test_a_header_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", MOST_HEADER + 1))
        file.truncate(2**40)  # of which nothing is on the disk
    message = f"header is {MOST_HEADER + 1} bytes long, more than the limit of {MOST_HEADER}"
    assert memory_of_a_refusal(lambda: embgrad.load(path), message) < 2**20


BOMBS = {
    "lists": b'{"__metadata__":{"embgrad":"[' + b"[]," * 60_000 + b'0]"}}',
    "lists of one": b'{"__metadata__":{"embgrad":"[' + b"[1]," * 50_000 + b'0]"}}',
    "objects": b'{"__metadata__":{"embgrad":"[' + b"{}," * 60_000 + b'0]"}}',
    "objects of one": b'{"__metadata__":{"embgrad":"[' + b'{\\"\\":0},' * 20_000 + b'0]"}}',
    "texts": b'{"__metadata__":{"embgrad":"[' + b'\\"aa\\",' * 25_000 + b'0]"}}',
    "numbers": b'{"__metadata__":{"embgrad":"[' + b"1.5," * 40_000 + b'0]"}}',
    "arrays": b"{%s}" % b",".join(b'"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(4000)),
    "axes": b'{"a":{"dtype":"U8","shape":[' + b"0," * 80_000 + b'0],"data_offsets":[0,0]}}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_header_takes_thirty_times_its_length_at_most(name: str) -> None:
    header = BOMBS[name]
    used = memory_of_a_refusal(lambda: in_a_file(packed(header), embgrad.load))
    assert 2 * len(header) < used < 30 * len(header), "the bombs do go off, and the stated bound holds"


def test_headers_that_could_not_be_read_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.safetensors"
    path.write_bytes(b"before")
    message = f"header of .* bytes or more.*at most {MOST_HEADER} can be read.*fewer examples"
    with pytest.raises(embgrad.EmbgradError, match=message):
        write_tensors(path, {}, {"text": "x" * (MOST_HEADER + 1)})
    monkeypatch.setattr(headers, "MOST_HEADER", 2**12)
    with pytest.raises(embgrad.EmbgradError, match=r"g\.safetensors would have a header of \d+ bytes or more"):
        result(tokens=(("a" * 3000, "b", "c"), ("d" * 3000, "e", "f"))).save(path)
    assert path.read_bytes() == b"before"


def at_once(work: Callable[[], Any]) -> Any:
    """Return what a function returns, or raise what it raises; fail if it blocks."""
    actual: list[Any] = []

    def run() -> None:
        try:
            actual.append((work(), None))
        except BaseException as error:  # which is raised below
            actual.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert actual, "it waits"
    if actual[0][1] is not None:
        raise actual[0][1]
    return actual[0][0]


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as item:
        here = os.getcwd()
        os.chdir(path.parent)  # its address may be no longer than a hundred letters
        try:
            item.bind(path.name)
        finally:
            os.chdir(here)


def in_a_circle(path: Path) -> None:
    path.symlink_to(path.name)


NO_FILES = [os.mkfifo, device, Path.mkdir, listening]
unix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@unix
@pytest.mark.parametrize("make", NO_FILES)
def test_irregular_files_are_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "g.safetensors")
    readers: list[Callable[[Path], Any]] = [
        embgrad.load,
        read_shapes,
        lambda path: embgrad.golden(path).check(result()),
    ]
    for read in readers:
        with refused(embgrad.errors.FileFormatError, "is not a complete safetensors file: it is not a regular file"):
            at_once(lambda read=read: read(tmp_path / "g.safetensors"))
    with pytest.raises(ValueError, match="it is not a regular file"):
        at_once(lambda: read_json(tmp_path / "g.safetensors"))


@unix
def test_a_file_replaced_by_a_pipe_is_refused_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.safetensors"
    result().save(path)
    kept = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(files.os, "stat", lambda _: kept)
    with pytest.raises(embgrad.errors.FileFormatError, match="it is not a regular file"):
        at_once(lambda: embgrad.load(path))


def test_links_are_followed_and_broken_links_are_refused(tmp_path: Path) -> None:
    result().save(tmp_path / "g.safetensors")
    (tmp_path / "link").symlink_to("g.safetensors")
    assert embgrad.load(tmp_path / "link").values.any()
    (tmp_path / "nowhere").symlink_to("not there")
    with pytest.raises(FileNotFoundError, match="nowhere is a symbolic link to a missing file: expected a safetensors"):
        embgrad.load(tmp_path / "nowhere")
    in_a_circle(tmp_path / "circle")
    with refused(embgrad.errors.FileFormatError, "not a complete safetensors file: Too many levels of symbolic links"):
        embgrad.load(tmp_path / "circle")


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.safetensors"
    large = np.ones((2, 3, 4000), np.float32)  # more than is read ahead
    result(values=large, activations=large).save(path)
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    original = headers.read_header
    for size in (len(whole) - 1, 8 + length, 0):
        path.write_bytes(whole)

        def cutting(file: Any, said: int, size: int = size) -> headers.Header:
            header = original(file, said)
            os.truncate(path, size)
            return header

        monkeypatch.setattr(headers, "read_header", cutting)
        with refused(embgrad.errors.FileFormatError, "it was shortened while it was read; write or fetch it again"):
            embgrad.load(path)
    path.write_bytes(whole[: 8 + length // 2])
    with open_regular(path) as file, pytest.raises(ValueError, match="it was shortened while it was read"):
        original(file, len(whole))


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.safetensors"
    result().save(path)

    def refusing(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("stat", "open"):
        with monkeypatch.context() as patched:
            patched.setattr(files.os, name, refusing)
            with refused(
                embgrad.errors.FileFormatError, "not a complete safetensors file: Permission denied; write or"
            ):
                embgrad.load(path)


def test_an_empty_path_is_not_the_current_folder() -> None:
    def stream(to: str) -> Any:
        return embgrad.stream(None, [], embgrad.Sum(), to=to)

    for call in (embgrad.load, embgrad.open_stream, embgrad.golden, result().save, stream):
        with pytest.raises(embgrad.EmbgradError, match=r" is empty: expected the path of a file or folder"):
            call("")


def test_paths_that_no_file_has(tmp_path: Path) -> None:
    for call in (embgrad.load, embgrad.open_stream, result().save):
        with pytest.raises(embgrad.EmbgradError, match=r"is .*: expected a path without the character NUL"):
            call(f"{tmp_path}/a\0b")
    with pytest.raises(FileNotFoundError):
        embgrad.load(tmp_path / "a.safetensors" / "b")
    with pytest.raises(embgrad.errors.FileFormatError, match="File name too long"):
        embgrad.load(tmp_path / ("x" * 5000))


def test_a_process_of_little_memory_refuses_them_all(tmp_path: Path) -> None:
    """The system itself limits the memory of the process."""
    for number, (data, _) in enumerate(CLAIMS.values()):
        (tmp_path / f"{number}.safetensors").write_bytes(data)
    code = """
import resource, sys
from pathlib import Path
import embgrad
embgrad.load  # imported before the limit
in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**27,) * 2)
refused = 0
for path in Path(sys.argv[1]).iterdir():
    try:
        embgrad.load(path)
    except embgrad.errors.FileFormatError:
        refused += 1
print(refused)
"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not say how much memory is in use")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) == len(CLAIMS)
