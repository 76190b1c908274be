"""Loading of tokenizers: from a model's folder, a file, or the user's code."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from embgrad.common.files import read_bounded, read_json
from embgrad.errors import brief
from embgrad.loading.errors import UsageError
from embgrad.loading.huggingface import CLOSED
from embgrad.loading.user_objects import import_object, is_reference

__all__ = ["MOST_TOKENIZER", "MOST_TOKENS", "MOST_VOCABULARY", "tokenizer_from", "tokenizer_of"]

#: The largest size of a vocab.txt in bytes and in lines; BERT's has 231,508 bytes in 30,522 lines.
MOST_VOCABULARY: Final = 2**24
MOST_TOKENS: Final = 2**21

#: The largest size of a tokenizer.json in bytes; MiniLM's has 15 bytes for each token.
MOST_TOKENIZER: Final = 2**27

#: The files of Hugging Face's tokenizers, besides those that this module reads itself.
HUGGING_FACE: Final = ("tokenizer_config.json", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model")


def tokenizer_from(spelled: str) -> Any:
    """Return the tokenizer that --tokenizer names: a folder, a tokenizer.json or vocab.txt, or `module:name`."""
    path = Path(spelled)
    if path.is_dir():
        return tokenizer_of(path)
    if path.is_file():
        return _of_file(path)
    if is_reference(spelled):
        tokenizer = import_object(spelled)
        return tokenizer() if isinstance(tokenizer, type) else tokenizer
    raise UsageError(
        f"--tokenizer {spelled!r} does not exist: expected a folder with tokenizer.json or vocab.txt, such a file, or "
        "path/to/file.py:name"
    )


def tokenizer_of(folder: Path) -> Any:
    """Return the tokenizer of a checkpoint folder, or of a SavedModel's assets.

    Raises:
        UsageError: the folder holds no tokenizer.
    """
    for name in ("tokenizer.json", "vocab.txt"):
        if (folder / name).is_file():
            return _of_file(folder / name)
    assets = sorted((folder / "assets").glob("*vocab*.txt"))
    if len(assets) == 1:
        return _of_file(assets[0])
    if any((folder / name).is_file() for name in HUGGING_FACE) and importlib.util.find_spec("transformers"):
        import transformers

        try:
            return transformers.AutoTokenizer.from_pretrained(str(folder), **CLOSED)
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = " ".join(str(error).split())[:300]
            raise UsageError(
                f"{folder} holds no tokenizer that transformers can load: {why}; name one with --tokenizer"
            ) from error
    raise UsageError(
        f"{folder} holds no tokenizer: expected tokenizer.json or vocab.txt; name one with --tokenizer, or give ids with --ids"
    )


def _of_file(path: Path) -> Any:
    if importlib.util.find_spec("tokenizers") is None:
        raise UsageError("texts need the package 'tokenizers': pip install 'embgrad[cli]'; or give ids with --ids")
    import tokenizers

    if path.suffix == ".json":
        try:
            return tokenizers.Tokenizer.from_str(read_bounded(path, MOST_TOKENIZER).decode("utf-8"))
        except (
            BaseException
        ) as error:  # the library raises plain Exception, or a panic of Rust, which is not an Exception
            if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                raise
            raise UsageError(f"{path} is not a valid tokenizer.json: {error}") from error
    return _wordpiece(path)


def _wordpiece(path: Path) -> Any:
    """Return BERT's tokenizer from its vocabulary file, which has one token per line."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    tokens = _lines(path)
    while tokens and not tokens[-1].strip():
        tokens.pop()
    vocabulary = {token.rstrip("\r"): number for number, token in enumerate(tokens)}
    missing = [token for token in ("[CLS]", "[SEP]", "[UNK]") if token not in vocabulary]
    if missing:
        raise UsageError(
            f"{path} lacks {', '.join(missing)}: expected the vocabulary of a BERT, one token per line. Name another tokenizer "
            "with --tokenizer"
        )
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**_normaliser(path, tokens))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(
        [each for each in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if each in vocabulary]
    )
    return tokenizer


def _lines(path: Path) -> list[str]:
    """Return the lines of a vocabulary file."""
    try:
        data = read_bounded(path, MOST_VOCABULARY)
        if b"\0" in data:
            raise ValueError("it holds the byte 0, which no text has")
        if (lines := data.count(b"\n") + 1) > MOST_TOKENS:
            raise ValueError(f"it has {lines} lines, and at most {MOST_TOKENS} are permitted")
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    except ValueError as error:
        raise UsageError(f"{path} is not a vocabulary: {error}. Expected one token per line, in UTF-8") from None


def _normaliser(path: Path, tokens: Sequence[str]) -> dict[str, Any]:
    """Return the normaliser's settings from tokenizer_config.json; without it, lower case if the vocabulary has no capitals."""
    capitals = any(token != token.lower() for token in tokens if not token.startswith("["))
    config = path.parent / "tokenizer_config.json"
    if not config.is_file():
        return {"lowercase": not capitals}
    try:
        settings = dict(read_json(config))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{config} cannot be read as JSON: {error}. Expected a tokenizer's settings") from None
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"):
        if settings.get(name) not in (True, False, None):
            raise UsageError(f"{config} says {name} {brief(settings[name])}: expected true, false or null")
    lower, chinese = settings.get("do_lower_case"), settings.get("tokenize_chinese_chars")
    return {
        "lowercase": not capitals if lower is None else bool(lower),
        "strip_accents": None if settings.get("strip_accents") is None else bool(settings["strip_accents"]),
        "handle_chinese_chars": True if chinese is None else bool(chinese),
    }
