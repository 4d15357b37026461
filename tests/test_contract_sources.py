"""The contract of encoder-decoders over every kind of source and every pair of mixers, judged in float64."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import weft
from subjects import VOCABULARY, Subject, build
from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.estimates import estimate
from weft.models.sources import PatchSourceSpec, SeriesSourceSpec, TokenSourceSpec, VectorSourceSpec
from weft.parts.masks import Padding

CLOSE = 1e-10
B, T, S = 3, 11, 13

SOURCES = {
    "tokens": TokenSourceSpec(),
    "vectors": VectorSourceSpec(channels=5, length=41),
    "series": SeriesSourceSpec(channels=5, patch=3, length=41),
    "patches": PatchSourceSpec(image=12, patch=4),
}
MIXERS = {
    "attention": {"kind": "attention", "heads": 3},
    "linear-attention": {"kind": "linear-attention", "heads": 3},
    "recurrence": {"kind": "recurrence", "hidden": 17},
    "convolution": {"kind": "convolution", "kernel": 3},
    "none": {"kind": "none"},
}
# (source, the encoder's mixer, the decoder's); each kind meets each other at least once.
CASES = [
    *((source, mixer, mixer) for source in SOURCES for mixer in MIXERS),
    *(("series", "attention", mixer) for mixer in MIXERS if mixer != "attention"),
    *(("tokens", mixer, "attention") for mixer in MIXERS if mixer != "attention"),
]


@functools.cache
def subject(source: str, encoder: str, decoder: str) -> Subject:
    spec = EncoderDecoderSpec(
        source=SOURCES[source],
        vocabulary=VOCABULARY,
        length=41,
        width=30,
        layers=2,
        mixer=MIXERS[decoder],
        encoder={"width": 36, "mixer": MIXERS[encoder]},
        cross={"heads": 5},
        positions={"kind": "learned"},
        feedforward={"kind": "classic", "hidden": 37},
        initialization={"scheme": "fan-in", "embedding": 1.0},
    )
    return Subject(build(spec))


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().abs().max())


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_decoder_never_looks_ahead_and_always_sees_the_source(case):
    one = subject(*case)
    content = one.content(B, T)
    before = one.run(content)
    for position in (1, 7):
        other = content.clone()
        other[:, position] = (content[:, position] + 1) % VOCABULARY
        after = one.run(other)
        assert gap(before[:, :position], after[:, :position]) == 0.0
        assert gap(before[:, position], after[:, position]) > 1e-6
    source = one.source(B)
    changed = source.clone()
    changed[:, -1] = changed[:, -1] + 1 if source.is_floating_point() else (source[:, -1] + 1) % VOCABULARY
    difference = (one.run(content, source=changed) - before).detach().abs().amax((0, 2))
    assert float(difference.min()) > 1e-9


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_cached_equals_full_and_company_changes_nothing(case):
    one = subject(*case)
    content, source = one.content(B, T), one.source(B)
    full = one.run(content)
    state = one.module.make_state(B)
    pieces = [one.run(content[:, a:b], state=state) for a, b in ((0, 4), (4, 5), (5, 6), (6, T))]
    assert gap(torch.cat(pieces, 1), full) < CLOSE
    others, company = content.clone(), source.clone()
    others[1:], company[1:] = one.content(B, T, seed=5)[1:], one.source(B, seed=9)[1:]
    assert gap(one.run(others, source=company)[0], full[0]) == 0.0
    assert gap(one.run(content[:1], source=source[:1]), full[:1]) < CLOSE


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", [case for case in CASES if case[0] != "patches"], ids="-".join)
def test_padding_of_the_source_changes_nothing(case, side):
    one = subject(*case)
    source, target, steps = one.source(2), one.content(2, T), one.steps
    padded = one.source(2, 17, seed=8)
    padded[0, slice((17 - S) * steps, None) if side == "left" else slice(0, S * steps)] = source[0]
    memory = one.module.encode(padded, mask=Padding(torch.tensor([S, 17]), side))
    alone = one.module.decode(target[:1], one.module.encode(source[:1])).logits
    assert gap(one.module.decode(target, memory).logits[:1], alone) < CLOSE


@pytest.mark.parametrize("case", [case for case in CASES if case[1] == case[2]], ids="-".join)
def test_all_laws_hold(case):
    spec = subject(*case).spec.replace(initialization={"scheme": "fan-in"})
    report = weft.laws.check(weft.build(spec))
    assert not [finding for finding in report.findings if finding.verdict == "broken"]
    held = {finding.law for finding in report.findings if finding.verdict == "holds"}
    assert {"source seen", "causality"} <= held
    assert ("source padding" in held) == (case[0] != "patches")


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("source", SOURCES)
def test_generation_in_company_is_that_of_each_alone(source, mixer):
    """Sources of different lengths are padded together; greedy and beam search find what each finds alone."""
    one = subject(source, mixer, mixer)
    rows = [row[: length * one.steps] for row, length in zip(one.source(B), (S, 5, 9), strict=True)]
    if source == "patches":
        rows = one.source(B)
    elif source == "tokens":
        rows = [row.tolist() for row in rows]
    request = GenerationRequest([[1]] * B, max_tokens=7, source=rows)
    together, searched = generate(one.module, request), beam_search(one.module, request, Beam(3))
    for number in range(B):
        alone = GenerationRequest([[1]], max_tokens=7, source=rows[number : number + 1])
        assert generate(one.module, alone)[0].tokens == together[number].tokens
        assert beam_search(one.module, alone, Beam(3))[0][0].tokens == searched[number][0].tokens


def test_an_encoder_may_have_any_width_and_both_share_an_embedding_where_they_can():
    same = weft.build(EncoderDecoderSpec(width=32, layers=1))
    other = weft.build(EncoderDecoderSpec(width=32, layers=1, encoder={"width": 48}))
    assert same.target_embedding is None and "target_embedding.weight" not in same.state_dict()
    assert other.embedding.weight.shape == (256, 48) and other.target_embedding.weight.shape == (256, 32)
    assert other.decoder.blocks[0].cross.key_value.in_features == 48
    assert estimate(other.spec).parameters == sum(p.numel() for p in other.parameters())


def test_a_grid_convolution_mixes_the_patches_of_an_image():
    spec = EncoderDecoderSpec(
        source=SOURCES["patches"],
        width=30,
        layers=1,
        mixer=MIXERS["attention"],
        encoder={"mixer": {"kind": "grid-convolution"}},
    )
    model = weft.build(spec).double().eval()
    images = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    assert model(images, torch.randint(0, 9, (2, 5))).logits.shape == (2, 5, 256)


def test_an_image_of_another_size_resizes_the_grid():
    one = subject("patches", "attention", "attention")
    memory = one.module.encode(torch.randn(1, 3, 20, 16, dtype=torch.float64))
    assert memory.hidden.shape == (1, 5 * 4, 36)


def test_a_bidirectional_encoder_reads_ahead_and_its_decoder_does_not():
    spec = subject("vectors", "recurrence", "recurrence").spec
    two_ways = spec.replace(**{"encoder.mixer.bidirectional": True})
    assert two_ways.encoder.mixer[0].bidirectional and not two_ways.mixer[0].bidirectional
    one = Subject(build(two_ways))
    memory = one.module.encode(one.source(1)).hidden
    changed = one.source(1)
    changed[:, -1] += 1
    assert float((one.module.encode(changed).hidden - memory).detach().abs().amax(-1).min()) > 1e-9


def test_a_cost_counts_the_patches_and_the_vectors_of_the_source():
    image = estimate(subject("patches", "attention", "attention").spec, 20)
    found = {product.name: product for group in image.groups for product in group.products if group.where == "input"}
    assert (found["patches"].rows, found["patches"].inner, found["patches"].columns) == (9, 48, 36)
    cross = next(p for group in image.groups for p in group.products if p.name == "cross KV")
    assert (cross.rows, cross.inner) == (9, 36)
    series = estimate(subject("series", "attention", "attention").spec, 20)
    found = {product.name: product for group in series.groups for product in group.products if group.where == "input"}
    assert (found["vectors"].rows, found["vectors"].inner) == (20, 15)


def test_a_last_patch_that_is_not_full_is_filled_with_zeros():
    source = SOURCES["series"]
    rows = [torch.randn(7, 5), torch.randn(2, 5)]
    values, real = source.collate(rows)
    assert values.shape == (2, 9, 5) and real.tolist() == [[True] * 3, [True, False, False]]
    assert torch.equal(values[1, :2], rows[1]) and not values[1, 2:].any()
    assert source.collate([np.ones((6, 5), np.float32)])[1] is None


@pytest.mark.parametrize(
    ("source", "given", "word"),
    [
        ("tokens", [torch.randn(7, 5)], "source is tokens"),
        ("vectors", [[1, 2, 3]], "reads vectors: give floating-point numbers"),
        ("vectors", [torch.randn(7, 4)], r"shape \(7, 4\)"),
        ("vectors", [torch.randn(0, 5)], r"shape \(0, 5\)"),
        ("series", torch.ones(1, 6, 5, dtype=torch.long), "reads series"),
        ("patches", torch.randn(1, 4, 12, 12), "4 channels, but the model takes 3"),
        ("patches", torch.randn(1, 3, 13, 12), "does not divide into patches"),
        ("patches", torch.randn(1, 7, 5), "images are"),
    ],
)
def test_sources_of_another_kind_are_refused(source, given, word):
    with pytest.raises(weft.WeftError, match=word):
        generate(subject(source, "attention", "attention").module, GenerationRequest([[1]], max_tokens=3, source=given))


def test_calls_that_make_no_sense_are_refused():
    image, series = (subject(kind, "attention", "attention").module for kind in ("patches", "series"))
    pictures = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    with pytest.raises(weft.WeftError, match="no padding"):
        image.encode(pictures, mask=torch.ones(2, 9, dtype=torch.bool))
    with pytest.raises(weft.WeftError, match="give images as `source`"):
        generate(image, GenerationRequest([[1]] * 2, max_tokens=3, source=pictures, images=pictures))
    with pytest.raises(weft.WeftError, match="multiple of patch 3"):
        series.encode(torch.randn(1, 7, 5, dtype=torch.float64))
    with pytest.raises(weft.WeftError, match="this model's source is series"):
        series.encode(torch.ones(1, 6, dtype=torch.long))
