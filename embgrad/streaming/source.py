"""Read a stream's source: batches as they are, or texts, encoded in portions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any

import numpy as np

from embgrad.errors import BatchError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import is_text
from embgrad.inputs.collate import Padding, pad
from embgrad.inputs.conventions import as_batch, batch_of
from embgrad.inputs.encode import as_example, encode_examples, padding_of, warn_of_doubled
from embgrad.streaming.digest import UnreadableError

__all__ = ["Portion", "Source"]


@dataclass(frozen=True)
class Portion:
    """Consecutive examples of the source, which give one result.

    Attributes:
        batch: the examples; None where they are skipped.
        digest: the digest of the source from its beginning up to the end of this portion; "" where it is not requested.
    """

    number: int
    start: int
    count: int
    batch: TokenBatch | None = None
    labels: Sequence[Any] | None = None
    digest: str = ""

    @property
    def examples(self) -> np.ndarray:
        """The numbers of the examples in the source."""
        return np.arange(self.start, self.start + self.count)

    @property
    def last(self) -> int:
        """The number of the last example in the source."""
        return self.start + self.count - 1


@dataclass(frozen=True)
class Source:
    """The source of a stream.

    Attributes:
        items: texts and pairs of texts with a tokenizer, else batches; with labels (text, label) or (batch, labels).
        tokenizer: see `embgrad.encode`, likewise `max_length`.
        size: with a tokenizer, the number of texts in a portion.
        labelled: whether each item carries a label.
        update: a function that adds a value to a hash, see `embgrad.streaming.digest`; None for no digests.
    """

    items: Iterable[Any]
    tokenizer: Any = None
    max_length: int | None = None
    size: int = 32
    labelled: bool = False
    update: Callable[[Any, Any], None] | None = None
    padding: Padding = field(init=False)

    def __post_init__(self) -> None:
        _expect_source(self.items, self.tokenizer)
        if self.tokenizer is None and self.max_length is not None:
            raise BatchError(
                f"max_length is {brief(self.max_length)}, but there is no tokenizer to apply it: pass tokenizer=..., or omit "
                "max_length"
            )
        padding = Padding() if self.tokenizer is None else padding_of(self.tokenizer)
        object.__setattr__(self, "padding", padding)

    @property
    def examples(self) -> int | None:
        """The number of examples; None where it is not known without reading them."""
        if self.tokenizer is None or not hasattr(self.items, "__len__"):
            return None
        try:
            return len(self.items)  # type: ignore[arg-type]
        except TypeError:  # some classes define `__len__` without always having a length
            return None

    def portions(self, skipped: int = 0) -> Generator[Portion, None, None]:
        """Yield the examples of the source in portions.

        Args:
            skipped: the number of portions that are only counted and digested, not encoded.
        """
        items = iter(self.items)
        try:
            yield from self._batches(items, skipped) if self.tokenizer is None else self._texts(items, skipped)
        finally:
            if isinstance(items, GeneratorType):  # the user closes files
                items.close()

    def _texts(self, items: Iterator[Any], skipped: int) -> Generator[Portion, None, None]:
        is_file = callable(getattr(self.items, "readline", None))  # some files are no io.TextIOBase
        hasher = hashlib.sha256()
        number = start = 0
        texts: list[tuple[str, ...]] = []
        labels: list[Any] = []
        for item in items:
            text, label = self._split_item(item, start + len(texts))
            text = text.rstrip("\r\n") if is_file and isinstance(text, str) else text
            texts.append(as_example(text, start + len(texts)))
            labels.append(_copy(label))
            if len(texts) == self.size:
                yield self._portion(number, start, texts, labels, hasher, number < skipped)
                number, start, texts, labels = number + 1, start + len(texts), [], []
        if texts:
            yield self._portion(number, start, texts, labels, hasher, number < skipped)

    def _portion(
        self, number: int, start: int, texts: list[tuple[str, ...]], labels: list[Any], hasher: Any, skipped: bool
    ) -> Portion:
        item_labels = labels if self.labelled else None
        span = f"the examples {start} to {start + len(texts) - 1} of the source"
        digest = self._digest(hasher, [texts, item_labels], span)
        if skipped:
            return Portion(number, start, len(texts), digest=digest)
        try:
            examples = encode_examples(texts, self.tokenizer, self.max_length)
            warn_of_doubled(examples, self.tokenizer)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"while encoding {span}")
            raise
        return Portion(number, start, len(texts), pad(examples, self.padding), item_labels, digest)

    def _batches(self, items: Iterator[Any], skipped: int) -> Generator[Portion, None, None]:
        hasher = hashlib.sha256()
        start = 0
        for number, item in enumerate(items):
            inputs, labels = self._split_item(item, number)
            try:
                batch = as_batch(inputs)
            except BatchError as error:
                raise BatchError(f"batch {number} of the source: {error.message}") from error
            if self.labelled:
                labels = _check_labels(labels, len(batch), number)
            digest = self._digest(hasher, [batch, labels], f"batch {number} of the source and its labels")
            yield Portion(number, start, len(batch), None if number < skipped else batch, labels, digest)
            start += len(batch)

    def _split_item(self, item: Any, number: int) -> tuple[Any, Any]:
        """Return the text or batch of an item, and its label or labels."""
        if not self.labelled:
            return item, None
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            noun, pair = ("example", "(text, label)") if self.tokenizer is not None else ("batch", "(batch, labels)")
            raise BatchError(
                f"{noun} {number} of the source is {brief(item)}: expected {pair}, as the objective is Labelled"
            )
        return item[0], item[1]

    def _digest(self, hasher: Any, value: Any, what: str) -> str:
        if self.update is None:
            return ""
        try:
            self.update(hasher, value)
        except UnreadableError as error:
            raise BatchError(
                f"{what} hold {brief(error.value)}, of type {type(error.value).__name__}, whose content cannot be read to "
                "identify the source for to=...: use texts, numbers, arrays, or lists and dicts of them, or omit to"
            ) from error
        return str(hasher.hexdigest())


def _check_labels(labels: Any, count: int, number: int) -> Sequence[Any]:
    try:
        entries = labels if isinstance(labels, (list, tuple)) else list(labels)
    except TypeError:
        entries = []
    if len(entries) != count:
        raise BatchError(
            f"the labels of batch {number} of the source are {brief(labels)}: expected {count}, one an example"
        )
    return entries


def _copy(value: Any) -> Any:
    """Return a copy of a label, since the source may reuse its memory for the next text of the same batch."""
    if value is None or isinstance(value, (str, bytes, int, float, complex, np.generic)):
        return value
    try:
        return deepcopy(value)
    except Exception:  # of any class: a value that cannot be copied is used as it is
        return value


def _expect_source(items: Any, tokenizer: Any) -> None:
    """Raise BatchError for objects that are no source, or that would be misread as one."""
    if isinstance(items, (str, bytes)):
        raise BatchError(
            f"the source is the text {brief(items)}: expected an iterable of texts; write [text], or open(path) for the lines "
            "of a file"
        )
    is_batch = isinstance(items, (TokenBatch, Mapping)) or (
        tokenizer is None and (hasattr(items, "shape") or hasattr(items, "asnumpy"))
    )
    if is_batch:
        raise BatchError(
            f"the source is one batch, a {type(items).__name__}: expected an iterable of batches, or of texts with "
            "tokenizer=...; embgrad.gradients takes one batch"
        )
    if len(getattr(items, "shape", ())) == 2 and hasattr(items, "columns"):
        raise BatchError(
            f"the source is a table of {items.shape[0]} rows, a {type(items).__name__}, over which Python iterates by the "
            "names of the columns: pass one column, such as table['text']"
        )
    if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
        raise BatchError(
            f"the source is of type {type(items).__name__}: expected an iterable of batches, or of texts with tokenizer=..."
        )
    if tokenizer is None and isinstance(items, list) and is_text(items):
        batch_of(items, None)  # raises: texts need a tokenizer
