"""Loading of the model that a command names: a checkpoint folder, a SavedModel, an .onnx file, or the user's object."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from embgrad.backend.registry import backend_for, backend_named, is_installed, list_backends
from embgrad.checkpoints.bert_config import read_config
from embgrad.checkpoints.load_bert import load_bert
from embgrad.errors import BackendError, FileFormatError, UnsupportedError, brief, quote
from embgrad.keras.choice import KERAS, framework_named
from embgrad.keras.inputs import is_keras
from embgrad.loading.errors import UsageError
from embgrad.loading.huggingface import from_transformers
from embgrad.loading.user_objects import expect_function, import_object, is_reference

__all__ = [
    "FRAMEWORKS",
    "Loaded",
    "expect_models",
    "frameworks_from",
    "installed_frameworks",
    "load_model",
    "prepare_tensorflow",
]

#: The frameworks that a checkpoint folder can be loaded in, the first of them by default.
FRAMEWORKS: Final = ("torch", "tensorflow", "gluon", "jax", KERAS)

#: By framework, the package that holds or makes the class of its BERT.
LIBRARIES: Final = {
    "torch": "transformers",
    "tensorflow": "transformers",
    "gluon": "gluonnlp",
    "jax": "flax",
    KERAS: "keras_hub",
}

#: By framework, the environment variable that keeps transformers from importing it.
IMPORT_SWITCHES: Final = {"torch": "USE_TORCH", "tensorflow": "USE_TF", "flax": "USE_JAX"}

#: The name of the backend of .onnx files.
ONNX: Final = "onnx"

#: The architectures of a BERT without a head; older checkpoints do not name one.
BARE: Final = ("BertModel", "TFBertModel")


@dataclass(frozen=True)
class Loaded:
    """A model that a command has loaded.

    Attributes:
        framework: the name of its backend; "keras" where the user asked for that.
        name: the name that the user gave on the command line.
        folder: the folder that may hold its tokenizer, that of an .onnx file; None for a model from the user's code.
    """

    model: Any
    framework: str
    name: str
    folder: Path | None


def frameworks_from(text: str) -> list[str]:
    """Return the names in --frameworks."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise UsageError(
            f"--frameworks {text!r}: expected different names separated by commas, such as {','.join(FRAMEWORKS)}"
        )
    return names


def installed_frameworks() -> list[str]:
    """Return those of `FRAMEWORKS` in which a checkpoint of a BERT can be loaded here. Imports no framework."""

    def is_usable(name: str) -> bool:
        try:
            framework_named(name)
        except BackendError:
            return False
        return is_installed(LIBRARIES[name])

    return [name for name in FRAMEWORKS if is_usable(name)]


def load_model(spelled: str, framework: str | None = None, ignore: Sequence[str] = ()) -> Loaded:
    """Load the model that --model names.

    Args:
        spelled: a folder, an .onnx file, `module:name` or `file.py:name`.
        framework: the framework to build a checkpoint in, or that the user's own model must belong to; "keras" for Keras 3 on
            its current backend. None for the first one installed, or the framework of the user's model.
        ignore: patterns of weights that a BERT encoder may leave unused, see `embgrad.zoo.load_bert`.
    """
    _expect_model(spelled, framework, ignore)
    path = Path(spelled)
    if path.is_dir():
        return _of_folder(path, framework, ignore)
    return _of_onnx(path) if _is_onnx(path) else _of_code(spelled, framework)


def expect_models(
    wanted: Sequence[tuple[str, str | None]], ignore: Sequence[str] = (), *, own_process: bool = False
) -> None:
    """Check, before anything is loaded, that the models exist and their frameworks are installed.

    Args:
        wanted: each model as the user wrote it, with its framework, see `load_model`.
        own_process: whether the process runs this command alone, so that environment variables may keep transformers from
            importing frameworks that are not needed.
    """
    frameworks = {_expect_model(spelled, framework, ignore) for spelled, framework in wanted}
    if own_process and None not in frameworks:
        for name, variable in IMPORT_SWITCHES.items():
            if name not in frameworks:
                os.environ.setdefault(variable, "0")


def _expect_model(spelled: str, framework: str | None, ignore: Sequence[str]) -> str | None:
    """Return the framework that a model will be loaded in; None if the user's code decides."""
    path = Path(spelled)
    if path.is_dir():
        return _framework_of(path, framework, ignore)
    if _is_onnx(path):
        if framework not in (None, ONNX):
            raise UsageError(f"{path} is an ONNX model: expected --framework {ONNX}, not {framework}")
        _expect_none_ignored(ignore, str(path), "is an ONNX model")
        return backend_named(ONNX).name
    if not is_reference(spelled):
        raise UsageError(
            f"--model {spelled!r} does not exist: expected a checkpoint folder, a SavedModel folder, an .onnx file, or your own "
            "model as path/to/file.py:name or module:name. embgrad reads local files only and downloads nothing"
        )
    expect_function(spelled, "--model")
    _expect_none_ignored(ignore, spelled, "is your own code")
    if framework is not None and framework not in list_backends():
        framework_named(framework)  # raises the error that suggests similar names
    return None


def prepare_tensorflow() -> None:
    """Set `TF_USE_LEGACY_KERAS`, before TensorFlow is imported: Hugging Face's TensorFlow classes need Keras 2."""
    if importlib.util.find_spec("tf_keras") is not None:
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


def _of_folder(path: Path, framework: str | None, ignore: Sequence[str]) -> Loaded:
    framework = _framework_of(path, framework, ignore)
    if _is_saved_model(path):
        return Loaded(_load_saved_model(path), framework, str(path), path)
    if framework in ("tensorflow", KERAS):  # Keras may be the first to import TensorFlow
        prepare_tensorflow()
    return Loaded(_checkpoint(path, framework, ignore), framework, str(path), path)


def _is_onnx(path: Path) -> bool:
    return path.suffix == ".onnx" and path.is_file()


def _of_onnx(path: Path) -> Loaded:
    backend: Any = backend_named(ONNX)
    return Loaded(backend.load(path), ONNX, str(path), path.parent)


def _is_saved_model(path: Path) -> bool:
    return any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt"))


def _framework_of(path: Path, framework: str | None, ignore: Sequence[str]) -> str:
    """Return the framework to load a folder in; raise if it is not installed."""
    if _is_saved_model(path):
        if framework not in (None, "tensorflow"):
            raise UsageError(f"{path} is a TensorFlow SavedModel: expected --framework tensorflow, not {framework}")
        _expect_none_ignored(ignore, str(path), "is a TensorFlow SavedModel")
        return backend_named("tensorflow").name
    if not (path / "config.json").is_file():
        raise UsageError(
            f"{path} holds neither config.json nor saved_model.pb: expected a checkpoint folder in Hugging Face's format, or a "
            f"TensorFlow SavedModel. It holds {quote(sorted(entry.name for entry in path.iterdir()))}"
        )
    if framework is None:
        return _default_framework()
    framework_named(framework)
    return framework


def _expect_none_ignored(ignore: Sequence[str], name: str, what: str) -> None:
    if ignore:
        raise UsageError(f"--ignore applies only to a checkpoint of a BERT, and {name} {what}: remove it")


def _default_framework() -> str:
    for name in FRAMEWORKS:
        try:
            framework_named(name)
        except BackendError:
            continue
        return name
    raise BackendError(
        "no framework is installed that can load a checkpoint: pip install 'embgrad[torch]', 'embgrad[tensorflow]', "
        "'embgrad[jax]' or 'embgrad[mxnet]'. Run embgrad doctor for details"
    )


def _load_saved_model(path: Path) -> Any:
    import tensorflow

    try:
        return tensorflow.saved_model.load(str(path))
    except Exception as error:  # TensorFlow raises many classes of error for a broken file
        raise FileFormatError(
            f"{path} cannot be loaded as a SavedModel: {' '.join(str(error).split())[:300]}"
        ) from error


def _checkpoint(path: Path, framework: str, ignore: Sequence[str]) -> Any:
    config = read_config(path)
    model_type, architecture = config.get("model_type"), _architecture(config, path)
    if model_type == "bert" and (architecture is None or architecture in BARE or ignore):
        return load_bert(path, framework, ignore=ignore)
    if ignore:
        raise UsageError(
            f"--ignore applies only to a BERT, and {path} has the model_type {brief(model_type)}: remove it"
        )
    if framework not in ("torch", "tensorflow"):
        hint = ". To load the encoder without its head, pass --ignore PATTERN, such as --ignore 'cls.*'"
        raise UnsupportedError(
            f"{path} holds a {architecture or model_type}, for which the framework {framework!r} has no class: expected torch or "
            f"tensorflow, or your own model as path/to/file.py:name{hint if model_type == 'bert' else ''}"
        )
    return from_transformers(path, framework, architecture)


def _architecture(config: dict[str, Any], path: Path) -> str | None:
    names = config.get("architectures")
    if names is None or names == []:
        return None
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise FileFormatError(
            f"{path / 'config.json'} says architectures {brief(names)}: expected a list with a class's name"
        )
    return names[0]


def _of_code(spelled: str, framework: str | None) -> Loaded:
    model = import_object(spelled)
    if not _is_model(model) and callable(model):
        model = _build(model, framework)
    backend = backend_for(model)
    fits = is_keras(model) if framework == KERAS else framework in (None, backend.name)
    if not fits:
        raise UsageError(
            f"{spelled} is a model of the framework {backend.name!r}: expected {framework!r}, the value of --framework"
        )
    return Loaded(model, framework or backend.name, spelled, None)


def _is_model(candidate: Any) -> bool:
    """Return whether the object is a model and not a function that builds one; models are callable as well."""
    if isinstance(candidate, type):
        return False
    return any(backend.owns(candidate) for backend in list_backends().values())


def _build(builder: Any, framework: str | None) -> Any:
    """Return the model that a builder function returns; pass it the framework if it has that parameter."""
    try:
        parameters = inspect.signature(builder).parameters
    except (TypeError, ValueError):  # functions written in C may have no signature
        return builder()
    if "framework" in parameters:
        default = parameters["framework"].default
        if framework is None and default is inspect.Parameter.empty:
            raise UsageError(f"{getattr(builder, '__name__', builder)} takes a framework: name one with --framework")
        return builder() if framework is None else builder(framework=framework)
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise UsageError(
            f"{getattr(builder, '__name__', builder)} requires the arguments {quote(needed)}: expected a function that "
            "returns the model and takes no arguments, or only 'framework'"
        )
    return builder()
