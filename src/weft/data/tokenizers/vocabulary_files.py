"""Vocabularies in the files of other libraries: merges of GPT-2 and CLIP, BERT's words, SentencePiece models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine

from weft.data.tokenizers.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER,
    SentencePieceModel,
    read_sentencepiece,
)
from weft.foundation.errors import WeftError
from weft.foundation.files.json_text import parse_json

# GPT-2's own; single digits (SmolLM2); groups of three digits (Llama 3); single digits in Llama 3's words (Qwen).
PreTokenization = Literal["plain", "digits", "llama3", "qwen"]
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
CLIP_START, CLIP_END, WORD_SUFFIX = "<|startoftext|>", "<|endoftext|>", "</w>"
METASPACE = "▁"
UNKNOWN_PENALTY = 10.0  # SentencePiece's own: below the score of the least likely piece
ABSENT_MARK = "\0"  # marks pieces that only the other language has: no text contains it, and decoding drops it


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte: the byte itself if printable, else the next code point from 256 on."""
    prints = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte if byte in prints else next(hidden)) for byte in range(256)]


def byte_level(engine: Engine) -> Engine:
    """GPT-2's pre-tokenizer and decoder."""
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    return engine


def space_words(engine: Engine) -> Engine:
    """Decode the marks that CLIP puts at the ends of words as spaces, which its files leave to the program."""
    suffix = getattr(engine.model, "end_of_word_suffix", None)
    if suffix and isinstance(engine.decoder, decoders.ByteLevel):
        steps = [decoders.ByteLevel(), decoders.Replace(suffix, " "), decoders.Strip(" ", 0, 1)]
        engine.decoder = decoders.Sequence(steps)
    return engine


def set_pre_tokenization(engine: Engine, way: PreTokenization) -> Engine:
    """Set how a byte-level engine splits texts before it merges: GPT-2's way, or a later one."""
    if way == "digits":
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        engine.pre_tokenizer = pre_tokenizers.Sequence(steps)
    elif way != "plain":
        split = pre_tokenizers.Split(Regex(_WORDS % (3 if way == "llama3" else 1)), "isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        engine.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
        if way == "qwen":
            engine.normalizer = normalizers.NFC()
    return engine


def from_merges(file: Path) -> Engine:
    """vocab.json with merges.txt, or encoder.json with vocab.bpe: GPT-2, RoBERTa, BART, CLIP."""
    merges = next((file.with_name(n) for n in ("vocab.bpe", "merges.txt") if file.with_name(n).exists()), None)
    if merges is None:
        raise WeftError(f"{file.name} needs its merges beside it: merges.txt or vocab.bpe")
    vocabulary = parse_json(file.read_bytes())
    lines = merges.read_text(encoding="utf-8").split("\n")
    pairs = [(a, b) for line in lines if line and not line.startswith("#version") for a, b in [line.split(" ")]]
    if CLIP_START in vocabulary and CLIP_END in vocabulary:
        return _clip_engine(vocabulary, pairs)
    engine = byte_level(Engine(models.BPE(vocab=vocabulary, merges=pairs)))
    names = ("<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    engine.add_special_tokens([name for name in names if name in vocabulary])
    if "<s>" in vocabulary and "</s>" in vocabulary:
        engine.post_processor = processors.RobertaProcessing(
            ("</s>", vocabulary["</s>"]), ("<s>", vocabulary["<s>"]), add_prefix_space=False
        )
    return engine


def _clip_engine(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Engine:
    """CLIP's: texts in lower case, words that end in a mark of their own."""
    model = models.BPE(vocab=vocabulary, merges=merges, end_of_word_suffix=WORD_SUFFIX, unk_token=CLIP_END)
    engine = space_words(byte_level(Engine(model)))
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    engine.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    words = pre_tokenizers.Split(Regex(_CLIP_WORDS), "removed", invert=True)
    engine.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    engine.add_special_tokens([CLIP_START, CLIP_END])
    engine.post_processor = processors.RobertaProcessing(
        (CLIP_END, vocabulary[CLIP_END]), (CLIP_START, vocabulary[CLIP_START]), False, False
    )
    return engine


def from_wordpiece(file: Path, lower: bool | None = None) -> Engine:
    """vocab.txt: BERT's; texts are lower-cased if `lower`, or if the file has no capital letters."""
    tokens = file.read_text(encoding="utf-8").splitlines()
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if lower is None:
        lower = not any(token != token.lower() for token in tokens if not token.startswith("["))
    engine = Engine(models.WordPiece(vocab=vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    engine.normalizer = normalizers.BertNormalizer(lowercase=lower)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    engine.add_special_tokens(
        [token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in vocabulary]
    )
    if "[CLS]" in vocabulary and "[SEP]" in vocabulary:
        engine.post_processor = processors.BertProcessing(
            ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
        )
    return engine


def from_sentencepiece(model: SentencePieceModel) -> Engine:
    """BPE (Llama) or unigram (T5), by the model's type."""
    engine = _bpe_engine(model) if model.model_type == BPE else _unigram_engine(model, model.pieces)
    engine.add_special_tokens([piece for piece, _, kind in model.pieces if kind in (CONTROL, UNKNOWN)])
    return engine


def _bpe_engine(model: SentencePieceModel) -> Engine:
    """A SentencePiece BPE. A piece's merges are its splits into two known pieces, ranked by its score."""
    vocabulary = {piece: index for index, (piece, _, _) in enumerate(model.pieces)}
    ranked = sorted(
        (-score, vocabulary[piece[:cut]], vocabulary[piece[cut:]], piece, cut)
        for piece, score, kind in model.pieces
        if kind in (NORMAL, USER)
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    )
    merges = [(piece[:cut], piece[cut:]) for _, _, _, piece, cut in ranked]
    unknown = next((piece for piece, _, kind in model.pieces if kind == UNKNOWN), None)
    engine = Engine(models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(METASPACE)] if model.dummy_prefix else []
    engine.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", METASPACE)])
    back = [decoders.Replace(METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    engine.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1, 0)] if model.dummy_prefix else [])])
    return engine


def _unigram_engine(model: SentencePieceModel, pieces: Sequence[tuple[str, float, int]]) -> Engine:
    """A SentencePiece unigram model: characters normalized, spaces squeezed, then the most likely pieces."""
    unknown = next((index for index, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN), None)
    falls_back = any(kind == BYTE for _, _, kind in pieces)
    engine = Engine(models.Unigram([(piece, score) for piece, score, _ in pieces], unknown, byte_fallback=falls_back))
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.forms)] if model.forms else []
    if model.squeeze_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    engine.normalizer = normalizers.Sequence(steps)
    scheme = "always" if model.dummy_prefix else "never"
    engine.pre_tokenizer = pre_tokenizers.Metaspace(METASPACE, scheme)
    engine.decoder = decoders.Sequence([decoders.Replace(ABSENT_MARK, ""), decoders.Metaspace(METASPACE, scheme)])
    return engine


def from_marian(file: Path, vocabulary_file: Path) -> Engine:
    """source.spm or target.spm; the ids of the pieces are in vocab.json, which both languages share."""
    model = read_sentencepiece(file)
    vocabulary = parse_json(vocabulary_file.read_bytes())
    if not isinstance(vocabulary, dict) or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise WeftError(f"{vocabulary_file.name} does not number its pieces from 0 on: fetch it again")
    scores = {piece: score for piece, score, kind in model.pieces if kind in (NORMAL, USER)}
    specials = [name for name in vocabulary if name in ("</s>", "<unk>", "<pad>") or _is_language(name)]
    # A letter that only the other language has keeps its id: Marian looks unknown pieces up by their text.
    least = min(scores.values(), default=0.0) - UNKNOWN_PENALTY
    pieces = []
    for name in sorted(vocabulary, key=lambda name: int(vocabulary[name])):
        known = name in scores or name in specials or len(name) == 1
        score = scores.get(name, 0.0 if name in specials or not known else least)
        pieces.append((name if known else ABSENT_MARK + name, score, UNKNOWN if name == "<unk>" else NORMAL))
    engine = _unigram_engine(model, pieces)
    engine.add_special_tokens(specials)
    if "</s>" in vocabulary:
        engine.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])]
        )
    return engine


def _is_language(name: str) -> bool:
    """Tokens that choose a language: >>fra<<."""
    return name.startswith(">>") and name.endswith("<<")
