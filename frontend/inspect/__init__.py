"""`/inspect`: a page on which people see what the device services are doing."""
