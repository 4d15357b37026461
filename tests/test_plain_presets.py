"""Plain presets: exactly the lectures' parts, in every task of their family; auto says what it has beside them."""

from __future__ import annotations

import json

import pytest
from torch import nn

import weft
from weft.cli.main import app
from weft.data import samples
from weft.foundation.errors import WeftError
from weft.inspection.analysis.rollout import parts_left_out
from weft.inspection.pictures.kinds.attention import flow_picture, rolled_out
from weft.inspection.pictures.look import observe
from weft.inspection.pictures.look_options import LookOptions
from weft.models.plain_presets import PLAIN, plain_preset, plain_presets
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.block import Block, PostNorm, PreNorm
from weft.parts.convolution import Convolution, GridConvolution
from weft.parts.embeddings import ClassToken, ConvolutionStem
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.grid_positions import GridTable
from weft.parts.norms import LayerNorm, Norm
from weft.parts.positions import LearnedPositions, SinusoidalPositions
from weft.parts.recurrence import Recurrence, Recurrent
from weft.parts.relative import AttentionPosition
from weft.parts.scores import Additive, Dot, ScaledDot, Score
from weft.parts.word_embedding import WordEmbedding
from weft.tasks.registry import task_named
from weft.tasks.support.model_choice import describe_choice, hybrid_parts
from weft.tasks.task import Size, find_sample

OTHER = (Convolution, GridConvolution, ConvolutionStem, WordEmbedding, Recurrence, GatedFeedForward, AttentionPosition)
SMALL = ("--set", "training.threads=1", "--set", "training.guard=false", "--set", "training.batch=256")
SIZES = {"stdlib": 9000, "markov": 9000, "seasonal": 900, "brownian": 900}
# (task, sample, preset): every family's presets in every task that it serves.
PLACES = [
    ("text", "markov", "decoder"),
    ("classification", "sentiment", "encoder"),
    ("classification", "nodes", "encoder"),
    ("tagging", "grammar", "encoder"),
    ("sequences", "skeletons", "encoder"),
    ("images", "shapes", "vit"),
    ("captions", "scenes", "image-text"),
    ("captions", "scenes", "encoder-decoder"),
    ("transcription", "spoken", "encoder-decoder"),
    ("forecast", "brownian", "series-decoder"),
    *(
        ("translation", "dates", name)
        for name in ("encoder-decoder", "rnn-seq2seq", "rnn-seq2seq-attention", "rnn-seq2seq-attention-after")
    ),
]


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """`command("train", ...)` gives (stdout, stderr); built-in samples are small, and nothing is kept outside."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("weft.tasks.task.sample", small_sample)

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app([str(word) for word in words], prog_name="weft")
        output, errors = capsys.readouterr()
        assert not stopped.value.code, errors
        return output, errors

    return call


def small_sample(name, seed):
    return samples.sample(name, seed, SIZES.get(name, 40))


def prepared(task, name, tmp_path, monkeypatch, **options):
    monkeypatch.setattr("weft.tasks.task.sample", small_sample)
    kind = task_named(task)
    return kind.prepare([f"sample:{name}"], kind.Options(**options), 0, tmp_path).task


def parts(module, *kinds):
    return [part for part in module.modules() if isinstance(part, kinds)]


@pytest.mark.parametrize(("task", "name", "preset"), PLACES)
def test_a_plain_preset_trains_its_lecture_model_by_the_command(task, name, preset, command, tmp_path):
    beam = ("--set", "data.beam=1") if task in ("translation", "captions", "transcription") else ()
    words = ("--preset", preset, "--steps", 2, "--set", "width=32", *SMALL, *beam)
    printed, errors = command("train", task, f"sample:{name}", "--out", tmp_path / "run", *words, "--json")
    assert json.loads(printed)["steps"] == 2
    assert "model:" not in errors
    run = weft.load(tmp_path / "run")
    assert run.module.spec.width == 32
    expect_lecture_parts(run.module, preset, task, name)


def expect_lecture_parts(module, preset, task, sample):
    assert not parts(module, *OTHER)
    if preset.startswith("rnn"):
        scores = {"rnn-seq2seq": [], "rnn-seq2seq-attention": [Additive], "rnn-seq2seq-attention-after": [Dot]}
        assert [type(score) for score in parts(module, Score)] == scores[preset]
        assert len(parts(module, Recurrent)) == 2 and not module.spec.bidirectional and not parts(module, Block)
        assert (module.combine is not None) == preset.endswith("after")
        return
    width = module.spec.width
    post = preset in ("encoder", "encoder-decoder")
    assert {type(block) for block in parts(module, Block)} == {PostNorm if post else PreNorm}
    assert {type(block.mixer) for block in parts(module, Block)} == {SelfAttention}
    assert {type(norm) for norm in parts(module, Norm)} == {LayerNorm}
    assert all(norm.beta is not None for norm in parts(module, Norm))
    assert {type(score) for score in parts(module, Score)} == {ScaledDot}
    assert all(a.query_norm is None and a.key_heads == a.heads for a in parts(module, SelfAttention, CrossAttention))
    assert all((f.up.out_features, f.down.out_features) == (4 * width, width) for f in parts(module, FeedForward))
    assert {f.activation_name for f in parts(module, FeedForward)} == {
        "relu" if preset == "encoder-decoder" else "gelu"
    }
    assert len(parts(module, FeedForward)) == len(parts(module, Block))
    assert all((block.cross is not None) == (path.startswith("decoder")) or preset != "encoder-decoder"
               for path, block in module.named_modules() if isinstance(block, Block))  # fmt: skip
    nodes = sample == "nodes"
    positions = {"encoder-decoder": SinusoidalPositions, "vit": GridTable}.get(preset, LearnedPositions)
    assert len(parts(module, SinusoidalPositions, GridTable, LearnedPositions)) == (
        0 if nodes else 2 if preset == "encoder-decoder" else 1
    )
    assert nodes or parts(module, positions)
    assert len(parts(module, ClassToken)) == int(
        preset == "vit" or (preset == "encoder" and task != "tagging" and not nodes)
    )
    if preset == "vit":
        assert not parts(module, nn.Conv2d) and module.spec.side <= 8


@pytest.mark.parametrize(
    ("task", "name", "line"),
    [
        (
            "images",
            "shapes",
            "model: vision transformer with a stem of 2 convolutions before the patches, "
            "grid-convolution in layers 0 and 2 of 4 (hybrid); squared ReLU, norms on queries and keys, "
            "mean pool; --preset vit trains the plain one",
        ),
        (
            "text",
            "markov",
            "model: decoder with rotary positions, squared ReLU, norms on queries and keys; "
            "--preset decoder trains the plain one",
        ),
        ("classification", "nodes", None),
        (
            "transcription",
            "spoken",
            "model: encoder-decoder with convolution in layers 0 and 2 of the encoder's 4 (hybrid); learned positions, "
            "squared ReLU, an MLP of hidden width 64, norms on queries and keys; --preset encoder-decoder trains the "
            "plain one",
        ),
    ],
)
def test_auto_says_what_it_has_beside_the_plain_model(task, name, line, command, tmp_path):
    words = ("--steps", 1, "--set", "width=32", "--set", "layers=4", *SMALL)
    _, errors = command("train", task, f"sample:{name}", "--out", tmp_path / "run", *words)
    assert [row for row in errors.splitlines() if row.startswith("model:")] == ([] if line is None else [line])


@pytest.mark.parametrize(("task", "name"), sorted({(task, name) for task, name, _ in PLACES}))
def test_the_help_of_a_task_tells_hybrids_as_training_does(task, name, tmp_path, monkeypatch):
    found = prepared(task, name, tmp_path, monkeypatch)
    spec = found.default_model(Size(32, 4, 64))
    said = describe_choice(found, spec)
    hybrid = bool(hybrid_parts(spec))
    assert ("(hybrid)" in said) == hybrid
    if name == "nodes":
        assert not hybrid and "attention alone" in found.auto
    else:
        assert ("hybrid" in found.auto) == hybrid and f"--preset {plain_presets([spec.family])[0]} " in said
        assert ("rotary" not in found.auto) or "rotary positions" in said
    plain = prepared(task, name, tmp_path, monkeypatch, **found.plain_options)
    for preset in plain_presets(found.families):
        assert not describe_choice(plain, plain.fit_plain(preset, Size(32, 4, 64)))


def test_no_plain_preset_is_named_where_none_fits(tmp_path, monkeypatch):
    found = prepared("captions", "scenes", tmp_path, monkeypatch)
    spec = found.default_model(Size(32, 2))
    assert "; --preset image-text trains the plain one" in describe_choice(found, spec)

    def refuse(spec):
        raise WeftError("this task has a model of its own: leave --preset out")

    monkeypatch.setattr(found, "fit", refuse)
    assert describe_choice(found, spec) == (
        "image-text decoder with a stem of 2 convolutions before the patches (hybrid)"
    )
    monkeypatch.setattr(found, "fit_plain", lambda name, size: refuse(name))
    assert describe_choice(found, spec.replace(stem=(), patch=8)) == ""


def test_help_names_the_plain_presets(command):
    shown = command("train", "translation", "--help")[0]
    plain = "encoder-decoder, rnn-seq2seq, rnn-seq2seq-attention, rnn-seq2seq-attention-after"
    assert f"--preset {plain}." in shown and "an encoder-decoder of attention alone" in shown
    assert {name for task, _, name in PLACES} == set(PLAIN)
    assert [row["preset"] for row in json.loads(command("show", "--json")[0])][: len(PLAIN)] == list(PLAIN)


def test_sizes_are_open_until_the_plan_chooses_them(tmp_path, monkeypatch):
    task = prepared("text", "markov", tmp_path, monkeypatch, context=300)
    spec = task.fit_plain("decoder", Size(96, 3, 64, dropout=0.1))
    assert (spec.width, spec.layers, spec.attention().heads, spec.dropout) == (96, 3, 3, 0.1)
    assert spec.length == 300 and task.fit_plain("decoder", Size(96, 3, 512)).length == 512
    assert Size.of(spec) == Size(96, 3, 300, 0.1)
    recurrent = plain_preset("rnn-seq2seq", width=37)
    assert (recurrent.width, recurrent.hidden) == (37, 37)
    with pytest.raises(WeftError, match="no plain preset 'gpt2': choose one of encoder,"):
        plain_preset("gpt2")


def test_a_run_of_a_plain_preset_is_resumed_by_its_name(command, tmp_path):
    given = ("train", "sequences", "sample:tones", "--out", tmp_path / "run", "--steps", 2, *SMALL)
    command(*given, "--preset", "encoder")
    assert "continuing from step 2" in command(*given, "--preset", "encoder", "--resume")[1]
    with pytest.raises(AssertionError, match="--preset nano-encoder"):
        command(*given, "--preset", "nano-encoder", "--resume")


def test_tags_are_learned_from_whole_words(tmp_path, monkeypatch):
    task = prepared("tagging", "grammar", tmp_path, monkeypatch, tokenizer="words")
    spec = task.fit_plain("encoder", Size(32, 1, 64))
    assert spec.input.kind == "tokens" and not spec.class_token
    found = find_sample("tagging", ["sample:grammar"], 0)
    split = task._split(found.train, rarity=1.0)
    hidden = split.forms.hidden
    counts = [row for sentence in split.rows for row in sentence]
    rarest = min(set(counts), key=counts.count)
    assert hidden[rarest] == pytest.approx(1 / (1 + counts.count(rarest)))
    assert not task._split(found.train).forms.hidden[counts].any()


def test_rollout_names_the_layers_that_are_not_attention(command, tmp_path):
    for preset, steps in (("auto", 1), ("vit", 1)):
        given = ("train", "images", "sample:shapes", "--out", tmp_path / preset, "--preset", preset, "--steps", steps)
        command(*given, "--set", "width=32", "--set", "layers=4", *SMALL)
    shown = {}
    for preset in ("auto", "vit"):
        run = weft.load(tmp_path / preset)
        observation = observe(run, "sample:shapes/0")
        shown[preset] = [rolled_out(observation).note, flow_picture(observation, LookOptions()).panels[0].note]
        left = parts_left_out(observation.seen)
        assert all((left == []) == ("Left out" not in note) for note in shown[preset])
    assert parts_left_out(observation.seen) == []
    named = "the convolutions of the stem, layer 0 (grid convolution), layer 2 (grid convolution)."
    assert all(note.endswith(f"Left out, because they are not attention: {named}") for note in shown["auto"])
