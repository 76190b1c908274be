"""Says why a model cannot be traced."""

__all__ = ["UntraceableError"]


class UntraceableError(Exception):
    """No trace of a model can be kept; says why, as "compile=True: ..." goes on."""
