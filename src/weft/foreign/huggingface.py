"""Hugging Face transformers: attention_mask, position_ids, past_key_values, .logits; encoders, decoders, seq2seq, images."""

from __future__ import annotations

import copy
import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.exact import Exact
from weft.foreign.plain import first_tensor, per_token
from weft.foreign.subject import Call, Subject, Unable
from weft.models.output import Declaration
from weft.models.positions import Nature

CACHES = ("past_key_values", "cache_params", "state")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
ROTARY = ("rope_parameters", "rope_theta", "rotary_dim", "rotary_pct")
HEADS = ("CausalLM", "LMHead", "MaskedLM", "ConditionalGeneration", "GenerationDecoder", "MTModel")
ALIBI = ("bloom", "mpt")
FROM_TOKENS = ("create_position_ids_from_input_ids", "make_positions")
ASIDE = {
    "mask_token": "only masked images pass",
    "encoder_attn": "only the states of an encoder pass",
    "crossattention": "only the states of an encoder pass",
    "cross_attn": "only the states of an encoder pass",
    "mask_emb": "only tokens to be predicted pass",
    "seg_embed": "only token_type_ids pass",
    "r_s_bias": "only token_type_ids pass",
    "_global": "only tokens of global_attention_mask pass",
}


class HuggingFaceSubject(Subject):
    """A PreTrainedModel. With padding, position_ids are given where the class takes them, as `generate` does.

    `pad_token` is written at padded places where the class looks for it; `first_position` is where it counts from.
    """

    give_positions: bool = True
    first_position: int = 0
    pad_token: int | None = None

    @property
    def names(self) -> Any:
        """Names of the forward's arguments."""
        return inspect.signature(self.module.forward).parameters

    def run(self, call: Call) -> Tensor:
        """[B, T] -> logits or hidden states [B, T, C]."""
        with Exact():
            if self.declares.seq2seq:
                return self._run_seq2seq(call)
            if self.images:
                call.takes()
                return _of_image(self.module(pixel_values=call.content))
            call.takes("real", "positions", "documents")
            content, extra = self._masked(call.content, call.real), self._extra(call)
            out = per_token(first_tensor(self.module(input_ids=content, **extra)), call.content.shape[1])
            if call.documents is not None:
                self._refuse_unless_packed(call.content, extra, out)
            return out

    def _refuse_unless_packed(self, content: Tensor, extra: dict[str, Any], out: Tensor) -> None:
        """transformers looks for documents in position_ids only without an attention_mask, and not in every class."""
        whole = self.module(input_ids=content, attention_mask=torch.ones_like(content), **extra)
        if torch.allclose(first_tensor(whole), out, rtol=0, atol=1e-12):
            raise Unable("its class makes no mask for packed documents from position_ids")

    def _extra(self, call: Call) -> dict[str, Any]:
        extra: dict[str, Any] = {"use_cache": False} if "use_cache" in self.names else {}
        if call.real is not None:
            if "attention_mask" not in self.names:
                raise Unable("its forward takes no attention_mask")
            extra["attention_mask"] = call.real.long()
            if self.give_positions and call.positions is None and "position_ids" in self.names:
                extra["position_ids"] = (call.real.long().cumsum(1) - 1).clamp(min=0) + self.first_position
        if call.documents is not None:
            extra["position_ids"] = self._packed(call.documents) + self.first_position
        if call.positions is not None:
            if "position_ids" not in self.names:
                raise Unable("its forward takes no position_ids")
            extra["position_ids"] = call.positions.expand(call.content.shape[0], -1) + self.first_position
        return extra

    def _packed(self, documents: Tensor) -> Tensor:
        """Positions that begin again at each document, from which transformers makes a mask for packed texts."""
        if "position_ids" not in self.names or "attention_mask" not in self.names or not self.give_positions:
            raise Unable("its class makes no mask for packed documents from position_ids")
        index = torch.arange(documents.shape[1]).expand_as(documents)
        starts = torch.ones_like(documents, dtype=torch.bool)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
        return index - torch.where(starts, index, 0).cummax(1).values

    def _masked(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """The pad token at padded places, for classes that look for it."""
        return tokens if real is None or self.pad_token is None else tokens.masked_fill(~real, self.pad_token)

    def _run_seq2seq(self, call: Call) -> Tensor:
        call.takes("real", "source", "source_real")
        extra: dict[str, Any] = {"use_cache": False} if "use_cache" in self.names else {}
        if call.source_real is not None:
            extra["attention_mask"] = call.source_real.long()
        if call.real is not None:
            if "decoder_attention_mask" not in self.names:
                raise Unable("its forward takes no decoder_attention_mask")
            extra["decoder_attention_mask"] = call.real.long()
        extra["input_ids"] = self._masked(_given(call.source), call.source_real)
        out = first_tensor(self.module(decoder_input_ids=self._masked(call.content, call.real), **extra))
        return per_token(out, call.content.shape[1])

    @property
    def _cache_name(self) -> str:
        return next(name for name in CACHES if name in self.names)

    def begin(self, batch: int) -> Any:
        """No past yet: the model makes its own in the first call."""
        if not self.declares.cached:
            raise Unable(f"its forward takes none of {', '.join(CACHES)}")
        return None, None

    def feed(self, call: Call, cache: Any) -> tuple[Tensor, Any]:
        """Feed tokens with the past; gives their logits and the new past. A source is encoded once, as `generate` does."""
        call.takes("source")
        encoded, past = cache
        name = self._cache_name
        with Exact():
            given: dict[str, Any] = {"input_ids": call.content}
            if self.declares.seq2seq:
                if encoded is None:
                    encoded = self.module.get_encoder()(input_ids=_given(call.source), return_dict=True)  # type: ignore[operator]
                given = {"encoder_outputs": encoded, "decoder_input_ids": call.content}
            out = self.module(**given, **{name: past}, use_cache=True)
        past = getattr(out, name, None)
        if past is None:
            raise Unable(f"with use_cache=True its answer holds no {name}: it keeps its state to itself")
        return per_token(first_tensor(out), call.content.shape[1]), (encoded, past)

    def backends(self) -> tuple[str, ...]:
        """Eager and SDPA where both can be set."""
        return ("eager", "sdpa") if getattr(self.module, "_supports_sdpa", False) else ()

    def set_backend(self, name: str) -> None:
        """By the model's own switch, which may silently refuse."""
        self.module.set_attn_implementation(name)  # type: ignore[operator]
        if self._implementation != name:
            raise Unable("its class does not let the implementation of attention be set")

    @property
    def _implementation(self) -> str:
        return str(self.module.config._attn_implementation)  # type: ignore[union-attr]

    def attention_maps(self, call: Call) -> dict[str, Tensor]:
        """With the eager implementation, which returns them; then back to the one before."""
        if any(name.endswith("sinks") for name, _ in self.module.named_parameters()):
            raise Unable("its rows share their mass with a sink that is not given: they sum to less than one")
        before, lengths = self._implementation, {x.shape[1] for x in (call.content, call.source) if x is not None}
        try:
            self.module.set_attn_implementation("eager")  # type: ignore[operator]
            with Exact():
                out = self.module(**self._tokens_of(call), output_attentions=True)
        finally:
            self.module.set_attn_implementation(before)  # type: ignore[operator]
        maps = {
            f"{side}attention of layer {layer}": weights
            for side, name in (("", ""), ("encoder ", "encoder_"), ("decoder ", "decoder_"), ("cross-", "cross_"))
            for layer, weights in enumerate(getattr(out, f"{name}attentions", None) or ())
            if isinstance(weights, Tensor) and weights.dim() == 4 and (self.images or weights.shape[2] in lengths)
        }
        if not maps:
            raise Unable("it gives no attention weights")
        return maps

    def _tokens_of(self, call: Call) -> dict[str, Tensor]:
        if self.declares.seq2seq:
            return {"input_ids": _given(call.source), "decoder_input_ids": call.content}
        return {"pixel_values" if self.images else "input_ids": call.content}

    def loss_inputs(self) -> bool:
        """A language-modelling head."""
        return any(head in type(self.module).__name__ for head in HEADS)

    def fresh(self, seed: int) -> nn.Module:
        """Built again from its config."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return type(self.module)(copy.deepcopy(self.module.config))

    def widened(self) -> Subject:
        """The copy's experts are computed in float64 too; what only inputs that are not tried pass is left aside."""
        other = super().widened()
        _refine_buffers(other.module)
        if self.declares.experts:
            other.module.set_experts_implementation("eager")  # type: ignore[operator]
            other.assumed = (*other.assumed, *_without_dropout_in_experts(other.module))
        for word, why in ASIDE.items():
            parameters = [p for name, p in other.module.named_parameters() if word in name]
            if parameters and not (self.declares.seq2seq and "encoder" in why):
                for parameter in parameters:
                    parameter.requires_grad_(False)
                other.assumed = (*other.assumed, f"{len(parameters)} weights of {word} are left aside: {why} them")
        return other


def _without_dropout_in_experts(module: nn.Module) -> list[str]:
    """Dropout inside an expert draws as many numbers as it has tokens, so other tokens' draws would move."""
    found = [
        part
        for name, part in module.named_modules()
        if isinstance(part, nn.Dropout) and "expert" in name and part.p > 0
    ]
    for part in found:
        part.p = 0.0
    return (
        [f"dropout inside experts is left out of {len(found)} places: its draws depend on the routing"] if found else []
    )


def _refine_buffers(module: nn.Module) -> None:
    """Tables that were rounded to float32 when the model was made, made again in float64 where they are the same."""
    tables = {name: table for name, table in module.named_buffers() if table.is_floating_point() and "inv_freq" not in name}
    if not tables:
        return
    with torch.random.fork_rng(devices=[]), Exact():
        again = dict(type(module)(copy.deepcopy(module.config)).named_buffers())
    for name, table in tables.items():
        exact = again.get(name)
        if exact is not None and exact.shape == table.shape and torch.allclose(exact.double(), table, rtol=1e-5):
            table.copy_(exact)


def _code(module: nn.Module) -> Any:
    """The file that a class is written in."""
    return sys.modules[type(module).__module__]


def _of_image(out: Any) -> Tensor:
    """Hidden states of the patches with the pooled answer after them, or the classes as one row."""
    states, pooled = getattr(out, "last_hidden_state", None), getattr(out, "pooler_output", None)
    if not isinstance(states, Tensor):
        return first_tensor(out)[:, None]
    states = states.flatten(2).transpose(1, 2) if states.dim() == 4 else states
    pooled = pooled.flatten(1) if isinstance(pooled, Tensor) else None
    return states if pooled is None or pooled.shape[1] != states.shape[2] else torch.cat((states, pooled[:, None]), 1)


def _given(source: Tensor | None) -> Tensor:
    if source is None:
        raise Unable("it needs a source")
    return source


def huggingface_subject(module: nn.Module, example: Tensor | None) -> Subject:
    """The adapter for a PreTrainedModel, from its class and config."""
    config: Any = module.config
    names = inspect.signature(module.forward).parameters
    seq2seq = bool(getattr(config, "is_encoder_decoder", False)) and "decoder_input_ids" in names
    text = config.get_text_config(decoder=True) if seq2seq else config.get_text_config()
    images = "pixel_values" in names and "input_ids" not in names
    causal, why = _causal(module, config, seq2seq, images)
    vocabulary = None if images else getattr(text, "vocab_size", None)
    source = torch.zeros(1, 1, dtype=torch.long) if seq2seq else None
    window, layers = _window(module, text), getattr(text, "num_hidden_layers", None) or 1
    positions, length = _positions(module, names, text), getattr(text, "max_position_embeddings", None)
    if images:
        example = _image(config)
    declares = Declaration(
        type(module).__name__,
        causal,
        causal and any(name in names for name in CACHES),
        positions,
        window=window,
        reach=None if window is None else layers * (window - 1) + 1,
        length=length if isinstance(length, int) and length > 0 else None,
        vocabulary=vocabulary,
        experts=any((getattr(text, name, None) or 0) > 1 for name in EXPERTS),
        seq2seq=seq2seq,
    )
    special = {getattr(text, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "decoder_start")}
    avoid = tuple(sorted(token for token in special if isinstance(token, int)))
    subject = HuggingFaceSubject(module, declares, (), example, source, avoid, library="transformers")
    subject.pad_token = _pad_token(module, text)
    subject.give_positions = subject.pad_token is None or getattr(text, "trigram_input", False)
    starts = [table.min() for name, table in module.named_buffers() if name.endswith("position_ids") and table.numel()]
    subject.first_position = int(starts[0]) if starts else 0
    subject.assumed = (why, *_assumptions(subject))
    return subject


def _assumptions(subject: HuggingFaceSubject) -> list[str]:
    """How it will be called, in plain words."""
    declares, said = subject.declares, []
    if subject.images:
        said.append("called with pixel_values of the size in its config")
    elif declares.seq2seq:
        said.append("called with the source as input_ids and the target as decoder_input_ids")
    elif "pixel_values" in subject.names:
        said.append("called with text alone, without images")
    if declares.window is not None:
        said.append(
            f"every layer's window is {declares.window} keys, the own one included, from sliding_window in its config"
        )
    if declares.positions == "relative":
        said.append("positions are taken as relative, from its config")
    if subject.pad_token is not None and not subject.images:
        said.append(f"padding is written as token {subject.pad_token}, as its tokeniser would, because it looks for it")
    if subject.give_positions and "position_ids" in subject.names and not declares.seq2seq and not subject.images:
        said.append("with padding, position_ids count real tokens only, as generate() passes them")
    said.append("its casts to float32 inside are judged in float64")
    return said


def _causal(module: nn.Module, config: Any, seq2seq: bool, images: bool) -> tuple[bool, str]:
    """Whether the class is taken to look only back, and why."""
    kind = type(module).__name__
    if images:
        return False, f"{kind} takes images: it is taken to see each whole"
    if seq2seq:
        return True, f"{kind} is an encoder-decoder: its decoder is taken to declare causality"
    if kind.startswith(("XLNet", "XLM", "Flaubert")) and not kind.startswith("XLMRoberta"):
        causal = bool(getattr(config, "causal", False)) or getattr(config, "attn_type", "bi") == "uni"
        return causal, f"{kind} is taken to {'look only back' if causal else 'see everything'}, as its config says"
    if any(word in kind for word in ("CausalLM", "LMHead", "GenerationDecoder")):
        return True, f"{kind} is a causal language model by its name: it is taken to declare causality"
    if getattr(config, "is_decoder", False):
        return True, f"{kind} has is_decoder=True in its config: it is taken to declare causality"
    if any(getattr(part, "is_causal", False) is True for part in module.modules()):
        return True, f"attention in {kind} has is_causal=True: it is taken to declare causality"
    return False, f"{kind} is taken to see everything: neither its name nor its config says decoder"


def _window(module: nn.Module, text: Any) -> int | None:
    """Keys that a query sees, where every layer has the same window."""
    size, kinds = getattr(text, "sliding_window", None), getattr(text, "layer_types", None)
    if not isinstance(size, int) or size < 1 or getattr(text, "use_sliding_window", True) is False:
        return None
    if kinds is not None:
        return size if set(kinds) == {"sliding_attention"} else None
    if getattr(text, "block_types", None) is not None:
        return None
    return size if hasattr(_code(module), "create_sliding_window_causal_mask") else None


def _positions(module: nn.Module, names: Any, text: Any) -> Nature:
    """Relative where its config says rotary or ALiBi, none where it is a recurrence, else taken as absolute."""
    if "recurrent" in (getattr(text, "block_types", None) or ()):
        return "absolute"  # RecurrentGemma takes position 0 for the start of a text
    if any(getattr(text, name, None) for name in ROTARY):
        return "relative"
    if getattr(text, "model_type", "") in ALIBI or getattr(text, "alibi", False):
        return "relative"
    if "cache_params" in names or "state" in names:
        return "none"
    tables = any(word in name for name, _ in module.named_modules() for word in ("position_emb", "embed_position"))
    return "relative" if getattr(text, "relative_attention_num_buckets", None) and not tables else "absolute"


def _pad_token(module: nn.Module, text: Any) -> int | None:
    """The pad token, where a part finds positions (or neighbours that count) by looking for it among the tokens."""
    for part in module.modules():
        looks = any(hasattr(holder, name) for holder in (part, _code(part)) for name in FROM_TOKENS)
        index = getattr(part, "padding_idx", None)
        if looks and isinstance(index, int):
            return index
    return getattr(text, "pad_token_id", None) if getattr(text, "trigram_input", False) else None


def _image(config: Any) -> Tensor:
    inner = getattr(config, "vision_config", None) or config
    size = getattr(inner, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    return torch.zeros(1, getattr(inner, "num_channels", 3), height, width)
