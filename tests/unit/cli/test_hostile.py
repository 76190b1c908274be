"""Hostile input of commands: tokens, names, vocabularies, tokenizers, and endless files."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import embgrad
from embgrad.cli.result_lines import text_lines
from embgrad.cli.terminal import Terminal
from embgrad.loading import texts
from embgrad.loading import tokenizer as tokenizing
from embgrad.loading.errors import UsageError
from embgrad.loading.texts import ids_from, read_bytes
from embgrad.loading.tokenizer import tokenizer_from
from embgrad.results.gradient_display import gradient_lines
from tests.unit.cli.commands import ASK as ASK_IDS
from tests.unit.cli.commands import TEXTS as ASK_TEXTS
from tests.unit.cli.commands import WORDS, child, refused
from tests.unit.common.test_text import marked
from tests.unit.hostile import TEXTS, expect_harmless
from tests.unit.results.test_io_hostile import at_once, unix

ASK = ("gradients", *ASK_IDS)

#: Some of each kind, where one command takes one text.
FEW = ("html", "a link", "c1", "bidi overrides", "a lone surrogate", "nul", "broken rich markup", "ends of lines")

#: What Rich itself writes to a terminal: colours, and nothing else.
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def file(directory: Path) -> str:
    embgrad.save({text: marked(text) for text in TEXTS.values()}, "g.safetensors")
    return "g.safetensors"


@pytest.mark.parametrize("options", [(), ("--words",), ("--kind", "dot")])
@pytest.mark.parametrize("coloured", [False, True])
def test_hostile_results_are_shown(
    file: str, options: tuple[str, ...], coloured: bool, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if coloured:
        for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLORTERM", "truecolor")):
            monkeypatch.setenv(name, value)
    done = command("show", file, *options)
    assert done.code == 0, done.err
    plain = COLOURS.sub("", done.out)
    assert (plain != done.out) == coloured
    expect_harmless(plain, lines=True)
    for text in ("\\x1b]8;;http", "\\u202eevil", "\\ud800a", "[/nothing]", "<script>alert(1)</script>"):
        assert text in plain


def test_hostile_results_are_compared_and_reported(file: str, command: Any, directory: Path) -> None:
    for arguments in (("compare", file, file), ("report", file, file, "-o", "page.html", "--title", "[/x]\u202e")):
        done = command(*arguments)
        assert done.code == 0, done.err
        expect_harmless(done.out + done.err, lines=True)
    (directory / "page.html").read_bytes().decode("utf-8")


def test_json_is_ascii_and_exact(file: str, command: Any) -> None:
    done = command("show", file, "--json")
    assert done.code == 0, done.err
    assert not re.search(r"[^\x20-\x7e\n]", done.out)
    answer = json.loads(done.out)["results"]
    assert list(answer) == list(TEXTS.values())
    for text in TEXTS.values():
        assert answer[text]["tables"]["tokens"]["token"][1] == text


@pytest.mark.parametrize("name", FEW)
def test_hostile_arguments_are_errors_of_one_line(name: str, file: str, command: Any) -> None:
    word = "t" + TEXTS[name].replace("\0", "")
    asked = ("gradients", *ASK_TEXTS, "-t", "a")
    for arguments in (
        ("show", word),
        ("show", file, "--at", word),
        ("show", file, "--kind", word),
        ("gradients", "-m", word, "-t", "a"),
        (*asked, "--objective", word),
        (*asked, "--at", word),
        (*asked, "--labels", word),
    ):
        done = command(*arguments)
        assert (done.code, done.out) == (2, ""), arguments
        expect_harmless(done.err, lines=True)
        first, *others = done.err.splitlines()
        assert first.startswith("error: ")
        assert all(line.startswith(("note: ", "warning: ")) for line in others)


def test_hostile_texts_are_encoded(command: Any) -> None:
    broken = [text for text in TEXTS.values() if any("\ud800" <= item <= "\udfff" for item in text)]
    assert len(broken) == 2
    for text in broken:
        message = refused(command("gradients", *ASK_TEXTS, "-t", text))
        assert "holds bytes that are not text in this locale: expected UTF-8" in message
        expect_harmless(message)
    taken = [text[:2000] for text in TEXTS.values() if text not in broken]
    given = [part for text in taken for part in ("-t", f"grip {text}")]
    done = command("gradients", *ASK_TEXTS, *given, "-o", "h.safetensors")
    assert done.code == 0, done.err
    expect_harmless(done.out, lines=True)
    actual = embgrad.load("h.safetensors")
    assert isinstance(actual, embgrad.results.EmbeddingGradients)
    assert {row[:2] for row in actual.tokens or ()} == {("[CLS]", "grip")}


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_status_lines_show_markup_as_text(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    terminal = Terminal(io.StringIO())
    with terminal.busy(f"loading {text[:300]} …"):
        time.sleep(0.01)  # Rich before 14.1 has one at a time
    with terminal.progress(text[:300]) as report:
        report(1, 2)
    for tell in (terminal.note, terminal.warn, terminal.fail):
        tell(text[:300])
    drawn = re.sub(r"\x1b\[(\?25[lh]|[0-9;]*[mAK]|2K|1A)|\r", "", screen.getvalue())
    expect_harmless(drawn, lines=True)
    if text == TEXTS["broken rich markup"]:
        assert drawn.count(text) >= 4
    shown = text_lines(gradient_lines(marked(text), "norm", "tokens", [0]), coloured=True)[0]
    expect_harmless(shown.plain)
    assert not any("link" in str(span.style) for span in shown.spans)


@pytest.mark.parametrize("text", ["[/x][link=http://127.0.0.1]y", "\x1b[31m"])
def test_unknown_options_show_markup_as_text(text: str) -> None:
    done = child("show", f"--{text}", FORCE_COLOR="1")
    assert done.code == 2
    plain = COLOURS.sub("", done.err)
    assert "\x1b" not in plain
    assert "Traceback" not in plain
    assert "No such option" in plain


def test_endless_inputs_are_refused(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("this system has no /dev/zero")
    monkeypatch.setattr(texts, "MOST_INPUT", 1000)
    said = r"is longer than 1000 bytes, the largest permitted size\. Split it, or use embgrad\.stream"
    with pytest.raises(UsageError, match=rf"/dev/zero {said}"):
        read_bytes("/dev/zero", 1000)
    with open("/dev/zero", "rb") as endless:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(endless))
        with pytest.raises(UsageError, match=rf"<stdin> {said}"):
            read_bytes("-", 1000)
    (directory / "large.txt").touch()
    os.truncate(directory / "large.txt", 2**30)
    with pytest.raises(UsageError, match=r"large\.txt is longer than 67108864 bytes"):
        read_bytes("large.txt")
    (directory / "just.txt").write_bytes(b"a" * 1000)
    assert len(read_bytes("just.txt", 1000)) == 1000


@unix
def test_a_named_pipe_is_read_to_its_end(directory: Path, command: Any) -> None:
    os.mkfifo(directory / "pipe")
    writer = threading.Thread(target=lambda: (directory / "pipe").write_bytes(b"never again\n"))
    writer.start()
    done = command("gradients", *ASK_TEXTS, "-f", "pipe", "-o", "h.safetensors")
    writer.join()
    assert done.code == 0, done.err
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 10**6, "is not valid JSON: "),
        (b'{"ids": [[1]], "ids": [[2]]}', "a key is repeated"),
        (b'{"ids": [[%s]]}' % (b"9" * 5000), "Exceeds the limit"),
        (b'{"ids": [[1e400]]}', "ids holds inf"),
        (b'{"ids": [[NaN]]}', "ids holds nan"),
        (b'{"ids": [[-1]]}', "ids holds -1"),
        (b'{"ids": [[9223372036854775808]]}', "ids"),
        (b'{"ids": [["\\ud800"]]}', "ids"),
        (b'{"ids": {"a": 1}}', "ids"),
        (b'{"ids": [[1]], "tokens": [[3]], "mask": [["1"]]}', "mask"),
        (b'{"\x1b[31m": 1}', "Invalid control character"),
        (b'{"\\u001b[31m": 1}', "holds '\\\\x1b[31m'"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"\0" * 100, "is not valid JSON"),
    ],
)
def test_hostile_ids_are_refused(directory: Path, content: bytes, said: str) -> None:
    (directory / "bad.json").write_bytes(content)
    with pytest.raises(embgrad.EmbgradError, match=re.escape(said).replace(r"\\\\", r"\\")) as caught:
        ids_from("bad.json", lambda _: None)
    expect_harmless(str(caught.value), lines=True)
    assert len(caught.value.message) < 600


def test_vocabularies_that_are_too_long_are_refused_and_hostile_tokens_are_taken(directory: Path) -> None:
    lines = "\n".join(WORDS).encode()
    path = directory / "bad" / "vocab.txt"
    path.parent.mkdir()
    path.touch()
    os.truncate(path, 2**32)
    with pytest.raises(
        UsageError, match=f"it is 4294967296 bytes long, more than the limit of {tokenizing.MOST_VOCABULARY}"
    ):
        tokenizer_from(str(path.parent))
    path.write_bytes(lines + b"\n\x1b[31m\n" + "\u202e".encode() + b"\n" + b"w" * 100_000)
    assert tokenizer_from(str(path)).encode("grip never").tokens[1] == "grip"


@unix
def test_tokenizers_that_are_pipes_are_refused(directory: Path) -> None:
    for name in ("vocab.txt", "tokenizer.json"):
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)
        for path in (str(directory / name), str(directory)):
            with pytest.raises(UsageError, match=r"does not exist|holds no tokenizer"):
                at_once(lambda path=path: tokenizer_from(path))
        (directory / name).unlink()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "EOF"),
        (b"\xff", "can't decode"),
        (b'{"model":' * 10**5, "recursion limit exceeded"),
        (b'{"model": {"type": "WordPiece", "vocab": {"a": -1}}}', ""),
        (b'{"model": {"type": "os.system"}}', ""),
        (b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}', ""),
        (b'{"version": "1.0", "model": {"type": "Unigram", "vocab": [], "unk_id": 99}}', ""),
        (b'{"version": "9", "model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}}', ""),
    ],
)
def test_hostile_tokenizer_files_are_refused(directory: Path, content: bytes, said: str) -> None:
    (directory / "tokenizer.json").write_bytes(content)
    with pytest.raises(UsageError, match=rf"tokenizer\.json is not a valid tokenizer\.json: .*({said})"):
        tokenizer_from("tokenizer.json")
    os.truncate(directory / "tokenizer.json", 2**32)
    with pytest.raises(
        UsageError, match=f"it is 4294967296 bytes long, more than the limit of {tokenizing.MOST_TOKENIZER}"
    ):
        tokenizer_from("tokenizer.json")


def test_tokenizers_that_fail_when_used(directory: Path, command: Any) -> None:
    tokenizer_from("vocab.txt").save("tokenizer.json")
    sound = json.loads(Path("tokenizer.json").read_text())
    template = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    template["pair"] = [{"Sequence": {"id": item, "type_id": 0}} for item in "AB"]
    words = [word for word in sound["model"]["vocab"] if word != "[UNK]"]
    missing = {**sound["model"], "vocab": {word: number for number, word in enumerate(words)}}
    unknown = {**template, "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}, *template["single"]]}
    broken = [{**sound, "model": missing, "added_tokens": []}, {**sound, "post_processor": unknown}]
    said = []
    for content in broken:
        Path("tokenizer.json").write_text(json.dumps(content))
        done = command("gradients", "-m", "models.py:build", "--tokenizer", "tokenizer.json", "-t", "zzz")
        assert (done.code, done.out) == (2, "")
        said.append(done.err)
    assert re.search(
        r"the tokenizer cannot encode the texts: WordPiece error: Missing \[UNK\].*fetch its tokenizer\.json", said[0]
    )
    assert re.search(r"is not a valid tokenizer\.json|the tokenizer cannot encode the texts", said[1])


class PanicError(BaseException):
    """An exception as pyo3 makes it from a panic in Rust."""


PanicError.__module__ = "pyo3_runtime"


def test_a_panic_of_the_library_is_an_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*_: Any) -> Any:
        raise PanicError("no entry found for key")

    class Broken:
        padding = None

        def token_to_id(self, token: str) -> int:
            return 0

        def to_str(self) -> str:
            return ""

        @classmethod
        def from_str(cls, text: str) -> Broken:
            return cls()

        def no_padding(self) -> None:
            """It has none."""

        def no_truncation(self) -> None:
            """It has none."""

        encode_batch = panics

    with pytest.raises(
        embgrad.errors.BatchError, match="cannot encode the texts: no entry found for key; expected a tokenizer whose"
    ):
        embgrad.encode(["a"], Broken())
    Path("tokenizer.json").write_text("{}")
    monkeypatch.setattr(tokenizing, "read_bounded", panics)
    with pytest.raises(UsageError, match=r"tokenizer\.json is not a valid tokenizer\.json: no entry found for key"):
        tokenizer_from("tokenizer.json")


def test_hostile_tokenizer_settings_are_refused(directory: Path) -> None:
    for content in (b"[" * 10**5, b"3", b"{", b'{"a": 1, "a": 2}', b"\xff"):
        (directory / "tokenizer_config.json").write_bytes(content)
        with pytest.raises(
            UsageError, match=r"tokenizer_config\.json cannot be read as JSON: .*Expected a tokenizer's settings"
        ):
            tokenizer_from("vocab.txt")
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"):
        (directory / "tokenizer_config.json").write_text(json.dumps({name: "\x1b", "auto_map": "x.py"}))
        with pytest.raises(UsageError, match=rf"says {name} '\\x1b': expected true, false or null"):
            tokenizer_from("vocab.txt")
        (directory / "tokenizer_config.json").write_text(json.dumps({name: None, "auto_map": "x.py"}))
        assert tokenizer_from("vocab.txt").encode("Grip").tokens[1] == "grip"


def test_hostile_labels_are_refused(directory: Path, command: Any) -> None:
    for content in (b"[" * 10**6, b"9" * 5000, b"\x1b[31m", b"\0", b"1e999", b"[null]", b"\xff"):
        (directory / "labels").write_bytes(content)
        done = command(*ASK, "--labels", "labels")
        assert (done.code, done.out) == (2, ""), content[:20]
        expect_harmless(done.err, lines=True)


def test_hostile_model_folders_are_refused(directory: Path, command: Any) -> None:
    (directory / "m").mkdir()
    for content, said in (
        (b"[" * 10**6, "it is nested too deeply"),
        (b"[]", r"holds \[\]: expected an object"),
        (
            b'{"model_type": "bert", "architectures": {"\\u001b[31m": 1}}',
            r"says architectures \{'\\x1b\[31m': 1\}: expected a list",
        ),
        (b'{"model_type": "\\u001b[31m", "architectures": ["\\u001b[31m"]}', "no class|holds a"),
    ):
        (directory / "m" / "config.json").write_bytes(content)
        done = command("gradients", "-m", "m", "--framework", "reference", "-t", "a", "--tokenizer", "vocab.txt")
        assert (done.code, done.out) == (2, "")
        expect_harmless(done.err, lines=True)
        assert re.search(said, done.err) or "reference" in done.err, done.err


def test_a_full_disk_is_an_error_of_one_line(command: Any) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    embgrad.save(marked("x"), "g.safetensors")
    for arguments in (("report", "g.safetensors"), (*ASK, "--objective", "Sum()")):
        done = command(*arguments, "-o", "/dev/full")
        assert (done.code, done.err.splitlines()[-1]) == (2, "error: /dev/full: No space left on device")
