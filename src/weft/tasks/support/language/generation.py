"""Generation for tasks that answer with texts: by beam search where a beam is asked for, else by sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from weft.data.tokenizers.token_table import token_names
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.conditioning import declared
from weft.inference.decoding.generate import generate
from weft.inference.decoding.generated import GeneratedText, TokenProbabilities
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import GREEDY
from weft.inference.decoding.speculative import speculate
from weft.tasks.task import GenerationOptions

TEMPERATURE = 0.8  # of language models, if none is asked for
LIKELIEST = 8  # tokens whose probabilities are given, if no number is asked for


def generate_texts(
    module: nn.Module,
    request: GenerationRequest,
    options: GenerationOptions,
    *,
    penalty: float = Beam.penalty,
    speculative: bool = False,
) -> list[list[GeneratedText]]:
    """The texts of each prompt, `options.samples` each; a temperature above 0 samples instead of searching.

    They come with the probabilities that the options ask for (`top`, `steps`). `penalty`: the length penalty of beam
    search. `speculative`: sample by speculative decoding with prompt look-up.
    """
    samples, top = options.samples, _top(options, declared(module).vocabulary or 0)
    request = replace(request, top=top, step_top=top if options.steps else 0)
    if options.beam is not None and not options.temperature:
        beam = Beam(max(options.beam, samples), penalty, samples)
        return beam_search(module, replace(request, sampling=GREEDY, samples=1, seeds=0), beam)
    texts: Sequence[GeneratedText] = speculate(module, request) if speculative else generate(module, request)
    return [list(texts[first : first + samples]) for first in range(0, len(texts), samples)]


def _top(options: GenerationOptions, vocabulary: int) -> int:
    """How many of the likeliest tokens are given with their probabilities."""
    if options.top is None:
        return min(LIKELIEST, vocabulary)
    if options.top > vocabulary:
        raise WeftError(
            f"the {options.top} likeliest tokens, but the vocabulary has {vocabulary}: use a top of at most that"
        )
    return options.top


def name_probabilities(text: GeneratedText, tokenizer: Tokenizer) -> Tree:
    """The probabilities of a text for an answer: `probabilities` of the first token by name, and `steps`.

    A step has the token that was chosen (`token`, `id`) and the likeliest of the distribution it was chosen from, best
    first; a chosen one that is not among them stands last.
    """
    found: Tree = {}
    if text.first_probabilities is not None:
        likeliest = _named(text.first_probabilities, tokenizer)
        found["probabilities"] = {one["token"]: one["probability"] for one in likeliest}
    if text.choices is not None:
        names = token_names(tokenizer, [choice.token for choice in text.choices])
        found["steps"] = [
            {"token": name, "id": choice.token, "probabilities": _named(choice.probabilities, tokenizer)}
            for name, choice in zip(names, text.choices, strict=True)
        ]
    return found


def _named(probabilities: TokenProbabilities, tokenizer: Tokenizer) -> list[Tree]:
    names = token_names(tokenizer, [token for token, _ in probabilities])
    return [
        {"token": name, "id": token, "probability": round(share, 6)}
        for name, (token, share) in zip(names, probabilities, strict=True)
    ]
