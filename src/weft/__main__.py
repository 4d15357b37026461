"""`python -m weft` is the command `weft`."""

from weft.cli.main import run

if __name__ == "__main__":
    run()
