"""Models against tiny random ones of `transformers` with the same weights: whole, cached, padded, and their gradients.

Within 1e-5 in float32 everywhere, within 1e-10 in float64 where the peer keeps it: Llama's kin and T5 compute norms
and angles in float32 whatever they are given, so for these `wide_peers` widens them.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import (
    BertConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen3Config,
    T5Config,
    ViTConfig,
)
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.t5 import modeling_t5

import peers
import weft
from weft.models.decoder import DecoderSpec
from weft.models.encoder import EncoderSpec, PooledSpec, TokensSpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.part_specs import (
    AttentionSpec,
    ClassicSpec,
    ExpertsSpec,
    GatedSpec,
    LayerNormSpec,
    LinearHeadSpec,
    RMSNormSpec,
    TiedHeadSpec,
)
from weft.models.position_specs import (
    BucketedSpec,
    LearnedSpec,
    LinearScalingSpec,
    Llama3ScalingSpec,
    NTKScalingSpec,
    RotarySpec,
)
from weft.models.vision import VisionSpec
from weft.parts.attention import set_backend
from weft.parts.masks import Documents
from weft.parts.relative import t5_buckets
from weft.parts.state import FIRST_CAPACITY, RING_SLACK

B, C, H, G, K, F, L = 3, 61, 6, 2, 10, 37, 2
D = H * 7  # Llama and its kin have heads of K all the same
WINDOW = 5
LONG = 83
assert LONG > FIRST_CAPACITY and LONG > WINDOW + RING_SLACK, "the text has to outgrow the first slots and the ring"

WITHIN = {torch.float32: 1e-5, torch.float64: 1e-10}
both_types = pytest.mark.parametrize("dtype", WITHIN, ids=str)


def agree(ours: Tensor, theirs: Tensor, within: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, atol=within, rtol=0)


def draw(*shape: int, below: int = C, seed: int = 1) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


def peer(kind: type, config: Any, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> nn.Module:
    """Their model, with every weight random."""
    theirs = kind._from_config(config, attn_implementation=attention).eval()
    peers.randomize(theirs)
    return theirs.to(dtype)


def twin(spec: Any, weights: Callable[[nn.Module], peers.Weights], theirs: nn.Module) -> nn.Module:
    """Our model with their weights."""
    ours = weft.build(spec, dtype=next(theirs.parameters()).dtype).eval()
    peers.load(ours, weights(theirs), theirs)
    return ours


# --- decoders ---

SIZES = {
    "vocab_size": C,
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "head_dim": K,
    "rms_norm_eps": 1e-3,
    "bos_token_id": None,
    "eos_token_id": None,
    "max_position_embeddings": 2 * LONG,
}
BASE = 500.0


def rope(kind: str = "default", **numbers: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": BASE, **numbers}}


def llama_spec(**fields: Any) -> DecoderSpec:
    numbers = {
        "vocabulary": C,
        "length": 2 * LONG,
        "width": D,
        "layers": L,
        "mixer": AttentionSpec(heads=H, key_heads=G, head_width=K, bias=False),
        "feedforward": GatedSpec(hidden=F),
        "positions": RotarySpec(base=BASE),
        "norm": RMSNormSpec(epsilon=1e-3),
        "head": LinearHeadSpec(),
    }
    return DecoderSpec(**(numbers | fields))


def gpt2(dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> tuple[nn.Module, nn.Module]:
    config = GPT2Config(
        vocab_size=C, n_positions=97, n_embd=D, n_layer=L, n_head=H, n_inner=F, layer_norm_epsilon=1e-3,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    spec = DecoderSpec(
        vocabulary=C,
        length=97,
        width=D,
        layers=L,
        mixer=AttentionSpec(heads=H),
        feedforward=ClassicSpec(hidden=F, activation="gelu-tanh"),
        positions=LearnedSpec(),
        norm=LayerNormSpec(epsilon=1e-3),
    )
    theirs = peer(transformers.GPT2LMHeadModel, config, dtype, attention)
    return twin(spec, peers.gpt2, theirs), theirs


def llama(spec: DecoderSpec, **more: Any) -> tuple[nn.Module, nn.Module]:
    theirs = peer(transformers.LlamaForCausalLM, LlamaConfig(**(SIZES | rope() | more)))
    return twin(spec, peers.llama, theirs), theirs


def llama_plain() -> tuple[nn.Module, nn.Module]:
    return llama(llama_spec())


def llama_tied_with_biases() -> tuple[nn.Module, nn.Module]:
    mixer = AttentionSpec(heads=H, key_heads=G, head_width=K, bias=True)
    feedforward = GatedSpec(hidden=F, bias=True)
    spec = llama_spec(mixer=mixer, feedforward=feedforward, head=TiedHeadSpec())
    return llama(spec, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)


def llama_linear() -> tuple[nn.Module, nn.Module]:
    return llama(
        llama_spec(positions=RotarySpec(base=BASE, scaling=LinearScalingSpec(factor=3.0))), **rope("linear", factor=3.0)
    )


def llama_3() -> tuple[nn.Module, nn.Module]:
    # Of these waves (6, 22, 75, 262, 907 tokens) two are short, one is between, two are long.
    numbers = {"factor": 7.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
    scaling = Llama3ScalingSpec(factor=7.0, low=1.0, high=3.0, original=131)
    spec = llama_spec(positions=RotarySpec(base=BASE, scaling=scaling))
    return llama(spec, **rope("llama3", original_max_position_embeddings=131, **numbers))


def llama_ntk() -> tuple[nn.Module, nn.Module]:
    # Their factor is for a length: base * (f * length / trained - (f - 1))^(R/(R-2)), past the trained length.
    spec = llama_spec(positions=RotarySpec(base=BASE, scaling=NTKScalingSpec(factor=2.0 * LONG / 41 - 1.0)))
    return llama(spec, **rope("dynamic", factor=2.0), max_position_embeddings=41)


def mistral() -> tuple[nn.Module, nn.Module]:
    mixer = AttentionSpec(heads=H, key_heads=G, head_width=K, bias=False, window=WINDOW)
    sizes = SIZES | rope() | {"sliding_window": WINDOW}
    theirs = peer(transformers.MistralForCausalLM, MistralConfig(**sizes))
    return twin(llama_spec(mixer=mixer), peers.llama, theirs), theirs


def qwen3() -> tuple[nn.Module, nn.Module]:
    mixer = AttentionSpec(heads=H, key_heads=G, head_width=K, bias=False, query_key_norm=RMSNormSpec(epsilon=1e-3))
    theirs = peer(transformers.Qwen3ForCausalLM, Qwen3Config(**(SIZES | rope())))
    return twin(llama_spec(mixer=mixer), peers.llama, theirs), theirs


def qwen3_mixed_windows() -> tuple[nn.Module, nn.Module]:
    """A pattern of layers: the first sees all, the second a window."""
    common = {"heads": H, "key_heads": G, "head_width": K, "bias": False, "query_key_norm": RMSNormSpec(epsilon=1e-3)}
    mixers = (AttentionSpec(**common), AttentionSpec(**common, window=WINDOW))
    sizes = SIZES | rope() | {"use_sliding_window": True, "sliding_window": WINDOW}
    kinds = ["full_attention", "sliding_attention"]
    theirs = peer(transformers.Qwen3ForCausalLM, Qwen3Config(**sizes, layer_types=kinds))
    return twin(llama_spec(mixer=mixers), peers.llama, theirs), theirs


def mixtral(layers: int = L) -> tuple[nn.Module, nn.Module]:
    experts = {"num_local_experts": 5, "num_experts_per_tok": 3, "experts_implementation": "eager"}
    config = MixtralConfig(**(SIZES | rope() | experts | {"num_hidden_layers": layers}))
    theirs = peer(transformers.MixtralForCausalLM, config)
    spec = llama_spec(layers=layers, feedforward=ExpertsSpec(experts=5, active=3, hidden=F))
    return twin(spec, peers.llama, theirs), theirs


DECODERS = {
    "gpt2": gpt2,
    "llama": llama_plain,
    "llama, tied, with biases": llama_tied_with_biases,
    "llama, linear scaling": llama_linear,
    "llama 3": llama_3,
    "mistral": mistral,
    "qwen3": qwen3,
    "qwen3, mixed windows": qwen3_mixed_windows,
    "mixtral": mixtral,
}
each_decoder = pytest.mark.parametrize("name", DECODERS)


def left_padded(lengths: list[int], length: int) -> tuple[Tensor, Tensor]:
    """(attention_mask, position_ids) as `transformers` wants them."""
    mask = (torch.arange(length) >= length - torch.tensor(lengths)[:, None]).long()
    return mask, (mask.cumsum(1) - 1).clamp(min=0)


@pytest.fixture
def wide_peers(monkeypatch):
    """Their norms and unscaled angles in the type of the model."""

    def normalize(self, x):
        return nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)

    def turn(self, x, position_ids):
        angles = position_ids[..., None] * BASE ** -(torch.arange(0, K, 2, dtype=x.dtype) / K)
        return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()

    monkeypatch.setattr(modeling_t5.T5LayerNorm, "forward", normalize)
    for module, name in ((modeling_llama, "Llama"), (modeling_mistral, "Mistral"), (modeling_qwen3, "Qwen3")):
        monkeypatch.setattr(getattr(module, f"{name}RMSNorm"), "forward", normalize)
        monkeypatch.setattr(getattr(module, f"{name}RotaryEmbedding"), "forward", turn)


@torch.no_grad()
@each_decoder
@pytest.mark.parametrize("backend", ["auto", "explicit", "blocked"])
def test_logits(name, backend):
    ours, theirs = DECODERS[name]()
    set_backend(ours, backend)
    tokens = draw(B, LONG)
    agree(ours(tokens).logits, theirs(tokens).logits)


@torch.no_grad()
def test_ntk_scaling_is_the_dynamic_one_at_one_length():
    ours, theirs = llama_ntk()
    tokens = draw(B, LONG)
    agree(ours(tokens).logits, theirs(tokens).logits)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_gpt2_in_float64(attention):
    ours, theirs = gpt2(torch.float64, attention)
    tokens = draw(B, LONG)
    agree(ours(tokens).logits, theirs(tokens).logits, 1e-10)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "llama, tied, with biases", "mistral", "qwen3", "qwen3, mixed windows"])
def test_llama_and_its_kin_in_float64(name, wide_peers):
    ours, theirs = (model.double() for model in DECODERS[name]())
    tokens = draw(B, LONG)
    agree(ours(tokens).logits, theirs(tokens).logits, 1e-10)


@torch.no_grad()
@each_decoder
def test_steps_with_a_state_give_the_logits_of_the_whole(name):
    ours, theirs = DECODERS[name]()
    tokens = draw(B, LONG)
    state = ours.make_state(B)
    steps = [ours(tokens[:, t : t + 1], state=state).logits for t in range(LONG)]
    agree(torch.cat(steps, 1), theirs(tokens).logits)


@torch.no_grad()
@each_decoder
@pytest.mark.parametrize("cuts", [(7,), (1, 67, 80), (71, 72)], ids=str)
def test_chunks_with_a_state_give_the_logits_of_the_whole(name, cuts):
    ours, theirs = DECODERS[name]()
    tokens = draw(B, LONG)
    state = ours.make_state(B, capacity=LONG)
    edges = (0, *cuts, LONG)
    chunks = [ours(tokens[:, a:b], state=state).logits for a, b in pairwise(edges)]
    agree(torch.cat(chunks, 1), theirs(tokens).logits)


@torch.no_grad()
@each_decoder
@pytest.mark.parametrize("backend", ["auto", "explicit", "blocked"])
def test_left_padding(name, backend):
    ours, theirs = DECODERS[name]()
    set_backend(ours, backend)
    length = 13
    mask, positions = left_padded([13, 7, 2], length)
    tokens, real = draw(B, length), mask.bool()
    expected = theirs(tokens, attention_mask=mask, position_ids=positions).logits
    agree(ours(tokens, mask=mask).logits[real], expected[real])


@torch.no_grad()
@each_decoder
def test_right_padding(name):
    ours, theirs = DECODERS[name]()
    mask = (torch.arange(13) < torch.tensor([13, 7, 2])[:, None]).long()
    tokens, real = draw(B, 13), mask.bool()
    agree(ours(tokens, mask=mask).logits[real], theirs(tokens, attention_mask=mask).logits[real])


@torch.no_grad()
@each_decoder
@pytest.mark.parametrize("prompt", [11, 71])
def test_left_padded_prompt_then_steps(name, prompt):
    ours, theirs = DECODERS[name]()
    lengths = [prompt, 7, 2]
    mask, positions = left_padded([n + LONG - prompt for n in lengths], LONG)
    tokens, real = draw(B, LONG), mask.bool()
    expected = theirs(tokens, attention_mask=mask, position_ids=positions).logits
    state = ours.make_state(B)
    found = [ours(tokens[:, :prompt], mask=mask[:, :prompt], state=state).logits]
    found += [ours(tokens[:, t : t + 1], state=state).logits for t in range(prompt, LONG)]
    agree(torch.cat(found, 1)[real], expected[real])


@torch.no_grad()
@each_decoder
def test_ragged_chunks(name):
    """Rows get different numbers of tokens in each call; each goes on as if it were alone."""
    ours, theirs = DECODERS[name]()
    calls = [draw(B, 7, below=2, seed=seed).bool() for seed in range(17)]
    calls[0][:, 0] = True
    state, found = ours.make_state(B), []
    tokens = [draw(B, 7, seed=seed) for seed in range(17)]
    for given, real in zip(tokens, calls, strict=True):
        found.append(ours(given, mask=real, state=state).logits)
    for row in range(B):
        text = torch.cat([given[row, real[row]] for given, real in zip(tokens, calls, strict=True)])
        logits = torch.cat([one[row, real[row]] for one, real in zip(found, calls, strict=True)])
        agree(logits, theirs(text[None]).logits[0])


@torch.no_grad()
@each_decoder
@pytest.mark.parametrize("backend", ["auto", "explicit", "blocked"])
def test_packed_documents_are_texts_of_their_own(name, backend):
    ours, theirs = DECODERS[name]()
    set_backend(ours, backend)
    tokens = draw(2, 17)
    ids = torch.tensor([[4] * 3 + [9] * 11 + [2] * 3, [1] * 13 + [-1] * 4])
    logits = ours(tokens, mask=Documents(ids)).logits
    for row, first, last in ((0, 0, 3), (0, 3, 14), (0, 14, 17), (1, 0, 13)):
        agree(logits[row, first:last], theirs(tokens[row : row + 1, first:last]).logits[0])


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "gpt2"])
def test_gradients(name):
    compare_gradients(*DECODERS[name](), within=1e-5)


def test_gradients_of_gpt2_in_float64():
    compare_gradients(*gpt2(torch.float64), within=1e-10)


def compare_gradients(ours: nn.Module, theirs: nn.Module, within: float) -> None:
    """Of the embedding: they have passed every layer."""
    tokens = draw(B, 13)
    for model in (ours, theirs):
        logits = model(tokens).logits[:, :-1]
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    found = ours.embedding.weight.grad, theirs.get_input_embeddings().weight.grad
    scale = found[1].abs().max()
    agree(found[0] / scale, found[1] / scale, within)


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
def test_balance_loss_is_that_of_mixtral(padded):
    ours, theirs = mixtral(layers=1)
    mask, positions = left_padded([13, 7, 2] if padded else [13] * 3, 13)
    tokens = draw(B, 13)
    expected = theirs(tokens, attention_mask=mask, position_ids=positions, output_router_logits=True).aux_loss
    agree(ours(tokens, mask=mask).auxiliary["balance loss"], expected)


# --- BERT ---


def bert(dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    config = BertConfig(
        vocab_size=C, hidden_size=D, num_hidden_layers=L, num_attention_heads=H, intermediate_size=F,
        max_position_embeddings=17, type_vocab_size=3,
    )  # fmt: skip
    spec = EncoderSpec(
        input=TokensSpec(vocabulary=C, segments=3),
        length=17,
        width=D,
        layers=L,
        mixer=AttentionSpec(heads=H),
        feedforward=ClassicSpec(hidden=F),
        positions=LearnedSpec(),
        norm=LayerNormSpec(epsilon=1e-12),
        arrangement="post-norm",
        input_norm=True,
        output=PooledSpec(hidden=D),
    )
    theirs = peer(transformers.BertModel, config, dtype=dtype)
    return twin(spec, peers.bert, theirs), theirs


@torch.no_grad()
@both_types
def test_bert(dtype):
    ours, theirs = bert(dtype)
    tokens, segments = draw(B, 13), draw(B, 13, below=3)
    for given in (None, segments):
        out, expected = ours(tokens, segments=given), theirs(tokens, token_type_ids=given)
        agree(out.hidden, expected.last_hidden_state, WITHIN[dtype])
        agree(out.logits, expected.pooler_output, WITHIN[dtype])


@torch.no_grad()
@both_types
def test_bert_with_padding(dtype):
    ours, theirs = bert(dtype)
    tokens, segments = draw(B, 13), draw(B, 13, below=3)
    mask = (torch.arange(13) < torch.tensor([13, 7, 2])[:, None]).long()
    out = ours(tokens, mask=mask, segments=segments)
    expected = theirs(tokens, attention_mask=mask, token_type_ids=segments)
    real = mask.bool()
    agree(out.hidden[real], expected.last_hidden_state[real], WITHIN[dtype])
    agree(out.logits, expected.pooler_output, WITHIN[dtype])

    mask, positions = left_padded([13, 7, 2], 13)
    out = ours(tokens, mask=mask, segments=segments)
    expected = theirs(tokens, attention_mask=mask, token_type_ids=segments, position_ids=positions)
    real = mask.bool()
    agree(out.hidden[real], expected.last_hidden_state[real], WITHIN[dtype])


# --- ViT ---

IMAGES = torch.randn(B, 2, 21, 21, generator=torch.Generator().manual_seed(1))


def vit(dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    config = ViTConfig(
        hidden_size=D, num_hidden_layers=L, num_attention_heads=H, intermediate_size=F, image_size=21, patch_size=7,
        num_channels=2, num_labels=11, layer_norm_eps=1e-3,
    )  # fmt: skip
    spec = VisionSpec(
        image=21,
        patch=7,
        channels=2,
        width=D,
        layers=L,
        mixer=AttentionSpec(heads=H),
        feedforward=ClassicSpec(hidden=F),
        norm=LayerNormSpec(epsilon=1e-3),
        classes=11,
    )
    theirs = peer(transformers.ViTForImageClassification, config, dtype=dtype)
    return twin(spec, peers.vit, theirs), theirs


@torch.no_grad()
@both_types
def test_vit(dtype):
    ours, theirs = vit(dtype)
    images = IMAGES.to(dtype)
    out, expected = ours(images), theirs(images)
    agree(out.logits, expected.logits, WITHIN[dtype])
    agree(out.hidden, theirs.vit(images).last_hidden_state, WITHIN[dtype])


@torch.no_grad()
@both_types
@pytest.mark.parametrize("size", [(35, 14), (49, 49), (7, 63)], ids=str)
def test_vit_at_another_size(dtype, size):
    ours, theirs = vit(dtype)
    images = torch.randn(B, 2, *size, generator=torch.Generator().manual_seed(1)).to(dtype)
    agree(ours(images).logits, theirs(images, interpolate_pos_encoding=True).logits, WITHIN[dtype])


# --- T5 ---


def t5(gated: bool) -> tuple[nn.Module, nn.Module]:
    """Classic: ReLU, tied and scaled; gated: T5 1.1's GEGLU and a head of its own, which they tie by default."""
    config = T5Config(
        vocab_size=C, d_model=23, d_kv=7, d_ff=F, num_layers=1, num_decoder_layers=2, num_heads=5,
        relative_attention_num_buckets=8, relative_attention_max_distance=19, layer_norm_epsilon=1e-3,
        feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated,
    )  # fmt: skip
    theirs = transformers.T5ForConditionalGeneration._from_config(config).eval()
    if gated:
        theirs.lm_head.weight = nn.Parameter(torch.empty(C, 23))
    peers.randomize(theirs)
    for name, weight in theirs.named_parameters():
        if name.endswith(".q.weight"):
            weight.data *= 7**-0.5  # T5 starts its queries so, instead of scaling the scores
    spec = EncoderDecoderSpec(
        vocabulary=C,
        length=LONG,
        width=23,
        layers=1,
        decoder_layers=2,
        mixer=AttentionSpec(heads=5, head_width=7, score="dot", bias=False),
        feedforward=GatedSpec(hidden=F, activation="gelu-tanh")
        if gated
        else ClassicSpec(hidden=F, activation="relu", bias=False),
        positions=BucketedSpec(buckets=8, farthest=19),
        norm=RMSNormSpec(epsilon=1e-3),
        head=LinearHeadSpec() if gated else TiedHeadSpec(scale=23**-0.5),
    )
    return twin(spec, peers.t5, theirs), theirs


both_kinds = pytest.mark.parametrize("gated", [False, True])


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (11, 19), (4, 3)])
def test_buckets_of_distances(both_ways, buckets, farthest):
    far = torch.arange(-2 * farthest - 7, 2 * farthest + 8)
    expected = modeling_t5.T5Attention._relative_position_bucket(far, both_ways, buckets, farthest)
    assert torch.equal(t5_buckets(far, buckets, farthest, both_ways), expected)


@torch.no_grad()
@both_kinds
@pytest.mark.parametrize("backend", ["auto", "explicit", "blocked"])
def test_t5(gated, backend):
    ours, theirs = t5(gated)
    set_backend(ours, backend)
    source, target = draw(B, 29), draw(B, LONG, seed=2)
    out, expected = ours(source, target), theirs(input_ids=source, decoder_input_ids=target)
    agree(ours.encode(source).hidden, expected.encoder_last_hidden_state)
    agree(out.logits, expected.logits)


@torch.no_grad()
@both_kinds
@pytest.mark.parametrize("side", ["left", "right"])
def test_t5_with_padding_on_both_sides_of_the_model(gated, side):
    ours, theirs = t5(gated)
    source, target = draw(B, 29), draw(B, 13, seed=2)
    seen, given = (left_padded(lengths, n)[0] for lengths, n in (([29, 17, 3], 29), ([13, 7, 2], 13)))
    if side == "right":
        seen, given = seen.flip(1), given.flip(1)
    expected = theirs(
        input_ids=source, attention_mask=seen, decoder_input_ids=target, decoder_attention_mask=given
    ).logits
    real = given.bool()
    agree(ours(source, target, source_mask=seen, mask=given).logits[real], expected[real])


@torch.no_grad()
@both_kinds
def test_t5_steps_with_a_state_give_the_logits_of_the_whole(gated):
    ours, theirs = t5(gated)
    source, target = draw(B, 29), draw(B, LONG, seed=2)
    seen = left_padded([29, 17, 3], 29)[0].flip(1)
    expected = theirs(input_ids=source, attention_mask=seen, decoder_input_ids=target).logits
    memory, state = ours.encode(source, mask=seen), ours.make_state(B)
    steps = [ours.decode(target[:, :3], memory, state=state).logits]
    steps += [ours.decode(target[:, t : t + 1], memory, state=state).logits for t in range(3, LONG)]
    agree(torch.cat(steps, 1), expected)


@torch.no_grad()
@both_kinds
def test_t5_in_float64(gated, wide_peers):
    ours, theirs = (model.double() for model in t5(gated))
    source, target = draw(B, 29), draw(B, LONG, seed=2)
    agree(ours(source, target).logits, theirs(input_ids=source, decoder_input_ids=target).logits, 1e-10)


@both_kinds
def test_t5_gradients(gated):
    ours, theirs = t5(gated)
    source, target = draw(B, 29), draw(B, 13, seed=2)
    nn.functional.cross_entropy(ours(source, target).logits.flatten(0, 1), target.flatten()).backward()
    theirs(input_ids=source, decoder_input_ids=target, labels=target).loss.backward()
    expected = theirs.shared.weight.grad
    agree(ours.embedding.weight.grad / expected.abs().max(), expected / expected.abs().max())
    table = theirs.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad
    agree(ours.encoder.position.table.grad / table.abs().max(), table / table.abs().max())


# --- presets ---

ORIGINALS = {
    "gpt2": (transformers.GPT2LMHeadModel, GPT2Config()),
    "mistral-7b": (transformers.MistralForCausalLM, MistralConfig()),
    "mixtral-8x7b": (transformers.MixtralForCausalLM, MixtralConfig()),
    "bert-base": (transformers.BertModel, BertConfig()),
    "vit-b16": (transformers.ViTForImageClassification, ViTConfig(num_labels=1000)),
    "t5-small": (transformers.T5ForConditionalGeneration, T5Config()),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_presets_have_as_many_weights_as_the_originals(name):
    kind, config = ORIGINALS[name]
    with torch.device("meta"):
        theirs = kind._from_config(config)
    ours = weft.build(name, device="meta")
    assert sum(w.numel() for w in ours.parameters()) == sum(w.numel() for w in theirs.parameters())


# --- teeth ---

CALLS: dict[str, tuple[Callable[[], tuple[nn.Module, nn.Module]], dict[str, Tensor]]] = {
    **{name: (make, {"tokens": draw(B, 29)}) for name, make in DECODERS.items()},
    "bert": (lambda: bert(torch.float32), {"tokens": draw(B, 13), "segments": draw(B, 13, below=3)}),
    "vit": (lambda: vit(torch.float32), {"images": IMAGES}),
    "t5": (lambda: t5(gated=False), {"source": draw(B, 29), "target": draw(B, LONG, seed=2)}),
    "t5, gated": (lambda: t5(gated=True), {"source": draw(B, 29), "target": draw(B, LONG, seed=2)}),
}


@torch.no_grad()
@pytest.mark.parametrize("name", CALLS)
def test_every_weight_counts(name):
    """A map that mixes up the rows of any one weight shows in the logits: the comparisons above can fail."""
    make, inputs = CALLS[name]
    ours, _ = make()
    right = ours(**inputs).logits
    for weight in ours.parameters():
        kept = weight.clone()
        weight.copy_(kept.roll(1, 0))
        assert (ours(**inputs).logits - right).abs().max() > 1e-3
        weight.copy_(kept)
