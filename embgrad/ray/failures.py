"""embgrad's errors, recovered from the errors in which Ray wraps them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator

import embgrad.errors
from embgrad.errors import EmbgradError

__all__ = ["cause_of", "plain_errors"]

#: The beginning of the text that Ray appends to the message of an error in a task.
ADDED = r"\nFailed to [^\n]+ after \d+/\d+ attempts"

#: The beginning of an embgrad error in the text of a traceback: the module and name of its class.
BEGIN = r"^(embgrad[\w.]*)\.(\w+): "

#: An embgrad error with its message, which ends before the line that names its page. Without such a line it ends with the text,
#: or before a blank line or the text that Ray appends.
IN_TEXT = re.compile(
    rf"{BEGIN}((?:(?!{BEGIN.replace('(', '(?:')}|^Traceback |^The above exception |^During handling of ).)*?"
    rf"(?=\nsee docs/errors/\w+\.md, or run: )|.*?(?=\n\s*\n|{ADDED}|\Z))",
    re.DOTALL | re.MULTILINE,
)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raise an error of embgrad from an actor as itself, and not wrapped in an error of Ray.

    Use it around code that consumes the dataset of `embgrad.ray.gradients`; `write` and `table` use it themselves.
    """
    try:
        yield
    except EmbgradError as error:
        if type(error).__module__.startswith("embgrad"):
            raise
        raise _embgrad_error(error) or error from None
    except Exception as error:
        original = _embgrad_error(error)
        if original is None:
            raise
        raise original from None


def _embgrad_error(error: BaseException) -> EmbgradError | None:
    """Return the embgrad error inside an error of Ray, or None where there is none.

    Ray Data passes on the text of an exception raised in an actor, and not the exception itself.
    """
    current: BaseException | None = error
    while current is not None:
        cause = getattr(current, "cause", None)
        if isinstance(cause, EmbgradError):
            cause.args = tuple(re.split(ADDED, text)[0] if isinstance(text, str) else text for text in cause.args)
            return cause
        matches = IN_TEXT.findall(str(current))
        if matches:
            module, name, message = matches[-1]  # its causes come before it
            cls = getattr(sys.modules.get(module, embgrad.errors), name, EmbgradError)
            error_class = cls if isinstance(cls, type) and issubclass(cls, EmbgradError) else EmbgradError
            return error_class(re.split(ADDED, message.strip().removesuffix(error_class.see()))[0].rstrip())
        current = current.__cause__ or current.__context__
    return None


def cause_of(error: BaseException) -> str:
    """Return the message of the original error in one line, without Ray's additions."""
    text = str(getattr(error, "cause", None) or error)
    return re.split(ADDED, text)[0].strip().partition("\n")[0]
