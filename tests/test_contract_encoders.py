"""Every legal pair of options of an encoder and of an encoder-decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft
from pairwise import cover
from subjects import build
from test_contract_models import CLOSE, gap
from weft.models.encoder import EncoderSpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.teacher_forcing import IGNORED, teacher_forcing
from weft.parts.masks import Documents, Padding

COMMON: dict[str, list[Any]] = {
    "feedforward": [
        {"kind": "classic", "hidden": 19}, {"kind": "gated", "hidden": 17}, {"kind": "experts", "experts": 3},
    ],
    "positions": [
        {"kind": "none"}, {"kind": "learned"}, {"kind": "sinusoidal", "join": "concatenate", "width": 6},
        {"kind": "relative", "reach": 3}, {"kind": "bucketed", "buckets": 8, "farthest": 13}, {"kind": "rotary"},
        {"kind": "alibi"},
    ],
    "norm": [{"kind": "layer"}, {"kind": "rms"}],
    "arrangement": ["pre-norm", "post-norm"],
}  # fmt: skip
ENCODER: dict[str, list[Any]] = COMMON | {
    "mixer": [
        {"kind": "attention", "heads": 3},
        {"kind": "attention", "heads": 4, "key_heads": 2, "window": 3, "head_width": 8},
        {"kind": "attention", "heads": 3, "score": "additive"}, {"kind": "linear-attention", "heads": 3},
        {"kind": "recurrence", "bidirectional": True, "hidden": 7}, {"kind": "recurrence", "cell": "lstm"},
        {"kind": "convolution", "kernel": 3},
    ],
    "input": [
        {"kind": "tokens", "vocabulary": 47}, {"kind": "vectors", "channels": 5},
        {"kind": "words", "vocabulary": 47, "characters": 23, "character_width": 7, "longest": 6},
    ],
    "class_token": [True, False],
    "input_norm": [True, False],
    "output": [
        {"kind": "pooled", "pool": "first", "classes": 3},
        {"kind": "pooled", "pool": "mean", "hidden": 7, "classes": 3},
        {"kind": "pooled", "pool": "last", "classes": 3}, {"kind": "per-token", "classes": 3},
    ],
}  # fmt: skip
SEQ2SEQ: dict[str, list[Any]] = COMMON | {
    "mixer": [
        {"kind": "attention", "heads": 3}, {"kind": "attention", "heads": 3, "score": "dot", "bias": False},
        {"kind": "attention", "heads": 6, "key_heads": 2, "query_key_norm": {"kind": "rms"}, "head_width": 4},
        {"kind": "attention", "heads": 3, "score": "bilinear", "window": 4},
    ],
    "target_vocabulary": [None, 43],
    "decoder_layers": [None, 1, 3],
    "head": [{"kind": "tied"}, {"kind": "linear", "bias": True}],
}  # fmt: skip
START = {"scheme": "fan-in", "embedding": 1.0}


def encoder(c) -> EncoderSpec:
    return EncoderSpec(width=24, layers=2, length=31, initialization=START, **c)


def seq2seq(c) -> EncoderDecoderSpec:
    return EncoderDecoderSpec(width=24, layers=2, length=31, vocabulary=47, initialization=START, **c)


def legal(make):
    def possible(c) -> bool:
        try:
            make(c)
        except weft.WeftError:
            return False
        return True

    return possible


ENCODERS = cover(ENCODER, legal(encoder))
PAIRS = cover(SEQ2SEQ, legal(seq2seq))


def content(spec, batch, length, seed=0):
    random = torch.Generator().manual_seed(seed)
    if spec.input.kind == "vectors":
        return torch.randn(batch, length, 5, generator=random, dtype=torch.float64)
    if spec.input.kind == "words":
        words = torch.randint(0, 47, (batch, length, 1), generator=random)
        return torch.cat((words, torch.randint(0, 23, (batch, length, 6), generator=random)), -1)
    return torch.randint(0, 47, (batch, length), generator=random)


def ids(c) -> str:
    return "-".join(str(v.get("kind", v)) if isinstance(v, dict) else str(v) for v in c.values())


@pytest.mark.parametrize("c", ENCODERS, ids=ids)
def test_encoders(c):
    spec = encoder(c)
    model = build(spec)
    x = content(spec, 3, 11)
    plain = model(x)
    assert torch.isfinite(plain.logits).all()
    for side in ("left", "right"):
        padded = content(spec, 3, 11, seed=5)
        lengths = [4, 11, 1]
        places = [slice(11 - n, 11) if side == "left" else slice(0, n) for n in lengths]
        for row, (place, n) in enumerate(zip(places, lengths, strict=True)):
            padded[row, place] = x[row, :n]
        out = model(padded, mask=Padding(torch.tensor(lengths), side))
        for row, (place, n) in enumerate(zip(places, lengths, strict=True)):
            alone = model(x[row : row + 1, :n]).logits[0]
            mine = out.logits[row, place] if spec.output.kind == "per-token" else out.logits[row]
            assert gap(mine, alone) < CLOSE
    if not spec.class_token:
        documents = torch.tensor([[0] * 4 + [1] * 7] * 3)
        packed = model(x, mask=Documents(documents)).hidden
        assert gap(packed[:, 4:], model(x[:, 4:]).hidden) < CLOSE
    other = x.clone()
    other[1:] = content(spec, 3, 11, seed=9)[1:]
    assert gap(model(other).logits[0], plain.logits[0]) < CLOSE
    if spec.declares().order_free and spec.output.kind == "per-token":
        order = torch.randperm(11)
        assert gap(model(x[:, order]).logits, plain.logits[:, order]) < CLOSE
    (plain.logits.square().mean() + plain.hidden.square().mean()).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("c", PAIRS, ids=ids)
def test_encoder_decoders(c):
    model = build(seq2seq(c))
    random = torch.Generator().manual_seed(1)
    source = torch.randint(0, 47, (2, 9), generator=random)
    batch = teacher_forcing([[5, 6, 7, 8], [9, 10]], start=1, stop=2)
    target = torch.randint(0, 43, (2, 7), generator=random)
    full = model(source, target).logits
    changed = target.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 43
    assert gap(model(source, changed).logits[:, :4], full[:, :4]) < CLOSE
    memory, state = model.encode(source), model.make_state(2)
    pieces = [model.decode(piece, memory, state=state).logits for piece in target.split([1, 1, 3, 2], 1)]
    assert gap(torch.cat(pieces, 1), full) < CLOSE
    for side in ("left", "right"):
        longer = torch.randint(0, 47, (2, 13), generator=random)
        longer[:, slice(4, 13) if side == "left" else slice(0, 9)] = source
        mask = Padding(torch.tensor([9, 9]), side)
        assert gap(model(longer, target, source_mask=mask).logits, full) < CLOSE
    logits = model(source, batch.inputs, mask=Padding(batch.lengths)).logits
    F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_teacher_forcing_shifts_by_one():
    batch = teacher_forcing([[5, 6], [7]], start=1, stop=2, pad=9)
    assert batch.inputs.tolist() == [[1, 5, 6], [1, 7, 9]]
    assert batch.labels.tolist() == [[5, 6, 2], [7, 2, IGNORED]]
    assert batch.lengths.tolist() == [3, 2]
    with pytest.raises(weft.WeftError, match="no targets"):
        teacher_forcing([], 1, 2)
