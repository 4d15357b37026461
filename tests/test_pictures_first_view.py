"""What a picture shows first: the word with most structure, light images dimmed, channels and layers by name."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.data.readers.sequences import read_channel_names
from weft.figures.panels.overlays import OverlayPanel, dimming, highlight
from weft.figures.panels.panel import Axis
from weft.inspection.pictures.look import look
from weft.inspection.pictures.tasks.captions import most_structured


def contrast(pixels: np.ndarray) -> float:
    """Between the patch that is looked at and the others: the difference of their colors, 0 to 255."""
    found = highlight(pixels, np.array([[0.0, 1.0]], dtype=np.float32)).astype(float)
    half = pixels.shape[1] // 2
    return float(np.abs(found[:, half:].mean((0, 1)) - found[:, :half].mean((0, 1))).mean())


@pytest.mark.parametrize("brightness", [0, 40, 128, 200, 255])
def test_the_glow_is_seen_on_dark_and_on_light_images(brightness):
    pixels = np.full((5, 14, 3), brightness, dtype=np.uint8)
    found = highlight(pixels, np.array([[0.0, 1.0]], dtype=np.float32))
    assert contrast(pixels) > 40
    assert found[0, 0].max() <= 0.31 * 255 and found[0, -1, 0] > found[0, 0, 0] + 60  # lit is always the lighter one


def test_the_page_dims_as_the_still_does():
    pixels = np.full((5, 7, 3), 250, dtype=np.uint8)
    panel = OverlayPanel("t", pixels, np.zeros((2, 3, 3), np.float32), (Axis("word", ("a", "b")),))
    assert panel.tree()["dimmed"] == dimming(pixels) < 0.4 and dimming(pixels // 10) == 0.6


def test_the_word_with_most_structure_is_concentrated_and_its_own():
    sink, even = np.array([0.9, 0.05, 0.03, 0.02, 0.0]), np.full(5, 0.2)
    own = np.array([0.0, 0.02, 0.03, 0.05, 0.9])
    everyone = [True] * 4
    assert most_structured(np.stack([sink, sink, own, sink]), everyone) == 2  # all others look at one patch
    assert most_structured(np.stack([even, even, own, even]), everyone) == 2
    assert most_structured(np.stack([even, even, 0.01 * own, even]), everyone) == 2  # however little it looks there
    assert most_structured(np.stack([even, sink, own]), [True, True, False]) == 1
    assert most_structured(np.stack([even, own]), [False, False]) == 0


def test_channels_have_the_names_of_the_file_and_layers_without_attention_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    places = [(n, t) for n in range(20) for t in range(7)]
    rows = [f"s{n},{t},{random.random():.3f},{random.random() + n % 2:.3f},{'ab'[n % 2]}" for n, t in places]
    table = tmp_path / "sensors.csv"
    table.write_text("\n".join(["id,time,heart rate,température,label", *rows]))
    (tmp_path / "one.csv").write_text("\n".join(["id,time,heart rate,température,label", *rows[:7]]))
    run = weft.train("sequences", table, tmp_path / "run", steps=1, set={"training.threads": 1, "layers": 3})
    panel = look(run, tmp_path / "one.csv").panels[0]
    assert panel.names == ("heart rate", "température")
    assert panel.axes()[0].missing == "Without attention: layers 0, 2: convolution."
    assert panel.tree()["axes"][0]["missing"] and not panel.tree()["axes"][1]["missing"]
    bare = tmp_path / "bare.npz"
    np.savez(bare, x=random.random((2, 7, 2)), channels=np.array(["left", "right"]))
    assert read_channel_names(bare) == ("left", "right")
    np.savez(bare, x=random.random((1, 7, 2)), channels=np.array(["left"]))  # not all: numbers then
    assert look(run, bare).panels[0].names == ("channel 0", "channel 1")
