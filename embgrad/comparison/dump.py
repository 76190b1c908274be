"""Dumps: the values, gradients and weights of a model in a folder, to check a port on another machine or in another language."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.files import check_path, write_whole
from embgrad.common.keywords import explain_arguments
from embgrad.common.options import expect_flag
from embgrad.common.safetensors import write_tensors
from embgrad.comparison.dump_format import (
    FORMAT,
    GRADIENT,
    IDS,
    MANIFEST,
    NAMES,
    SITES,
    VALUES,
    VERSION,
    WEIGHTS,
    fingerprint,
)
from embgrad.comparison.live_side import LiveSide
from embgrad.comparison.recording import HeldWeight, Recording, Tensor
from embgrad.errors import EmbgradError, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of
from embgrad.results.file_format import plain

__all__ = ["dump", "expect_free"]


@explain_arguments
def dump(
    model: Any,
    texts: Any,
    folder: str | os.PathLike[str],
    objective: Any = None,
    *,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    weights: bool = True,
) -> None:
    """Write what a model computes to a folder, which `embgrad.check_port` takes in the place of the model.

    The folder holds the values at every point of one forward pass, the gradients there if an objective is passed, the weights,
    and a manifest, which is written last: a folder without it is not finished. A dump that is already there is replaced.

    Args:
        model: as in `gradients`.
        texts: the texts or the batch, as in `gradients`; so are `tokenizer` and `max_length`.
        folder: the folder, which is made where it is missing; otherwise it is empty, or holds a dump.
        objective: as in `gradients`, to store gradients too; None to store values alone.
        tokenizer: as in `gradients`.
        max_length: as in `gradients`.
        call: a function that calls the model, as in `gradients`.
        weights: whether the weights are stored. False stores fingerprints alone, by which equal weights are recognised; a weight
            that is scaled, rounded, fused or trained further then has no partner, and no cause names it.

    Raises:
        BackendError: no backend takes the model.
        BatchError: the batch is malformed.
        EmbgradError: the folder is a file, or holds something else.
        OSError: a file cannot be written.
    """
    path = expect_free(folder)
    expect_flag(weights, "weights")
    recording = LiveSide(model, batch_of(texts, tokenizer, max_length, model), objective, call).record()
    path.mkdir(parents=True, exist_ok=True)
    for name in (MANIFEST, WEIGHTS):  # first the manifest, without which the folder is not finished
        (path / name).unlink(missing_ok=True)
    write_tensors(path / SITES, dict(_site_arrays(recording)), {})
    if weights:
        write_tensors(path / WEIGHTS, {weight.name: weight.get() for weight in recording.weights}, {})
    manifest = _spell(_manifest(recording, with_values=weights))
    write_whole(path / MANIFEST, manifest.encode(), durable=True)


def expect_free(folder: str | os.PathLike[str]) -> Path:
    """Return the path of a folder that a dump can be written to.

    Raises:
        EmbgradError: it is not a path, is a file, or holds something else than a dump.
    """
    path = check_path(folder, "folder")
    if path.exists() and not path.is_dir():
        raise EmbgradError(f"folder {path} is a file: expected the name of a folder, which is made where it is missing")
    held = [entry.name for entry in path.iterdir() if not entry.name.endswith(".part")] if path.exists() else []
    if others := sorted({*held} - {*NAMES}):
        raise EmbgradError(
            f"folder {path} holds {quote(others)}: expected a new or empty folder, or one with a dump to replace"
        )
    return path


def _site_arrays(recording: Recording) -> Iterator[tuple[str, np.ndarray]]:
    for tensor in recording.tensors.values():
        yield f"{VALUES}{tensor.key}", tensor.values
        if tensor.gradient is not None:
            yield f"{GRADIENT}{tensor.key}", tensor.gradient
        if tensor.ids is not None:
            yield f"{IDS}{tensor.key}", tensor.ids


def _manifest(recording: Recording, *, with_values: bool) -> dict[str, Any]:
    """Return the manifest, without the fields that there is nothing to say of."""
    fields = {
        "label": recording.label,
        "dtype": recording.dtype,
        **_batch_fields(recording.batch),
        "objective": recording.objective,
        "failure": None if recording.failure is None else recording.failure.message,
        "settings": {name: vars(declared) for name, declared in recording.settings.items()} or None,
        "points": [_point(tensor) for tensor in recording.tensors.values()],
        "weights": [_weight(weight, with_values) for weight in recording.weights],
    }
    return {VERSION: FORMAT, **{name: value for name, value in fields.items() if value is not None}}


def _batch_fields(batch: TokenBatch) -> dict[str, Any]:
    return {"ids": batch.ids, "mask": batch.mask, "types": batch.types}


def _point(tensor: Tensor) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": tensor.key,
        "path": tensor.path,
        "side": tensor.side,
        "number": tensor.number,
        "roles": tensor.roles,
    }
    return {**fields, "time": tensor.time} if math.isfinite(tensor.time) else fields


def _weight(weight: HeldWeight, with_values: bool) -> dict[str, Any]:
    fields = {"name": weight.name, "module": weight.module, "time": weight.time, "layer": weight.layer}
    return fields if with_values else {**fields, "shape": weight.shape, "sha256": fingerprint(weight.get())}


def _spell(manifest: dict[str, Any]) -> str:
    """Return the manifest as JSON, with a line for each field, and for each point and weight."""
    lines = []
    for name, value in manifest.items():
        if name in ("points", "weights"):
            listed = ",\n  ".join(json.dumps(entry, default=plain) for entry in value)
            lines.append(f"{json.dumps(name)}: [\n  {listed}\n ]")
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value, default=plain)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"
