"""Generation for tasks that answer with texts: by beam search where a beam is asked for, else by sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.generate import generate
from weft.inference.decoding.generated import GeneratedText
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import GREEDY
from weft.inference.decoding.speculative import speculate
from weft.tasks.task import GenerationOptions


def generate_texts(
    module: nn.Module,
    request: GenerationRequest,
    options: GenerationOptions,
    *,
    penalty: float = Beam.penalty,
    speculative: bool = False,
) -> list[list[GeneratedText]]:
    """The texts of each prompt, `options.samples` each; a temperature above 0 samples instead of searching.

    `penalty`: the length penalty of beam search. `speculative`: sample by speculative decoding with prompt look-up.
    """
    samples = options.samples
    if options.beam is not None and not options.temperature:
        beam = Beam(max(options.beam, samples), penalty, samples)
        return beam_search(module, replace(request, sampling=GREEDY, samples=1, seeds=0), beam)
    texts: Sequence[GeneratedText] = speculate(module, request) if speculative else generate(module, request)
    return [list(texts[first : first + samples]) for first in range(0, len(texts), samples)]
