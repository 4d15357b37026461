"""Hugging Face transformers: attention_mask, position_ids, past_key_values, .logits; text in all forms, and images."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.huggingface_config import (
    EXPERTS,
    causal_of,
    first_position_of,
    image_of,
    pad_token_of,
    positions_of,
    window_of,
)
from weft.foreign.huggingface_copy import open_gates, refine_buffers, stop_expert_dropout
from weft.foreign.plain import counted, first_tensor, per_token
from weft.foreign.subject import NotTestable, Subject, SubjectCall
from weft.models.output import Declaration

SOURCES = ("input_ids", "input_features", "pixel_values")
CACHES = ("past_key_values", "cache_params", "state")
HEADS = ("CausalLM", "LMHead", "MaskedLM", "ConditionalGeneration", "GenerationDecoder", "MTModel")
ASIDE = {
    "pooler": "only an answer for the whole text passes",
    "contact_head": "only predicted contacts pass",
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

    With a cache they are given where `number_steps`. `pad_token` is written at padded places where the class looks for
    it; `first_position` is where it counts from.
    """

    give_positions: bool = True
    number_steps: bool = False
    first_position: int = 0
    pad_token: int | None = None
    source_name: str = "input_ids"

    @property
    def names(self) -> Any:
        return inspect.signature(self.module.forward).parameters

    def run(self, call: SubjectCall) -> Tensor:
        """[B, T] -> logits or hidden states [B, T, C]."""
        with self.exact:
            if self.declares.seq2seq:
                return self._run_seq2seq(call)
            if self.images:
                call.takes()
                return _of_image(self.module(pixel_values=call.content))
            if "input_ids" not in self.names:
                taken = ", ".join(list(self.names)[:2])
                raise NotTestable(
                    f"its forward takes {taken}, neither input_ids nor pixel_values: write a Subject for it"
                )
            call.takes("real", "positions", "documents")
            content, extra = self._masked(call.content, call.real), self._extra(call)
            out = first_tensor(self.module(input_ids=content, **extra))
            if call.documents is not None:
                self._refuse_unless_packed(call.content, extra, out)
            return out

    def _refuse_unless_packed(self, content: Tensor, extra: dict[str, Any], out: Tensor) -> None:
        """transformers looks for documents in position_ids only without an attention_mask, and not in every class."""
        whole = self.module(input_ids=content, attention_mask=torch.ones_like(content), **extra)
        if torch.allclose(first_tensor(whole), out, rtol=0, atol=1e-12):
            raise NotTestable("its class makes no mask for packed documents from position_ids")

    def _extra(self, call: SubjectCall) -> dict[str, Any]:
        extra: dict[str, Any] = {"use_cache": False} if "use_cache" in self.names else {}
        if call.real is not None:
            if "attention_mask" not in self.names:
                raise NotTestable("its forward takes no attention_mask")
            extra["attention_mask"] = call.real.long()
            if self.give_positions and call.positions is None and "position_ids" in self.names:
                extra["position_ids"] = counted(call.real) + self.first_position
        if call.documents is not None:
            extra["position_ids"] = self._packed(call.documents) + self.first_position
            extra |= self._boundaries(call.documents)
        if call.positions is not None:
            if "position_ids" not in self.names:
                raise NotTestable("its forward takes no position_ids")
            extra["position_ids"] = call.positions.expand(call.content.shape[0], -1) + self.first_position
        return extra

    def _packed(self, documents: Tensor) -> Tensor:
        """Positions that begin again at each document, from which transformers makes a mask for packed texts."""
        if "position_ids" not in self.names or "attention_mask" not in self.names or not self.give_positions:
            raise NotTestable("its class makes no mask for packed documents from position_ids")
        index = torch.arange(documents.shape[1]).expand_as(documents)
        starts = torch.ones_like(documents, dtype=torch.bool)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
        return index - torch.where(starts, index, 0).cummax(1).values

    def _boundaries(self, documents: Tensor) -> dict[str, Any]:
        """The same as a collator for packed texts tells it; convolutions and recurrences beside attention read this."""
        if len(documents) != 1 or inspect.Parameter.VAR_KEYWORD not in {p.kind for p in self.names.values()}:
            return {}
        sizes = documents[0].unique_consecutive(return_counts=True)[1]
        ends = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int()
        longest = int(sizes.max())
        told = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
        return {**told, "seq_idx": documents.int()}

    def _masked(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """The pad token at padded places, for classes that look for it."""
        return tokens if real is None or self.pad_token is None else tokens.masked_fill(~real, self.pad_token)

    def _run_seq2seq(self, call: SubjectCall) -> Tensor:
        call.takes("real", "source", "source_real")
        extra: dict[str, Any] = {"use_cache": False} if "use_cache" in self.names else {}
        if call.source_real is not None:
            extra["attention_mask"] = call.source_real.long()
        if call.real is not None:
            if "decoder_attention_mask" not in self.names:
                raise NotTestable("its forward takes no decoder_attention_mask")
            extra["decoder_attention_mask"] = call.real.long()
            if self.give_positions and self._takes("decoder_position_ids", "decoder"):
                extra["decoder_position_ids"] = counted(call.real)
        if call.source_real is not None and self.give_positions and self._takes("", "encoder"):
            extra["position_ids"] = counted(call.source_real)
        extra |= self._source(call)
        return first_tensor(self.module(decoder_input_ids=self._masked(call.content, call.real), **extra))

    def _takes(self, name: str, side: str) -> bool:
        """Whether one side's positions can be given: by name, or passed on by a model composed of two others."""
        part = getattr(self.module, side, None) if hasattr(self.module.config, side) else None
        return name in self.names or (part is not None and "position_ids" in inspect.signature(part.forward).parameters)

    def _source(self, call: SubjectCall) -> dict[str, Tensor]:
        """Tokens, sound [B, frames, channels] or an image, under the name that its forward has for them."""
        if call.source is None:
            raise NotTestable("it needs a source")
        if self.source_name == "input_features" and hasattr(self.module.config, "num_mel_bins"):
            return {self.source_name: call.source.transpose(1, 2)}
        return {self.source_name: self._masked(call.source, call.source_real)}

    @property
    def _cache_name(self) -> str:
        return next(name for name in CACHES if name in self.names)

    def make_cache(self, batch: int) -> Any:
        """No past yet: the model makes its own in the first call."""
        if not self.declares.cached:
            raise NotTestable(f"its forward takes none of {', '.join(CACHES)}")
        return None, None, 0

    def run_cached(self, call: SubjectCall, cache: Any) -> tuple[Tensor, Any]:
        """Feed tokens with the past; their logits and the new past. A source is encoded once, as `generate` does."""
        call.takes("source")
        encoded, past, count = cache
        name = self._cache_name
        with self.exact:
            given: dict[str, Any] = {"input_ids": call.content}
            if self.declares.seq2seq:
                if encoded is None:
                    encoded = self.module.get_encoder()(**self._source(call), return_dict=True)  # type: ignore[operator]
                given = {"encoder_outputs": encoded, "decoder_input_ids": call.content}
            if self.number_steps:
                given["position_ids"] = torch.arange(count, count + call.content.shape[1])[None] + self.first_position
            out = self.module(**given, **{name: past}, use_cache=True)
        past = getattr(out, name, None)
        if past is None:
            raise NotTestable(f"with use_cache=True its answer holds no {name}: it keeps its state to itself")
        return per_token(first_tensor(out), call.content.shape[1]), (encoded, past, count + call.content.shape[1])

    def without_positions(self) -> tuple[Subject, str] | None:
        """Without position_ids, which `generate` passes with padding and people who call the model often do not."""
        side = "decoder" if self.declares.seq2seq else ""
        name = "decoder_position_ids" if side else "position_ids"
        if self.images or not self.give_positions or not (self._takes(name, side) if side else name in self.names):
            return None
        other = copy.copy(self)
        other.give_positions = False
        return other, name

    def with_step_positions(self) -> tuple[Subject, str] | None:
        """With position_ids that go on counting from the cache, which `generate` passes too."""
        if self.declares.seq2seq or self.number_steps or "position_ids" not in self.names:
            return None
        other = copy.copy(self)
        other.number_steps = True
        return other, "position_ids"

    def backends(self) -> tuple[str, ...]:
        """Eager and SDPA where both can be set."""
        return ("eager", "sdpa") if getattr(self.module, "_supports_sdpa", False) else ()

    def set_backend(self, name: str) -> None:
        """By the model's own switch, which may silently refuse."""
        self.module.set_attn_implementation(name)  # type: ignore[operator]
        if self._implementation != name:
            raise NotTestable("its class does not let the implementation of attention be set")

    @property
    def _implementation(self) -> str:
        return str(self.module.config._attn_implementation)  # type: ignore[union-attr]

    def attention_maps(self, call: SubjectCall) -> dict[str, Tensor]:
        """With the eager implementation, which returns them; then back to the one before."""
        if any(name.endswith("sinks") for name, _ in self.module.named_parameters()):
            raise NotTestable("its rows share their mass with a sink that is not given: they sum to less than one")
        before, lengths = self._implementation, self._lengths(call)
        try:
            self.module.set_attn_implementation("eager")  # type: ignore[operator]
            with self.exact:
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
            raise NotTestable("it gives no attention weights")
        return maps

    def _lengths(self, call: SubjectCall) -> set[int]:
        return {x.shape[1] for x in (call.content, call.source) if x is not None}

    def _tokens_of(self, call: SubjectCall) -> dict[str, Tensor]:
        if self.declares.seq2seq:
            return {**self._source(call), "decoder_input_ids": call.content}
        return {"pixel_values" if self.images else "input_ids": call.content}

    def loss_inputs(self) -> bool:
        return any(head in type(self.module).__name__ for head in HEADS)

    def fresh(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return type(self.module)(copy.deepcopy(self.module.config))

    def widened(self) -> Subject:
        """The copy's experts are computed in float64 too; what only inputs that are not tried pass is left aside."""
        other = super().widened()
        refine_buffers(other.module)
        open_gates(other.module)
        if self.declares.experts and hasattr(other.module, "set_experts_implementation"):
            other.module.set_experts_implementation("eager")  # type: ignore[operator]
            other.assumed = (*other.assumed, *stop_expert_dropout(other.module))
        for word, why in self._aside().items():
            parameters = [p for name, p in other.module.named_parameters() if word in name and p.requires_grad]
            for parameter in parameters:
                parameter.requires_grad_(False)
            if parameters:
                other.assumed = (*other.assumed, f"{len(parameters)} weights of {word} are left aside: {why} them")
        return other

    def _aside(self) -> dict[str, str]:
        """Parts by a word in their path, and what alone passes them."""
        aside = {word: why for word, why in ASIDE.items() if not (self.declares.seq2seq and "encoder" in why)}
        if self.images or type(self.module).__name__.endswith(("SequenceClassification", "MultipleChoice")):
            del aside["pooler"]
        if type(self.module).__name__.endswith("TextModel"):
            aside["head."] = ASIDE["pooler"]
        if getattr(self.module.config, "model_type", "") == "phimoe":
            aside["router"] = "only in training does a gradient pass"
        if "pixel_values" in self.names and not self.images:
            aside |= dict.fromkeys(("vision", "visual", "image", "projector", "connector"), "only images pass")
        return aside


def _of_image(out: Any) -> Tensor:
    """Hidden states of the patches with the pooled answer after them, or the classes as one row."""
    states, pooled = getattr(out, "last_hidden_state", None), getattr(out, "pooler_output", None)
    if not isinstance(states, Tensor):
        return first_tensor(out)[:, None]
    states = states.flatten(2).transpose(1, 2) if states.dim() == 4 else states
    pooled = pooled.flatten(1) if isinstance(pooled, Tensor) else None
    return states if pooled is None or pooled.shape[1] != states.shape[2] else torch.cat((states, pooled[:, None]), 1)


def huggingface_subject(module: nn.Module, example: Tensor | None) -> Subject:
    """The adapter for a PreTrainedModel, from its class and config."""
    config: Any = module.config
    names = inspect.signature(module.forward).parameters
    seq2seq = bool(getattr(config, "is_encoder_decoder", False)) and "decoder_input_ids" in names
    text = config.get_text_config(decoder=True) if seq2seq else config.get_text_config()
    images = "pixel_values" in names and "input_ids" not in names and not seq2seq
    causal, why = causal_of(module, seq2seq, images)
    vocabulary = None if images else getattr(text, "vocab_size", None)
    source_name = next((name for name in SOURCES if name in names), "input_ids")
    source = _source_example(config, source_name) if seq2seq else None
    window, layers = window_of(module, text), getattr(text, "num_hidden_layers", None) or 1
    positions, length = positions_of(module, names, text), getattr(text, "max_position_embeddings", None)
    if images:
        example = image_of(config)
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
    subject.pad_token, subject.source_name = pad_token_of(module, text), source_name
    subject.give_positions = subject.pad_token is None or getattr(text, "trigram_input", False)
    subject.first_position = first_position_of(module)
    subject.assumed = (why, *_assumptions(subject))
    if not images and not seq2seq and "pixel_values" in names:
        from weft.foreign.huggingface_images import image_text_subject

        return image_text_subject(subject) or subject
    return subject


def _source_example(config: Any, name: str) -> Tensor:
    """One source of the kind that an encoder-decoder reads; Whisper takes sound of just one length."""
    if name == "input_features":
        frames = 2 * config.max_source_positions if hasattr(config, "num_mel_bins") else 32
        return torch.zeros(1, frames, getattr(config, "num_mel_bins", getattr(config, "input_feat_per_channel", 80)))
    return (
        image_of(getattr(config, "encoder", config)) if name == "pixel_values" else torch.zeros(1, 1, dtype=torch.long)
    )


def _assumptions(subject: HuggingFaceSubject) -> list[str]:
    """How it will be called, in plain words."""
    declares, said = subject.declares, []
    if subject.images:
        said.append("called with pixel_values of the size in its config")
    elif declares.seq2seq:
        said.append(f"called with the source as {subject.source_name} and the target as decoder_input_ids")
    elif "pixel_values" in subject.names:
        said.append("called with text alone, without images")
    if declares.window is not None:
        said.append(
            f"every layer's window is {declares.window} keys, the own one included, from sliding_window in its config"
        )
    if declares.positions == "relative":
        said.append("positions are taken as relative, from its config")
    if subject.pad_token is not None and not subject.images:
        said.append(f"padding is written as token {subject.pad_token}, as its tokenizer would, because it looks for it")
    if subject.give_positions and "position_ids" in subject.names and not declares.seq2seq and not subject.images:
        said.append("with padding, position_ids count real tokens only, as generate() passes them")
    if _counts_pads(subject):
        said.append("it takes no position_ids, so padding on the left would be counted: pad on the right")
    return said


def _counts_pads(subject: HuggingFaceSubject) -> bool:
    """Whether the model counts absolute positions itself, without regard to padding."""
    told = subject.pad_token is not None or (
        subject._takes("decoder_position_ids", "decoder")
        if subject.declares.seq2seq
        else "position_ids" in subject.names
    )
    return subject.declares.positions == "absolute" and not told and not subject.images
