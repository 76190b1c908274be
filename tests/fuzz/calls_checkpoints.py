"""Calls of `load_bert` with valid checkpoint folders, whose gradients are compared, and with broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

import embgrad
from tests.fuzz.calls_files import damage, folder
from tests.fuzz.cases import REFUSAL, Case, expect_close, expect_equal
from tests.fuzz.drawing import Draw
from tests.fuzz.nonsense import nonsense
from tests.fuzz.oracle import STEP
from tests.fuzz.worlds import abilities
from tests.support.bert_by_hand import ACTIVATIONS, bert_by_hand, random_weights

WORDS: Final = "embeddings.word_embeddings.weight"

#: Weights that a checkpoint may hold beside the encoder's.
HEADS: Final = ("cls.predictions.bias", "cls.seq_relationship.weight", "classifier.weight")


def load_bert(draw: Draw, framework: str) -> Case:
    if framework == "gluon":  # the first import draws random numbers and sets environment variables
        import_module("embgrad_gluon.importing").import_gluonnlp()
    elif framework in ("torch", "tensorflow"):
        getattr(import_module("transformers"), "BertModel" if framework == "torch" else "TFBertModel")
    if "load_bert" not in abilities(framework):
        run = lambda: embgrad.zoo.load_bert(Path("nowhere"), framework)  # noqa: E731
        return Case("load_bert", f"a backend that cannot: {framework}", run, None, REFUSAL, framework=framework)
    config, weights = _drawn(draw)
    if draw.chance(0.5):
        return _broken(draw, framework, config, weights)
    return _right(draw, framework, config, weights)


def _drawn(draw: Draw) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    heads, rate = draw.integer(1, 3), draw.choice([0.0, 0.1])
    config = {
        "model_type": "bert",
        "architectures": draw.choice([["BertModel"], ["BertForMaskedLM"], None]),
        "vocab_size": draw.integer(5, 20),
        "hidden_size": heads * draw.integer(2, 4),
        "num_hidden_layers": draw.integer(1, 2),
        "num_attention_heads": heads,
        "intermediate_size": draw.integer(3, 9),
        "max_position_embeddings": draw.integer(6, 9),
        "type_vocab_size": 2,
        "hidden_act": draw.choice(list(ACTIVATIONS)),
        "layer_norm_eps": draw.choice([1e-12, 1e-5]),
        "hidden_dropout_prob": rate,
        "attention_probs_dropout_prob": rate,
    }
    return config, random_weights(config, draw.random)


def _write(directory: Path, config: Any, weights: dict[str, np.ndarray], shards: int = 1) -> None:
    (directory / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(weights, directory / "model.safetensors")
        return
    names = sorted(weights)
    where = {name: f"model-{1 + number % shards:05}-of-{shards:05}.safetensors" for number, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: weights[name] for name in names if where[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def _right(draw: Draw, framework: str, config: dict[str, Any], weights: dict[str, np.ndarray]) -> Case:
    held, ignore = _spelled(draw, weights)
    shards = draw.choice([1, 1, 2, 3])
    shape = draw.integer(1, 2), draw.integer(1, 5)
    ids, types = draw.integers(0, config["vocab_size"] - 1, shape), draw.integers(0, 1, shape)
    as_text = draw.chance(0.5)
    mask = (np.arange(shape[1]) < draw.integers(1, shape[1], shape[0])[:, None]).astype(int)
    batch = embgrad.TokenBatch(ids, mask, types)

    def run() -> Any:
        with folder() as directory:
            _write(directory, config, held, shards)
            model = embgrad.zoo.load_bert(str(directory) if as_text else directory, framework, ignore=ignore)
        names = embgrad.tables.parameter_gradients(model, batch, embgrad.Sum(output="pooled"), names="canonical")
        return names, embgrad.gradients(model, batch, embgrad.Sum(output="pooled"))

    def judge(actual: Any) -> None:
        by_name, result = actual
        expect_equal(sorted(by_name), sorted(weights), "the canonical names")
        rows = weights[WORDS][ids].astype(np.float64)
        expect_equal(result.activations, weights[WORDS][ids], "the rows that are looked up")
        steps = np.eye(rows.size).reshape(-1, *rows.shape) * 1j * STEP
        pooled = bert_by_hand(weights, config, rows + steps, mask, types)[1]
        expect_close(result.objective, pooled[0].real.sum(-1), 2e-4, "objective", 1.0)
        right = (pooled.sum((-1, -2)).imag / STEP).reshape(rows.shape)
        expect_close(result.values, right, 2e-3, "values at 'word'", 1e-2)
        table = np.zeros(weights[WORDS].shape)
        np.add.at(table, ids, right)
        if framework == "torch":
            table[0] = 0  # transformers' padding_idx, at which PyTorch gives a table no gradient
        expect_close(by_name[WORDS], table, 2e-3, "the table's gradient", 1e-2)

    text = f"{config}\n{shards} shards, weights such as {min(held)}, ignore={ignore}\n{batch!r} {ids.tolist()}"
    return Case("load_bert", text, run, judge, (), [], [ids], random_moves=False, framework=framework)


def _spelled(draw: Draw, weights: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], Any]:
    """Return the weights under names of older or newer checkpoints, with further entries, and patterns that ignore these."""
    old, prefix = draw.chance(0.3), draw.choice(["", "bert."])
    held = {}
    for name, value in weights.items():
        spelled = f"{prefix}{name}"
        if old:
            spelled = spelled.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        held[spelled] = value
    if draw.chance(0.3):
        held[f"{prefix}embeddings.position_ids"] = np.arange(9)[None]
    ignore: Any = ()
    if draw.chance(0.4):
        held |= {name: draw.normal(2, 3).astype(np.float32) for name in HEADS}
        ignore = draw.choice([["cls.*", "classifier.*"], "c*", ("*classifier*", "cls*")])
    return held, ignore


def _broken(draw: Draw, framework: str, config: dict[str, Any], weights: dict[str, np.ndarray]) -> Case:
    name = draw.choice(sorted(weights))
    size = draw.choice(["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"])
    share, bit = draw.random.random(), draw.integer(0, 7)

    def written(settings: Any = config, held: dict[str, np.ndarray] = weights, **options: Any) -> Callable[[Path], Any]:
        def load(directory: Path) -> Any:
            _write(directory, settings, held)
            return embgrad.zoo.load_bert(directory, options.pop("framework", framework), **options)

        return load

    def spoilt(file: str, kind: str) -> Callable[[Path], Any]:
        def load(directory: Path) -> Any:
            _write(directory, config, weights)
            damage(directory / file, kind, share, bit)
            return embgrad.zoo.load_bert(directory, framework)

        return load

    def pickled(directory: Path) -> Any:
        _write(directory, config, weights)
        (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
        return embgrad.zoo.load_bert(directory, framework)

    without = {other: value for other, value in weights.items() if other != name}
    kinds: dict[str, Callable[[Path], Any]] = {
        "another model": written({**config, "model_type": draw.choice(["roberta", "gpt2", "", None, 3])}),
        "positions that are no table's": written(
            {**config, "position_embedding_type": draw.choice(["relative_key", "x"])}
        ),
        "an activation that is none": written({**config, "hidden_act": "no such"}),
        "a size of nonsense": written({**config, size: draw.choice(["8", -1, 0, 2.5, [8], True, 10**12])}),
        "another size": written({**config, size: 100 + 7 * config[size]}),
        "a configuration of nonsense": written(draw.choice([3, "text", [1, 2]])),
        "a weight missing": written(held=without),
        "a weight left over": written(held={**weights, draw.choice(HEADS): weights[name]}),
        "a weight of another shape": written(held={**weights, name: np.zeros((2, 2, 2), np.float32)}),
        "a weight twice": written(held={**weights, f"bert.{name}": weights[name]}),
        "another name": written(held={**without, f"{name}x": weights[name]}),
        "patterns that match nothing": written(held={**weights, HEADS[0]: weights[name]}, ignore=["no.*"]),
        "a framework that is none": written(framework=draw.choice(["torhc", "", "jaxx", "Torch"])),
        "a framework of nonsense": written(framework=nonsense(draw)),
        "patterns of nonsense": written(ignore=draw.choice([3, [3], None, [None], 0.5])),
        "no folder": lambda directory: embgrad.zoo.load_bert(directory / "nowhere", framework),
        "a file": lambda directory: embgrad.zoo.load_bert(_file(directory), framework),
        "a path of nonsense": lambda _: embgrad.zoo.load_bert(draw.choice([3, None, ["a"], 0.5]), framework),
        "an empty folder": lambda directory: embgrad.zoo.load_bert(directory, framework),
        "a pickle": pickled,
        "weights truncated": spoilt("model.safetensors", "truncated"),
        "weights empty": spoilt("model.safetensors", "empty"),
        "weights of zeros": spoilt("model.safetensors", "zeros"),
        "a configuration truncated": spoilt("config.json", "truncated"),
    }
    kind = draw.choice(list(kinds))

    def run() -> Any:
        with folder() as directory:
            return kinds[kind](directory)

    return Case("load_bert", f"broken: {kind}; {size}, {name}; {config}", run, None, REFUSAL, framework=framework)


def _file(directory: Path) -> Path:
    path = directory / "model.safetensors"
    path.write_bytes(b"no folder")
    return path
