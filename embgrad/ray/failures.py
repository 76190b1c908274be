"""embgrad's own errors, out of what Ray makes of them on their way from an actor."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator

import embgrad.errors
from embgrad.errors import EmbgradError

__all__ = ["cause_of", "plain_errors"]

#: What Ray adds to the message of an error in a task begins so.
ADDED = r"\nFailed to [^\n]+ after \d+/\d+ attempts"

#: An error of embgrad's in the text of a traceback begins so: its class's module and name.
BEGIN = r"^(embgrad[\w.]*)\.(\w+): "

#: It and its message, which ends before the line that names its page; of an error without such a line with the text, or before
#: a blank line or what Ray adds.
IN_TEXT = re.compile(
    rf"{BEGIN}((?:(?!{BEGIN.replace('(', '(?:')}|^Traceback |^The above exception |^During handling of ).)*?"
    rf"(?=\nsee docs/errors/\w+\.md, or run: )|.*?(?=\n\s*\n|{ADDED}|\Z))",
    re.DOTALL | re.MULTILINE,
)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """While it is open, an error that embgrad raised in an actor comes out as itself, and not within one of Ray's.

    For whoever consumes the dataset of `embgrad.ray.gradients`; `write` and `table` do it themselves.
    """
    try:
        yield
    except EmbgradError as error:
        if type(error).__module__.startswith("embgrad"):
            raise
        raise _own(error) or error from None
    except Exception as error:
        own = _own(error)
        if own is None:
            raise
        raise own from None


def _own(error: BaseException) -> EmbgradError | None:
    """The error of embgrad's that Ray's was made of; None where it was another's.

    Ray Data hands on the text of what was raised in an actor, and not the exception.
    """
    seen: BaseException | None = error
    while seen is not None:
        cause = getattr(seen, "cause", None)
        if isinstance(cause, EmbgradError):
            cause.args = tuple(re.split(ADDED, one)[0] if isinstance(one, str) else one for one in cause.args)
            return cause
        found = IN_TEXT.findall(str(seen))
        if found:
            module, name, message = found[-1]  # what it was raised from stands before it
            kind = getattr(sys.modules.get(module, embgrad.errors), name, EmbgradError)
            made = kind if isinstance(kind, type) and issubclass(kind, EmbgradError) else EmbgradError
            return made(re.split(ADDED, message.strip().removesuffix(made.see()))[0].rstrip())
        seen = seen.__cause__ or seen.__context__
    return None


def cause_of(error: BaseException) -> str:
    """What was raised, in a line, without what Ray puts around it."""
    text = str(getattr(error, "cause", None) or error)
    return re.split(ADDED, text)[0].strip().partition("\n")[0]
