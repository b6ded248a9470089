"""Programs that use a running device service."""
