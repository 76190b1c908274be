"""The digests by which a continued stream recognises its functions, objects and labels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict, UserString
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError, FileFormatError
from embgrad.streaming.digest import digest_of, function_digest
from tests.unit.streams import model, texts, tokenizer

COUNT = 23


def closing_over_any(value: Any) -> Callable[..., Any]:
    return lambda labels: embgrad.CrossEntropy([int(label is value) for label in labels])


def with_a_default(value: Any) -> Callable[..., Any]:
    def make(labels: Any, *, default: Any = value) -> Any:
        return embgrad.CrossEntropy([0 for _ in labels])

    return make


class Mapped:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, labels: Any) -> Any:
        return embgrad.CrossEntropy([0 for _ in labels])

    def make(self, labels: Any) -> Any:
        return self(labels)


class Other:
    def __init__(self, value: Any) -> None:
        self.value = value


def in_a_module(source: str, name: str) -> Any:
    module: dict[str, Any] = {"__name__": "users_own", "np": np, "embgrad": embgrad}
    exec(compile(source, "users_own", "exec", dont_inherit=True), module)
    return module[name]


#: Sources of a module with one difference, on which the result of `make` depends.
MODULES = {
    "a global number": ("CLASS = {}\ndef make(labels): return embgrad.Logit(CLASS)", "1", "2"),
    "a global dict": ("KINDS = {}\ndef make(labels): return [KINDS[one] for one in labels]", "{'a': 1}", "{'a': 2}"),
    "a global array": ("A = np.array([{}])\ndef make(labels): return A", "1.0", "2.0"),
    "a helper": ("def help(x): return x {} 1\ndef make(labels): return help(labels)", "+", "-"),
    "a helper's global": ("N = {}\ndef help(x): return x + N\ndef make(labels): return help(labels)", "1", "2"),
    "one that calls itself": ("def make(n): return n and make(n - {})", "1", "2"),
    "two that call each other": ("def odd(n): return n {} make(n)\ndef make(n): return odd(n)", "or", "and"),
    "a function inside": ("N = {}\ndef make(labels): return (lambda: N)()", "1", "2"),
    "an object": ("class C: pass\nC0 = C()\nC0.n = {}\ndef make(labels): return C0.n", "1", "2"),
    "a class's call": ("class C:\n def __call__(self, labels): return {}\nmake = C()", "labels[0]", "labels[1]"),
    "a class's helper": ("class C:\n def h(self): return {}\n def m(self, l): return self.h()\nmake = C().m", "1.5", "2.5"),
    "a property": ("class C:\n @property\n def h(self): return {}\n def __call__(self, l): return 0\nmake = C()", "1", "2"),
    "a static method": ("class C:\n @staticmethod\n def h(): return {}\n def __call__(self, l): return 0\nmake = C()", "1", "2"),
    "a base class": ("class B:\n def __call__(self, l): return {}\nclass C(B): pass\nmake = C()", "1", "2"),
    "what a partial holds": (
        "import functools\nN = {}\ndef help(n, labels): return N\nmake = functools.partial(help, 3)", "1", "2"
    ),
    "a helper in a cache": (
        "import functools\n@functools.lru_cache\ndef help(x): return x + {}\ndef make(labels): return help(labels)", "1", "2"
    ),
    "a helper with a number": (
        "import functools\ndef h(n, x): return n\nhelp = functools.partial(h, {})\ndef make(labels): return help(labels)",
        "1", "2"
    ),
    "a method": (
        "class C:\n def __init__(self, n): self.n = n\n def m(self, x): return x + self.n\nhelp = C({}).m\n"
        "def make(labels): return help(labels)", "1", "2"
    ),
    "an object that is called": (
        "class C:\n def __init__(self, n): self.n = n\n def __call__(self, x): return self.n\nhelp = C({})\n"
        "def make(labels): return help(labels)", "1", "2"
    ),
    "a class that it makes": ("class C:\n def m(self): return {}\ndef make(labels): return C().m()", "1", "2"),
    "a class's constant": ("class C:\n N = {}\ndef make(labels): return C.N", "1", "2"),
    "an enumeration": ("import enum\nclass E(enum.Enum):\n A = {}\ndef make(labels): return E.A", "1", "2"),
    "an object's method": ("class C:\n def m(self): return {}\nC0 = C()\ndef make(labels): return C0.m()", "1", "2"),
    "an object in an object": ("class C: pass\na = C()\na.b = C()\na.b.n = {}\ndef make(labels): return a.b.n", "1", "2"),
    "an object that holds itself": ("class C: pass\na = C()\na.b, a.n = a, {}\ndef make(labels): return a", "1", "2"),
    "functions in a list": ("def a(x): return {}\nall = [a]\ndef make(labels): return all[0](labels)", "1", "2"),
    "functions in a dict": ("all = {{'a': lambda x: {}}}\ndef make(labels): return all['a'](labels)", "1", "2"),
    "functions in a set": ("def a(x): return {}\nall = {{a}}\ndef make(labels): return [f(labels) for f in all]", "1", "2"),
    "a library's function": ("f = np.{}\ndef make(labels): return f(labels)", "sin", "cos"),
    "an objective": ("all = {{'a': embgrad.Logit({})}}\ndef make(labels): return all['a']", "1", "2"),
    "a data class": (
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass C:\n n: int\nc = C({})\n"
        "def make(labels): return c.n", "1", "2"
    ),
    "a pattern": ("import re\npattern = re.compile('{}')\ndef make(labels): return pattern", "a", "b"),
    "a range": ("all = range({})\ndef make(labels): return all", "1", "2"),
    "a dtype": ("kind = np.dtype('{}')\ndef make(labels): return kind", "f4", "f8"),
    "a function of another module": (
        "import types\nother = types.ModuleType('others_own')\nexec('def f(x): return x + {}', vars(other))\n"
        "def make(labels): return other.f(labels)", "1", "2"
    ),
    "a module in a module": (
        "import types\nouter, inner = types.ModuleType('o'), types.ModuleType('o.i')\nouter.inner, inner.n = inner, {}\n"
        "def make(labels): return outer.inner.n", "1", "2"
    ),
    "a module in a cell": (
        "import types\ndef made():\n inner = types.ModuleType('i')\n inner.n = {}\n return lambda labels: inner.n\n"
        "make = made()", "1", "2"
    ),
    "a module of two functions": (
        "import types\no = types.ModuleType('o')\no.a, o.b = 1, {}\ndef help(x): return o.b\n"
        "def make(labels): return o.a + help(labels)", "1", "2"
    ),
    "what hangs on a function": ("def make(labels): return vars(make)['n']\nmake.n = {}", "1", "2"),
}  # fmt: skip

#: Values that have another order, or another identity, in each process.
OF_PROCESSES = (
    "S = {'a', 'b', 'c'}",
    "S = {frozenset(one): len for one in ('aeim', 'bfjn', 'cgko', 'dhlp')}",
    "def f(x): return 1\ndef g(x): return 2\nclass K: pass\nS = {f, g, K}",
    "class C: pass\nS = C()\nS.a = object()\nS.b = {S: 1}",
    "import random, threading\nS = [threading.Lock(), random.Random(), np.random.default_rng()]",
    "from abc import ABC\nfrom typing import Generic, TypeVar\nclass C(ABC, Generic[TypeVar('T')]): pass\nS = C()",
)


@pytest.mark.parametrize(("source", "value", "changed"), MODULES.values(), ids=MODULES)
def test_functions_differ_by_what_they_read_in_their_module(source: str, value: str, changed: str) -> None:
    first, second, third = (
        function_digest(in_a_module(source.format(part), "make")) for part in (value, changed, value)
    )
    assert first != second
    assert first == third


def test_functions_have_the_same_digest_in_each_process() -> None:
    sources = [f"{item}\ndef make(labels): return S, labels in {{'p', 'q', 'r'}}" for item in OF_PROCESSES]
    script = "import sys\nfrom tests.unit.streaming.test_digests import function_digest, in_a_module\n"
    script += "for one in sys.argv[1:]: print(function_digest(in_a_module(one, 'make')))"
    reported = [
        subprocess.run(
            [sys.executable, "-c", script, *sources],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]
    assert reported == [[function_digest(in_a_module(item, "make")) for item in sources]] * 2


def test_what_a_function_writes_or_does_not_read_is_not_in_its_digest() -> None:
    source = "CALLS = {}\nUNREAD = {}\nINNER = {}\nimport os, sys\n"
    source += "def make(labels):\n global CALLS\n CALLS += 1\n def count():\n  global INNER\n  INNER += 1\n"
    source += " count()\n return os.environ, sys.path, embgrad.Sum()"
    first, second = (function_digest(in_a_module(source.format(n, n, n), "make")) for n in (1, 2))
    assert first == second


def test_the_code_of_an_objective_identifies_the_run(tmp_path: Path) -> None:
    source = "class Mine(embgrad.Sum):\n def _rows(self, rows):\n"
    source += "  values, slopes = super()._rows(rows)\n  return {} * values, {} * slopes"

    def with_factor(factor: float) -> embgrad.results.Stream:
        objective = in_a_module(source.format(factor, factor), "Mine")()
        return embgrad.stream(model(), texts(COUNT), objective, tokenizer=tokenizer, batch_size=2, to=tmp_path)

    with with_factor(1.0) as parts:
        next(parts)
    with pytest.raises(FileFormatError, match="objective was"):
        with_factor(2.0)
    with_factor(1.0).finish()


@dataclass(frozen=True, slots=True)
class InSlots:
    number: int


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        ({1, 2}, {3}),
        (date(2020, 1, 1), date(2020, 1, 2)),
        (Fraction(1, 2), Fraction(1, 3)),
        (InSlots(1), InSlots(2)),
        (Mapped({"a": [1]}), Mapped({"a": [2]})),
    ],
)
def test_labels_of_any_type_identify_the_source(tmp_path: Path, value: Any, changed: Any) -> None:
    def source(label: Any) -> Any:
        return [(text, label) for text in texts(COUNT)]

    def labelled(label: Any) -> embgrad.results.Stream:
        made = embgrad.Labelled(lambda labels: embgrad.Logit(0))
        return embgrad.stream(model(), source(label), made, tokenizer=tokenizer, batch_size=2, to=tmp_path)

    with labelled(value) as parts:
        for _ in range(4):
            next(parts)
    with pytest.raises(FileFormatError, match="the source is not the one of the results in the folder"):
        labelled(changed).finish()
    labelled(value).finish()


class Private:
    __slots__ = ("__number",)

    def __init__(self, number: int) -> None:
        self.__number = number


class Named(str):
    def __new__(cls, text: str, number: int) -> Named:
        made = super().__new__(cls, text)
        made.number = number
        return made


class Numbers(list[int]):
    def __init__(self, number: int) -> None:
        super().__init__([1])
        self.number = number


class Day(date):
    """A date whose content is stored by C code."""


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Unusual(ValueError):
    pass


def of_fields(number: int) -> np.ndarray:
    return np.array([(number, [1, 2])], [("a", "i4"), ("b", "O")])


#: Values that are made from a number, by what they are.
KINDS: dict[str, Callable[[int], Any]] = {
    "values of a dict": lambda n: {1: 10**300 + n}.values(),
    "items of a dict": lambda n: {1: Other(n)}.items(),
    "an iterator": lambda n: iter([n]),
    "a long fraction": lambda n: Fraction(10**300 + n, 3),
    "a long decimal": lambda n: Decimal(10**300 + n),
    "a long whole number": lambda n: 10**5000 + n,
    "a long path": lambda n: Path("a/" * 150 + str(n)),
    "a text of Python's": lambda n: UserString("a" * n),
    "an order": lambda n: OrderedDict([("a", 1), ("b", 2)][:: 1 if n == 1 else -1]),
    "an hour in a zone": lambda n: datetime(2000, 1, 1, tzinfo=timezone(timedelta(hours=n))),
    "a private slot": Private,
    "a text with an attribute": lambda n: Named("a", n),
    "a list with an attribute": Numbers,
    "a class's own date": lambda n: Day(2000, 1, n),
    "an enumeration": Level,
    "an error": Unusual,
    "a bit of a key": lambda n: {(1, Other(n)): 1},
    "a unit of time": lambda n: np.datetime64("2000", "Y" if n == 1 else "M"),
    "no time": lambda n: np.datetime64("NaT") if n == 1 else None,
    "objects in an array": lambda n: np.array([Other(n)], object),
    "shapes of objects": lambda n: np.array([1, 2], object).reshape(1, 2) if n == 1 else np.array([1, 2], object),
    "names of fields": lambda n: np.array([(1,)], [("a" * n, "i4")]),
    "fields with objects": of_fields,
    "one with fields": lambda n: of_fields(n)[0],
    "a mask": lambda n: np.ma.array([1, 2], mask=[n == 1, True]),
    "a masked number": lambda n: np.ma.masked if n == 1 else None,
    "long doubles": lambda n: np.full(3, n, np.longdouble),
    "a polynomial": lambda n: np.polynomial.Polynomial([n]),
    "a random generator": lambda n: np.random.default_rng(n),
    "a method of a list": lambda n: [n].index,
    "a mapping in an object": lambda n: Other({"a": {1: n}.values()}),
}


#: What a closure holds.
CLOSED_OVER = ("values of a dict", "a long fraction", "a class's own date", "a method of a list", "objects in an array")


@pytest.mark.parametrize(
    "make",
    [
        *(lambda n, make=KINDS[kind]: closing_over_any(make(n)) for kind in CLOSED_OVER),
        lambda n: closing_over_any(lambda label: n),
        with_a_default,
        lambda n: Mapped({1: n}),
        lambda n: Mapped(n).make,
    ],
)
def test_functions_differ_by_the_values_that_they_hold(make: Any) -> None:
    assert function_digest(make(1)) == function_digest(make(1))
    assert function_digest(make(1)) != function_digest(make(2))


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_values_differ_by_what_they_hold(make: Callable[[int], Any]) -> None:
    assert digest_of(make(1)) == digest_of(make(1))
    assert digest_of(make(1)) != digest_of(make(2))


@pytest.mark.parametrize("label", [(n for n in ()), memoryview(b""), Other(Other(n for n in ())), {1: [open]}])
def test_labels_whose_content_cannot_be_read_are_refused_with_a_folder(tmp_path: Path, label: Any) -> None:
    def labelled(to: Path | None) -> embgrad.results.Stream:
        made = embgrad.Labelled(lambda labels: embgrad.Logit(0))
        return embgrad.stream(model(), [("a", label)] * 3, made, tokenizer=tokenizer, batch_size=2, to=to)

    assert len(list(labelled(None))) == 2
    if label == {1: [open]}:  # a function tells
        labelled(tmp_path).finish()
        return
    with pytest.raises(BatchError, match=r"the examples 0 to 1 of the source hold .*, whose content cannot"):
        labelled(tmp_path).finish()


def test_other_inputs_whose_content_cannot_be_read_are_refused_with_a_folder(tmp_path: Path) -> None:
    batch = {"input_ids": [[3]], "more": (n for n in ())}
    with pytest.raises(BatchError, match="batch 0 of the source and its labels hold <generator"):
        embgrad.stream(model(), [batch], embgrad.Logit(0), to=tmp_path).finish()
