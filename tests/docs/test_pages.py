"""The pages are complete: one for each error, every public name in the reference, pictures as their script draws them."""

from __future__ import annotations

import importlib.util
import re

import pytest

import embgrad
from embgrad import errors
from embgrad.cli import main
from tests.docs.pages import DOCS

#: Every class of `embgrad.errors`, by its page.
CLASSES = {
    name.lower(): thing for name, thing in vars(errors).items() if isinstance(thing, type) and name in errors.__all__
}


def test_errors_and_pages_correspond() -> None:
    assert {path.stem for path in (DOCS / "errors").glob("*.md")} - {"messages"} == {*CLASSES, "index"}


@pytest.mark.parametrize("page", CLASSES)
def test_a_page_documents_its_error(page: str) -> None:
    kind = CLASSES[page]
    text = (DOCS / "errors" / f"{page}.md").read_text(encoding="utf-8")
    assert re.search(rf"^# {kind.__name__}$", text, flags=re.MULTILINE)
    printed = "\n".join(re.findall(r"^```text\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))
    shown = f"{kind.__name__}: " if issubclass(kind, Warning) else f"embgrad.errors.{kind.__name__}: "
    assert shown in printed
    bases = [
        base.__name__ for base in kind.__mro__[1:-1] if base not in (errors.EmbgradError, Exception, BaseException)
    ]
    assert any(base in text for base in bases) or not bases


def test_the_index_of_errors_lists_each_with_its_base() -> None:
    text = (DOCS / "errors" / "index.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (?:– )?\[`(\w+)`\]\(\w+\.md\) \| `(\w+)` \|", text, flags=re.MULTILINE))
    assert {name.lower() for name in rows} == {*CLASSES}
    for name, base in rows.items():
        assert base in {item.__name__ for item in CLASSES[name.lower()].__mro__[1:]}
    entries = re.search(r"```\{toctree\}\n:hidden:\n\n(.*?)```", text, flags=re.DOTALL)
    assert entries is not None
    assert {*entries[1].split()} == {*CLASSES, "messages"}


def test_the_reference_lists_every_public_name_once() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    named = re.findall(
        r"^\.\. auto(?:function|class|data|exception):: (?:embgrad\.)?([\w.]+)$", text, flags=re.MULTILINE
    )
    spaces = ("methods", "metrics", "tables", "results", "errors", "zoo")
    public = {*embgrad.__all__, *(f"{space}.{name}" for space in spaces for name in getattr(embgrad, space).__all__)}
    public -= {f"errors.{name}" for name in embgrad.errors.__all__ if name.islower() or name in embgrad.__all__}
    assert sorted(public - set(named)) == []
    assert len(named) == len(set(named))


def test_pages_and_sources_write_names_with_their_namespaces() -> None:
    spaces = ("methods", "metrics", "tables", "results", "errors", "backend", "zoo")
    homes = {name: space for space in spaces for name in getattr(embgrad, space).__all__ if name not in embgrad.__all__}
    root = DOCS.parent
    files = [
        root / "README.md",
        *DOCS.rglob("*.md"),
        *(root / "embgrad").rglob("*.py"),
        *(root / "backends").rglob("*.py"),
    ]
    assert len(files) > 300
    wrong = [
        f"{path.relative_to(root)}: embgrad.{name} instead of embgrad.{homes[name]}.{name}"
        for path in files
        for name in re.findall(r"\bembgrad\.(\w+)", path.read_text(encoding="utf-8"))
        if name in homes
    ]
    assert wrong == []


CONTRIBUTING = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_table_of_rooms_is_complete() -> None:
    table = CONTRIBUTING.split("## The rooms")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`embgrad/.*?) \|", table, flags=re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`embgrad/(\w+)/`", row)]
    assert sorted(named) == sorted(path.parent.name for path in (DOCS.parent / "embgrad").glob("*/__init__.py"))


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:embgrad|backends|docs|tests)/[\w/.-]+)`", CONTRIBUTING))))
def test_files_named_for_contributors_exist(path: str) -> None:
    assert (DOCS.parent / path).exists()


def test_pictures_are_generated_and_load_nothing() -> None:
    spec = importlib.util.spec_from_file_location("draw", DOCS / "pictures" / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == {*drawing.PICTURES}
    for name, draw in drawing.PICTURES.items():
        text = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
        assert text == draw(), f"{name}.svg is not as it is drawn: run python docs/pictures/draw.py"
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\((?!#)|@import|<script", text)


def test_the_readme_has_the_figures_of_the_performance_page() -> None:
    measured = (DOCS / "performance-figures.md").read_text(encoding="utf-8")
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    times = cells(measured, "## Other tools", "captum", "LayerGradientXActivation")
    ours, captum, our_peak, captum_peak = times[4:8]
    by_hand_peak = cells(measured, "## At 16 × 128", "PyTorch")[9]
    assert f"| time, code by hand = 1 | {ours} | {captum} | – | 1 |" in readme
    assert f"| peak memory | {our_peak} MiB | {captum_peak} MiB | – | {by_hand_peak} MiB |" in readme
    small = cells(measured, "## Our own overhead", "PyTorch")[2].lstrip("+")
    captum_small = cells(measured, "## Other tools' overhead", "captum")[4].lstrip("+")
    assert f"{small} ms more than code by hand, captum {captum_small} ms" in readme
    inseq = cells(measured, "## Other tools", "inseq")
    longer = re.search(r"^\| inseq saliency.*? \| ≥ 1\.0 \| (\S+) \|", measured, flags=re.MULTILINE)
    assert longer is not None
    assert (
        f"{float(longer[1]):.2f} times as long as embgrad there, and {inseq[7]} MiB where embgrad takes {inseq[6]}"
        in readme
    )


def cells(text: str, heading: str, *beginning: str) -> list[str]:
    part = text.split(f"{heading}\n", 1)[1].split("\n## ")[0]
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|"))
    return next(row for row in rows if all(cell.startswith(start) for cell, start in zip(row, beginning, strict=False)))


def test_the_command_line_page_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    offered = re.findall(r"^  ([\w-]+)  ", capsys.readouterr().out.split("Commands:\n")[1], flags=re.MULTILINE)
    text = (DOCS / "command-line.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `embgrad ([\w-]+)` \|", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(offered)


def test_the_installation_page_lists_every_extra() -> None:
    project = (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8")
    part = project.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    declared = set(re.findall(r"^(\w+) = \[", part, flags=re.MULTILINE))
    text = (DOCS / "installation.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) == declared - {"test", "docs", "dev"}


def test_the_links_of_the_readme_exist() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)#?([^)]*)\)", (DOCS.parent / "README.md").read_text(encoding="utf-8"))
    assert links
    for file, heading in links:
        page = DOCS.parent / file
        assert page.is_file(), file
        if heading:
            titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert heading in {title.lower().replace(" ", "-") for title in titles}, f"{file}#{heading}"


def test_each_common_task_names_its_test() -> None:
    text = (DOCS / "seeds.md").read_text(encoding="utf-8")
    named = re.findall(r"`tests/cross/seeds/(test_seed_\w+\.py)`", text)
    files = (DOCS.parent / "tests" / "cross" / "seeds").glob("test_seed_*.py")
    assert sorted(named) == sorted(path.name for path in files)
    assert len(named) == len(re.findall(r"^## ", text, flags=re.MULTILINE))
