"""Runs its first argument: a program that imports nothing, for test_prepared.py."""

import sys

exec(sys.argv[1])
