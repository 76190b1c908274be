"""Checkpoint folders that mean harm: refused with a reason before anything is built, and no pickle is ever opened."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.backend import registry
from embgrad.checkpoints.bert_config import DEFAULTS, bert_config, expect_fitting
from embgrad.checkpoints.load_bert import bert_names
from embgrad.common.files import MOST_JSON
from embgrad.errors import FileFormatError, UnsupportedError
from tests.unit.checkpoints.test_load_bert import CONFIG, example_weights, shape_of, write
from tests.unit.hostile import ASIDE, CONFIGURATIONS, NESTED
from tests.unit.refusals import refused
from tests.unit.results.test_io_hostile import (
    CHANGES,
    NO_FILES,
    at_once,
    changed,
    in_a_circle,
    memory_of_a_refusal,
    unix,
)


class BuiltError(Exception):
    """The error of a backend that is asked to build a model."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__("built")
        self.config = config


@pytest.fixture(autouse=True)
def _building_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def bert(config: dict[str, Any]) -> Any:
        raise BuiltError(config)

    fake = SimpleNamespace(name="fake", package="numpy", extra=None, supports=frozenset({"load_bert"}), bert=bert)
    monkeypatch.setattr(registry, "_discover", lambda: registry.Discovery({"fake": fake}, {}))


def handed_on(folder: Path) -> dict[str, Any]:
    """Return the settings that reach the framework."""
    with pytest.raises(BuiltError) as caught:
        embgrad.zoo.load_bert(folder, "fake")
    return caught.value.config


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_that_does_not_fit_builds_nothing(tmp_path: Path, name: str) -> None:
    changes, message = CONFIGURATIONS[name]
    write(tmp_path, example_weights(), {**CONFIG, **changes})
    began = time.monotonic()
    assert memory_of_a_refusal(lambda: embgrad.zoo.load_bert(tmp_path, "fake"), message) < 2**20
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("name", DEFAULTS)
def test_omitted_settings_have_the_defaults_of_hugging_face(tmp_path: Path, name: str) -> None:
    without = {key: value for key, value in CONFIG.items() if key != name}
    for config in (without, {**without, name: None}):
        write(tmp_path, example_weights(), config)
        if DEFAULTS[name] == CONFIG[name]:
            assert name not in handed_on(tmp_path)
            continue
        said = r"expected a multiple" if name == "num_attention_heads" else r"lacks|requires"
        with pytest.raises(FileFormatError, match=said):
            embgrad.zoo.load_bert(tmp_path, "fake")
    sizes = {**DEFAULTS, name: DEFAULTS[name]}
    assert bert_config_of(tmp_path, {}) == {"model_type": "bert"}
    assert bert_config_of(tmp_path, sizes) == {"model_type": "bert", **sizes}


def bert_config_of(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    return bert_config(folder)


def test_a_bert_of_the_usual_size_fits_its_configuration(tmp_path: Path) -> None:
    """BERT base as its paper has it: 110 million parameters."""
    sizes = {"word": 30522, "position": 512, "token_type": 2}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in bert_names(12):
        if "_embeddings." in name:
            shapes[name] = (sizes[name.split(".")[1].removesuffix("_embeddings")], 768)
        elif name.endswith("bias") or "LayerNorm" in name:
            shapes[name] = (3072,) if "intermediate" in name else (768,)
        else:
            inner = ".output.dense" in name and "attention" not in name
            shapes[name] = (3072, 768) if "intermediate" in name else (768, 3072) if inner else (768, 768)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 109_482_240
    expect_fitting({}, shapes, tmp_path)
    for name, shape in shapes.items():
        with pytest.raises(FileFormatError, match=f"holds '{name}' of shape"):
            expect_fitting({}, {**shapes, name: (*shape, 1)}, tmp_path)


def test_fields_that_no_bert_has_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, example_weights(), {**CONFIG, **ASIDE})
    assert handed_on(tmp_path) == CONFIG
    kept = {
        "hidden_act": "relu", "layer_norm_eps": 1e-5, "pad_token_id": 0, "hidden_dropout_prob": 0, "use_cache": True,
    }  # fmt: skip
    write(tmp_path, example_weights(), {**CONFIG, **ASIDE, **kept, "classifier_dropout": None})
    assert handed_on(tmp_path) == {**CONFIG, **kept}


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query", "relative", "rotary", "Absolute", ""])
def test_positions_that_are_no_tables_are_refused_in_every_framework(tmp_path: Path, kind: str) -> None:
    write(tmp_path, example_weights(), {**CONFIG, "position_embedding_type": kind})
    message = f"says position_embedding_type '{kind}': load_bert expects 'absolute', a table of positions. Build the model with"
    with pytest.raises(UnsupportedError, match=message):
        embgrad.zoo.load_bert(tmp_path, "fake")
    write(tmp_path, example_weights(), {**CONFIG, "position_embedding_type": "absolute"})
    assert handed_on(tmp_path)["position_embedding_type"] == "absolute"


@given(st.lists(CHANGES, min_size=1, max_size=4))
@settings(max_examples=100)
def test_changed_configurations(tmp_path_factory: pytest.TempPathFactory, changes: Any) -> None:
    folder = tmp_path_factory.getbasetemp() / "changed-configurations"
    folder.mkdir(exist_ok=True)
    if not (folder / "model.safetensors").exists():
        write(folder, example_weights())
    text = json.dumps({**CONFIG, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}).encode()
    (folder / "config.json").write_bytes(
        changed(b"\0" * 8 + text, [(kind, at, what) for kind, at, what in changes], repaired=False)[8:]
    )
    expected = (BuiltError, FileFormatError, UnsupportedError)
    with pytest.raises(expected) as caught:
        embgrad.zoo.load_bert(folder, "fake")
    if isinstance(caught.value, BuiltError):
        sizes = {**DEFAULTS, **caught.value.config}
        assert {name: sizes[name] for name in DEFAULTS} == {name: CONFIG[name] for name in DEFAULTS}


def test_configurations_that_are_too_long_or_too_deep(tmp_path: Path) -> None:
    write(tmp_path, example_weights())
    for content, said in (
        (b"[" * 10**6, "it is nested too deeply"),
        (b'{"a":' * 10**6, "it is nested too deeply"),
        (b'{"model_type": "bert", "model_type": "bert"}', "a key is repeated"),
        (b'{"vocab_size": %s}' % (b"9" * 5000), "Exceeds the limit"),
        (b'{"model_type": "b\xff"}', "can't decode byte 0xff"),
    ):
        (tmp_path / "config.json").write_bytes(content)
        message = f"cannot be read as JSON: .*{said}.*expected a model's configuration"
        with pytest.raises(FileFormatError, match=message):
            embgrad.zoo.load_bert(tmp_path, "fake")
    os.truncate(tmp_path / "config.json", 2**30)  # a gigabyte, of which nothing is on the disk
    message = f"it is 1073741824 bytes long, more than the limit of {MOST_JSON}"
    assert memory_of_a_refusal(lambda: embgrad.zoo.load_bert(tmp_path, "fake"), message) < 2**20
    write(tmp_path, example_weights(), {**CONFIG, "model_type": NESTED})
    with pytest.raises(UnsupportedError, match=r"says model_type .*: load_bert expects 'bert'"):
        embgrad.zoo.load_bert(tmp_path, "fake")


@unix
@pytest.mark.parametrize("make", [*NO_FILES, in_a_circle])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_folders_without_regular_files_are_refused(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    write(tmp_path, example_weights())
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    message = r"not a regular file|Too many levels of symbolic links|is missing"
    with pytest.raises(FileFormatError, match=message):
        at_once(lambda: embgrad.zoo.load_bert(tmp_path, "fake"))


def test_symbolic_links_in_a_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    write(tmp_path / "blobs", example_weights())
    (tmp_path / "snapshot").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{name}")
    assert handed_on(tmp_path / "snapshot") == CONFIG
    index = tmp_path / "snapshot" / "model.safetensors.index.json"
    index.symlink_to("nowhere")
    message = r"index\.json is a symbolic link to a file that does not exist: expected an index"
    with pytest.raises(FileFormatError, match=message):
        embgrad.zoo.load_bert(tmp_path / "snapshot", "fake")
    index.unlink()
    (tmp_path / "blobs" / "config.json").unlink()
    with pytest.raises(FileFormatError, match=r"holds no config\.json"):
        embgrad.zoo.load_bert(tmp_path / "snapshot", "fake")


@pytest.mark.parametrize(
    "shard", ["../w.safetensors", "/etc/passwd", "a/b", "", ".", "..", "\x1b[31m", "a\nb", "\u202e", "x\0y", 3, None]
)
def test_an_index_names_files_of_its_folder_alone(tmp_path: Path, shard: Any) -> None:
    (tmp_path / "here").mkdir()
    write(tmp_path / "here", example_weights())
    safetensors.numpy.save_file(example_weights(), tmp_path / "w.safetensors")
    index = {"weight_map": dict.fromkeys(bert_names(2), shard)}
    (tmp_path / "here" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileFormatError, match=r"names the shard .*: expected a file in|not a regular file") as caught:
        embgrad.zoo.load_bert(tmp_path / "here", "fake")
    assert caught.value.message.isprintable()


def test_a_weight_in_two_shards_is_refused(tmp_path: Path) -> None:
    write(tmp_path, example_weights())
    for name in ("a", "b"):
        safetensors.numpy.save_file(example_weights(), tmp_path / f"{name}.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    message = r"b\.safetensors holds the weight .* which another file .* each weight once"
    with pytest.raises(FileFormatError, match=message):
        embgrad.zoo.load_bert(tmp_path, "fake")


def test_weights_of_many_names(tmp_path: Path) -> None:
    write(tmp_path, {f"encoder.layer.{number}.wieght": np.zeros(1, np.float32) for number in range(20_000)})
    began = time.process_time()
    with pytest.raises(FileFormatError, match="lacks 39 of the model's weights"):
        embgrad.zoo.load_bert(tmp_path, "fake")
    assert time.process_time() - began < 20


def test_weights_that_do_not_fit_are_not_read(tmp_path: Path) -> None:
    weights = {**example_weights(), "embeddings.word_embeddings.weight": np.zeros((2**20, 3), np.float32)}
    write(tmp_path, weights)
    message = r"of shape \(1048576, 3\): the configuration requires \(7, 3\)"
    assert memory_of_a_refusal(lambda: embgrad.zoo.load_bert(tmp_path, "fake"), message) < 2**20


class Unpickled:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_pickles_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bombs = (
        "pytorch_model.bin", "model.pt", "model.ckpt", "training_args.bin", "optimizer.pt", "config.pkl",
        "model.safetensors.pkl",
    )  # fmt: skip
    marker = tmp_path / "marker"
    for name in bombs:
        (tmp_path / name).write_bytes(pickle.dumps(Unpickled(marker)))
    pickle.loads(pickle.dumps(Unpickled(marker)))
    assert marker.exists(), "it would go off"
    marker.unlink()
    read: list[str] = []
    original = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: read.append(str(path)) or original(path, *rest, **more))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with refused(FileFormatError, "model.safetensors is missing", "'model.ckpt', 'model.pt'", " is not read"):
        embgrad.zoo.load_bert(tmp_path, "fake")
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Unpickled(marker)))
    with pytest.raises(FileFormatError, match="not a complete safetensors file"):
        embgrad.zoo.load_bert(tmp_path, "fake")
    write(tmp_path, example_weights())
    assert handed_on(tmp_path) == CONFIG
    assert not marker.exists()
    assert {Path(name).name for name in read if str(tmp_path) in name} == {"config.json", "model.safetensors"}


def test_other_files_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, example_weights())
    for name in ("modeling_bert.py", "setup.py", "__init__.py", "conftest.py"):
        (tmp_path / name).write_text("raise SystemExit('it was run')")
    (tmp_path / "tokenizer.json").write_bytes(b"\xff" * 1000)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    assert handed_on(tmp_path) == CONFIG
    assert shape_of("pooler.dense.bias") == (3,)
