"""CLIP: two towers against transformers, images and texts as vectors, labels given as texts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import weft
from foreign_folders import CLIP_WORDS, clip, gpt2
from weft.checkpoints.families import clip as family
from weft.checkpoints.families.family import Config
from weft.checkpoints.families.weight_maps import ConcatenatedRows
from weft.cli.main import app
from weft.data.tokenizers.tokenizer import load_tokenizer
from weft.foundation.errors import WeftError
from weft.inference.fast.native import native_stack
from weft.inference.fast.optimized import optimized
from weft.inference.fast.single_token import SingleTokenStack
from weft.inspection.pictures.look import look, observe
from weft.inspection.pictures.look_options import LookOptions
from weft.models.build import read_spec
from weft.models.decoder import DecoderSpec
from weft.models.estimates import estimate
from weft.models.part_specs import AttentionSpec, ClassicSpec
from weft.models.shrink import shrink
from weft.models.two_tower import TwoTowerSpec
from weft.parts.feedforward import quick_gelu

END = CLIP_WORDS - 1
KINDS = {
    "first end token": {},
    "highest id": {"text": {"eos_token_id": 2}},
    "other sizes": {
        "text": {"hidden_act": "gelu", "layer_norm_eps": 1e-3},
        "vision": {"hidden_act": "gelu_new", "num_channels": 3, "patch_size": 3},
        "projection_dim": 29,
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(kind)` gives their model and our run, each made once."""
    root, kept = tmp_path_factory.mktemp("clip"), {}

    def get(kind="first end token"):
        if kind not in kept:
            theirs = clip(root / f"{len(kept)}", **KINDS[kind])
            kept[kind] = theirs, weft.import_checkpoint(root / f"{len(kept)}", root / f"{len(kept)}-run")
        return kept[kind]

    return get


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three images of different sizes, wider and higher than what the model sees."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    paths = [folder / f"{n}.png" for n in range(3)]
    for path, shape in zip(paths, [(40, 61, 3), (53, 29, 3), (23, 23, 3)], strict=True):
        Image.fromarray(random.integers(0, 255, shape, dtype=np.uint8)).save(path)
    return [str(path) for path in paths]


def inputs(rows=3, images=2):
    """Texts of different lengths, padded with the end token itself, as CLIP's tokenizer does."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, END - 1, (rows, 11), generator=random)
    real = torch.ones(rows, 11, dtype=torch.bool)
    for row in range(rows):
        tokens[row, 10 - 2 * row :] = END
        real[row, 11 - 2 * row :] = False
    return tokens, real, torch.randn(images, 3, 21, 21, generator=random)


def widened(module):
    ours = weft.build(module.spec, dtype=torch.float64)
    ours.load_state_dict(module.state_dict())
    return ours.eval()


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_vectors_and_logits_are_those_of_the_other_library(made, kind, dtype, within):
    theirs, run = made(kind)
    theirs = type(theirs)(theirs.config).eval()
    theirs.load_state_dict(made(kind)[0].state_dict())
    theirs, ours = theirs.to(dtype), widened(run.module).to(dtype)
    tokens, real, images = inputs()
    expected = theirs(input_ids=tokens, attention_mask=real.long(), pixel_values=images.to(dtype))
    found = ours(tokens, mask=real, images=images)
    torch.testing.assert_close(ours(images=images).logits, expected.image_embeds, atol=within, rtol=0)
    torch.testing.assert_close(ours(tokens, mask=real).logits, expected.text_embeds, atol=within, rtol=0)
    torch.testing.assert_close(found.logits, expected.logits_per_image, atol=within, rtol=0)
    assert found.logits.shape == (2, 3) and found.hidden.shape == (3, 11, 30)


@torch.no_grad()
def test_every_weight_counts(made):
    """A map that mixes up any one weight shows in the logits: the comparisons above can fail."""
    _, run = made()
    tokens, real, images = inputs()
    right = run.module(tokens, mask=real, images=images).logits
    for weight in run.module.parameters():
        kept = weight.clone()
        weight.copy_(kept.roll(1, 0) if weight.dim() else kept + 1)
        assert (run.module(tokens, mask=real, images=images).logits - right).abs().max() > 1e-5
        weight.copy_(kept)


def test_a_run_is_certified_and_goes_back(made, tmp_path):
    theirs, run = made()
    tree = json.loads((run.folder / "import.json").read_text())
    assert tree["task"] == "image-text-embedding" and tree["parity"] < 1e-6 and tree["certificate"]["outputs"] == 68
    assert weft.export(run, "huggingface", tmp_path / "back").parity < 1e-6
    back = transformers.CLIPModel.from_pretrained(tmp_path / "back")
    for name, weight in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight), name
    again = weft.import_checkpoint(tmp_path / "back", tmp_path / "again")
    assert again.task.facts() == run.task.facts() and again.spec.model == run.spec.model
    with pytest.raises(WeftError, match="family is 'two-tower', but ONNX is written for"):
        weft.export(run, "onnx", tmp_path / "onnx")
    with pytest.raises(WeftError, match="Llama and GPT-2 kinds, but this one is of CLIP's"):
        weft.export(run, "gguf", tmp_path / "gguf")


def test_a_wrong_table_shows_in_the_certificate(tmp_path, monkeypatch):
    """The comparison can fail: keys and values of all layers are mixed up, so nothing is imported."""
    clip(tmp_path / "clip")
    good = ConcatenatedRows.read
    monkeypatch.setattr(ConcatenatedRows, "read", lambda self, x: good(self, [x[0], *x[:0:-1]]))
    with pytest.raises(WeftError, match="logits differ from those of transformers by"):
        weft.import_checkpoint(tmp_path / "clip", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_no_law_is_broken(made):
    _, run = made()
    whole = weft.laws.check(run.module)
    held = {finding.law for finding in whole.findings if finding.verdict == "holds"}
    assert not whole.broken, str(whole)
    assert {
        "causality",
        "batch independence",
        "left padding",
        "right padding",
        "gradients reach every parameter",
    } <= held
    assert not weft.laws.check(run.module.text).broken
    assert not weft.laws.check(run.module.image).broken


def test_a_text_tower_that_looks_ahead_is_caught(made):
    """Causality is judged on the text tower: without its mask the law is broken."""
    from weft.parts.masks import Everything

    _, run = made()
    module = widened(run.module)
    module.text.stack.masks = (Everything(),) * len(module.text.stack.masks)
    assert "causality" in {finding.law for finding in weft.laws.check(module).broken}


@torch.no_grad()
def test_what_follows_the_end_of_a_text_changes_nothing(made):
    _, run = made()
    ours, (tokens, _, _) = widened(run.module), inputs()
    other = tokens.clone()
    other[1:, 9:] = 5
    assert torch.equal(ours(other[1:]).logits, ours(tokens[1:]).logits)
    assert (ours(other[:1]).logits - ours(tokens[1:2]).logits).abs().max() > 1e-3


@torch.no_grad()
def test_calls_that_make_no_sense_are_refused(made):
    _, run = made()
    tokens, _, images = inputs()
    with pytest.raises(WeftError, match="text 1 has no end token 517"):
        run.module(torch.stack((tokens[0], tokens[0].clamp(max=END - 1)))).logits  # noqa: B018
    with pytest.raises(WeftError, match="nothing to read: give tokens"):
        run.module()
    with pytest.raises(WeftError, match="reads each text at once and keeps no state"):
        run.module(tokens, state=object())
    with pytest.raises(WeftError, match="images of 1 channels, but the model takes 3"):
        run.module(images=images[:, :1])
    with pytest.raises(WeftError, match="'two-tower' generates no text"):
        weft.inference.decoding.generate.generate(run.module, tokens)


def test_specs_read_back_and_classes_are_refused():
    spec = family.read(Config({}), None)
    assert read_spec(spec.to_tree()) == spec and TwoTowerSpec.from_json(spec.to_json()) == spec
    assert estimate(spec).parameters == 151_277_313  # of openai/clip-vit-base-patch32
    small = shrink(spec)
    assert small.text.end_token == small.text.vocabulary - 1 and not weft.laws.check(weft.build(small)).broken
    with pytest.raises(WeftError, match=r"image\.classes and image\.head_hidden"):
        spec.replace(**{"image.classes": 3})
    with pytest.raises(WeftError, match="end_token 49408 is not among the 49408"):
        spec.replace(**{"text.end_token": 49408})


# --- texts and images as users give them -----------------------------------------------------------------------------


def test_texts_are_read_as_by_the_other_library(made):
    _, run = made()
    theirs = transformers.CLIPTokenizer.from_pretrained(Path(run.spec.sources[0]))
    texts = ["A cat, the  DOG's 12 cats!", "naïve Straße 猫 🙂", "", "cat <|endoftext|> dog"]
    for text in texts:
        row = run.task.frame.put(run.tokenizer.encode(text))
        assert row == theirs(text)["input_ids"], text
    assert run.tokenizer.pieces(run.tokenizer.encode("a Catx")) == ["a ", "ca", "t", "x "]
    assert run.tokenizer.decode(run.tokenizer.encode("a  Cat")) == "a cat"


def test_a_tokenizer_json_says_the_same(made, tmp_path):
    _, run = made()
    theirs = transformers.CLIPTokenizer.from_pretrained(Path(run.spec.sources[0]))
    theirs.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path / "tokenizer.json")
    for text in ("A cat, the dog", "naïve 猫"):
        assert again.encode(text) == run.tokenizer.encode(text)
    assert again.decode(again.encode("a Cat")) == "a cat"


@torch.no_grad()
def test_images_are_prepared_as_by_the_other_library(made, photos):
    theirs, run = made()
    processor = transformers.CLIPImageProcessorPil.from_pretrained(Path(run.spec.sources[0]))
    pixels = processor([Image.open(path) for path in photos], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(run.task._pixels(photos), pixels, atol=1e-5, rtol=0)
    expected = theirs.get_image_features(pixels).pooler_output
    torch.testing.assert_close(run.embed(photos), expected / expected.norm(dim=1, keepdim=True), atol=1e-5, rtol=0)


def test_images_and_texts_in_any_order(made, photos):
    _, run = made()
    given = ["a cat", photos[0], "a dog that sleeps", Path(photos[1])]
    found = run.embed(given)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4))
    for place, one in enumerate(given):
        torch.testing.assert_close(run.embed([one])[0], found[place], atol=1e-6, rtol=0)
        assert run.predict(one) == pytest.approx(found[place].tolist(), abs=1e-6)
    assert run.embed([]).shape == (0, 17)
    assert len(run.predict(["long " * 99, ""])) == 2


def test_labels_are_chosen_by_the_softmax_of_logits(made, photos):
    _, run = made()
    labels = ["a cat", "a dog", "a very long label of many more tokens than fit"]
    answers = run.answer(photos, labels=labels)
    vectors, texts = run.embed(photos), run.embed(labels)
    expected = (run.module.similarity.scale.exp() * vectors @ texts.T).softmax(1)
    for answer, row in zip(answers, expected, strict=True):
        shares = answer.more["probabilities"]
        assert [shares[label] for label in labels] == pytest.approx(row.tolist(), abs=1e-5)
        assert answer.output == labels[int(row.argmax())]
    many = run.answer(photos[:1], labels=[f"label {number}" for number in range(13)])
    assert len(many[0].more["probabilities"]) == 13


def test_inputs_that_make_no_sense_are_refused(made, photos):
    _, run = made()
    with pytest.raises(WeftError, match=r"there is no image nowhere\.png: check the path"):
        run.predict("nowhere.png")
    with pytest.raises(WeftError, match="labels are compared with images, but 'a text' is a text"):
        run.predict([photos[0], "a text"], labels=["a", "b"])
    with pytest.raises(WeftError, match="give two or more labels"):
        run.predict(photos[0], labels=["a"])
    with pytest.raises(WeftError, match="each once"):
        run.predict(photos[0], labels=["a", "a"])
    for wrong in ("a,b", ["a", " "], [1, 2]):
        with pytest.raises(WeftError, match="labels are a list of texts"):
            run.predict(photos[0], labels=wrong)
    with pytest.raises(WeftError, match="is not UTF-8 text"):
        run.predict("\udcff")
    with pytest.raises(WeftError, match="embed takes a list of texts"):
        run.embed("a cat")
    with pytest.raises(WeftError, match="imported, not trained"):
        run.task.default_model(None)


def test_labels_are_for_runs_that_take_them(tmp_path):
    gpt2(tmp_path / "gpt2")
    run = weft.import_checkpoint(tmp_path / "gpt2", tmp_path / "run", certificate=False)
    with pytest.raises(WeftError, match="task text does not choose between labels"):
        run.predict("a", labels=["a", "b"])


def test_classes_of_images_are_evaluated_as_labels(made, photos, tmp_path):
    _, run = made()
    for name, paths in (("cat", photos[:2]), ("dog", photos[2:])):
        (tmp_path / name).mkdir()
        for path in paths:
            Image.open(path).save(tmp_path / name / Path(path).name)
    found = run.evaluate(tmp_path, options={"prompt": "a {label}"})
    answers = run.predict(photos, labels=["a cat", "a dog"])
    assert found["accuracy"] == pytest.approx(np.mean(np.array(answers) == ["a cat", "a cat", "a dog"]))
    assert found["examples"] == 3
    with pytest.raises(WeftError, match=r"has no \{label\}"):
        run.evaluate(tmp_path, options={"prompt": "a photo"})


# --- pictures and commands -------------------------------------------------------------------------------------------


def test_the_tower_that_read_the_input_is_looked_at(made, photos):
    _, run = made()
    seen = observe(run, photos[0])
    assert seen.layers("self") == [0, 1] and seen.sizes(0, "self") == (1, 6, 10, 10)
    assert torch.all(seen.attention(0, "self") > 0), "an image tower sees all patches"
    titles = [panel.title for panel in look(run, photos[0]).panels]
    assert titles[0] == "Where it looks, by the class token" and len(titles) == 4
    text = observe(run, "a cat")
    assert text.tokens == ("<|startoftext|>", "a ", "cat ", "<|endoftext|>")
    assert text.layers("self") == [0, 1, 2] and text.sizes(0, "self") == (1, 5, 4, 4)
    assert not text.attention(2, "self").triu(1).any(), "a text tower is causal"
    assert look(run, "a cat").panels[0].title == "How much each token is looked at, by the last token"
    for kind in ("attention", "rollout", "flow", "statistics", "positions"):
        assert look(run, "a cat", LookOptions(kind=kind)).panels
        assert look(run, photos[0], LookOptions(kind=kind)).panels


def test_both_towers_are_watched_in_one_call(made, photos):
    _, run = made()
    with weft.watch(run) as seen:
        run.answer(photos[:1], labels=["a cat", "a dog"])
    assert seen.attention(0).shape == (6, 10, 10) and seen.attention(4).shape == (5, 4, 4)


def test_the_commands(made, photos, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    folder = str(made()[1].folder)

    def run(*words):
        with pytest.raises(SystemExit) as stopped:
            app(list(words), prog_name="weft")
        said = capsys.readouterr()
        return (stopped.value.code or 0), said.out, said.err

    code, shown, errors = run("predict", folder, photos[0], "--labels", "a cat, a dog")
    assert code == 0, errors
    likeliest, *_, first, second = [line for line in shown.splitlines() if line]
    assert code == 0 and likeliest.startswith(("a cat", "a dog")) and {first[:5], second[:5]} == {"a cat", "a dog"}
    assert likeliest[:5] == first[:5] and "%" in first and "%" in second
    answers = json.loads(run("predict", folder, photos[0], "a text", "--json")[1])
    assert [len(answer["output"]) for answer in answers] == [17, 17]
    code, _, said = run("predict", folder, "a text", "--labels", "a,b")
    assert code and said.count("\n") == 1 and "is a text: give paths of images" in said
    assert "two-tower" in run("show", folder)[1] and "0 broken" in run("laws", folder)[1]
    assert run("look", folder, photos[0], "--out", str(tmp_path / "look.html"))[0] == 0


# --- settings --------------------------------------------------------------------------------------------------------


def test_older_folders_say_the_same(made, tmp_path):
    """Settings in text_config_dict, position numbers among the weights, and a single number for sizes."""
    from safetensors.torch import load_file, save_file

    _, run = made()
    clip(tmp_path / "clip")
    config = json.loads((tmp_path / "clip" / "config.json").read_text())
    wrong = {"hidden_size": 99}
    config |= {"text_config_dict": config["text_config"], "text_config": wrong}
    config |= {"vision_config_dict": config["vision_config"], "vision_config": wrong}
    (tmp_path / "clip" / "config.json").write_text(json.dumps(config))
    file = tmp_path / "clip" / "model.safetensors"
    extra = {"text_model.embeddings.position_ids": torch.arange(19)[None]}
    save_file(load_file(file) | extra, file, {"format": "pt"})
    found = weft.import_checkpoint(tmp_path / "clip", tmp_path / "run", certificate=False)
    assert found.spec.model == run.spec.model


def rewritten(folder, changes, file="config.json"):
    path = folder / file
    before = path.read_text()
    tree = json.loads(before)
    for key, value in changes.items():
        *way, last = key.split(".")
        place = tree
        for step in way:
            place = place[step]
        place[last] = value
    path.write_text(json.dumps(tree))
    return lambda: path.write_text(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("refused") / "clip"
    clip(place)
    return place


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("text_config.hidden_act", "mish", "text_config: hidden_act is 'mish'"),
        ("vision_config.hidden_act", 7, "vision_config: hidden_act is 7"),
        ("text_config.eos_token_id", [1, 2], r"eos_token_id is \[1, 2\], but one token"),
        ("text_config.eos_token_id", 7, "does not put the end token 7 after a text"),
        ("text_config.vocab_size", 518.5, "vocab_size is 518.5"),
        ("text_config.vocab_size", 99, "eos_token_id is 517"),
        ("text_config.num_hidden_layers", 10**9, "less than or equal to 4096 .got 1000000000"),
        ("text_config.num_attention_heads", 4, "heads"),
        ("text_config.layer_norm_eps", -1, "layer_norm_eps is -1"),
        ("text_config.model_type", "bert", "model_type to 'bert'"),
        ("text_config", 3, "text_config is 3, but a table"),
        ("vision_config.image_size", [21, 14], "image_size is .*squares"),
        ("vision_config.image_size", 22, "does not divide into patch 7"),
        ("vision_config.num_channels", 4, "a number for each of 4 channels|they do not belong together"),
        ("projection_dim", 0, "projection_dim is 0"),
        ("projection_dim", 18, "they do not belong together"),
        ("architectures", ["CLIPForImageClassification"], "CLIPForImageClassification"),
        ("architectures", ["CLIPTextModelWithProjection"], "of CLIP it reads CLIPModel"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(folder, tmp_path, key, value, words):
    restore = rewritten(folder, {key: value})
    with pytest.raises(WeftError, match=words):
        weft.import_checkpoint(folder, tmp_path / "run")
    restore()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("crop_size", 20, r"cuts pictures to \[20, 20\], but the model takes 21"),
        ("do_resize", False, "do_resize to False"),
        ("do_center_crop", False, "do_center_crop to False"),
        ("do_pad", True, "do_pad to True"),
        ("resample", 4, "resample is 4"),
        ("image_mean", [0.5], "a number for each of 3 channels"),
        ("size", {"longest_edge": 23}, "a height and width in pixels"),
    ],
)
def test_preparations_of_images_that_cannot_be_kept_are_refused(folder, tmp_path, key, value, words):
    restore = rewritten(folder, {key: value}, "preprocessor_config.json")
    with pytest.raises(WeftError, match=words):
        weft.import_checkpoint(folder, tmp_path / "run", certificate=False)
    restore()


def test_preprocessors_of_all_ages(folder, tmp_path):
    """In a file of its own or in processor_config.json; CLIP's own means where nothing is said."""
    file = folder / "preprocessor_config.json"
    text = file.read_text()
    old = weft.import_checkpoint(folder, tmp_path / "a", certificate=False).task.facts()
    file.unlink()
    plain = weft.import_checkpoint(folder, tmp_path / "b", certificate=False).task.facts()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": json.loads(text)}))
    new = weft.import_checkpoint(folder, tmp_path / "c", certificate=False).task.facts()
    (folder / "processor_config.json").unlink()
    file.write_text(text)
    assert old == new and old["fitting"] == {"scaled": [23], "filter": "bicubic"}
    assert plain["fitting"] == {"scaled": [21], "filter": "bicubic"}
    assert plain["mean"] == pytest.approx(transformers.image_utils.OPENAI_CLIP_MEAN)
    assert plain["deviation"] == pytest.approx(transformers.image_utils.OPENAI_CLIP_STD)


def test_a_vocabulary_without_ends_is_refused(folder, tmp_path):
    engine = load_tokenizer(folder).engine
    from tokenizers import processors

    engine.post_processor = processors.ByteLevel()
    engine.save(str(folder / "tokenizer.json"))
    with pytest.raises(WeftError, match="does not put the end token 517 after a text"):
        weft.import_checkpoint(folder, tmp_path / "run")
    (folder / "tokenizer.json").unlink()


# --- quick GELU ------------------------------------------------------------------------------------------------------


def test_quick_gelu_is_that_of_the_other_library():
    x = torch.linspace(-9, 9, 101, dtype=torch.float64, requires_grad=True)
    expected = transformers.activations.QuickGELUActivation()(x)
    torch.testing.assert_close(quick_gelu(x), expected, atol=1e-14, rtol=0)
    assert torch.autograd.gradcheck(quick_gelu, (x,))


@torch.no_grad()
def test_a_decoder_with_quick_gelu_decodes_without_the_native_step():
    spec = DecoderSpec(
        vocabulary=31, length=19, width=20, layers=2, mixer=AttentionSpec(heads=5),
        feedforward=ClassicSpec(activation="quick-gelu"),
    )  # fmt: skip
    model = weft.build(spec).eval()
    fast = optimized(model)
    assert type(native_stack(model.stack)) is type(fast.stack) is SingleTokenStack
    tokens = torch.randint(0, 31, (2, 7))
    state = fast.make_state(2)
    with torch.inference_mode():
        steps = [fast(tokens[:, t : t + 1], state=state).logits for t in range(7)]
    torch.testing.assert_close(torch.cat(steps, 1), model(tokens).logits, atol=1e-5, rtol=0)
