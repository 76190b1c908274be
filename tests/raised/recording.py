"""Notes which places of the library made the errors whose messages a test looked at, and on which framework."""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, field

from embgrad.errors import EmbgradError
from tests.raised.sites import Site, at, sites, sites_in

__all__ = ["Recorder", "made_at"]

_BACKENDS = {
    "embgrad_torch": "torch",
    "embgrad_tensorflow": "tensorflow",
    "embgrad_gluon": "gluon",
    "embgrad.testing.reference": "reference",
}


@dataclass
class Recorder:
    """What was raised in the tests so far: by the place's key, the tests with the frameworks that were at work."""

    raised: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    test: str = ""

    def install(self) -> None:
        """Have every error noted from now on in this process, when its message is read: as a test does that expects one."""
        read = EmbgradError.message.fget
        assert read is not None

        def message(error: EmbgradError) -> str:
            said: str = read(error)
            self.note(error, said)
            return said

        EmbgradError.message = property(message)  # type: ignore[assignment, method-assign]

    def note(self, error: EmbgradError, said: str) -> None:
        """Note the place that made an error, unless a test made it itself."""
        if self.test and (site := made_at(error, said)) is not None:
            tests = self.raised.setdefault(site.key, {})
            tests.setdefault(self.test, set()).update(_frameworks(error))

    def forget(self, test: str) -> None:
        """Leave out a test that failed."""
        for tests in self.raised.values():
            tests.pop(test, None)

    def write(self, path: str) -> None:
        """Write what was noted as JSON."""
        told = {
            key: {test: sorted(names) for test, names in sorted(tests.items())} for key, tests in self.raised.items()
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump(told, file, ensure_ascii=False, indent=1, sort_keys=True)


def made_at(error: EmbgradError, said: str) -> Site | None:
    """The place: where it was raised; or, made elsewhere or in another process, that whose words it has."""
    frames = list(_frames(error))
    if frames and (site := at(*frames[-1][:2])) is not None and site.error == type(error).__name__:
        return site
    modules = dict.fromkeys(module for module, _, _ in frames)
    candidates = [site for module in modules for site in sites_in(module)] if modules else sites()
    fitting = [
        site for site in candidates if site.error == type(error).__name__ and _pattern(site.message).fullmatch(said)
    ]
    return max(fitting, key=lambda site: len(site.message)) if fitting else None


@functools.cache
def _pattern(message: str) -> re.Pattern[str]:
    """What a place's message may be; one without words of its own fits nothing, for it would fit all."""
    parts = [re.escape(part) for part in message.split("…")]
    return re.compile(".*".join(parts) if len(message) > 12 else r"(?!)", flags=re.DOTALL)


def _frames(error: BaseException) -> Iterator[tuple[str, int, types.FrameType]]:
    """The module, the line and the frame of each call on the error's way, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_globals.get("__name__", ""), trace.tb_lineno, trace.tb_frame
        trace = trace.tb_next


def _frameworks(error: BaseException) -> Iterator[str]:
    """The framework whose backend was at work: seen by its frames, or by the backend that a frame of the core holds."""
    for module, _, frame in _frames(error):
        for package, name in _BACKENDS.items():
            if module == package or module.startswith(package + "."):
                yield name
        if module.startswith("embgrad"):
            backend = frame.f_locals.get("backend", getattr(frame.f_locals.get("self"), "backend", None))
            name = getattr(backend, "name", None)
            if name in _BACKENDS.values():  # and not a test's stand-in
                yield str(name)
