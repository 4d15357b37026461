"""Looking into runs that came from elsewhere: labels are what the model reads, with all that stands around a text."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import foreign_folders
import weft
from weft.data.readers.images import ResizeCrop, read_image
from weft.inspection.pictures.generic import observation_of
from weft.inspection.pictures.look import observe, picture_of
from weft.inspection.pictures.panels import by_whom


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    kept = {}

    def get(name):
        if name not in kept:
            root = tmp_path_factory.mktemp("look")
            foreign_folders.FOLDERS[name](root / "folder")
            kept[name] = weft.import_checkpoint(root / "folder", root / "run", certificate=False)
        return kept[name]

    return get


TOKENS = ("[CLS]", "the", "cat", "##s", "sat", "[SEP]")


@pytest.mark.parametrize("name", ["bert", "bert, classes", "bert, tags"])
def test_labels_have_the_frame(made, name, tmp_path):
    run = made(name)
    observation = observe(run, "the cats sat")
    assert observation.labels("self")[0] == TOKENS
    picture_of(observation).write(tmp_path / "page.html")
    with weft.watch(run) as seen:
        run.predict("the cats sat")
    assert observation_of(seen).tokens == TOKENS


def test_a_tag_stands_at_the_first_piece_of_its_word(made):
    run = made("bert, tags")
    observation, answer = observe(run, "the cats sat"), run.answer(["the cats sat"])[0]
    the, cats, sat = zip(answer.output, answer.more["probabilities"], strict=True)
    assert observation.tags == (("", 0.0), the, cats, ("", 0.0), sat, ("", 0.0))


def test_of_a_long_sentence_the_first_part_is_shown(made):
    run = made("bert, tags")
    observation = observe(run, " ".join(["cats"] * 20))
    assert run.module.spec.length == 19 and len(observation.labels("self")[0]) == len(observation.tags) == 2 + 2 * 8
    assert "first 8 of 20 words" in observation.left_out[0]


def test_an_embedding_model_looks_as_it_pools(made):
    observation = observe(made("bert"), "the cats sat")
    assert by_whom(observation) == "all tokens on average"


def test_a_start_token_is_read(made):
    run = made("llama")
    observation = observe(run, "ab")
    assert observation.tokens == ("<start>", "a", "b") and observation.sizes(-1, "self")[2] == 3


@pytest.mark.parametrize(("name", "before"), [("vit", 1), ("deit", 2), ("deit, teacher", 2)])
def test_all_that_stands_before_the_patches_is_labeled(made, name, before, tmp_path):
    random = np.random.default_rng(0)
    Image.fromarray(random.integers(0, 256, (31, 43, 3), dtype=np.uint8)).save(tmp_path / "photo.png")
    run = made(name)
    observation = observe(run, str(tmp_path / "photo.png"))
    rows = observation.labels("self")[0]
    assert observation.first == before and rows[before:] == observation.tokens[before:] and rows[before] == "0,0"
    assert rows[:before] == ("[class]", "[register 0]")[:before]
    expected = read_image(tmp_path / "photo.png", ResizeCrop(21, (21, 21)))
    assert np.array_equal(observation.pixels, expected)
    picture_of(observation).write(tmp_path / "page.html")
