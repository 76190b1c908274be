"""The points that names probably mean, judged by paths alone."""

from __future__ import annotations

import pytest

from embgrad.model_points.expected import expected_keys

BERT = [
    *("", "bert", "bert.embeddings", "bert.embeddings.word_embeddings", "bert.embeddings.position_embeddings"),
    *("bert.embeddings.token_type_embeddings", "bert.encoder", "bert.encoder.layer", "bert.encoder.layer.0"),
    *("bert.encoder.layer.0.attention", "bert.encoder.layer.1", "bert.encoder.layer.1.attention", "bert.pooler"),
]
GPT2 = ["wte", "wpe", "drop", "h", "h.0", "h.0.attn", "h.1", "h.1.attn", "ln_f"]
GPT2 += [f"h.1.experts.{number}{part}" for number in range(3) for part in ("", ".up")]
T5 = [
    *("shared", "decoder", "decoder.block", "decoder.block.0", "decoder.block.0.layer.0", "decoder.block.0.layer.0.q"),
    *("decoder.block.1", "decoder.block.1.layer.0", "decoder.block.2", "decoder.block.2.layer.0", "decoder.dropout"),
    *("encoder", "encoder.block", "encoder.block.0", "encoder.block.0.layer.0", "encoder.dropout"),
]
PLAIN = ["E", "layers/0", "layers/1", "heads/0"]


@pytest.mark.parametrize(
    ("name", "paths", "expected"),
    [
        ("word", BERT, ["word"]),
        ("layer.0", BERT, ["bert.encoder.layer.0:output#0"]),
        ("layer.-1", BERT, ["bert.encoder.layer.1:output#0"]),
        ("layer.-2", BERT, ["bert.encoder.layer.0:output#0"]),
        ("layer.2", BERT, []),
        ("layer.-3", BERT, []),
        ("position", BERT, ["bert.embeddings.position_embeddings#0"]),
        ("type", BERT, ["bert.embeddings.token_type_embeddings#0"]),
        ("bert.pooler", BERT, ["bert.pooler#0", "bert.pooler:output#0"]),
        ("bert.pooler#1", BERT, ["bert.pooler#1", "bert.pooler:output#1"]),
        ("bert.pooler:input", BERT, ["bert.pooler:input#0"]),
        ("bert.poolers", BERT, []),
        ("layer.0:input", BERT, []),
        ("layer.-1", GPT2, ["h.1:output#0"]),
        ("layer.-1", T5, ["encoder.block.0:output#0"]),
        ("layer.1", PLAIN, ["layers/1:output#0"]),
        ("layer.0", ["E", "W"], []),
        ("embeddings", ["E", "W"], []),
        ("type", [f"{n}.token_type" for n in range(20)], [f"{n}.token_type#0" for n in range(16)]),
        (
            "layer.1",
            [f"{n}.layers.{m}" for n in "abcdefghijklmnopqrst" for m in range(2)],
            [f"{n}.layers.1:output#0" for n in "abcdefghijklmnop"],
        ),
    ],
)
def test_the_expected_points(name: str, paths: list[str], expected: list[str]) -> None:
    assert expected_keys(name, paths) == expected


@pytest.mark.parametrize(
    ("paths", "meant"),
    [(BERT, "bert.embeddings:output#0"), (GPT2, "drop:output#0"), (T5, "encoder.dropout:output#0"),
        (PLAIN, "layers/0:input#0"), (PLAIN, "E#0")],
)  # fmt: skip
def test_what_stands_beside_the_layers_may_be_the_embeddings(paths: list[str], meant: str) -> None:
    keys = expected_keys("embeddings", paths)
    assert meant in keys
    assert len(keys) == len(set(keys)) <= 16
    assert not any("layer.0.attention" in key or "experts" in key for key in keys)


def test_no_more_points_are_expected_than_are_cheap() -> None:
    assert len(expected_keys("embeddings", [*(f"part{letter}" for letter in "abcdefghijkl"), "h.0", "h.1"])) == 16
