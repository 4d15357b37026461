"""Makes the pictures of the how-to pages anew, by following each page in full: `make pictures`, or a page's name."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from blocks import follow
from PIL import Image

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "pictures"


def run(words: list[str]) -> None:
    """One command, as in a shell."""
    print("$", *words, flush=True)
    subprocess.run([sys.executable, "-m", *words], check=True, stdin=subprocess.DEVNULL)


def make_picture(page: Path) -> Path:
    """Follow the page in a folder of its own and take the picture that has its name."""
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        follow(page, run)
        os.chdir(DOCS)
        return keep(Path(place) / f"{page.stem}.png")


def keep(made: Path) -> Path:
    """The picture in 256 colors, which is a quarter of its size."""
    target = PICTURES / made.name
    with Image.open(made) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    return target


if __name__ == "__main__":
    pages = [path for path in sorted((DOCS / "howto").glob("*.md")) if path.stem != "index"]
    for page in pages:
        if len(sys.argv) == 1 or page.stem in sys.argv[1:]:
            print(make_picture(page))
