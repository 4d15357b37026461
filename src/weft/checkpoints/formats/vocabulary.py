"""The vocabulary of a foreign folder: its tokenizer, the ids around each text, its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import processors

from weft.checkpoints.families.family import Config
from weft.checkpoints.formats.untrusted_files import LARGEST_JSON, file_inside, read_optional_json
from weft.data.readers.files import DataError
from weft.data.tokenizers.tokenizer import TOKENIZER_FILES, Tokenizer, load_tokenizer
from weft.data.tokenizers.vocabulary_files import from_wordpiece, set_pre_tokenization
from weft.foundation.files.json_text import as_whole_number

LARGEST_TEMPLATE = 1 << 20  # characters
SPECIAL_TOKEN_FIELDS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
COMPANION_FILES = ("merges.txt", "target.spm")  # files that accompany a vocabulary file
SENTINELS = 100  # T5's <extra_id_*> tokens


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, the ids before and after each text, special tokens by name, and the chat template."""

    tokenizer: Tokenizer
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None

    def id_of(self, name: str) -> int | None:
        """The id of a special token by its name, such as eos_token."""
        token = self.names.get(name)
        return None if token is None else self.tokenizer.id_of(token)


def read_vocabulary(folder: Path, config: Config) -> Vocabulary:
    """The vocabulary of a folder, from tokenizer.json or the family's own files."""
    settings = read_optional_json(folder, "tokenizer_config.json")
    extra = read_optional_json(folder, "special_tokens_map.json")
    for name in (*TOKENIZER_FILES, *COMPANION_FILES):
        file = file_inside(folder, name)
        if file.is_file() and file.stat().st_size > LARGEST_JSON:
            raise DataError(f"{name} has {file.stat().st_size:,} bytes, which no vocabulary has: do not trust it")
    tokenizer = _tokenizer(folder, config, settings)
    names = {
        name: token
        for name in SPECIAL_TOKEN_FIELDS
        if (token := _token(settings.get(name) or extra.get(name))) is not None
    }
    before, after = text_frame(tokenizer)
    found = Vocabulary(tokenizer, before, after, names, _template(folder, settings))
    return _with_ends(found, settings)


def _tokenizer(folder: Path, config: Config, settings: Mapping[str, Any]) -> Tokenizer:
    if file_inside(folder, "tokenizer.json").is_file():
        return load_tokenizer(folder / "tokenizer.json")
    lower = settings.get("do_lower_case")
    if file_inside(folder, "vocab.txt").is_file() and isinstance(lower, bool):
        tokenizer = Tokenizer(from_wordpiece(folder / "vocab.txt", lower))
    else:
        tokenizer = load_tokenizer(folder)
    kind, engine = config.get("model_type"), tokenizer.engine
    if kind in ("qwen2", "qwen3"):
        set_pre_tokenization(engine, "qwen")
    if kind == "t5" and tokenizer.id_of("</s>") is not None:
        engine.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(SENTINELS))])
        engine.post_processor = _template_processing("$A </s>", tokenizer, "</s>")
    elif kind in ("llama", "mistral", "mixtral") and tokenizer.id_of("<s>") is not None:
        engine.post_processor = _template_processing("<s> $A", tokenizer, "<s>")
    elif kind in ("gemma2", "gemma3_text") and tokenizer.id_of("<bos>") is not None:
        engine.post_processor = _template_processing("<bos> $A", tokenizer, "<bos>")
    _add_tokens(tokenizer, settings.get("added_tokens_decoder"))
    return tokenizer


def _template_processing(single: str, tokenizer: Tokenizer, name: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, special_tokens=[(name, tokenizer.id_of(name) or 0)])


def _add_tokens(tokenizer: Tokenizer, table: Any) -> None:
    """Tokens that were added after training, in the order of their ids."""
    if not isinstance(table, dict) or any(as_whole_number(str(number)) is None for number in table):
        return
    for number, entry in sorted(table.items(), key=lambda item: int(item[0])):
        name = _token(entry)
        if name is None or tokenizer.id_of(name) is not None:
            continue
        if int(number) != tokenizer.vocabulary:
            raise DataError(
                f"tokenizer_config.json adds {name!r:.40} as token {number}, but the next is {tokenizer.vocabulary}: "
                "fetch the folder again"
            )
        special = isinstance(entry, dict) and bool(entry.get("special"))
        (tokenizer.engine.add_special_tokens if special else tokenizer.engine.add_tokens)([name])


def _token(value: Any) -> str | None:
    """A special token, given as a text or as an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) and content else None


def text_frame(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer's own post-processor puts before and after a text."""
    plain = tokenizer.encode("a") or tokenizer.encode("1")
    framed = list(tokenizer.encode_framed("a" if tokenizer.encode("a") else "1").ids)
    for first in range(len(framed) - len(plain) + 1):
        if framed[first : first + len(plain)] == plain:
            return tuple(framed[:first]), tuple(framed[first + len(plain) :])
    return (), ()


def pair_frame(
    tokenizer: Tokenizer, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[tuple[int, ...], int] | None:
    """(ids between two texts, segment of the second) by the tokenizer's own post-processor; None if it has no pairs."""
    word = "a" if tokenizer.encode("a") else "1"
    plain, framed = tokenizer.encode(word), tokenizer.encode_framed(word, word)
    ids, first = list(framed.ids), len(before) + len(plain)
    last = len(ids) - len(after) - len(plain)
    if last <= first or ids[:first] != [*before, *plain] or ids[last:] != [*plain, *after]:
        return None
    return tuple(ids[first:last]), int(framed.type_ids[last])


def _with_ends(found: Vocabulary, settings: Mapping[str, Any]) -> Vocabulary:
    """tokenizer_config.json may say whether texts begin with the start token and end with the stop token."""
    start, stop = found.id_of("bos_token"), found.id_of("eos_token")
    for key, side, index in (("add_bos_token", "before", start), ("add_eos_token", "after", stop)):
        wanted = settings.get(key)
        if isinstance(wanted, bool) and (index is not None or not wanted):
            found = replace(found, **{side: (index,) if wanted else ()})  # type: ignore[arg-type]
    return found


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or the template in tokenizer_config.json; of several the one named default."""
    file = file_inside(folder, "chat_template.jinja")
    given: Any = settings.get("chat_template")
    if file.is_file():
        if file.stat().st_size > LARGEST_TEMPLATE:
            raise DataError(
                f"{file.name} has {file.stat().st_size:,} bytes, which no chat template has: do not trust it"
            )
        given = file.read_text(encoding="utf-8", errors="replace")
    if isinstance(given, list):
        named = {one.get("name"): one.get("template") for one in given if isinstance(one, dict)}
        given = named.get("default")
    return given if isinstance(given, str) and 0 < len(given) <= LARGEST_TEMPLATE else None
