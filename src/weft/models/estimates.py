"""Estimates: parameters, matrix products, FLOPs and memory of a model of any size, from its spec and a length N.

The model is built on the meta device (shapes without numbers), so parameters are counted, not guessed.

FLOPs: 2 per multiply-add of a matrix product, all else 0; one forward pass over one sequence of N tokens. Scores
count at length N, a causal mask is not discounted, a window of w keys counts as w. Training is 3 x forward: one
forward, two for the gradients of inputs and weights. Encoder-decoders read a source and a target of N tokens each; a
source that is an image has its patches.
Memory: in bytes, for one sequence; activations of training are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from weft.foundation.errors import SpecError, WeftError
from weft.foundation.matrix_products import MatrixProduct, Products, ProductView
from weft.models.attention_kernels import attention_kernels
from weft.models.build import AnySpec, build
from weft.models.decoder import Decoder
from weft.models.encoder import Encoder
from weft.models.encoder_decoder import EncoderDecoder
from weft.models.estimate_types import Estimate, Group, KeptMemory, MemoryUse
from weft.models.image_text import ImageTextDecoder
from weft.models.part_tree import active_parameters, parameters_by_role, part_tree
from weft.models.products import position_products, products
from weft.models.recurrent_seq2seq import RecurrentSeq2Seq
from weft.models.series import SeriesDecoder
from weft.models.stack_spec import StackSpec
from weft.models.two_tower import TwoTowers
from weft.models.vision import VisionSpec, VisionTransformer
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.block import Block
from weft.parts.convolution import Convolution
from weft.parts.linear_attention import LinearAttention
from weft.parts.masks import Mask
from weft.parts.recurrence import Recurrence, Recurrent
from weft.parts.stack import Stack


def unfused_attention_bytes(heads: int, length: int, bytes_each: int = 2) -> int:
    """What the attention weights A of one layer take when stored: H x N x N numbers."""
    return heads * length * length * bytes_each


def default_length(spec: AnySpec) -> int:
    """N where none is given: the spec's length; for images the number of tokens."""
    return _image_tokens(spec) if isinstance(spec, VisionSpec) else spec.length


def estimate(spec: AnySpec, length: int | None = None) -> Estimate:
    """Parameters, products, FLOPs and memory of this model at length N (its own length if not given)."""
    length = default_length(spec) if length is None else length
    if length < 1:
        raise WeftError(f"length {length}, but a sequence has at least one token: choose a length from 1")
    with _NoNumbers():
        model = blank_model(spec)
        plan = _plan(model, length)
    parameters = sum(p.numel() for p in model.parameters())
    kept = sum(part.numbers for part in plan.state)
    return Estimate(
        family=spec.family,
        width=spec.width,
        heads=plan.heads,
        layers=sum(isinstance(part, Block) for part in model.modules()),
        length=length,
        tokens=plan.tokens,
        parameters=parameters,
        active_parameters=active_parameters(model),
        parts=part_tree(model, spec.family),
        roles=parameters_by_role(model),
        groups=plan.groups,
        state=plan.state,
        memory=MemoryUse(
            weights_float32=4 * parameters,
            weights_2_bytes=2 * parameters,
            training_adamw=16 * parameters,
            state_float32=4 * kept,
            state_2_bytes=2 * kept,
            unfused_attention=unfused_attention_bytes(plan.heads, plan.tokens),
        ),
        kernels=attention_kernels(model, plan.tokens),
        notes=_notes(spec, length),
    )


class _NoNumbers(TorchFunctionMode):
    """Only shapes matter here: on the meta device torch's randn and mul would load its compiler first, for seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.mul and isinstance(args[1], (int, float)):
            return args[0]
        return (torch.empty if func is torch.randn else func)(*args, **(kwargs or {}))


def blank_model(spec: AnySpec) -> nn.Module:
    """The model on the meta device: all its parts and shapes, no numbers."""
    try:
        with _NoNumbers():
            return build(spec, device="meta")
    except (RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise SpecError(f"no tensor can have these sizes ({reason}): choose smaller numbers") from None


def _image_tokens(spec: VisionSpec) -> int:
    return spec.side**2 + spec.extra


def _notes(spec: AnySpec, length: int) -> tuple[str, ...]:
    if isinstance(spec, VisionSpec) or length <= spec.length:
        return ()
    if isinstance(spec, StackSpec) and spec.positions.kind == "learned":
        return (f"{length:,} tokens, but the learned positions hold {spec.length:,}: raise length to run it",)
    return (f"{length:,} tokens, but the model was made for {spec.length:,}",)


@dataclass(frozen=True)
class _Plan:
    """What runs for one sequence, and what is kept of it."""

    tokens: int
    groups: tuple[Group, ...]
    state: tuple[KeptMemory, ...] = ()
    heads: int = 0


@singledispatch
def _plan(model: nn.Module, length: int) -> _Plan:
    raise TypeError(f"there is no estimate for a {type(model).__name__}")


@_plan.register(Decoder)
@_plan.register(SeriesDecoder)
def _decoder(model: Decoder | SeriesDecoder, length: int) -> _Plan:
    view = ProductView.full(length)
    return _around(model.stack, model.embedding, model.head, view, view)


@_plan.register
def _encoder(model: Encoder, length: int) -> _Plan:
    entering, inside = ProductView.full(length), ProductView.full(length + (1 if model.spec.class_token else 0))
    return _around(model.stack, model.embedding, model.head, entering, inside, answers=length, cached=False)


@_plan.register
def _vision(model: VisionTransformer, length: int) -> _Plan:
    patches = ProductView.full(length - model.spec.extra)
    return _around(model.stack, model.patches, model.head, patches, ProductView.full(length), cached=False)


@_plan.register
def _image_text(model: ImageTextDecoder, length: int) -> _Plan:
    P = model.spec.prefix
    return _around(model.stack, model.patches, model.head, ProductView.full(P), ProductView.full(P + length), length)


@_plan.register
def _two_towers(model: TwoTowers, length: int) -> _Plan:
    image, text = model.image, model.text
    tokens = _image_tokens(image.spec)
    one = ProductView.full(1)
    groups = (
        Group("image input", 1, products(image.patches, ProductView.full(tokens - image.spec.extra))),
        *_stack_groups("image block", image.stack, tokens),
        *_stack_groups("text block", text.stack, length),
        Group("image output", 1, products(model.image_head, one)),
        Group("text output", 1, products(model.text_head, one)),
    )
    return _Plan(tokens + length, _filled(groups), (), max(_heads(image.stack), _heads(text.stack)))


def _around(
    stack: Stack,
    entry: nn.Module,
    head: nn.Module,
    entering: ProductView,
    inside: ProductView,
    answers: int | None = None,
    cached: bool = True,
) -> _Plan:
    """Input, one stack, output; the head works on `answers` tokens, all if not given."""
    groups = (
        Group("input", 1, products(entry, entering)),
        *_stack_groups("block", stack, inside.queries),
        Group("output", 1, products(head, ProductView.full(answers or inside.queries))),
    )
    state = _stack_state(stack, inside.queries) if cached else ()
    return _Plan(inside.queries, _filled(groups), state, _heads(stack))


@_plan.register
def _encoder_decoder(model: EncoderDecoder, length: int) -> _Plan:
    source = model.spec.source.tokens(length)
    groups = (
        Group("input", 1, products(model.embedding, ProductView.full(source))),
        *_stack_groups("encoder block", model.encoder, source),
        *_stack_groups("decoder block", model.decoder, length, source=source),
        Group("output", 1, products(model.head, ProductView.full(length))),
    )
    heads = max(_heads(model.encoder), _heads(model.decoder))
    return _Plan(length, _filled(groups), _stack_state(model.decoder, length, source=source), heads)


@_plan.register
def _recurrent_seq2seq(model: RecurrentSeq2Seq, length: int) -> _Plan:
    spec, view = model.spec, ProductView.full(length)
    looks: Products = ()
    if model.score is not None:
        looks = model.score.matrix_products((spec.hidden, spec.memory_width), view)
        if model.combine is None:  # the decoder's W_c is applied to all h_i before, not to each c_t
            gates = model.decoder.input_weight.shape[0]
            looks += (MatrixProduct("A H W_c", "W_c c_t = sum_i a_ti W_c h_i", length, length, gates),)
        else:
            looks += (MatrixProduct("A H", "c_t = sum_i a_ti h_i", length, length, spec.memory_width),)
    first = MatrixProduct("first", "s_0 = tanh(W h_T)", 1, model.first.in_features, model.first.out_features)
    combine = model.combine
    both = () if combine is None else (MatrixProduct("combine", "W [c; h]", length, combine.in_features, spec.hidden),)
    groups = (
        Group("encoder", 1, products(model.encoder, view)),
        Group("decoder", 1, (first, *looks, *products(model.decoder, view), *both)),
        Group("output", 1, products(model.head, view)),
    )
    memory = spec.memory_width * (length if model.score is not None else 1)
    state = (KeptMemory("hidden vectors", _hidden(model.decoder)), KeptMemory("states of the source", memory))
    return _Plan(length, groups, state, 0 if model.score is None else 1)


def _filled(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    return tuple(group for group in groups if group.products)


def _heads(stack: Stack) -> int:
    return max((part.heads for part in stack.modules() if isinstance(part, (SelfAttention, CrossAttention))), default=0)


def _reach(mask: Mask, tokens: int) -> tuple[int, int]:
    """(keys that a query sees, keys that the state keeps) under this mask."""
    back, ahead = mask.band()
    seen = tokens if back is None or ahead is None else min(tokens, back + 1 + ahead)
    return seen, tokens if back is None else min(tokens, back + 1)


def _stack_groups(where: str, stack: Stack, tokens: int, source: int | None = None) -> list[Group]:
    """One group for each kind of block: blocks with the same products are counted together."""
    found: dict[tuple[str, Products], int] = {}
    for block, mask in zip(stack.blocks, stack.masks, strict=True):
        assert isinstance(block, Block)
        seen, kept = _reach(mask, tokens)
        view = ProductView(tokens, tokens, seen)
        run = (*products(block.mixer, view), *position_products(stack.position, block.mixer, view))
        if block.cross is not None and source is not None:
            run += products(block.cross, ProductView.full(tokens, source))
        run += products(block.feedforward, view)
        windowed = seen < tokens and isinstance(block.mixer, SelfAttention)
        title = f"{where} (window {kept})" if windowed else where
        found[title, run] = found.get((title, run), 0) + 1
    return [Group(title, copies, run) for (title, run), copies in found.items()]


def _stack_state(stack: Stack, tokens: int, source: int | None = None) -> tuple[KeptMemory, ...]:
    """What all layers keep, by kind."""
    sums: dict[str, int] = {}
    for block, mask in zip(stack.blocks, stack.masks, strict=True):
        assert isinstance(block, Block)
        parts = [_kept(block.mixer, _reach(mask, tokens)[1])]
        if block.cross is not None and source is not None:
            parts.append(KeptMemory("keys and values of the source", _pairs(block.cross, source)))
        for kept in parts:
            sums[kept.what] = sums.get(kept.what, 0) + kept.numbers
    return tuple(KeptMemory(what, numbers) for what, numbers in sums.items() if numbers)


def _pairs(attention: SelfAttention | CrossAttention, tokens: int) -> int:
    """N x G x (K + V)."""
    return tokens * attention.key_heads * (attention.head_width + attention.value_width)


def _hidden(recurrent: Recurrent) -> int:
    return recurrent.width * (2 if recurrent.cell == "lstm" else 1)


def _kept(mixer: nn.Module | None, tokens: int) -> KeptMemory:
    """What one mixer keeps of one sequence."""
    if isinstance(mixer, SelfAttention):
        return KeptMemory("keys and values", _pairs(mixer, tokens))
    if isinstance(mixer, LinearAttention):
        return KeptMemory("running sums", mixer.heads * mixer.head_width * (mixer.head_width + 1))
    if isinstance(mixer, Recurrence):
        return KeptMemory("hidden vectors", _hidden(mixer.recurrent))
    if isinstance(mixer, Convolution):
        return KeptMemory("last inputs", (mixer.kernel - 1) * mixer.width)
    return KeptMemory("nothing", 0)
