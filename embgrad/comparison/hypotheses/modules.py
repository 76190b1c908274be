"""The modules that hold hypotheses; importing them registers these."""

__all__: list[str] = []
