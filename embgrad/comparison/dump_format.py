"""The format of a dump: a folder with a manifest, the values and gradients of a pass, and the weights of its model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from embgrad.common.files import read_json
from embgrad.common.schema import TEXT, Rule, SchemaError, expect_object, list_of, whole
from embgrad.errors import FileFormatError, brief, quote

__all__ = [
    *("FORMAT", "GRADIENT", "IDS", "MANIFEST", "NAMES", "SITES", "VALUES", "VERSION", "WEIGHTS"),
    *("fingerprint", "holds_dump", "read_manifest"),
]

#: The version of the format; a reader refuses a later one. The manifest holds it under this name.
FORMAT: Final = 1
VERSION: Final = "embgrad-dump"

#: The files of a dump; the manifest is written last.
MANIFEST, SITES, WEIGHTS = "manifest.json", "sites.safetensors", "weights.safetensors"
NAMES: Final = (MANIFEST, SITES, WEIGHTS)

#: What stands before a point's name in the name of each of its arrays: values, the gradient, and the ids that a lookup took.
VALUES, GRADIENT, IDS = "values/", "gradient/", "ids/"

#: The most bytes of a manifest: a million ids, or a hundred thousand points.
MOST_MANIFEST: Final = 2**26

#: Files that show that a folder holds a model.
OF_MODELS: Final = ("config.json", "saved_model.pb", "saved_model.pbtxt", "model.safetensors", "tokenizer.json")

_SIDE: Final = Rule(lambda value: value in ("input", "output", None), "'input', 'output', or null at a lookup")
_TIME: Final = Rule(lambda value: type(value) in (int, float) and math.isfinite(value), "a finite number")
_LAYER: Final = Rule(lambda value: value is None or whole(0).accepts(value), "a layer's index, or null")
_TABLE: Final = Rule(
    lambda value: isinstance(value, list) and all(isinstance(row, list) for row in value),
    "a list with a list for each example",
)
_NAMED: Final = Rule(
    lambda value: isinstance(value, list) and all(isinstance(entry, (str, dict)) for entry in value),
    "a list of names, or of objects with a name",
)
_SCALAR: Final = Rule(lambda value: isinstance(value, (bool, int, float, str)), "a number, a truth value or a text")

#: The fields of a manifest, of its points, weights and settings; all but those of `NEEDED` may be missing.
_MANIFEST: Final = {
    VERSION: whole(1, FORMAT),
    **dict.fromkeys(("ids", "mask", "types"), _TABLE),
    **dict.fromkeys(("label", "dtype", "failure"), TEXT),
    "objective": list_of(_TIME),
    **dict.fromkeys(("points", "weights"), _NAMED),
    "settings": Rule(lambda value: isinstance(value, dict), "an object"),
}
NEEDED: Final = (VERSION, "ids", "points")
_POINT: Final = {
    **dict.fromkeys(("name", "path"), TEXT),
    "side": _SIDE,
    "number": whole(0),
    "roles": list_of(TEXT),
    "time": _TIME,
}
_WEIGHT: Final = {
    **dict.fromkeys(("name", "module", "sha256"), TEXT),
    "time": _TIME,
    "layer": _LAYER,
    "shape": list_of(whole(0)),
}
_SETTING: Final = {"value": _SCALAR, "where": TEXT}


def holds_dump(folder: str | Path) -> bool:
    """Return whether a folder holds a dump, or a part of one."""
    return any((Path(folder) / name).is_file() for name in (MANIFEST, SITES))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a dump, whose points, weights and settings are objects.

    Raises:
        FileFormatError: the folder holds no dump, or one that is incomplete, broken or of a later version.
    """
    _expect_dump(folder)
    path = folder / MANIFEST
    try:
        manifest = read_json(path, MOST_MANIFEST)
        _expect_version(manifest)
        expect_object("manifest", manifest, _MANIFEST, [name for name in _MANIFEST if name not in NEEDED])
        return {**manifest, **_objects(manifest)}
    except (OSError, ValueError) as error:  # SchemaError is a ValueError
        what = str(error) if isinstance(error, SchemaError) else f"cannot be read as a manifest: {error}"
        raise FileFormatError(f"{path} {what}. Write the dump again") from error


def _expect_dump(folder: Path) -> None:
    """Raise an error that says what a folder is, if it has no manifest."""
    if (folder / MANIFEST).is_file():
        return
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise FileFormatError(
            f"{folder} {what}: expected a model, or the folder of a dump, which embgrad.dump writes. Nothing is downloaded"
        )
    held = sorted(entry.name for entry in folder.iterdir())
    if any(name in held for name in (SITES, WEIGHTS)) or any(name.endswith(".part") for name in held):
        raise FileFormatError(
            f"{folder} is half written: it has no {MANIFEST}, which is written last. Wait until embgrad.dump has ended, or write "
            "the dump again"
        )
    if any(name in held for name in OF_MODELS):
        raise FileFormatError(
            f"{folder} is the folder of a model, not of a dump: it has no {MANIFEST}. Load the model and pass it, or write a "
            "dump of it with embgrad.dump"
        )
    raise FileFormatError(
        f"{folder} holds no {MANIFEST}: expected a dump, as embgrad.dump writes it. It holds {quote(held) if held else 'nothing'}"
    )


def _expect_version(manifest: Any) -> None:
    version: Any = manifest.get(VERSION) if isinstance(manifest, dict) else None
    if not whole(1).accepts(version):
        raise SchemaError(f"says {VERSION} {brief(version)}: expected the version of the format, {FORMAT}")
    if version > FORMAT:
        raise SchemaError(f"has version {version}, and this embgrad reads up to {FORMAT}; install a newer embgrad")


def _objects(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the points, weights and settings as objects, checked."""
    points = [_object("points", entry, _POINT) for entry in manifest["points"]]
    weights = manifest.get("weights")
    settings = {
        name: entry if isinstance(entry, dict) else {"value": entry}
        for name, entry in manifest.get("settings", {}).items()
    }
    for name, entry in settings.items():
        expect_object(name, entry, _SETTING, ("where",))
    return {
        "points": points,
        "weights": None if weights is None else [_object("weights", entry, _WEIGHT) for entry in weights],
        "settings": settings,
    }


def _object(what: str, entry: Any, rules: Mapping[str, Rule]) -> dict[str, Any]:
    known: dict[str, Any] = {"name": entry} if isinstance(entry, str) else entry
    expect_object(what, known, rules, [name for name in rules if name != "name"])
    return known


def fingerprint(values: np.ndarray) -> str:
    """Return the SHA-256 of a weight's magnitudes in ascending order, float32, little-endian: the same in any layout."""
    return hashlib.sha256(np.sort(np.abs(values.astype("<f4")), axis=None).tobytes()).hexdigest()
