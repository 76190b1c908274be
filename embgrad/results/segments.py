"""The segments of a text: the turns of a chat, which its template's special tokens begin, or parts that the user names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.token_text import show_token
from embgrad.errors import EmbgradError, brief
from embgrad.results.spans import places_in_text, places_of_characters
from embgrad.results.words import is_special

__all__ = ["OTHERS", "Segment", "check_parts", "segments_of"]

#: The names of roles in chat templates.
ROLES: Final = frozenset(
    ("system", "developer", "user", "human", "assistant", "model", "chatbot", "bot", "tool", "ipython", "environment")
)

#: Special tokens of chat templates, and those of which each begins the turn of a role that it does not name.
SPECIAL: Final = re.compile(r"\[/?[A-Za-z_]+\]|<[^<>]+>")
INSTRUCTIONS: Final = {"[INST]": "user", "[/INST]": "assistant", "[SYSTEM_PROMPT]": "system"}


class Segment(NamedTuple):
    """A segment of a text.

    Attributes:
        positions: the positions of its tokens, which need not be next to each other.
        special: whether it has special tokens alone.
    """

    name: str
    positions: tuple[int, ...]
    special: bool


#: The most tokens of a role's name after the special token that begins its turn.
MOST_TOKENS: Final = 16

#: The name of all tokens that no part holds.
OTHERS: Final = "(other)"


def check_parts(parts: Any) -> None:
    """Raise an error if parts of a text are not named as `by` expects."""
    valid = isinstance(parts, Mapping) and bool(parts) and all(isinstance(name, str) and name for name in parts)
    if not valid:
        raise EmbgradError(f"by is {brief(parts)}: expected names of parts with a text, a slice or positions for each")


def segments_of(source: Any, example: int, parts: Mapping[str, Any] | None, special: bool) -> list[Segment]:
    """Return the segments of an example in the order of the text.

    Args:
        source: a result with `ids`, `real` and `tokens`, which may have `texts`, `offsets` and `parts`.
        parts: the parts by name, each a text, a slice of the real tokens, or positions; None for the turns of a chat.
    """
    segments = []
    for name, whole in _turns(source, example) if parts is None else _find_parts(source, example, parts):
        marks = [_is_marker(source, example, position) for position in whole]
        positions = [position for position, is_mark in zip(whole, marks, strict=True) if special or not is_mark]
        if positions:
            segments.append(Segment(name, tuple(positions), all(marks)))
    return segments


def _is_marker(source: Any, example: int, position: int) -> bool:
    """Return whether a token is special, or one of a template, whose tokens may stand in the text."""
    of_template = source.tokens is not None and bool(SPECIAL.fullmatch(source.tokens[example][position]))
    return of_template or is_special(source, example, position)


def _turns(source: Any, example: int) -> list[tuple[str, list[int]]]:
    """Return the turns of a chat with their names and positions, and what stands before the first."""
    if source.tokens is None:
        raise EmbgradError(
            "by is 'segments', and the tokens are not known, only their ids: give tokenizer=..., or name the parts, such as "
            "by={'question': slice(4, 9)}"
        )
    tokens, real = source.tokens[example], np.flatnonzero(source.real[example]).tolist()
    following = [[tokens[at] for at in real[index : index + MOST_TOKENS + 2]] for index in range(len(real))]
    openers = {each[0] for each in following if _following_name(each) in ROLES}
    starts: list[tuple[int, str]] = []
    for index, each in enumerate(following):
        # Where a token begins the turn of a known role, it begins those of all others.
        role = (_following_name(each) or OTHERS) if each[0] in openers else _role(each[0])
        # A special token before it, such as "<|START_OF_TURN_TOKEN|>", begins the turn as well.
        begins_before = (
            index > 0 and "start" in _words(following[index - 1][0]) and not (starts and starts[-1][0] == index - 1)
        )
        if role:
            starts.append((index - 1 if begins_before else index, role))
    if not starts:
        raise EmbgradError(
            f"by is 'segments', and no special token of example {example} begins the turn of a role: name the parts, such as "
            "by={'question': slice(4, 9)} or by={'question': 'its text'}"
        )
    seen: Counter[str] = Counter()
    turns = []
    if starts[0][0]:
        before = real[: starts[0][0]]
        marks = all(SPECIAL.fullmatch(tokens[at]) for at in before)
        turns.append((" ".join(show_token(tokens[at]) for at in before) if marks else OTHERS, before))
    for (start, role), end in zip(starts, [*(start for start, _ in starts[1:]), len(real)], strict=True):
        seen[role] += 1
        turns.append((role if seen[role] == 1 else f"{role} {seen[role]}", real[start:end]))
    return turns


def _role(token: str) -> str | None:
    """Return the role that a special token names, whose turn it begins."""
    words = _words(token)
    if "end" in words or token.startswith("</"):
        return None
    return INSTRUCTIONS.get(token) or next((word for word in words if word in ROLES), None)


def _following_name(tokens: Sequence[str]) -> str | None:
    """Return the text of the tokens after a special token that may begin a turn, up to another or the end of the line."""
    if not SPECIAL.fullmatch(tokens[0]) or "end" in _words(tokens[0]) or tokens[0].startswith("</"):
        return None
    name = ""
    for token in tokens[1:]:
        if SPECIAL.fullmatch(token) or token[:1] in ("Ċ", "\n") or token.lstrip("▁") in ("<0x0A>", "\n"):
            return name or None
        name += _bare(token).lower()
    return None


def _bare(token: str) -> str:
    """Return the characters of a token without white space and the marks for it."""
    return re.sub(r"[Ġ▁Ċ\s]", "", token.removeprefix("##"))


def _words(token: str) -> list[str]:
    """Return the words of a special token in small letters: of "<|start_header_id|>" "start", "header" and "id"."""
    return re.findall("[a-z]+", token.lower()) if SPECIAL.fullmatch(token) else []


def _find_parts(source: Any, example: int, parts: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """Return the parts with their positions, and all others as one."""
    rest = dict.fromkeys(np.flatnonzero(source.real[example]).tolist())
    groups = []
    for name, part in parts.items():
        positions = _positions(source, example, name, part)
        if lost := [position for position in positions if position not in rest]:
            raise EmbgradError(
                f"by[{name!r}] is {brief(part)}, which has the position {lost[0]} of example {example}: another part has it "
                "too, or it is padding"
            )
        for position in positions:
            del rest[position]
        groups.append((name, positions))
    groups += [(OTHERS, list(rest))] * bool(rest)
    return sorted(groups, key=lambda group: group[1][0])


def _positions(source: Any, example: int, name: str, part: Any) -> list[int]:
    real = np.flatnonzero(source.real[example])
    if isinstance(part, str):
        places = _places(part.strip(), source, example, real)
        if len(places) != 1:
            found = f"has at the positions {brief([int(place[0]) for place in places])}" if places else "does not have"
            raise EmbgradError(
                f"by[{name!r}] is {brief(part)}, a text that example {example} {found}: expected one that is there once, as "
                "whole tokens. Or give slice(start, stop), which counts an example's real tokens"
            )
        return sorted(places[0].tolist())
    if isinstance(part, slice) and all(
        end is None or isinstance(end, (int, np.integer)) for end in (part.start, part.stop)
    ):
        chosen = real[part.start : part.stop].tolist()
    else:
        listed = isinstance(part, (list, tuple, range, np.ndarray)) and all(
            isinstance(at, (int, np.integer)) for at in part
        )
        chosen = sorted({int(at) for at in part}) if listed else []
    if not chosen:
        raise EmbgradError(
            f"by[{name!r}] is {brief(part)}: expected a text, a slice with some of an example's {len(real)} real tokens, or "
            "positions"
        )
    return list(chosen)


def _places(wanted: str, source: Any, example: int, real: np.ndarray) -> list[np.ndarray]:
    """Return the positions of a text at each of its places: by the user's text, or else by the tokens' own texts."""
    if not wanted:
        return []
    if getattr(source, "texts", None) is not None and source.offsets is not None:
        return places_in_text(wanted, source.texts[example], source.offsets[example], source.parts[example], real)
    if source.tokens is None:
        return []
    # Where tokens had white space between them is not known.
    texts = [_bare(source.tokens[example][at]) for at in real.tolist()]
    ends = np.cumsum([len(text) for text in texts])
    offsets = np.stack([ends - [len(text) for text in texts], ends], -1)
    return places_of_characters("".join(wanted.split()), "".join(texts), real, offsets)
