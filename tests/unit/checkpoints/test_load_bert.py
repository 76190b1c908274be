"""A checkpoint folder becomes a BERT: what is read, how it is spelled, and what is refused."""

from __future__ import annotations

import json
import random
import re
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
    """Return the shape of a weight in BERT, with a linear map's as (outputs, inputs)."""
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
    """Return the weights of the BERT that the backend `fake` builds, two of them transposed."""
    model: dict[str, np.ndarray] = {}

    def bert(config: Any) -> tuple[Any, list[WeightTarget]]:
        assert config == CONFIG
        targets = []
        for name in bert_names(config["num_hidden_layers"]):
            transposed = name in TRANSPOSED
            shape = shape_of(name)[::-1] if transposed else shape_of(name)
            put = partial(model.__setitem__, name)
            targets.append(WeightTarget(name, shape, put, f"native.{name}", transposed))
        return model, targets

    fake = SimpleNamespace(name="fake", package="numpy", extra=None, supports=frozenset({"load_bert"}), bert=bert)
    unable = SimpleNamespace(name="unable", package="numpy", extra=None, supports=frozenset({"word"}))
    discovery = registry.Discovery({"fake": fake, "unable": unable}, {})
    monkeypatch.setattr(registry, "_discover", lambda: discovery)
    return model


def write(folder: Path, weights: dict[str, np.ndarray], config: Any = CONFIG) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    return folder


def expect_weights(built: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert built.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(built[name], value.T if name in TRANSPOSED else value)


OLD = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
BUFFERS = {"embeddings.position_ids": np.arange(4), "bert.embeddings.token_type_ids": np.zeros(4, np.int64)}


@pytest.mark.parametrize(
    ("prefix", "spelling", "others"),
    [("", {}, {}), ("bert.", {}, {}), ("", OLD, {}), ("", {}, BUFFERS)],
    ids=["as Hugging Face", "with a prefix", "gamma and beta of the oldest checkpoints", "with buffers"],
)
def test_every_weight_arrives(
    tmp_path: Path, built: dict[str, np.ndarray], prefix: str, spelling: dict[str, str], others: dict[str, np.ndarray]
) -> None:
    weights, stored = example_weights(), dict(others)
    for name, value in weights.items():
        for current, old in spelling.items():
            name = name.replace(current, old)
        stored[prefix + name] = value
    for folder in (write(tmp_path, stored), str(tmp_path)):
        built.clear()
        assert embgrad.zoo.load_bert(folder, "fake") is built
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
    embgrad.zoo.load_bert(tmp_path, "fake")
    expect_weights(built, weights)
    (tmp_path / "b.safetensors").unlink()
    with refused(embgrad.errors.FileFormatError, "b.safetensors is missing: expected the weights as safetensors"):
        embgrad.zoo.load_bert(tmp_path, "fake")


def write_bfloat16(path: Path, weights: dict[str, np.ndarray]) -> None:
    """Write the upper halves of float32 by hand, since NumPy has no bfloat16."""
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
    embgrad.zoo.load_bert(tmp_path, "fake")
    expect_weights(built, weights)
    assert built["pooler.dense.bias"].dtype == np.float32


def test_loading_leaves_the_random_generators_unchanged(
    tmp_path: Path, built: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = registry.list_backends()["fake"]
    genuine = fake.bert

    def drawing(config: Any) -> Any:
        assert random.random() + np.random.random() > 0
        return genuine(config)

    monkeypatch.setattr(fake, "bert", drawing)
    write(tmp_path, example_weights())
    random.seed(3)
    np.random.seed(3)
    embgrad.zoo.load_bert(tmp_path, "fake")
    actual = random.random(), np.random.random()
    random.seed(3)
    np.random.seed(3)
    assert actual == (random.random(), np.random.random())


@pytest.mark.parametrize(("ignore", "said"), [(3, "3"), ([None], "None"), (None, "None"), (["cls.*", b"c*"], "b'c")])
def test_invalid_patterns_are_refused(tmp_path: Path, built: dict[str, np.ndarray], ignore: Any, said: str) -> None:
    write(tmp_path, example_weights())
    with refused(embgrad.EmbgradError, f"ignore holds {said}", ": expected patterns of weights' names, such as"):
        embgrad.zoo.load_bert(tmp_path, "fake", ignore=ignore)
    assert not built


@pytest.mark.parametrize("ignore", [["cls.*"], ("cls.*", "none"), "cls.*"])
def test_a_head_can_be_ignored_on_request(tmp_path: Path, built: dict[str, np.ndarray], ignore: Any) -> None:
    weights = example_weights()
    head = {"cls.predictions.bias": np.zeros(3), "cls.seq_relationship.bias": np.zeros(2)}
    write(tmp_path, {**weights, **head})
    with refused(
        embgrad.errors.FileFormatError,
        "holds 2 weights that the encoder does not have: 'cls.predictions.bias'",
        "ignore=['cls.*']",
    ):
        embgrad.zoo.load_bert(tmp_path, "fake")
    assert built == {}
    embgrad.zoo.load_bert(tmp_path, "fake", ignore=ignore)
    expect_weights(built, weights)
    (tmp_path / "model.safetensors").unlink()
    write(tmp_path, {**weights, **head, "other.bias": np.zeros(3)})
    with pytest.raises(embgrad.errors.FileFormatError, match=r"holds 1 weights .*: 'other.bias'"):
        embgrad.zoo.load_bert(tmp_path, "fake", ignore=ignore)


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
    with pytest.raises(embgrad.errors.FileFormatError, match=message):
        embgrad.zoo.load_bert(write(tmp_path, example_weights()), "fake")
    assert built == {}


def test_a_backend_that_has_no_bert(tmp_path: Path, built: Any) -> None:
    with pytest.raises(embgrad.errors.UnsupportedError, match="the backend 'unable' cannot load a BERT; use 'torch'"):
        embgrad.zoo.load_bert(write(tmp_path, {}), "unable")
    with pytest.raises(
        embgrad.errors.BackendError, match="there is no backend 'jax': expected one of 'fake', 'unable'"
    ):
        embgrad.zoo.load_bert(tmp_path, "jax")


WHOLE = example_weights()
INDEX = "model.safetensors.index.json"


def without(name: str, **others: np.ndarray) -> dict[str, np.ndarray]:
    return {key: value for key, value in {**WHOLE, **others}.items() if key != name}


@pytest.mark.parametrize(
    ("weights", "config", "index", "message"),
    [
        (without("encoder.layer.1.output.dense.bias"), CONFIG, None,
            r"lacks 1 of the model's weights: 'encoder\.layer\.1\.output\.dense\.bias'.*expected all of 39"),
        (without("pooler.dense.bias", **{"pooler.dens.bias": np.zeros(3, np.float32)}), CONFIG, None,
            r"'pooler\.dense\.bias'.* Did you mean 'pooler\.dens\.bias'\?"),
        (without("", **{"bert.pooler.dense.bias": np.zeros(3, np.float32)}), CONFIG, None,
            r"holds the weight 'pooler\.dense\.bias' twice, once as '.*pooler"),
        *(
            (
                without("", **{name: np.zeros(shape, np.float32)}),
                CONFIG,
                None,
                rf"'{name}' of shape .*: the configuration requires {re.escape(str(shape_of(name)))}",
            )
            for name, shape in {
                "embeddings.word_embeddings.weight": (8, SIZE),
                "encoder.layer.0.intermediate.dense.weight": (SIZE, INNER),
                "embeddings.LayerNorm.bias": (SIZE, 1),
            }.items()
        ),
        *((WHOLE, config, None, "holds .*: expected an object, a model's config") for config in ([1], 3, None, "bert")),
        *(
            (WHOLE, CONFIG, index, "is not a valid index of safetensors shards")
            for index in ("{", "{}", '{"weight_map": [1]}')
        ),
        (WHOLE, CONFIG, '{"weight_map": {}}', "lacks 39 of the model's weights"),
    ],
)  # fmt: skip
def test_folders_that_are_refused(
    tmp_path: Path, built: dict[str, np.ndarray], weights: Any, config: Any, index: str | None, message: str
) -> None:
    write(tmp_path, weights, config)
    if index is not None:
        (tmp_path / INDEX).write_text(index)
    with pytest.raises(embgrad.errors.FileFormatError, match=message):
        embgrad.zoo.load_bert(tmp_path, "fake")
    assert built == {}


@pytest.mark.parametrize(("kind", "said"), [("roberta", "'roberta'"), (None, "None"), (["bert"], "['bert']")])
def test_other_models_are_refused(tmp_path: Path, built: Any, kind: Any, said: str) -> None:
    write(tmp_path, {}, {} if kind is None else {"model_type": kind})
    with refused(embgrad.errors.UnsupportedError, f"says model_type {said}: load_bert expects 'bert'. Build other"):
        embgrad.zoo.load_bert(tmp_path, "fake")


def test_missing_files_are_named(tmp_path: Path, built: Any) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with refused(embgrad.errors.FileFormatError, "holds no config.json: expected a checkpoint folder"):
            embgrad.zoo.load_bert(folder, "fake")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with refused(embgrad.errors.FileFormatError, "model.safetensors is missing: expected the weights as safetensors\n"):
        embgrad.zoo.load_bert(tmp_path, "fake")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with refused(embgrad.errors.FileFormatError, "'pytorch_model.bin' is not read, convert it to safetensors"):
        embgrad.zoo.load_bert(tmp_path, "fake")
    with refused(embgrad.errors.FileFormatError, "cannot be read as JSON"):
        embgrad.zoo.load_bert(tmp_path / "pytorch_model.bin", "fake")
