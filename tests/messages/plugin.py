"""The plugin that, with --every-message, fails a run in which some message of the library is read by no test.

Each environment covers the messages of its part of the library: `core` those of `embgrad`, a framework's environment those of
its backend, and `all` those of the code that runs on Ray. A message counts as tested if a test reads it, as a test that expects
the error does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from embgrad.errors import EmbgradError
from tests.messages.sites import Site, at, sites, sites_in

#: The messages covered by each backend's environment, as prefixes of `Site.key`: modules, functions or single messages.
PARTS: Final = {
    "reference": ("embgrad.",),
    "torch": ("embgrad_torch", "embgrad.backend.cotangents:answer OutputError: the output … is of dtype",
        "embgrad.loading.tokenizer:tokenizer_of UsageError: … holds no tokenizer that transformers",
        "embgrad.objectives.native:expect_of_outputs ObjectiveError: the objective is …, a loss"),
    "tensorflow": ("embgrad_tensorflow", "embgrad.loading.models:_load_saved_model",
        "embgrad.keras.inputs:cast_exactly", "embgrad.inputs.extras:cut", "embgrad.inputs.tfhub"),
    "gluon": ("embgrad_gluon",),
    "jax": ("embgrad_jax", "embgrad.common.arrays:to_numpy ValueError: embgrad was called inside jax.jit"),
    "onnx": ("embgrad_onnx", "embgrad.backend.protocol:BoundModel.expect_gradients",
        "embgrad.comparison.live_side:LiveSide._run UnsupportedError: the backend … computes values only",
        "embgrad.loading.models:_expect_model UsageError: … is an ONNX model"),
    "ray": ("embgrad.ray", "embgrad.loading.huggingface:_expect_all_used",
        "embgrad.loading.huggingface:_expect_complete", "embgrad.loading.huggingface:_expect_no_code",
        "embgrad.loading.huggingface:from_transformers FileFormatError",
        "embgrad.loading.huggingface:from_transformers UnsupportedError"),
}  # fmt: skip


def answerable(backends: set[str]) -> list[Site]:
    """Return the sites whose messages a run with these backends must read."""
    everything = "ray" in backends  # it runs together with all three frameworks, each of which also has its environment
    environments = {"ray"} if everything else backends
    prefixes = [part for name in environments for part in PARTS[name]]
    other_prefixes = [
        part for name, parts in PARTS.items() if name not in environments for part in parts if part != "embgrad."
    ]
    return [
        site
        for site in sites()
        if site.key.startswith(tuple(prefixes))
        and not (environments == {"reference"} and site.key.startswith(tuple(other_prefixes)))
    ]


class Messages:
    """The record of messages that the tests of this process and of its workers have read."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.testing = False

    def install(self) -> None:
        """Patch `EmbgradError.message`, to record each error of the library whose message a test reads."""
        read = EmbgradError.message.fget
        assert read is not None

        def message(error: EmbgradError) -> str:
            text: str = read(error)
            if self.testing and (site := made_at(error, text)) is not None:
                self.read.add(site.key)
            return text

        EmbgradError.message = property(message)  # type: ignore[assignment, method-assign]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Record messages during the test's call, and not during its fixtures."""
        before, self.testing = set(self.read), True
        try:
            yield
        except BaseException:
            self.read = before  # a failing test proves nothing
            raise
        finally:
            self.testing = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the messages that a worker has read."""
        self.read.update(getattr(node, "workeroutput", {}).get("messages", ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Pass on the messages that this worker has read, or fail the whole run if a message was not read."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["messages"] = sorted(self.read)
        elif self.unread(session.config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """List the messages that no test has read."""
        for key in self.unread(config):
            terminalreporter.write_line(f"no test reads this message: {key}", red=True)

    def unread(self, config: pytest.Config) -> list[str]:
        """Return the keys of the sites whose messages this run should have read and has not."""
        from tests.conftest import backends_under_test, beside_under_test, values_only_under_test

        if not config.getoption("every_message"):
            return []
        under_test = {*backends_under_test(), *beside_under_test(), *values_only_under_test()}
        return [site.key for site in answerable(under_test) if site.key not in self.read]


def made_at(error: EmbgradError, message: str) -> Site | None:
    """Return the site that created an error: where it was raised, or else the site whose message pattern fits."""
    frames = list(_lines(error))
    if frames and (site := at(*frames[-1])) is not None and site.error == type(error).__name__:
        return site
    modules = dict.fromkeys(module for module, _ in frames)
    # A function of another module may have made the error that is raised.
    return _fitting(error, message, [site for module in modules for site in sites_in(module)]) or _fitting(
        error, message, sites()
    )


def _fitting(error: EmbgradError, message: str, candidates: Sequence[Site]) -> Site | None:
    fitting = [
        site for site in candidates if site.error == type(error).__name__ and _pattern(site.message).fullmatch(message)
    ]
    return max(fitting, key=lambda site: len(site.message)) if fitting else None


@functools.cache
def _pattern(message: str) -> re.Pattern[str]:
    """Return the pattern of a site's messages; one with hardly any constant text matches nothing, as it would match all."""
    parts = [re.escape(part) for part in message.split("…")]
    return re.compile(".*".join(parts) if len(message) > 12 else r"(?!)", flags=re.DOTALL)


def _lines(error: BaseException) -> Iterator[tuple[str, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_globals.get("__name__", ""), trace.tb_lineno
        trace = trace.tb_next
