"""Writing where it goes wrong: the good file stays, nothing half is left, and nothing is written to where a link leads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.common import files
from embgrad.common.safetensors import write_tensors
from embgrad.errors import FileFormatError
from embgrad.report import write_page
from embgrad.streaming.manifest import MOST_MANIFEST
from tests.unit.refusals import refused
from tests.unit.results.test_io_hostile import CHANGES, NO_FILES, at_once, changed, in_a_circle, unix
from tests.unit.stored import result
from tests.unit.streams import model, texts, tokenizer


def test_a_name_as_long_as_the_system_lets_it_be(tmp_path: Path) -> None:
    for name in ("x" * 255, "é" * 127):
        result().save(tmp_path / name)
        assert embgrad.load(tmp_path / name).values.any()
    assert len(list(tmp_path.iterdir())) == 2


class Failing:
    """A file that writes half of the data, and then fails."""

    def __init__(self, file: Any, error: BaseException) -> None:
        self.file, self.error = file, error

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        raise self.error


FULL = OSError(28, "No space left on device")


@unix
@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt(), MemoryError()], ids=["full", "interrupted", "memory"])
@pytest.mark.parametrize("where", ["write", "fsync", "open", "replace", "fdopen"])
def test_a_write_that_fails_leaves_the_good_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    writers: dict[str, Callable[[Path], Any]] = {
        "g.safetensors": lambda path: embgrad.save(result(np.float64), path, durable=True),
        "golden": lambda path: embgrad.golden(path).update(result(np.float64)),
        "page.html": lambda path: write_page(path, result()),
    }
    original, descriptors = os.fdopen, len(os.listdir("/dev/fd"))

    def failing(*_: Any) -> Any:
        raise error

    for name, write in writers.items():
        if where == "fsync" and name != "g.safetensors":
            continue  # which alone outlasts a power failure
        (tmp_path / name).write_bytes(b"good")
        with monkeypatch.context() as patched:
            if where == "write":
                patched.setattr(files.os, "fdopen", lambda handle, mode: Failing(original(handle, mode), error))
            else:
                patched.setattr(files.os, where, failing)
            with pytest.raises(type(error)) as raised:
                write(tmp_path / name)
        if isinstance(raised.value, OSError):
            assert (raised.value.filename, raised.value.errno) == (str(tmp_path / name), 28)
        assert (tmp_path / name).read_bytes() == b"good"
        (tmp_path / name).unlink()
        assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/dev/fd")) == descriptors, "no file is left open"


@unix
def test_the_whole_file_outlasts_a_power_failure_where_this_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(files.os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    path = tmp_path / "g.safetensors"
    embgrad.save(result(), path)
    write_tensors(tmp_path / "t.safetensors", {"a": np.ones(2)}, {})
    assert synced == []
    embgrad.save(result(), path, durable=True)
    assert synced[0] == path.stat().st_size
    assert len(synced) == 2, "the file, then its folder"


@unix
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_file_has_the_permissions_of_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int) -> None:
    """The umask of the process is not changed meanwhile, as other threads may create files."""
    before = os.umask(mask)
    try:
        with monkeypatch.context() as patched:
            patched.delattr(files.os, "umask")
            result().save(tmp_path / "g.safetensors")
            result().save(tmp_path / "g.safetensors")
        assert (tmp_path / "g.safetensors").stat().st_mode & 0o777 == 0o666 & ~mask
    finally:
        os.umask(before)


@unix
def test_a_disk_that_is_full_in_the_middle(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
import numpy as np
import embgrad
from tests.unit.streams import model, texts, tokenizer
from tests.unit.stored import result
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = sys.argv[1] + "/g.safetensors"
result().save(path)
run = embgrad.stream(model(), texts(3), embgrad.Sum(), tokenizer=tokenizer, batch_size=1, to=sys.argv[1] + "/s")
run.finish()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)
large = result(values=np.ones((2, 3, 40_000), np.float32), activations=np.ones((2, 3, 40_000), np.float32))
for durable in (False, True):
    try:
        embgrad.save(large, path, durable=durable)
    except OSError as error:
        print(error.strerror, error.filename == path)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.splitlines() == ["File too large True"] * 2, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.safetensors", "s"]
    np.testing.assert_array_equal(embgrad.load(tmp_path / "g.safetensors").values, result().values)


def test_a_full_device_is_an_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(OSError, match="No space left on device") as raised:
        result().save("/dev/full")
    assert raised.value.filename == "/dev/full"
    assert not Path("/dev/full").is_file()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    writers: list[Callable[[Path], Any]] = [
        lambda path: result().save(path),
        lambda path: embgrad.golden(path).update(result()),
        lambda path: write_page(path, result()),
    ]
    other = tmp_path / "other"
    for write in writers:
        for target in ("other", "not there"):
            other.write_bytes(b"someone's")
            link = tmp_path / "link"
            link.symlink_to(target)
            write(link)
            assert other.read_bytes() == b"someone's"
            assert link.is_file()
            assert not link.is_symlink()
            assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "other"]
            link.unlink()


def streamed(to: Path, **options: Any) -> embgrad.results.Stream:
    return embgrad.stream(model(), texts(4), embgrad.Sum(), tokenizer=tokenizer, batch_size=2, to=to, **options)


@unix
@pytest.mark.parametrize("make", [*NO_FILES, in_a_circle])
def test_streams_without_regular_files_are_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    streamed(tmp_path / "s").finish()
    (shard,) = (tmp_path / "s").glob("*.safetensors")
    for path, said in (
        (shard, "is missing, which the manifest names"),
        (tmp_path / "s" / "manifest.json", r"cannot be read as a manifest|no manifest\.json"),
    ):
        kept = path.read_bytes()
        path.unlink()
        make(path)
        with pytest.raises(FileFormatError, match=said):
            at_once(lambda: list(embgrad.open_stream(tmp_path / "s")))
        with pytest.raises(FileFormatError, match=said):
            at_once(lambda: list(streamed(tmp_path / "s")))
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(kept)
    assert len(list(embgrad.open_stream(tmp_path / "s"))) == 2


@unix
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("../other"), in_a_circle])
def test_a_lock_that_is_no_regular_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "s").mkdir()
    make(tmp_path / "s" / ".lock")
    with refused(FileFormatError, ".lock is not a regular file: expected the one that embgrad.stream makes"):
        at_once(lambda: streamed(tmp_path / "s").finish())
    assert [path.name for path in tmp_path.iterdir()] == ["s"], "nothing is made where the link leads"


def test_shards_are_not_written_through_links(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "other").write_bytes(b"someone's")
    for name in ("shard-00000000-000002.safetensors", "shard-00000001-000001.safetensors"):
        (tmp_path / "s" / name).symlink_to("../other")
    with pytest.raises(FileFormatError, match=r"'shard-00000001-000001\.safetensors' and no manifest\.json"):
        streamed(tmp_path / "s").finish()
    (tmp_path / "s" / name).unlink()
    streamed(tmp_path / "s").finish()
    assert (tmp_path / "other").read_bytes() == b"someone's"
    assert not any(path.is_symlink() for path in (tmp_path / "s").iterdir())
    assert len(list(embgrad.open_stream(tmp_path / "s"))) == 2


def test_a_manifest_that_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    os.truncate(tmp_path / "manifest.json", MOST_MANIFEST + 1)
    message = rf"it is {MOST_MANIFEST + 1} bytes long, more than the limit of {MOST_MANIFEST}"
    with pytest.raises(FileFormatError, match=message):
        embgrad.open_stream(tmp_path)


def test_a_manifest_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed(tmp_path / "s").finish()
    opening = os.open

    def refusing(path: Any, *given: Any, **named: Any) -> int:
        if Path(path).name == "manifest.json":
            raise PermissionError(13, "Permission denied", str(path))
        return opening(path, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "open", refusing)
        for call in (lambda: embgrad.open_stream(tmp_path / "s"), lambda: streamed(tmp_path / "s").finish()):
            with pytest.raises(PermissionError, match=r"Permission denied: .*manifest\.json"):
                call()
    assert len(list(embgrad.open_stream(tmp_path / "s"))) == 2


@pytest.mark.parametrize("keep", ["all", "saliency", "table"])
def test_changed_shards_with_a_manifest_that_vouches_for_them(tmp_path: Path, keep: str) -> None:
    streamed(tmp_path / "s", keep=keep).finish()
    folder, (shard,) = tmp_path / "s", list((tmp_path / "s").glob("*.safetensors"))
    whole, manifest = shard.read_bytes(), (folder / "manifest.json").read_text()
    before = hashlib.sha256(whole).hexdigest()

    @given(st.lists(CHANGES, min_size=1, max_size=3), st.booleans())
    @settings(max_examples=60)
    def check(changes: Any, repaired: bool) -> None:
        data = changed(whole, changes, repaired=repaired)
        shard.write_bytes(data)
        (folder / "manifest.json").write_text(manifest.replace(before, hashlib.sha256(data).hexdigest()))
        try:
            actual = embgrad.open_stream(folder)
            assert list(actual) if keep != "table" else actual.table().values.size
        except FileFormatError:
            pass

    check()
