"""Transcription: digits that are said by a simple voice, and their words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.sounds import write_sound
from weft.data.samples.sample_definition import ReferenceScore, Sample, numpy_generator, validation_size
from weft.data.samples.sequences import SAMPLE_RATE
from weft.foundation.arrays import Array

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Centers of the two formants of each digit in Hz; neighbors differ by a factor of 1.45 or more in one of them.
FORMANTS = tuple((low, high) for high in (1100, 1600, 2320, 3360) for low in (300, 480, 760))[: len(DIGITS)]
FEWEST, MOST = 2, 6  # digits of one utterance
PITCH = (70, 110)  # Hz; harmonics are close enough to show every formant
VOICE = 0.05  # a voice's formants are higher or lower by up to this share
NOISE = 0.02


@dataclass(frozen=True)
class SpokenText:
    """Samples of a sound at 8000 Hz, its words, and the part of the sound (first, last sample) that says each."""

    samples: NDArray[np.float32]
    text: str
    spans: tuple[tuple[int, int], ...]


def spoken(seed: int, size: int) -> Sample[tuple[SpokenText, ...]]:
    """2 to 6 digits each, such as "seven three three": two formants over a buzzing voice, in noise, fast or slow."""
    random = numpy_generator(seed, "spoken")
    said = tuple(_utterance(random) for _ in range(size + validation_size(size)))
    why = "by construction: formants of two digits differ by 45 %, voices by 5 %, and the noise is far below them"
    return Sample("spoken", "transcription", said[:size], said[size:], ReferenceScore("cer", 0.0, why))


def _utterance(random: np.random.Generator) -> SpokenText:
    pitch, voice, speed = random.uniform(*PITCH), 1 + VOICE * random.uniform(-1, 1), random.uniform(0.8, 1.25)
    digits = random.integers(len(DIGITS), size=random.integers(FEWEST, MOST + 1))
    parts: list[Array] = [_silence(random.uniform(0.02, 0.12))]
    spans = []
    for digit in digits:
        first = sum(map(len, parts))
        parts.append(_syllable(int(digit), random.uniform(0.10, 0.22) / speed, pitch, voice, random))
        spans.append((first, first + len(parts[-1]) - 1))
        parts.append(_silence(random.uniform(0.02, 0.08) / speed))
    sound = np.concatenate(parts) * random.uniform(0.3, 0.8)
    noisy = np.clip(sound + random.normal(0, NOISE * random.uniform(0.2, 1), sound.shape), -1, 1)
    return SpokenText(noisy.astype(np.float32), " ".join(DIGITS[digit] for digit in digits), tuple(spans))


def _silence(seconds: float) -> Array:
    return np.zeros(int(seconds * SAMPLE_RATE))


def _syllable(digit: int, seconds: float, pitch: float, voice: float, random: np.random.Generator) -> Array:
    """Harmonics of the pitch f, loud near the digit's formants: sum_k a_k sin(2 pi k f t + b_k), within -1 and 1."""
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    turns = np.cumsum(pitch * (1 + 0.05 * np.sin(2 * math.pi * 4 * time))) / SAMPLE_RATE
    low, high = (voice * center * random.uniform(0.98, 1.02) for center in FORMANTS[digit])
    harmonics = np.arange(1, int(min(SAMPLE_RATE / 2, 1.4 * high) / (1.1 * pitch)))
    loud = sum(np.exp(-(((harmonics * pitch - center) / (0.15 * center)) ** 2)) for center in (low, high))
    phases = np.exp(1j * random.uniform(0, 2 * math.pi, len(harmonics)))
    # A polynomial in exp(2 pi i f t): one product per harmonic instead of one sine.
    sound = np.polyval(np.append(((loud + 0.01) * phases)[::-1], 0), np.exp(2j * math.pi * turns)).imag
    ramp = np.minimum(1, np.minimum(time, time[::-1]) / 0.015)
    return np.asarray(sound / np.abs(sound).max() * ramp)


def write_spoken(part: tuple[SpokenText, ...], folder: str | Path) -> Path:
    """Write sounds as folder/0000.wav (16 bit, 8000 Hz) and their words as folder/texts.csv, as the task reads them."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["file,text"]
    for number, one in enumerate(part):
        write_sound(folder / f"{number:04d}.wav", one.samples, SAMPLE_RATE)
        lines.append(f"{number:04d}.wav,{one.text}")
    table = folder / "texts.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table
