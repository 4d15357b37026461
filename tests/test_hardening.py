"""What a reviewer broke once: each stays mended."""

from __future__ import annotations

import pickle

import pytest
import torch

import weft
from weft.foundation.spec import Spec
from weft.models.build import MODEL_FAMILIES
from weft.models.decoder import DecoderSpec
from weft.models.encoder import EncoderSpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.image_text import ImageTextSpec
from weft.models.shrink import shrink
from weft.models.vision import VisionSpec
from weft.parts.attention import SelfAttention, set_backend
from weft.parts.attention_context import AttentionContext
from weft.parts.embeddings import ConvolutionStem, PatchEmbedding, SegmentEmbedding
from weft.parts.masks import Causal, Documents, Graph, Padding, Real, Window
from weft.parts.token_positions import TokenPositions

TOKENS = torch.randint(0, 31, (2, 10), generator=torch.Generator().manual_seed(0))
CPU = torch.device("cpu")


def decoder(**fields):
    numbers = {"vocabulary": 31, "width": 24, "layers": 2, "initialization": {"scheme": "fan-in", "embedding": 1.0}}
    return weft.build(DecoderSpec(**(numbers | {"mixer": {"kind": "attention", "heads": 4}} | fields))).double().eval()


def far(a, b) -> float:
    return float((a - b).detach().abs().max())


@pytest.mark.parametrize("kind", ["linear-attention", "recurrence", "convolution"])
def test_mixers_without_a_mask_refuse_rules(kind):
    model = decoder(mixer={"kind": kind}, positions={"kind": "none"})
    with pytest.raises(weft.WeftError, match=r"window\(1\) acts inside attention, but this model mixes by"):
        model(TOKENS, mask=Window(1))
    model(TOKENS, mask=Padding(torch.tensor([3, 10])))


def test_padding_and_documents_combine_with_and_only():
    real = Real(torch.ones(2, 10, dtype=torch.bool))
    for make in (lambda: real | Window(1), lambda: ~real, lambda: Causal() | (Causal() & Documents(TOKENS))):
        with pytest.raises(weft.WeftError, match="can only be combined with &"):
            make()
    with pytest.raises(weft.WeftError, match="the token positions do not"):
        AttentionContext(TokenPositions.run(0, 5, CPU), mask=Padding(torch.tensor([3])))
    with pytest.raises(weft.WeftError, match="no padding and no documents"):
        weft.build("nano-vit")(torch.zeros(2, 1, 28, 28), mask=real.real)
    with pytest.raises(weft.WeftError, match="not with a Tensor"):
        Causal() & torch.ones(2, 2)
    with pytest.raises(weft.WeftError, match="not a list"):
        decoder()(TOKENS, mask=[1, 0])
    for side in ("left", "right"):
        with pytest.raises(weft.WeftError, match=r"lengths .* for rows of 10"):
            decoder()(TOKENS, mask=Padding(torch.tensor([12, 3]), side))


def test_masks_with_data_print_at_their_own_length():
    assert str(Real(torch.ones(2, 5).bool())).count("\n") == 5
    assert str(Causal() & Documents(torch.tensor([[-1, 0, 0, 1, 1, -1]]))).count("\n") == 6


def test_a_state_is_whole_after_it_refused_something():
    for pattern in (
        [{"kind": "attention", "heads": 4, "window": 3}, {"kind": "attention", "heads": 4}],
        [{"kind": "attention", "heads": 4}, {"kind": "attention", "heads": 4, "window": 3}],
    ):
        model = decoder(mixer=pattern)
        state = model.make_state(2, capacity=9)
        model(TOKENS[:, :6], state=state)
        with pytest.raises(weft.WeftError, match="capacity"):
            model(TOKENS[:, :5], state=state)
        assert far(model(TOKENS[:, 6:8], state=state).logits, model(TOKENS[:, :8]).logits[:, 6:]) < 1e-10
    with pytest.raises(weft.WeftError, match="holds nothing"):
        decoder().make_state(1, capacity=0)


def test_a_memory_is_reordered_with_its_state():
    model = weft.build(EncoderDecoderSpec(vocabulary=31, width=24, layers=1, positions={"kind": "sinusoidal"})).double()
    real = torch.ones(2, 10, dtype=torch.bool)
    real[0, 6:] = False
    rows = torch.tensor([1, 0, 1])
    memory, state = model.encode(TOKENS, mask=real), model.make_state(2)
    with torch.no_grad():
        model.decode(TOKENS[:, :3], memory, state=state)
        state.reorder(rows)
        got = model.decode(TOKENS[rows, 3:5], memory.reorder(rows), state=state).logits
        alone = model.decode(TOKENS[:, :5], model.encode(TOKENS, mask=real)).logits[rows, 3:]
    assert far(got, alone) < 1e-10
    with pytest.raises(weft.WeftError, match="2 of source"):
        model.decode(TOKENS[:1, :3], memory)


def test_image_text_never_restarts_inside_the_image():
    spec = ImageTextSpec(vocabulary=31, width=24, layers=2, image=12, patch=4, positions={"kind": "learned"})
    model = weft.build(spec.replace(initialization={"scheme": "fan-in", "embedding": 1.0})).double().eval()
    real = torch.ones(2, 4, dtype=torch.bool)
    real[1] = False
    state = model.make_state(2)
    with torch.no_grad():
        model(TOKENS[:, :4], mask=real, state=state)
        got = model(TOKENS[:, 4:], state=state).logits[1]
        assert far(got, model(TOKENS[1:, 4:]).logits[0]) < 1e-10
        state = model.make_state(2)
        for a, b, ids in ((0, 4, 0), (4, 10, 1)):
            out = model(TOKENS[:, a:b], mask=Documents(torch.full((2, b - a), ids)), state=state).logits
        assert far(out, model(TOKENS[:, 4:]).logits) < 1e-10
    with pytest.raises(weft.WeftError, match=r"mixer.window would hide"):
        spec.replace(**{"mixer.window": 3})


def test_a_state_of_another_model_is_refused():
    plain, windowed = decoder(), decoder(mixer={"kind": "attention", "heads": 4, "window": 3})
    for state in (plain.make_state(2), decoder(layers=1, mixer=windowed.spec.mixer[0].to_tree()).make_state(2)):
        with pytest.raises(weft.WeftError, match="made by another model"):
            windowed(TOKENS, state=state)
    attention = SelfAttention(24, 4)
    with pytest.raises(weft.WeftError, match="where its keys go"):
        attention(torch.zeros(1, 2, 24), state=attention.make_state())


def test_class_token_refuses_graphs_however_combined_and_keeps_relative_positions_relative():
    graph = Graph(torch.eye(10))
    model = weft.build(EncoderSpec(width=24, layers=1, class_token=True, positions={"kind": "rotary"}))
    for mask in (graph | Window(2), ~graph, graph & Window(2)):
        with pytest.raises(weft.WeftError, match="class token"):
            model(TOKENS, mask=mask)
    assert not weft.laws.check(model).broken


def test_declarations_follow_the_decoder():
    spec = EncoderDecoderSpec(layers=1, decoder_layers=3, mixer={"kind": "attention", "heads": 4, "window": 3})
    assert spec.declares().reach == 3 * 2 + 1


def test_cross_attention_is_of_the_same_kind():
    mixer = {"kind": "attention", "heads": 2, "query_key_norm": {"kind": "rms"}, "output_bias": False}
    model = weft.build(EncoderDecoderSpec(width=16, layers=1, mixer=mixer))
    cross = model.decoder.blocks[0].cross
    assert cross.query_norm is not None and cross.key_norm is not None and cross.output.bias is None


def specs(kind):
    yield kind
    for sub in kind.__subclasses__():
        yield from specs(sub)


def test_a_field_that_may_be_none_is_none_by_default():
    """TOML has no null, so only then does a round trip keep it."""
    assert MODEL_FAMILIES
    for kind in set(specs(Spec)):
        for name, field in kind.model_fields.items():
            if type(None) in getattr(field.annotation, "__args__", ()):
                assert field.default is None, (kind, name)
    spec = VisionSpec(classes=None)
    assert VisionSpec.from_toml(spec.to_toml()) == spec == weft.read_spec(spec.to_toml())


def test_calls_of_padding_alone_and_of_no_rows():
    nothing = torch.zeros(2, 10, dtype=torch.bool)
    for name in ("nano-conv", "nano-rnn", "nano-gpt", "gpt2"):
        model = weft.build(shrink(weft.preset(name)))
        assert torch.isfinite(model(TOKENS, mask=nothing).logits).all()
        state = model.make_state(2)
        model(TOKENS[:, :3], mask=nothing[:, :3], state=state)
        with torch.no_grad():
            assert far(model(TOKENS, state=state).logits, model(TOKENS).logits) < 1e-4
        assert model(TOKENS[:0]).logits.shape[0] == 0
    mixer = decoder(mixer={"kind": "linear-attention"}, positions={"kind": "none"})
    assert torch.isfinite(mixer(TOKENS, mask=nothing).logits).all()


def test_backends_are_named_and_frozen_tables_train_around():
    model = decoder(positions={"kind": "bucketed"})
    with pytest.raises(weft.WeftError, match="no backend 'flash'"):
        set_backend(model, "flash")
    model.stack.position.requires_grad_(False)
    set_backend(model, "blocked")
    model(TOKENS).logits.sum().backward()
    assert model.stack.position.table.grad is None and model.embedding.weight.grad is not None


def test_experts_run_under_autocast():
    model = weft.build("nano-moe")
    with torch.autocast("cpu", torch.bfloat16):
        model(TOKENS[:1, :3]).logits.sum().backward()


def test_states_pass_between_modes():
    model = decoder()
    full = model(TOKENS).logits
    state = model.make_state(2)
    first = model(TOKENS[:, :4], state=state)
    twin = state.copy()
    second = model(TOKENS[:, 4:], state=state)
    (first.logits.sum() + second.logits.sum()).backward()
    assert far(second.logits, full[:, 4:]) < 1e-10
    with torch.inference_mode():
        model(TOKENS[:, 4:6], state=twin)
    with torch.no_grad():
        assert far(model(TOKENS[:, 6:], state=twin).logits, full[:, 6:]) < 1e-10
    with torch.inference_mode():
        state = model.make_state(2)
        out = model(TOKENS[:, :4], state=state)
    assert out.logits.is_inference()
    with torch.no_grad():
        model(TOKENS[:, 4:], state=state)
        quiet = model(TOKENS)
    assert not quiet.logits.requires_grad
    state.reorder([1, 0])


def test_gradients_flow_within_a_cached_call():
    model = decoder()
    model(TOKENS).logits.sum().backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model(TOKENS, state=model.make_state(2)).logits.sum().backward()
    assert all(far(plain[name], p.grad) < 1e-10 for name, p in model.named_parameters())


def test_inputs_of_other_types():
    model = decoder()
    assert far(model(TOKENS.to(torch.uint8)).logits, model(TOKENS).logits) == 0
    for make, word in (
        (lambda: model(TOKENS > 3), "whole numbers"),
        (lambda: weft.build("nano-vit")(torch.zeros(1, 1, 28, 28, dtype=torch.uint8)), "images.float"),
        (lambda: PatchEmbedding(2, 3, 4, ConvolutionStem(3, (5,)))(torch.zeros(1, 1, 8, 8)), "the model takes 3"),
        (lambda: SegmentEmbedding(2, 4)(torch.zeros(1, 3, 4), torch.tensor([[0, 1, 2]])), "0 to 1"),
        (lambda: SegmentEmbedding(2, 4)(torch.zeros(1, 3, 4), torch.zeros(1, 2)), "one per token"),
        (lambda: decoder()(TOKENS, mask=Graph(torch.ones(3, 10, 10))), "3 rows for 2"),
        (lambda: weft.build(3), "not from a int"),
        (lambda: weft.build("nano-gpt", device="cuda:3"), "no device"),
        (lambda: DecoderSpec(initialization={"std": -1.0}), "greater than or equal to 0"),
        (lambda: DecoderSpec(version=7), "version 7 is not 3"),
        (lambda: weft.read_spec("width = ["), "neither JSON nor TOML"),
        (
            lambda: weft.build("nano-gru-plain").decode(TOKENS, weft.build("nano-seq2seq").encode(TOKENS)),
            "another model's",
        ),
    ):
        with pytest.raises(weft.WeftError, match=word):
            make()
    assert weft.build("nano-vit", dtype=torch.float64)(torch.zeros(1, 1, 28, 28)).logits.dtype == torch.float64
    assert weft.build({"family": "decoder", "layers": 1}).spec.layers == 1


def test_models_pickle_and_share_the_embedding_when_it_is_replaced():
    model = decoder(mixer={"kind": "linear-attention", "feature": "identity"}, positions={"kind": "none"})
    again = pickle.loads(pickle.dumps(model))
    assert far(again(TOKENS).logits, model(TOKENS).logits) == 0
    torch.nn.init.zeros_(model.embedding.weight)
    assert not model(TOKENS).logits.any()
