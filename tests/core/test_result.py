"""The result: figures, words, and files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.result import FORMAT
from embgrad.rowsparse import scatter

IDS = np.array([[3, 5, 5], [3, 7, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])


def result(dtype: Any = np.float32, **changes: Any) -> embgrad.EmbeddingGradients:
    random = np.random.default_rng(0)
    fields: dict[str, Any] = {
        "values": random.normal(size=(2, 3, 4)).astype(dtype),
        "activations": random.normal(size=(2, 3, 4)).astype(dtype),
        "objective": np.array([0.5, 1.25]),
        "ids": IDS.copy(),
        "mask": MASK.copy(),
        "types": np.array([[0, 0, 1], [0, 0, 0]]),
        "tokens": (("[CLS]", "grip", "##ping"), ("[CLS]", "naïve", "[PAD]")),
        "words_of": np.array([[-1, 0, 0], [-1, 0, -1]]),
        "vocab": 10,
        "pad_leak": 1e-9,
        "provenance": {
            "backend": "reference",
            "model": "some.Model",
            "point": "word",
            "path": "E",
            "objective": {"class": "Sum"},
        },
    }
    return embgrad.EmbeddingGradients(**{**fields, **changes})


def marked(tokens: list[str], numbers: list[int] | None = None, mask: list[int] | None = None) -> Any:
    """A result of one example with these tokens, whose gradients are the unit vectors of positions 1, 2, 3, …"""
    size = len(tokens)
    return result(
        np.float64,
        values=np.arange(1.0, size + 1)[None, :, None],
        activations=np.full((1, size, 1), 2.0),
        objective=np.zeros(1),
        ids=np.zeros((1, size), np.int64),
        mask=None if mask is None else np.array([mask]),
        types=None,
        tokens=(tuple(tokens),),
        words_of=None if numbers is None else np.array([numbers]),
    )


# Tables


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_are_sums_over_positions(dtype: Any) -> None:
    one = result(dtype)
    dense = np.zeros((10, 4))
    for place in np.ndindex(2, 3):
        dense[IDS[place]] += one.values[place]
    np.testing.assert_allclose(one.table().to_dense(), dense, rtol=1e-6)
    assert one.table().shape == (10, 4)
    assert one.table().values.dtype == dtype
    each = one.per_example()
    assert [table.rows.tolist() for table in each] == [[3, 5], [0, 3, 7]]
    np.testing.assert_allclose(sum(table.to_dense() for table in each), dense, rtol=1e-6)
    np.testing.assert_allclose(each[0].to_dense()[5], one.values[0, 1:].sum(0), rtol=1e-6)


def test_tables_of_split_results_are_their_own() -> None:
    tables = tuple(scatter(IDS, np.full((2, 3, 4), float(number)), 10) for number in (1, 10))
    one = result(tables=tables)
    assert one.per_example() == list(tables)
    assert one.table().to_dense()[3].tolist() == [22.0] * 4
    assert one.table().to_dense()[5].tolist() == [22.0] * 4


# Saliency


def test_saliency_kinds() -> None:
    one = result()
    np.testing.assert_allclose(one.saliency(), np.linalg.norm(one.values, axis=-1), rtol=1e-6)
    np.testing.assert_array_equal(one.saliency("norm"), one.saliency())
    np.testing.assert_allclose(one.saliency("dot"), (one.values * one.activations).sum(-1), rtol=1e-5, atol=1e-6)
    for dtype in (np.float32, np.float64):
        assert result(dtype).saliency("norm").dtype == result(dtype).saliency("dot").dtype == dtype


def test_small_gradients_have_a_saliency() -> None:
    """The square of 1e-30 is zero in float32."""
    tiny = result(values=np.full((2, 3, 4), 1e-30, np.float32))
    np.testing.assert_allclose(tiny.saliency(), 2e-30, rtol=1e-6)


@pytest.mark.parametrize("kind", ["nrom", None, 2])
def test_an_unknown_kind(kind: Any) -> None:
    with pytest.raises(embgrad.EmbgradError, match=f"kind is {kind!r}: expected 'norm' or 'dot'"):
        result().saliency(kind)
    with pytest.raises(embgrad.EmbgradError, match=f"kind is {kind!r}"):
        result().words(kind)


# Words


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["[CLS]", "grip", "##ping", "film", "[SEP]"], ["[CLS]", "gripping", "film", "[SEP]"]),
        (["##ping", "film"], ["ping", "film"]),
        (["a", "##b", "##c", "d"], ["abc", "d"]),
        (["[CLS]", "##s"], ["[CLS]", "s"]),
        (["The", "Ġcat", "s", "Ġsat", "."], ["The", "cats", "sat."]),
        (["<s>", "▁The", "▁cat", "s", "</s>"], ["<s>", "The", "cats", "</s>"]),
        (["▁The", "</s>", "<pad>"], ["The", "</s>", "<pad>"]),
        (["Ġa", "<|endoftext|>", "b"], ["a", "<|endoftext|>", "b"]),
        (["a", "b"], ["a", "b"]),
        (["", "a"], ["", "a"]),
        (["電", "##影", "🎬"], ["電影", "🎬"]),
    ],
)
def test_words_by_the_marks_of_the_tokens(tokens: list[str], expected: list[str]) -> None:
    assert [word.text for word in marked(tokens).words()[0]] == expected


@pytest.mark.parametrize(
    ("tokens", "numbers", "expected"),
    [
        (["[CLS]", "do", "n", "##t", "[SEP]"], [-1, 0, 0, 0, -1], ["[CLS]", "dont", "[SEP]"]),
        (["a", "b", "c"], [0, 0, 1], ["ab", "c"]),
        (["a", "a"], [0, 1], ["a", "a"]),
        (["[SEP]", "[SEP]"], [-1, -1], ["[SEP]", "[SEP]"]),
        (["▁The", "▁cat", "s"], [0, 0, 0], ["The", "cats"]),  # a tokenizer without a pre-tokenizer
    ],
)
def test_words_of_the_tokenizers_own(tokens: list[str], numbers: list[int], expected: list[str]) -> None:
    assert [word.text for word in marked(tokens, numbers).words()[0]] == expected


def test_a_words_saliency_is_that_of_its_tokens_together() -> None:
    one = marked(["[CLS]", "grip", "##ping"])
    norm, dot = one.words()[0], one.words("dot")[0]
    assert norm[1] == ("gripping", (1, 2), pytest.approx(np.hypot(2, 3)))
    assert dot[1] == ("gripping", (1, 2), pytest.approx(2 * 2 + 2 * 3))
    assert norm[0] == ("[CLS]", (0,), pytest.approx(1.0))
    assert isinstance(norm[0].saliency, float)


def test_padding_is_no_word() -> None:
    left = marked(["[PAD]", "[PAD]", "a", "##b"], mask=[0, 0, 1, 1])
    assert [(word.text, word.positions) for word in left.words()[0]] == [("ab", (2, 3))]
    gap = marked(["a", "[PAD]", "##b"], mask=[1, 0, 1])
    assert [word.text for word in gap.words()[0]] == ["a", "b"]
    assert marked(["[PAD]"], mask=[0]).words() == [[]]
    assert [[word.text for word in words] for words in result().words()] == [["[CLS]", "gripping"], ["[CLS]", "naïve"]]


def test_words_need_tokens() -> None:
    with pytest.raises(embgrad.EmbgradError, match=r"tokens of this result are not known: .*embgrad.encode"):
        result(tokens=None).words()


# Repr


def test_repr_says_what_it_is() -> None:
    text = repr(result())
    for fragment in ("2 × 3 × 4 float32", "at 'word' = 'E' of some.Model (reference)", "Sum = 0.5, 1.25", "1 padded"):
        assert fragment in text
    assert "leak 1e-09" in text
    assert "no mask" in repr(result(mask=None))
    assert "Sum = 0.5" in repr(result(objective=np.array(0.5)))
    assert "1, 1, 1, …" in repr(result(objective=np.ones(9)))
    assert "None" in repr(result(provenance={}))


# Files

OPTIONAL = st.fixed_dictionaries(
    {},
    optional={
        "mask": st.none(),
        "types": st.none(),
        "tokens": st.one_of(st.none(), st.just((("\ud800", "\x00", '"\\'), ("電影", "", "🎬")))),
        "words_of": st.none(),
        "objective": st.sampled_from([np.array(0.1), np.array([np.pi, 1e-300])]),
        "pad_leak": st.floats(0, 1e30),
        "tables": st.just(tuple(scatter(IDS, np.full((2, 3, 4), number, np.float32), 10) for number in (0.1, 0.2))),
    },
)


@given(OPTIONAL, st.sampled_from([np.float32, np.float64]))
def test_a_file_gives_the_result_back_bit_for_bit(changes: dict[str, Any], dtype: Any) -> None:
    import tempfile

    one = result(dtype, **changes)
    with tempfile.TemporaryDirectory() as folder:
        one.save(Path(folder) / "g.safetensors")
        other = embgrad.load(Path(folder) / "g.safetensors")
    expect_same_bits(one, other)


def expect_same_bits(one: embgrad.EmbeddingGradients, other: embgrad.EmbeddingGradients) -> None:
    for name in ("values", "activations", "objective", "ids", "mask", "types", "words_of"):
        before, after = getattr(one, name), getattr(other, name)
        assert (before is None) == (after is None)
        if before is not None:
            assert (after.dtype, after.shape, after.tobytes()) == (before.dtype, before.shape, before.tobytes())
            assert after.flags.writeable
    for name in ("tokens", "vocab", "pad_leak", "provenance"):
        assert getattr(other, name) == getattr(one, name)
    for table, again in zip(one.tables or (), other.tables or (), strict=True):
        assert again.shape == table.shape
        np.testing.assert_array_equal(again.rows, table.rows)
        np.testing.assert_array_equal(again.values, table.values)


def test_a_string_and_a_path_name_a_file(tmp_path: Path) -> None:
    result().save(str(tmp_path / "gradients élève.safetensors"))
    expect_same_bits(result(), embgrad.load(tmp_path / "gradients élève.safetensors"))


def test_special_values_come_back(tmp_path: Path) -> None:
    values = np.array([[[np.nan, -0.0, np.inf, 5e-324]]])
    absent = dict.fromkeys(("mask", "types", "tokens", "words_of"))
    one = result(values=values, activations=values, objective=np.zeros(1), ids=IDS[:1, :1], **absent)
    one.save(tmp_path / "g.safetensors")
    assert embgrad.load(tmp_path / "g.safetensors").values.tobytes() == values.tobytes()


def test_strided_arrays_come_back(tmp_path: Path) -> None:
    values = np.asfortranarray(result().values)
    result(values=values, ids=IDS[:, ::-1][:, ::-1]).save(tmp_path / "g.safetensors")
    np.testing.assert_array_equal(embgrad.load(tmp_path / "g.safetensors").values, values)


def test_provenance_that_json_cannot_hold(tmp_path: Path) -> None:
    provenance = {"objective": {"class": "Mine", "factor": np.float32(0.5), "weights": np.arange(2), "other": object}}
    result(provenance=provenance).save(tmp_path / "g.safetensors")
    kept = embgrad.load(tmp_path / "g.safetensors").provenance["objective"]
    assert (kept["factor"], kept["weights"]) == (0.5, [0, 1])
    assert "object" in kept["other"]


def test_a_file_is_any_safetensors_reader_s(tmp_path: Path) -> None:
    result().save(tmp_path / "g.safetensors")
    tensors = safetensors.numpy.load_file(tmp_path / "g.safetensors")
    np.testing.assert_array_equal(tensors["values"], result().values)
    assert set(tensors) == {"values", "activations", "objective", "ids", "mask", "types", "words"}


def test_saving_replaces_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    result().save(path)
    result(values=np.zeros((2, 3, 4), np.float32)).save(path)
    assert not embgrad.load(path).values.any()
    assert os.listdir(tmp_path) == ["g.safetensors"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.safetensors"
    result().save(path)
    before = path.read_bytes()

    def broken(*args: Any) -> None:
        raise OSError("disk full")

    for name in ("replace", "chmod", "fdopen"):
        with monkeypatch.context() as patch:
            patch.setattr(f"embgrad.files.os.{name}", broken)
            with pytest.raises(OSError, match="disk full"):
                result(objective=np.zeros(2)).save(path)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["g.safetensors"]


def test_a_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    result().save(tmp_path / "g.safetensors")
    (tmp_path / "other").write_text("")
    assert (tmp_path / "g.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        result().save(tmp_path / "nowhere" / "g.safetensors")
    with pytest.raises(FileNotFoundError, match="does not exist: expected a safetensors file"):
        embgrad.load(tmp_path / "nothing.safetensors")


# Files that are not whole, or not ours


@pytest.mark.parametrize("content", [b"", b"not a file of tensors", b"\xff" * 100, b"PK\x03\x04" + b"\0" * 64])
def test_foreign_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "g.safetensors"
    path.write_bytes(content)
    with pytest.raises(embgrad.FileFormatError, match=r"g\.safetensors is no whole safetensors file: .*write or fetch"):
        embgrad.load(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(embgrad.FileFormatError, match="no whole safetensors file"):
        embgrad.load(tmp_path)


@given(st.floats(0, 1, exclude_max=True))
@settings(max_examples=30)
def test_truncated_files(share: float) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g.safetensors"
        result().save(path)
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises(embgrad.FileFormatError):
            embgrad.load(path)


def rewritten(folder: Path, change: Any) -> Path:
    """A saved result whose arrays and description were changed by hand."""
    path = folder / "g.safetensors"
    result().save(path)
    arrays = safetensors.numpy.load_file(path)
    with safetensors.safe_open(str(path), "numpy") as file:
        description = json.loads(file.metadata()["embgrad"])
    metadata = change(arrays, description)
    safetensors.numpy.save_file(arrays, path, metadata or {"embgrad": json.dumps(description)})
    return path


def setting(which: str, name: str, value: Any) -> Any:
    def change(arrays: dict[str, Any], description: dict[str, Any]) -> None:
        {"arrays": arrays, "description": description}[which][name] = value

    return change


def removing(which: str, name: str) -> Any:
    def change(arrays: dict[str, Any], description: dict[str, Any]) -> None:
        del {"arrays": arrays, "description": description}[which][name]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda arrays, description: {"other": "x"},
            "not one of embgrad's: expected what EmbeddingGradients.save writes",
        ),
        (lambda arrays, description: {"embgrad": "{"}, "not one of embgrad's"),
        (lambda arrays, description: {"embgrad": "[1]"}, "not one of embgrad's"),
        (lambda arrays, description: {"embgrad": '{"format": "x"}'}, "not one of embgrad's"),
        (lambda arrays, description: {"embgrad": '{"format": Infinity}'}, "not one of embgrad's"),
        (
            setting("description", "format", FORMAT + 1),
            f"has format {FORMAT + 1}, and this embgrad reads up to {FORMAT}: install a newer",
        ),
        (removing("arrays", "activations"), r"lacks \['activations'\]: expected what"),
        (
            setting("arrays", "values", np.zeros((2, 3))),
            r"values of shape \(2, 3\) and ids of shape \(2, 3\): expected \(example, position, dim\)",
        ),
        (setting("arrays", "mask", np.zeros((3, 2))), r"mask of shape \(3, 2\): expected \(2, 3\), as the ids"),
        (setting("arrays", "activations", np.zeros((2, 3, 5))), r"activations of shape \(2, 3, 5\)"),
        (setting("arrays", "objective", np.zeros(3)), r"an objective of shape \(3,\): expected \(2,\)"),
        (setting("arrays", "ids", IDS + 7), "not as embgrad writes it: .*no rows of a table of 10.*write it again"),
        (setting("arrays", "ids", IDS.astype(np.float32)), "no rows of a table"),
        (removing("description", "tokens"), "not as embgrad writes it: KeyError"),
        (removing("description", "provenance"), "not as embgrad writes it"),
        (setting("description", "vocab", "many"), "not as embgrad writes it"),
        (setting("description", "vocab", float("inf")), "not as embgrad writes it"),
        (setting("description", "pad_leak", None), "not as embgrad writes it"),
        (setting("description", "tokens", [["a"], ["b"]]), "tokens are not one a position"),
        (setting("description", "tokens", 3), "not as embgrad writes it"),
        (setting("description", "provenance", 3), "not as embgrad writes it"),
        (setting("arrays", "table.1.rows", np.zeros(1, np.int64)), "not as embgrad writes it"),
    ],
)
def test_files_changed_by_hand(tmp_path: Path, change: Any, message: str) -> None:
    path = rewritten(tmp_path, change)
    with pytest.raises(embgrad.FileFormatError, match=message):
        embgrad.load(path)


def test_a_result_from_a_run_comes_back(tmp_path: Path) -> None:
    from embgrad.testing.reference import ReferenceModel, lookup

    model = ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).mean(1), {"E": np.eye(4)})
    for objective in (embgrad.Sum(), embgrad.Scalar(lambda output: output.column(0).sum(0))):
        one = embgrad.gradients(model, [[0, 1], [2, 3]], objective)
        one.save(tmp_path / "g.safetensors")
        expect_same_bits(one, embgrad.load(tmp_path / "g.safetensors"))
    split = embgrad.gradients(model, [[0, 1], [2, 3]], embgrad.Sum(), split=True)
    split.save(tmp_path / "g.safetensors")
    expect_same_bits(split, embgrad.load(tmp_path / "g.safetensors"))
    assert replace(split).tables is split.tables
