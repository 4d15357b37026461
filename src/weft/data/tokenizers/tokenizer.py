"""Tokenizers: characters, bytes, words, byte-level BPE trained on the user's text; GPT-2's, BERT's, Llama's loaded.

All wrap the package `tokenizers` and are saved as one tokenizer.json. Special tokens have roles: padding, start, stop,
unknown; others can be added (`<User:>`, `<Assistant:>`). They are never split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from tokenizers import Encoding, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from weft.data.tokenizers.sentencepiece import read_sentencepiece
from weft.data.tokenizers.vocabulary_files import (
    METASPACE,
    byte_level,
    from_marian,
    from_merges,
    from_sentencepiece,
    from_wordpiece,
    space_words,
)
from weft.foundation.errors import WeftError
from weft.foundation.files.regular_files import expect_regular

TokenizerKind = Literal["characters", "bytes", "words", "bpe"]
TOKENIZER_KINDS: tuple[TokenizerKind, ...] = ("characters", "bytes", "words", "bpe")
PAD, START, STOP, UNKNOWN_TOKEN = "<pad>", "<start>", "<stop>", "<unknown>"
SPECIALS = (PAD, START, STOP, UNKNOWN_TOKEN)
# Tokens that play each role in Weft and in other libraries, best first.
ROLE_TOKENS: dict[str, tuple[str, ...]] = {
    "pad": (PAD, "[PAD]", "<|padding|>", "<unk>"),
    "start": (START, "<s>", "[CLS]", "<|begin_of_text|>", "<|im_start|>", "<|endoftext|>"),
    "stop": (STOP, "</s>", "[SEP]", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"),
    "unknown": (UNKNOWN_TOKEN, "<unk>", "[UNK]", "<|endoftext|>"),
}
TOKENIZER_FILES = (
    *("tokenizer.json", "source.spm", "encoder.json", "vocab.json", "vocab.txt"),
    *("tokenizer.model", "spiece.model"),
)
WORD_CUT = 1024  # letters
SIDES = ("source", "target")


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back. `encode` adds no special tokens; `start`, `stop` and `pad` are their ids.

    `target_engine` is the engine of the target language, if it differs from the source language's (Marian).
    """

    engine: Engine
    target_engine: Engine | None = None

    @property
    def vocabulary(self) -> int:
        """Number of tokens, added ones included."""
        return int(self.engine.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        return list(self.encode_with_places(text).ids)

    def encode_with_places(self, text: str) -> Encoding:
        """Ids, tokens, and the characters of the text that each was read from."""
        return self._encode(text, None, False)

    def encode_framed(self, text: str, second: str | None = None) -> Encoding:
        """A text, or two, with what the tokenizer's own post-processor puts around and between them."""
        return self._encode(text, second, True)

    def _encode(self, text: str, second: str | None, framed: bool) -> Encoding:
        try:
            return self.engine.encode(text, second, add_special_tokens=framed)
        except TypeError:  # bytes of a command line that are no UTF-8 become lone surrogates
            raise WeftError(f"{ascii(text)[:60]} is not UTF-8 text: convert it first") from None
        except BaseException as error:
            raise explain_failure(error, f"the tokenizer fails at {ascii(text)[:60]}") from None

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, encoded in parallel."""
        return [list(found.ids) for found in self.encode_many_with_places(texts)]

    def encode_many_with_places(self, texts: Sequence[str]) -> list[Encoding]:
        """As `encode_with_places`, of many texts in parallel."""
        try:
            return self.engine.encode_batch(list(texts), add_special_tokens=False)
        except TypeError:  # one of them is no UTF-8: encoded alone, it is named
            return [self.encode_with_places(text) for text in texts]
        except BaseException as error:
            raise explain_failure(error, "the tokenizer fails at one of the texts") from None

    def decode(self, ids: Iterable[int], keep_special: bool = False) -> str:
        """The text of ids; special tokens are left out unless `keep_special`."""
        try:
            return str((self.target_engine or self.engine).decode(list(ids), skip_special_tokens=not keep_special))
        except BaseException as error:
            raise explain_failure(error, "the tokenizer fails to write its tokens") from None

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of the target language."""
        return self if self.target_engine is None else Tokenizer(self.target_engine)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each token's own text, for pictures; with the space that SentencePiece drops at the start of a text, and one
        for the mark that CLIP puts at the end of a word."""
        engine = self.target_engine or self.engine
        suffix = getattr(engine.model, "end_of_word_suffix", None) or "\0"
        found = []
        for index in ids:
            token, text = engine.id_to_token(index) or "", self.decode([index], keep_special=True)
            text = f"{text} " if token.endswith(suffix) else text
            found.append(f" {text}" if token.startswith(METASPACE) and not text.startswith(" ") else text or token)
        return found

    def id_of(self, token: str) -> int | None:
        """The id of a token, if there is one."""
        found = self.engine.token_to_id(token)
        return None if found is None else int(found)

    def role(self, name: str) -> int | None:
        """The id that plays a role: pad, start, stop, unknown."""
        return next((index for token in ROLE_TOKENS[name] if (index := self.id_of(token)) is not None), None)

    @property
    def pad(self) -> int:
        """The id of padding; 0 where there is none, because masks hide it anyway."""
        return self.role("pad") or 0

    @property
    def start(self) -> int | None:
        return self.role("start")

    @property
    def stop(self) -> int | None:
        return self.role("stop")

    def save(self, path: Path) -> None:
        """Write tokenizer.json, of the source language where there are two."""
        path.write_text(self.engine.to_str(), encoding="utf-8")


def train_tokenizer(
    kind: TokenizerKind,
    texts: Iterable[str],
    vocabulary: int = 8192,
    special_tokens: Sequence[str] = (),
    min_frequency: int = 1,
) -> Tokenizer:
    """A tokenizer trained on texts: at most `vocabulary` tokens, each seen at least `min_frequency` times."""
    if kind not in TOKENIZER_KINDS:
        raise WeftError(f"there is no tokenizer {kind!r}: choose one of {', '.join(TOKENIZER_KINDS)}")
    names = [*SPECIALS, *special_tokens]
    if kind == "bytes":
        return _bytes(names)
    engine, trainer = (
        _word_like(kind, vocabulary, names, min_frequency) if kind != "bpe" else _bpe(vocabulary, names, min_frequency)
    )
    pieces = _not_empty(texts) if kind != "bpe" else chain.from_iterable(map(_cut_long_words, _not_empty(texts)))
    engine.train_from_iterator(pieces, trainer=trainer)
    engine.add_special_tokens(names)
    return Tokenizer(engine)


def _not_empty(texts: Iterable[str]) -> Iterator[str]:
    empty = True
    for text in texts:
        empty = empty and not text
        yield text
    if empty:
        raise WeftError("there is no text to learn a tokenizer from: give a file that is not empty")


def _cut_long_words(text: str) -> Iterator[str]:
    """The text, cut within words and spaces of some thousand letters: learning merges takes the square of a length."""
    start = 0
    for end in range(WORD_CUT, len(text), WORD_CUT):
        window = text[end - WORD_CUT : end]
        if window.isspace() or (window == window.strip() and len(window.split(None, 1)) == 1):
            yield text[start:end]
            start = end
    yield text[start:]


def _word_like(
    kind: TokenizerKind, vocabulary: int, names: list[str], min_frequency: int
) -> tuple[Engine, trainers.WordLevelTrainer]:
    engine = Engine(models.WordLevel(unk_token=UNKNOWN_TOKEN))
    if kind == "characters":
        engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        engine.decoder = decoders.Fuse()
    else:
        engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary, special_tokens=names, min_frequency=min_frequency, show_progress=False
    )
    return engine, trainer


def _bpe(vocabulary: int, names: list[str], min_frequency: int) -> tuple[Engine, trainers.BpeTrainer]:
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocabulary, 256 + len(names)),
        special_tokens=names,
        min_frequency=max(min_frequency, 2),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return byte_level(Engine(models.BPE())), trainer


def _bytes(names: list[str]) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*names, *alphabet])}
    engine = byte_level(Engine(models.BPE(vocab=vocabulary, merges=[])))
    engine.add_special_tokens(names)
    return Tokenizer(engine)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """From a file or folder: tokenizer.json, vocab.json and merges.txt (GPT-2), vocab.txt (BERT), tokenizer.model
    (Llama), spiece.model (T5), source.spm and target.spm with vocab.json (Marian)."""
    path = Path(path)
    if not path.exists():
        raise WeftError(f"there is no tokenizer at {path}: give a tokenizer.json, vocab.txt or tokenizer.model")
    if not path.is_dir():
        return _load_file(expect_regular(path))
    for name in TOKENIZER_FILES:
        file = path / name
        if file.is_file():
            return _load_file(file)
    raise WeftError(
        f"{path} holds no tokenizer: it needs tokenizer.json, vocab.json and merges.txt, vocab.txt or tokenizer.model"
    )


def _load_file(file: Path) -> Tokenizer:
    try:
        if file.name == "source.spm":
            sides = [from_marian(file.with_name(f"{side}.spm"), file.with_name("vocab.json")) for side in SIDES]
            return Tokenizer(*sides)
        if file.suffix == ".model":
            return Tokenizer(from_sentencepiece(read_sentencepiece(file)))
        if file.suffix == ".txt" and file.name.startswith("vocab"):
            return Tokenizer(from_wordpiece(file))
        if file.name in ("encoder.json", "vocab.json"):
            return Tokenizer(from_merges(file))
        other = file.with_name(f"target_{file.name}")
        return Tokenizer(_read_engine(file), _read_engine(other) if other.is_file() else None)
    except WeftError:
        raise
    except BaseException as error:
        raise explain_failure(error, f"{file.name} is not a readable tokenizer") from None


def explain_failure(error: BaseException, what: str) -> BaseException:
    """The error of a broken tokenizer in one sentence; the library's own panics are no Exceptions. Others stay."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        return error
    reason = " ".join(str(error).split())[:120]
    return WeftError(f"{what} ({reason}): its file is broken; fetch it again")


def _read_engine(file: Path) -> Engine:
    engine = Engine.from_file(str(file))
    # Some files store padding and truncation, which are done by batches here.
    engine.no_padding()
    engine.no_truncation()
    return space_words(engine)
