"""The cases of `make chaos`, a module for each kind of harm."""
