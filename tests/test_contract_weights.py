"""In float32 and with int8 weights, each compared with itself: the same text alone or in company, cached or not.

Judged as promised: equal wherever the two best logits differ by more than 1e-3.
"""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch

from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import GREEDY, Sampling
from weft.inference.decoding.sessions import PrefillOptions
from weft.inference.fast.quantize import quantize_model
from writers import PROMPTS, WRITERS, full_logits, given, writer

SAMPLED = Sampling(temperature=0.9, top_k=17, top_p=0.95)
PLANS = [PrefillOptions(side="left"), PrefillOptions(chunk=2), PrefillOptions(cached=False)]


@cache
def narrow(name: str, weights: str):
    """A writer in float32, or with int8 matrices."""
    model = copy.deepcopy(writer(name)).float()
    return quantize_model(model) if weights == "int8" else model


def same_text(model, row: int, ours: list[int], theirs: list[int], sampled: bool) -> None:
    """Equal up to a near tie, which is a matter of rounding."""
    if ours == theirs:
        return
    at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    assert at is not None and not sampled, "texts of different lengths, or other draws"
    best = full_logits(model, [*PROMPTS[row], *ours[:at]], given(model, [row]))[-1].topk(2).values
    assert float(best[0] - best[1]) <= 1e-3


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("name", WRITERS)
def test_company_padding_cache_and_chunks_change_no_text(name, weights):
    model = narrow(name, weights)
    for sampling in (GREEDY, SAMPLED):
        call = {"max_tokens": 11, "stop": [2, 11]}
        alone = [
            generate(model, GenerationRequest([PROMPTS[row]], sampling, seeds=[row], **given(model, [row]), **call))[
                0
            ].tokens
            for row in range(4)
        ]
        for prefill in PLANS:
            together = generate(
                model,
                GenerationRequest(PROMPTS, sampling, seeds=0, prefill=prefill, **given(model, [0, 1, 2, 3]), **call),
            )
            for row, found in enumerate(together):
                same_text(model, row, alone[row], found.tokens, sampling is SAMPLED)


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("name", ["nano-gpt", "window", "nano-seq2seq", "nano-gru-additive", "nano-image-text"])
def test_beams_too(name, weights):
    model = narrow(name, weights)
    together = beam_search(
        model, GenerationRequest(PROMPTS, max_tokens=7, stop=[2], **given(model, [0, 1, 2, 3])), Beam(3)
    )
    for row in range(4):
        (alone,) = beam_search(
            model, GenerationRequest([PROMPTS[row]], max_tokens=7, stop=[2], **given(model, [row])), Beam(3)
        )
        assert alone[0].tokens == together[row][0].tokens
        assert alone[0].score == pytest.approx(together[row][0].score, abs=1e-3)
    assert torch.is_grad_enabled()
