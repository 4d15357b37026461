"""Tokenisers: characters, bytes, words, byte-level BPE trained on the user's text; GPT-2's, BERT's, Llama's loaded.

All are one kind underneath (the library `tokenizers`), saved as one tokenizer.json. Special tokens have roles: padding,
start, stop, unknown; more can be given (`<User:>`, `<Assistant:>`) and are never split.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Engine

from weft.data.sentencepiece import BPE, CONTROL, NORMAL, UNKNOWN, USER, read_sentencepiece
from weft.foundation.errors import WeftError

Kind = Literal["characters", "bytes", "words", "bpe"]
KINDS: tuple[Kind, ...] = ("characters", "bytes", "words", "bpe")
PAD, START, STOP, UNKNOWN_TOKEN = "<pad>", "<start>", "<stop>", "<unknown>"
SPECIALS = (PAD, START, STOP, UNKNOWN_TOKEN)
# Names under which other libraries keep the same roles, best first.
ROLES: dict[str, tuple[str, ...]] = {
    "pad": (PAD, "[PAD]", "<|padding|>", "<unk>"),
    "start": (START, "<s>", "[CLS]", "<|begin_of_text|>", "<|im_start|>", "<|endoftext|>"),
    "stop": (STOP, "</s>", "[SEP]", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"),
    "unknown": (UNKNOWN_TOKEN, "<unk>", "[UNK]", "<|endoftext|>"),
}


@dataclass(frozen=True)
class Tokeniser:
    """Text to ids and back. `encode` adds no special tokens; `start`, `stop`, `pad` say which ids they have."""

    engine: Engine

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return int(self.engine.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return list(self.engine.encode(text, add_special_tokens=False).ids)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, in parallel."""
        return [list(e.ids) for e in self.engine.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int], keep_special: bool = False) -> str:
        """The text of ids; special tokens are left out unless asked for."""
        return str(self.engine.decode(list(ids), skip_special_tokens=not keep_special))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each token's own text, for pictures."""
        return [self.decode([index], keep_special=True) or self.engine.id_to_token(index) or "" for index in ids]

    def id_of(self, token: str) -> int | None:
        """The id of a token, if there is one."""
        found = self.engine.token_to_id(token)
        return None if found is None else int(found)

    def role(self, name: str) -> int | None:
        """The id that plays a role: pad, start, stop, unknown."""
        return next((index for token in ROLES[name] if (index := self.id_of(token)) is not None), None)

    @property
    def pad(self) -> int:
        """The id that fills rows up; 0 where none is named, because masks hide it anyway."""
        return self.role("pad") or 0

    @property
    def start(self) -> int | None:
        """The id before a text."""
        return self.role("start")

    @property
    def stop(self) -> int | None:
        """The id after a text."""
        return self.role("stop")

    def save(self, path: Path) -> None:
        """Write tokenizer.json."""
        path.write_text(self.engine.to_str(), encoding="utf-8")


def train_tokeniser(
    kind: Kind, texts: Iterable[str], vocabulary: int = 8192, specials: Sequence[str] = (), least: int = 1
) -> Tokeniser:
    """A tokeniser learned from texts: at most `vocabulary` tokens, each seen at least `least` times."""
    if kind not in KINDS:
        raise WeftError(f"there is no tokeniser {kind!r}: choose one of {', '.join(KINDS)}")
    names = [*SPECIALS, *specials]
    if kind == "bytes":
        return _bytes(names)
    engine, trainer = _word_like(kind, vocabulary, names, least) if kind != "bpe" else _bpe(vocabulary, names, least)
    engine.train_from_iterator(_not_empty(texts), trainer=trainer)
    engine.add_special_tokens(names)
    return Tokeniser(engine)


def _not_empty(texts: Iterable[str]) -> Iterator[str]:
    empty = True
    for text in texts:
        empty = empty and not text
        yield text
    if empty:
        raise WeftError("there is no text to learn a tokeniser from: give a file that is not empty")


def _word_like(kind: Kind, vocabulary: int, names: list[str], least: int) -> tuple[Engine, trainers.WordLevelTrainer]:
    engine = Engine(models.WordLevel(unk_token=UNKNOWN_TOKEN))
    if kind == "characters":
        engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        engine.decoder = decoders.Fuse()
    else:
        engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary, special_tokens=names, min_frequency=least, show_progress=False
    )
    return engine, trainer


def _byte_level(engine: Engine) -> Engine:
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    return engine


def _bpe(vocabulary: int, names: list[str], least: int) -> tuple[Engine, trainers.BpeTrainer]:
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocabulary, 256 + len(names)),
        special_tokens=names,
        min_frequency=max(least, 2),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _byte_level(Engine(models.BPE())), trainer


def _bytes(names: list[str]) -> Tokeniser:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*names, *alphabet])}
    engine = _byte_level(Engine(models.BPE(vocab=vocabulary, merges=[])))
    engine.add_special_tokens(names)
    return Tokeniser(engine)


def load_tokeniser(path: str | Path) -> Tokeniser:
    """From a file or folder: tokenizer.json, vocab.json and merges.txt (GPT-2), vocab.txt (BERT), tokenizer.model."""
    path = Path(path)
    if not path.exists():
        raise WeftError(f"there is no tokeniser at {path}: give a tokenizer.json, vocab.txt or tokenizer.model")
    folder = path if path.is_dir() else path.parent
    for name in (
        (path.name,)
        if path.is_file()
        else ("tokenizer.json", "encoder.json", "vocab.json", "vocab.txt", "tokenizer.model")
    ):
        file = folder / name
        if file.exists():
            return _load_file(file)
    raise WeftError(
        f"{folder} holds no tokeniser: it needs tokenizer.json, vocab.json and merges.txt, vocab.txt or tokenizer.model"
    )


def _load_file(file: Path) -> Tokeniser:
    try:
        if file.suffix == ".model":
            return Tokeniser(_from_sentencepiece(file))
        if file.suffix == ".txt" and file.name.startswith("vocab"):
            return Tokeniser(_from_wordpiece(file))
        if file.name in ("encoder.json", "vocab.json"):
            return Tokeniser(_from_merges(file))
        engine = Engine.from_file(str(file))
        # Some files carry the settings of one use: padding and cutting are the batch's business here.
        engine.no_padding()
        engine.no_truncation()
        return Tokeniser(engine)
    except WeftError:
        raise
    except Exception as error:
        raise WeftError(
            f"{file.name} is no tokeniser that can be read ({str(error)[:120]})".replace("\n", " ")
        ) from None


def _from_merges(file: Path) -> Engine:
    merges = next((file.with_name(n) for n in ("vocab.bpe", "merges.txt") if file.with_name(n).exists()), None)
    if merges is None:
        raise WeftError(f"{file.name} needs its merges beside it: merges.txt or vocab.bpe")
    vocabulary = json.loads(file.read_text(encoding="utf-8"))
    lines = merges.read_text(encoding="utf-8").split("\n")
    pairs = [(a, b) for line in lines if line and not line.startswith("#version") for a, b in [line.split(" ")]]
    engine = _byte_level(Engine(models.BPE(vocab=vocabulary, merges=pairs)))
    engine.add_special_tokens([name for name in ("<|endoftext|>",) if name in vocabulary])
    return engine


def _from_wordpiece(file: Path) -> Engine:
    tokens = file.read_text(encoding="utf-8").splitlines()
    vocabulary = {token: index for index, token in enumerate(tokens)}
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


def _from_sentencepiece(file: Path) -> Engine:
    """Llama's: a SentencePiece BPE. A piece's merges are its splits into two known pieces, ranked by its score."""
    model = read_sentencepiece(file)
    if model.model_type != BPE:
        pieces = [(piece, score) for piece, score, _ in model.pieces]
        unknown = next((i for i, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN), None)
        engine = Engine(models.Unigram(pieces, unknown, byte_fallback=True))
    else:
        vocabulary = {piece: index for index, (piece, _, _) in enumerate(model.pieces)}
        ranked = sorted(
            (-score, vocabulary[piece[:cut]], vocabulary[piece[cut:]], piece, cut)
            for piece, score, kind in model.pieces
            if kind in (NORMAL, USER)
            for cut in range(1, len(piece))
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary
        )
        merges = [(piece[:cut], piece[cut:]) for _, _, _, piece, cut in ranked]
        unknown_token = next((piece for piece, _, kind in model.pieces if kind == UNKNOWN), None)
        engine = Engine(
            models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown_token, fuse_unk=True, byte_fallback=True)
        )
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if model.dummy_prefix else []
    engine.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    engine.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1, 0)] if model.dummy_prefix else [])])
    engine.add_special_tokens([piece for piece, _, kind in model.pieces if kind in (CONTROL, UNKNOWN)])
    return engine
