"""Images as inputs from files of many: tables that name them, .npz, IDX files and archives."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from weft.data.readers.captions import IMAGE_FIELDS
from weft.data.readers.files import DataError, name_suffix
from weft.data.readers.images import IMAGE_SUFFIXES, ResizeCrop, read_images
from weft.data.readers.tables import TABLE_SUFFIXES, Table, TableOptions, open_table
from weft.tasks.support.inputs.input_rows import FileExample, InputRows, RowInputs, expect_table


class ImageInputs(RowInputs):
    """What a task inherits whose inputs are images of `side` pixels; `fitting` is a way of its own to make them so."""

    side: int
    fitting: ResizeCrop | None = None

    def open_rows(self, path: Path, options: TableOptions) -> InputRows:
        """A table with a column of image paths, relative to its folder."""
        expect_table(path)
        table = open_table(path, options)
        place = table.places(options.columns[:1])[0] if options.columns else image_place(table)
        return InputRows(table, (place,), lambda cells: str(path.parent / cells[0].strip()))

    def open_example(self, path: Path, number: int, folder: Path) -> FileExample:
        """An image and its class from an .npz or an archive, written as a file; or the one that a table names."""
        if name_suffix(path) in TABLE_SUFFIXES:
            return super().open_example(path, number, folder)
        images = read_images([path], self.fitting or self.side, learn=False)
        if number >= len(images.labels):
            most = len(images.labels)
            raise DataError(f"{path.name} has {most:,} images, from 0 to {most - 1:,}, but no image {number:,}")
        pixels = images.pixels[[number]][0]
        file = folder / f"{number}.png"
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file)
        return FileExample(str(file), f"{path.name} {number}", images.classes[int(images.labels[number])])


def image_place(table: Table) -> int:
    """The column of image paths: by a usual name, else the only one whose cells end as images do."""
    named = [place for place, name in enumerate(table.names) if name.lower() in IMAGE_FIELDS]
    if len(named) == 1:
        return named[0]
    ending = [
        place
        for place in range(table.width)
        if all(cell.lower().endswith(IMAGE_SUFFIXES) for cell in table.cells(place))
    ]
    if len(ending) == 1 and table.first_rows:
        return ending[0]
    raise table.ask_for_columns("the run reads one, of image paths", [0])
