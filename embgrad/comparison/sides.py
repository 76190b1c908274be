"""The two sides of a check as recordings, each of a model or of a dump, and the batch on which both ran."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.backend.registry import backend_named
from embgrad.common.files import check_path
from embgrad.common.safetensors import Header, open_tensors, read_array, read_tensors
from embgrad.comparison.dump_format import (
    GRADIENT,
    IDS,
    MANIFEST,
    SITES,
    VALUES,
    WEIGHTS,
    fingerprint,
    read_manifest,
)
from embgrad.comparison.live_side import LiveSide
from embgrad.comparison.recording import (
    FINAL,
    HeldWeight,
    Recording,
    Tensor,
    caller_of,
    ends_of,
    layer_at,
    layer_spans,
    read_once,
)
from embgrad.comparison.settings import Declared
from embgrad.comparison.stacked import divide_stacks
from embgrad.errors import BatchError, EmbgradError, FileFormatError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import OUTPUT, WORD, split_name

__all__ = ["batch_of_dumps", "borrow_weights", "is_dump", "models_of", "read_dump", "record_side"]

#: The safetensors names of the dtypes of values, and of ids.
FLOATS, INTEGERS = ("F32", "F64", "F16", "BF16"), ("I64", "I32", "U32", "U16", "U8")

#: The number of ids that a message shows.
SHOWN: Final = 6


def is_dump(side: Any) -> bool:
    """Return whether a side of a check is named by a path that is no .onnx file."""
    return isinstance(side, (str, os.PathLike)) and not _is_onnx(side)


def _is_onnx(side: Any) -> bool:
    return isinstance(side, (str, os.PathLike)) and Path(side).suffix == ".onnx" and Path(side).is_file()


def batch_of_dumps(sides: Sequence[Any]) -> TokenBatch | None:
    """Return the batch of the first side that is a dump; None where none is."""
    dumped = next((side for side in sides if is_dump(side)), None)
    return None if dumped is None else _batch(check_path(dumped, "folder"), read_manifest(Path(dumped)))


def models_of(sides: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the models whose tokenizers encode texts: in the place of a dump that of the other side, or None."""
    a, b = (None if is_dump(side) else side for side in sides)
    return (b if a is None else a), (a if b is None else b)


def record_side(side: Any, batch: TokenBatch, objective: Any, call: Call | None) -> Recording:
    """Return the recording of a model or an .onnx file, which runs, or of a dump, which is read."""
    if not is_dump(side):
        backend: Any = backend_named("onnx") if _is_onnx(side) else None
        return LiveSide(backend.load(side) if backend else side, batch, objective, call).record()
    recording = read_dump(side, batch)
    if objective is None or any(tensor.gradient is not None for tensor in recording.tensors.values()):
        return recording
    failure = EmbgradError("the dump holds no gradients, so that values alone are compared")
    return replace(recording, failure=recording.failure or failure)


@dataclass(frozen=True, eq=False)
class _Fingerprinted(Recording):
    """A recording without the values of its weights.

    Attributes:
        fingerprints: each weight, whose values are not known, with its fingerprint.
    """

    fingerprints: tuple[tuple[HeldWeight, str], ...] = ()


def borrow_weights(recording: Recording, other: Recording, name: str) -> Recording:
    """Return the recording; a dump that has fingerprints alone takes the other side's weights where these are equal.

    Args:
        recording: the recording.
        other: that of the other side.
        name: "a" or "b", the recording's side.
    """
    if not isinstance(recording, _Fingerprinted):
        return recording
    equal: dict[str, list[HeldWeight]] = {}
    for theirs in other.weights:
        equal.setdefault(fingerprint(theirs.get()), []).append(theirs)
    borrowed = [
        replace(weight, shape=theirs.shape, get=theirs.get)
        for weight, digest in recording.fingerprints
        for theirs in (_nearest(weight, equal.get(digest, ())),)
        if theirs is not None
    ]
    note = (
        f"{name} is a dump with fingerprints of its weights alone, of which {len(borrowed)} of {len(recording.fingerprints)} "
        "have an equal on the other side; how the others relate to it is not known"
    )
    return replace(recording, weights=tuple(borrowed), notes=(*recording.notes, note))


def _nearest(weight: HeldWeight, others: Sequence[HeldWeight]) -> HeldWeight | None:
    return min(others, key=lambda other: abs(other.time - weight.time), default=None)


def read_dump(folder: str | os.PathLike[str], batch: TokenBatch | None = None) -> Recording:
    """Return the recording that a folder holds.

    Args:
        folder: the folder, as `embgrad.dump` writes it.
        batch: the batch that it must be of; None for any.

    Raises:
        FileFormatError: the folder holds no dump, or one that is incomplete, broken or of a later version.
        BatchError: it is a dump of another batch.
        EmbgradError: `folder` is not a path.
    """
    path = check_path(folder, "folder")
    manifest = read_manifest(path)
    own = _batch(path, manifest)
    if batch is not None:
        _expect_same(path, own, batch)
    sites = _Sites(path / SITES, own)
    tensors = {tensor.key: tensor for tensor in map(sites.tensor, range(len(manifest["points"])), manifest["points"])}
    sites.expect_all_read()
    sites.expect_positions(tensors.values())
    tensors = dict(sorted(tensors.items(), key=lambda entry: entry[1].time))
    weights, fingerprints = _weights(path, manifest["weights"], tensors)
    objective = manifest.get("objective")
    failure, settings = manifest.get("failure"), manifest["settings"]
    recording = divide_stacks(
        Recording(
            label=manifest.get("label", f"dump {path.name}"),
            tensors=tensors,
            weights=weights,
            batch=own,
            dtype=manifest.get("dtype", sites.dtype),
            objective=None if objective is None else np.array(objective, np.float64),
            failure=EmbgradError(f"no gradients came when the dump was written: {failure}") if failure else None,
            settings={name: Declared(entry["value"], entry.get("where", name)) for name, entry in settings.items()},
        )
    )
    return _Fingerprinted(**vars(recording), fingerprints=fingerprints) if fingerprints else recording


def _batch(path: Path, manifest: Mapping[str, Any]) -> TokenBatch:
    try:
        return TokenBatch(*(manifest.get(name) for name in ("ids", "mask", "types")))
    except BatchError as error:
        raise FileFormatError(f"{path / MANIFEST} holds no valid batch: {error.message}") from error


def _expect_same(path: Path, own: TokenBatch, batch: TokenBatch) -> None:
    """Raise BatchError if a dump is of other ids, or of other padding, than the batch."""
    if own.ids.shape == batch.ids.shape and np.array_equal(own.ids, batch.ids):
        if np.array_equal(own.real, batch.real):
            return
        raise BatchError(
            f"{path} is a dump of the same ids with {int(own.real.sum())} real positions, and the batch has "
            f"{int(batch.real.sum())}: pass the mask of the dump, or write it again with that of the batch"
        )
    first, second = ([int(number) for number in each.ids[0, :SHOWN]] for each in (own, batch))
    raise BatchError(
        f"{path} is a dump of another batch: its ids, of shape {own.ids.shape}, begin with {first}, and those of the batch, of "
        f"shape {batch.ids.shape}, with {second}. Leave out the texts to use the dump's batch, or write the dump again"
    )


class _Sites:
    """The arrays of a dump's points, checked as they are read.

    Args:
        path: the file.
        batch: the dump's batch.
    """

    def __init__(self, path: Path, batch: TokenBatch) -> None:
        self._path, self._batch = path, batch
        try:
            self._arrays, _ = read_tensors(path, (*FLOATS, *INTEGERS))
        except FileNotFoundError:
            raise FileFormatError(f"{path} is missing: expected the values at the points of {MANIFEST}") from None
        self._read: set[str] = set()

    @property
    def dtype(self) -> str:
        """The widest dtype of the values."""
        doubles = all(array.dtype == np.float64 for name, array in self._arrays.items() if name.startswith(VALUES))
        return "float64" if doubles else "float32"

    def tensor(self, order: int, point: Mapping[str, Any]) -> Tensor:
        """Return the tensor at a point of the manifest.

        Args:
            order: how many points come before it in the manifest.
            point: its fields.
        """
        name: str = point["name"]
        values, gradient = self._floats(VALUES, name), self._floats(GRADIENT, name)
        if values is None:
            raise FileFormatError(
                f"{self._path} lacks the array {brief(VALUES + name)}, which {MANIFEST} names as a point"
            )
        if gradient is not None and gradient.shape != values.shape:
            raise FileFormatError(
                f"{self._path} holds a gradient at {brief(name)} that has another shape than the values there: expected the same"
            )
        ids = self._ids(name)
        if name == FINAL:
            return Tensor(FINAL, "", OUTPUT, 0, (), float("inf"), values, gradient)
        spelled = split_name(name)
        path: str = point.get("path", spelled.path)
        side: str | None = point.get("side", spelled.side if ids is not None else spelled.side or OUTPUT)
        number: int = point.get("number", spelled.occurrence or 0)
        roles = tuple(point.get("roles", ()))
        if side is None and ids is None and WORD in roles:
            ids = np.asarray(self._batch.ids)
        key = f"{path}#{number}" if side is None else f"{path}:{side}#{number}"
        return Tensor(key, path, side, number, roles, float(point.get("time", order)), values, gradient, ids)

    def expect_positions(self, tensors: Collection[Tensor]) -> None:
        """Raise an error if arrays have positions, and none has as many as the ids."""
        long = [tensor for tensor in tensors if tensor.values.shape[1] > 1]
        if long and not any(tensor.values.shape[1] == self._batch.shape[1] for tensor in long):
            raise FileFormatError(
                f"{self._path} holds {brief(long[0].path)} of shape {long[0].values.shape}, and nothing with the positions of "
                f"the ids, whose shape is {self._batch.shape}: expected (example, position, feature)"
            )

    def expect_all_read(self) -> None:
        """Raise an error for arrays that belong to no point."""
        if unread := sorted(self._arrays.keys() - self._read):
            raise FileFormatError(
                f"{self._path} holds {brief(unread)}, which {MANIFEST} does not name: expected {VALUES}, {GRADIENT} or {IDS} "
                "before the name of a point"
            )

    def _array(self, prefix: str, name: str) -> np.ndarray | None:
        self._read.add(prefix + name)
        return self._arrays.get(prefix + name)

    def _floats(self, prefix: str, name: str) -> np.ndarray | None:
        """Return an array as (example, position, feature); of (example, 1, feature) where it has no positions."""
        array = self._array(prefix, name)
        if array is None:
            return None
        if array.dtype.kind != "f":
            raise FileFormatError(f"{self._path} holds {brief(prefix + name)} of dtype {array.dtype}: expected floats")
        shaped = self._shaped(array)
        if shaped is None:
            raise FileFormatError(
                f"{self._path} holds {brief(prefix + name)} of shape {array.shape}, which does not fit ids of shape "
                f"{self._batch.shape}: expected (example, position, feature), or (example, feature) without positions"
            )
        at = self._batch.real if shaped.shape[:2] == self._batch.shape else slice(None)
        if np.isnan(shaped[at]).any():
            raise FileFormatError(
                f"{self._path} holds NaN in {brief(prefix + name)}, the first such array: expected numbers. Find out why the "
                "model computes none there"
            )
        return shaped if shaped.dtype == np.float64 else shaped.astype(np.float32)

    def _shaped(self, array: np.ndarray) -> np.ndarray | None:
        examples, positions = self._batch.shape
        if array.ndim == 2 and examples == 1 and len(array) == positions:
            return array[None]
        if array.ndim < 2 or len(array) != examples:
            return None
        return array.reshape(examples, 1 if array.ndim == 2 else array.shape[1], -1)

    def _ids(self, name: str) -> np.ndarray | None:
        array = self._array(IDS, name)
        if array is not None and (array.dtype.kind not in "iu" or array.shape != self._batch.shape):
            raise FileFormatError(
                f"{self._path} holds {brief(IDS + name)} of {array.dtype} {array.shape}: expected whole numbers of shape "
                f"{self._batch.shape}"
            )
        return None if array is None else array.astype(np.int64)


def _weights(
    path: Path, listed: Sequence[Mapping[str, Any]] | None, tensors: Mapping[str, Tensor]
) -> tuple[tuple[HeldWeight, ...], tuple[tuple[HeldWeight, str], ...]]:
    """Return the weights with their values, and those of which there are fingerprints alone."""
    file = path / WEIGHTS
    header = Header({}, {})
    if file.exists():
        with open_tensors(file) as (_, header):
            pass
    entries: Sequence[Mapping[str, Any]] = [{"name": name} for name in header.entries] if listed is None else listed
    ended = ends_of(tensors.values())
    spans, whole = layer_spans(tensors), max(ended.values(), default=0.0) + 1
    held, printed = [], []
    for entry in entries:
        name: str = entry["name"]
        module = entry.get("module", caller_of(name, ended))
        time = ended.get(module, whole)
        shape = header.entries[name].shape if name in header.entries else tuple(entry.get("shape", ()))
        own_time, own_layer = float(entry.get("time", time / whole)), entry.get("layer", layer_at(spans, time))
        weight = HeldWeight(name, module, shape, read_once(_reader(file, name), shape), own_time, own_layer)
        if name in header.entries:
            held.append(weight)
        elif "sha256" in entry:
            printed.append((weight, entry["sha256"]))
        else:
            raise FileFormatError(
                f"{file} lacks the array {brief(name)}, which {MANIFEST} names as a weight without a fingerprint"
            )
    return tuple(held), tuple(printed)


def _reader(file: Path, name: str) -> Callable[[], np.ndarray]:
    """Return a function that reads a weight from a file, float32 or float64."""

    def get() -> np.ndarray:
        with open_tensors(file) as (opened, header):
            values = read_array(opened, header.entries[name])
        if np.isnan(values).any():
            raise FileFormatError(f"{file} holds NaN in {brief(name)}: expected numbers")
        return values if values.dtype == np.float64 else values.astype(np.float32)

    return get
