"""`tt-top`: what a device service is doing, in a terminal."""
