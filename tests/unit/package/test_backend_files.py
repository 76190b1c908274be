"""The source of the backends: equal names of files, no circular imports, no additional private names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.backend_files import circles, files_of, imports_of, private_names

#: How many private names of other packages each backend uses. A number here only falls.
MOST_PRIVATE = {"embgrad_torch": 31, "embgrad_tensorflow": 30, "embgrad_gluon": 32, "embgrad_jax": 0, "embgrad_onnx": 2}


@pytest.mark.parametrize("backend", MOST_PRIVATE)
def test_imports_have_no_circle(backend: str) -> None:
    assert circles(imports_of(backend)) == []


@pytest.mark.parametrize("backend", MOST_PRIVATE)
def test_the_number_of_private_names_does_not_grow(backend: str) -> None:
    actual = private_names(backend)
    assert len(actual) <= MOST_PRIVATE[backend], sorted(actual)


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == ["a", "b", "c"]


#: The files that every backend has, one for each job.
TWINS = frozenset(
    {"__init__", "bert", "capture", "compile", "graphs", "inputs", "lookup", "modules", "parameters", "pullback", "run"}
    | {"prefix", "state", "tap", "walk"}
)

#: The files that a backend has beside these, with the reason.
OWN = {
    "embgrad_torch": {
        "checkpoints": "PyTorch's gradient checkpoints run segments of a model again in the backward pass",
        "readers": "PyTorch has many functions that select entries of an array, each with arguments of its own",
    },
    "embgrad_tensorflow": {
        "fingerprint": "a tf.function does not notice that the model's Python has changed",
        "functions": "the Python of Keras's and of saved models calls compiled functions, in whose place graphs run",
        "flattening": "a SavedModel's graph calls functions, which TensorFlow's inliner writes out before it is cut",
        "onehot": "Keras's models look up by products with one-hot vectors",
        "operations": "eager passes and graphs find lookups by the same operations of TensorFlow",
        "products": "TensorFlow runs products of variables below its own functions, where their results are replaced",
        "slices": "Keras slices the table of positions, in eager execution, in traces and in saved graphs",
        "scopes": "the layers that an operation was in are written in its name",
        "stretches": "the operations between two points of a graph of TensorFlow run as a graph",
        "restored": "a saved object is called by the signature of one of its functions",
        "tracing": "calls of modules are marked in a tf.function's graph while it is traced",
    },
    "embgrad_gluon": {
        "cures": "operators of MXNet have silently wrong gradients",
        "importing": "MXNet is of 2022, and its import fails or leaves traces beside the NumPy and PyTorch of today",
        "scopes": "the blocks that a node of a SymbolBlock was in are written in its name",
    },
    "embgrad_jax": {
        "fingerprint": "JAX does not notice that the model's Python has changed either",
        "keras": "Keras's layers are called, and their variables replaced, in another way than modules that are pytrees",
        "leaves": "an array of a model is an object of its own in no library of JAX's",
    },
    "embgrad_onnx": {
        "scopes": "the modules that a step was in are written in its name, by each exporter in its own way",
        "importing": "two libraries are needed, one that reads graphs and one that runs them",
        "sessions": "onnxruntime compiles a graph for the tensors that it is to compute",
    },
}

#: The files that a backend lacks, with the reason.
ABSENT = {
    "embgrad_torch": {
        "compile": "a compiled model runs as its Python: compiled code hides its lookups, and saves a few hundredths",
        "graphs": "a model is a module, and what torch.export makes is one too",
    },
    "embgrad_tensorflow": {"prefix": "transformers develops its TensorFlow classes no further"},
    "embgrad_gluon": {
        "compile": "hybridised nets run operator by operator, a tenth slower than their graphs",
        "prefix": "gluonnlp's language models take no keys and values of a text",
    },
    "embgrad_jax": {
        "capture": "JAX keeps no record of a backward pass that was made outside of embgrad",
        "prefix": "there is no common form of a cache of keys and values among JAX's libraries",
    },
    "embgrad_onnx": {
        "bert": "a graph is loaded as it is, and none is built",
        "capture": "the user's passes are sessions of their own, which compute what they were made for",
        "compile": "onnxruntime compiles each graph",
        "prefix": "the keys and values of a text are inputs of the graph as any other",
        "pullback": "onnxruntime computes values only",
        "state": "a pass changes nothing",
    },
}


@pytest.mark.parametrize("backend", MOST_PRIVATE)
def test_each_file_has_its_twin_in_all_backends(backend: str) -> None:
    files = {path.stem for path in files_of(backend)}
    expected = (TWINS - ABSENT[backend].keys()) | OWN[backend].keys()
    assert files == expected, (
        f"{backend} lacks {sorted(expected - files)} and has {sorted(files - expected)} besides: files of one job have one name "
        "in all backends; merge a file into its twin, or give the reason in OWN or ABSENT, and in docs/backend-tour.md"
    )


TOUR = (Path(__file__).parents[3] / "docs" / "backend-tour.md").read_text(encoding="utf-8")
WALKED = re.findall(r"^### `(\w+)`", TOUR, flags=re.MULTILINE)


def test_the_tour_lists_each_file() -> None:
    assert sorted(WALKED) == sorted(path.stem for path in files_of("embgrad_torch"))
    rows = set(re.findall(r"^\| `(\w+)`", TOUR, flags=re.MULTILINE))
    assert rows >= {name for listed in (*OWN.values(), *ABSENT.values()) for name in listed}


def test_the_tour_of_jax_names_existing_definitions() -> None:
    part = TOUR.split("## The backend for JAX")[1].split("\n## ")[0]
    named = {name for listed in re.findall(r"\*\*Read:\*\* ([^)]*)\)", part) for name in re.findall(r"`(\w+)`", listed)}
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files_of("embgrad_jax")]
    defined = {
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    assert len(named) >= 10
    assert named <= defined


@pytest.mark.parametrize("name", WALKED)
def test_the_tour_names_existing_definitions(name: str) -> None:
    (path,) = [path for path in files_of("embgrad_torch") if path.stem == name]
    part = TOUR.split(f"### `{name}`")[1].split("\n#")[0]
    named = [name for line in re.findall(r"\*\*Read:\*\* (.*)", part) for name in re.findall(r"`(\w+)`", line)]
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    defined = {node.name for node in tree if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert named
    assert set(named) <= defined
