"""Dumps on the reference: what a folder holds, folders in the place of models, and folders that hold something else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.common.safetensors import read_tensors, write_tensors
from embgrad.comparison import dump as dumping
from embgrad.comparison.dump import dump
from embgrad.comparison.dump_format import fingerprint
from embgrad.comparison.live_side import LiveSide
from embgrad.comparison.port import check_port
from embgrad.comparison.recording import FINAL
from embgrad.comparison.sides import read_dump
from embgrad.errors import BatchError, EmbgradError, FileFormatError
from tests.unit.comparison.test_bisect import IDS, OBJECTIVE, model, scaled, weights

UP = "layers.2.up.W"


def port() -> Any:
    """Return a port with two faults: a residual that is halved in layer 0, and a weight times 1.5 in layer 2."""
    return model({UP: weights()[UP] * 1.5}, {"layers.0.residual": scaled(0.5)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dump(model(), IDS, tmp_path / "a", OBJECTIVE)
    return tmp_path / "a"


def same(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    if first is None or second is None:
        return first is second
    return first.dtype == second.dtype and np.array_equal(first, second)


def test_a_folder_keeps_the_reason_why_there_are_no_gradients(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert read_dump(folder).failure is None
    manifest["failure"] = "the head is detached"
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    failure = read_dump(folder).failure
    assert failure is not None
    assert failure.message == "no gradients came when the dump was written: the head is detached"


def test_a_folder_restores_the_recording(folder: Path) -> None:
    batch = embgrad.TokenBatch(IDS)
    live, read = LiveSide(model(), batch, OBJECTIVE).record(), read_dump(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "sites.safetensors",
        "weights.safetensors",
    ]
    assert list(read.tensors) == list(live.tensors)
    for first, second in zip(live.tensors.values(), read.tensors.values(), strict=True):
        for name in ("key", "path", "side", "number", "roles", "time"):
            assert getattr(second, name) == getattr(first, name)
        assert all(same(getattr(first, name), getattr(second, name)) for name in ("values", "gradient", "ids"))
    for mine, its in zip(live.weights, read.weights, strict=True):
        assert (its.name, its.module, its.shape, its.time, its.layer) == (
            mine.name,
            mine.module,
            mine.shape,
            mine.time,
            mine.layer,
        )
        assert same(its.get(), mine.get())
    assert (read.label, read.dtype, read.batch, read.settings) == (live.label, live.dtype, live.batch, live.settings)
    assert same(read.objective, live.objective)
    assert read.live is None


def test_what_the_manifest_leaves_out_follows_from_the_points(folder: Path) -> None:
    whole = read_dump(folder)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for entry in manifest["points"]:
        for name in ("path", "side", "number"):
            del entry[name]
    for entry in manifest["weights"]:
        for name in ("module", "time", "layer"):
            del entry[name]
    path.write_text(json.dumps(manifest))
    read = read_dump(folder)
    assert list(read.tensors) == list(whole.tensors)
    assert [(each.name, each.module, each.time, each.layer) for each in read.weights] == [
        (each.name, each.module, each.time, each.layer) for each in whole.weights
    ]


def test_padding_types_and_single_precision_are_kept(tmp_path: Path) -> None:
    def forward(m: Any, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> Any:
        rows = lookup(m["E"], input_ids) + lookup(m["T"], token_type_ids)
        return rows * rows.__class__(attention_mask[..., None].astype(np.float32))

    from embgrad.testing.reference import ReferenceModel, lookup

    tables = {"E": np.ones((9, 2), np.float32), "T": np.ones((2, 2), np.float32)}
    batch = embgrad.TokenBatch([[1, 2, 3], [4, 5, 0]], [[1, 1, 1], [1, 1, 0]], [[0, 0, 1], [0, 1, 0]])
    dump(ReferenceModel(forward, tables), batch, tmp_path / "deep" / "er")
    read = read_dump(str(tmp_path / "deep" / "er"), batch)
    assert (read.batch, read.dtype, read.objective) == (batch, "float32", None)
    assert read.tensors[FINAL].values.dtype == np.float32
    assert [tensor.gradient for tensor in read.tensors.values()] == [None] * len(read.tensors)


@pytest.mark.parametrize("sides", ["the reference", "the port"])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_folder_stands_for_either_side(folder: Path, sides: str, as_text: bool, tmp_path: Path) -> None:
    expected = check_port(model(), port(), IDS, OBJECTIVE)
    a: Any = model()
    b: Any = port()
    if sides == "the reference":
        a = str(folder) if as_text else folder
    else:
        dump(b, IDS, tmp_path / "b", OBJECTIVE)
        b = str(tmp_path / "b") if as_text else tmp_path / "b"
    actual = check_port(a, b, None, OBJECTIVE)
    assert not actual.agrees
    assert actual.first == expected.first == "layers.0"
    assert {cause.cause for cause in actual.causes} >= {"different-weight"}
    assert len(actual.weights.different) == 1
    assert [point.values for point in actual.points] == [point.values for point in expected.points]
    assert [point.gradient for point in actual.points] == [point.gradient for point in expected.points]
    assert all(point.floor > 0 for point in actual.points if point.layer is not None)
    assert check_port(a, b, IDS).first == "layers.0"
    assert check_port(folder, model()).agrees


def test_of_two_folders_the_first_difference_is_found(folder: Path, tmp_path: Path) -> None:
    dump(port(), IDS, tmp_path / "b", OBJECTIVE)
    actual = check_port(folder, tmp_path / "b")
    assert (actual.agrees, actual.first) == (False, "layers.0")
    assert [point.name for point in actual.points if not point.agrees] == ["layers.0"]
    assert [point.local is None for point in actual.points if point.layer == 2] == [True] * 5
    assert actual.points[-1].values > 0.1
    assert any("neither side could be run again" in note for note in actual.notes)
    right = check_port(folder, folder)
    assert right.agrees
    assert [point.floor for point in right.points[:2]] == [4 * 2.0**-53, 4 * 2.0**-53 * 2**0.5]


def test_rounding_is_no_difference_of_two_folders(folder: Path, tmp_path: Path) -> None:
    arrays, _ = read_tensors(folder / "sites.safetensors")
    random = np.random.default_rng(0)
    single = {
        name: array * (1 + 1e-7 * random.normal(size=array.shape)) if array.dtype.kind == "f" else array
        for name, array in arrays.items()
    }
    dump(model(), IDS, tmp_path / "b", OBJECTIVE)
    write_tensors(tmp_path / "b" / "sites.safetensors", single, {})
    assert not check_port(folder, tmp_path / "b").agrees
    assert check_port(folder, tmp_path / "b", floor="float32").agrees


def test_without_weights_equal_ones_are_known_by_their_fingerprints(tmp_path: Path) -> None:
    dump(model(), IDS, tmp_path / "a", weights=False)
    assert not (tmp_path / "a" / "weights.safetensors").exists()
    actual = check_port(tmp_path / "a", port())
    assert len(actual.weights.matches) == 18
    assert actual.weights.alone_b == (UP,)
    assert actual.unexplained == ("layers.2.up",), "that b's weight is 1.5 times a's is not known"
    assert actual.notes == (
        "a is a dump with fingerprints of its weights alone, of which 18 of 19 have an equal on the other side; how the others "
        "relate to it is not known",
    )
    assert check_port(tmp_path / "a", model()).agrees


def test_a_fingerprint_is_the_same_in_any_layout() -> None:
    import hashlib

    values = np.array([[3.0, -1.0], [2.0, 0.5]])
    by_hand = hashlib.sha256(np.array([0.5, 1, 2, 3], "<f4").tobytes()).hexdigest()
    assert fingerprint(values) == fingerprint(values.T.reshape(4)) == by_hand
    assert fingerprint(values * 1.5) != by_hand


def write_by_hand(folder: Path, arrays: dict[str, Any], **manifest: Any) -> Path:
    """Write a dump as a program in another language would."""
    folder.mkdir()
    write_tensors(folder / "sites.safetensors", {name: np.asarray(array) for name, array in arrays.items()}, {})
    (folder / "manifest.json").write_text(json.dumps({"embgrad-dump": 1, "ids": IDS.tolist(), **manifest}))
    return folder


def test_a_dump_written_by_hand_needs_names_and_ids_alone(tmp_path: Path) -> None:
    live = LiveSide(model(), embgrad.TokenBatch(IDS)).record()
    names = {
        "blk.0.up": "layers.0.up:output#0",
        "blk.1.up:input": "layers.1.up:input#0",
        "blk.1.up": "layers.1.up:output#0",
    }
    arrays = {f"values/{name}": live.tensors[key].values for name, key in names.items()}
    arrays["values/output"] = live.tensors[FINAL].values[:, 0]
    folder = write_by_hand(tmp_path / "engine", arrays, points=[*names, "output"])
    held = {f"blk.{n}.up.weight": weights()[f"layers.{n}.up.W"].T.copy() for n in range(4)}
    write_tensors(folder / "weights.safetensors", held, {})
    read = read_dump(folder)
    assert list(read.tensors) == ["blk.0.up:output#0", "blk.1.up:input#0", "blk.1.up:output#0", "output"]
    assert [(weight.name, weight.module) for weight in read.weights][:2] == [
        ("blk.0.up.weight", "blk.0.up"),
        ("blk.1.up.weight", "blk.1.up"),
    ]
    assert (read.label, read.dtype) == ("dump engine", "float64")
    right = check_port(model(), folder)
    assert right.agrees
    assert [point.port_name for point in right.points] == list(read.tensors)
    assert [match.transposed for match in right.weights.matches] == [True] * 4
    wrong = check_port(model({"layers.1.up.b": weights()["layers.1.up.b"] + 1}), folder)
    assert (wrong.agrees, wrong.first) == (False, "layers.1.up")


def test_a_dump_written_by_hand_may_have_the_weights_of_all_layers_in_one_array(tmp_path: Path) -> None:
    live = LiveSide(model(), embgrad.TokenBatch(IDS)).record()
    arrays = {
        f"values/up:{side}#{layer}": live.tensors[f"layers.{layer}.up:{side}#0"].values
        for layer in range(4)
        for side in ("input", "output")
    }
    folder = write_by_hand(tmp_path / "engine", arrays, points=[name.removeprefix("values/") for name in arrays])
    held = np.stack([weights()[f"layers.{layer}.up.W"] for layer in range(4)])
    write_tensors(folder / "weights.safetensors", {"up.weight": held}, {})
    read = read_dump(folder)
    assert [weight.name for weight in read.weights] == [f"up[{layer}].weight" for layer in range(4)]
    wrong = check_port(model({"layers.2.up.b": weights()["layers.2.up.b"] + 1}), folder)
    assert (wrong.agrees, wrong.first) == (False, "layers.2.up")


def test_roles_alone_pair_points(tmp_path: Path) -> None:
    live = LiveSide(model(), embgrad.TokenBatch(IDS)).record()
    roles = ["word", "layer.0", "layer.2"]
    arrays = {f"values/p{number}": live.by_role(role).values for number, role in enumerate(roles)}  # type: ignore[union-attr]
    points = [{"name": f"p{number}", "roles": [role], "time": number} for number, role in enumerate(roles)]
    points[0]["side"] = None
    folder = write_by_hand(
        tmp_path / "engine", arrays, points=points, settings={"epsilon": 1e-5, "heads": {"value": 4, "where": "n"}}
    )
    read = read_dump(folder)
    assert same(read.tensors["p0#0"].ids, IDS)
    assert {name: (entry.value, entry.where) for name, entry in read.settings.items()} == {
        "epsilon": (1e-5, "epsilon"),
        "heads": (4, "n"),
    }
    assert [point.name for point in check_port(folder, model()).points] == ["p0", "p1", "p2"]


def test_one_example_may_lack_its_axis_and_halves_are_widened(tmp_path: Path) -> None:
    arrays = {
        "values/a": np.ones((4, 2), np.float16),
        "values/b": np.ones((1, 4, 3, 2), np.float32),
        "values/c": np.ones((1, 1, 5)),
    }
    folder = write_by_hand(tmp_path / "engine", arrays, ids=[[1, 2, 3, 4]], points=["a", "b", "c"])
    shapes = {
        tensor.path: (tensor.values.shape, str(tensor.values.dtype)) for tensor in read_dump(folder).tensors.values()
    }
    assert shapes == {"a": ((1, 4, 2), "float32"), "b": ((1, 4, 6), "float32"), "c": ((1, 1, 5), "float64")}


def test_nan_at_padding_is_allowed(tmp_path: Path) -> None:
    values = np.ones((2, 2, 3))
    values[1, 1] = np.nan
    folder = write_by_hand(
        tmp_path / "x", {"values/a": values}, ids=[[1, 2], [3, 0]], mask=[[1, 1], [1, 0]], points=["a"]
    )
    assert len(read_dump(folder).tensors) == 1


def test_a_dump_may_hold_the_output_alone(tmp_path: Path) -> None:
    folder = write_by_hand(tmp_path / "x", {"values/output": np.ones((1, 2, 3))}, ids=[[1, 2]], points=["output"])
    write_tensors(folder / "weights.safetensors", {"W": np.ones((2, 2))}, {})
    (weight,) = read_dump(folder).weights
    assert (weight.module, weight.time, weight.layer) == ("", 1.0, None)


A = {"values/a": np.ones((3, 4, 2))}
POINTS: Any = ["a"]


@pytest.mark.parametrize(
    ("arrays", "manifest", "said"),
    [
        (A, {"points": POINTS, "embgrad-dump": 2}, "manifest.json has version 2, and this embgrad reads up to 1"),
        (A, {"points": POINTS, "embgrad-dump": 0}, "says embgrad-dump 0: expected the version of the format, 1"),
        (A, {"points": [{"name": "a", "number": -1}]}, "says number -1: expected a whole number of at least 0"),
        (A, {"points": POINTS, "embgrad-dump": "1"}, "says embgrad-dump '1': expected the version of the format, 1"),
        (A, {}, r"lacks the fields \['points'\]"),
        (A, {"points": POINTS, "idz": 1}, r"holds the fields \['idz'\]"),
        (A, {"points": [{"nam": "a"}]}, r"lacks the fields \['name'\]"),
        (A, {"points": ["a", 3]}, "says points .*: expected a list of names, or of objects with a name"),
        (A, {"points": [{"name": "a", "side": "left"}]}, "says side 'left': expected 'input', 'output', or null"),
        (A, {"points": POINTS, "settings": {"epsilon": [1]}}, "."),
        (A, {"points": POINTS, "settings": {"epsilon": {"value": []}}},
            r"says value \[\]: expected a number, a truth value"),
        (A, {"points": POINTS, "ids": 3}, "says ids 3: expected a list with a list for each example"),
        (A, {"points": POINTS, "ids": [[1, 2], [-1, 0]]}, "manifest.json holds no valid batch: "),
        (A, {"points": ["a", "b"]}, "lacks the array 'values/b', which manifest.json names as a point"),
        ({**A, "values/x": np.ones((3, 4, 2))}, {"points": POINTS},
            r"holds \['values/x'\], which manifest.json does not name"),
        *(
            (
                {"values/a": np.ones((3, positions, 2))},
                {"points": POINTS},
                rf"holds 'a' of shape \(3, {positions}, 2\), and nothing with the positions of the ids, whose shape is \(3, 4\)",
            )
            for positions in (2, 5)
        ),
        ({"values/a": np.ones((2, 4, 2))}, {"points": POINTS},
            r"'values/a' of shape \(2, 4, 2\), which does not fit ids of shape \(3, 4\)"),
        ({"values/a": np.ones(3)}, {"points": POINTS}, r"of shape \(3,\), which does not fit"),
        ({"values/a": np.array([1.0] * 23 + [np.nan]).reshape(3, 4, 2)}, {"points": POINTS},
            "holds NaN in 'values/a', the first such array"),
        ({**A, "gradient/a": np.full((3, 4, 2), np.nan)}, {"points": POINTS}, "holds NaN in 'gradient/a'"),
        ({**A, "gradient/a": np.ones((3, 4, 3))}, {"points": POINTS}, "holds a gradient at 'a' that has another shape"),
        ({"values/a": np.ones((3, 4, 2), np.int64)}, {"points": POINTS}, "'values/a' of dtype int64: expected floats"),
        ({**A, "ids/a": np.ones((3, 4))}, {"points": POINTS}, r"'ids/a' of float64 \(3, 4\): expected whole numbers"),
        (A, {"points": POINTS, "weights": ["w"]},
            "lacks the array 'w', which manifest.json names as a weight without a fingerprint"),
    ],
)  # fmt: skip
def test_other_content_is_refused(arrays: dict[str, Any], manifest: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = write_by_hand(tmp_path / "x", arrays, **manifest)
    with pytest.raises(FileFormatError, match=said) as caught:
        check_port(folder, model())
    assert str(folder) in caught.value.message


def made_by(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        for name in names:
            (folder / name).write_text("{")

    return make


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "x does not exist: expected a model, or the folder of a dump.* Nothing is downloaded"),
        (made_by(), "x holds no manifest.json: expected a dump, as embgrad.dump writes it. It holds nothing"),
        (made_by("notes.txt"), "It holds 'notes.txt'"),
        (made_by("sites.safetensors"), "x is half written: it has no manifest.json, which is written last"),
        (made_by(".sites.safetensors.01.part"), "x is half written"),
        (made_by("config.json", "model.safetensors"), "x is the folder of a model, not of a dump"),
        (made_by("manifest.json"), "cannot be read as a manifest"),
    ],
)
def test_a_folder_that_is_no_dump_is_refused(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(FileFormatError, match=said) as caught:
        check_port(str(tmp_path / "x"), model())
    assert caught.value.message


def test_missing_and_broken_files_are_refused(folder: Path) -> None:
    whole = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(whole[:-9])
    with pytest.raises(FileFormatError, match=r"weights\.safetensors is not a complete safetensors file"):
        read_dump(folder)
    (folder / "weights.safetensors").write_bytes(whole)
    arrays, _ = read_tensors(folder / "weights.safetensors")
    write_tensors(folder / "weights.safetensors", {**arrays, UP: arrays[UP] * np.nan}, {})
    with pytest.raises(FileFormatError, match=re.escape(f"weights.safetensors holds NaN in {UP!r}")):
        check_port(folder, model())
    (folder / "sites.safetensors").unlink()
    with pytest.raises(FileFormatError, match=r"sites\.safetensors is missing: expected the values at the points"):
        read_dump(folder)


def test_a_dump_of_another_batch_is_refused(folder: Path) -> None:
    said = r"is a dump of another batch: its ids, of shape \(3, 4\), begin with \[2, 22, 8, 18\], and those of the batch, of "
    with pytest.raises(BatchError, match=said + r"shape \(1, 2\), with \[5, 6\]"):
        check_port(folder, model(), [[5, 6]])
    long = np.arange(1, 9)[None]
    with pytest.raises(BatchError, match=re.escape("of shape (1, 8), with [1, 2, 3, 4, 5, 6]. Leave out the texts")):
        read_dump(folder, embgrad.TokenBatch(long))
    with pytest.raises(BatchError, match="a dump of another batch"):
        read_dump(folder, embgrad.TokenBatch(IDS[:, ::-1]))
    mask = np.ones_like(IDS)
    mask[0, 3] = 0
    with pytest.raises(BatchError, match="a dump of the same ids with 12 real positions, and the batch has 11"):
        read_dump(folder, embgrad.TokenBatch(IDS, mask))


def test_texts_are_encoded_by_the_tokenizer_of_the_side_that_is_a_model(folder: Path) -> None:
    own = model()
    own.tokenizer = lambda text: [int(number) for number in text.split()]  # type: ignore[attr-defined]
    texts = [" ".join(map(str, row)) for row in IDS.tolist()]
    assert check_port(folder, own, texts).agrees
    assert check_port(own, folder, texts).agrees


def test_a_dump_without_gradients_says_so(tmp_path: Path) -> None:
    dump(model(), IDS, tmp_path / "a")
    assert check_port(tmp_path / "a", model(), None, OBJECTIVE).notes == (
        "a: the dump holds no gradients, so that values alone are compared",
    )
    assert check_port(tmp_path / "a", model()).notes == ()


def test_an_interrupted_dump_is_recognised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(dumping, "write_whole", fail)
        with pytest.raises(OSError, match="no space left"):
            dump(port(), IDS, folder)
    with pytest.raises(FileFormatError, match="is half written"):
        read_dump(folder)
    dump(model(), IDS, folder, weights=False)
    assert check_port(folder, model()).agrees


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(
        EmbgradError, match=r"holds 'thesis\.tex': expected a new or empty folder, or one with a dump to replace"
    ):
        dump(model(), IDS, tmp_path)
    with pytest.raises(EmbgradError, match=r"thesis\.tex is a file: expected the name of a folder"):
        dump(model(), IDS, tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "x"
    with pytest.raises(EmbgradError, match="weights is 'no'"):
        dump(model(), IDS, tmp_path / "new", weights="no")  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
