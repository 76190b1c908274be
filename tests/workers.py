"""Which tests share a process where several run them: those of a module, of a backend's conformance checks, and all on Ray."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

from tests.conftest import backends_under_test, parameters_in


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process all tests of a place, one place after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return place_of(nodeid)


def place_of(nodeid: str) -> str:
    """What runs in one process, with what its fixtures make once: all on Ray, since each process would start one."""
    module = nodeid.partition("::")[0]
    if module.endswith("test_conformance.py"):
        return next((one for one in backends_under_test() if one in parameters_in(nodeid)), module)
    return "ray" if "/ray/" in module else module
