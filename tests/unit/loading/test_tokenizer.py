"""Tokenizers of folders, by their vocabulary or their tokenizer.json."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from embgrad.loading import tokenizer as tokenizer_module
from embgrad.loading.errors import UsageError
from embgrad.loading.huggingface import CLOSED
from embgrad.loading.tokenizer import MOST_TOKENIZER, MOST_TOKENS, MOST_VOCABULARY, tokenizer_from, tokenizer_of


def test_a_cased_vocabulary(directory: Path) -> None:
    folder = directory / "cased"
    folder.mkdir()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nA\na\né\n", encoding="utf-8")
    assert tokenizer_of(folder).encode("A a é").tokens == ["[CLS]", "A", "a", "é", "[SEP]"]
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "strip_accents": false}')
    assert tokenizer_of(folder).encode("A a é").tokens == ["[CLS]", "a", "a", "é", "[SEP]"]


def test_a_vocabulary_makes_a_bert_tokenizer(directory: Path) -> None:
    encoded = tokenizer_of(directory).encode("A gripping FILM", "never [SEP]")
    assert encoded.tokens == ["[CLS]", "a", "grip", "##ping", "film", "[SEP]", "never", "[SEP]", "[SEP]"]
    assert encoded.type_ids == [0] * 6 + [1] * 3


def test_folders_without_a_tokenizer_are_refused(directory: Path) -> None:
    (directory / "empty").mkdir()
    with pytest.raises(UsageError, match=r"holds no tokenizer: expected tokenizer\.json or vocab\.txt"):
        tokenizer_of(directory / "empty")
    (directory / "empty" / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(UsageError, match=r"lacks \[CLS\], \[SEP\], \[UNK\]"):
        tokenizer_of(directory / "empty")
    (directory / "empty" / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"is not a valid tokenizer\.json"):
        tokenizer_of(directory / "empty")


def test_tokenizer_json_takes_precedence(directory: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"film": 3, "[UNK]": 0}, unk_token="[UNK]"))
    made.save(str(directory / "tokenizer.json"))
    assert tokenizer_of(directory).encode("film").ids == [3]


def test_a_tokenizer_is_named_by_a_folder_a_file_or_an_object(directory: Path) -> None:
    for spelled in (str(directory), "vocab.txt"):
        assert tokenizer_from(spelled).encode("a film").tokens == ["[CLS]", "a", "film", "[SEP]"]
    (directory / "words.py").write_text("class Words:\n    number = 3\n\nmade = Words()\n")
    assert tokenizer_from("words.py:made").number == tokenizer_from("words.py:Words").number == 3
    with pytest.raises(UsageError, match="--tokenizer 'absent' does not exist: expected a folder"):
        tokenizer_from("absent")


def test_nothing_is_downloaded_and_no_code_of_a_checkpoint_is_run() -> None:
    assert CLOSED == {"local_files_only": True, "trust_remote_code": False}
    assert (MOST_VOCABULARY, MOST_TOKENS, MOST_TOKENIZER) == (16_777_216, 2_097_152, 134_217_728)


def test_the_vocabulary_of_a_saved_model_is_in_its_assets(directory: Path) -> None:
    assets = directory / "saved" / "assets"
    assets.mkdir(parents=True)
    text = (directory / "vocab.txt").read_text(encoding="utf-8")
    (assets / "bert_vocab.txt").write_text(f"{text}\n \n", encoding="utf-8")
    tokenizer = tokenizer_of(directory / "saved")
    assert tokenizer.encode("a film").tokens == ["[CLS]", "a", "film", "[SEP]"]
    assert tokenizer.get_vocab_size() == len(text.split())
    (assets / "other_vocab.txt").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="holds no tokenizer"):
        tokenizer_of(directory / "saved")


def test_a_vocabulary_that_is_no_text_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, why in ((b"a\0b", "it holds the byte 0"), (b"\xff", "can't decode byte 0xff")):
        (directory / "vocab.txt").write_bytes(content)
        with pytest.raises(UsageError, match=f"vocab.txt is not a vocabulary: .*{why}.*Expected one token per line"):
            tokenizer_of(directory)
    monkeypatch.setattr(tokenizer_module, "MOST_TOKENS", 3)
    (directory / "vocab.txt").write_text("[CLS]\n[SEP]\n[UNK]")
    assert tokenizer_of(directory).get_vocab_size() == 3
    (directory / "vocab.txt").write_text("[CLS]\n[SEP]\n[UNK]\n")
    with pytest.raises(UsageError, match="it has 4 lines, and at most 3 are permitted"):
        tokenizer_of(directory)
