"""Command line: thin commands over the other rooms."""
