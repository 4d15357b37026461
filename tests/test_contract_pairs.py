"""Every legal pair of options of a decoder: causal, padding, packing, cached, backends, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from pairwise import cover, pairs_of
from subjects import Subject, build
from test_contract_models import CLOSE, gap, swapped
from weft.models.decoder import DecoderSpec
from weft.parts.attention import set_backend
from weft.parts.masks import Documents, Padding

FACTORS: dict[str, list[Any]] = {
    "mixer": ["attention", "linear-attention", "recurrence", "convolution", "none", "hybrid"],
    "score": ["scaled-dot", "dot", "bilinear", "additive", "concatenated", "capped-dot"],
    "key_heads": [None, 2, 1],
    "window": [None, 4],
    "norms": [None, "rms", "layer"],
    "sizes": [(None, None), (6, 10)],
    "feedforward": ["classic", "gated", "experts", "shared experts", "none"],
    "positions": [
        "none",
        "learned",
        "concatenated",
        "sinusoidal",
        "relative",
        "relative values",
        "bucketed",
        "rotary",
        "partial",
        "yarn",
        "two bases",
        "alibi",
    ],
    "norm": ["layer", "layer without bias", "rms", "zero-centered", "none"],
    "arrangement": ["pre-norm", "post-norm", "sandwich-norm", "parallel"],
    "head": ["tied", "linear", "capped"],
}
POSITIONS: dict[str, dict[str, Any]] = {
    "concatenated": {"kind": "learned", "join": "concatenate", "width": 7},
    "relative": {"kind": "relative", "reach": 3},
    "relative values": {"kind": "relative", "reach": 3, "values": True},
    "bucketed": {"kind": "bucketed", "buckets": 8, "farthest": 13},
    "two bases": {"kind": "rotary"},
    "yarn": {"kind": "rotary", "scaling": {"kind": "yarn", "factor": 3.0, "original": 11, "fast": 2.0}},
    "partial": {"kind": "rotary", "fraction": 0.5, "scaling": {"kind": "ntk", "factor": 2.0}},
}
FEEDFORWARDS: dict[str, dict[str, Any]] = {
    "classic": {"kind": "classic", "hidden": 29, "activation": "squared-relu"},
    "gated": {"kind": "gated", "hidden": 23},
    "experts": {"kind": "experts", "experts": 5, "active": 2, "hidden": 11},
    "shared experts": {"kind": "experts", "experts": 3, "active": 1, "hidden": 11, "gated": False, "shared": True},
    "none": {"kind": "none"},
}
NORMS: dict[str, dict[str, Any]] = {
    "layer": {"kind": "layer"},
    "layer without bias": {"kind": "layer", "bias": False},
    "rms": {"kind": "rms"},
    "zero-centered": {"kind": "zero-centered-rms"},
    "none": {"kind": "none"},
}

HEADS: dict[str, dict[str, Any]] = {
    "tied": {"kind": "tied"},
    "linear": {"kind": "linear"},
    "capped": {"kind": "linear", "cap": 3.0},
}


def spec_of(c: dict[str, Any]) -> DecoderSpec:
    attention = {
        "kind": "attention", "heads": 4, "score": c["score"], "key_heads": c["key_heads"], "window": c["window"],
        "query_key_norm": c["norms"] and NORMS[c["norms"]], "head_width": c["sizes"][0], "value_width": c["sizes"][1],
        "rotary": {"kind": "rotary", "base": 50.0, "fraction": 0.5} if c["positions"] == "two bases" else None,
    }  # fmt: skip
    others: dict[str, dict[str, Any]] = {
        "linear-attention": {
            "kind": "linear-attention",
            "heads": 4,
            "feature": "elu" if c["norm"] in ("rms", "none") else "identity",
        },
        "recurrence": {
            "kind": "recurrence",
            "cell": {"layer": "rnn", "rms": "gru"}.get(c["norm"], "lstm"),
            "hidden": 13,
        },
        "convolution": {"kind": "convolution", "kernel": 3, "groups": 1 if c["head"] == "tied" else 32},
        "none": {"kind": "none"},
    }
    mixer = [attention, others["recurrence"]] if c["mixer"] == "hybrid" else others.get(c["mixer"], attention)
    return DecoderSpec(
        vocabulary=47, length=29, width=32, layers=2, mixer=mixer,
        feedforward=FEEDFORWARDS[c["feedforward"]],
        positions=POSITIONS.get(c["positions"], {"kind": c["positions"]}),
        norm=NORMS[c["norm"]], arrangement=c["arrangement"], head=HEADS[c["head"]],
        initialization={"scheme": "fan-in", "embedding": 1.0},
    )  # fmt: skip


def legal(c: dict[str, Any]) -> bool:
    try:
        spec_of(c)
    except weft.WeftError:
        return False
    return True


COMBINATIONS = cover(FACTORS, legal)


def test_the_combinations_cover_all_legal_pairs():
    covered = set().union(*map(pairs_of, COMBINATIONS))
    for mixer in FACTORS["mixer"]:
        for positions in FACTORS["positions"]:
            pair = ("mixer", mixer, "positions", positions)
            acts_inside = positions not in ("none", "learned", "concatenated", "sinusoidal")
            assert (pair in covered) == (mixer in ("attention", "hybrid") or not acts_inside)
    assert 50 < len(COMBINATIONS) < 150


@pytest.mark.parametrize("c", COMBINATIONS, ids=lambda c: "-".join(str(v).replace(" ", "_") for v in c.values()))
def test_contract(c, monkeypatch):
    one = Subject(build(spec_of(c)))
    content = one.content(2, 13)
    full = one.run(content)
    assert torch.isfinite(full).all()

    changed = one.run(swapped(content, 8))
    assert gap(full[:, :8], changed[:, :8]) <= (0.0 if one.exact else CLOSE)
    if one.declares.reach is not None:
        far = one.run(swapped(content, 2))
        assert gap(full[:, 2 + one.declares.reach :], far[:, 2 + one.declares.reach :]) <= CLOSE

    for side in ("left", "right"):
        real = slice(13 - 5, 13) if side == "left" else slice(0, 5)
        padded = one.content(2, 13, seed=4)
        padded[0, real] = content[0, :5]
        padded[1] = content[1]
        out = one.run(padded, Padding(torch.tensor([5, 13]), side))
        assert gap(out[0, real], full[0, :5]) < CLOSE
        assert gap(out[1], full[1]) < CLOSE

    ids = torch.tensor([[0] * 6 + [1] * 7, [4] * 13])
    packed = one.run(content, Documents(ids))
    assert gap(packed[0, 6:], one.run(content[:1, 6:])[0]) < CLOSE
    assert gap(packed[1], full[1]) < CLOSE

    for sizes in ((1,) * 13, (4, 1, 5, 3)):
        state = one.module.make_state(2)
        pieces = [one.run(piece, state=state) for piece in content.split(sizes, 1)]
        assert gap(torch.cat(pieces, 1), full) < CLOSE

    state = one.module.make_state(2)
    halves = [one.run(content[:, a:b], Documents(ids[:, a:b]), state) for a, b in ((0, 4), (4, 9), (9, 13))]
    assert gap(torch.cat(halves, 1), packed) < CLOSE

    monkeypatch.setattr(weft.parts.kernels.blocked, "__defaults__", (0.0, 5))
    fusable = c["score"] in ("scaled-dot", "dot", "bilinear") and c["positions"] != "relative values"
    for backend in ("explicit", "fused", "blocked") if fusable else ("explicit", "blocked"):
        set_backend(one.module, backend)
        assert gap(one.run(content), full) < CLOSE
        assert gap(one.run(content, Documents(ids)), packed) < CLOSE
    set_backend(one.module, "auto")

    one.run(content).square().mean().backward()
    unreached = {key for key, p in one.module.named_parameters() if p.grad is None or float(p.grad.abs().sum()) == 0}
    assert not {key for key in unreached if not _cancelled(key, c)}


def _cancelled(key: str, c: dict[str, Any]) -> bool:
    """What softmax cannot feel: a query's share of a concatenated linear score is the same for all keys."""
    return c["score"] == "concatenated" and "query_norm" in key
