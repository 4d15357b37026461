"""The plan: what the given minutes can buy, measured on this machine and kept to."""
