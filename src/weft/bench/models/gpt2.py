"""GPT-2 in any size: Weft's own, and the same weights in transformers and x-transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

import weft
from weft.bench.contest import Cost


@dataclass(frozen=True)
class GPTShape:
    """The numbers of a GPT-2."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    length: int = 1024

    @property
    def matrix_weights(self) -> int:
        """Weights that each token is multiplied by: matrices and biases of the blocks, and the head."""
        D = self.width
        return self.layers * (12 * D * D + 13 * D) + 2 * D + self.vocabulary * D

    def forward_flops(self, tokens: int, context: int) -> float:
        """2 N per token and causal attention: (context + 1) / 2 keys on average, 4 D per key and layer."""
        return tokens * (2.0 * self.matrix_weights + 4 * self.layers * self.width * (context + 1) / 2)

    def training_cost(self, batch: int, length: int) -> Cost:
        """6 N per token plus attention: three times the forward pass; recomputation is not counted."""
        return Cost(flops=3 * self.forward_flops(batch * length, length))

    def products(self, rows: int) -> tuple[tuple[int, int, int], ...]:
        """(M, N, K) of the products over so many rows."""
        D = self.width
        return ((rows, 3 * D, D), (rows, D, D), (rows, 4 * D, D), (rows, D, 4 * D), (rows, self.vocabulary, D))

    def to_tree(self) -> dict[str, int]:
        """As arguments of a contestant."""
        return asdict(self)


GPT2 = GPTShape()


def gpt2_spec(shape: GPTShape) -> Any:
    """The preset in this shape."""
    numbers = {"layers": shape.layers, "width": shape.width, "vocabulary": shape.vocabulary, "length": shape.length}
    return weft.preset("gpt2").replace(**numbers, **{"mixer.heads": shape.heads})


def weft_gpt2(shape: GPTShape, seed: int = 1) -> Any:
    """Weft's GPT-2 of this shape, with random weights of its own initialization."""
    return weft.build(gpt2_spec(shape), seed=seed)


def parts_of(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights of a Weft GPT-2 under the names that GGUF files have for them."""
    yield "token_embd.weight", model.embedding.weight
    yield "position_embd.weight", model.input.position.table
    yield "output_norm.weight", model.stack.norm.gamma
    yield "output_norm.bias", model.stack.norm.beta
    for n, block in enumerate(model.stack.blocks):
        parts = {
            "attn_norm": block.mixer_norm, "attn_qkv": block.mixer.qkv, "attn_output": block.mixer.output,
            "ffn_norm": block.feedforward_norm, "ffn_up": block.feedforward.up, "ffn_down": block.feedforward.down,
        }  # fmt: skip
        for name, part in parts.items():
            weight, bias = (part.gamma, part.beta) if hasattr(part, "gamma") else (part.weight, part.bias)
            yield f"blk.{n}.{name}.weight", weight
            yield f"blk.{n}.{name}.bias", bias


TRANSFORMERS_NAMES = {
    "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "attn_norm": "ln_1", "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip


@torch.no_grad()
def transformers_gpt2(model: Any, shape: GPTShape) -> nn.Module:
    """transformers' GPT2LMHeadModel with the weights of `model`, or its own; without dropout, as Weft's preset."""
    from transformers import GPT2Config, GPT2LMHeadModel

    quiet: dict[str, Any] = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
    config = GPT2Config(
        n_layer=shape.layers, n_embd=shape.width, n_head=shape.heads, vocab_size=shape.vocabulary,
        n_positions=shape.length, bos_token_id=0, eos_token_id=0, **quiet,
    )  # fmt: skip
    build: Any = GPT2LMHeadModel
    peer = build(config)
    if model is None:
        return peer
    own = dict(peer.transformer.named_parameters())
    for name, weight in parts_of(model):
        *place, part, kind = name.split(".")
        target = ".".join(filter(None, (f"h.{place[1]}" if place else "", TRANSFORMERS_NAMES[part], kind)))
        # Its linear maps keep their matrices as [inputs, outputs].
        turned = weight.dim() == 2 and part not in ("token_embd", "position_embd")
        own[target].copy_(weight.T if turned else weight)
    return peer


@torch.no_grad()
def x_transformers_gpt(model: Any, shape: GPTShape) -> nn.Module:
    """x-transformers' nearest decoder: the same but for biases, which it has only inside the feed-forward.

    Weft's biases begin at 0, so the first loss is the same. Its positions and its logits are scaled by D^(-1/2), which
    a larger table and a larger gain (1 + gamma) of the last norm take back without an operation more.
    """
    from x_transformers import Decoder, TransformerWrapper

    D = shape.width
    peer: Any = TransformerWrapper(
        num_tokens=shape.vocabulary, max_seq_len=shape.length, tie_embedding=True, use_abs_pos_emb=True,
        attn_layers=Decoder(
            dim=D, depth=shape.layers, heads=shape.heads, attn_dim_head=D // shape.heads, attn_flash=True,
            ff_custom_activation=nn.GELU(approximate="tanh"), rotary_pos_emb=False,
        ),
    )  # fmt: skip
    if model is None:
        return peer
    peer.token_emb.emb.weight.copy_(model.embedding.weight)
    peer.pos_emb.emb.weight.copy_(model.input.position.table * D**0.5)
    peer.attn_layers.final_norm.gamma.fill_(D**0.5 - 1)
    layers = list(peer.attn_layers.layers)
    for n, block in enumerate(model.stack.blocks):
        attention, feedforward = layers[2 * n][1], layers[2 * n + 1][1]
        for name, weight in zip("qkv", block.mixer.qkv.weight.chunk(3), strict=True):
            getattr(attention, f"to_{name}").weight.copy_(weight)
        attention.to_out.weight.copy_(block.mixer.output.weight)
        up, down = (part for part in feedforward.modules() if isinstance(part, nn.Linear))
        up.weight.copy_(block.feedforward.up.weight)
        down.weight.copy_(block.feedforward.down.weight)
        for part in (up, down):
            if part.bias is not None:
                part.bias.zero_()
    return peer
