"""Benchmarks: `python -m bench`, described in docs/BENCHMARKS.md."""
