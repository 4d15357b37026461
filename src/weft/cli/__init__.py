"""Command line: thin commands over the other packages."""
