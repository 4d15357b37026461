"""Which layer an attention is, and of which kind: by the stacks of Weft's models, elsewhere by paths and names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from torch import nn

from weft.foundation.errors import WeftError
from weft.inspection.recording.attention_records import Kind
from weft.parts.attention import CrossAttention, PlainCrossAttention, SelfAttention
from weft.parts.linear_attention import LinearAttention
from weft.parts.stack import Stack

Declared = type[nn.Module] | str | Sequence[type[nn.Module] | str]
OWN = (SelfAttention, CrossAttention, PlainCrossAttention, LinearAttention)
ATTENTION = re.compile("attention|attn|attend", re.IGNORECASE)
CROSS = re.compile("cross|encoder_attn|encdec|multihead_attn|enc_dec", re.IGNORECASE)


def is_own(part: nn.Module) -> bool:
    """Whether a module is one of Weft's own, which tell observers what they do."""
    return type(part).__module__.partition(".")[0] == "weft"


def is_foreign_attention(part: nn.Module) -> bool:
    """Whether a part of another library is called an attention."""
    return bool(ATTENTION.search(type(part).__name__)) and not isinstance(part, OWN)


def declared_attentions(module: nn.Module, declared: Declared) -> set[int]:
    """The parts that a caller says are attentions: classes, names of classes, or paths such as blocks.0.head."""
    found: set[int] = set()
    given = list(declared) if isinstance(declared, (list, tuple, set, frozenset)) else [declared]
    for one in given:
        if not isinstance(one, (type, str)):
            raise WeftError(f"attention={one!r:.60} names no part: give a class, its name or a path, or a list of them")
        own = {id(part) for path, part in module.named_modules() if _is(one, path, part)}
        if not own:
            kinds = sorted({type(part).__name__ for part in module.modules()})
            name = one.__name__ if isinstance(one, type) else one
            raise WeftError(f"{type(module).__name__} has no part {name!r:.60}: choose one of {', '.join(kinds[:12])}")
        found |= own
    return found


def _is(one: type[nn.Module] | str, path: str, part: nn.Module) -> bool:
    return one in (path, type(part).__name__) if isinstance(one, str) else isinstance(part, one)


class AttentionNames:
    """Kind, layer and path of every attention of a module.

    `own`: of Weft's parts, by id; `stacks`: all of a stack, by the id of its blocks; `others`: (layer, mixer) of blocks
    whose mixer is no attention. Parts of other libraries get their layers in the order in which they first run; one
    that runs several times per forward counts as several layers.
    """

    def __init__(self, module: nn.Module, declared: Declared = ()) -> None:
        self.paths = {id(part): path for path, part in module.named_modules()}
        self.own: dict[int, tuple[Kind, int, str]] = {}
        self.stacks: dict[int, list[tuple[Kind, int, str]]] = {}
        self.others: dict[Kind, list[tuple[int, nn.Module]]] = {}
        also = declared_attentions(module, declared)
        self.foreign = {
            path: part for path, part in module.named_modules() if is_foreign_attention(part) or id(part) in also
        }
        self._crossing = any(CROSS.search(f"{path} {type(part).__name__}") for path, part in self.foreign.items())
        self._counts: Counter[Kind] = Counter()
        self._layers: dict[tuple[Kind, str, int], int] = {}
        stacks = [part for part in module.modules() if isinstance(part, Stack)]
        crossed = any(block.cross is not None for stack in stacks for block in stack.blocks)
        for stack in stacks:
            own: Kind = "encoder" if crossed and all(block.cross is None for block in stack.blocks) else "self"
            self._name_stack(stack, own)
        for part in module.modules():
            if isinstance(part, OWN) and id(part) not in self.own:
                kind: Kind = "cross" if isinstance(part, (CrossAttention, PlainCrossAttention)) else "self"
                self.own[id(part)] = (kind, self._counts[kind], self.paths[id(part)])
                self._counts[kind] += 1

    def _name_stack(self, stack: Stack, kind: Kind) -> None:
        """Layers are numbered as the blocks are; those of a second stack of the same kind follow the first one's."""
        first, across = self._counts[kind], self._counts["cross"]
        for layer, block in enumerate(stack.blocks):
            if isinstance(block.mixer, OWN):
                self.own[id(block.mixer)] = (kind, first + layer, self.paths[id(block.mixer)])
            elif isinstance(block.mixer, nn.Module):
                self.others.setdefault(kind, []).append((first + layer, block.mixer))
            if isinstance(block.cross, CrossAttention):
                self.own[id(block.cross)] = ("cross", across + layer, self.paths[id(block.cross)])
        parts = [part for block in stack.blocks for part in (block.mixer, block.cross)]
        self.stacks[id(stack.blocks)] = [self.own[id(part)] for part in parts if id(part) in self.own]
        self._counts[kind] += len(stack.blocks)
        if any(block.cross is not None for block in stack.blocks):
            self._counts["cross"] += len(stack.blocks)

    def kind_of(self, path: str, part: nn.Module) -> Kind:
        """The kind of a part of another library."""
        if CROSS.search(f"{path} {type(part).__name__}"):
            return "cross"
        return "encoder" if self._crossing and "encoder" in re.split(r"[._]", path) else "self"

    def layer_of(self, kind: Kind, path: str, time: int) -> int:
        """The number of a foreign part's layer on its `time`-th run within one forward."""
        key = (kind, path, time)
        if key not in self._layers:
            self._layers[key] = self._counts[kind]
            self._counts[kind] += 1
        return self._layers[key]
