"""Reading of a command's texts from its options, a file or stdin, and of ids from a JSON file."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from embgrad.common.files import once
from embgrad.errors import FileFormatError, did_you_mean, quote
from embgrad.inputs.batch import CONVENTIONS, TokenBatch
from embgrad.inputs.conventions import as_batch
from embgrad.inputs.text_file import text_lines
from embgrad.loading.errors import UsageError

__all__ = ["MOST_INPUT", "Text", "ids_from", "read_bytes", "read_texts"]

Text = str | tuple[str, str]

#: The largest number of bytes of texts, ids or labels that a command accepts; the gradients of more would not fit in memory.
MOST_INPUT: Final = 2**26

#: The permitted keys of a file of ids, besides those of the known conventions.
FIELDS: Final = ("ids", "mask", "types", "tokens")


def read_texts(
    texts: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    file: str | None,
    tabs: bool,
    note: Callable[[str], None],
) -> list[Text]:
    """Return the texts of --text, of --pair and of the file, in this order; without any of them, the texts piped to stdin.

    Args:
        file: the value of --file; "-" for stdin.
        tabs: whether each line of the file is a pair, separated by a TAB.
        note: the function that reports skipped lines.
    """
    examples: list[Text] = [_decodable(text, "--text") for text in texts]
    examples += [(_decodable(first, "--pair"), _decodable(second, "--pair")) for first, second in pairs]
    if file is None and not examples and _is_piped():
        file = "-"
    if file is not None:
        examples += _of_lines(read_bytes(file), "<stdin>" if file == "-" else file, tabs, note)
    elif tabs:
        raise UsageError("--pairs applies to the lines of a file, and there is no --file: pass --file, or use --pair")
    if not examples:
        raise UsageError("there is no text: give --text TEXT, --pair A B, --file FILE or --ids FILE, or pipe texts in")
    return examples


def read_bytes(file: str, most: int = MOST_INPUT) -> bytes:
    """Return the bytes of a file, or of stdin for "-", reading at most `most` bytes.

    Raises:
        OSError: the file cannot be read.
    """
    if file != "-":
        with Path(file).open("rb") as opened:
            data = opened.read(most + 1)
    elif sys.stdin is None or sys.stdin.isatty():
        raise UsageError("'-' stands for stdin, and nothing is piped in: name a file, or pipe one in")
    else:
        buffer = getattr(sys.stdin, "buffer", None)
        data = buffer.read(most + 1) if buffer is not None else sys.stdin.read(most + 1).encode()
    if len(data) > most:
        raise UsageError(
            f"{'<stdin>' if file == '-' else file} is longer than {most} bytes, the largest permitted size. Split it, or "
            "use embgrad.stream in Python"
        )
    return data


def ids_from(file: str, note: Callable[[str], None]) -> TokenBatch:
    """Return the batch of a JSON file: a list of lists of ids, or an object with ids, mask and types.

    If the file contains only ids, shorter examples are padded with zeros on the right and masked there.
    """
    data, file = read_bytes(file), "<stdin>" if file == "-" else file
    try:
        content = json.loads(data.decode("utf-8-sig"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{file} is not valid JSON: {error}. Expected a list of lists of ids, or an object with 'ids'"
        ) from None
    if isinstance(content, list):
        content = {"ids": content}
    elif not isinstance(content, dict):
        raise UsageError(
            f"{file} holds {type(content).__name__}: expected a list of lists of ids, or an object with 'ids'"
        )
    if "ids" not in content:
        if any(keys[0] in content for keys in CONVENTIONS.values()):
            return as_batch(content)
        hint = next((hint for key in content if (hint := did_you_mean(key, FIELDS))), "")
        raise UsageError(
            f"{file} holds {quote(content)}: expected 'ids', and optionally 'mask', 'types' and 'tokens'.{hint}"
        )
    unknown = [key for key in content if key not in FIELDS]
    if unknown:
        raise UsageError(
            f"{file} holds {quote(unknown)}: expected 'ids', 'mask', 'types' and 'tokens'.{did_you_mean(unknown[0], FIELDS)}"
        )
    return _batch(content, file, note)


def _batch(content: dict[str, Any], file: str, note: Callable[[str], None]) -> TokenBatch:
    ids, mask = content["ids"], content.get("mask")
    rows = isinstance(ids, list) and bool(ids) and all(isinstance(row, list) for row in ids)
    if rows and set(content) == {"ids"} and len({len(row) for row in ids}) > 1:
        longest = max(map(len, ids))
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in ids]
        ids = [[*row, *[0] * (longest - len(row))] for row in ids]
        note(
            f"{file}: the examples have different lengths; shorter ones are padded with zeros on the right and masked there"
        )
    convention = "ids" if mask is None and content.get("types") is None else "huggingface"
    return TokenBatch(ids, mask, content.get("types"), tokens=content.get("tokens"), convention=convention)


def _of_lines(data: bytes, name: str, tabs: bool, note: Callable[[str], None]) -> list[Text]:
    try:
        lines, blank = text_lines(data, name)
    except FileFormatError as error:
        raise UsageError(error.message) from None
    if not lines:
        raise UsageError(f"{name} holds no text: expected one per line")
    texts = [_pair(text, name, number) if tabs else text for number, text in lines]
    if blank:
        note(f"{name}: {blank} blank line{'s' if blank > 1 else ''} skipped")
    return texts


def _pair(text: str, name: str, number: int) -> tuple[str, str]:
    parts = text.split("\t")
    if len(parts) != 2:
        raise UsageError(
            f"{name}, line {number} has {len(parts) - 1} TABs: with --pairs, expected one per line, between the two texts"
        )
    return parts[0], parts[1]


def _decodable(text: str, option: str) -> str:
    """Return the text of an option; raise if it holds lone surrogates, which stand for bytes that could not be decoded."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{option} {text!r} holds bytes that are not text in this locale: expected UTF-8") from None
    return text


def _is_piped() -> bool:
    """Return whether stdin is a pipe, a file or a socket, and not a terminal or closed."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # a stream in memory, in a test or in another program
        return not sys.stdin.isatty()
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
