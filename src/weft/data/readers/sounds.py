"""Sounds: .wav files as samples, and as log-mel frames (the energy per mel band every 10 ms)."""

from __future__ import annotations

import struct
import wave
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.files import DataError
from weft.foundation.files.regular_files import expect_regular

MELS = 40
WINDOW, HOP = 0.025, 0.010  # seconds
LEAST_FFT = 512  # with fewer bins, low mel filters would hold none at low sampling rates
QUIET = 1e-10
LEAST_RATE = 1000  # below, each sample would become a frame, and a file of 12 MB a gigabyte of them
MOST_RATE = 768_000  # samples per second: the window, and with it the spectrum, grows with the rate
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE


def read_sound(path: str | Path) -> tuple[int, NDArray[np.float32]]:
    """(sampling rate, samples in -1 .. 1) of a .wav: 8, 16, 24 or 32 bits or floats; channels are averaged.

    Not by the module `wave`, which before Python 3.12 refuses the extensible header that most 24-bit files have.
    """
    path = Path(path)
    try:
        data = expect_regular(path, DataError).read_bytes()
    except OSError as error:
        raise DataError(f"cannot open {path}: {error.strerror or error}") from None
    kind, channels, rate, bits, sound = _chunks(path, data)
    samples = _samples(path, kind, bits, sound)
    whole = len(samples) // channels * channels
    if whole == 0:
        raise DataError(f"{path} holds no sound: remove it")
    with np.errstate(all="ignore"):
        mixed = samples[:whole].reshape(-1, channels).mean(axis=1).astype(np.float32)
    if not np.isfinite(mixed).all():
        raise DataError(f"{path} has samples that are no finite numbers: write it again")
    return rate, mixed


def write_sound(path: str | Path, samples: NDArray[np.float32], rate: int) -> None:
    """Write samples in -1 .. 1 as a .wav of 16 bits and one channel."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).round().astype("<i2").tobytes())


def _chunks(path: Path, data: bytes) -> tuple[int, int, int, int, bytes]:
    """(format code, channels, rate, bits, sound) of a RIFF file: named chunks, each preceded by its size."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise DataError(f"{path} is not a .wav file: it does not begin with RIFF and WAVE; convert it to PCM .wav")
    head: tuple[int, int, int, int] | None = None
    place = 12
    while place + 8 <= len(data):
        name, size = struct.unpack("<4sI", data[place : place + 8])
        body = data[place + 8 : place + 8 + size]
        if name == b"fmt " and len(body) >= 16:
            kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", body[:16])
            # The extensible header has the format code at the start of its GUID.
            kind = struct.unpack("<H", body[24:26])[0] if kind == EXTENSIBLE and len(body) >= 26 else kind
            head = kind, channels, rate, bits
        elif name == b"data":
            if len(body) < size != 0xFFFFFFFF:  # the size that streaming programs write
                raise DataError(f"{path} is cut off: its header promises {size} bytes of sound, {len(body)} are there")
            if head is not None and head[1] > 0 and head[2] > 0 and not LEAST_RATE <= head[2] <= MOST_RATE:
                raise DataError(
                    f"{path} claims {head[2]:,} samples per second, but {LEAST_RATE:,} to {MOST_RATE:,} are read: "
                    "convert it"
                )
            _expect_whole_chunks(path, data, place + 8 + size + size % 2)
            if head is not None and head[1] > 0 and head[2] > 0:
                return *head, body
            break
        place += 8 + size + size % 2
    raise DataError(f"{path} is not a readable .wav file: it lacks its format or its sound; convert it again")


def _expect_whole_chunks(path: Path, data: bytes, place: int) -> None:
    """Where the file is as long as it says, chunks fill what follows the sound: else its length is wrong."""
    while struct.unpack("<I", data[4:8])[0] == len(data) - 8 and place < len(data):
        name, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        place += 8 + size
        if place > len(data) or not name.decode("latin-1").isprintable():
            raise DataError(f"{path} is damaged: the lengths in it contradict each other; fetch it again")
        place += size % 2


def _samples(path: Path, kind: int, bits: int, sound: bytes) -> NDArray[np.float64]:
    width = bits // 8
    if (kind, bits) not in {(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)}:
        raise DataError(f"{path} has {bits} bits of kind {kind}: convert it to PCM of 8, 16, 24 or 32 bits")
    sound = sound[: len(sound) // width * width]
    if kind == FLOAT:
        return np.frombuffer(sound, dtype=f"<f{width}").astype(np.float64)
    if bits == 8:  # the only unsigned width
        return (np.frombuffer(sound, dtype=np.uint8).astype(np.float64) - 128) / 128
    if bits == 24:
        padded = np.zeros((len(sound) // 3, 4), dtype=np.uint8)
        padded[:, 1:] = np.frombuffer(sound, dtype=np.uint8).reshape(-1, 3)
        return padded.view("<i4")[:, 0] / 2.0**31
    return np.frombuffer(sound, dtype=f"<i{width}") / 2.0 ** (bits - 1)


def log_mel(samples: NDArray[np.float32], rate: int, mels: int = MELS) -> NDArray[np.float32]:
    """Log-mel frames [T, mels]: ln(sum_f M[m, f] |X[t, f]|^2), X the Hann-windowed spectrum of 25 ms every 10 ms.

    M holds triangles, equally wide on the mel scale m = 2595 log10(1 + f / 700), from 0 to half the rate, with peak 1
    (Davis and Mermelstein 1980). X is divided by the window's sum; a sound shorter than one window is filled with 0.
    """
    window, hop = max(round(WINDOW * rate), 2), max(round(HOP * rate), 1)
    if len(samples) < window:
        samples = np.pad(samples, (0, window - len(samples)))
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    frames = np.lib.stride_tricks.sliding_window_view(samples, window)[::hop]
    size = max(LEAST_FFT, 1 << (window - 1).bit_length())
    filters = _mel_filters(rate, size, mels)
    result = np.empty((len(frames), mels), dtype=np.float32)
    for first in range(0, len(frames), 1024):  # an hour of sound would not fit into memory at once
        spectrum = np.fft.rfft(frames[first : first + 1024] * (hann / hann.sum()), size)
        result[first : first + 1024] = np.log(np.maximum(np.abs(spectrum) ** 2 @ filters.T, QUIET))
    return result


@cache
def _mel_filters(rate: int, size: int, mels: int) -> NDArray[np.float64]:
    """Triangles [mels, size / 2 + 1], each rising from its left neighbor's center and falling to its right one's."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, mels + 2) / 2595) - 1)
    bins = np.arange(size // 2 + 1) * rate / size
    left, center, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    filters: NDArray[np.float64] = np.maximum(
        0, np.minimum((bins - left) / (center - left), (right - bins) / (right - center))
    )
    return filters
