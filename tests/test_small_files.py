"""Small files that claim to be huge: refused before memory is taken, in a process that has little of it."""

from __future__ import annotations

import gzip
import io
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from weft.data.readers.archives import LARGEST_MEMBER, read_members
from weft.data.readers.files import DataError, read_lines
from weft.data.readers.graphs import MOST_NODES, parse_graph, read_edges
from weft.data.readers.images import read_image, read_images
from weft.data.readers.sequences import read_sequences
from weft.data.readers.sounds import log_mel, read_sound

LIMIT = 1 << 30  # bytes of memory that reading a small file may take besides what Python and its packages have
READ = """
import resource, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from weft.data.readers import images, sequences, sounds, texts
from weft.foundation.errors import WeftError
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + int(sys.argv[1]),) * 2)
kind, *paths = sys.argv[2:]
try:
    if kind == "images": images.read_images(paths, "auto")
    if kind == "sequences": sequences.read_sequences(paths)
    if kind == "labeled": texts.read_labeled([Path(path) for path in paths])
except WeftError as error:
    print(error)
"""


def refused(kind, *paths):
    """The sentence that a process of little memory says."""
    command = [sys.executable, "-c", READ, str(LIMIT), kind, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1, (
        done.stdout,
        done.stderr[-800:],
    )
    return done.stdout


def sparse_tar(path, name, size):
    """GNU's old sparse format: a file of `size` zeros that stores nothing."""
    member = tarfile.TarInfo(name)
    member.type = b"S"
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\0" % 0 + b"%011o\0" % 0
    block[483:495] = b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    path.write_bytes(bytes(block) + bytes(1024))
    return path


def png(path, width, height):
    """A picture of one gray level, which compresses a thousand times."""
    path.parent.mkdir(exist_ok=True)
    Image.new("L", (width, height)).save(path)
    return path


def test_a_sparse_member_of_an_archive(tmp_path):
    path = sparse_tar(tmp_path / "a.tar", "a/1.png", (8 << 30) - 1)
    assert path.stat().st_size < 2600
    said = refused("images", path)
    assert "bytes, but at most 268,435,456 are read from an archive: unpack it" in said


def test_members_that_are_no_images_are_not_read(tmp_path):
    """Names are looked at first: such a member costs nothing."""
    path = sparse_tar(tmp_path / "a.tar", "a/readme.bin", (8 << 30) - 1)
    assert "holds no image" in refused("images", path)


def test_headers_of_a_tar_that_claim_much(tmp_path):
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 3 << 30
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            file.write(bytes(1 << 20))
    assert "do not trust it" in refused("images", tmp_path / "a.tar.gz")


def test_members_of_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/0.bin", bytes(300 << 20))
        archive.writestr("a/1.png", bytes(LARGEST_MEMBER + 1))
    assert "a/1.png' has 268,435,457 bytes" in refused("images", tmp_path / "a.zip")


def test_ordinary_archives_are_read(tmp_path):
    picture = io.BytesIO()
    Image.new("L", (5, 7), 3).save(picture, "png")
    bodies = {"a/1.png": picture.getvalue(), "a/.hidden.png": b"no", "a/notes.txt": b"no"}
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, body in bodies.items():
            archive.writestr(name, body)
    for ending in ("tar", "tgz", "tar.xz", "tar.bz2"):
        with tarfile.open(tmp_path / f"a.{ending}", f"w:{'gz' if ending == 'tgz' else ending[4:]}") as archive:
            for name, body in bodies.items():
                member = tarfile.TarInfo(name)
                member.size = len(body)
                archive.addfile(member, io.BytesIO(body))
    for path in tmp_path.iterdir():
        found = list(read_members(path, lambda name: name.endswith(".png")))
        assert found == [("a/1.png", picture.getvalue())]


def test_pictures_of_many_pixels(tmp_path):
    for number in range(4):
        png(tmp_path / f"{number % 2}" / f"{number}.png", 13_001, 13_003)
    assert "claims 13001 x 13003 pixels, but at most 67,108,864 are read" in refused("images", tmp_path)
    with pytest.raises(DataError, match="13001 x 13003"):
        read_image(tmp_path / "0" / "0.png")
    assert read_image(png(tmp_path / "fine.png", 5, 7)).shape == (7, 5, 3)


def wav(path, rate, samples=2000):
    sound = bytes(2 * samples)
    head = struct.pack("<HHIIHH", 1, 1, rate, rate * 2 % (1 << 32), 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(sound)) + sound
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


def test_sounds_of_an_absurd_rate(tmp_path):
    for label in ("a", "b"):
        for number in range(2):
            wav(tmp_path / label / f"{number}.wav", 4_000_000_000)
    said = refused("sequences", tmp_path)
    assert "claims 4,000,000,000 samples per second, but 1,000 to 768,000 are read" in said
    with pytest.raises(DataError, match="claims 1 samples per second"):
        read_sound(wav(tmp_path / "slow.wav", 1))
    rate, samples = read_sound(wav(tmp_path / "fine.wav", 768_000))
    assert log_mel(samples, rate).shape == (1, 40)


def test_arrays_that_claim_much(tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (3 << 20, 32, 32)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("images.npy", "w", force_zip64=True) as file:
            file.write(head.getvalue())
            for _ in range(3 << 10):
                file.write(bytes(1 << 20))
        archive.writestr("labels.npy", b"")
    assert "as no data have it: do not trust it" in refused("images", tmp_path / "a.npz")


def test_idx_files_that_claim_much(tmp_path):
    for claimed in (3 << 30, (1 << 32) - 1):
        with gzip.open(tmp_path / "images.gz", "wb", compresslevel=1) as file:
            file.write(struct.pack(">IIII", 0x803, claimed, 1, 1) + bytes(100 << 20))
        assert "as no data have it" in refused("images", tmp_path / "images.gz")


def test_lines_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.data.readers.files.LONGEST_LINE", 1000)
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"short\n" + b"x" * 999 + b"\nend")
    assert [len(line) for _, line in read_lines(path)] == [5, 999, 3]
    with gzip.open(path, "wb") as file:
        file.write(b"short\n" + b"x" * 5000)
    with pytest.raises(DataError, match="line 2 is longer than 1,000 bytes"):
        list(read_lines(path))


def test_graphs_have_a_limit(tmp_path):
    (tmp_path / "edges.csv").write_text(f"0,1\n1,{10**15}\n")
    with pytest.raises(DataError, match="nodes, but a graph has at most"):
        read_edges(tmp_path / "edges.csv")
    with pytest.raises(DataError, match="nodes, but a graph has at most"):
        parse_graph({"nodes": ["a"] * (MOST_NODES + 1), "edges": []}, "here", labeled=False)


def test_the_limits_are_those_of_processes():
    """The tests above would pass on any code if the system did not keep its word."""
    code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT},) * 2); bytearray(2 * {LIMIT})"
    assert b"MemoryError" in subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stderr
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != LIMIT
    assert read_images and read_sequences
