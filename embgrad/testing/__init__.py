"""Tests for backends: the reference backend, finite differences and the conformance suite."""
