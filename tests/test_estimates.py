"""Estimates: parameters are those of the originals, FLOPs those that torch counts, state what a model really keeps."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import weft
from weft.foundation.errors import SpecError, WeftError
from weft.foundation.matrix_products import MatrixProduct, ProductView
from weft.models.build import build
from weft.models.encoder import PerTokenSpec, WordsSpec
from weft.models.estimates import estimate, unfused_attention_bytes
from weft.models.part_specs import (
    AttentionSpec,
    ConvolutionSpec,
    ExpertsSpec,
    GatedSpec,
    GridConvolutionSpec,
    LinearAttentionSpec,
    NoFeedForwardSpec,
    NoMixerSpec,
    NoNormSpec,
    RecurrenceSpec,
)
from weft.models.position_specs import NoPositionsSpec, RelativeVectorsSpec
from weft.models.products import products
from weft.parts.attention import set_backend
from weft.parts.state import KeyValueState, TensorState

CLASSICS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "llama-2-7b": 6_738_415_616,
    "llama-3.2-1b": 1_235_814_400,
    "smollm2-135m": 134_515_008,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "bert-base": 109_482_240,
    "minilm-l6": 22_713_216,
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
    "t5-small": 60_506_624,
}

# Distinct primes, so that no two axes can be mistaken for each other.
TINY = weft.preset("nano-gpt").replace(
    vocabulary=31, length=17, width=12, layers=3, mixer=AttentionSpec(heads=3, bias=False)
)
FREE = TINY.replace(positions=NoPositionsSpec())
VISION = weft.preset("nano-vit").replace(width=12, layers=2, mixer=AttentionSpec(heads=3))
ENCODER = weft.preset("nano-encoder").replace(length=13, width=12, layers=2, mixer=AttentionSpec(heads=3))
SEQ2SEQ = weft.preset("nano-seq2seq").replace(vocabulary=31, length=13, width=12, layers=2, decoder_layers=3)
SEQ2SEQ = SEQ2SEQ.replace(mixer=AttentionSpec(heads=3, key_heads=1, value_width=5))

MODELS = {
    "decoder": TINY,
    "gated": TINY.replace(feedforward=GatedSpec(hidden=19)),
    "experts": TINY.replace(feedforward=ExpertsSpec(experts=5, active=2, hidden=19)),
    "classic experts": TINY.replace(feedforward=ExpertsSpec(experts=5, active=3, hidden=19, gated=False)),
    "shared expert": TINY.replace(feedforward=ExpertsSpec(experts=5, active=2, hidden=19, shared=True)),
    "no feed-forward": TINY.replace(feedforward=NoFeedForwardSpec()),
    "grouped": TINY.replace(mixer=AttentionSpec(heads=6, key_heads=2, head_width=4, value_width=7)),
    "additive": TINY.replace(**{"mixer.score": "additive"}),
    "concatenated": TINY.replace(**{"mixer.score": "concatenated"}),
    "relative vectors": TINY.replace(positions=RelativeVectorsSpec(reach=4)),
    "relative values": TINY.replace(positions=RelativeVectorsSpec(reach=4, values=True)),
    "capped": TINY.replace(**{"mixer.score": "capped-dot", "mixer.score_cap": 3.0}),
    "linear attention": FREE.replace(mixer=LinearAttentionSpec(heads=3)),
    "identity feature": FREE.replace(mixer=LinearAttentionSpec(heads=3, feature="identity")),
    "gru": FREE.replace(mixer=RecurrenceSpec(hidden=7)),
    "rnn": FREE.replace(mixer=RecurrenceSpec(cell="rnn")),
    "convolution": FREE.replace(mixer=ConvolutionSpec(kernel=5, groups=3)),
    "no mixer": FREE.replace(mixer=NoMixerSpec()),
    "pattern": FREE.replace(mixer=(AttentionSpec(heads=3), ConvolutionSpec(kernel=3))),
    "encoder": ENCODER,
    "tagger": ENCODER.replace(output=PerTokenSpec(classes=5)),
    "words": ENCODER.replace(input=WordsSpec(vocabulary=31, characters=11, character_width=5, longest=7)),
    "two ways": ENCODER.replace(mixer=RecurrenceSpec(hidden=7, bidirectional=True)),
    "associated": ENCODER.replace(mixer=LinearAttentionSpec(heads=3)),
    "vectors": weft.preset("nano-sequences").replace(length=13, width=12, layers=2, mixer=AttentionSpec(heads=3)),
    "encoder-decoder": SEQ2SEQ,
    "vision": VISION.replace(head_hidden=7),
    "stem": VISION.replace(image=32, patch=2, stem=(5, 7)),
    "grid": VISION.replace(mixer=GridConvolutionSpec(groups=3), pool="mean"),
    "image-text": weft.preset("nano-image-text").replace(width=12, length=11, mixer=AttentionSpec(heads=3)),
    "series": weft.preset("nano-series").replace(width=12, length=11, mixer=AttentionSpec(heads=3)),
    "series far ahead": weft.preset("nano-series").replace(
        width=12, length=11, mixer=(ConvolutionSpec(kernel=7), AttentionSpec(heads=3)), ahead=5, norm=NoNormSpec()
    ),
    **{name: weft.preset(name).replace(length=11) for name in weft.presets() if name.startswith("nano-gru")},
}


def call(spec, length, **more):
    """One forward pass over one sequence, down to the answer; gives the model."""
    model = build(spec)
    set_backend(model, "explicit")
    tokens = torch.randint(0, 9, (1, length))
    if spec.family in ("encoder-decoder", "recurrent-seq2seq"):
        _ = model.decode(tokens, model.encode(tokens), **more).logits
    elif spec.family == "vision":
        _ = model(torch.randn(1, spec.channels, spec.image, spec.image)).logits
    elif spec.family == "series":
        _ = model(torch.randn(1, length * spec.patch, spec.channels), **more).logits
    elif spec.family == "image-text":
        _ = model(tokens, images=torch.randn(1, spec.channels, spec.image, spec.image), **more).logits
    elif spec.family == "encoder" and spec.input.kind == "vectors":
        _ = model(torch.randn(1, length, spec.input.channels)).logits
    elif spec.family == "encoder" and spec.input.kind == "words":
        _ = model(torch.randint(0, 9, (1, length, 1 + spec.input.longest))).logits
    else:
        _ = model(tokens, **more).logits
    return model


@pytest.mark.parametrize(("name", "parameters"), CLASSICS.items())
def test_the_classics_have_the_parameters_of_the_originals(name, parameters):
    assert estimate(weft.preset(name)).parameters == parameters


@pytest.mark.parametrize(("name", "parameters"), [("vaswani-base", 65e6), ("vaswani-big", 213e6)])
def test_the_original_transformer_is_as_large_as_published(name, parameters):
    assert estimate(weft.preset(name)).parameters == pytest.approx(parameters, rel=0.04)


def test_a_token_uses_the_active_experts_alone():
    mixtral, spec = estimate(weft.preset("mixtral-8x7b")), weft.preset("mixtral-8x7b")
    one_expert = 3 * spec.width * spec.feedforward.hidden
    assert mixtral.parameters - mixtral.active_parameters == spec.layers * 6 * one_expert
    gpt2 = estimate(weft.preset("gpt2"))
    assert gpt2.active_parameters == gpt2.parameters


@pytest.mark.parametrize("name", weft.presets())
def test_parts_and_roles_add_up(name):
    found = estimate(weft.preset(name))
    assert found.parts.total == sum(found.roles.values()) == found.parameters
    assert "other" not in found.roles
    for _, part in found.parts.walk():
        assert part.parameters >= sum(child.total for child in part.children)
    json.dumps(found.to_tree())


def test_blocks_that_are_alike_stand_once():
    blocks = [part for _, part in estimate(weft.preset("gpt2")).parts.walk() if part.name.startswith("blocks")]
    assert [(part.name, part.copies, part.parameters) for part in blocks] == [("blocks", 12, 7_087_872)]
    mixed = [part for _, part in estimate(MODELS["pattern"]).parts.walk() if part.name.startswith("blocks")]
    assert [(part.name, part.copies) for part in mixed] == [("blocks 0, 2", 2), ("blocks 1", 1)]
    groups = [(group.where, group.copies) for group in estimate(MODELS["pattern"]).groups]
    assert groups == [("block", 2), ("block", 1), ("output", 1)]


def test_a_block_has_six_matrix_products():
    block, logits = estimate(weft.preset("gpt2"), 1000).groups
    assert (block.where, block.copies, logits.where) == ("block", 12, "output")
    assert [(product.name, product.shapes) for product in block.products] == [
        ("fused QKV", "[1000 x 768] [768 x 2304] -> [1000 x 2304]"),
        ("Q K^T", "12 x [1000 x 64] [64 x 1000] -> [1000 x 1000]"),
        ("A V", "12 x [1000 x 1000] [1000 x 64] -> [1000 x 64]"),
        ("output", "[1000 x 768] [768 x 768] -> [1000 x 768]"),
        ("up", "[1000 x 768] [768 x 3072] -> [1000 x 3072]"),
        ("down", "[1000 x 3072] [3072 x 768] -> [1000 x 768]"),
    ]
    assert block.products[1].flops == 2 * 12 * 1000 * 64 * 1000


def test_gate_and_up_are_one_product_and_cross_attention_has_its_own():
    names = [product.name for product in estimate(MODELS["gated"]).groups[0].products]
    assert names == ["fused QKV", "Q K^T", "A V", "output", "gate_up", "down"]
    _, decoder, _ = estimate(SEQ2SEQ).groups
    assert [product.name for product in decoder.products if product.name.startswith("cross")] == [
        "cross Q",
        "cross KV",
        "cross Q K^T",
        "cross A V",
        "cross output",
    ]


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_that_torch_counts(name):
    spec = MODELS[name]
    found = estimate(spec)
    with FlopCounterMode(display=False) as counter:
        call(spec, found.length)
    assert found.flops_forward == counter.get_total_flops()


def test_a_bilinear_score_maps_the_query_first():
    spec = TINY.replace(**{"mixer.score": "bilinear"})
    plain, mapped = (estimate(s).groups[0].products for s in (TINY, spec))
    assert set(mapped) - set(plain) == {MatrixProduct("Q W", "Q W", 17, 4, 4, 3)}


def test_flops_per_token_and_of_training():
    found = estimate(TINY, 11)
    assert found.flops_per_token == round(found.flops_forward / 11)
    assert found.training_flops_per_token == round(3 * found.flops_forward / 11)
    assert estimate(TINY, 100).flops_per_token > found.flops_per_token


def kept_numbers(state):
    """Numbers in the state, without the slot of each key-value store that nobody sees."""
    total = 0
    for part in [*state.layers, *state.crosses]:
        if isinstance(part, KeyValueState):
            total += part.keys[:, :, :-1].numel() + part.values[:, :, :-1].numel()
        elif isinstance(part, TensorState) and part.tensors is not None:
            total += sum(tensor.numel() for tensor in part.tensors)
    return total


CACHED = ["decoder", "grouped", "linear attention", "gru", "convolution", "pattern", "encoder-decoder", "series"]


@pytest.mark.parametrize("name", [*CACHED, "image-text", "lstm"])
def test_the_state_is_as_large_as_the_one_that_a_model_keeps(name):
    spec = FREE.replace(mixer=RecurrenceSpec(cell="lstm")) if name == "lstm" else MODELS[name]
    found = estimate(spec)
    state = build(spec).make_state(1, capacity=found.tokens)
    with torch.no_grad():
        call(spec, found.length, state=state)
    kept = sum(part.numbers for part in found.state)
    assert kept == kept_numbers(state)
    assert (found.memory.state_float32, found.memory.state_2_bytes) == (4 * kept, 2 * kept)


def test_a_recurrent_translator_keeps_its_hidden_vector_and_the_source():
    kept = {part.what: part.numbers for part in estimate(weft.preset("nano-gru-additive"), 11).state}
    assert kept == {"hidden vectors": 128, "states of the source": 11 * 256}
    kept = {part.what: part.numbers for part in estimate(weft.preset("nano-gru-plain"), 11).state}
    assert kept == {"hidden vectors": 128, "states of the source": 256}


def test_models_without_a_cache_keep_nothing():
    for name in ("encoder", "vision"):
        assert estimate(MODELS[name]).memory.state_float32 == 0


def test_a_window_bounds_state_and_scores():
    spec = TINY.replace(**{"mixer.window": 5})
    near, far = estimate(spec, 17), estimate(TINY, 17)
    assert near.memory.state_float32 * 17 == far.memory.state_float32 * 5
    assert near.groups[0].where == "block (window 5)"
    assert near.groups[0].products[1].shapes == "3 x [17 x 4] [4 x 5] -> [17 x 5]"
    assert estimate(spec, 4).groups == estimate(TINY, 4).groups
    both_sides = estimate(ENCODER.replace(mixer=AttentionSpec(heads=3, window=3)))
    assert both_sides.groups[0].products[1].columns == 5
    mistral = weft.preset("mistral-7b")
    assert estimate(mistral, 10**6).memory.state_2_bytes == 32 * 4096 * 8 * (128 + 128) * 2


def test_memory_of_weights_and_training():
    memory = estimate(weft.preset("gpt2")).memory
    assert memory.weights_float32 == 4 * 124_439_808
    assert memory.weights_2_bytes == 2 * 124_439_808
    assert memory.training_adamw == 16 * 124_439_808
    assert memory.state_2_bytes == 12 * 1024 * 12 * (64 + 64) * 2


def test_attention_weights_of_the_lecture():
    assert unfused_attention_bytes(64, 100_000) / 2**30 == pytest.approx(1192.09, abs=0.01)
    assert unfused_attention_bytes(3, 5, bytes_each=4) == 300
    assert estimate(weft.preset("gpt3-175b"), 100_000).memory.unfused_attention == 96 * 10**10 * 2
    assert estimate(MODELS["gru"]).memory.unfused_attention == 0


def test_kernels_that_run_and_whether_they_store_the_weights():
    def kernels(spec, length):
        return {(use.purpose, use.kernel, use.stores_weights) for use in estimate(spec, length).kernels}

    both = ("prediction", "training")
    assert kernels(TINY, 5000) == {(purpose, "fused", False) for purpose in both}
    windowed = TINY.replace(**{"mixer.window": 7})
    assert kernels(windowed, 5000) == {(purpose, "blocked", False) for purpose in both}
    dropped = TINY.replace(**{"mixer.dropout": 0.1})
    assert kernels(dropped, 1000) == {("prediction", "fused", False), ("training", "fused", True)}
    assert kernels(dropped, 5000) == {("prediction", "fused", False), ("training", "blocked", False)}
    learned = TINY.replace(positions=RelativeVectorsSpec(reach=4))
    assert kernels(learned, 1000) == {("prediction", "fused", False), ("training", "fused", True)}
    added = TINY.replace(**{"mixer.score": "additive"})
    assert kernels(added, 1000) == {(purpose, "explicit", True) for purpose in both}
    assert estimate(MODELS["gru"]).kernels == ()
    (use, *_) = estimate(dropped, 1000).to_tree()["attention_kernels"]
    assert use == {
        "purpose": "prediction", "kernel": "fused", "reason": "the mask is a flag", "stores_weights": False,
    }  # fmt: skip


def test_the_default_length_counts_the_tokens_of_an_image():
    vit = estimate(weft.preset("vit-b16"))
    assert (vit.length, vit.tokens) == (197, 197)
    assert (estimate(ENCODER).length, estimate(ENCODER).tokens) == (13, 14)
    assert (estimate(weft.preset("gpt2")).length, estimate(weft.preset("vaswani-big")).layers) == (1024, 12)


def test_a_length_beyond_the_model_is_noted():
    assert estimate(weft.preset("gpt2")).notes == ()
    assert "learned positions hold 1,024" in estimate(weft.preset("gpt2"), 1025).notes[0]
    assert "made for 17" in estimate(TINY, 18).notes[0]


def test_impossible_sizes_are_one_sentence():
    with pytest.raises(WeftError, match="length -3, but a sequence has at least one token"):
        estimate(TINY, -3)
    with pytest.raises(SpecError, match="choose smaller numbers"):
        estimate(TINY.replace(width=3 * 10**10))


def test_estimates_are_frozen_and_unknown_parts_say_so():
    found = estimate(TINY)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.parameters = 1
    with pytest.raises(TypeError, match="ReLU"):
        products(torch.nn.ReLU(), ProductView.full(3))
