"""Forty sentences whose verb agrees with a noun, and not with another that stands between: what must come first in attributions.

In the manner of the subject-verb agreement of BLiMP in Yin and Neubig 2022; the sentences are our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["CASES", "Case", "wilson"]


@dataclass(frozen=True)
class Case:
    """The beginning of a sentence.

    Attributes:
        text: the words before the verb.
        right: the verb's form that agrees.
        wrong: the other form.
        noun: the noun that it agrees with.
        attractor: the noun of the other number.
    """

    text: str
    right: str
    wrong: str
    noun: str
    attractor: str


#: The verb's forms: of the singular, and of the plural.
FORMS: Final = {"be": ("is", "are"), "was": ("was", "were"), "have": ("has", "have")}

#: The noun in brackets is the one that counts, that in braces the attractor.
SENTENCES: Final = {
    "be": {
        "singular": ("The [key] to the {cabinets}", "The [box] with the old {letters}", "A [list] of useful {words}",
            "The [door] behind the tall {shelves}", "The [price] of the red {apples}",
            "Her [answer] to their {questions}", "The [road] between the {villages}"),
        "plural": ("The [keys] to the {cabinet}", "The [boxes] in the {cellar}", "The [pictures] on the {wall}",
            "Some [pages] of the {book}", "The [windows] of the old {house}", "Those [shoes] under the {bed}",
            "The [students] in the {library}"),
    },
    "was": {
        "singular": ("The [teacher] of the {children}", "The [cat] that chased the {birds}",
            "The [letter] from my {cousins}", "The [bridge] over the two {rivers}", "The [song] that the {girls} sang",
            "The [roof] of the {houses}", "The [smell] of the {flowers}"),
        "plural": ("The [farmers] near the {river}", "The [dogs] that followed the {man}",
            "The [letters] from my {sister}", "The [cups] on the {table}", "The [stories] that the {boy} told",
            "The [colors] of the {painting}", "The [trees] behind the {church}"),
    },
    "have": {
        "singular": ("The [captain] of the {ships}", "The [museum] with the {paintings}",
            "The [author] of these {books}", "The [manager] of the {shops}", "The [boy] with the {dogs}",
            "The [town] beyond the {hills}"),
        "plural": ("The [players] on the {team}", "The [workers] in the {factory}", "The [leaves] of the {tree}",
            "The [parents] of the {girl}", "The [engines] of the {plane}", "The [doctors] in the {hospital}"),
    },
}  # fmt: skip


def _case(sentence: str, forms: tuple[str, str], number: str) -> Case:
    (noun, attractor) = (sentence.partition(left)[2].partition(right)[0] for left, right in ("[]", "{}"))
    right, wrong = forms if number == "singular" else forms[::-1]
    return Case("".join(letter for letter in sentence if letter not in "[]{}"), right, wrong, noun, attractor)


CASES: Final = tuple(
    _case(sentence, FORMS[verb], number)
    for verb, numbers in SENTENCES.items()
    for number, sentences in numbers.items()
    for sentence in sentences
)


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a share."""
    share, middle = count / total, (count + z * z / 2) / (total + z * z)
    half = z / (total + z * z) * (share * (1 - share) * total + z * z / 4) ** 0.5
    return middle - half, middle + half
