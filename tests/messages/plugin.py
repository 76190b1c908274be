"""The plugin that, with --every-message, fails a run whose tests leave a message of the library unread.

Each environment answers for the messages of its own part of the library: `core` for `embgrad`, a framework's for its backend,
and `all` for what runs on Ray. A message counts as tested when a test reads it, as a test that expects the error does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from embgrad.errors import EmbgradError
from tests.messages.sites import Site, at, sites, sites_in

#: The messages by the backend under test, as prefixes of `Site.key`: modules, functions in them, or single messages.
PARTS: Final = {
    "reference": ("embgrad.",),
    "torch": (
        "embgrad_torch",
        "embgrad.backend.cotangents:answer OutputError: the output … is of dtype",
        "embgrad.cli.tokenizer:tokenizer_of UsageError: … holds no tokenizer that transformers",
        "embgrad.objectives.native:_expect_of_outputs",
    ),
    "tensorflow": (
        "embgrad_tensorflow",
        "embgrad.cli.models:_saved_model",
        "embgrad.backend.keras_inputs:cast_exactly",
        "embgrad.inputs.extras:cut",
        "embgrad.inputs.tfhub",
    ),
    "gluon": ("embgrad_gluon",),
    "ray": ("embgrad.ray", "embgrad.cli.ray_run", "embgrad.cli.gradients:_expect_on_ray", "embgrad.cli.huggingface"),
}


def answerable(backends: set[str]) -> list[Site]:
    """Return the places whose messages a run with these backends has to read."""
    everything = "ray" in backends  # beside all three frameworks, each of which has an environment of its own
    own = {"ray"} if everything else backends
    wanted = [part for name in own for part in PARTS[name]]
    others = [part for name, parts in PARTS.items() if name not in own for part in parts if part != "embgrad."]
    return [
        site
        for site in sites()
        if site.key.startswith(tuple(wanted)) and not (own == {"reference"} and site.key.startswith(tuple(others)))
    ]


class Messages:
    """The messages that the tests of this process, and of its workers, have read."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.testing = False

    def install(self) -> None:
        """Record from now on each error of the library whose message a test reads."""
        read = EmbgradError.message.fget
        assert read is not None

        def message(error: EmbgradError) -> str:
            said: str = read(error)
            if self.testing and (site := made_at(error, said)) is not None:
                self.read.add(site.key)
            return said

        EmbgradError.message = property(message)  # type: ignore[assignment, method-assign]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Record during the test's own call, and not during its fixtures."""
        before, self.testing = set(self.read), True
        try:
            yield
        except BaseException:
            self.read = before  # a test that fails shows nothing
            raise
        finally:
            self.testing = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker has read."""
        self.read.update(getattr(node, "workeroutput", {}).get("messages", ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over what this worker has read; fail the whole run where a message is left."""
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
        """Return the keys of the places whose message should have been read in this run."""
        from tests.conftest import backends_under_test, beside_under_test

        if not config.getoption("every_message"):
            return []
        under_test = {*backends_under_test(), *beside_under_test()}
        return [site.key for site in answerable(under_test) if site.key not in self.read]


def made_at(error: EmbgradError, said: str) -> Site | None:
    """Return the place that made an error: where it was raised, or, made elsewhere, the one whose words it has."""
    frames = list(_lines(error))
    if frames and (site := at(*frames[-1])) is not None and site.error == type(error).__name__:
        return site
    modules = dict.fromkeys(module for module, _ in frames)
    candidates = [site for module in modules for site in sites_in(module)] if modules else sites()
    fitting = [
        site for site in candidates if site.error == type(error).__name__ and _pattern(site.message).fullmatch(said)
    ]
    return max(fitting, key=lambda site: len(site.message)) if fitting else None


@functools.cache
def _pattern(message: str) -> re.Pattern[str]:
    """Return what a place's message may be; one without words of its own fits nothing, since it would fit all."""
    parts = [re.escape(part) for part in message.split("…")]
    return re.compile(".*".join(parts) if len(message) > 12 else r"(?!)", flags=re.DOTALL)


def _lines(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield the module and the line of each call on the error's way, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_globals.get("__name__", ""), trace.tb_lineno
        trace = trace.tb_next
