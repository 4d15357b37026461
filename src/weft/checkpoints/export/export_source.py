"""The source of an export: a run's spec, weights, tokenizer and task facts, for any format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.checkpoints.sample_runs import locate_run
from weft.data.readers.texts import CHAT_ROLES, CHAT_TOKENS
from weft.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.files.json_text import parse_json
from weft.foundation.spec import Tree
from weft.models.build import AnySpec, read_spec
from weft.parts.lora import merged_state
from weft.parts.quantized import BlockLayout, block_layouts, dequantized_state

SPECIAL_TOKENS = {
    "unk_token": ("<unknown>", "<unk>", "[UNK]"),
    "pad_token": ("<pad>", "[PAD]", "<|padding|>"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True)
class SpecialIds:
    """The ids around a text and at the end of an answer; `start` begins the target of an encoder-decoder."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    start: int | None = None
    pad: int | None = None


@dataclass(frozen=True)
class ExportSource:
    """Everything of a run that a format may need; weights are memory-mapped until they are read."""

    folder: RunFolder
    run: RunSpec
    model: AnySpec
    weights: dict[str, Tensor]
    tokenizer: Tokenizer | None
    family: str | None = None
    changed: bool = False

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.weights.values())

    @property
    def generates(self) -> bool:
        """Whether the model generates tokens."""
        declared = self.model.declares()
        return declared.causal and declared.cached and declared.vocabulary is not None

    @property
    def embeds(self) -> bool:
        """Whether the run gives vectors of texts."""
        return "pool" in self.facts

    @property
    def facts(self) -> Tree:
        """What the task knows besides the tokenizer."""
        return self.run.facts

    @property
    def ids(self) -> SpecialIds:
        """The ids that this run's task puts around each text."""
        facts, tokenizer = self.facts, self.tokenizer
        if tokenizer is None:
            return SpecialIds()
        pad = next(
            (index for name in SPECIAL_TOKENS["pad_token"] if (index := tokenizer.id_of(name)) is not None), None
        )
        if self.model.declares().seq2seq:
            ends = facts.get("ends") or {"start": tokenizer.start, "stop": tokenizer.stop, "pad": tokenizer.pad}
            start = ends["stop"] if ends["start"] is None else ends["start"]
            before = tuple(facts.get("before", {}).get("source", ()))
            return SpecialIds(before, (ends["stop"],), (ends["stop"],), start, ends["pad"])
        before, after = tuple(facts.get("before", ())), tuple(facts.get("after", ()))
        stops = tuple(facts.get("stops", ())) or (() if tokenizer.stop is None else (tokenizer.stop,))
        return SpecialIds(before, after, stops, None, pad)

    def special_tokens(self) -> dict[str, str]:
        """Special tokens by the names that other libraries give them."""
        tokenizer, ids = self.tokenizer, self.ids
        chat = self.facts.get("chat")
        if tokenizer is None:
            return {}
        if chat is not None and chat.get("names"):
            return dict(chat["names"])
        found = {
            name: token
            for name, tokens in SPECIAL_TOKENS.items()
            if (token := next((t for t in tokens if tokenizer.id_of(t) is not None), None)) is not None
        }
        first = ids.before[0] if ids.before else tokenizer.start
        for name, index in (("bos_token", first), ("eos_token", ids.stops[0] if ids.stops else None)):
            token = None if index is None else tokenizer.engine.id_to_token(index)
            if token is not None:
                found[name] = token
        return found

    def chat_template(self) -> str | None:
        """The run's own template, or one made of role tokens for a model trained here on chats."""
        chat, tokenizer = self.facts.get("chat"), self.tokenizer
        if chat is not None:
            return str(chat["template"])
        if not self.generates or tokenizer is None or tokenizer.id_of(CHAT_TOKENS[-1]) is None:
            return None
        stop = tokenizer.engine.id_to_token(self.ids.stops[0]) if self.ids.stops else ""
        marks = json.dumps(dict(zip(CHAT_ROLES, CHAT_TOKENS, strict=True)))
        return (
            f"{{% set marks = {marks} %}}{{% for message in messages %}}{{{{ marks[message['role']] }}}}"
            f"{{{{ message['content'] }}}}"
            f"{{% if message['role'] == '{CHAT_ROLES[-1]}' %}}{stop}{{% endif %}}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}{CHAT_TOKENS[-1]}{{% endif %}}"
        )


def open_export_source(path: Path, module: nn.Module | None = None) -> ExportSource:
    """The run in a folder; with a `module`, its current weights are exported."""
    folder = RunFolder(locate_run(path))
    run = folder.read_spec()
    as_stored, layouts = folder.read_stored_model()
    stored = dequantized_state(as_stored, layouts)
    weights, changed = (stored, False) if module is None else _newest(stored, module, layouts)
    tokenizer = load_tokenizer(folder.tokenizer) if folder.tokenizer is not None else None
    return ExportSource(folder, run, read_spec(run.model), weights, tokenizer, _origin(path, run.base), changed)


def _newest(
    stored: dict[str, Tensor], module: nn.Module, layouts: Mapping[str, BlockLayout]
) -> tuple[dict[str, Tensor], bool]:
    """A module's weights, adapters merged; those that equal the stored ones keep the stored type."""
    in_blocks = block_layouts(module)
    own = {name: tensor.detach().cpu() for name, tensor in merged_state(module).items()}
    own = dequantized_state(own, in_blocks)
    if set(own) != set(stored) or not set(in_blocks) <= set(layouts):
        raise WeftError("the weights of this run were rounded or replaced: load it again without quantize")
    newest = {
        name: stored[name] if torch.equal(tensor, stored[name].to(tensor.dtype)) else tensor
        for name, tensor in own.items()
    }
    return newest, any(newest[name] is not stored[name] for name in stored)


def _origin(path: Path, base: str | None) -> str | None:
    """The family of the checkpoint that the run, or the run it was trained from, was imported from."""
    for place in (path, *([] if base is None else [Path(base)])):
        try:
            tree = parse_json((place / "import.json").read_bytes())
            return str(tree["family"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
