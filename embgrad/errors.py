"""The errors that embgrad raises; each message says what was wrong, what was expected and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from embgrad.common.text import visible_lines

__all__ = [
    "AmbiguousPointError",
    "BackendError",
    "BatchError",
    "CertificationError",
    "EmbgradError",
    "EmbgradWarning",
    "FileFormatError",
    "GoldenError",
    "NoGradientError",
    "ObjectiveError",
    "OutputError",
    "PointError",
    "PointNotReachedError",
    "UnknownPointError",
    "UnsupportedError",
    "brief",
    "did_you_mean",
    "level_of_user",
    "quote",
]


class EmbgradError(Exception):
    """The base class of every error that embgrad raises on purpose.

    `str(error)` is the message and, on a line of its own, the documentation page about this error.
    """

    #: Keras raises an error that passes through a layer's call once more, as another with a longer message, unless it has this.
    _keras_call_info_injected = True

    @property
    def message(self) -> str:
        """The problem, what was expected and what to do next, without the line that names the page.

        Names in it may come from anyone, so invisible characters are spelled out.
        """
        return visible_lines(Exception.__str__(self))  # KeyError.__str__, which some subclasses inherit, would quote it

    @classmethod
    def page(cls) -> str:
        """Return the documentation page on this error, such as `docs/errors/batcherror.md`."""
        return f"docs/errors/{cls._find_documented().lower()}.md"

    @classmethod
    def see(cls) -> str:
        """Return the line that names the page and the command that prints it."""
        return f"see {cls.page()}, or run: embgrad explain {cls._find_documented()}"

    @classmethod
    def _find_documented(cls) -> str:
        """Return the name of the nearest base class in this module: classes of backends have no page of their own."""
        return next(base.__name__ for base in cls.__mro__ if base.__module__ == __name__)

    def __str__(self) -> str:
        return f"{self.message}\n{self.see()}"


#: How the names of modules begin whose code is embgrad's, or runs between two functions of embgrad's.
OWN_CODE: Final = ("embgrad.", "embgrad_", "functools", "contextlib")


class EmbgradWarning(UserWarning):
    """A condition that changes the meaning of the numbers, though they are correct."""


class BackendError(EmbgradError, RuntimeError):
    """No installed backend supports this model, or several claim it."""


class UnsupportedError(EmbgradError, NotImplementedError):
    """The backend does not support this operation for this type of model."""


class BatchError(EmbgradError, ValueError):
    """The ids, mask, types or other inputs are not valid inputs of a model."""


class PointError(EmbgradError, ValueError):
    """A named point of the forward pass cannot be used."""


class UnknownPointError(PointError):
    """No point of that name exists."""


class AmbiguousPointError(PointError):
    """A name fits several points.

    Attributes:
        lookups: the lookups (`embgrad.model_points.points.Lookup`) that the name fits, in the order in which they were made.
    """

    def __init__(self, message: str, lookups: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.lookups = tuple(lookups)


class PointNotReachedError(PointError):
    """The forward pass did not reach that point.

    Attributes:
        key: the point's key, where an earlier pass on the same batch has reached it; otherwise None.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class OutputError(EmbgradError, ValueError):
    """The model has no output of that name, or none that an objective can read.

    Attributes:
        names: the native names of the model's outputs, as far as they are known.
    """

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


class ObjectiveError(EmbgradError, ValueError):
    """The objective does not fit the output or the batch."""


class NoGradientError(EmbgradError, RuntimeError):
    """The objective has no gradient with respect to that point, or the gradient is not finite."""


class CertificationError(EmbgradError, ArithmeticError):
    """A gradient did not pass the tests of `check=True`.

    Attributes:
        certificate: the figures (`embgrad.results.Certificate`).
    """

    def __init__(self, message: str, certificate: Any = None) -> None:
        super().__init__(message)
        self.certificate = certificate


class FileFormatError(EmbgradError, ValueError):
    """The file is not one that embgrad can read."""


class GoldenError(EmbgradError, AssertionError):
    """Results differ from the golden file, or there is no such file.

    Attributes:
        comparison: the result of `embgrad.compare` (an `embgrad.results.Comparison`, or `Comparisons` for several results); None
            where nothing could be compared.
    """

    def __init__(self, message: str, comparison: Any = None) -> None:
        super().__init__(message)
        self.comparison = comparison


def brief(value: object, most: int = 60) -> str:
    """Return a value's repr for a message, cut after `most` characters; arrays as lists."""
    try:
        text = repr(value.tolist() if hasattr(value, "tolist") else value)
    except Exception:  # a message must not fail: a tensor without storage has no list
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest of the known names, or an empty string."""
    import difflib  # for messages alone

    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def quote(names: Iterable[object], most: int = 8) -> str:
    """Return the names for a message, quoted and comma-separated, cut after `most` of them."""
    quoted = [repr(name) for name in names]
    if not quoted:
        return "none"
    tail = f" and {len(quoted) - most} more" if len(quoted) > most else ""
    return ", ".join(quoted[:most]) + tail


def level_of_user() -> int:
    """Return the number of frames from the caller up to the user's code, for a warning's `stacklevel`."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(OWN_CODE):
        level, frame = level + 1, frame.f_back
    return level
