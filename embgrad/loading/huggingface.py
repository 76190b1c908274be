"""Loading of checkpoints of any architecture by Hugging Face's classes, offline and with all weights present."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError

from embgrad.checkpoints.bert_config import read_config
from embgrad.checkpoints.load_bert import read_weights, weight_files, weight_shapes
from embgrad.errors import BackendError, FileFormatError, UnsupportedError, brief, did_you_mean, quote

__all__ = ["CLOSED", "from_transformers"]

#: Nothing is downloaded, and no code from the checkpoint is run. Without `trust_remote_code` transformers would ask on stdin,
#: which may carry the texts.
CLOSED: Final = {"local_files_only": True, "trust_remote_code": False}

#: Matches a weight's name up to its first number.
_NUMBERED: Final = re.compile(r".*?\.\d+\.")


def from_transformers(path: Path, framework: str, architecture: str | None) -> Any:
    """Load the model of a checkpoint folder, in evaluation mode.

    Args:
        architecture: the name of the class in PyTorch or TensorFlow; None for the model without a head.
    """
    if importlib.util.find_spec("transformers") is None:
        raise BackendError(f"{path} needs the package 'transformers': pip install 'embgrad[{framework}]'")
    import transformers

    bare = (architecture or "AutoModel").removeprefix("TF")
    name = f"TF{bare}" if framework == "tensorflow" else bare
    cls = getattr(transformers, name, None)
    if cls is None:
        raise UnsupportedError(
            f"transformers {transformers.__version__} has no class {name!r}, which {path / 'config.json'} names"
            + (": TensorFlow's classes need transformers below 5" if framework == "tensorflow" else "")
            + f". Build the model yourself and pass path/to/file.py:name.{did_you_mean(name, dir(transformers))}"
        )
    _expect_no_code(path)
    if framework == "torch":
        weight_files(path)  # raises if there are no safetensors; transformers would look for pickles
    try:
        model, info = _tensorflow(cls, path) if framework == "tensorflow" else _load_pretrained(cls, path)
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise FileFormatError(f"{path} cannot be loaded as a {name}: {' '.join(str(error).split())[:300]}") from error
    _expect_complete(info, path, name)
    _expect_all_used(info, path, name, getattr(cls, "base_model_prefix", ""))
    return model.eval() if framework == "torch" else model


def _expect_no_code(path: Path) -> None:
    """Reject kernels that are named by a repository: transformers 4.57 downloads and runs them if `kernels` is installed."""
    pending: list[Any] = [read_config(path)]
    while pending:
        entry = pending.pop()
        pending += entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ()
        for name, value in entry.items() if isinstance(entry, dict) else ():
            values = value.values() if isinstance(value, dict) else [value]
            repositories = [each for each in values if isinstance(each, str) and not each.isidentifier()]
            if "_implementation" in name and repositories:
                raise FileFormatError(
                    f"{path / 'config.json'} says {name} {brief(repositories[0])}, which is code from another repository: "
                    "expected a name that transformers has, such as 'eager'. Remove it from the configuration"
                )


def _load_pretrained(cls: Any, path: Path) -> tuple[Any, Any]:
    """Return the model and the loading information of Hugging Face."""
    model, info = cls.from_pretrained(str(path), **CLOSED, output_loading_info=True)
    return model, info


def _tensorflow(cls: Any, path: Path) -> tuple[Any, Any]:
    """Return the TensorFlow model and the loading information; PyTorch's weights are passed as NumPy arrays.

    transformers 4.57 iterates over an open safetensors file to convert the weights, which safetensors 0.8 no longer permits.
    """
    if not _has_safetensors(path):
        return _load_pretrained(cls, path)
    weights = read_weights(path)
    if any("/" in name for name in weights):  # TensorFlow's names, which transformers loads without that conversion
        return _load_pretrained(cls, path)
    import transformers
    from transformers.modeling_tf_pytorch_utils import load_pytorch_state_dict_in_tf2_model

    config = transformers.AutoConfig.from_pretrained(str(path), **CLOSED)
    model = cls.from_config(config) if cls.__name__.startswith("TFAuto") else cls(config)
    model.build_in_name_scope()
    model, info = load_pytorch_state_dict_in_tf2_model(
        model,
        weights,
        tf_inputs=False,
        allow_missing_keys=True,
        output_loading_info=True,
        tf_to_pt_weight_rename=getattr(model, "tf_to_pt_weight_rename", None),
    )
    return model, info


def _has_safetensors(path: Path) -> bool:
    """Return whether the weights are safetensors; the alternative is TensorFlow's own format."""
    return any((path / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json"))


def _expect_complete(info: Any, path: Path, name: str) -> None:
    """Raise a FileFormatError if weights are missing: transformers would fill them with random numbers."""
    for key, what in (("missing_keys", "lacks"), ("mismatched_keys", "holds in other shapes")):
        names = sorted(str(weight) for weight in info.get(key) or ())
        if names:
            raise FileFormatError(
                f"{path} {what} {len(names)} weights of a {name}: {quote(names)}; they would be random numbers. Is "
                "'architectures' in config.json right?"
            )


def _expect_all_used(info: Any, path: Path, name: str, prefix: str) -> None:
    """Raise an UnsupportedError if weights of the model's layers are unused: it would differ from the trained model.

    TFBertModel, for example, has no table of relative distances and adds absolute positions instead. Unused weights of a head
    are permitted, because they are in no numbered layer that is used.
    """
    unused = {str(weight).removeprefix(f"{prefix}.") for weight in info.get("unexpected_keys") or ()}
    if not unused or not _has_safetensors(path):
        return
    used = {weight.removeprefix(f"{prefix}.") for weight in weight_shapes(path)} - unused
    layers = {_layer(weight) for weight in used} - {None}
    lost = sorted(weight for weight in unused if _layer(weight) in layers)
    if lost:
        raise UnsupportedError(
            f"{path} holds {len(lost)} weights that the layers of a {name} do not use: {quote(lost)}. Its results would differ "
            "from those of the trained model; try the other framework's class, or build the model yourself and pass "
            "path/to/file.py:name"
        )


def _layer(weight: str) -> str | None:
    """Return the numbered layer that a weight belongs to, such as "encoder.layer.0.", or None."""
    match = _NUMBERED.match(weight)
    return None if match is None else match[0]
