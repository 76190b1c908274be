"""The axes of products with weights."""

from __future__ import annotations

from typing import Any

__all__ = ["order_of_product", "split_last_factor"]


def order_of_product(equation: Any, *, weight_last: bool) -> list[int] | None:
    """Return the axes of an Einstein sum's result with the weight's behind the others; None where they are, or for other forms.

    Args:
        equation: the sum's, of two factors.
        weight_last: whether the weight is the second factor.
    """
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return None
    terms, _, result = equation.replace(" ", "").partition("->")
    given, weight = terms.split(",")[:: 1 if weight_last else -1]
    order = [result.index(letter) for letter in dict.fromkeys(given + weight) if letter in result]
    return None if order == sorted(order) else order


def split_last_factor(equation: Any) -> tuple[str, str] | None:
    """Return an Einstein sum over several factors in two steps, the last factor's the second; None for other forms.

    Args:
        equation: the sum's.
    """
    if not isinstance(equation, str) or "." in equation or "->" not in equation or equation.count(",") < 2:
        return None
    terms, _, result = equation.replace(" ", "").partition("->")
    *others, last = terms.split(",")
    left = [letter for letter in dict.fromkeys("".join(others)) if letter in result + last]
    kept = "".join(sorted(left, key=lambda letter: letter not in result))  # positions before what is summed
    return f"{','.join(others)}->{kept}", f"{kept},{last}->{result}"
