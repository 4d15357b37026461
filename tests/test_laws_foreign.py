"""The laws on models of other libraries: no false alarm, nothing held that was not tried, planted faults found.

Where a class really breaks a law, `BREAKS` says which and why, after reading its source.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foreign_models import (
    BERT,
    COMPOSED,
    DECODERS,
    ENCODERS,
    HUGGINGFACE,
    IMAGE_TEXT,
    IMAGES,
    SEQ2SEQ,
    VIT,
    X_TRANSFORMERS,
    OverTime,
    OwnModel,
    huggingface,
    torch_module,
    x_transformers,
)
from weft.foreign.recognize import subject_of
from weft.foreign.subject import Subject, SubjectCall
from weft.laws import Report, check

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # DeBERTa, GPTBigCode
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),  # nn.Transformer sets it itself
]
CACHE = "cache = full forward"
DOCUMENTS = "document isolation"
ROWS = "attention rows are distributions"
GRADIENTS = "gradients reach every parameter"
NEIGHBOR = {DOCUMENTS: "sees its neighbor"}
LEFT = {"left padding": "positions count the padding"}
BOTH_SIDES = {"left padding": "embed_positions", "source padding": "positions count the padding"}
LEAK = {
    "causality": "self_attn",
    "left padding": "position_embeddings",
    "right padding": "padded and alone differ",
    CACHE: "differs",
    "all lengths": "longer text",
}

# {class: {law: a word of the evidence, the blame or the cause}}; all else must hold.
BREAKS: dict[str, dict[str, str]] = {
    # Only with is_decoder=True does BertLMHeadModel mask the future (BertLayer: is_causal=config.is_decoder).
    "BertLMHeadModel undeclared": {"causality": "attention.self", "all lengths": "attention.self"},
    # get_predict_relative_pos_embeddings permutes to [B, T, ngram, heads, buckets], flattens, and views the result as
    # [B, ngram, heads, T, ...]: the bias of a token is computed from other tokens, later ones among them.
    "ProphetNetForCausalLM": LEAK,
    # ... and its encoder returns scores from before the softmax as attentions.
    "ProphetNetForConditionalGeneration": {**LEAK, "source padding": "position_embeddings", ROWS: "encoder attention"},
    # Their decoders number positions by torch.arange alone and take no position_ids.
    **{f"{name}ForCausalLM": LEFT for name in ("Bart", "Marian", "Pegasus", "TrOCR")},
    **{
        f"{name}ForConditionalGeneration": BOTH_SIDES
        for name in ("Bart", "MBart", "Pegasus", "PegasusX", "Blenderbot", "BlenderbotSmall", "PLBart", "Mvp", "LED")
    },
    **dict.fromkeys(("BartModel", "MarianMTModel", "BigBirdPegasusForConditionalGeneration"), BOTH_SIDES),
    # get_masks: with causal=True the attention mask is the triangle alone, and the padding mask is not used.
    "XLMWithLMHeadModel causal": {"left padding": "attentions.0"},
    # RwkvModel.forward: "`attention_mask` was passed, but it is unused in this model".
    "RwkvForCausalLM": {"left padding": "time_shift"},
    # The convolution before the recurrence reads padding and the end of the document before; only attention has a mask.
    "RecurrentGemmaForCausalLM": {"left padding": "temporal_block", DOCUMENTS: "temporal_block"},
    # The same convolutions over padding, unmasked, beside attention.
    "ConvBertForMaskedLM": {"left padding": "conv", "right padding": "conv"},
    "NystromformerForMaskedLM": {"left padding": "conv", "right padding": "conv"},
    # SqueezeBertSelfAttention returns attention_score, from before the softmax, as attentions.
    "SqueezeBertForMaskedLM": {ROWS: "none"},
    # The scan of several tokens starts from zero, whatever the cache holds; only single tokens go on from its state.
    "MambaForCausalLM": {CACHE: "in chunks"},
    "FalconMambaForCausalLM": {CACHE: "in chunks"},
    "JambaForCausalLM": {CACHE: "in chunks", **NEIGHBOR},
    # With use_cache=True no causal mask is made, so that several tokens in one call see each other.
    "FSMTForConditionalGeneration": {CACHE: "in chunks"},
    # Attention is masked by document, but Lightning attention reads neither position_ids nor seq_idx (nor does Jamba's
    # scan), and chunked_overlay counts chunks by index in the row.
    **dict.fromkeys(("Llama4ForCausalLM", "MiniMaxForCausalLM"), NEIGHBOR),
    # lm_head starts with deviation 1 where it is not tied to the embedding.
    "MT5ForConditionalGeneration": {"initial loss": "weights start too large"},
    # BatchNorm, in training.
    "ResNetModel": {"batch independence": "statistics over the batch"},
}
# Learned or sinusoidal positions are counted by torch.arange, padding included, unless position_ids are given.
NEED_POSITIONS = {
    "GPT2LMHeadModel",
    "GPT2Model",
    "GPTNeoForCausalLM",
    "GPTBigCodeForCausalLM",
    "OpenAIGPTLMHeadModel",
    "CTRLLMHeadModel",
    "XGLMForCausalLM",
    "BioGptForCausalLM",
    "BertLMHeadModel",
    "BertLMHeadModel undeclared",
    "BertGenerationDecoder",
    "ElectraForCausalLM",
    "BertModel",
    "BertForMaskedLM",
    "BertForTokenClassification",
    "DistilBertModel",
    "DistilBertForMaskedLM",
    "ElectraModel",
    "ElectraForMaskedLM",
    "AlbertModel",
    "AlbertForMaskedLM",
    "DebertaModel",
    "DebertaForMaskedLM",
    "DebertaV2ForMaskedLM",
    "MegatronBertForMaskedLM",
    "MobileBertForMaskedLM",
    "RemBertForMaskedLM",
    "SqueezeBertForMaskedLM",
    "ErnieForMaskedLM",
    "XLMWithLMHeadModel",
    "CLIPTextModel",
    "SiglipTextModel",
    "LayoutLMForMaskedLM",
    "BigBirdForMaskedLM",
    "WhisperForConditionalGeneration",
    "EncoderDecoderModel",
    "VisionEncoderDecoderModel",
}
# {class: laws that hold only with position_ids}
CAUTIONS = {
    **{name: {"left padding"} for name in NEED_POSITIONS},
    # BambaModel.forward numbers positions from 0 in each call, past or not, unless position_ids are given.
    "BambaForCausalLM": {CACHE},
}
ONE_LENGTH = ("WhisperForConditionalGeneration", "Speech2TextForConditionalGeneration", "VisionEncoderDecoderModel")
# {class: laws that cannot be tried, as the report says}
UNTRIED: dict[str, set[str]] = {
    "BertLMHeadModel undeclared": {CACHE},
    "OpenAIGPTLMHeadModel": {CACHE},  # it has none
    "RecurrentGemmaForCausalLM": {CACHE},  # it keeps its state on the module
    "XLMWithLMHeadModel causal": {CACHE},  # its cache is a dict of another kind
    "xLSTMForCausalLM": {CACHE, "left padding", "right padding"},
    **{name: {"source padding"} for name in ONE_LENGTH},
    "FNetForMaskedLM": {"left padding", "right padding", "rows that see nothing"},
}
EVERY = {"finite outputs", "batch independence", GRADIENTS, "eval is deterministic", "same seed, same bits"}
TEXT = {*EVERY, "left padding", "right padding", "all lengths"}
CAUSAL = {*TEXT, "causality", CACHE}
MUST = {
    **dict.fromkeys(DECODERS, CAUSAL),
    **{name: {*TEXT, "rows that see nothing"} for name in ENCODERS},
    **{name: {*CAUSAL, "source seen", "source padding"} for name in {**SEQ2SEQ, **COMPOSED}},
    **dict.fromkeys(IMAGES, EVERY),
    **{name: {*CAUSAL, "prefix"} for name in IMAGE_TEXT},
    "PaliGemmaForConditionalGeneration": {*TEXT, "prefix"},
    "Mistral3ForConditionalGeneration": CAUSAL,
}
WINDOWED = {f"{name}ForCausalLM" for name in ("Mistral", "Ministral", "Phi3", "Gemma3", "Cohere2", "Olmo3", "Exaone4")}
"""Every layer has a window in these tiny configs."""
EXPERTS = {name for name in DECODERS if any(word in name for word in ("Moe", "Mixtral", "Deepseek", "Olmoe", "GptOss"))}


@pytest.mark.parametrize("name", HUGGINGFACE)
def test_hugging_face(name: str):
    model = huggingface(name)
    report = check(model)
    cautions = CAUTIONS.get(name, set())
    assert {finding.law for finding in report.cautions} == cautions, str(report)
    assert all("position_ids" in str(finding.cause) for finding in report.cautions)
    _as_expected(report, BREAKS.get(name, {}), MUST[name] - UNTRIED.get(name, set()) - cautions)
    assert all(report[law].verdict in ("not testable", "not declared") for law in UNTRIED.get(name, set()))
    if report["causality"].verdict == "holds":
        _sees_the_past(report)
    config = model.config.get_text_config()
    if name in DECODERS and getattr(config, "rope_parameters", None) and "Recurrent" not in name:
        assert report["shift invariance"].verdict == "holds"
    assert (report["reach"].verdict == "holds") == (name in WINDOWED)
    assert (name in EXPERTS) <= subject_of(model).declares.experts
    assert report.assumed


def _as_expected(report: Report, breaks: dict[str, str], must: set[str]) -> None:
    """Exactly these laws are broken, for these reasons; all that must be tried holds."""
    assert {finding.law for finding in report.broken} == set(breaks), str(report)
    for law, word in breaks.items():
        finding = report[law]
        assert word in f"{finding.evidence} {finding.blame} {finding.cause}", finding
    for law in must - set(breaks):
        assert report[law].verdict == "holds", report[law]


def _sees_the_past(report: Report) -> None:
    """Causality does not hold because nothing depends on anything: outputs see earlier inputs, and none later."""
    D = torch.tensor(report.dependence)
    seeing = D.tril(-1)[1:].amax(1) > 1e-7
    assert float(seeing.double().mean()) > 0.8  # not all: the first token of a chunk of Llama 4 sees itself alone
    assert float(D.triu(1).max()) < 1e-9


def test_the_table_covers_what_is_promised():
    cached = [
        name for name, laws in MUST.items() if CACHE in laws - UNTRIED.get(name, set()) - set(BREAKS.get(name, {}))
    ]
    padded = [name for name, laws in MUST.items() if "left padding" in laws - UNTRIED.get(name, set())]
    assert len({name.split()[0] for name in HUGGINGFACE}) >= 150
    assert len([name for name in HUGGINGFACE if name not in BREAKS]) >= 120
    assert len(set(cached) & set(DECODERS)) >= 80
    assert len(padded) >= 150
    assert set(BREAKS) | set(UNTRIED) <= set(HUGGINGFACE)


# The breaks are the classes' own: cured as the report says, they are gone.


def test_gpt2_without_position_ids_counts_its_padding():
    subject = subject_of(huggingface("GPT2LMHeadModel"))
    subject.give_positions = False  # type: ignore[attr-defined]
    finding = check(subject, laws=("left padding",)).broken[0]
    assert finding.blame == "transformer.wpe"
    assert finding.cause is not None and "pass position_ids that count real tokens only" in finding.cause


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "OPTForCausalLM", "BloomForCausalLM", "GPTNeoXForCausalLM"])
def test_these_need_no_position_ids(name: str):
    """Rotary and ALiBi positions are relative; OPT counts its attention_mask."""
    subject = subject_of(huggingface(name))
    subject.give_positions = False  # type: ignore[attr-defined]
    assert check(subject, laws=("left padding",))["left padding"].verdict == "holds"


def test_roberta_counts_from_its_pad_token():
    """Its positions begin after the padding index and are found from the tokens: given from 0 they would be others."""
    report = check(huggingface("RobertaModel"), laws=("left padding", "right padding"))
    assert not report.broken
    assert any("padding is written as token 0" in text for text in report.assumed)


def test_the_report_says_how_to_cure_a_masked_model_used_as_a_decoder():
    report = check(huggingface("BertLMHeadModel undeclared"), laws=("causality",))
    assert report.broken
    assert "set is_decoder=True" in report.assumed[0]


def test_the_report_says_where_to_pad():
    report = check(huggingface("BartForConditionalGeneration"), laws=("source padding",))
    assert report.broken
    assert any("pad on the right" in text for text in report.assumed)


def test_prophetnet_is_causal_with_its_bias_in_order(monkeypatch: pytest.MonkeyPatch):
    code = transformers.models.prophetnet.modeling_prophetnet
    kind = code.ProphetNetNgramSelfAttention
    flawed = kind.get_predict_relative_pos_embeddings

    def in_order(self: Any, hidden: Tensor, weights: Tensor, positions: Tensor, buckets: Tensor) -> Tensor:
        if buckets is None:
            return flawed(self, hidden, weights, positions, buckets)
        bias = self.relative_pos_embeddings(hidden.transpose(1, 2)).unflatten(
            -1, (self.num_buckets, self.num_attn_heads)
        )
        index = buckets[:, None, None].expand(-1, self.ngram, self.num_attn_heads, -1, -1).long()
        return bias.permute(0, 1, 4, 2, 3).gather(-1, index)

    laws = ("causality", "right padding", "all lengths", CACHE)
    monkeypatch.setattr(kind, "get_predict_relative_pos_embeddings", in_order)
    report = check(huggingface("ProphetNetForCausalLM"), laws=laws)
    assert not report.broken, str(report)
    _sees_the_past(report)


@pytest.mark.parametrize("name", ["Qwen3NextForCausalLM", "Lfm2ForCausalLM", "BambaForCausalLM"])
def test_packing_that_a_class_refuses_is_not_held_against_it(name: str):
    """Told where documents end, these refuse without a kernel that this machine lacks."""
    finding = check(huggingface(name), laws=(DOCUMENTS,))[DOCUMENTS]
    assert finding.verdict in ("not testable", "not declared")
    assert "packed sequences apart" in finding.evidence


def test_bamba_agrees_with_its_cache_once_position_ids_are_given():
    module = huggingface("BambaForCausalLM").double()
    tokens = torch.arange(3, 12)[None]
    with torch.no_grad():
        whole = module(tokens).logits
        first = module(tokens[:, :8], use_cache=True)
        last = {"input_ids": tokens[:, 8:], "past_key_values": first.past_key_values}
        given = module(**last, position_ids=torch.tensor([[8]])).logits
    torch.testing.assert_close(given, whole[:, 8:], atol=1e-6, rtol=0)


# x-transformers

X_BREAKS: dict[str, dict[str, str]] = {
    # AttentionLayers hides the first `seq_start_pos` places, but the memory tokens stand before the padding.
    "memory tokens": {"left padding": "padding is looked at"},
    # ShiftTokens moves features of the token before, be it padding; with a cache there is no token before.
    "shifted tokens": {"left padding": "padding is looked at", CACHE: "from the first cached step"},
    # XTransformer gives its encoder no seq_start_pos.
    "encoder-decoder": {"source padding": "positions count the padding"},
}
X_UNTRIED = {"sinusoids": {"left padding"}, "memory tokens": {CACHE}, "vectors": {CACHE}, "layers alone": {CACHE}}


@pytest.mark.parametrize("name", X_TRANSFORMERS)
def test_x_transformers(name: str):
    pytest.importorskip("x_transformers")
    torch.manual_seed(0)
    report = check(x_transformers()[name]())
    must = {"finite outputs", "batch independence", GRADIENTS, "eval is deterministic"}
    if name != "image":
        must |= {"left padding", "right padding", "all lengths"}
    if not name.startswith(("encoder", "image")) or name == "encoder-decoder":
        must |= {"causality", CACHE}
        _sees_the_past(report)
    if name == "encoder-decoder":
        must |= {"source seen", "source padding"}
    if "flash" in name:
        must |= {"backend equality"}
    if "rotary" in name or name in ("xpos", "autoregressive wrapper"):
        must |= {"shift invariance"}
    _as_expected(report, X_BREAKS.get(name, {}), must - X_UNTRIED.get(name, set()))
    assert "its layers are a" in report.assumed[0]


def test_x_transformers_are_left_as_they_are():
    pytest.importorskip("x_transformers")
    model = x_transformers()["tied"]()
    before = model(torch.tensor([[3, 4, 5]]))
    check(model, laws=("causality",))
    assert torch.equal(model(torch.tensor([[3, 4, 5]])), before)


# torch.nn

ORDERS = [(True, True), (True, False), (False, True), (False, False)]
KINDS = ["EncoderLayer", "Encoder", "DecoderLayer", "Decoder", "Transformer", "MultiheadAttention"]
NOTHING = "rows that see nothing"


@pytest.mark.parametrize(("batch_first", "norm_first"), ORDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_torch(kind: str, batch_first: bool, norm_first: bool):
    """With batch_first torch's fast path gives NaN for a row of padding alone, and 0 x NaN carries it on."""
    decoder = kind in ("DecoderLayer", "Decoder", "Transformer")
    must = {"finite outputs", "batch independence", "left padding", "right padding", NOTHING, "all lengths", GRADIENTS}
    must |= (
        {"causality", "source seen", "source padding"} if decoder else {"permutation equivariance", "backend equality"}
    )
    breaks = {}
    if batch_first and not (kind == "Encoder" and not norm_first):  # that one makes nested tensors of its rows
        breaks[NOTHING] = "not finite"
        if kind in ("Decoder", "Transformer"):
            breaks["left padding"] = "inf"
    report = check(torch_module(kind, batch_first, norm_first))
    _as_expected(report, breaks, must)
    if decoder:
        _sees_the_past(report)
    assert f"batch_first={batch_first}" in report.assumed[1]


def test_torch_decoders_keep_left_padding_off_the_fast_path():
    subject = subject_of(torch_module("Decoder", True, True))
    subject.set_backend("plain path")
    assert not check(subject, laws=("left padding", NOTHING)).broken
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_recurrent(make: type[nn.RNNBase], batch_first: bool):
    report = check(make(7, 5, num_layers=2, batch_first=batch_first))
    _as_expected(report, {}, {"causality", CACHE, "batch independence", "all lengths"})
    _sees_the_past(report)
    both = check(make(7, 5, batch_first=batch_first, bidirectional=True))
    assert both["causality"].verdict == both[CACHE].verdict == "not declared"


# A user's own


class Answering(OwnModel):
    """Gives what people give."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


@dataclasses.dataclass
class Answer:
    loss: None
    logits: Tensor


ANSWERS = {
    "tensor": lambda logits: logits,
    "tuple": lambda logits: (logits, None),
    "loss first": lambda logits: (logits.mean(), logits),
    "dict": lambda logits: {"loss": logits.mean(), "logits": logits},
    "dataclass": lambda logits: Answer(None, logits),
    "namespace": lambda logits: SimpleNamespace(logits=logits),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_own_model(name: str):
    report = check(Answering(ANSWERS[name]))
    _as_expected(report, {}, {"finite outputs", "causality", "batch independence", "all lengths", GRADIENTS})
    _sees_the_past(report)
    assert "tril is a triangle, so it is taken to declare causality" in report.assumed[0]
    assert "drawn from the 61 rows of tokens" in report.assumed[2]


def test_a_plain_function():
    model = OwnModel()
    report = check(lambda tokens: model(tokens), torch.randint(0, 61, (2, 9)), causal=True)
    assert report["causality"].verdict == "holds"
    assert "declared by the caller: causal=True" in report.assumed[-1]


class LastOnly(OwnModel):
    """Gives logits of the last token alone unless there are targets, as nanoGPT does."""

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
        logits = self.logits(tokens, None)
        return (logits[:, [-1]], None) if targets is None else (logits, logits.mean())


def test_targets_are_given_where_the_answer_depends_on_them():
    assert check(LastOnly())["causality"].verdict == "holds"


class Padded(OwnModel):
    """Knows padding; positions count real tokens only."""

    sense = staticmethod(lambda mask: mask)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return self.logits(tokens, None)
        real = self.sense(mask)
        x = self.tokens(tokens) + self.pos((real.long().cumsum(1) - 1).clamp(min=0))
        for block in self.blocks:
            x = block(x, real)
        return self.head(x)


class PaddedInverted(Padded):
    """True hides."""

    sense = staticmethod(lambda mask: ~mask)


class PaddedInNumbers(Padded):
    """Wants numbers, as Hugging Face does."""

    @staticmethod
    def sense(mask: Tensor) -> Tensor:
        assert mask.dtype == torch.long, "give 0 and 1"
        return mask == 1


@pytest.mark.parametrize("kind", [Padded, PaddedInverted, PaddedInNumbers])
def test_the_sense_of_a_mask_is_found_out(kind: type[Padded]):
    report = check(kind())
    _as_expected(report, {}, {"left padding", "right padding", "causality"})
    assert any("mask marks padding" in text for text in report.assumed)


def test_an_argument_that_is_no_mask_is_not_taken_for_one():
    class Scaled(OwnModel):
        def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
            return self.logits(tokens, None) * (1.0 if mask is None else 2.0)

    finding = check(Scaled(), laws=("right padding",))["right padding"]
    assert finding.verdict == "not testable"
    assert "mask is not a mask [B, T]" in finding.evidence


def test_a_model_that_says_nothing_declares_nothing():
    report = check(nn.Sequential(nn.Embedding(61, 24), nn.Linear(24, 61)))
    assert report["causality"].verdict == "not declared"
    assert "nothing in Sequential is named a decoder or causal" in report.assumed[0]


def test_a_classifier_of_whole_texts_is_judged_by_what_applies_to_it():
    """It reads its answer at the first place: padding there changes it."""
    config = transformers.BertConfig(**BERT, num_labels=3)
    report = check(transformers.BertForSequenceClassification(config))
    _as_expected(report, {"left padding": "pad on the right"}, {*EVERY, "right padding", "all lengths"})
    assert "one answer per text" in report["causality"].evidence


def test_a_model_that_cannot_be_called_breaks_nothing():
    """CLIPModel wants an image with each text, and its answer is a table of both."""
    kind = transformers.CLIPModel
    report = check(kind(kind.config_class(text_config=BERT, vision_config=VIT, projection_dim=8)))
    assert not report.broken
    assert report["all lengths"].verdict == "not testable"


# Planted faults


def _causal_mask(shift: int) -> Any:
    """In place of transformers' create_causal_mask: `shift` tokens ahead are seen."""

    def make(config: Any, inputs_embeds: Tensor, *arguments: Any, **options: Any) -> Tensor:
        B, T = inputs_embeds.shape[:2]
        ahead = torch.ones(T, T, dtype=torch.bool).triu(1 + shift)
        return torch.zeros(B, 1, T, T, dtype=inputs_embeds.dtype).masked_fill(
            ahead, torch.finfo(inputs_embeds.dtype).min
        )

    return make


def _caught(report: Report, law: str, blame: str, cause: str) -> None:
    finding = report[law]
    assert finding.verdict == "broken", str(report)
    assert finding.blame is not None and blame in finding.blame, finding
    assert finding.cause is not None and cause in finding.cause, finding


def test_gpt2_without_its_mask(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transformers.models.gpt2.modeling_gpt2, "create_causal_mask", _causal_mask(shift=99))
    report = check(huggingface("GPT2LMHeadModel"), laws=("causality",))
    _caught(report, "causality", "transformer.h.0.attn", "no mask")


def test_gpt2_with_its_mask_shifted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transformers.models.gpt2.modeling_gpt2, "create_causal_mask", _causal_mask(shift=1))
    report = check(huggingface("GPT2LMHeadModel"), laws=("causality",))
    _caught(report, "causality", "transformer.h.0.attn", "shifted by one")


def test_gpt2_that_ignores_position_ids():
    module = huggingface("GPT2LMHeadModel")
    table = module.transformer.wpe
    table.forward = lambda ids: nn.functional.embedding(torch.arange(ids.shape[1]).expand_as(ids), table.weight)
    ignores = type("Ignores", (nn.Embedding,), {
        "forward": lambda self, ids: nn.functional.embedding(torch.arange(ids.shape[1]).expand_as(ids), self.weight)
    })  # fmt: skip
    module.transformer.wpe = ignores(*table.weight.shape)
    report = check(module, laws=("left padding", CACHE))
    _caught(report, "left padding", "transformer.wpe", "positions count the padding")
    _caught(report, CACHE, "transformer.wpe", "positions restart")


def test_llama_that_ignores_position_ids(monkeypatch: pytest.MonkeyPatch):
    """Rotary positions are relative, so that padding does not show it; the cache does."""
    kind = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
    real = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x, position_ids: real(self, x, torch.arange(x.shape[1])[None]))
    report = check(huggingface("LlamaForCausalLM"), laws=("left padding", CACHE))
    assert report["left padding"].verdict == "holds"
    _caught(report, CACHE, "model.rotary_emb", "positions restart")


def test_llama_with_a_stale_cache(monkeypatch: pytest.MonkeyPatch):
    kind = transformers.cache_utils.DynamicLayer
    real = kind.update

    def forgetful(self: Any, keys: Tensor, values: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        keys, values = real(self, keys, values, *arguments, **options)
        if keys.shape[2] > 6:
            keys, values = keys.clone(), values.clone()
            keys[:, :, 0], values[:, :, 0] = 0, 0
        return keys, values

    monkeypatch.setattr(kind, "update", forgetful)
    report = check(huggingface("LlamaForCausalLM"), laws=("causality", CACHE))
    assert report["causality"].verdict == "holds"
    _caught(report, CACHE, "model.layers.0.self_attn", "from step 6 on")


def test_mistral_with_a_window_too_wide(monkeypatch: pytest.MonkeyPatch):
    code = transformers.models.mistral.modeling_mistral
    real = code.create_sliding_window_causal_mask

    def wider(config: Any, **options: Any) -> Any:
        config = type(config)(**{**config.to_dict(), "sliding_window": config.sliding_window + 1})
        config._attn_implementation = "sdpa"
        return real(config=config, **options)

    monkeypatch.setattr(code, "create_sliding_window_causal_mask", wider)
    report = check(huggingface("MistralForCausalLM"), laws=("reach", "causality"))
    assert report["causality"].verdict == "holds"
    _caught(report, "reach", "model.layers.0.self_attn", "a window one key too wide")


def test_bert_that_ignores_its_attention_mask(monkeypatch: pytest.MonkeyPatch):
    code = transformers.models.bert.modeling_bert
    monkeypatch.setattr(code, "create_bidirectional_mask", lambda **_: None)
    report = check(huggingface("BertForMaskedLM"), laws=("right padding", "left padding"))
    _caught(report, "right padding", "layer.0.attention.self", "padding is looked at")
    _caught(report, "left padding", "layer.0.attention.self", "padding is looked at")


def test_t5_that_ignores_padding_of_its_source(monkeypatch: pytest.MonkeyPatch):
    code = transformers.models.t5.modeling_t5
    monkeypatch.setattr(code, "create_bidirectional_mask", lambda **_: None)
    report = check(huggingface("T5ForConditionalGeneration"), laws=("source padding", "source seen"))
    assert report["source seen"].verdict == "holds"
    _caught(report, "source padding", "encoder.block.0", "padding is looked at")


def test_vit_whose_rows_meet():
    class Meeting(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - 0.1 * x.mean(0, keepdim=True))

    module = huggingface("ViTModel")
    module.layernorm = Meeting(24)
    _caught(check(module, laws=("batch independence",)), "batch independence", "layernorm", "shared between rows")


def test_dropout_left_on():
    class Always(nn.Dropout):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.3, training=True)

    module = huggingface("DistilBertModel")
    module.embeddings.dropout = Always()
    report = check(module, laws=("eval is deterministic",))
    _caught(report, "eval is deterministic", "embeddings.dropout", "randomness")


def test_x_transformers_encoder_declared_causal():
    pytest.importorskip("x_transformers")
    report = check(x_transformers()["encoder"](), causal=True, laws=("causality",))
    _caught(report, "causality", "attn_layers.layers.0.1", "no mask")
    assert "declared by the caller: causal=True" in report.assumed


def test_torch_encoder_used_as_a_decoder():
    report = check(torch_module("Encoder", True, True), causal=True, laws=("causality",))
    _caught(report, "causality", "layers.0.self_attn", "no mask")


def test_batch_norm_in_an_own_decoder():
    report = check(OwnModel(norm=OverTime), laws=("causality", "batch independence"))
    _caught(report, "causality", "blocks.0.norm1.norm", "statistics run over batch or time")
    _caught(report, "batch independence", "blocks.0.norm1.norm", "statistics over the batch")


def test_own_attention_without_a_triangle():
    model = OwnModel()
    for block in model.blocks:
        block.attention.tril.fill_(1)
    _caught(check(model, causal=True, laws=("causality",)), "causality", "blocks.0.attention", "no mask")


def test_own_model_that_subtracts_its_mean_over_time():
    class CenteredNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(1, keepdim=True))

    _caught(
        check(OwnModel(norm=CenteredNorm), laws=("causality",)),
        "causality",
        "blocks.0.norm1",
        "statistics over the sequence",
    )


# A protocol for anything else


class Backwards(Subject):
    """A model of another kind: it takes a dict and reads time from the end."""

    def run(self, call: SubjectCall) -> Tensor:
        call.takes()
        return self.module({"ids": call.content.flip(1)}).flip(1)


class FromDict(OwnModel):
    def forward(self, given: dict[str, Tensor]) -> Tensor:
        return self.logits(given["ids"], None)


def test_a_subject_of_ones_own():
    from weft.models.output import Declaration

    declares = Declaration("backwards", True, False, "absolute", length=32, vocabulary=61)
    report = check(Backwards(FromDict(), declares, ("it reads from the end",)), laws=("causality",))
    assert report["causality"].verdict == "broken"
    assert report.assumed[0] == "it reads from the end"
