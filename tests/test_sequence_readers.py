"""The readers of sequences and sounds: what they give, and every sentence they refuse with."""

from __future__ import annotations

import struct
import tarfile
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.data.readers.files import DataError
from weft.data.readers.sequences import read_sequences
from weft.data.readers.sounds import log_mel, read_sound

HEAD = "#note\n@problemName p\n@timeStamps false\n@univariate false\n@dimensions 2\n@classLabel true a b\n@data\n"


def refuses(sentence, call, *arguments, **named):
    with pytest.raises(DataError) as caught:
        call(*arguments, **named)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def ts(tmp_path, text):
    return [write(tmp_path / "a.ts", text)]


def test_ts_of_many_channels_lengths_and_gaps(tmp_path):
    cases = "1,2,3:4,5,6:a\n1,?,3:?,5,?:b\n7:8:a\n1,2,?:3,4,?:b\n"
    found = read_sequences(ts(tmp_path, HEAD + cases))
    assert [values.tolist() for values in found.values] == [
        [[1, 4], [2, 5], [3, 6]],
        [[1, 5], [2, 5], [3, 5]],
        [[7, 8]],
        [[1, 3], [2, 4]],
    ]
    assert found.values[0].dtype == np.float32 and found.channels == 2
    assert found.labels.tolist() == [0, 1, 0, 1] and found.classes == ("a", "b") and found.names[0] == "a.ts, line 8"
    one = read_sequences(ts(tmp_path, "@univariate true\n@classLabel true 2 10\n@data\n1,2:10\n3:2\n4:2\n5,6:10\n"))
    assert one.classes == ("2", "10") and one.values[0].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD + "1:2:c\n", "a.ts, line 8: class 'c' is none of @classLabel a b"),
        (HEAD + "1:a\n", "a.ts, line 8: 1 channels, but its header says 2"),
        (HEAD + "1,2:3:a\n", "line 8: channel 2 has 1 values, but channel 1 has 2: mark missing ones with ?"),
        (HEAD + "1,x:3,4:a\n", "a.ts, line 8: could not convert string to float: 'x'"),
        (HEAD + "1,2:?,?:a\n", "a.ts, line 8: channel 2 has no value at all"),
        (HEAD + "1:2:a\n1:2:a\n1:2:b\n", "label 'b' has one example"),
        (HEAD, "holds no sequence: give a file that does"),
        (HEAD.replace("Label true", "Label false"), "a.ts has no @classLabel true: sequences need one label each"),
        (HEAD.replace("Stamps false", "Stamps true"), "a.ts has time stamps: write the values alone"),
        (HEAD.replace("dimensions 2", "dimensions two") + "1:2:a\n", "a.ts: @dimensions two is not a number"),
        ("1:2:a\n", "a.ts, line 1: data before the line @data"),
        ("@univariate true\n", "a.ts has no line @data"),
    ],
)
def test_ts_that_is_refused(tmp_path, text, sentence):
    refuses(sentence, read_sequences, ts(tmp_path, text))


def test_npz_padded_ragged_and_plain(tmp_path):
    def save(**named):
        np.savez(tmp_path / "a.npz", **named)
        return [tmp_path / "a.npz"]

    x, y = np.arange(40.0).reshape(4, 5, 2), np.array([1, 0, 1, 0])
    assert [values.tolist() for values in read_sequences(save(x=x, y=y)).values] == x.tolist()
    cut = read_sequences(save(x=x, y=y, lengths=np.array([5, 1, 2, 3])))
    assert [len(values) for values in cut.values] == [5, 1, 2, 3] and cut.values[1].tolist() == [[10, 11]]
    flat = read_sequences(save(x=x.reshape(20, 2), y=y, lengths=np.array([5, 6, 7, 2])))
    assert [len(values) for values in flat.values] == [5, 6, 7, 2] and flat.values[3].tolist() == [[36, 37], [38, 39]]
    assert read_sequences(save(x=x[..., 0], y=y, lengths=np.array([5, 1, 2, 3]))).channels == 1
    refuses("a.npz has 4 sequences and 3 labels: one each", read_sequences, save(x=x, y=y[:3]))
    refuses("lengths add up to 9, but x has 20 steps", read_sequences, save(x=x.reshape(20, 2), y=y, lengths=[4, 5]))
    refuses("4 lengths up to 6, but x has 4 sequences of 5 steps", read_sequences, save(x=x, y=y, lengths=[6, 1, 1, 1]))
    refuses("lengths of type float64", read_sequences, save(x=x, y=y, lengths=np.ones(4)))
    refuses("lengths must be", read_sequences, save(x=x, y=y, lengths=[-1, 1, 1, 1]))
    refuses("x of shape 40 and type float64", read_sequences, save(x=x.ravel(), y=y))
    refuses("sequence 2 of a.npz has no steps", read_sequences, save(x=x, y=y, lengths=[1, 0, 1, 1]))
    x[2, 3, 1] = np.nan
    refuses("sequence 3 of a.npz: step 4, channel 2 is not a finite number", read_sequences, save(x=x, y=y))
    ragged = np.array([np.zeros(2), np.zeros(3)], dtype=object)
    refuses("never unpickled: save plain arrays, padded and with `lengths`", read_sequences, save(x=ragged, y=y[:2]))
    refuses("a.npz has no array x or data or sequences or values: it has y", read_sequences, save(y=y))


def test_table_of_sequences(tmp_path):
    rows = ["1,10,.5,6,a", "1,9,.25,5,a", "2,0,1,2,b", "3,0,1,2,a", "4,0,1,2,b"]
    bare = read_sequences([write(tmp_path / "a.csv", "\n".join(rows))])
    assert bare.values[0].tolist() == [[0.25, 5], [0.5, 6]] and bare.labels.tolist() == [0, 1, 0, 1]
    named = read_sequences([write(tmp_path / "b.csv", "\n".join(["who,when,x,y,what", *rows]))])
    assert named.values[0].tolist() == bare.values[0].tolist() and len(named.values) == 4
    dated = ["1,2020-02-01,2,a", "1,2020-01-31,1,a", "2,2020-01-01,1,b", "3,2020-01-01,1,a", "4,2020-01-01,1,b"]
    assert read_sequences([write(tmp_path / "i.csv", "\n".join(dated))]).values[0].tolist() == [[1], [2]]
    turned = ["label,x,id", "a,1,u", "b,3,v", "a,2,u", "a,1,w", "b,1,z"]
    found = read_sequences([write(tmp_path / "c.csv", "\n".join(turned))])
    assert found.values[0].tolist() == [[1], [2]] and found.names[0] == "'u' of c.csv"
    refuses(
        "d.csv has 3 columns, but four or more are needed: a row is one step",
        read_sequences,
        [write(tmp_path / "d.csv", "1,2,3\n")],
    )
    two = write(tmp_path / "e.csv", "1,1,5,a\n1,2,5,b\n")
    refuses("e.csv, line 2: sequence '1' is labeled 'b', but 'a' before", read_sequences, [two])
    word = write(tmp_path / "f.csv", "1,1,5,a\n1,2,x,a\n")
    refuses("f.csv, line 2: could not convert string to float: 'x'; the values must", read_sequences, [word])
    wide = write(tmp_path / "j.csv", "id,time,x,label\n1,0,5,a\n2,0,6,b\n3,0,7,a\n")
    refuses(
        "j.csv: no two of its 3 rows belong to one sequence: a row is one step, with the id", read_sequences, [wide]
    )
    twice = write(tmp_path / "k.csv", "id,time,x,label\n1,0,5,a\n1,1,6,a\n1,0,7,a\n")
    refuses("k.csv: sequence '1' has time 0 twice: give each", read_sequences, [twice])
    more = write(tmp_path / "g.csv", "1,1,5,6,7,a\n")
    refuses("has 3 channels, but '1' of a.csv has 2: all need", read_sequences, [tmp_path / "a.csv", more])
    refuses("h.txt is not a .ts, .npz or .csv file", read_sequences, [write(tmp_path / "h.txt", "1")])
    refuses("there is no file", read_sequences, [tmp_path / "none.csv"])
    refuses("no path holds no sequence", read_sequences, [])


def test_skeletons(tmp_path):
    frame = "".join(f"{joint} {joint + 0.5} {joint + 100} 1\n" for joint in range(20))
    for action in (1, 2):
        for subject in (1, 2):
            write(tmp_path / f"a0{action}_s0{subject}_e01_skeleton.txt", frame * 3)
    found = read_sequences([tmp_path])
    assert found.classes == ("a01", "a02") and found.values[0].shape == (3, 60)
    assert found.values[0][0, :4].tolist() == [0, 0.5, 100, 1] and found.names[1] == "a01_s02_e01_skeleton.txt"
    path = write(tmp_path / "a03_s01_e01_skeleton.txt", frame[:-9])
    refuses("a03_s01_e01_skeleton.txt has 78 numbers, but a frame is 20 joints of 4", read_sequences, [tmp_path])
    write(path, "one two")
    refuses("lines of x, y, depth and confidence are expected", read_sequences, [tmp_path])
    refuses("there is no file", read_sequences, [tmp_path / "none.tar.xz"])
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        archive.add(path, "other.txt")
    refuses("b.tar holds no skeleton: files named like a01_s01_e01_skeleton.txt", read_sequences, [tmp_path / "b.tar"])


# --- sounds ---


def save_wave(path, samples, rate=8000, width=2, channels=1):
    """Whole numbers as PCM, by the standard library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        unsigned = 128 if width == 1 else 0
        file.writeframes(b"".join((int(s) + unsigned).to_bytes(width, "little", signed=width > 1) for s in samples))
    return path


@given(st.data(), st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3]))
def test_wav_comes_back(tmp_path_factory, data, width, channels):
    half = 1 << (8 * width - 1)
    samples = data.draw(st.lists(st.integers(-half, half - 1), min_size=channels, max_size=60))
    samples = samples[: len(samples) // channels * channels]
    path = save_wave(tmp_path_factory.mktemp("wav") / "a.wav", samples, 16_000, width, channels)
    rate, found = read_sound(path)
    expected = (np.array(samples, dtype=np.float64) / half).reshape(-1, channels).mean(axis=1)
    assert rate == 16_000 and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-7)


def riff(kind, bits, sound, extra=b"", promised=None):
    head = struct.pack("<HHIIHH", kind, 1, 8000, 8000 * bits // 8, bits // 8, bits) + extra
    chunks = b"LIST" + struct.pack("<I", 3) + b"abc\0" + b"fmt " + struct.pack("<I", len(head)) + head
    chunks += b"data" + struct.pack("<I", len(sound) if promised is None else promised) + sound
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


def test_wav_of_floats_and_the_extensible_header(tmp_path):
    path = tmp_path / "a.wav"
    floats = np.array([0.5, -0.25], dtype="<f4").tobytes()
    assert read_sound(write(path, riff(3, 32, floats)))[1].tolist() == [0.5, -0.25]
    extra = struct.pack("<HHI", 22, 24, 4) + struct.pack("<H", 1) + bytes(14)
    assert read_sound(write(path, riff(0xFFFE, 24, b"\0\0\x40\0\0\xc0", extra)))[1].tolist() == [0.5, -0.5]
    assert read_sound(write(path, riff(1, 16, b"\0\x40", promised=0xFFFFFFFF)))[1].tolist() == [0.5]
    refuses(
        "a.wav is cut off: its header promises 9 bytes of sound, 2",
        read_sound,
        write(path, riff(1, 16, b"ab", promised=9)),
    )
    refuses("a.wav has 12 bits of kind 1: convert it to PCM", read_sound, write(path, riff(1, 12, b"ab")))
    refuses("a.wav has 8 bits of kind 7", read_sound, write(path, riff(7, 8, b"ab")))
    refuses("a.wav holds no sound: remove it", read_sound, write(path, riff(1, 16, b"")))
    refuses("is not a .wav file: it does not begin with RIFF", read_sound, write(path, "text"))
    refuses("it lacks its format or its sound", read_sound, write(path, riff(1, 16, b"")[:20]))
    silent = b"RIFF\0\0\0\0WAVE" + b"data" + struct.pack("<I", 2) + b"ab"
    refuses("it lacks its format or its sound", read_sound, write(path, silent))
    refuses("cannot open", read_sound, tmp_path / "none.wav")


def tone(hertz, rate, seconds=0.5):
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", [4000, 8000, 16_000, 44_100])
@pytest.mark.parametrize("hertz", [300, 1000])
def test_a_tone_is_loudest_in_its_own_band(rate, hertz):
    frames = log_mel(tone(hertz, rate), rate)
    window, hop = round(0.025 * rate), round(0.010 * rate)
    assert frames.shape == (1 + (rate // 2 - window) // hop, 40) and frames.dtype == np.float32
    centers = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), 42)[1:-1]
    nearest = np.abs(centers - 2595 * np.log10(1 + hertz / 700)).argmin()
    assert np.abs(frames.argmax(axis=1) - nearest).max() <= 1
    assert (log_mel(np.zeros(9, np.float32), rate) == np.float32(np.log(1e-10))).all()
    # Twice as loud is ln 4 more, in every band that hears anything.
    np.testing.assert_allclose((log_mel(2 * tone(hertz, rate), rate) - frames).max(), np.log(4), atol=1e-3)
    assert (log_mel(tone(hertz, rate, 0.5), rate, mels=7)).shape[1] == 7


def test_long_sounds_are_framed_in_parts_alike():
    sound = np.random.default_rng(0).standard_normal(8000 * 15).astype(np.float32)
    np.testing.assert_allclose(log_mel(sound, 8000)[1100:], log_mel(sound[1100 * 80 :], 8000), rtol=1e-5)


def test_a_folder_per_class_of_sounds(tmp_path):
    for label, hertz in (("high", 1500), ("low", 200)):
        for number in range(2):
            save_wave(tmp_path / label / f"{number}.wav", tone(hertz, 8000) * 9999)
    found = read_sequences([tmp_path])
    assert found.classes == ("high", "low") and found.channels == 40 and found.labels.tolist() == [0, 0, 1, 1]
    assert found.values[0].mean(axis=0).argmax() > found.values[2].mean(axis=0).argmax()
    odd = save_wave(tmp_path / "low" / "2.wav", [1, 2], rate=16_000)
    refuses(f"{odd} has 16000 samples per second, but", read_sequences, [tmp_path])
    write(odd, "text")
    refuses(f"{odd} is not a .wav file", read_sequences, [tmp_path])
