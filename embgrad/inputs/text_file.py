"""Read the lines of a text file, one text per line."""

from __future__ import annotations

from typing import Final

from embgrad.errors import FileFormatError

__all__ = ["MARK", "text_lines"]

#: The byte order marks of other encodings.
OTHER_MARKS: Final = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

#: The byte order mark with which a UTF-8 file may begin.
MARK: Final = b"\xef\xbb\xbf"


def text_lines(data: bytes, name: str) -> tuple[list[tuple[int, str]], int]:
    r"""Return the texts with their line numbers, and the number of blank lines.

    Lines end with \n, \r\n or \r, as for Python's open() and text editors. Unicode's other line separators, such as U+2028,
    may be part of a text.
    """
    encoding = OTHER_MARKS.get(data[:2])
    if encoding:
        raise FileFormatError(
            f"{name} is {encoding}: expected UTF-8; convert it, for example with iconv -f {encoding} -t UTF-8"
        )
    lines = data.removeprefix(MARK).splitlines()
    texts = [(number, _decode(line, name, number)) for number, line in enumerate(lines, 1) if line.strip()]
    return texts, len(lines) - len(texts)


def _decode(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{name}, line {number}: byte {line[error.start]:#04x} at position {error.start + 1} is not UTF-8 ({error.reason}); "
            "save the file as UTF-8"
        ) from None
