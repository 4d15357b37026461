"""Readers of captions: images and the texts that describe them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from weft.data.readers.files import DataError, find_files, name_suffix, read_jsonl, read_table

CAPTION_SUFFIXES = (".jsonl", ".csv", ".tsv", ".txt")
IMAGE_FIELDS = ("image", "path", "file")
CAPTION_FIELDS = ("text", "caption")


def read_captions(paths: Sequence[str | Path], folder: str | Path | None = None) -> list[tuple[Path, str]]:
    """(image, text) from .jsonl (image and text) or lines of `image.jpg,caption`; a header is recognized.

    Images are looked for in `folder`, or else in the folder of the file that names them.
    """
    found: list[tuple[Path, str]] = []
    for path in find_files(paths, CAPTION_SUFFIXES):
        place = path.parent if folder is None else Path(folder)
        there: set[Path] = set()  # images are named several times: check each once
        rows = _json_rows(path) if name_suffix(path) == ".jsonl" else _table_rows(path)
        for number, name, text in rows:
            image = place / name
            if image not in there and not image.is_file():
                raise DataError(f"{path.name}, line {number}: there is no image {image}{_remedy(place)}")
            if not text.strip():
                raise DataError(f"{path.name}, line {number}: the caption of {name} is empty: write or remove it")
            there.add(image)
            found.append((image, text.strip()))
    if not found:
        raise DataError(
            f"{', '.join(Path(path).name for path in paths)} has no caption: lines of image and text are expected"
        )
    return found


def _remedy(place: Path) -> str:
    archive = next(iter(sorted(place.glob("*.tar*"))), None)
    if archive is not None:
        return f"; unpack {archive.name} and pass its folder (--set data.images=FOLDER)"
    return "; paths are relative to the file, or to --set data.images=FOLDER"


def _json_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    for number, row in read_jsonl(path):
        image, text = (
            next((row[field] for field in fields if isinstance(row.get(field), str)), None)
            for fields in (IMAGE_FIELDS, CAPTION_FIELDS)
        )
        if image is None or text is None:
            raise DataError(
                f"{path.name}, line {number}: an image (image, path or file) and a text (text or caption) are needed; "
                f"it has {', '.join(row)[:200]}"
            )
        yield number, image, text


def _table_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    image, text = 0, 1
    for place, (number, cells) in enumerate(read_table(path)):
        if len(cells) < 2:
            raise DataError(f"{path.name}, line {number}: one column, but an image and its caption are two")
        names = [cell.strip().lower() for cell in cells]
        if place == 0 and set(names) & set(IMAGE_FIELDS) and set(names) & set(CAPTION_FIELDS):
            image = next(names.index(field) for field in IMAGE_FIELDS if field in names)
            text = next(names.index(field) for field in CAPTION_FIELDS if field in names)
        elif len(cells) > 2 and (image, text) == (0, 1) and place == 0:
            raise DataError(
                f"{path.name}, line {number}: {len(cells)} columns and no header; put captions with commas in quotes, "
                "or begin with the line image,caption"
            )
        else:
            yield number, cells[image].strip(), cells[text]
