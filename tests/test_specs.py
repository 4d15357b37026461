from __future__ import annotations

import json
from typing import ClassVar

import pytest
import torch

import weft
from weft.foundation.errors import SpecError
from weft.foundation.spec import VersionedSpec
from weft.models.decoder import DecoderSpec
from weft.models.encoder import EncoderSpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.image_text import ImageTextSpec
from weft.models.recurrent_seq2seq import RecurrentSeq2SeqSpec
from weft.models.series import SeriesSpec
from weft.models.vision import VisionSpec


@pytest.mark.parametrize("name", weft.presets())
def test_specs_round_trip_and_are_frozen(name):
    spec = weft.preset(name)
    assert weft.read_spec(spec.to_json()) == spec
    assert type(spec).from_toml(spec.to_toml()) == spec
    assert weft.read_spec(json.loads(spec.to_json())) == spec
    with pytest.raises(Exception, match="frozen"):
        spec.width = 3
    assert spec.replace(width=spec.width) == spec
    assert spec.version == spec.VERSION


def test_another_kind_starts_from_its_own_defaults():
    """Fields of the kind before do not stay; those given together with the kind count, in any order."""
    spec = weft.preset("nano-gpt").replace(**{"positions.base": 500.0})
    assert spec.positions.kind == "rotary"
    assert spec.replace(**{"positions.kind": "alibi"}).positions.to_tree() == {"kind": "alibi"}
    changed = spec.replace(**{"positions.buckets": 8, "positions.kind": "bucketed"})
    assert changed.positions.buckets == 8 and changed.positions.farthest == 128
    assert spec.replace(**{"positions.kind": "rotary"}).positions.base == 500.0
    with pytest.raises(weft.WeftError, match="there is no position 'turned': choose a kind of none, learned, "):
        spec.replace(**{"positions.kind": "turned"})


def test_replace_reaches_nested_fields():
    spec = weft.preset("nano-gpt").replace(layers=2, **{"mixer.heads": 2, "feedforward.hidden": 31})
    assert spec.layers == 2 and spec.mixer[0].heads == 2 and spec.feedforward.hidden == 31
    pattern = spec.replace(mixer=[spec.mixer[0].to_tree(), {"kind": "recurrence"}], positions={"kind": "learned"})
    assert pattern.replace(**{"mixer.1.cell": "lstm"}).mixer_of(3).cell == "lstm"
    assert weft.preset("nano-gpt").layers == 4


ILLEGAL = [
    (
        lambda: DecoderSpec(width=30, mixer={"kind": "attention", "heads": 4}),
        "width 30 does not divide into mixer.heads 4",
    ),
    (lambda: DecoderSpec(mixer={"kind": "attention", "heads": 4, "key_heads": 3}), "mixer.key_heads 3 does not divide"),
    (lambda: DecoderSpec(mixer={"kind": "recurrence"}), "positions 'rotary' act inside attention, but mixer has none"),
    (lambda: DecoderSpec(mixer={"kind": "attention", "head_width": 5}), "rotary positions rotate pairs"),
    (
        lambda: DecoderSpec(mixer={"kind": "recurrence", "bidirectional": True}, positions={"kind": "none"}),
        "mixer.bidirectional",
    ),
    (
        lambda: DecoderSpec(mixer={"kind": "grid-convolution"}, positions={"kind": "none"}),
        "does not work in this family",
    ),
    (
        lambda: DecoderSpec(mixer=[{"kind": "attention", "heads": 4}, {"kind": "attention", "heads": 2}]),
        "need the same heads",
    ),
    (lambda: DecoderSpec(feedforward={"kind": "experts", "experts": 2, "active": 3}), "feedforward.active 3 exceeds"),
    (lambda: DecoderSpec(positions={"kind": "learned", "join": "concatenate"}), "use head.kind linear"),
    (
        lambda: DecoderSpec(positions={"kind": "learned", "join": "concatenate", "width": 128}),
        "leaves nothing of width",
    ),
    (lambda: DecoderSpec(positions={"kind": "bucketed", "buckets": 3}), "greater than or equal to 4"),
    (lambda: DecoderSpec(positions={"kind": "bucketed", "buckets": 8, "farthest": 4}), "raise it above 4"),
    (lambda: DecoderSpec(mixer=[]), "at least 1"),
    (lambda: DecoderSpec(widht=3), "has no field 'widht'"),
    (lambda: DecoderSpec(width="wide"), "valid integer"),
    (lambda: DecoderSpec(dropout=1.0), "less than 1"),
    (lambda: DecoderSpec(mixer={"kind": "nonsense"}), "nonsense"),
    (lambda: EncoderSpec(mixer={"kind": "convolution", "kernel": 4}, positions={"kind": "none"}), "choose an odd one"),
    (lambda: EncoderSpec(mixer={"kind": "convolution", "groups": 3}, positions={"kind": "none"}), "mixer.groups 3"),
    (
        lambda: DecoderSpec(mixer={"kind": "linear-attention", "heads": 3}, positions={"kind": "none"}),
        "does not divide into mixer.heads 3",
    ),
    (lambda: EncoderDecoderSpec(mixer={"kind": "recurrence"}), "but mixer has none"),
    (
        lambda: EncoderDecoderSpec(mixer={"kind": "recurrence", "bidirectional": True}, positions={"kind": "none"}),
        "mixer.bidirectional looks ahead",
    ),
    (
        lambda: EncoderDecoderSpec(mixer={"kind": "convolution", "kernel": 4}, positions={"kind": "none"}),
        "in the encoder, mixer.kernel 4 has no center",
    ),
    (lambda: EncoderDecoderSpec(encoder={"mixer": {"kind": "recurrence"}}), "in the encoder, positions 'rotary' act"),
    (lambda: EncoderDecoderSpec(encoder={"width": 30}), "in the encoder, width 30 does not divide"),
    (lambda: EncoderDecoderSpec(cross={"heads": 5}), "does not divide into cross.heads 5"),
    (lambda: EncoderDecoderSpec(cross={"window": 5}), "leave cross.window out"),
    (lambda: EncoderDecoderSpec(cross={"mask": {"kind": "dilated"}}), "leave cross.mask out"),
    (lambda: EncoderDecoderSpec(cross={"rotary": {"kind": "rotary"}}), "leave cross.rotary out"),
    (
        lambda: EncoderDecoderSpec(source={"kind": "vectors"}, target_vocabulary=31),
        "source vectors has no vocabulary",
    ),
    (lambda: EncoderDecoderSpec(source={"kind": "sounds"}), "sounds"),
    (lambda: EncoderDecoderSpec(source={"kind": "patches", "image": 30}), "does not divide into patch 8"),
    (
        lambda: EncoderDecoderSpec(source={"kind": "patches"}, encoder={"positions": {"kind": "learned"}}),
        "set by source.grid",
    ),
    (lambda: EncoderDecoderSpec(encoder={"mixer": {"kind": "grid-convolution"}}), "does not work in this family"),
    (lambda: EncoderDecoderSpec(positions={"kind": "sinusoidal", "join": "concatenate"}), "use head.kind linear"),
    (lambda: VisionSpec(image=30), "image 30 .* does not divide into patch 4"),
    (lambda: VisionSpec(mixer={"kind": "grid-convolution"}), "set pool to mean"),
    (lambda: VisionSpec(mixer={"kind": "grid-convolution", "kernel": 2}, pool="mean"), "odd mixer.kernel"),
    (lambda: VisionSpec(positions={"kind": "learned"}), "set by grid"),
    (lambda: ImageTextSpec(image=30), "does not divide into patch"),
    (lambda: ImageTextSpec(mixer={"kind": "recurrence"}, positions={"kind": "none"}), "must be attention"),
    (lambda: ImageTextSpec(positions={"kind": "learned", "join": "concatenate"}), "must be add"),
    (lambda: RecurrentSeq2SeqSpec(attention="dot"), "set bidirectional to false"),
    (lambda: weft.preset("nano-gpt").replace(**{"mixer.0.nonsense.deep": 3}), "no field 'mixer.0.nonsense'"),
    (lambda: weft.preset("nano-gpt").replace(**{"width.deep": 3}), "cannot be set"),
    (lambda: weft.read_spec("{"), "not JSON"),
    (lambda: weft.read_spec("[]"), "table of fields"),
    (lambda: weft.read_spec('{"family": "nonsense"}'), "choose one of decoder"),
    (lambda: DecoderSpec.from_json("{"), "not JSON"),
    (lambda: DecoderSpec.from_toml("="), "not TOML"),
    (lambda: DecoderSpec.from_json('{"version": 99}'), "upgrade Weft"),
    (lambda: DecoderSpec.from_json('{"version": "x"}'), "whole numbers"),
    (lambda: weft.preset("nonsense"), "choose one of encoder, decoder"),
]


def test_tables_inside_of_tables_that_were_left_out_can_be_set():
    spec = EncoderDecoderSpec()
    mask = {"encoder.mixer.mask.width": 3, "encoder.mixer.mask.kind": "window"}
    changed = spec.replace(**mask, **{"encoder.mixer.kind": "attention"})
    assert changed.encoder.mixer[0].mask.width == 3
    assert spec.replace(**{"cross.query_key_norm.kind": "rms"}).cross.query_key_norm.kind == "rms"
    for changes, said in (
        ({"encoder.mixer.mask.kind": "window"}, "needs the field 'mixer.0.kind': say which kind it is"),
        ({"cross.norms.kind": "rms"}, "AttentionSpec has no field 'norms'"),
        ({"kind": "rms"}, "EncoderDecoderSpec has no field 'kind'"),
    ):
        with pytest.raises(SpecError, match=said):
            spec.replace(**changes)


@pytest.mark.parametrize(("make", "word"), ILLEGAL, ids=[word for _, word in ILLEGAL])
def test_illegal_specs_fail_in_one_sentence(make, word):
    with pytest.raises(weft.WeftError, match=word) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_older_specs_are_migrated():
    class Old(VersionedSpec):
        VERSION: ClassVar[int] = 3
        MIGRATIONS: ClassVar = {
            1: lambda tree: {"breadth" if k == "size" else k: v for k, v in tree.items()},
            2: lambda tree: {"width" if k == "breadth" else k: v for k, v in tree.items()},
        }
        version: int = 3
        width: int

    assert Old.from_json('{"size": 7}').width == 7
    assert Old.from_json('{"version": 2, "breadth": 7}') == Old(width=7)
    with pytest.raises(SpecError, match="needs the field 'width'"):
        Old()


def test_declarations():
    assert weft.preset("gpt2").declares().causal and weft.preset("gpt2").declares().positions == "absolute"
    mistral = weft.preset("mistral-7b").declares()
    assert mistral.window == 4096 and mistral.reach == 32 * 4095 + 1 and mistral.positions == "relative"
    conv = weft.preset("nano-conv").declares()
    assert conv.reach == 4 * 6 + 1 and conv.positions == "none" and not conv.order_free
    assert weft.preset("nano-moe").declares().experts
    assert not weft.preset("bert-base").declares().causal
    assert weft.preset("t5-small").declares().seq2seq and weft.preset("t5-small").declares().cached
    assert weft.preset("nano-image-text").declares().prefix == 36
    assert weft.preset("vit-b16").declares().positions == "absolute"
    assert weft.build("nano-gpt").declares() == weft.preset("nano-gpt").declares()


def test_every_family_builds_on_the_meta_device_and_in_half():
    for name in weft.presets():
        module = weft.build(name, device="meta", dtype=torch.bfloat16)
        assert all(p.is_meta and p.dtype == torch.bfloat16 for p in module.parameters())
        assert not list(module.buffers())


def test_models_refuse_what_they_cannot_take():
    decoder, encoder = weft.build("nano-gpt"), weft.build("nano-encoder")
    series, vision = weft.build("nano-series"), weft.build("nano-vit")
    image_text = weft.build("nano-image-text")
    vectors = weft.build("nano-sequences")
    tokens = torch.zeros(1, 3, dtype=torch.long)
    images = torch.zeros(1, 3, 48, 48)
    state = image_text.make_state(1)
    image_text(tokens, state=state, images=images)
    for make, word in (
        (lambda: decoder(tokens[0]), r"use tokens\[None\]"),
        (lambda: decoder(tokens[:, :0]), "an empty sequence"),
        (lambda: decoder(tokens, positions=torch.arange(4)), "4 positions for 3 tokens"),
        (lambda: decoder(tokens, mask=torch.ones(2, 3)), "2 rows for 1"),
        (lambda: encoder(tokens, state=decoder.make_state(1)), "keeps no state"),
        (lambda: encoder(tokens, mask=weft.parts.masks.Graph(torch.eye(3))), "no edge for the class token"),
        (lambda: encoder(tokens, segments=tokens), "no segments"),
        (lambda: vectors(torch.zeros(1, 3)), r"vectors are \[B, T, C\]"),
        (lambda: series(torch.zeros(1, 9, 1)), "whole patches"),
        (lambda: vision(torch.zeros(1, 1, 28, 28), state=state), "keeps no state"),
        (lambda: image_text(tokens, state=state, images=images), "first call only"),
        (lambda: image_text(tokens, images=torch.zeros(1, 3, 56, 48)), "resize images to 48 x 48"),
    ):
        with pytest.raises(weft.WeftError, match=word):
            make()


def test_image_text_without_an_image_and_with_positions():
    model = weft.build("nano-image-text", dtype=torch.float64).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1)
    tokens, images = torch.randint(0, 256, (2, 7)), torch.randn(2, 3, 48, 48, dtype=torch.float64)
    alone = model(tokens).logits
    changed = tokens.clone()
    changed[:, 4] += 1
    changed %= 256
    assert torch.equal(model(changed).logits[:, :4], alone[:, :4])
    assert not torch.allclose(model(tokens, images=images).logits, alone)
    given = torch.arange(7)
    assert torch.allclose(model(tokens, given, images=images).logits, model(tokens, images=images).logits)
    assert torch.allclose(model(tokens, given).logits, alone)
    state = model.make_state(2)
    pieces = [model(piece, state=state).logits for piece in tokens.split(3, 1)]
    assert torch.allclose(torch.cat(pieces, 1), alone)


def test_vision_reads_other_sizes_and_grid_convolutions():
    spec = weft.preset("nano-vit").replace(width=24, layers=1, **{"mixer.heads": 2})
    model = weft.build(spec)
    assert model(torch.randn(2, 1, 20, 36)).hidden.shape == (2, 1 + 5 * 9, 24)
    for grid in ("none", "grid-axes", "grid-sinusoids"):
        other = weft.build(
            spec.replace(pool="mean", grid={"kind": grid}, mixer={"kind": "grid-convolution"}, stem=[5, 7], patch=1)
        )
        assert other(torch.randn(2, 1, 28, 28)).logits.shape == (2, 10)
    bag = spec.replace(pool="mean", grid={"kind": "none"})
    assert bag.declares().order_free


def test_series_distribution_and_encoder_answers():
    model = weft.build(SeriesSpec(width=16, layers=1, mixer={"kind": "attention", "heads": 2}, channels=2, patch=3))
    out = model(torch.randn(2, 15, 2))
    assert out.logits.shape == (2, 5, 6, 3)
    assert model.head.distribution(out.logits).mean.shape == (2, 5, 6)
    farther = weft.build(model.spec.replace(ahead=4))
    assert farther(torch.randn(2, 15, 2)).logits.shape == (2, 5, 4 * 6, 3)
    assert farther.state_dict().keys() == model.state_dict().keys()
    tags = weft.build(weft.preset("nano-encoder").replace(output={"kind": "per-token", "classes": 5}))
    assert tags(torch.zeros(2, 7, dtype=torch.long)).logits.shape == (2, 7, 5)
    nodes = weft.build(
        weft.preset("nano-encoder").replace(class_token=False, output={"kind": "per-token", "classes": 5})
    )
    A = torch.eye(7)
    graph = weft.parts.masks.Graph(A)
    tokens = torch.randint(0, 256, (2, 7))
    other = tokens.clone()
    other[:, 3] = (other[:, 3] + 1) % 256
    same = torch.arange(7) != 3
    assert torch.equal(nodes(tokens, mask=graph).logits[:, same], nodes(other, mask=graph).logits[:, same])


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("attention", ["none", "dot", "bilinear", "additive", "concatenated"])
@pytest.mark.parametrize("wiring", ["before", "after"])
def test_recurrent_seq2seq_variants(cell, attention, wiring):
    spec = RecurrentSeq2SeqSpec(
        vocabulary=23, target_vocabulary=19, width=7, hidden=5, cell=cell, attention=attention, wiring=wiring,
        bidirectional=attention != "dot",
    )  # fmt: skip
    model = weft.build(spec, dtype=torch.float64).eval()
    source, target = torch.randint(0, 23, (2, 11)), torch.randint(0, 19, (2, 6))
    out = model(source, target)
    alignment = out.auxiliary.get("alignment")
    if attention == "none":
        assert alignment is None
    else:
        assert alignment.shape == (2, 6, 11) and torch.allclose(
            alignment.sum(-1), torch.ones(2, 6, dtype=torch.float64)
        )
    memory, state = model.encode(source), model.make_state(2)
    pieces = [model.decode(token, memory, state=state).logits for token in target.split(1, 1)]
    assert torch.allclose(torch.cat(pieces, 1), out.logits)
    other = source.clone()
    other[:, 0] = (other[:, 0] + 1) % 23
    assert not torch.allclose(model(other, target).logits, out.logits)
    out.logits.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
