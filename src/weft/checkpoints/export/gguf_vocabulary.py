"""A run's tokenizer for GGUF files; which of llama.cpp's pre-tokenizers fits is found by trying them on hard texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from weft.checkpoints.export.export_source import ExportSource
from weft.checkpoints.formats.gguf_vocabulary import read_gguf_vocabulary
from weft.data.tokenizers.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.data.tokenizers.vocabulary_files import METASPACE
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree

PREFIX = "tokenizer.ggml."
PRE_TOKENIZERS = ("gpt-2", "smollm", "llama-bpe", "qwen2")
STOP_ROLES = ("eos", "eot", "eom")
STOP_ROLE_WORDS = ((), ("eot", "end_of_turn"), ("eom",))
HEX = re.compile(r"<0x[0-9A-F]{2}>")
# Texts on which the known pre-tokenizers differ.
PROBES = (
    "Hello world",
    " two  spaces,   three\tand a tab",
    "it's we'll THEY'RE don't",
    "in 1984 or 12345678 and 3.14",
    "one\ntwo\n\nthree \n four\r\n",
    "naïve cafe\u0301 — 数学, пример, 😀!?",
    "(a)[b]{c} ...--==>>",
    "",
)


def vocabulary_settings(run: ExportSource, rows: int) -> Tree:
    """Tokens, their kinds, merges or scores, special ids and the chat template, for an embedding of `rows` rows."""
    tokenizer = run.tokenizer
    if tokenizer is None:
        raise WeftError("this run has no tokenizer, but a GGUF file needs one: train or import a text run")
    if tokenizer.vocabulary > rows:
        raise WeftError(f"{tokenizer.vocabulary} tokens, but the embedding has {rows} rows: they do not fit")
    tree = json.loads(tokenizer.engine.to_str())
    special = _special(run, tokenizer)
    for trial in _trials(tree, tokenizer, rows):
        settings = {f"{PREFIX}{name}": value for name, value in (trial | special).items()}
        if _agrees(tokenizer, settings):
            template = run.chat_template()
            return settings | ({} if template is None else {"tokenizer.chat_template": template})
    raise WeftError(
        f"llama.cpp has no pre-tokenizer that splits texts as this {tree['model']['type']} tokenizer does: "
        "train with --set data.tokenizer=bpe or characters"
    )


def _agrees(tokenizer: Tokenizer, settings: Tree) -> bool:
    """Whether the vocabulary, read back, gives the same tokens."""
    back = read_gguf_vocabulary("the file", settings).tokenizer
    known = {token for token in tokenizer.engine.get_vocab(with_added_tokens=False) if len(token) == 1}
    letters = json.loads(tokenizer.engine.to_str())["model"]["type"] == "WordLevel"
    texts = ["".join(c for c in text if c in known) for text in PROBES] if letters else list(PROBES)
    texts += ["".join(sorted(known - {METASPACE}))] if letters else []
    alike = all(back.encode(text) == tokenizer.encode(text) for text in texts)
    # With a small vocabulary, a wrong pre-tokenizer may give the same tokens by chance.
    return alike and (settings[f"{PREFIX}model"] != "gpt2" or all(_cut(back, t) == _cut(tokenizer, t) for t in PROBES))


def _cut(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words within which pairs are merged."""
    engine = tokenizer.engine
    plain = text if engine.normalizer is None else engine.normalizer.normalize_str(text)
    return [plain] if engine.pre_tokenizer is None else [w for w, _ in engine.pre_tokenizer.pre_tokenize_str(plain)]


def _trials(tree: Tree, tokenizer: Tokenizer, rows: int) -> Iterator[Tree]:
    """Candidate settings for this vocabulary, to be tried one after the other."""
    model, kind = tree["model"], tree["model"]["type"]
    tokens, kinds = _tokens(tree, tokenizer, rows)
    if kind == "BPE" and _mentions(tree.get("decoder"), "ByteLevel"):
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        for way in PRE_TOKENIZERS:
            yield {"model": "gpt2", "pre": way, "tokens": tokens, "token_type": kinds, "merges": merges}
    elif kind == "BPE":
        scores = _scores(tokens, model["merges"])
        spm = {"model": "llama", "pre": "default", "tokens": tokens, "token_type": kinds, "scores": scores}
        for prefix in (True, False):
            yield spm | {"add_space_prefix": prefix}
    elif kind == "WordLevel" and METASPACE not in tokens:
        # Characters: a unigram model, which can handle unknown characters; a space is written as its mark.
        signs = [METASPACE if token == " " else token for token in tokens]
        unigram = {"model": "t5", "pre": "default", "tokens": signs, "token_type": kinds, "scores": [0.0] * rows}
        yield unigram | {"add_space_prefix": False, "remove_extra_whitespaces": False}


def _tokens(tree: Tree, tokenizer: Tokenizer, rows: int) -> tuple[list[str], list[int]]:
    """All tokens by id with their kinds; rows of the embedding without a token are unused."""
    tokens, kinds = [f"[UNUSED{number}]" for number in range(rows)], [UNUSED] * rows
    fallback = bool(tree["model"].get("byte_fallback"))
    for token, index in tokenizer.engine.get_vocab(with_added_tokens=True).items():
        tokens[index], kinds[index] = token, BYTE if fallback and HEX.fullmatch(token) else NORMAL
    unknown = tree["model"].get("unk_token")
    for added in tree.get("added_tokens", ()):
        kinds[added["id"]] = CONTROL if added["special"] else USER
    if unknown is not None and tokenizer.id_of(unknown) is not None:
        kinds[tokenizer.id_of(unknown) or 0] = UNKNOWN
    return tokens, kinds


def _scores(tokens: list[str], merges: list[Any]) -> list[float]:
    """SentencePiece merges the pair of the highest score, so earlier merges score higher."""
    rank: dict[str, int] = {}
    for number, merge in enumerate(merges):
        rank.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), number)
    return [-1.0 - rank[token] if token in rank else 0.0 for token in tokens]


def _mentions(tree: Any, kind: str) -> bool:
    return tree is not None and f'"type": "{kind}"' in json.dumps(tree)


def _by_role(stops: tuple[int, ...], tokenizer: Tokenizer) -> list[int]:
    """Stop ids in the order of `STOP_ROLES` (text, turn, message), recognized by their names."""

    def role(index: int) -> int:
        name = str(tokenizer.engine.id_to_token(index))
        return next((number for number, words in enumerate(STOP_ROLE_WORDS) if any(word in name for word in words)), 0)

    return sorted(stops, key=role)


def _special(run: ExportSource, tokenizer: Tokenizer) -> Tree:
    """Special ids by the names of GGUF; only a start token can stand before each text."""
    ids, names = run.ids, run.special_tokens()
    start = tokenizer.id_of(names["bos_token"]) if "bos_token" in names else None
    if ids.before:
        start = ids.before[0]
    if len(ids.before) > 1:
        raise WeftError(f"{len(ids.before)} tokens stand before each text, but a GGUF file has room for one")
    found: Tree = {"bos_token_id": start, "add_bos_token": bool(ids.before), "add_eos_token": False}
    found |= {
        f"{role}_token_id": index for role, index in zip(STOP_ROLES, _by_role(ids.stops, tokenizer), strict=False)
    }
    for name, theirs in (("unknown", "unk_token"), ("padding", "pad_token")):
        found[f"{name}_token_id"] = tokenizer.id_of(names[theirs]) if theirs in names else None
    return {name: value for name, value in found.items() if value is not None}
