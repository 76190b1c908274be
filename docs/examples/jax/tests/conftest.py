"""Lets JAX compute in float64, which it does only when told to before its first array."""

from __future__ import annotations

import jax

jax.config.update("jax_enable_x64", True)
