"""Readers of captions: images and the texts that describe them, or questions about them with their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from weft.data.readers.files import DataError, file_exists, find_files, name_suffix, read_jsonl, read_table
from weft.data.readers.tables import TABLE_SUFFIXES, Table, TableOptions, open_table

CAPTION_SUFFIXES = (".jsonl", ".csv", ".tsv", ".txt")
IMAGE_FIELDS = ("image", "path", "file")
CAPTION_FIELDS = ("text", "caption")
QUESTION_FIELDS, ANSWER_FIELDS = ("question",), ("answer",)


def read_captions(paths: Sequence[str | Path], folder: str | Path | None = None) -> list[tuple[Path, str]]:
    """(image, text) from .jsonl (image and text) or lines of `image.jpg,caption`; a header is recognized.

    Images are looked for in `folder`, or else in the folder of the file that names them.
    """
    found: list[tuple[Path, str]] = []
    for path in find_files(paths, CAPTION_SUFFIXES):
        images = _Images(path, folder)
        rows = _json_rows(path) if name_suffix(path) == ".jsonl" else _table_rows(path)
        for number, name, text in rows:
            image = images.find(number, name)
            if not text.strip():
                raise DataError(f"{path.name}, line {number}: the caption of {name} is empty: write or remove it")
            found.append((image, text.strip()))
    if not found:
        raise DataError(
            f"{', '.join(Path(path).name for path in paths)} has no caption: lines of image and text are expected"
        )
    return found


def read_questions(paths: Sequence[str | Path], folder: str | Path | None = None) -> list[tuple[Path, str, str]]:
    """(image, question, answer) from .jsonl, .csv or .tsv with columns of these names."""
    found: list[tuple[Path, str, str]] = []
    for path in find_files(paths, TABLE_SUFFIXES):
        images, table = _Images(path, folder), open_table(path, TableOptions(header="yes"))
        for number, (name, question, answer) in table.read(question_places(table)):
            image = images.find(number, name.strip())
            if not question.strip() or not answer.strip():
                raise DataError(f"{path.name}, line {number}: the question or its answer is empty: write or remove it")
            found.append((image, question.strip(), answer.strip()))
    if not found:
        raise DataError(f"{', '.join(Path(path).name for path in paths)} has no question: give rows with one")
    return found


def has_questions(paths: Sequence[str | Path]) -> bool:
    """Whether these files have questions about images: by the fields or the header of the first."""
    first = next(iter(find_files(paths, CAPTION_SUFFIXES)), None)
    if first is None or name_suffix(first) not in TABLE_SUFFIXES:
        return False
    if name_suffix(first) == ".jsonl":
        names = [name.lower() for name in next(iter(read_jsonl(first)), (0, {}))[1]]
    else:
        names = [cell.strip().lower() for cell in next(iter(read_table(first)), (0, []))[1]]
    return bool({*QUESTION_FIELDS} & {*names} and {*ANSWER_FIELDS} & {*names})


def question_places(table: Table, answered: bool = True) -> list[int]:
    """Where image, question and, unless they are asked for alone, answer are, by the names of the columns."""
    names = [name.lower() for name in table.names]
    wanted = (IMAGE_FIELDS, QUESTION_FIELDS, *((ANSWER_FIELDS,) if answered else ()))
    places = [next((names.index(name) for name in fields if name in names), None) for fields in wanted]
    found = [place for place in places if place is not None]
    if len(found) < len(wanted):
        needed = ", ".join(fields[0] for fields in wanted)
        raise DataError(
            f"{table.path.name} has columns {', '.join(table.column_names)[:200]}, but questions about images need "
            f"{needed}: name them so"
        )
    return found


class _Images:
    """The images that a file names, relative to its folder or to another; each is looked for once."""

    def __init__(self, path: Path, folder: str | Path | None) -> None:
        self.path, self.place = path, path.parent if folder is None else Path(folder)
        self.there: set[Path] = set()

    def find(self, number: int, name: str) -> Path:
        """The image that line `number` names."""
        image = self.place / name
        if image not in self.there and not file_exists(image):
            raise DataError(f"{self.path.name}, line {number}: there is no image {image}{_remedy(self.place)}")
        self.there.add(image)
        return image


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
