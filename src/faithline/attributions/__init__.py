"""One attribution method a file, loaded by name."""
