"""What a backend proves itself with: the reference backend, finite differences and the conformance suite."""
