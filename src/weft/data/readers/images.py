"""Readers of images with labels: a folder (or archive) of files per class, .npz, and IDX pairs (plain or .gz).

Axes here: N images, H height, W width, C channels (1 gray, 3 color); pixels are bytes.
"""

from __future__ import annotations

import io
import math
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from weft.data.readers.archives import is_archive, read_members
from weft.data.readers.classes import label_names, number_labels, read_arrays
from weft.data.readers.files import DataError, expect_plausible, find_files, open_bytes
from weft.foundation.arrays import Pixels
from weft.foundation.files.regular_files import expect_regular

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
IN_MEMORY_BYTES = 1 << 30  # bytes of pixels; larger folders are read batch by batch
MOST_PIXELS = 1 << 26  # of one picture; a few kilobytes of a file can claim any number
ORIENTATION = 0x0112
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
IDX_MAGIC = (0x801, 0x803, 0x804)  # unsigned bytes with 1, 3 and 4 axes: labels, gray and colored images


@dataclass(frozen=True)
class ResizeCrop:
    """How a picture becomes a square of `side`: resized to `scaled` (height and width, or shorter edge), then cropped.

    By default pictures are resized to cover the square and center-cropped; imported models may need another way.
    """

    side: int
    scaled: tuple[int, ...]
    filter: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"

    def apply(self, picture: Image.Image) -> Image.Image:
        """The square; what the picture does not cover is black."""
        if len(self.scaled) == 2:
            height, width = self.scaled
        else:
            shorter = min(picture.size)
            width, height = (int(self.scaled[0] * edge / shorter) for edge in picture.size)
        if (width, height) != picture.size:
            picture = picture.resize((width, height), Image.Resampling[self.filter.upper()])
        left, top = (width - self.side) // 2, (height - self.side) // 2
        return picture.crop((left, top, left + self.side, top + self.side))


TargetSize = int | tuple[int, int] | ResizeCrop
SquareSide = int | ResizeCrop | Literal["auto"] | None
LARGEST_SIDE, LEAST_STEP = 64, 8  # of automatic squares: what two CPU cores learn from in minutes


@dataclass(frozen=True)
class PixelFiles:
    """Pixels that stay in their files: `files[indices]` decodes only those, as [n, H, W, C]."""

    paths: tuple[Path, ...]
    size: tuple[int, int]
    channels: int
    resize_crop: ResizeCrop | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, W, C), like an array's."""
        return (len(self.paths), *self.size, self.channels)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: slice | Sequence[int] | NDArray[np.int64]) -> Pixels:
        numbers = range(len(self))[indices] if isinstance(indices, slice) else indices
        pixels = np.empty((len(numbers), *self.size, self.channels), dtype=np.uint8)
        for row, number in enumerate(numbers):
            pixels[row] = read_image(self.paths[int(number)], self.resize_crop or self.size, self.channels)
        return pixels


@dataclass(frozen=True)
class LabeledImages:
    """Labeled images: pixels [N, H, W, C] in memory or in their files (`pixels[indices]` works for both)."""

    pixels: Pixels | PixelFiles
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    channels: int
    scaled: bool = False


def read_images(paths: Sequence[str | Path], size: SquareSide = None, learn: bool = True) -> LabeledImages:
    """Images of a folder per class, an .npz, a tar or zip of a folder per class, or an IDX pair in either order.

    `size` is the side of the squares that images are resized and center-cropped to, or another way to do so; "auto"
    chooses a side unless all are squares of one size, and sets `scaled`. `learn=False`, for evaluation, allows classes
    with one example.
    """
    given = [Path(path) for path in paths]
    if given and all(path.is_dir() for path in given):
        return _from_folders(given, size, learn)
    given = find_files(given, IMAGE_SUFFIXES)
    fitted = False
    if all(path.suffix.lower() == ".npz" for path in given):
        read = [_from_npz(path) for path in given]
    elif all(is_archive(path) for path in given):
        members = [_from_archive(path, size) for path in given]
        read, fitted = [(pixels, names) for pixels, names, _ in members], any(scaled for *_, scaled in members)
    else:
        read = _from_idx(given)
    names = [name for _, labels in read for name in labels]
    shapes = {pixels.shape[1:] for pixels, _ in read}
    if len(shapes) > 1:
        raise DataError(f"images of {_sizes(shapes)} in {len(given)} files: give files of one size and color")
    pixels = read[0][0] if len(read) == 1 else np.concatenate([pixels for pixels, _ in read])
    asked = choose_side([(pixels.shape[1], pixels.shape[2])]) if size == "auto" else size
    if isinstance(asked, ResizeCrop) or (asked is not None and pixels.shape[1:3] != (asked, asked)):
        pixels = np.stack([_resized(picture, asked) for picture in pixels])
    labels, classes = number_labels(names, learn)
    return LabeledImages(pixels, labels, classes, pixels.shape[3], fitted or (size == "auto" and asked is not None))


def choose_side(sizes: Sequence[tuple[int, int]]) -> int | None:
    """A side for pictures of these heights and widths; None if they are squares of one size."""
    if len(set(sizes)) == 1 and sizes[0][0] == sizes[0][1]:
        return None
    shorter = int(np.median([min(size) for size in sizes]))
    return shorter if shorter < LEAST_STEP else min(LARGEST_SIDE, shorter // LEAST_STEP * LEAST_STEP)


def read_image(path: str | Path, size: TargetSize | None = None, channels: int = 3) -> Pixels:
    """One image [H, W, C] as a viewer shows it: upright, on white where transparent, the first frame of several.

    `size` (a side, height and width, or a `ResizeCrop`) is what it is resized and center-cropped to.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"there is no image {path}: check the path")
    with expect_regular(path, DataError).open("rb") as file:
        return _decode(file, str(path), size, channels)


def _expect_sound_png(file: BinaryIO, name: str) -> None:
    """Compare each chunk of a PNG with its checksum: Pillow skips those of the pixels."""
    head = file.read(len(PNG_MAGIC))
    while head == PNG_MAGIC:
        length, kind = struct.unpack(">I4s", file.read(8).ljust(8, b"\0"))
        found = file.read(length + 4)
        if len(found) < length + 4 or zlib.crc32(kind + found[:-4]) != int.from_bytes(found[-4:], "big"):
            raise DataError(f"{name} is damaged: a part of it does not fit its checksum; fetch it again or remove it")
        if kind == b"IEND":
            break
    file.seek(0)


def _decode(file: BinaryIO, name: str, size: TargetSize | None, channels: int | None) -> Pixels:
    """Pixels [H, W, C]; without `channels`, as many as the image has."""
    try:
        _expect_sound_png(file, name)
        with _open(file, name) as picture:
            channels = channels or (1 if _is_gray(picture) else 3)
            upright = ImageOps.exif_transpose(picture)
            if upright.mode.startswith("I"):  # 16 bits of gray: `convert` would cut, not scale
                deep = np.asarray(upright).astype(np.int64)
                upright = Image.fromarray((deep >> 8 if deep.max() > 255 else deep).astype(np.uint8))
            if upright.has_transparency_data:
                clear = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
            plain = upright.convert("L" if channels == 1 else "RGB")
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders fail in many ways: OSError, SyntaxError, ValueError, struct.error
        reason = str(error).split(" <")[0] if "cannot identify" in str(error) else str(error)
        raise DataError(f"{name} is not a readable image ({reason}): repair or remove it") from None
    fitted = _fitted(plain, size)
    return np.asarray(fitted, dtype=np.uint8).reshape(fitted.height, fitted.width, channels)


def _fitted(picture: Image.Image, size: TargetSize | None) -> Image.Image:
    if isinstance(size, ResizeCrop):
        return size.apply(picture)
    height, width = (size, size) if isinstance(size, int) else size or (picture.height, picture.width)
    if picture.size == (width, height):
        return picture
    return ImageOps.fit(picture, (width, height), Image.Resampling.BILINEAR)


def _resized(pixels: Pixels, size: int | ResizeCrop) -> Pixels:
    picture = _fitted(Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels), size)
    return np.asarray(picture, dtype=np.uint8).reshape(picture.height, picture.width, pixels.shape[2])


def _sizes(shapes: set[tuple[int, ...]]) -> str:
    return " and ".join("x".join(map(str, shape)) for shape in sorted(shapes)[:3])


def _expect_one_size(sizes: Sequence[tuple[int, int]], names: Sequence[str]) -> tuple[int, int]:
    """The (height, width) of all images, or an error that names the first that differs."""
    other = next((place for place, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        first, odd = (f"{width}x{height}" for height, width in (sizes[0], sizes[other]))
        raise DataError(f"{names[0]} is {first} and {names[other]} {odd}: pass size= (--set data.size=N) to make one")
    return sizes[0]


def _from_folders(folders: Sequence[Path], size: SquareSide, learn: bool) -> LabeledImages:
    """A file's parent folder names its class."""
    idx = next((path for folder in folders for path in sorted(folder.glob("*idx?-ubyte*"))), None)
    if idx is not None:
        raise DataError(f"{idx.parent} holds IDX files: give the file of images and the file of labels themselves")
    files = [path for path in find_files(folders, IMAGE_SUFFIXES) if _wanted(path.name)]
    if learn and len({path.parent for path in files}) == 1:
        raise DataError(f"all images lie in {files[0].parent}: a folder per class, two or more, is expected")
    labels, classes = number_labels([path.parent.name for path in files], learn)
    sizes_and_colors = [_peek(path, str(path)) for path in files]
    channels = 3 if any(color for _, color in sizes_and_colors) else 1
    resize_crop = size if isinstance(size, ResizeCrop) else None
    chosen = choose_side([size for size, _ in sizes_and_colors]) if size == "auto" else size
    side = chosen.side if isinstance(chosen, ResizeCrop) else chosen
    square = None if side is None else (side, side)
    shape = square or _expect_one_size([size for size, _ in sizes_and_colors], [str(path) for path in files])
    pixels = PixelFiles(tuple(files), shape, channels, resize_crop)
    held = pixels if math.prod(pixels.shape) > IN_MEMORY_BYTES else pixels[:]
    return LabeledImages(held, labels, classes, channels, size == "auto" and side is not None)


def _wanted(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(IMAGE_SUFFIXES)


def _peek(file: Path | BinaryIO, name: str) -> tuple[tuple[int, int], bool]:
    """((height, width), whether colored) from the header of a file, without decoding it."""
    try:
        with _open(file, name) as picture:
            width, height = picture.size
            turned = picture.getexif().get(ORIENTATION, 1) >= 5
            return (width, height) if turned else (height, width), not _is_gray(picture)
    except DataError:
        raise
    except Exception:
        raise DataError(f"{name} is not a readable image: repair or remove it") from None


def _open(file: Path | BinaryIO, name: str) -> Image.Image:
    """A picture of which only the header is read; refused if it is too large to decode, at up to 12 bytes per pixel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            picture = Image.open(file)
        except Image.DecompressionBombError:
            raise DataError(
                f"{name} claims more pixels than the {MOST_PIXELS:,} that are read: scale or remove it"
            ) from None
    width, height = picture.size
    if width * height > MOST_PIXELS:
        picture.close()
        raise DataError(
            f"{name} claims {width} x {height} pixels, but at most {MOST_PIXELS:,} are read: scale or remove it"
        )
    return picture


def _is_gray(picture: Image.Image) -> bool:
    if picture.mode == "P":  # GIF has palettes only: a gray drawing there has gray entries
        palette = np.array(picture.getpalette("RGB"), dtype=np.uint8).reshape(-1, 3)
        return bool((palette == palette[:, :1]).all())
    return picture.mode in ("1", "L", "LA", "I", "F") or picture.mode.startswith("I;16")


def _from_archive(path: Path, size: SquareSide) -> tuple[Pixels, list[str], bool]:
    """(pixels, classes, whether a side was chosen); a member's parent folder names its class.

    It is read twice to choose a side: photos of full size, all at once, would not fit into memory.
    """
    side: int | None = None
    if size == "auto":
        side = choose_side([_peek(io.BytesIO(content), f"{path.name}: {name}")[0] for name, content in _pictures(path)])
    asked = side if size == "auto" else size
    names: list[str] = []
    pictures: list[Pixels] = []
    held = 0
    for name, content in _pictures(path):
        names.append(name)
        pictures.append(_decode(io.BytesIO(content), f"{path.name}: {name}", asked, None))
        held += pictures[-1].size
        if held > IN_MEMORY_BYTES:
            raise DataError(
                f"{path.name} holds more than {IN_MEMORY_BYTES:,} bytes of pixels: unpack it and give its folder, "
                "which is read batch by batch, or make them smaller by --set data.size=N"
            )
    _expect_one_size([(picture.shape[0], picture.shape[1]) for picture in pictures], names)
    channels = max(picture.shape[2] for picture in pictures)
    pixels = np.stack([np.broadcast_to(picture, (*picture.shape[:2], channels)) for picture in pictures])
    return pixels, [Path(name).parent.name for name in names], side is not None


def _pictures(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the images in an archive."""
    found = False
    for name, content in read_members(path, _wanted):
        found = True
        yield name, content
    if not found:
        raise DataError(f"{path.name} holds no image: an archive with a folder of images per class is expected")


def _from_npz(path: Path) -> tuple[Pixels, list[str]]:
    arrays = read_arrays(path, images=("images", "x", "data"), labels=("labels", "y", "targets"))
    names = label_names(path, arrays["labels"])
    pixels = _as_pixels(path, arrays["images"])
    _expect_counts(path, len(pixels), path, len(names))
    return pixels, names


def _as_pixels(path: Path, images: NDArray[np.generic]) -> Pixels:
    """Bytes [N, H, W, C] from [N, H, W], [N, H, W, C] or [N, C, H, W]; fractions count from 0 to 1."""
    shape = "x".join(map(str, images.shape))
    if images.ndim == 3:
        images = images[..., None]
    elif images.ndim == 4 and images.shape[3] not in (1, 3) and images.shape[1] in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim != 4 or images.shape[3] not in (1, 3) or images.size == 0:
        raise DataError(f"{path.name}: images of shape {shape}, but [N, H, W] or [N, H, W, 1 or 3] is needed")
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images).view(np.uint8)
    if images.dtype.kind not in "biuf":
        raise DataError(f"{path.name}: images of type {images.dtype}, but numbers are needed")
    values = images.astype(np.float32)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 255):
        raise DataError(f"{path.name}: pixels from {low:g} to {high:g}, but 0 to 1 or 0 to 255 is needed")
    fractions = images.dtype.kind in "bf" and high <= 1
    return np.rint(values * 255 if fractions else values).astype(np.uint8)


def _expect_counts(images: Path, pictures: int, labels: Path, names: int) -> None:
    if pictures != names:
        raise DataError(
            f"{images.name} has {pictures} images and {labels.name} {names} labels: give files that belong together"
        )


def _from_idx(paths: Sequence[Path]) -> list[tuple[Pixels, list[str]]]:
    """Image and label files, distinguished by their magic numbers, paired in the order given."""
    arrays = [(path, _read_idx(path)) for path in paths]
    pictures = [(path, array) for path, array in arrays if array.ndim > 1]
    labels = [(path, array) for path, array in arrays if array.ndim == 1]
    if len(pictures) != len(labels):
        raise DataError(
            f"{len(pictures)} IDX files of images and {len(labels)} of labels: give one of labels for each of images"
        )
    pairs: list[tuple[Pixels, list[str]]] = []
    for (image_path, images), (label_path, numbers) in zip(pictures, labels, strict=True):
        _expect_counts(image_path, len(images), label_path, len(numbers))
        pairs.append((_as_pixels(image_path, images), label_names(label_path, numbers)))
    return pairs


def _is_idx(head: bytes) -> bool:
    """Whether 20 bytes begin an IDX file whose sizes are all among them."""
    return len(head) >= 8 and struct.unpack(">I", head[:4])[0] in IDX_MAGIC and len(head) >= 4 + 4 * head[3]


def _read_idx(path: Path) -> Pixels:
    """IDX: a magic number (its last byte counts the axes), the sizes as big-endian integers, then the bytes."""
    try:
        stored = path.stat().st_size
        with open_bytes(path) as file:
            data = file.read(4 + 4 * 4)
            promised = math.prod(struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])) if _is_idx(data) else 0
            expect_plausible(path, promised, stored)
            data += file.read(promised + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} cannot be read to its end ({error}): fetch it again") from None
    magic = struct.unpack(">I", data[:4])[0] if len(data) >= 4 else None
    if magic not in IDX_MAGIC:
        seen = "nothing" if magic is None else f"{magic:#010x}"
        raise DataError(
            f"{path.name} begins with {seen}, which is not an IDX file of images (0x00000803) or labels (0x00000801): "
            "give those, an .npz, or a folder per class"
        )
    axes = magic & 0xFF
    start = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", data[4:start]) if len(data) >= start else ()
    if not shape or len(data) - start != math.prod(shape):
        expected = f"{math.prod(shape)} bytes" if shape else "more"
        state = "cut off" if not shape or len(data) - start < math.prod(shape) else "too long"
        there = max(len(data) - start, 0)
        raise DataError(f"{path.name} is {state}: its header promises {expected}, {there} are there; fetch it again")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
