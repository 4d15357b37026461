"""The readers of images, captions, series and sequences: what they give, and every sentence they refuse with."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from weft.data.readers import images as images_module
from weft.data.readers.captions import read_captions
from weft.data.readers.files import DataError, read_blocks, read_lines, read_table, read_text
from weft.data.readers.images import PixelFiles, read_image, read_images
from weft.data.readers.sequences import read_sequences
from weft.data.readers.series import read_series
from weft.data.readers.texts import read_labeled, read_pairs, read_tagged

SHARED = Path(__file__).parents[2] / "shared" / "data"


def refuses(sentence, call, *arguments, **named):
    with pytest.raises(DataError) as caught:
        call(*arguments, **named)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def picture(path, size=(5, 3), color=(200, 10, 30), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).convert(mode).save(path, **options)
    return path


def idx(array):
    kind = {1: 0x801, 3: 0x803, 4: 0x804}[array.ndim]
    return struct.pack(f">{1 + array.ndim}I", kind, *array.shape) + array.astype(np.uint8).tobytes()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


# --- images ---


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "webp"])
def test_a_folder_per_class(tmp_path, suffix, monkeypatch):
    for label, color in (("cat", (200, 10, 30)), ("dog", (10, 200, 30))):
        for number in range(2):
            picture(tmp_path / label / f"{number}.{suffix}", color=color)
    write(tmp_path / "cat" / f".hidden.{suffix}", "no image")
    found = read_images([tmp_path])
    assert found.pixels.shape == (4, 3, 5, 3) and found.pixels.dtype == np.uint8 and found.channels == 3
    assert found.labels.tolist() == [0, 0, 1, 1] and found.classes == ("cat", "dog")
    assert np.abs(found.pixels[0, 1, 2].astype(int) - (200, 10, 30)).max() < 12  # JPEG and WEBP lose a little
    monkeypatch.setattr(images_module, "IN_MEMORY_BYTES", 10)
    lazy = read_images([tmp_path])
    assert isinstance(lazy.pixels, PixelFiles) and lazy.pixels.shape == (4, 3, 5, 3) and len(lazy.pixels) == 4
    assert (lazy.pixels[[3, 0]] == found.pixels[[3, 0]]).all() and (lazy.pixels[1:] == found.pixels[1:]).all()
    assert read_images([tmp_path], size=7).pixels.shape == (4, 7, 7, 3)


def test_gray_turned_deep_and_clear_images(tmp_path):
    for label in ("a", "b"):
        for number in range(2):
            picture(tmp_path / label / f"{number}.png", mode="L")
    assert read_images([tmp_path]).pixels.shape == (4, 3, 5, 1)
    picture(tmp_path / "a" / "2.gif", color=(9, 9, 9), mode="L")
    assert read_images([tmp_path]).channels == 1
    turn = Image.Exif()
    turn[0x0112] = 6
    picture(tmp_path / "b" / "2.jpg", size=(3, 5), exif=turn)
    assert read_images([tmp_path]).pixels.shape == (6, 3, 5, 3)
    deep = tmp_path / "deep.png"
    Image.fromarray(np.full((2, 2), 0x8000, dtype=np.uint16)).save(deep)
    assert read_image(deep, channels=1).tolist() == [[[128], [128]]] * 2
    clear = tmp_path / "clear.png"
    Image.new("RGBA", (2, 2), (0, 0, 0, 0)).save(clear)
    assert (read_image(clear) == 255).all()
    assert read_image(picture(tmp_path / "wide.png", size=(9, 3)), size=(4, 6), channels=1).shape == (4, 6, 1)


def test_folders_of_images_that_are_refused(tmp_path):
    (tmp_path / "none").mkdir()
    refuses("holds no .png", read_images, [tmp_path / "none"])
    refuses("there is no file", read_images, [tmp_path / "missing"])
    root = tmp_path / "root"
    for number in range(2):
        picture(root / "a" / f"{number}.png")
    refuses(f"all images lie in {root / 'a'}: a folder per class, two or more, is expected", read_images, [root])
    picture(root / "b" / "0.png")
    refuses("label 'b' has one example: give it more, or leave it out", read_images, [root])
    assert read_images([root], learn=False).classes == ("a", "b")
    picture(root / "b" / "1.png", size=(4, 4))
    refuses(f"{root / 'b' / '1.png'} 4x4: pass size=", read_images, [root])
    whole = picture(root / "b" / "1.png", size=(64, 64)).read_bytes()
    write(root / "b" / "1.png", whole[:60])
    refuses(f"{root / 'b' / '1.png'} is not a readable image", read_images, [root], size=4)
    write(root / "b" / "1.png", "text")
    refuses(f"{root / 'b' / '1.png'} is not a readable image: repair or remove it", read_images, [root])
    refuses("is not a readable image (cannot identify image file", read_image, root / "b" / "1.png")
    refuses("there is no image", read_image, root / "c.png")
    write(tmp_path / "idx" / "train-images-idx3-ubyte.gz", idx(np.zeros((2, 3, 4))))
    refuses("holds IDX files: give the file of images and the file of labels", read_images, [tmp_path / "idx"])


@given(arrays.arrays(np.uint8, st.tuples(st.integers(4, 6), st.integers(1, 5), st.integers(1, 5))), st.booleans())
def test_idx_comes_back(tmp_path_factory, pixels, zipped):
    folder = tmp_path_factory.mktemp("idx")
    labels = np.arange(len(pixels)) % 2 * 10 + 2
    ending = ".gz" if zipped else ""
    pair = [write(folder / f"x{ending}", idx(pixels)), write(folder / f"y{ending}", idx(labels))]
    for paths in (pair, pair[::-1]):
        found = read_images(paths)
        assert (found.pixels[..., 0] == pixels).all() and found.channels == 1
        assert found.classes == ("2", "12") and [int(found.classes[n]) for n in found.labels] == labels.tolist()


def test_idx_that_is_refused(tmp_path):
    x, y = idx(np.zeros((4, 2, 3))), idx(np.array([0, 1, 0, 1]))
    pixels, labels = write(tmp_path / "x", x), write(tmp_path / "y", y)
    assert read_images([pixels, labels], size=5).pixels.shape == (4, 5, 5, 1)
    assert read_images([write(tmp_path / "c", idx(np.zeros((4, 2, 3, 3)))), labels]).channels == 3
    cut = write(tmp_path / "cut", x[:-1])
    refuses("cut is cut off: its header promises 24 bytes, 23 are there; fetch it again", read_images, [cut, labels])
    refuses("head is cut off: its header promises more, 0 are", read_images, [write(tmp_path / "head", x[:9]), labels])
    refuses(
        "long is too long: its header promises 24 bytes, 25", read_images, [write(tmp_path / "long", x + b"0"), labels]
    )
    refuses(
        "odd begins with 0x00000d03, which is not an IDX", read_images, [write(tmp_path / "odd", b"\0\0\x0d\3"), labels]
    )
    refuses("nil begins with nothing", read_images, [write(tmp_path / "nil", b""), labels])
    three = write(tmp_path / "three", idx(np.array([0, 1, 0])))
    refuses("x has 4 images and three 3 labels: give files that belong together", read_images, [pixels, three])
    refuses("1 IDX files of images and 0 of labels", read_images, [pixels])
    lonely = write(tmp_path / "lonely", idx(np.array([0, 1, 0, 0])))
    refuses("label '1' has one example", read_images, [pixels, lonely])
    packed = gzip.compress(idx(np.random.default_rng(0).integers(0, 256, (9, 11, 13), dtype=np.uint8)))
    (tmp_path / "torn.gz").write_bytes(packed[:300])
    refuses("torn.gz cannot be read to its end", read_images, [tmp_path / "torn.gz", labels])


def test_npz_of_images(tmp_path):
    def save(**named):
        np.savez(tmp_path / "a.npz", **named)
        return [tmp_path / "a.npz"]

    gray, labels = np.arange(24, dtype=np.uint8).reshape(4, 2, 3), np.array([5, 7, 5, 7])
    found = read_images(save(images=gray, labels=labels))
    assert (found.pixels[..., 0] == gray).all() and found.classes == ("5", "7")
    found = read_images(save(x=np.full((4, 3, 5, 7), 0.5, np.float32), y=np.array(["b", "a", "b", "a"])))
    assert found.pixels.shape == (4, 5, 7, 3) and (found.pixels == 128).all() and found.labels.tolist() == [1, 0, 1, 0]
    assert read_images(save(data=gray.astype(np.int64), targets=labels[:, None] * 1.0)).pixels.max() == 23
    refuses("a.npz has no array images or x or data: it has labels", read_images, save(labels=labels))
    refuses("a.npz has no array labels or y or targets: it has x", read_images, save(x=gray))
    refuses("a.npz has 4 images and a.npz 3 labels", read_images, save(x=gray, y=labels[:3]))
    refuses("images of shape 4x6, but [N, H, W]", read_images, save(x=gray.reshape(4, 6), y=labels))
    refuses("pixels from -1 to 22, but 0 to 1 or 0 to 255", read_images, save(x=gray - 1.0, y=labels))
    refuses("images of type <U1, but numbers", read_images, save(x=np.full((4, 2, 2), "a"), y=labels))
    refuses("labels are fractions", read_images, save(x=gray, y=labels + 0.5))
    refuses("labels of shape 2x2", read_images, save(x=gray, y=labels.reshape(2, 2)))
    refuses("holds Python objects, which are never unpickled", read_images, save(x=np.array([{}] * 4), y=labels))
    refuses("b.npz is not a readable .npz file", read_images, [write(tmp_path / "b.npz", "text")])
    torn = bytearray(save(x=gray, y=labels)[0].read_bytes())
    torn[150:200] = bytes(50)
    refuses("d.npz is not a readable .npz file", read_images, [write(tmp_path / "d.npz", bytes(torn))])
    other = tmp_path / "c.npz"
    np.savez(other, x=np.zeros((4, 2, 2)), y=labels)
    refuses("images of 2x2x1 and 2x3x1 in 2 files", read_images, [*save(x=gray, y=labels), other])


def test_tar_of_images(tmp_path):
    def pack(name, *names, size=(5, 3)):
        with tarfile.open(tmp_path / name, "w:xz") as archive:
            for number, member in enumerate(names):
                body = io.BytesIO()
                Image.new("L" if number == 0 else "RGB", size if number else (5, 3)).save(body, "PNG")
                info = tarfile.TarInfo(member)
                info.size = len(body.getvalue())
                archive.addfile(info, io.BytesIO(body.getvalue()))
        return tmp_path / name

    members = ("t/a/0.png", "t/a/1.png", "t/b/0.png", "t/b/1.png")
    found = read_images([pack("a.tar.xz", *members)])
    assert found.pixels.shape == (4, 3, 5, 3) and found.classes == ("a", "b")
    refuses("t/a/0.png is 5x3 and t/a/1.png 9x9: pass size=", read_images, [pack("b.tar.xz", *members, size=(9, 9))])
    scaled = read_images([tmp_path / "b.tar.xz"], size="auto")
    assert scaled.scaled and scaled.pixels.shape[1] == scaled.pixels.shape[2] and len(scaled.pixels) == 4
    refuses("c.tar.xz holds no image", read_images, [pack("c.tar.xz", "a.txt")])
    torn = write(tmp_path / "d.tar.xz", (tmp_path / "a.tar.xz").read_bytes()[:100])
    refuses("d.tar.xz is not a complete archive", read_images, [torn])


def test_zip_of_images(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number, name in enumerate(
            ("b/0.png", "a/0.png", "a/1.png", "b/1.png", "__MACOSX/a/._1.png", "a/notes.txt")
        ):
            body = io.BytesIO()
            Image.new("L", (7, 7), 40 * number).save(body, "PNG")
            archive.writestr(name, body.getvalue())
    found = read_images([tmp_path / "a.zip"])
    assert found.pixels[:, 0, 0, 0].tolist() == [0, 40, 80, 120] and found.labels.tolist() == [1, 0, 0, 1]
    torn = write(tmp_path / "b.zip", (tmp_path / "a.zip").read_bytes()[:100])
    refuses("b.zip is not a complete archive", read_images, [torn])


# --- captions ---


def test_captions(tmp_path):
    first, second = picture(tmp_path / "in" / "1.png"), picture(tmp_path / "in" / "2.png")
    rows = [{"image": "in/1.png", "text": "one, two "}, {"file": "in/2.png", "caption": "three"}]
    lines = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    expected = [(first, "one, two"), (second, "three")]
    assert read_captions([lines]) == expected
    table = '1.png,"one, two"\n2.png,three\n'
    assert read_captions([write(tmp_path / "in" / "a.csv", table)]) == expected
    assert read_captions([write(tmp_path / "b.txt", "image,caption\n" + table)], folder=tmp_path / "in") == expected
    turned = write(tmp_path / "in" / "c.tsv", "id\tcaption\timage\n5\tone, two\t1.png\n6\tthree\t2.png\n")
    assert read_captions([turned]) == expected


def test_captions_that_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", "image,caption\nno.png,text\n")
    refuses(f"a.csv, line 2: there is no image {tmp_path / 'no.png'}; paths are relative", read_captions, [path])
    write(tmp_path / "photos.tar.xz", "")
    refuses("unpack photos.tar.xz and pass its folder", read_captions, [path])
    picture(tmp_path / "1.png")
    refuses("the caption of 1.png is empty", read_captions, [write(path, "1.png, \n")])
    refuses("line 1: one column, but an image and its caption are two", read_captions, [write(path, "1.png\n")])
    refuses("line 1: 3 columns and no header; put captions", read_captions, [write(path, "1.png,one, two\n")])
    refuses("a.csv has no caption", read_captions, [write(path, "image,caption\n")])
    rows = write(tmp_path / "a.jsonl", '{"image": "1.png", "words": "a"}\n')
    refuses("a.jsonl, line 1: an image (image, path or file) and a text", read_captions, [rows])


# --- series ---


def test_series_with_and_without_names_and_times(tmp_path):
    path = write(tmp_path / "a.csv.gz", "date,a,b\n2020-01-01,1,2e1\n2020-01-02,-3,.5\n")
    found = read_series([path])
    assert found.names == ("a", "b") and found.times == ["2020-01-01", "2020-01-02"]
    assert found.values.tolist() == [[1, 20], [-3, 0.5]] and found.values.dtype == np.float64
    assert read_series([path, path]).values.shape == (4, 2)
    assert read_series([path], columns=["b"]).values.tolist() == [[20], [0.5]]
    bare = read_series([write(tmp_path / "b.csv", "1,2\n3,4\n5,6\n")])
    assert bare.names == ("1", "2") and bare.times is None and bare.values.shape == (3, 2)
    dated = read_series([write(tmp_path / "c.csv", "2020-01-01,1\n2020-01-02,2\n")])
    assert dated.names == ("2",) and dated.values.shape == (2, 1)
    counted = read_series([write(tmp_path / "d.csv", "x,time\n5,1\n6,2\n")])
    assert counted.names == ("x",) and counted.times == ["1", "2"]
    assert read_series([write(tmp_path / "e.csv", "date,0,1\n2020-01-01,1,2\n2020-01-02,1,2\n")]).names == ("0", "1")


def test_columns_without_numbers_are_left_out_unless_they_are_chosen(tmp_path):
    text = "date,load,comment,temp,empty\nd1,1,,5,\nd2,2,was 7,6,\nd3,3,cold,7,\n"
    path = write(tmp_path / "a.csv", text)
    found = read_series([path])
    assert found.names == ("load", "temp") and found.left_out == ("comment", "empty")
    assert found.values.tolist() == [[1, 5], [2, 6], [3, 7]]
    assert read_series([path], columns=["temp"]).left_out == ()
    refuses(
        "line 3: column 'comment' holds 'was 7'", read_series, [write(path, text.replace(",,5", ",3,5"))], ["comment"]
    )


def test_tables_as_spreadsheets_of_other_countries_write_them(tmp_path):
    path = write(tmp_path / "a.csv", "date;load;temp\r\n1.2.2020;1,5;-3\r\n2.2.2020;2;0,25\r\n")
    found = read_series([path])
    assert found.names == ("load", "temp") and found.values.tolist() == [[1.5, -3], [2, 0.25]]
    assert list(read_table(write(path, 'text;label\n"a; b, c";yes\n'))) == [
        (1, ["text", "label"]),
        (2, ["a; b, c", "yes"]),
    ]
    assert list(read_table(write(path, "a; b,c;d\n"))) == [(1, ["a; b", "c;d"])]
    assert list(read_table(write(path, '"a; b"\n'))) == [(1, ["a; b"])]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read_where_the_file_says_so(tmp_path, encoding):
    text = "\ufeffname,Größe\r\nΩ,1\r\nъ\u0a0d,2"
    path, packed = tmp_path / "a.csv", tmp_path / "a.txt.gz"
    path.write_bytes(text.encode(encoding))
    packed.write_bytes(gzip.compress(text.encode(encoding)))
    assert list(read_lines(path)) == [(1, "name,Größe"), (2, "Ω,1"), (3, "ъ\u0a0d,2")]
    for size in (1, 3, 1 << 20):
        assert "".join(read_blocks(packed, size)) == "name,Größe\nΩ,1\nъ\u0a0d,2\n"
    path.write_bytes(text.encode(encoding)[:-1])
    refuses("a.csv, line 3: byte", lambda: list(read_lines(path)))
    refuses("is not UTF-16; save the file as UTF-8", read_text, path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("date,a\nd1,1\nd2,\n", "a.csv, line 3: column 'a' has no value: fill it or remove the row"),
        ("date,a,b\nd1,NaN,1\nd2,2,3\n", "a.csv, line 2: column 'a' has no value"),
        ("date,a\nd1,1\nd2,x\n", "a.csv, line 3: column 'a' holds 'x', which is not a number"),
        ("date,a\nd1,1\nd2,inf\n", "line 3: column 'a' holds 'inf'"),
        ("date,a,b\nd1,1,2\nd2,2,x\nd3,2,4\n", "line 3: column 'b' holds 'x', which is not a number: correct it, or"),
        ("date;a\nd1;1,5\nd2;1.000,5\n", "a.csv, line 3: column 'a' holds '1.000,5', which is not a number"),
        ("date,a\nd1,1,2\nd2,2\n", "a.csv, line 2: 3 cells, but the first line has 2"),
        ("date,town\nd1,Rome\nd2,Bonn\n", "a.csv has no numeric column: it has date, town"),
        ("date,a\nd1,1\n", "a.csv has 1 row of numbers, but 2 are needed: give a longer series"),
        ("date,a\n", "a.csv has a header and no rows"),
        ("", "a.csv is empty"),
    ],
)
def test_series_that_are_refused(tmp_path, text, sentence):
    refuses(sentence, read_series, [write(tmp_path / "a.csv", text)])


def test_series_that_do_not_fit(tmp_path):
    one, two = write(tmp_path / "a.csv", "a,b\n1,2\n3,4\n"), write(tmp_path / "b.csv", "a,c\n1,2\n")
    refuses("b.csv has columns a, c, and a.csv a, b: give files with the same", read_series, [one, two])
    refuses("a.csv has no column 'z': it has a, b", read_series, [one], columns=["z"])
    refuses("a.csv has 2 rows of numbers, but 9 are needed", read_series, [one], least=9)
    refuses("no file of a series was given", read_series, [])


# --- the real data ---


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not on this machine")
def test_real_data_have_the_counts_their_sources_state():
    fashion = SHARED / "fashion_mnist"
    found = read_images([fashion / "t10k-labels-idx1-ubyte.gz", fashion / "t10k-images-idx3-ubyte.gz"])
    assert found.pixels.shape == (10_000, 28, 28, 1) and np.bincount(found.labels).tolist() == [1000] * 10
    series = read_series([SHARED / "ett" / "ETTh1.csv.gz"])
    assert series.values.shape == (17_420, 7) and series.names[-1] == "OT" and series.times[0] == "2016-07-01 00:00:00"
    vowels = read_sequences([SHARED / "uea_small" / "JapaneseVowels_TEST.ts.gz"])
    lengths = [len(values) for values in vowels.values]
    assert (len(lengths), vowels.channels, len(vowels.classes), min(lengths), max(lengths)) == (370, 12, 9, 7, 29)
    motions = read_sequences([SHARED / "uea_small" / "BasicMotions_TRAIN.ts.gz"])
    assert len(motions.values) == 40 and motions.values[0].shape == (100, 6) and len(motions.classes) == 4
    skeletons = read_sequences([SHARED / "msr_action3d" / "msr_action3d_skeleton.tar.xz"])
    assert len(skeletons.values) == 567 and skeletons.channels == 60 and len(skeletons.classes) == 20
    assert len(read_labeled([SHARED / "sst2" / "train.tsv"]).rows) == 6920
    tagged = read_tagged([SHARED / "ud_ewt" / "en_ewt-ud-dev.conllu.gz"])
    assert len(tagged) == 2001 and sum(len(words) for words, _ in tagged) == 25_147
    pairs = read_pairs([SHARED / "multi30k" / f"train.{language}.gz" for language in ("en", "de")]).rows
    assert len(pairs) == 29_000 and pairs[0][0].startswith("Two young, White males")
