"""A checkpoint folder becomes a BERT: what is read, how it is spelled, and what is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import embgrad
from embgrad.backend import registry
from embgrad.checkpoints.load_bert import WeightTarget, bert_names
from tests.unit.refusals import refused

SIZE, INNER = 3, 4
ROWS = {"vocab_size": 7, "max_position_embeddings": 5, "type_vocab_size": 2}
CONFIG = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "hidden_size": SIZE,
    "intermediate_size": INNER,
    **ROWS,
}


def shape_of(name: str) -> tuple[int, ...]:
    """As BERT's paper has them, Linear's weights as (outputs, inputs)."""
    if name.endswith("_embeddings.weight"):
        return (
            dict(zip(("word", "position", "token"), ROWS.values(), strict=True))[name.split(".")[1].split("_")[0]],
            SIZE,
        )
    outputs = INNER if ".intermediate." in name else SIZE
    inputs = INNER if ".output.dense" in name and ".attention." not in name else SIZE
    return (outputs, inputs) if name.endswith("weight") and "LayerNorm" not in name else (outputs,)


TRANSPOSED = ("encoder.layer.0.intermediate.dense.weight", "pooler.dense.weight")


def example_weights() -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(0)
    return {name: numbers.normal(size=shape_of(name)).astype(np.float32) for name in bert_names(2)}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A backend `fake` whose BERT is this dict of weights, two of them transposed."""
    model: dict[str, np.ndarray] = {}

    def bert(config: Any) -> tuple[Any, list[WeightTarget]]:
        assert config == CONFIG
        targets = []
        for name in bert_names(config["num_hidden_layers"]):
            transposed = name in TRANSPOSED
            shape = shape_of(name)[::-1] if transposed else shape_of(name)
            put = partial(_put, model, name)
            targets.append(WeightTarget(name, shape, put, f"native.{name}", transposed))
        return model, targets

    fake = SimpleNamespace(name="fake", package="numpy", extra=None, supports=frozenset({"load_bert"}), bert=bert)
    unable = SimpleNamespace(name="unable", package="numpy", extra=None, supports=frozenset({"word"}))
    discovery = registry.Discovery({"fake": fake, "unable": unable}, {})  # type: ignore[dict-item]
    monkeypatch.setattr(registry, "_discovered", lambda: discovery)
    return model


def _put(model: dict[str, np.ndarray], name: str, value: np.ndarray) -> None:
    model[name] = value


def write(folder: Path, weights: dict[str, np.ndarray], config: Any = CONFIG) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    return folder


def expect_weights(built: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert built.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(built[name], value.T if name in TRANSPOSED else value)


def test_every_weight_arrives(tmp_path: Path, built: dict[str, np.ndarray]) -> None:
    weights = example_weights()
    for folder in (write(tmp_path, weights), str(tmp_path)):
        built.clear()
        assert embgrad.load_bert(folder, "fake") is built
        expect_weights(built, weights)


def test_the_prefix_is_taken_off(tmp_path: Path, built: dict[str, np.ndarray]) -> None:
    weights = example_weights()
    embgrad.load_bert(write(tmp_path, {f"bert.{name}": value for name, value in weights.items()}), "fake")
    expect_weights(built, weights)


def test_gamma_and_beta_of_the_oldest_checkpoints(tmp_path: Path, built: dict[str, np.ndarray]) -> None:
    weights = example_weights()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    }
    assert "embeddings.LayerNorm.gamma" in old
    embgrad.load_bert(write(tmp_path, old), "fake")
    expect_weights(built, weights)


def test_buffers_are_ignored(tmp_path: Path, built: dict[str, np.ndarray]) -> None:
    weights = example_weights()
    buffers = {"embeddings.position_ids": np.arange(4), "bert.embeddings.token_type_ids": np.zeros(4, np.int64)}
    embgrad.load_bert(write(tmp_path, {**weights, **buffers}), "fake")
    expect_weights(built, weights)


def test_shards(tmp_path: Path, built: dict[str, np.ndarray]) -> None:
    weights = example_weights()
    names = sorted(weights)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in files.items():
        safetensors.numpy.save_file({name: weights[name] for name in held}, tmp_path / file)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    embgrad.load_bert(tmp_path, "fake")
    expect_weights(built, weights)
    (tmp_path / "b.safetensors").unlink()
    with refused(embgrad.FileFormatError, "b.safetensors is missing: expected the weights as safetensors"):
        embgrad.load_bert(tmp_path, "fake")


def write_bfloat16(path: Path, weights: dict[str, np.ndarray]) -> None:
    """By hand, since NumPy has no such type: the upper halves of float32."""
    header, data = {}, b""
    for name, value in weights.items():
        halves = (value.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + len(halves)],
        }
        data += halves
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_bfloat16_is_widened(tmp_path: Path, built: dict[str, np.ndarray]) -> None:
    weights = {
        name: (np.ascontiguousarray(value).view(np.uint32) & 0xFFFF0000).view(np.float32)
        for name, value in example_weights().items()
    }
    write(tmp_path, {})
    write_bfloat16(tmp_path / "model.safetensors", weights)
    embgrad.load_bert(tmp_path, "fake")
    expect_weights(built, weights)
    assert built["pooler.dense.bias"].dtype == np.float32


def test_loading_leaves_the_random_generators_unchanged(
    tmp_path: Path, built: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = registry.list_backends()["fake"]
    genuine = fake.bert  # type: ignore[attr-defined]

    def drawing(config: Any) -> Any:
        assert random.random() + np.random.random() > 0
        return genuine(config)

    monkeypatch.setattr(fake, "bert", drawing)
    write(tmp_path, example_weights())
    random.seed(3)
    np.random.seed(3)
    embgrad.load_bert(tmp_path, "fake")
    actual = random.random(), np.random.random()
    random.seed(3)
    np.random.seed(3)
    assert actual == (random.random(), np.random.random())


@pytest.mark.parametrize(("ignore", "said"), [(3, "3"), ([None], "None"), (None, "None"), (["cls.*", b"c*"], "b'c")])
def test_invalid_patterns_are_refused(tmp_path: Path, built: dict[str, np.ndarray], ignore: Any, said: str) -> None:
    write(tmp_path, example_weights())
    with refused(embgrad.EmbgradError, f"ignore holds {said}", ": expected patterns of weights' names, such as"):
        embgrad.load_bert(tmp_path, "fake", ignore=ignore)
    assert not built


@pytest.mark.parametrize("ignore", [["cls.*"], ("cls.*", "none"), "cls.*"])
def test_a_head_can_be_ignored_on_request(tmp_path: Path, built: dict[str, np.ndarray], ignore: Any) -> None:
    weights = example_weights()
    head = {"cls.predictions.bias": np.zeros(3), "cls.seq_relationship.bias": np.zeros(2)}
    write(tmp_path, {**weights, **head})
    with refused(
        embgrad.FileFormatError,
        "holds 2 weights that the encoder does not have: 'cls.predictions.bias'",
        "ignore=['cls.*']",
    ):
        embgrad.load_bert(tmp_path, "fake")
    assert built == {}
    embgrad.load_bert(tmp_path, "fake", ignore=ignore)
    expect_weights(built, weights)
    (tmp_path / "model.safetensors").unlink()
    write(tmp_path, {**weights, **head, "other.bias": np.zeros(3)})
    with pytest.raises(embgrad.FileFormatError, match=r"holds 1 weights .*: 'other.bias'"):
        embgrad.load_bert(tmp_path, "fake", ignore=ignore)


def test_a_missing_weight_is_named(tmp_path: Path, built: dict[str, np.ndarray]) -> None:
    weights = example_weights()
    del weights["encoder.layer.1.output.dense.bias"]
    with refused(
        embgrad.FileFormatError,
        "lacks 1 of the model's weights: 'encoder.layer.1.output.dense.bias'",
        "expected all of 39",
    ):
        embgrad.load_bert(write(tmp_path, weights), "fake")
    assert built == {}


def test_a_misspelled_weight_is_recognised(tmp_path: Path, built: dict[str, np.ndarray]) -> None:
    weights = example_weights()
    weights["pooler.dens.bias"] = weights.pop("pooler.dense.bias")
    with pytest.raises(embgrad.FileFormatError, match=r"'pooler\.dense\.bias'.* Did you mean 'pooler\.dens\.bias'\?"):
        embgrad.load_bert(write(tmp_path, weights), "fake")


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("embeddings.word_embeddings.weight", (8, SIZE), r"\(7, 3\)"),
        ("encoder.layer.0.intermediate.dense.weight", (SIZE, INNER), r"\(4, 3\)"),
        ("embeddings.LayerNorm.bias", (SIZE, 1), r"\(3,\)"),
    ],
)
def test_a_misshapen_weight_is_named(
    tmp_path: Path, built: dict[str, np.ndarray], name: str, shape: tuple[int, ...], expected: str
) -> None:
    write(tmp_path, {**example_weights(), name: np.zeros(shape, np.float32)})
    with pytest.raises(embgrad.FileFormatError, match=rf"'{name}' of shape .*: the configuration requires {expected}"):
        embgrad.load_bert(tmp_path, "fake")
    assert built == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"source": "pooler.extra.bias"},
            "lacks 1 of the model's weights: 'pooler.extra.bias'.*expected all of 39.*Did you mean 'pooler.dense.bias'",
        ),
        ({"shape": (SIZE + 1,)}, r"'pooler\.dense\.bias' of shape \(3,\): the configuration requires \(4,\)"),
    ],
)
def test_a_backend_whose_bert_is_not_as_the_configuration_says(
    tmp_path: Path, built: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    fake: Any = registry.backend_named("fake")
    own = fake.bert

    def other(config: Any) -> tuple[Any, list[WeightTarget]]:
        model, targets = own(config)
        return model, [*targets[:-1], replace(targets[-1], **change)]

    monkeypatch.setattr(fake, "bert", other)
    with pytest.raises(embgrad.FileFormatError, match=message):
        embgrad.load_bert(write(tmp_path, example_weights()), "fake")
    assert built == {}


def test_two_encoders_in_one_checkpoint(tmp_path: Path, built: dict[str, np.ndarray]) -> None:
    weights = example_weights()
    write(tmp_path, {**weights, "bert.pooler.dense.bias": weights["pooler.dense.bias"]})
    with refused(embgrad.FileFormatError, "holds the weight 'pooler.dense.bias' twice, once as '", "pooler"):
        embgrad.load_bert(tmp_path, "fake")


def test_no_configuration(tmp_path: Path, built: Any) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(embgrad.FileFormatError, match=r"holds no config\.json: expected a checkpoint folder"):
            embgrad.load_bert(folder, "fake")


def test_a_file_in_the_folders_place(tmp_path: Path, built: Any) -> None:
    write(tmp_path, {})
    with pytest.raises(embgrad.FileFormatError, match=r"cannot be read as JSON"):
        embgrad.load_bert(tmp_path / "model.safetensors", "fake")


@pytest.mark.parametrize(
    ("config", "kind"), [({"model_type": "roberta"}, "'roberta'"), ({}, "None"), ({"model_type": ["bert"]}, "['bert']")]
)
def test_other_models(tmp_path: Path, built: Any, config: Any, kind: str) -> None:
    write(tmp_path, {}, config)
    with refused(embgrad.UnsupportedError, f"says model_type {kind}: load_bert expects 'bert'. Build other"):
        embgrad.load_bert(tmp_path, "fake")


@pytest.mark.parametrize("config", [[1], 3, None, "bert"])
def test_a_configuration_that_is_no_object(tmp_path: Path, built: Any, config: Any) -> None:
    write(tmp_path, {}, config)
    with pytest.raises(embgrad.FileFormatError, match=r"config\.json holds .*: expected an object, a model's config"):
        embgrad.load_bert(tmp_path, "fake")


def test_weights_in_other_formats(tmp_path: Path, built: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    message = r"model\.safetensors is missing: expected the weights as safetensors\n"
    with pytest.raises(embgrad.FileFormatError, match=message):
        embgrad.load_bert(tmp_path, "fake")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(embgrad.FileFormatError, match=r"'pytorch_model\.bin' is not read, convert it to safetensors"):
        embgrad.load_bert(tmp_path, "fake")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is not a valid index of safetensors shards"),
        ("{}", "is not a valid index of safetensors shards"),
        ('{"weight_map": [1]}', "is not a valid index of safetensors shards"),
        ('{"weight_map": {}}', "lacks 39 of the model's weights"),
    ],
)
def test_indices_of_shards_that_are_refused(tmp_path: Path, built: Any, index: str, message: str) -> None:
    (write(tmp_path, example_weights()) / "model.safetensors.index.json").write_text(index)
    with pytest.raises(embgrad.FileFormatError, match=message):
        embgrad.load_bert(tmp_path, "fake")


def test_a_backend_that_has_no_bert(tmp_path: Path, built: Any) -> None:
    with pytest.raises(embgrad.UnsupportedError, match="the backend 'unable' cannot load a BERT; use 'torch'"):
        embgrad.load_bert(write(tmp_path, {}), "unable")
    with pytest.raises(embgrad.BackendError, match="there is no backend 'jax': expected one of 'fake', 'unable'"):
        embgrad.load_bert(tmp_path, "jax")
