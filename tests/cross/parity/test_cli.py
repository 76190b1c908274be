"""The command line on MiniLM's weights in five frameworks, with a fault put in, and on the models that folders may hold."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.cli import main
from embgrad.loading import models
from embgrad.loading.minilm import minilm_folder
from tests.support.sampling import slow

DATA = Path(__file__).parents[2] / "data"
VOCABULARY = DATA / "tfhub_bert_tiny" / "assets" / "uncased_vocab.txt"
TEXTS = "A gripping film, told with unforgettable warmth.\nNever again.\n\nThe plot collapses halfway through.\n"
FRAMEWORKS = "torch,tensorflow,gluon,jax,keras"


def child(*command: str) -> SimpleNamespace:
    done = subprocess.run([sys.executable, *command], capture_output=True, timeout=540, check=False)
    return SimpleNamespace(
        code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode("utf-8", "replace")[-3000:]
    )


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Runs a command in this process, which has the frameworks already."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str, stdin: bytes = b"") -> SimpleNamespace:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(arguments)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text(TEXTS)
    return path


def test_five_frameworks_agree(command: Any, texts: Path) -> None:
    asked = ("--model", str(minilm_folder()), "--frameworks", FRAMEWORKS, "--file", str(texts), "--json")
    done = command("compare", *asked)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["agrees"] is True
    assert list(found["comparisons"]) == ["tensorflow", "gluon", "jax", "keras"]
    for one in found["comparisons"].values():
        assert one["figures"]["relative_l2"] <= 5e-6
        assert len(one["per_example"]) == 3
        assert one["findings"] == []
    assert "1 blank line skipped" in done.err


@pytest.fixture
def swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in PyTorch's model, which is put in before the command gets it."""
    load = models.load_bert

    def load_bert(folder: Any, framework: str, **options: Any) -> Any:
        model = load(folder, framework, **options)
        if framework == "torch":
            attention = model.encoder.layer[2].attention.self
            attention.query, attention.key = attention.key, attention.query
        return model

    monkeypatch.setattr(models, "load_bert", load_bert)


@pytest.mark.usefixtures("swapped")
def test_a_fault_is_reported_with_its_cause_and_its_layer(command: Any, texts: Path) -> None:
    asked = ("--model", str(minilm_folder()), "--frameworks", "torch,tensorflow", "--file", str(texts), "--json")
    done = command("compare", *asked)
    assert done.code == 1, done.err
    comparison = json.loads(done.out)["comparisons"]["tensorflow"]
    assert comparison["agrees"] is False
    assert comparison["findings"][0]["causes"] == ["swapped-weights"]
    done = command("bisect", *asked)
    assert done.code == 1, done.err
    found = json.loads(done.out)
    assert (found["first"], found["direction"]) == ("layer.2", "forward")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint folders of small models with heads, as Hugging Face writes them."""
    import torch
    import transformers

    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("folders")
    size = {
        "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    }  # fmt: skip
    bert = transformers.BertConfig(**size, num_labels=3)
    models = {
        "classifier": transformers.BertForSequenceClassification(bert),
        "masked": transformers.BertForMaskedLM(bert),
        "relative": transformers.BertModel(
            transformers.BertConfig(**size, max_position_embeddings=32, position_embedding_type="relative_key")
        ),
        "t5": transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=60, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
        ),
        "gpt2": transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=64)
        ),
    }
    for name, model in models.items():
        model.save_pretrained(place / name)
        (place / name / "vocab.txt").write_text(VOCABULARY.read_text())
    return place


def test_weights_in_pickles_are_not_read(command: Any, folders: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / "gpt2", tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    done = command(
        "gradients", "-m", str(folder), "--framework", "torch", "-t", "a film", "--objective", "Logit(5, position=-1)"
    )
    assert done.code == 2
    assert "expected the weights as safetensors; 'pytorch_model.bin' is not read, convert it" in done.err


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("classifier", ("--labels", "0,2")),
        ("masked", ("--objective", "Logit(5, position=-2)")),
        ("gpt2", ("--objective", "Logit(5, position=-1)")),
    ],
)
def test_models_with_heads_in_two_frameworks(
    command: Any, folders: Path, name: str, objective: tuple[str, ...]
) -> None:
    asked = ("--frameworks", "torch,tensorflow", "-t", "a film", "-t", "hello world", *objective, "--json")
    done = command("compare", "-m", str(folders / name), *asked)
    assert done.code == 0, done.err
    (comparison,) = json.loads(done.out)["comparisons"].values()
    assert comparison["figures"]["relative_l2"] < 5e-6


def test_a_head_that_a_framework_lacks(command: Any, folders: Path) -> None:
    ask = ("-m", str(folders / "classifier"), "-t", "a film")
    done = command("gradients", *ask, "--framework", "gluon")
    assert done.code == 2
    assert "To load the encoder without its head, pass --ignore PATTERN" in done.err
    done = command("compare", *ask, "--frameworks", "torch,gluon", "--ignore", "classifier.*")
    assert done.code == 0, done.err


def test_a_model_with_missing_weights_is_refused(command: Any, folders: Path) -> None:
    config = folders / "masked" / "config.json"
    before = config.read_text()
    try:
        config.write_text(before.replace("BertForMaskedLM", "BertForSequenceClassification"))
        for framework in ("torch", "tensorflow"):
            done = command("gradients", "-m", str(config.parent), "--framework", framework, "-t", "a film")
            assert done.code == 2
            assert "'classifier.bias'" in done.err
            assert "they would be random numbers" in done.err
        config.write_text(before.replace("BertForMaskedLM", "BertForMaskdLM"))
        done = command("gradients", "-m", str(config.parent), "--framework", "torch", "-t", "a film")
        assert "Did you mean 'BertForMaskedLM'" in done.err
    finally:
        config.write_text(before)


def test_weights_that_the_layers_do_not_use_are_refused(command: Any, folders: Path, tmp_path: Path) -> None:
    """TFBertModel passes over positions that are no table's, and embgrad's own loading refuses them in every framework."""
    from embgrad.loading.huggingface import from_transformers

    with pytest.raises(
        embgrad.errors.UnsupportedError, match=r"2 weights that the layers of a TFBertModel do not use: '.*0"
    ):
        from_transformers(folders / "relative", "tensorflow", "BertModel")
    assert (
        from_transformers(folders / "relative", "torch", "BertModel").config.position_embedding_type == "relative_key"
    )
    done = command("gradients", "-m", str(folders / "relative"), "--framework", "torch", "-t", "a film")
    assert done.code == 2
    assert "position_embedding_type 'relative_key': load_bert expects 'absolute'" in done.err
    for framework in ("torch", "tensorflow"):  # a decoder or a head that is left out lies in no layer that is used
        from_transformers(folders / "t5", framework, "T5EncoderModel")
        from_transformers(folders / "gpt2", framework, "GPT2Model")


def test_a_saved_model_with_its_own_vocabulary(command: Any, tmp_path: Path) -> None:
    out = tmp_path / "g.safetensors"
    folder = DATA / "tfhub_bert_tiny"
    done = command(
        *("gradients", "-m", str(folder), "-f", "-", "--at", "word", "--at", "layer.-1", "-o", str(out)),
        stdin=b"a film\nhello world\n",
    )
    assert done.code == 0, done.err
    found = embgrad.load(out)
    assert list(found) == ["word", "layer.-1"]
    assert found["word"].tokens[0] == ("[CLS]", "a", "film", "[SEP]")
    assert np.linalg.norm(found["layer.-1"].values) > 0
    done = command("gradients", "-m", str(folder), "--framework", "torch", "-t", "a film")
    assert done.code == 2
    assert "is a TensorFlow SavedModel" in done.err


MODELS = """
def build(framework):
    ids = dict(vocab=60, dim=4)
    if framework == "torch":
        import torch
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Embedding(60, 4), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    if framework in ("tensorflow", "keras"):
        import keras
        return keras.Sequential([keras.layers.Embedding(60, 4), keras.layers.Flatten(), keras.layers.Dense(2)])
    from embgrad_gluon import import_mxnet
    mx = import_mxnet()
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Embedding(60, 4), mx.gluon.nn.Dense(2))
    net.initialize()
    return net
"""


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "gluon", "keras"])
def test_models_of_the_users_own(command: Any, tmp_path: Path, framework: str) -> None:
    (tmp_path / "own.py").write_text(MODELS)
    (tmp_path / "ids.json").write_text("[[1, 2, 3], [4, 5, 6]]")
    done = command(
        *("gradients", "-m", str(tmp_path / "own.py") + ":build", "--framework", framework),
        *("--ids", str(tmp_path / "ids.json"), "--labels", "0,1", "--json"),
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["framework"] == framework
    assert found["results"]["word"]["shape"] == [2, 3, 4]


@pytest.mark.slow  # a process for each framework; tests/unit/doctor shows what it reports
def test_doctor_finds_all_frameworks() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run(
        [sys.executable, "-m", "embgrad", "doctor", "--json", "--timeout", "400"],
        capture_output=True, timeout=540, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    for one in found["backends"].values():
        assert one["works"] is True, one
        expected = set() if one["name"] == "onnx" else {""}  # a graph is of no class of a library
        assert set(one["classes"].values()) == expected, one
    parts = {part["name"]: part["trouble"] for part in found["backends"]["tensorflow"]["parts"]}
    assert parts["TF_USE_LEGACY_KERAS"] == "not 1"


def test_the_demo_is_a_command(command: Any) -> None:
    done = command("demo", "--frameworks", "torch", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["agrees"] is True
    assert found["frameworks"]["torch"]["figures"]["relative_l2"] == 0


@pytest.mark.parametrize(
    ("framework", "others"),
    [("torch", ["tensorflow", "keras", "tf_keras", "mxnet"]), slow(("tensorflow", ["torch", "mxnet"]))],
)
def test_only_the_requested_framework_is_imported(framework: str, others: list[str], tmp_path: Path) -> None:
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    (tmp_path / "ids.json").write_text("[[1, 2, 3]]")
    code = (
        "import sys\n"
        "from embgrad.cli import main\n"
        "code = main()\n"
        f"print(code, [name for name in {[framework, *others]!r} if name in sys.modules], file=sys.stderr)"
    )
    asked = ["gradients", "-m", str(tmp_path / "bert"), "--framework", framework, "--ids", str(tmp_path / "ids.json")]
    done = child("-c", code, *asked)
    assert done.err.splitlines()[-1] == f"0 ['{framework}']"
