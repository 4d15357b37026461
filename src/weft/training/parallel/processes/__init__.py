"""The processes of a run: starting them, joining, pulse, giving up in one voice."""
