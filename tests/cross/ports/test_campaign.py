"""The table of checks of other projects' ports has a line for each, with the causes in words."""

from __future__ import annotations

from tests.cross.ports.campaign import CONVERTERS, FLAX, TENSORFLOW, Row, first_sentence, ports, with_table

ROWS = [
    Row("one", True, seconds=1.25),
    Row("two", False, ("epsilon 1e-05 in a and 1e-06 in b, layers 0–1", "no known cause at head"), 0.75, 0.04),
    Row("three", None, ("it cannot be loaded: no converter",)),
]
TABLE = """| Port | Result | Explained | Seconds |
| --- | --- | --- | --- |
| one | agrees |  | 1.2 |
| two | differs: epsilon 1e-05 in a and 1e-06 in b, layers 0–1; no known cause at head | 75 % | 0.0 |
| three | not compared: it cannot be loaded: no converter |  | 0.0 |"""


def test_the_table_is_made_anew_between_its_marks() -> None:
    page = "before\n<!-- table: campaign -->\nold\n<!-- end -->\nbehind\n"
    filled = with_table(page, ROWS)
    assert filled == f"before\n<!-- table: campaign -->\n\n{TABLE}\n\n<!-- end -->\nbehind\n"
    assert with_table(filled, ROWS) == filled


def test_errors_are_told_without_paths() -> None:
    assert (
        first_sentence(ValueError("There is no\nconverter for /a/b models. See c."))
        == "There is no converter for FOLDER models"
    )
    assert first_sentence(KeyError()) == "KeyError"


def test_each_port_is_listed_once_with_a_known_architecture() -> None:
    listed = [(label, name) for label, name, _ in ports()]
    assert len({label for label, _ in listed}) == len(listed) > 40
    assert {name for _, name in listed} <= set(CONVERTERS)
    assert {*FLAX, *TENSORFLOW} <= set(CONVERTERS)
