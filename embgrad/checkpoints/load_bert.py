"""Loading of a Hugging Face checkpoint folder, read as NumPy, as a BERT in any framework."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from embgrad.checkpoints.bert_config import LAYER_MODULES, bert_config, expect_fitting, lacking, misshapen, weight_names
from embgrad.checkpoints.keras_bert import keras_bert
from embgrad.checkpoints.weight_target import WeightTarget
from embgrad.common.files import check_path, read_json
from embgrad.common.safetensors import read_shapes, read_tensors
from embgrad.errors import EmbgradError, FileFormatError, UnsupportedError, brief, quote
from embgrad.keras.choice import KERAS, framework_named
from embgrad.toolkit.rng import preserve_generators

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

#: Buffers that older checkpoints store beside the weights: positions 0, 1, 2, …, and types of zeros.
BUFFERS: Final = ("embeddings.position_ids", "embeddings.token_type_ids")


def bert_names(layers: int) -> list[str]:
    """Return the names of all weights of a BERT with a pooler in Hugging Face's spelling, in the model's order."""
    return list(weight_names(layers))


def load_bert(folder: str | os.PathLike[str], framework: str = "torch", *, ignore: Iterable[str] = ()) -> Any:
    """Return a BERT encoder with a checkpoint's weights, in evaluation mode, without network access.

    `config.json` and the safetensors files are read as NumPy, so that only the requested framework is imported. The model is
    built only after the configuration has been checked against the weights' shapes. Of the configuration only the fields that
    define a BERT are passed on.

    Args:
        folder: a checkpoint folder in Hugging Face's format, with safetensors files.
        framework: "torch" for a `transformers.BertModel`, "tensorflow" for a `transformers.TFBertModel`, "gluon" for a
            `gluonnlp.model.BERTModel`, "jax" for a BERT in Flax NNX that embgrad defines, "keras" for a
            `keras_hub.models.BertBackbone` on Keras's current backend, see `embgrad.checkpoints.keras_bert`; or the name of
            another backend, which determines the class.
        ignore: shell-style patterns of weights in the checkpoint that may stay unused, such as "cls.*" for a pretraining head.

    Raises:
        FileFormatError: a file is missing or broken, a field of the configuration is invalid, or a weight is missing, unused or
            of a wrong shape.
        UnsupportedError: the checkpoint is not a BERT, or the framework cannot build this one.
        BackendError: the framework is not installed, or Keras's current backend cannot be used.
        EmbgradError: a pattern is not a string.
    """
    folder = check_path(folder, "folder")
    patterns = _patterns(ignore)
    backend = framework_named(framework)
    if "load_bert" not in backend.supports:
        raise UnsupportedError(
            f"the backend {backend.name!r} cannot load a BERT; use 'torch', 'tensorflow', 'gluon', 'jax' or 'keras'"
        )
    config = bert_config(folder)
    expect_fitting(config, _without_prefix(weight_shapes(folder), folder), folder)
    weights = _without_prefix(read_weights(folder), folder)
    with preserve_generators():  # the import of a framework's BERT and the initial weights may draw random numbers
        build = keras_bert if framework == KERAS else backend.bert  # type: ignore[attr-defined]  # an ability
        model, targets = build(config)
    _check(targets, weights, patterns, folder)
    for target in targets:
        value = weights[target.source]
        target.put(value.T if target.transposed else value)
    return model


def canonical_names(backend: Any, model: Any) -> dict[str, WeightTarget]:
    """Return the corresponding checkpoint weight for each of a BERT's parameters, by the parameter's native name."""
    targets = backend.bert_targets(model) if "load_bert" in backend.supports else None
    if targets is None:
        raise UnsupportedError(
            f"names='canonical' requires a BERT as embgrad.zoo.load_bert builds it, and the model is "
            f"{type(model).__module__}.{type(model).__qualname__}. Omit it for the framework's own names"
        )
    return {target.native: target for target in targets}


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Return a checkpoint folder's weights by name, as NumPy arrays, from one safetensors file or from several shards."""
    return _of_all(folder, lambda file: read_tensors(file)[0])


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint folder's weights by name, reading the files' headers alone."""
    return _of_all(folder, read_shapes)


def _of_all(folder: Path, read: Callable[[Path], Mapping[str, Held]]) -> dict[str, Held]:
    """Apply `read` to each file of a checkpoint folder, and return all its results by the weights' names."""
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
    """Return the safetensors files of a checkpoint folder. Pickled weights are not read, as unpickling can run any code."""
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
        hint = f"; {quote(others)} is not read, convert it to safetensors" if others else ""
        raise FileFormatError(f"{path} is missing: expected the weights as safetensors{hint}")


def _without_prefix(weights: Mapping[str, Held], folder: Path) -> dict[str, Held]:
    """Return the weights by their names without a leading "bert.", with `weight` and `bias` for old `gamma` and `beta`."""
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
    """Return the patterns of `ignore`, which may be one string or several."""
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
            f"{folder} holds {len(left)} weights that the encoder does not have: {quote(sorted(left))}. If they belong to a "
            "head that you do not need, skip them with a pattern such as ignore=['cls.*']"
        )
    for target in targets:
        value = weights[target.source]
        shape = value.shape[::-1] if target.transposed else value.shape
        if shape != target.shape:
            expected = target.shape[::-1] if target.transposed else target.shape
            raise FileFormatError(misshapen(folder, target.source, value.shape, expected))
