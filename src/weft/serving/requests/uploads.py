"""Images and sounds in requests: base64, plain or as a data URL. Never a path, never an address to fetch."""

from __future__ import annotations

import base64
import binascii
import io
import warnings
from pathlib import Path
from typing import Any

from PIL import Image

from weft.serving.web.errors import invalid_request

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")  # not EPS, for which Pillow starts another program
MOST_PIXELS = 1 << 25  # of one image; a small file can hold very many
SOUND_HEAD = b"RIFF"


def decode_upload(given: str, param: str) -> bytes:
    """The bytes of base64, or of a data URL."""
    text = given
    if given[:5].lower() == "data:":
        head, comma, text = given.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise invalid_request("a data URL is written data:TYPE;base64,DATA", param)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid_request("this is no base64: send the bytes of the file in base64, or a data URL", param) from None
    if not data:
        raise invalid_request("this file is empty", param)
    return data


def write_image(given: str, folder: Path, param: str) -> Path:
    """An image as a file in `folder`, refused if it is none or too large."""
    data = decode_upload(given, param)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
                size, kind = picture.size, (picture.format or "png").lower()
    except Exception:  # Pillow's readers fail in many ways
        raise invalid_request("this is not an image that can be read: send a PNG or JPEG", param) from None
    if size[0] * size[1] > MOST_PIXELS:
        raise invalid_request(f"an image of {size[0]} x {size[1]} pixels: send at most {MOST_PIXELS:,}", param)
    path = folder / f"image.{'jpg' if kind == 'jpeg' else 'png'}"
    path.write_bytes(data)
    return path


def write_sound(given: str, folder: Path, param: str) -> Path:
    """A .wav as a file in `folder`."""
    data = decode_upload(given, param)
    if data[:4] != SOUND_HEAD:
        raise invalid_request("this is not a .wav file: convert it", param)
    path = folder / "sound.wav"
    path.write_bytes(data)
    return path


def depth_of(given: Any) -> int:
    """How many lists are nested: 1 of numbers, 2 of rows, ..."""
    depth = 0
    while isinstance(given, list):
        depth, given = depth + 1, given[0] if given else None
    return depth
