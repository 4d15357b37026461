"""The vocabulary inside a GGUF file: tokens with their types, merges or scores, and the chat template."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers

from weft.checkpoints.formats.vocabulary import LARGEST_TEMPLATE, Vocabulary
from weft.data.readers.files import DataError
from weft.data.tokenizers.sentencepiece import BPE, BYTE, CONTROL, NORMAL, UNKNOWN, USER, SentencePieceModel
from weft.data.tokenizers.tokenizer import Tokenizer, explain_failure
from weft.data.tokenizers.vocabulary_files import (
    METASPACE,
    PreTokenization,
    byte_level,
    from_sentencepiece,
    set_pre_tokenization,
)
from weft.foundation.errors import WeftError

# How texts are split before pairs are merged, by llama.cpp's names.
PRE_TOKENIZATIONS: dict[str, PreTokenization] = {
    **dict.fromkeys(("", "default", "gpt-2"), "plain"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), "llama3"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), "qwen"),
}
SPECIAL_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def read_gguf_vocabulary(name: str, settings: Mapping[str, Any]) -> Vocabulary:
    """The tokenizer of a GGUF file, the ids around each text, and its chat template."""
    try:
        return _vocabulary(name, settings)
    except WeftError:
        raise
    except BaseException as error:
        raise explain_failure(error, f"{name} holds a vocabulary that cannot be read") from None


def _vocabulary(name: str, settings: Mapping[str, Any]) -> Vocabulary:
    given = {key.removeprefix("tokenizer.ggml."): value for key, value in settings.items()}
    tokens, kind = given.get("tokens"), given.get("model")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise DataError(f"{name} has no vocabulary (tokenizer.ggml.tokens): fetch another file")
    kinds = _one_each(name, given.get("token_type"), "token_type", tokens, NORMAL)
    scores = _one_each(name, given.get("scores"), "scores", tokens, 0.0)
    way = PRE_TOKENIZATIONS.get(str(given.get("pre", "")))
    if kind == "gpt2":
        if way is None:
            raise DataError(
                f"{name} splits texts as {given.get('pre')!r:.40} does, which Weft does not know: use the folder"
            )
        engine = _byte_level_bpe(name, tokens, given.get("merges"), way)
    elif kind == "llama":
        pieces = list(zip(tokens, map(float, scores), map(int, kinds), strict=True))
        engine = from_sentencepiece(SentencePieceModel(pieces, BPE, bool(given.get("add_space_prefix", True))))
    elif kind == "t5" and not given.get("precompiled_charsmap") and UNKNOWN in kinds:
        engine = _unigram(list(zip(tokens, map(float, scores), strict=True)), kinds.index(UNKNOWN))
    else:
        raise DataError(f"{name} has a vocabulary of kind {kind!r:.40}: gpt2, llama and letters in t5 are read")
    _add(engine, tokens, kinds)
    tokenizer = Tokenizer(engine)
    names = {
        ours: tokens[index]
        for key, ours in SPECIAL_NAMES.items()
        if (index := _id(given, key, len(tokens))) is not None
    }
    template = settings.get("tokenizer.chat_template")
    usable = isinstance(template, str) and 0 < len(template) <= LARGEST_TEMPLATE
    before = _frame(given, "bos", kind == "llama" or way == "llama3", len(tokens))
    return Vocabulary(tokenizer, before, _frame(given, "eos", False, len(tokens)), names, template if usable else None)


def _one_each(name: str, given: Any, key: str, tokens: Sequence[str], default: float) -> list[Any]:
    """One finite number for each token."""
    numbers = given if isinstance(given, list) and given else [default] * len(tokens) if not given else None
    if numbers is None or not all(isinstance(one, (int, float)) and math.isfinite(one) for one in numbers):
        raise DataError(
            f"{name}: tokenizer.ggml.{key} is {given!r:.60}, but one number per token is needed: fetch it again"
        )
    if len(numbers) != len(tokens):
        raise DataError(
            f"{name}: {len(tokens)} tokens and {len(numbers)} of tokenizer.ggml.{key} do not fit: fetch it again"
        )
    return numbers


def _id(given: Mapping[str, Any], key: str, count: int) -> int | None:
    index = given.get(f"{key}_token_id")
    return index if isinstance(index, int) and 0 <= index < count else None


def _frame(given: Mapping[str, Any], key: str, default: bool, count: int) -> tuple[int, ...]:
    index = _id(given, key, count)
    return (index,) if index is not None and given.get(f"add_{key}_token", default) else ()


def _byte_level_bpe(name: str, tokens: Sequence[str], merges: Any, way: PreTokenization) -> Engine:
    """Byte-level BPE: GPT-2's, SmolLM2's, Llama 3's, Qwen's."""
    if not isinstance(merges, list) or not all(isinstance(m, str) and m.count(" ") == 1 for m in merges):
        raise DataError(f"{name} has no merges that can be read (tokenizer.ggml.merges): fetch another file")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(a, b) for a, _, b in (merge.partition(" ") for merge in merges)]
    try:
        engine = byte_level(Engine(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=way == "llama3")))
    except Exception as error:  # the package's errors have no class of their own
        raise DataError(
            f"{name} has merges of tokens that it does not have ({str(error)[:80]}): fetch it again"
        ) from None
    return set_pre_tokenization(engine, way)


def _unigram(pieces: list[tuple[str, float]], unknown: int) -> Engine:
    """A unigram model without normalization: the pieces of the highest sum of scores, or the unknown token."""
    engine = Engine(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    engine.normalizer = normalizers.Replace(" ", METASPACE)
    engine.decoder = decoders.Sequence([decoders.Replace(METASPACE, " "), decoders.Fuse()])
    return engine


def _add(engine: Engine, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Add tokens that are never split: control tokens are special, user-defined ones are not."""
    engine.add_special_tokens([t for t, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, UNKNOWN)])
    engine.add_tokens([t for t, kind in zip(tokens, kinds, strict=True) if kind == USER])
    if engine.get_vocab_size() != len(set(tokens)) and BYTE not in kinds:
        raise DataError("the vocabulary names some tokens twice: fetch the file again")
