"""The wire's messages <-> the records that travel inside the device service.

Nothing below the session sees a generated message; nothing here decides
anything but whether a message is well formed.
"""
