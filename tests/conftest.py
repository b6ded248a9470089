"""The environment of a device service, for this process and those it starts.

vLLM reads it at import, so it is set before any test module is loaded.
"""

from ttserve.environment import prepare_device_service

prepare_device_service(model=None)

# A suite for any server, with settings of its own; tests/e2e runs it.
collect_ignore = ["tt"]
