"""`weft look`: the picture of every task, and every kind of picture, of tiny runs; what is drawn is what was seen."""

from __future__ import annotations

import json
import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from weft.cli.main import app
from weft.data import samples
from weft.figures.panels.attention import AttentionPanel
from weft.figures.panels.maps import DenseMaps, TopWeightMaps
from weft.figures.panels.overlays import OverlayPanel
from weft.figures.panels.pairs import QueryKeyPanel
from weft.figures.panels.panel import Axis
from weft.figures.panels.tables import TablePanel
from weft.figures.web.array_encoding import decode_array
from weft.foundation.errors import WeftError
from weft.inspection.pictures.kinds.attention import gold_links
from weft.inspection.pictures.look import kinds_of, look, observe, picture_of
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.observation import fitted
from weft.inspection.pictures.panels import closest_pair, find_token, most_focused_head, most_focused_layer_and_head
from weft.inspection.recording.watch import watch
from weft.models.build import build
from weft.tasks.support.language.cross_alignment import AlignmentLayer

TINY = {"training.threads": 1, "training.guard": False, "training.batch": 64}
HEADS = {"mixer.heads": 2}
ATTENTION = {"mixer": [{"kind": "attention", "heads": 2}]}
# The run's task and data, what is changed, what it is shown, and the panels of its own picture.
CASES = {
    "text": ("text", "markov", {"width": 20, "layers": 2, "length": 29, **HEADS}, "lora lo", ["attention", "bars"]),
    "translation": (
        "translation",
        "dates",
        {"width": 20, "layers": 2, **HEADS},
        "sample:dates/3",
        ["table", "attention"],
    ),
    "recurrent": ("translation", "dates", {"width": 11, "hidden": 13}, "sample:dates/3", ["table"]),
    "classification": (
        "classification",
        "sentiment",
        {"width": 20, "layers": 2, **ATTENTION},
        "the film was not terrible",
        ["tokens", "bars", "attention", "pair"],
    ),
    "nodes": ("classification", "nodes", {"width": 20, **HEADS}, "sample:nodes/1", ["tokens", "attention", "pair"]),
    "tagging": (
        "tagging",
        "pronouns",
        {"width": 20, "layers": 2, **ATTENTION},
        "the animal didn't cross the street because it was too tired",
        ["tokens", "attention"],
    ),
    "images": (
        "images",
        "shapes",
        {"width": 20, "layers": 2, **ATTENTION},
        "sample:shapes/2",
        ["overlay", "overlay", "bars", "tiles", "tiles"],
    ),
    "captions": ("captions", "scenes", {"width": 20, "layers": 2, **HEADS}, "sample:scenes/1", ["overlay"]),
    "forecast": (
        "forecast",
        "seasonal",
        {"width": 20, "layers": 2, "data.context": 48, "data.horizon": 7, **ATTENTION},
        "sample:seasonal",
        ["forecast"],
    ),
    "skeletons": (
        "sequences",
        "skeletons",
        {"width": 20, "layers": 1, **ATTENTION},
        "sample:skeletons/1",
        ["motion", "bars"],
    ),
    "tones": ("sequences", "tones", {"width": 20, "layers": 1, **ATTENTION}, "sample:tones/2", ["channels", "bars"]),
}
PRESETS = {"recurrent": "nano-gru-additive"}
SIZES = {"markov": 600, "dates": 40, "sentiment": 40, "nodes": 30, "pronouns": 40, "shapes": 24, "scenes": 24}
SIZES |= {"seasonal": 200, "skeletons": 12, "tones": 12}


@pytest.fixture(scope="module")
def small_samples():
    """Samples of a few examples each, in time for training and for `sample:NAME/N`."""
    patch = pytest.MonkeyPatch()
    for makers in samples.SAMPLES.values():
        for name, (make, _) in list(makers.items()):
            if name in SIZES:
                patch.setitem(makers, name, (make, SIZES[name]))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_samples):
    """`runs("text")`: a run of one step, made when first asked for."""
    folder = tmp_path_factory.mktemp("runs")
    patch = pytest.MonkeyPatch()
    patch.setenv("WEFT_CACHE", str(folder / "cache"))
    made: dict[str, weft.Run] = {}

    def run(name: str) -> weft.Run:
        if name not in made:
            task, data, changes, *_ = CASES[name]
            given = {**TINY, **changes}
            preset = PRESETS.get(name, "auto")
            made[name] = weft.train(task, f"sample:{data}", folder / name, steps=1, set=given, preset=preset)
        return made[name]

    yield run
    patch.undo()


@pytest.mark.parametrize("name", CASES)
def test_each_task_has_its_picture(runs, tmp_path, name):
    *_, given, kinds = CASES[name]
    picture = look(runs(name), given)
    assert [panel.kind for panel in picture.panels] == kinds
    page = picture.write(tmp_path / "x.html").read_text(encoding="utf-8")
    assert page.count("<script") == 2 and len(page) < 2_000_000
    assert picture.left_out == ()


@pytest.mark.parametrize("name", ["text", "translation", "tagging", "images", "recurrent", "captions"])
def test_every_kind_of_picture_is_drawn(runs, name):
    observation = observe(runs(name), CASES[name][3])
    kinds = kinds_of(observation)
    assert {"attention", "explain", "statistics"} <= set(kinds)
    for kind in kinds:
        found = picture_of(observation, LookOptions(kind))
        assert found.panels and len(found.html()) < 3_000_000, kind


@pytest.mark.parametrize("name", CASES)
def test_the_main_metric_is_among_those_measured(runs, name):
    run = runs(name)
    assert run.task.metric in run.evaluate(f"sample:{CASES[name][1]}")


def test_what_is_drawn_is_what_was_seen(runs):
    run = runs("text")
    attention = look(run, "lora lo").panels[0]
    assert isinstance(attention, AttentionPanel) and attention.rows == tuple("lora lo")
    with watch(run) as seen, torch.no_grad():
        run.module(torch.tensor([run.tokenizer.encode("lora lo")]))
    for layer in range(2):
        maps = seen.attention(layer)
        whole = decode_array(attention.tree()["maps"]["whole"])
        np.testing.assert_allclose(whole[layer, 1:], maps.numpy(), atol=1e-6)
        np.testing.assert_allclose(whole[layer, 0], maps.mean(0).numpy(), atol=1e-6)


def test_next_tokens_are_the_models_own(runs):
    run = runs("text")
    bars = look(run, "lora lo").panels[1]
    with torch.no_grad():
        shares = run.module(torch.tensor([run.tokenizer.encode("lora lo")])).logits[0].softmax(-1)
    np.testing.assert_allclose(bars.values.max(1), shares.max(1).values.numpy(), atol=1e-6)
    best = run.tokenizer.pieces([int(shares[3].argmax())])[0]
    assert bars.labels[3][0] == best and bars.marks == (*"ora lo", None)


def test_layer_head_and_row_are_shown_first(runs):
    panel = look(runs("text"), "lora lo", LookOptions(layer=0, head=1, row="3")).panels[0]
    assert panel.shown() == "layer 0, head 1" and panel.focus == 3
    with pytest.raises(WeftError, match="choose --layer among 0, 1"):
        look(runs("text"), "lora lo", LookOptions(layer=5))
    with pytest.raises(WeftError, match="choose --head from 0 to 1"):
        look(runs("text"), "lora lo", LookOptions(head=2))
    with pytest.raises(WeftError, match="there is no token 'zebra'"):
        look(runs("text"), "lora lo", LookOptions(row="zebra"))


def test_a_text_longer_than_the_model_reads(runs):
    picture = look(runs("text"), "lo" * 40)
    assert picture.left_out[0].startswith("The first 51 of 80 tokens: this model reads 29")
    assert len(picture.panels[0].rows) == 29


def test_the_pair_view_multiplies_queries_and_keys(runs):
    run = runs("classification")
    given = "the film was not terrible"
    pair = look(run, given, LookOptions(pair=("not", "terrible"))).panels[-1]
    assert isinstance(pair, QueryKeyPanel) and pair.ways.options[0] == "not looks at terrible"
    with watch(run) as seen:
        run.answer([given])
    for layer in range(2):
        query, key, _ = seen.vectors(layer)
        scores, weights = seen.scores(layer), seen.attention(layer)
        products = (pair.query * pair.key).sum(-1)
        for head in range(2):
            expected = float(query[head, 3] @ key[head, 4])
            assert products[0, layer, head] == pytest.approx(expected, abs=1e-5)
            assert products[1, layer, head] == pytest.approx(float(query[head, 4] @ key[head, 3]), abs=1e-5)
            assert pair.scores[0, layer, head] == pytest.approx(expected / query.shape[-1] ** 0.5, abs=1e-5)
            assert pair.scores[0, layer, head] == pytest.approx(float(scores[head, 3, 4]), abs=1e-5)
            assert pair.weights[1, layer, head] == pytest.approx(float(weights[head, 4, 3]), abs=1e-6)


def test_a_pair_that_is_asked_for_is_always_shown(runs):
    run, pair = runs("text"), LookOptions(pair=("r", "a"))
    assert [panel.kind for panel in look(run, "lora lo", pair).panels] == ["attention", "bars", "pair"]
    assert [panel.kind for panel in look(run, "lora lo", replace(pair, kind="pair")).panels] == ["pair"]
    found = look(run, "lora lo", replace(pair, kind="lens")).panels[-1]
    assert isinstance(found, QueryKeyPanel) and found.ways.options == ("r looks at a", "a looks at r")
    with pytest.raises(WeftError, match="there is no token 'zebra' in this input"):
        look(run, "lora lo", LookOptions(pair=("r", "zebra")))
    with pytest.raises(WeftError, match="no self-attention in which two words meet"):
        look(runs("recurrent"), "3 May 1987", LookOptions(pair=("3", "M")))


def test_effects_quote_their_tokens(runs):
    panel = look(runs("text"), "lora lo", LookOptions("effects")).panels[0]
    assert re.fullmatch(r"Which head does it: '.+' or '.+' at 'o'", panel.title)


def sinking() -> np.ndarray:
    """Maps [2 layers, 3 heads, 5, 5]: almost all rest on the first token; only layer 1, head 1 looks at token 2."""
    values = np.zeros((2, 3, 5, 5), dtype=np.float32)
    values[..., 0], values[..., 3] = 0.9, 0.1
    values[1, 1, :, 0], values[1, 1, :, 2] = 0.3, 0.6
    values[0, 2, 1, 0], values[0, 2, 1, 1] = 1.0, 0.0
    values[:, :, 1, 2:] = 0.0
    return values


def test_heads_that_rest_on_the_first_token_are_not_telling():
    values = sinking()
    layers, heads = Axis("layer", ("0", "1")), Axis("head", ("0", "1", "2"))
    tokens = tuple("abcde")
    panel = AttentionPanel("", tokens, tokens, layers, heads, DenseMaps(values))
    observation = types.SimpleNamespace(
        layers=lambda kind: [0, 1],
        sizes=lambda layer, kind: (1, 3, 5, 5),
        attention=lambda layer, kind, rows: torch.from_numpy(values[layer][:, rows]),
    )
    assert most_focused_head(panel, 4) == most_focused_layer_and_head(observation, "self", 4) == (1, 1)
    # The second token of a causal text has the first alone to look at.
    assert most_focused_head(panel, 1) == most_focused_layer_and_head(observation, "encoder", 1) == (0, 2)
    # The first token of another text is one like others.
    source = AttentionPanel("", tokens, tuple("vwxyz"), layers, heads, DenseMaps(values))
    assert most_focused_head(source, 4) == most_focused_layer_and_head(observation, "cross", 4) == (0, 0)
    assert closest_pair(observation)[1] == 2


def test_tags_stand_below_and_the_odd_one_is_in_focus(runs, monkeypatch):
    run, given = runs("tagging"), CASES["tagging"][3]
    observation = observe(run, given)
    words = given.split()
    tags = tuple(("animal", 0.9) if word == "it" else ("O", 0.8) for word in words)
    picture = picture_of(replace(observation, tags=tags))
    tokens, attention = picture.panels
    assert tokens.below[7] == "animal 0.90" and tokens.below[0] == "O 0.80"
    assert attention.focus == words.index("it") and attention.layers.chosen == 1
    assert attention.heads.options[attention.heads.chosen] != "mean"
    whole = torch.from_numpy(attention.maps.values)
    np.testing.assert_allclose(tokens.weights, whole.mean(2).numpy(), atol=1e-6)


def test_alignment_knows_the_gold_of_its_sample(runs, monkeypatch):
    observation = observe(runs("translation"), "sample:dates/3")
    assert gold_links(observation, 11) is None
    right = observation.truth.target
    told = replace(observation, said=right, written=(*right, "<stop>"))
    gold = gold_links(told, 11)
    assert [set(links) for links in gold] == [set(links) for links in observation.truth.alignment] + [set()]
    panel = look(runs("translation"), "sample:dates/3").panels[0]
    assert isinstance(panel, TablePanel) and panel.columns[: len(observation.truth.source)] == tuple(
        observation.truth.source
    )
    run = runs("translation")
    assert str(run.task.alignment_layer) in panel.title and panel.note.startswith("On held-out sentences")
    [answer] = run.answer([observation.truth.source])
    shown = panel.chosen()[: len(answer.more["tokens"])]
    np.testing.assert_allclose(shown, answer.more["alignment"], atol=2e-6)
    # A run of before has no such choice: it is made on the text itself.
    monkeypatch.setattr(run.task, "alignment_layer", None)
    assert "alignment" not in run.answer([observation.truth.source])[0].more
    assert look(run, "sample:dates/3").panels[0].note.startswith("In this sentence")
    monkeypatch.setattr(run.task, "alignment_layer", AlignmentLayer(1))
    assert look(run, "sample:dates/3").panels[0].shown() == "layer 1, mean"


def test_recurrent_alignment_is_its_own(runs):
    run = runs("recurrent")
    [answer] = run.answer(["3 May 1987"])
    panel = look(run, "3 May 1987").panels[0]
    rows = len(answer.more["tokens"])
    np.testing.assert_allclose(panel.values[0, 0, :rows], answer.more["alignment"], atol=2e-6)


def test_words_of_a_caption_look_at_patches(runs):
    run = runs("captions")
    observation = observe(run, "sample:scenes/1")
    panel = picture_of(observation).panels[0]
    assert isinstance(panel, OverlayPanel)
    cells = observation.grid[0] * observation.grid[1]
    maps = observation.attention(1, "self")
    place = 2
    expected = maps[1, cells + place, :cells].reshape(observation.grid).numpy()
    np.testing.assert_allclose(panel.maps[place, 1, 2], expected, atol=1e-6)
    assert panel.choices[0].options[0] == observation.written[0] and observation.tokens[cells] == "<start>"


def test_forecasts_show_each_columns_attention(runs):
    observation = observe(runs("forecast"), "sample:seasonal")
    panel = picture_of(observation).panels[0]
    assert panel.attention.shape[:3] == (3, 2, 3) and panel.ahead.shape == (7, 3) and panel.low is not None
    values = samples.sample("seasonal").train.values[-48:]
    np.testing.assert_allclose(panel.history, values, rtol=1e-5)
    np.testing.assert_allclose(
        panel.attention[2, 1, 2], observation.attention(1, "self", -1, batch=2)[1].numpy(), atol=1e-6
    )


def test_windows_of_a_series_are_numbered_back_from_its_end(runs):
    run = runs("forecast")
    values = samples.sample("seasonal").train.values
    last, same, earlier = (observe(run, f"sample:{name}") for name in ("seasonal", "seasonal/0", "seasonal/2"))
    np.testing.assert_array_equal(last.history, same.history)
    np.testing.assert_array_equal(last.ahead, same.ahead)
    np.testing.assert_allclose(earlier.history, values[-48 - 14 : -14], rtol=1e-5)
    assert earlier.name == "sample:seasonal/2" and not np.allclose(earlier.ahead, last.ahead)
    most = (len(values) - 48) // 7
    assert observe(run, f"sample:seasonal/{most}").history.shape == (48, 3)
    with pytest.raises(WeftError, match=f"no window {most + 1}: .* up to number {most}, each 7 steps earlier"):
        observe(run, f"sample:seasonal/{most + 1}")


def test_attention_in_time_is_the_mean_over_steps(runs):
    observation = observe(runs("skeletons"), "sample:skeletons/1")
    panel = picture_of(observation).panels[0]
    maps = observation.attention(0, "self")
    np.testing.assert_allclose(panel.attention[0, 1:], maps.mean(1).numpy(), atol=1e-6)
    assert panel.up == "z" and panel.joints.shape[1:] == (18, 3) and panel.bones == samples.BONES


def test_rolled_out_over_the_image(runs):
    observation = observe(runs("images"), "sample:shapes/2")
    overlay = picture_of(observation).panels[1]
    maps = torch.stack([observation.attention(layer, "self").mean(0) for layer in range(2)])
    T = maps.shape[-1]
    both = (0.5 * maps[1] + 0.5 * torch.eye(T)) @ (0.5 * maps[0] + 0.5 * torch.eye(T))
    np.testing.assert_allclose(overlay.maps[0, 1].ravel(), both.mean(0).numpy(), atol=1e-6)
    np.testing.assert_allclose(overlay.maps[1, 1].ravel(), (maps[1] @ maps[0]).mean(0).numpy(), atol=1e-6)


def test_explain_is_the_heads_own_output(runs):
    run = runs("text")
    panel = look(run, "lora lo", LookOptions("explain", layer=1, head=0, row="5")).panels[0]
    assert panel.title == "One output unfolded: l (5), layer 1, head 0"
    with watch(run) as seen, torch.no_grad():
        run.module(torch.tensor([run.tokenizer.encode("lora lo")]))
    _, _, values = seen.vectors(1)
    output = seen.attention(1, 0, 5) @ values[0]
    found = {step.name: step for step in panel.steps}
    np.testing.assert_allclose(found["output"].values[0], output.numpy(), atol=1e-5)
    assert found["scores"].part == "stack.blocks.1.mixer.score" and found["weighted values"].rows == tuple("lora␣lo")


def test_long_texts_are_looked_at_in_parts(tmp_path, small_samples):
    changes = {"width": 8, "layers": 1, "length": 4096, "data.tokenizer": "characters", **HEADS, **TINY}
    run = weft.train("text", "sample:markov", tmp_path / "run", steps=1, set=changes)
    text = samples.sample("markov").train * 8
    picture = look(run, text[:4096])
    panel = picture.panels[0]
    assert isinstance(panel.maps, TopWeightMaps) and len(panel.rows) == 4096
    assert "Weights beyond the" in picture.left_out[0] and f"{panel.maps.kept:.1%}" in picture.left_out[0]
    assert picture.write(tmp_path / "x.html").stat().st_size < 30_000_000
    with watch(run) as seen, torch.no_grad():
        run.module(torch.tensor([run.tokenizer.encode(text[:4096])]))
    for kind, told in (
        ("flow", "look at 128 or fewer"),
        ("rollout", "look at 2,048 or fewer"),
        ("reach", "256 or fewer"),
    ):
        with pytest.raises(WeftError, match=told):
            look(run, text[:4096], LookOptions(kind))
    row = seen.attention(0, 1, 3000)
    best = int(row.argmax())
    assert panel.maps.row(0, 2, 3000)[best] == pytest.approx(float(row[best]), abs=1e-6)


# --- as a user types it ----------------------------------------------------------------------------------------------


@pytest.fixture
def cli(capsys, monkeypatch):
    """`cli("look", ...)` gives (exit code, stdout, stderr)."""
    monkeypatch.delenv("WEFT_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app([str(word) for word in words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return call


def test_look_writes_a_page_and_says_so(runs, cli, tmp_path):
    run = runs("tagging").folder
    out = tmp_path / "x.html"
    code, told, errors = cli("look", run, CASES["tagging"][3], "--out", out, "--pair", "it,animal", "--explain")
    assert (code, errors) == (0, "") and out.is_file()
    assert "How much each token is looked at" in told and "Two words: it and animal" in told
    assert "a_ij = exp(e_ij)" in told and f"picture: {out}" in told.replace("\n", "") and "other kinds: --kind" in told


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_look_writes_stills(runs, cli, tmp_path, suffix):
    out = tmp_path / f"x.{suffix}"
    code, told, _ = cli("look", runs("translation").folder, "sample:dates/1", "--out", out, "--json")
    found = json.loads(told)
    assert code == 0 and found["path"] == str(out) and out.stat().st_size == found["bytes"] > 10_000
    assert found["task"] == "translation" and [panel["kind"] for panel in found["panels"]] == ["table", "attention"]
    assert {"attention", "rollout", "lens"} <= set(found["kinds"]) and found["left_out"] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--kind", "zebra"), "this run has no picture of kind 'zebra': choose --kind among tokens, attention, pair"),
        (("--kind", "routing"), "choose --kind among"),
        (("--pair", "not"), "give two with a comma"),
        (("--pair", "l,zebra"), "there is no token 'zebra' in this input"),
        (("--out", "x.txt"), "end the name in one of .html, .png, .svg, .pdf"),
        (("--out", "no/x.html"), "choose a folder that can be written"),
    ],
)
def test_mistakes_are_told_in_one_sentence(runs, cli, monkeypatch, tmp_path, words, told):
    monkeypatch.chdir(tmp_path)
    code, out, errors = cli("look", runs("text").folder, "lora", *words)
    assert code == 2 and out == "" and told in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        (
            "tones",
            "sample:zebra",
            "task sequences has no sample 'zebra': choose one of sample:skeletons, sample:tones, sample:films",
        ),
        ("tones", "sample:tones/x", "after the slash comes the number of an example"),
        ("forecast", "sample:zebra/0", "task forecast has no sample 'zebra': choose one of sample:seasonal"),
        ("forecast", "sample:seasonal/x", "after the slash comes the number"),
        ("tones", "sample:tones/999", "sample tones has no held-out example 999"),
        ("images", "sample:shapes/999", "has no held-out example 999"),
        ("tagging", "sample:pronouns/999", "has no held-out example 999"),
        ("images", "none.png", "none.png"),
    ],
)
def test_inputs_that_are_none(runs, name, given, told):
    with pytest.raises(WeftError, match=told):
        observe(runs(name), given)


def test_samples_tell_what_is_right(runs):
    observation = observe(runs("tagging"), "sample:pronouns/2")
    words, tags = samples.sample("pronouns").validation[2]
    assert observation.tokens == words and observation.truth == tags
    assert "(it is" in picture_of(observe(runs("tones"), "sample:tones/2")).panels[1].title


# --- seen.show() -----------------------------------------------------------------------------------------------------


def test_show_gives_a_page_outside_of_notebooks(runs, tmp_path, monkeypatch):
    run = runs("tagging")
    with watch(run) as seen:
        run.predict("the Animal was tirZd zz")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    page = seen.show()
    try:
        assert isinstance(page, Path) and '"animal"' in page.read_text(encoding="utf-8")
    finally:
        page.unlink()
    assert seen.show(path=tmp_path / "x.svg", kind="attention", layer=1, head=0, row="tir?d").is_file()


def test_show_is_inline_in_notebooks(runs, monkeypatch):
    pytest.importorskip("plotly")
    run = runs("text")
    with watch(run) as seen, torch.no_grad():
        run.module(torch.tensor([run.tokenizer.encode("lora")]))
    shown = []

    class ZMQInteractiveShell:
        pass

    fake = types.ModuleType("IPython")
    fake.get_ipython = ZMQInteractiveShell
    display = types.ModuleType("IPython.display")
    display.display, display.HTML = shown.append, lambda text: text
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert seen.show() is None
    assert [type(figure).__name__ for figure in shown] == ["Figure", "Figure"]
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    seen.show()
    assert shown[2].startswith("<iframe srcdoc=") and "<script" not in shown[2]


def test_show_labels_what_each_row_wrote(runs, tmp_path):
    run = runs("translation")
    with watch(run) as seen:
        [answer] = run.answer(["3 May 1987"], max_tokens=5)
    page = seen.show(path=tmp_path / "x.html").read_text(encoding="utf-8")
    found = json.loads(page.split('id="data">')[1].split("</script>")[0])["panels"]
    assert found[0]["rows"][:4] == answer.more["tokens"][:4] and found[0]["columns"] == answer.more["source_tokens"]


def test_show_takes_any_module(tmp_path):
    module = build("nano-vit")
    with watch(module) as seen, torch.no_grad():
        module(torch.randn(1, module.spec.channels, module.spec.image, module.spec.image))
    assert seen.show(path=tmp_path / "x.html", kind="rollout").is_file()
    page = seen.show(path=tmp_path / "z.html").read_text(encoding="utf-8")
    assert '"kind":"overlay"' in page and '"kind":"tiles"' in page
    plain = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    x = torch.randn(1, 5, 12)
    with watch(plain) as seen, torch.no_grad():
        plain(x, x, x)
    assert seen.show(path=tmp_path / "y.html").is_file()


def test_labels_fit_the_maps():
    assert fitted(("a", "b"), 3) == ("[class]", "a", "b")
    assert fitted((), 2) == ("0", "1") and fitted(("a", "b", "c"), 2) == ("a", "b")
    assert find_token(("It", "is", "it"), "it") == 2 and find_token(("It", "is"), "it") == 0
    assert find_token(("a", "b"), "1") == 1 and find_token(("1", "b"), "1") == 0


def test_a_head_that_looks_at_the_token_before_is_chosen_last():
    from weft.inspection.pictures.panels import focus_elsewhere

    before, far, sink = np.eye(5, dtype=np.float32)[[3, 1, 0]]
    assert focus_elsewhere(far, 4) > focus_elsewhere(before, 4) > focus_elsewhere(sink, 4)
    assert focus_elsewhere(before, None) == focus_elsewhere(far, None)
