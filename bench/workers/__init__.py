"""Processes that a benchmark starts: each holds an engine, or a load, of its own."""
