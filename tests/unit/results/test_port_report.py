"""Reports on ports: the verdict in one line, a line a layer, the page, the plot, and files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.display.depth_picture import depth_picture
from embgrad.errors import EmbgradError, FileFormatError
from embgrad.results.port_display import depth_of, parts
from tests.unit.pages import HOSTILE, Reader
from tests.unit.results.ported import EPSILON, POINTS, SCALE, WEIGHTS, agreeing, point, report

RECORDS = ("agrees", "first", "causes", "unexplained", "settings", "weights", "points", "explained", "labels", "floor")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "the port differs: epsilon 1e-05 in a and 1e-06 in b, layers 0–1 (99.997 % of the difference)"),
        (
            {"explained": 1 - 1e-12},
            "the port differs: epsilon 1e-05 in a and 1e-06 in b, layers 0–1 (100 % of the difference)",
        ),
        ({"explained": 0.0}, "the port differs: epsilon 1e-05 in a and 1e-06 in b, layers 0–1 (0 % of the difference)"),
        ({"explained": None}, "the port differs: epsilon 1e-05 in a and 1e-06 in b, layers 0–1"),
        (
            {"explained": -0.5},
            "the port differs: epsilon 1e-05 in a and 1e-06 in b, layers 0–1 (which alone do not bring the outputs nearer)",
        ),
        ({"causes": (), "first": None}, "the port differs, and no point shows where the difference arises"),
        ({"causes": ()}, "the port differs: first at layers.0.norm, and no known cause explains it"),
        (
            {"causes": (SCALE, EPSILON, EPSILON, EPSILON), "unexplained": ("layers.1",)},
            "the port differs: table is multiplied by 1 in a and 8 in b; epsilon 1e-05 in a and 1e-06 in b, layers 0–1; 2 more "
            "causes (99.997 % of the difference); without a known cause at 1 point",
        ),
    ],
)
def test_the_verdict_is_one_line(changes: dict[str, Any], verdict: str) -> None:
    assert report(**changes).verdict == verdict
    assert verdict in repr(report(**changes)).splitlines()


def test_the_text_has_causes_settings_weights_notes_and_a_line_for_each_layer() -> None:
    assert repr(report()).splitlines() == [
        "b = jax Llama against a = torch Llama",
        "the port differs: epsilon 1e-05 in a and 1e-06 in b, layers 0–1 (99.997 % of the difference)",
        "cause: epsilon 1e-05 in a and 1e-06 in b, layers 0–1 (at 2 points, first layers.0.norm, relative L2 0.25 there, "
        "1.00e-07 of it unexplained)",
        "setting: epsilon is 1e-05 in a (rms_norm_eps) and 1e-06 in b (layer_norm_epsilon), which is a cause",
        "weights: 2 equal (1 transposed), 1 fused or split, 1 different (layers.1.W: times 1.5), 1 of a without a "
        "partner (head), 2 of b without a partner (out, more)",
        "note: b: there are no gradients",
        "point      values  gradient  rounding  from equal inputs",
        "table           0         0  1.00e-07                  0",
        "  ✗ norm     0.25       0.5  1.00e-07               0.25",
        "layer 0     0.125      0.25  1.00e-07                  0",
        "layer 1 ✗     0.5         1  1.00e-07             0.0312",
        "output        0.5            1.00e-07                  0",
    ]


def test_a_port_that_agrees_says_so() -> None:
    assert repr(agreeing()).splitlines() == [
        "b = jax Llama against a = torch Llama",
        "the port agrees: at all 3 points, up to rounding in float32",
        "weights: 1 equal",
        "point      values  gradient  rounding  from equal inputs",
        "table           0         0  1.00e-07                  0",
        "layer 0         0         0  1.00e-07                  0",
        "output   1.00e-08  2.00e-08  1.00e-07                  0",
    ]
    assert 'class="verdict"' in agreeing().to_html()
    assert "Causes" not in agreeing().to_html()


def test_the_table_is_short_however_many_points_are_at_fault() -> None:
    many = tuple(point(f"layers.{layer}.p{number}", layer, 1.0, 1.0) for layer in range(30) for number in range(20))
    lines = repr(report(points=many)).splitlines()
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("point ")) + 1 :]
    assert len(table) == 30 + 6
    assert [line.split()[0] for line in table[:6]] == ["✗"] * 6
    assert table[6].endswith("14 more at fault")
    assert table[-1].split()[:2] == ["layer", "29"]
    assert table[-1].endswith("20 at fault")


def test_points_at_fault_have_their_names_within_the_layer() -> None:
    names = [("a.0.p", 0), ("a.0.q", 0), ("a.0", 0), ("elsewhere.r", 1), ("a.1", 1), ("head.2.s", None), ("out", None)]
    every = tuple(point(name, layer, 1.0, 0.0 if name in ("a.1", "out") else 1.0) for name, layer in names)
    lines = repr(report(points=every)).splitlines()
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("point ")) + 1 :]
    heads = [re.split(r"\s{2,}", line.strip())[0] for line in table]
    assert heads == ["✗ p", "✗ q", "layer 0 ✗", "✗ elsewhere.r", "layer 1", "✗ head.2.s", "out"]


def test_without_gradients_there_is_no_column_of_them() -> None:
    plain = report(points=(point("layers.0", 0, 0.5, gradient=None), point("output", None, 0.25, gradient=None)))
    assert repr(plain).splitlines()[-3:] == [
        "point    values  rounding  from equal inputs",
        "layer 0     0.5  1.00e-07                  0",
        "output     0.25  1.00e-07                  0",
    ]
    assert ["layers.0", "0.5", "1.00e-07", "0", ""] in Reader(plain.to_html()).rows


@pytest.mark.parametrize(("matters", "end"), [(None, ""), (False, ", which changes nothing here")])
def test_a_setting_says_whether_it_matters(matters: bool | None, end: str) -> None:
    changed = replace(report().settings[0], matters=matters)
    line = f"setting: epsilon is 1e-05 in a (rms_norm_eps) and 1e-06 in b (layer_norm_epsilon){end}"
    assert line in repr(report(settings=(changed,))).splitlines()


def test_show_prints_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    report().show()
    assert capsys.readouterr().out.rstrip("\n") == repr(report())
    styles = {text: style for text, style in parts(report()) if text.startswith(("table", "  ✗", "layer", "output"))}
    assert list(styles.values()) == ["", "red", "", "red", ""]


def test_control_characters_of_names_are_escaped() -> None:
    assert "\x1b" not in repr(
        report(labels=("\x1b[31m", "b"), unexplained=("a\nb",), points=(point("x\x1b", None, 1.0),))
    )


def test_the_page_has_every_point_and_escapes_names() -> None:
    page = Reader(report().to_html())
    assert page.rows[1] == [EPSILON.text, "at 2 points, first layers.0.norm", "0.25", "1.00e-07"]
    assert ["layers.1.norm", "0.125", "0.25", "1.00e-07", "0", ""] in page.rows
    assert ["layers.1", "0.5", "1", "1.00e-07", "0.0312", "✗ at fault"] in page.rows
    assert ["epsilon", "1e-05 (rms_norm_eps)", "1e-06 (layer_norm_epsilon)", "which is a cause"] in page.rows
    assert ["head", "", "without a partner", ""] in page.rows
    assert "All 6 points" in page.seen
    assert "in 1.8 s" in page.seen
    assert "Without a known cause" not in page.seen
    assert "Without a known cause: a, b." in Reader(report(unexplained=("a", "b")).to_html()).seen
    hostile = "".join(HOSTILE)
    plain = report().to_html()
    named = replace(EPSILON, text=hostile, sites=(hostile,))
    odd = report(
        labels=(hostile, hostile),
        causes=(named,),
        first=hostile,
        points=(point(hostile, None, 1.0, 1.0), *POINTS),
        notes=(hostile,),
    )
    assert {name for name, _ in Reader(odd.to_html()).tags} == {name for name, _ in Reader(plain).tags}
    assert {name for name, _ in Reader(odd._repr_html_()).tags} <= {"div", "strong", "svg", "title", "desc", *SHAPES}


SHAPES = ("g", "line", "text", "polyline", "polygon", "path")


def test_the_page_names_both_models_and_the_signs_of_the_plot() -> None:
    page = report().to_html()
    assert "<p>b = <strong>jax Llama</strong> against a = <strong>torch Llama</strong></p>" in page
    assert "style=" not in page, "the style sheet alone is in force"
    captions = [html.partition("</figcaption>")[0] for html in page.split("<figcaption>")[1:]]
    assert len(captions) == 1
    assert captions[0].endswith("what arises at a point from equal inputs; grey: what rounding alone causes")
    assert "✗" not in agreeing().to_html().partition("<figcaption>")[2].partition("</figcaption>")[0]
    assert page.count('<div class="wide"><table') == 5
    assert page.count('<th scope="col">') == 4 + 4 + 4 + 2 * 6
    assert '<p class="small">values: the relative L2 of the values, each model run by itself; gradient: that of' in page


def test_points_outside_of_layers_have_the_row_of_their_last() -> None:
    points = (
        point("a", None, 0.5),
        point("b", None, 0.25),
        point("layers.0", 0, 1.0),
        point("c", None, 2.0),
        point("d", None, 4.0, 1.0),
    )
    rows = [line.split()[:3] for line in repr(report(points=points)).splitlines()[-3:]]
    assert rows == [["b", "0.25", "0.5"], ["layer", "0", "1"], ["✗", "d", "4"]]


def test_three_names_are_listed_and_further_ones_counted() -> None:
    assert "no known cause: a, b, c\n" in repr(report(unexplained=("a", "b", "c")))
    assert "no known cause: a, b, c and 2 more\n" in repr(report(unexplained=tuple("abcde")))


def test_the_page_is_written_to_a_file(tmp_path: Path) -> None:
    page = report().to_html(tmp_path / "port.html")
    assert "style-src 'sha256-" in page
    assert "unsafe-inline" not in page
    assert (tmp_path / "port.html").read_text(encoding="utf-8") == page
    with pytest.raises(EmbgradError, match="path is 3"):
        report().to_html(3)  # type: ignore[arg-type]


def test_heights_of_the_plot_are_logarithms() -> None:
    depth = depth_of(report(points=(point("a", 0, 1e-4, 1e-4), point("b", 0, 1e-2), point("c", 1, 1.0))))
    assert (depth.layers, depth.faults) == ({0: 0, 2: 1}, {0: 1e-4})
    some = [replace(point("a", 0, 1e-4), gradient=None), point("b", 0, 1e-2)]
    assert depth_of(report(points=some)).curves["gradients"] == [None, 2e-2]
    assert "gradients" not in depth_of(report(points=some[:1])).curves
    drawn = str(depth_picture(depth, inline=False))
    # From 1e-7 of the floor, at 220, to 2 of the gradient, below 1e+1, at 12: 26 for each power of ten.
    assert 'points="103.3,142.0 218.0,90.0 332.7,38.0"' in drawn
    assert '<g transform="translate(103.3 142.0)" class="no">' in drawn
    assert 'points="103.3,220.0 103.3,220.0 218.0,220.0 332.7,220.0 332.7,220.0"' in drawn, "the band of rounding"
    assert "values from 1.00e-04 at a to 1 at c; gradients from 2.00e-04 at a to 2 at c; 1 point at fault" in drawn


def test_layers_are_marked_and_named_along_the_axis() -> None:
    points = (*(point(f"x{n}", 0, 0.1) for n in range(3)), point("y", 1, 0.1))
    drawn = str(depth_picture(depth_of(report(points=points)), inline=False))
    # Four points of 86 from 46 on: layer 0 takes three of them, layer 1 one.
    assert (
        '<line x1="46.0" x2="46.0" y1="12.0" y2="220.0"></line><line x1="304.0" x2="304.0" y1="12.0" y2="220.0"></line>'
        in drawn
    )
    assert (
        '<text x="175.0" y="233.0">0</text><text x="347.0" y="233.0">1</text><text x="218.0" y="248.0">layer</text>'
        in drawn
    )
    assert drawn.count("stroke-dasharray") == 1, "the gradients' curve alone"
    assert drawn.index("<title>values</title>") < drawn.index("stroke-dasharray")


def test_as_many_layers_are_numbered_as_there_is_space_for() -> None:
    points = tuple(point(f"x{n}", n, 0.1) for n in range(100))
    drawn = str(depth_picture(depth_of(report(points=points)), inline=False))
    numbers = re.findall(r"y=\"233.0\">(\d+)</text>", drawn)
    # A layer takes 3.44 of the width, and a number 16: every fifth layer has one.
    assert [int(number) for number in numbers] == list(range(0, 100, 5))


def test_there_is_no_plot_of_a_single_point() -> None:
    one = report(points=POINTS[:1])
    assert "<svg" not in one._repr_html_()
    assert "<figure" not in one.to_html()


def test_json_holds_everything() -> None:
    actual = json.loads(json.dumps(report().to_dict()))
    assert actual["agrees"] is False
    assert actual["verdict"] == report().verdict
    assert actual["points"][1] == {
        "name": "layers.0.norm",
        "port_name": "layers.0.norm",
        "layer": 0,
        "values": 0.25,
        "gradient": 0.5,
        "floor": 1e-7,
        "local": 0.25,
        "local_gradient": None,
        "agrees": False,
    }
    assert actual["causes"][0]["values"] == ["1e-05", "1e-06"]
    assert actual["weights"]["parts"] == {"layers.0.qkv": ["blk.0.q", "blk.0.k", "blk.0.v"]}


@pytest.mark.parametrize("original", [report(), agreeing(), report(explained=None, first=None, points=(), causes=())])
def test_files_restore_a_report(original: Any, tmp_path: Path) -> None:
    original.save(tmp_path / "port.safetensors")
    again = embgrad.load(tmp_path / "port.safetensors")
    assert type(again) is embgrad.results.PortReport
    for name in (*RECORDS, "notes", "seconds"):
        assert getattr(again, name) == getattr(original, name), name
    assert repr(again) == repr(original)


def test_infinite_differences_are_restored(tmp_path: Path) -> None:
    weights = replace(WEIGHTS, matches=(replace(WEIGHTS.matches[2], distance=np.inf, relation="of another shape"),))
    original = report(points=(point("a", None, np.inf, np.inf), point("b", None, np.nan, None)), weights=weights)
    embgrad.save({"one": original, "two": report()}, tmp_path / "port.safetensors")
    again = embgrad.load(tmp_path / "port.safetensors")["one"]
    assert again.weights == weights
    assert (again.points[0], again.points[1].local) == (original.points[0], None)
    assert np.isnan(again.points[1].values)
    assert "∞" in repr(again)
    assert "∞" in again.to_html()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a, e: a.pop("point.values"), "holds 0 numbers as point.values: expected one for each of 6"),
        (
            lambda a, e: a.update({"point.floor": -a["point.floor"]}),
            "holds -1e-07 in point.floor: expected no number below 0",
        ),
        (lambda a, e: e.update(points=3), "says points 3: expected a list"),
        (lambda a, e: e["points"][0].update(layer=-1), "says layer -1: expected a layer's index, or null"),
        (
            lambda a, e: e["causes"][0].update(layers=[-1]),
            r"says layers \[-1\]: expected a list, of which each is a whole number",
        ),
        (lambda a, e: e["causes"][0].update(values=["1"]), r"says values \['1'\]: expected two texts"),
        (lambda a, e: e.update(labels="ab"), "says labels 'ab': expected two texts"),
        (lambda a, e: e.update(first=3), "says first 3: expected text or null"),
        (lambda a, e: e.update(explained="all"), "says explained 'all': expected a number or null"),
        (lambda a, e: e.update(seconds={"led": -1}), "says seconds .*: expected times by step"),
        (lambda a, e: e["weights"].update(parts=[]), r"says parts \[\]: expected names by name"),
        (lambda a, e: e["weights"].update(matches=[3]), "says matches .*: expected a list, of which each is an object"),
        (lambda a, e: e["settings"][0].update(matters="yes"), "says matters 'yes': expected true, false or null"),
    ],
)
def test_other_content_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    from embgrad.common.safetensors import read_tensors, write_tensors

    report().save(tmp_path / "port.safetensors")
    arrays, metadata = read_tensors(tmp_path / "port.safetensors")
    entry = json.loads(metadata["embgrad"])
    change(arrays, entry)
    write_tensors(tmp_path / "port.safetensors", arrays, {"embgrad": json.dumps(entry)})
    with pytest.raises(FileFormatError, match=said):
        embgrad.load(tmp_path / "port.safetensors")
