"""One Hugging Face checkpoint folder, read as NumPy, becomes a BERT in any framework."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from embgrad.backend.rng import generators_kept
from embgrad.checkpoints.bert_config import LAYER_MODULES, bert_config, expect_fitting, lacking, misshapen, weight_names
from embgrad.common.files import checked_path, read_json
from embgrad.common.safetensors import read_shapes, read_tensors
from embgrad.errors import EmbgradError, FileFormatError, UnsupportedError, brief, listed

__all__ = [
    "LAYER_MODULES",
    "WeightTarget",
    "bert_names",
    "canonical_names",
    "load_bert",
    "read_weights",
    "weight_files",
    "weight_shapes",
]

Held = TypeVar("Held")

#: Buffers that older checkpoints hold beside the weights: positions 0, 1, 2, …, and types of zeros.
BUFFERS: Final = ("embeddings.position_ids", "embeddings.token_type_ids")


@dataclass(frozen=True)
class WeightTarget:
    """A parameter of a native model that waits for a checkpoint's weight.

    Attributes:
        source: the weight's name in the checkpoint, Hugging Face's spelling without a leading "bert.".
        shape: the shape that the native parameter has.
        put: takes the value into the native parameter, in that shape.
        native: the parameter's name as `parameter_gradients` has it.
        transposed: the native parameter is the transpose of the checkpoint's weight.
    """

    source: str
    shape: tuple[int, ...]
    put: Callable[[np.ndarray], None]
    native: str
    transposed: bool = False


def bert_names(layers: int) -> list[str]:
    """The names of all weights of a BERT with a pooler in Hugging Face's spelling, in the model's order."""
    return list(weight_names(layers))


def load_bert(folder: str | os.PathLike[str], framework: str = "torch", *, ignore: Iterable[str] = ()) -> Any:
    """A BERT encoder with a checkpoint's weights, in evaluation mode, without a network.

    Reads `config.json` and the safetensors as NumPy, so no other framework than the one asked for is imported. Nothing is built
    before the configuration fits the weights' shapes, and of the configuration only what makes a BERT is handed on.

    Args:
        folder: a checkpoint folder in Hugging Face's format, with safetensors.
        framework: "torch" gives a `transformers.BertModel`, "tensorflow" a `transformers.TFBertModel`, "gluon" a
            `gluonnlp.model.BERTModel`; another backend's name what that backend says.
        ignore: patterns, as of a shell, of weights that may be left over, such as "cls.*" for a pretraining head.

    Raises:
        FileFormatError: a file is missing or broken, a field of the configuration is not of its kind, or a weight is missing,
            left over or of a wrong shape.
        UnsupportedError: the checkpoint is no BERT, or the framework cannot build this one.
        BackendError: the framework is not installed.
        EmbgradError: a pattern is no text.
    """
    from embgrad.backend.registry import backend_named

    folder = checked_path(folder, "folder")
    patterns = _patterns(ignore)
    backend = backend_named(framework)
    if "load_bert" not in backend.supports:
        raise UnsupportedError(f"the backend {backend.name!r} cannot load a BERT; use 'torch', 'tensorflow' or 'gluon'")
    config = bert_config(folder)
    expect_fitting(config, _without_prefix(weight_shapes(folder), folder), folder)
    weights = _without_prefix(read_weights(folder), folder)
    with generators_kept():  # the first import of a framework's BERT may draw, and so may the weights that are replaced
        model, targets = backend.bert(config)  # type: ignore[attr-defined]  # an ability, not part of every backend
    _check(targets, weights, patterns, folder)
    for target in targets:
        value = weights[target.source]
        target.put(value.T if target.transposed else value)
    return model


def canonical_names(backend: Any, model: Any) -> dict[str, WeightTarget]:
    """For each of a BERT's parameters, by its native name, the weight of a checkpoint that belongs there.

    Raises:
        UnsupportedError: the model is no BERT as `load_bert` makes it.
    """
    targets = backend.bert_targets(model) if "load_bert" in backend.supports else None
    if targets is None:
        raise UnsupportedError(
            f"names='canonical' requires a BERT as embgrad.load_bert builds it, and the model is "
            f"{type(model).__module__}.{type(model).__qualname__}. Omit it for the framework's own names"
        )
    return {target.native: target for target in targets}


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """A checkpoint folder's weights by name, as NumPy, of one safetensors file or of its shards.

    Raises:
        FileFormatError: a file is missing or broken.
    """
    return _of_all(folder, lambda file: read_tensors(file)[0])


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of a checkpoint folder's weights by name, of the files' headers alone.

    Raises:
        FileFormatError: a file is missing or broken.
    """
    return _of_all(folder, read_shapes)


def _of_all(folder: Path, read: Callable[[Path], Mapping[str, Held]]) -> dict[str, Held]:
    """What is read of each of a checkpoint folder's files, by the weights' names."""
    values: dict[str, Held] = {}
    for file in weight_files(folder):
        for name, value in read(file).items():
            if name in values:
                raise FileFormatError(
                    f"{file} holds the weight {brief(name)}, which another file there also holds: expected each weight once"
                )
            values[name] = value
    return values


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold a checkpoint folder's weights. Weights in pickles are no one's to read.

    Raises:
        FileFormatError: one is missing, or the index of shards is broken.
    """
    index = folder / "model.safetensors.index.json"
    try:
        files = sorted(set(read_json(index)["weight_map"].values()))
    except FileNotFoundError:
        if index.is_symlink():
            raise FileFormatError(
                f"{index} is a symbolic link to a file that does not exist: expected an index of shards"
            ) from None
        files = ["model.safetensors"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{index} is not a valid index of safetensors shards: {brief(error, 200)}") from error
    for file in files:
        if not isinstance(file, str) or Path(file).name != file or not file.isprintable():
            raise FileFormatError(f"{index} names the shard {brief(file)}: expected a file in the same folder")
        _expect_there(folder / file)
    return [folder / file for file in files]


def _expect_there(path: Path) -> None:
    if not path.exists():
        others = sorted(p.name for p in path.parent.glob("*") if p.suffix in (".bin", ".h5", ".pt", ".ckpt"))
        hint = f"; {listed(others)} is not read, convert it to safetensors" if others else ""
        raise FileFormatError(f"{path} is missing: expected the weights as safetensors{hint}")


def _without_prefix(weights: Mapping[str, Held], folder: Path) -> dict[str, Held]:
    """By the names without a leading "bert." and with today's names for the oldest checkpoints' gamma and beta."""
    renamed: dict[str, Held] = {}
    for spelled, value in weights.items():
        name = spelled.removeprefix("bert.")
        for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
            name = name.replace(old, new)
        if name in renamed:
            raise FileFormatError(
                f"{folder} holds the weight {brief(name)} twice, once as {brief(spelled)}: expected one encoder in a checkpoint"
            )
        renamed[name] = value
    return {name: value for name, value in renamed.items() if name not in BUFFERS}


def _patterns(ignore: Any) -> tuple[str, ...]:
    """The patterns of `ignore`, one or several."""
    patterns = (ignore,) if isinstance(ignore, str) else tuple(ignore) if isinstance(ignore, Iterable) else (ignore,)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise EmbgradError(f"ignore holds {brief(pattern)}: expected patterns of weights' names, such as ['cls.*']")
    return patterns


def _check(
    targets: Sequence[WeightTarget], weights: Mapping[str, np.ndarray], ignore: tuple[str, ...], folder: Path
) -> None:
    wanted = {target.source for target in targets}
    missing = [name for name in wanted if name not in weights]
    left = [
        name for name in weights if name not in wanted and not any(fnmatchcase(name, pattern) for pattern in ignore)
    ]
    if missing:
        raise FileFormatError(lacking(folder, sorted(missing)[:8], len(missing), len(wanted), set(left)))
    if left:
        raise FileFormatError(
            f"{folder} holds {len(left)} weights that the encoder does not have: {listed(sorted(left))}. If they belong to a "
            "head that you do not need, skip them with a pattern such as ignore=['cls.*']"
        )
    for target in targets:
        value = weights[target.source]
        shape = value.shape[::-1] if target.transposed else value.shape
        if shape != target.shape:
            expected = target.shape[::-1] if target.transposed else target.shape
            raise FileFormatError(misshapen(folder, target.source, value.shape, expected))
