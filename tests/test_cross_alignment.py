"""The alignment of an encoder-decoder: effects of the source, the layer that finds them, and what predict gives."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import subjects
import weft
from weft.inspection.analysis.alignment import align
from weft.inspection.recording.watch import watch
from weft.parts.attention import CrossAttention
from weft.parts.masks import Real
from weft.tasks.support.language.cross_alignment import (
    AlignmentLayer,
    captured_effect,
    choose_layer,
    cross_maps,
    read_alignments,
    source_effects,
)

SOURCE, TARGET = torch.tensor([3, 7, 11, 2, 5]), torch.tensor([1, 6, 10, 4, 12, 2, 9])


def model() -> nn.Module:
    return subjects.build(subjects.shrink(weft.preset("nano-seq2seq"))).double()


def test_maps_are_those_that_watching_sees_and_nothing_is_recorded():
    module = model()
    with watch(module) as seen:
        module(SOURCE[None], TARGET[None])
        maps = cross_maps(module, SOURCE[None], TARGET[None])
        source_effects(module, SOURCE, TARGET)
    assert len(seen.calls) == 1 and len(maps) == 2
    for layer, weights in enumerate(maps):
        assert weights.shape == (1, 3, 7, 5)
        assert torch.allclose(weights[0].double(), seen.attention(layer, kind="cross"), atol=1e-6)
    assert module.training is False


def test_effects_are_how_far_probabilities_move_without_a_token():
    module = model()
    found = source_effects(module, SOURCE, TARGET)
    with torch.no_grad():
        before = module(SOURCE[None], TARGET[None]).logits[0].softmax(-1)
        for place in range(5):
            real = torch.arange(5)[None] != place
            after = module(SOURCE[None], TARGET[None], source_mask=Real(real)).logits[0].softmax(-1)
            assert torch.allclose(found[:, place].double(), (before - after).abs().sum(-1) / 2, atol=1e-6)


def test_the_layer_that_looks_at_what_matters_is_chosen(monkeypatch):
    module = model()
    effects = source_effects(module, SOURCE, TARGET)
    right = torch.nn.functional.one_hot(effects.argmax(-1), 5).float()
    wrong = torch.nn.functional.one_hot(effects.argmin(-1), 5).float()
    assert captured_effect(right, effects) == pytest.approx(float(effects.amax(-1).sum()))
    for best in range(2):
        told = [(right if layer == best else wrong * 3).expand(1, 3, 7, 5) for layer in range(2)]
        monkeypatch.setattr("weft.tasks.support.language.cross_alignment.cross_maps", lambda *_, told=told: told)
        assert choose_layer(module, [(SOURCE.tolist(), TARGET.tolist())]) == AlignmentLayer(best)
    # Of equal ones the mean over all.
    monkeypatch.setattr(
        "weft.tasks.support.language.cross_alignment.cross_maps", lambda *_: [right.expand(1, 3, 7, 5)] * 2
    )
    assert choose_layer(module, [(SOURCE.tolist(), TARGET.tolist())]) == AlignmentLayer()
    assert choose_layer(subjects.build(subjects.shrink(weft.preset("nano-gru-additive"))), []) is None


def test_reading_in_company_is_reading_alone():
    module = model()
    examples = [(SOURCE.tolist(), TARGET.tolist()), (SOURCE.tolist()[:3], TARGET.tolist()[:2])]
    both = read_alignments(module, AlignmentLayer(1), examples, pad=0)
    for example, found in zip(examples, both, strict=True):
        [alone] = read_alignments(module, AlignmentLayer(1), [example], pad=0)
        assert torch.allclose(torch.tensor(found), torch.tensor(alone), atol=1e-6)
        assert (len(found), len(found[0])) == (len(example[1]), len(example[0]))
    mean = read_alignments(module, AlignmentLayer(), examples, pad=0)[0]
    maps = torch.stack(cross_maps(module, SOURCE[None], TARGET[None]))
    assert torch.allclose(torch.tensor(mean), maps.mean((0, 1, 2)).float(), atol=1e-6)


def test_a_model_without_a_run_aligns_by_the_text_itself():
    module = model()
    with watch(module) as seen:
        module(SOURCE[None], TARGET[None])
    found = align(seen)
    chosen = choose_layer(module, [(SOURCE.tolist(), TARGET.tolist())])
    assert (found.layer, found.head) == (chosen.layer, None)
    assert torch.allclose(found.map, chosen.read([seen.attention(layer, kind="cross") for layer in range(2)]))
    with watch(module, layers=[1]) as some:
        module(SOURCE[None], TARGET[None])
    assert align(some).head is not None  # not all layers are known, so that a single head is chosen


def test_a_trained_run_keeps_its_choice_and_predict_uses_it(tmp_path):
    table = tmp_path / "pairs.tsv"
    table.write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcdefgh" for b in "mnopqr"))
    small = {"width": 12, "layers": 2, "mixer.heads": 1, "training.threads": 1, "training.guard": False}
    run = weft.train("translation", table, out=tmp_path / "run", steps=2, set={**small, "training.batch": 64})
    assert run.task.alignment_layer is not None
    kept = json.loads((tmp_path / "run" / "spec.json").read_text())["facts"]["alignment"]
    again = weft.load(tmp_path / "run")
    assert again.task.alignment_layer == AlignmentLayer(**kept) == run.task.alignment_layer
    answers = again.answer(["am", "hq"], max_tokens=3, samples=2)
    for answer in answers:
        looks = answer.more["alignment"]
        assert len(looks) == len(answer.more["tokens"])
        assert all(len(look) == 3 and abs(sum(look) - 1) < 1e-4 for look in looks)
    with watch(again) as seen:
        [answer] = again.answer(["am"], max_tokens=3)
    assert len(seen.calls) == 1
    assert torch.allclose(
        align(seen).map[: len(answer.more["tokens"])], torch.tensor(answer.more["alignment"]), atol=2e-6
    )
    # An old run, whose facts lack it, opens and has no alignment to tell.
    spec = json.loads((tmp_path / "run" / "spec.json").read_text())
    del spec["facts"]["alignment"]
    (tmp_path / "run" / "spec.json").write_text(json.dumps(spec))
    assert "alignment" not in weft.load(tmp_path / "run").answer(["am"], max_tokens=3)[0].more


def test_every_cross_attention_is_counted():
    assert sum(isinstance(part, CrossAttention) for part in model().modules()) == 2
