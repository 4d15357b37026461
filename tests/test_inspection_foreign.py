"""Watching other libraries: maps equal those of their eager implementation, and no bit changes."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weft
from weft.inspection.analysis.lens import logit_lens, streams
from weft.inspection.interventions.effects import head_effects, logit_difference
from weft.inspection.recording import function_overrides as overrides
from weft.inspection.recording.watch import watch
from weft.parts.scores import ScaledDot

transformers = pytest.importorskip("transformers")
TOKENS = torch.tensor([[3, 7, 11, 2, 5, 9, 8], [4, 1, 6, 10, 12, 2, 3]])


def tiny(kind: str, implementation: str = "sdpa"):
    sizes = {
        "GPT2": {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 37, "n_positions": 29},
        "Llama": {"num_key_value_heads": 2, "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2},
        "Bert": {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "max_position_embeddings": 29},
        "Albert": {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 3, "embedding_size": 7},
        "Bart": {"d_model": 12, "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_layers": 2,
                 "decoder_layers": 2, "encoder_ffn_dim": 17, "decoder_ffn_dim": 17, "max_position_embeddings": 31},
        "T5": {"d_model": 12, "num_heads": 3, "d_kv": 5, "num_layers": 2, "d_ff": 17},
        "ViT": {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "image_size": 12, "patch_size": 4},
    }[kind]  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(
        **{"vocab_size": 37, "intermediate_size": 19, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | sizes
    )
    config._attn_implementation = implementation
    name = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM", "Bart": "BartForConditionalGeneration"}
    torch.manual_seed(0)
    module = getattr(transformers, name.get(kind, f"{kind}Model"))(config).eval()
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                weight.mul_(
                    2 if kind == "T5" else 8
                )  # tiny models start with nearly uniform attention, which would show little
    return module


def asked(kind: str) -> dict:
    if kind == "ViT":
        return {"pixel_values": torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))}
    if kind in ("Bart", "T5"):
        return {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :5]}
    real = torch.ones_like(TOKENS)
    real[1, 5:] = 0
    return {"input_ids": TOKENS, "attention_mask": real}


@pytest.mark.parametrize("kind", ["GPT2", "Llama", "Bert", "Albert", "Bart", "T5", "ViT"])
@torch.no_grad()
def test_maps_are_those_of_the_eager_implementation(kind):
    fused, eager = tiny(kind), tiny(kind, "eager")
    eager.load_state_dict(fused.state_dict())
    given = asked(kind)
    plain = fused(**given)[0]
    with watch(fused) as seen:
        watched = fused(**given)[0]
    assert torch.equal(plain, watched)
    assert not overrides._overrides
    with watch(eager) as open_seen:
        expected = eager(**given, output_attentions=True)
    found = {"self": "attentions"}
    if kind in ("Bart", "T5"):
        found = {"encoder": "encoder_attentions", "self": "decoder_attentions", "cross": "cross_attentions"}
    assert set(seen.kinds) == set(found)
    for name, key in found.items():
        assert seen.call().layers(name) == list(range(len(expected[key])))
        for layer, weights in enumerate(expected[key]):
            for b in range(2):
                rows = slice(0, 5) if kind in ("Llama", "GPT2", "Bert", "Albert") else slice(None)
                own = seen.attention(layer, batch=b, kind=name, rows=rows)
                assert torch.allclose(own, weights[b][:, rows], atol=1e-6)
                assert torch.allclose(own.sum(-1), torch.ones(()), atol=1e-5)
                assert torch.allclose(open_seen.attention(layer, batch=b, kind=name, rows=rows), own, atol=1e-6)


@pytest.mark.parametrize("kind", ["GPT2", "Llama", "Bart"])
@torch.no_grad()
def test_a_foreign_generation_is_one_map(kind):
    module = tiny(kind)
    how = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    plain = module.generate(TOKENS[:1], **how)
    with watch(module) as seen:
        written = module.generate(TOKENS[:1], **how)
    assert torch.equal(plain, written)
    assert len(seen.calls) == 1
    with watch(module) as full:
        if kind == "Bart":
            module(input_ids=TOKENS[:1], decoder_input_ids=written[:, :-1])
        else:
            module(written[:, :-1])
    for name in seen.kinds:
        assert torch.allclose(seen.attention(1, kind=name), full.attention(1, kind=name), atol=1e-6)


def test_two_forwards_are_two_calls():
    module = tiny("GPT2")
    with watch(module) as seen:
        module(TOKENS)
        module(TOKENS[:, :4])
    assert [call.sizes()[2] for call in seen.calls] == [7, 4]


LAYERS = {
    "attention": lambda: nn.MultiheadAttention(12, 4, batch_first=True),
    "attention, time first": lambda: nn.MultiheadAttention(12, 4),
    "attention, extra key": lambda: nn.MultiheadAttention(
        12, 4, batch_first=True, add_bias_kv=True, add_zero_attn=True
    ),
    "attention, other widths": lambda: nn.MultiheadAttention(12, 4, batch_first=True, kdim=7, vdim=5),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_multihead_attention(name, weights, masked):
    part = LAYERS[name]().eval()
    first = part.batch_first
    x = torch.randn(2, 7, 12)
    key, value = (x, x) if "widths" not in name else (torch.randn(2, 7, 7), torch.randn(2, 7, 5))
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    masks = {"attn_mask": torch.ones(7, 7, dtype=torch.bool).triu(1), "key_padding_mask": padding} if masked else {}
    given = (x, key, value) if first else tuple(t.transpose(0, 1) for t in (x, key, value))
    given = (given[0], given[0], given[0]) if key is x else given
    with torch.no_grad():
        expected = part(*given, need_weights=True, average_attn_weights=False, **masks)[1]
        plain = part(*given, need_weights=weights, **masks)[0]
        with watch(part) as seen:
            y, _ = part(*given, need_weights=weights, **masks)
    assert torch.equal(plain, y)
    assert seen.kinds == ["cross" if "widths" in name else "self"]
    for b in range(2):
        assert torch.allclose(seen.attention(batch=b), expected[b], atol=1e-6)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_torchs_fast_path_stays_on_and_is_seen(norm_first, padded):
    layer = nn.TransformerEncoderLayer(12, 4, 17, batch_first=True, norm_first=norm_first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=padded and not norm_first).eval()
    x = torch.randn(2, 7, 12)
    padding = None
    if padded:
        padding = torch.zeros(2, 7, dtype=torch.bool)
        padding[1, 5:] = True
    calls = []
    original = torch._transformer_encoder_layer_fwd
    torch._transformer_encoder_layer_fwd = lambda *a: calls.append(1) or original(*a)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
            plain = encoder(x, src_key_padding_mask=padding)
            fast = len(calls)
            with watch(encoder) as seen:
                y = encoder(x, src_key_padding_mask=padding)
    finally:
        torch._transformer_encoder_layer_fwd = original
    assert torch.equal(plain, y)
    assert fast == 2 and len(calls) == 4
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with watch(encoder) as slow, torch.no_grad():
            encoder(x, src_key_padding_mask=padding)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    for level in range(2):
        for b in range(2):
            rows = slice(0, 5) if padded else slice(None)
            assert torch.allclose(
                seen.attention(level, batch=b, rows=rows), slow.attention(level, batch=b, rows=rows), atol=1e-5
            )


def test_torchs_encoder_decoder_has_three_kinds():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = nn.Transformer(12, 4, 2, 2, 17, batch_first=True).eval()
    with torch.no_grad(), watch(module) as seen:
        module(torch.randn(1, 7, 12), torch.randn(1, 5, 12))
    assert set(seen.kinds) == {"self", "cross", "encoder"}
    assert seen.sizes(kind="cross") == (1, 4, 5, 7)
    assert seen.call().layers("encoder") == [0, 1]


class OwnAttention(nn.Module):
    """As a student writes it: q, k, v by one product, softmax in the open or torch's kernel."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.qkv, self.fused = nn.Linear(12, 36), fused

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (3, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = (q @ k.transpose(-2, -1) / 2).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
        return scores.softmax(-1) @ v


def test_a_students_module_open_or_fused():
    one, two = OwnAttention(True), OwnAttention(False)
    two.load_state_dict(one.state_dict())
    x = torch.randn(2, 7, 12)
    with watch(one) as fused, watch(two) as opened:
        one(x)
        two(x)
    assert torch.allclose(fused.attention(batch=1), opened.attention(batch=1), atol=1e-6)
    assert torch.allclose(fused.scores(batch=1).tril(), opened.scores(batch=1).tril(), atol=1e-5)
    assert len(fused.calls) == len(opened.calls) == 1


def test_heads_of_foreign_models_can_be_switched_off():
    module = tiny("GPT2")
    effects = head_effects(module, lambda: module(TOKENS[:1]), logit_difference(3, 5))
    assert effects.table.shape == (2, 3)
    assert (effects.table != 0).all()


def test_streams_of_another_library():
    config = transformers.GPT2Config(n_embd=12, n_layer=2, n_head=3, vocab_size=37, n_positions=29)
    module = transformers.GPT2LMHeadModel(config).double().eval()
    with streams(module) as found:
        out = module(TOKENS)
    assert torch.allclose(logit_lens(found, top=3).probabilities[-1], out.logits[0].softmax(-1).topk(3).values)
    assert len(found.states) == 3


def gpt2_pair(**changes) -> tuple[nn.Module, nn.Module]:
    """Ours and transformers' GPT-2 with the same weights."""
    config = transformers.GPT2Config(
        n_embd=12, n_layer=2, n_head=3, vocab_size=37, n_positions=29, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        **changes,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    spec = weft.preset("gpt2").replace(vocabulary=37, length=29, width=12, layers=2, **{"mixer.heads": 3})
    ours = weft.build(spec, dtype=torch.float64).eval()
    gpt = theirs.transformer
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)).double() * 0.2)
        ours.embedding.weight.copy_(gpt.wte.weight)
        ours.input.position.table.copy_(gpt.wpe.weight)
        for own, other in zip(ours.stack.blocks, gpt.h, strict=True):
            for norm, source in ((own.mixer_norm, other.ln_1), (own.feedforward_norm, other.ln_2)):
                norm.gamma.copy_(source.weight)
                norm.beta.copy_(source.bias)
            pairs = [
                (own.mixer.qkv, other.attn.c_attn), (own.mixer.output, other.attn.c_proj),
                (own.feedforward.up, other.mlp.c_fc), (own.feedforward.down, other.mlp.c_proj),
            ]  # fmt: skip
            for linear, source in pairs:
                linear.weight.copy_(source.weight.T)
                linear.bias.copy_(source.bias)
        ours.stack.norm.gamma.copy_(gpt.ln_f.weight)
        ours.stack.norm.beta.copy_(gpt.ln_f.bias)
    return ours, theirs


def test_two_libraries_that_agree():
    assert weft.locate_divergence(*gpt2_pair(), TOKENS).agree


@pytest.mark.parametrize(
    ("changes", "cause", "layer"),
    [
        ({"layer_norm_epsilon": 1e-3}, "norm epsilon", 0),
        ({"activation_function": "gelu"}, "GELU kind", 0),
        ({"activation_function": "relu"}, "activation", 0),
        ({"scale_attn_weights": False}, "score scale", 0),
        ({"scale_attn_by_inverse_layer_idx": True}, "score scale", 1),
    ],
)
def test_two_libraries_part(changes, cause, layer):
    found = weft.locate_divergence(*gpt2_pair(**changes), TOKENS)
    assert found.cause == cause, str(found)
    assert found.layer == layer


def test_two_libraries_part_by_hand():
    ours, theirs = gpt2_pair()
    with torch.no_grad():
        theirs.transformer.wpe.weight.copy_(theirs.transformer.wpe.weight.roll(1, 0))
    found = weft.locate_divergence(ours, theirs, TOKENS)
    assert found.cause == "position offset", str(found)
    ours, theirs = gpt2_pair()
    with torch.no_grad():
        theirs.transformer.h[1].mlp.c_fc.bias.zero_()
    assert weft.locate_divergence(ours, theirs, TOKENS).cause == "missing bias"
    ours, theirs = gpt2_pair()
    ours.stack.blocks[1].mixer.score = ScaledDot()
    assert weft.locate_divergence(ours, theirs, TOKENS).agree
