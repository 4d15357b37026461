"""A foreign checkpoint, inspected: what it is, and where each of our tensors comes from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.checkpoints.families import family_for_config
from weft.checkpoints.families.family import Config, Family
from weft.checkpoints.families.weight_maps import Canonical, MatchedRow, match_tensors
from weft.checkpoints.formats.foreign_tensors import ForeignTensors, Shape
from weft.checkpoints.formats.safetensors_writer import TensorInfo
from weft.checkpoints.formats.untrusted_files import fields_of
from weft.checkpoints.formats.vocabulary import Vocabulary
from weft.checkpoints.task_facts import detect_task
from weft.data.readers.files import DataError
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import SpecError
from weft.foundation.spec import Tree
from weft.models.build import AnySpec, build
from weft.models.two_tower import TwoTowerSpec
from weft.parts.quantized import BlockLayout, takes_blocks


@dataclass(frozen=True)
class ForeignCheckpoint:
    """All that is needed to convert it; only names, shapes and settings have been read.

    `left_out` are tensors that no task here uses, such as the head of masked language models.
    """

    source: Path
    family: Family
    architecture: str
    spec: AnySpec
    tensors: ForeignTensors
    matched: dict[str, MatchedRow]
    left_out: tuple[str, ...]
    task: str
    facts: Tree
    tokenizer: Tokenizer | None

    @cached_property
    def tensor_infos(self) -> dict[str, TensorInfo]:
        """Types and shapes of our tensors; of those in blocks, of their bytes."""
        shapes = state_shapes(self.spec)
        infos = {name: TensorInfo(one.dtype(self.tensors), shapes[name]) for name, one in self.matched.items()}
        for part, layout in self.block_layouts.items():
            del infos[f"{part}.weight"]
            infos[f"{part}.blocks"] = TensorInfo(torch.uint8, (layout.bytes,))
        return infos

    @cached_property
    def block_layouts(self) -> dict[str, BlockLayout]:
        """The parts of our model whose weights stay in the blocks that the file stores, by name."""
        found = {}
        for name, part in build(self.spec, device="meta").named_modules():
            matched = self.matched.get(f"{name}.weight")
            layout = matched.block_layout(self.tensors) if matched is not None and takes_blocks(part) else None
            if layout is not None:
                found[name] = layout
        return found

    @property
    def block_kinds(self) -> tuple[str, ...]:
        """The kinds of those blocks."""
        return tuple(sorted({one.kind for layout in self.block_layouts.values() for one in layout.segments}))

    def read(self, name: str) -> Tensor:
        """One of our tensors."""
        part, _, last = name.rpartition(".")
        if last == "blocks" and part in self.block_layouts:
            return self.matched[f"{part}.weight"].read_blocks(self.tensors)
        return self.matched[name].read(self.tensors)

    @cached_property
    def parameters(self) -> int:
        return sum(prod(shape) for shape in state_shapes(self.spec).values())


class _Known:
    """What the reader of a config may ask about the tensors, by canonical names."""

    def __init__(self, tensors: ForeignTensors, canonical: Canonical) -> None:
        self.tensors = tensors
        self.names = {key: name for name in tensors.shapes if (key := canonical(name)) is not None}

    def has(self, name: str) -> bool:
        return name in self.names

    def same(self, name: str, other: str) -> bool:
        return other in self.names and self.tensors.same(self.names[name], self.names[other])


def state_shapes(spec: AnySpec) -> dict[str, Shape]:
    """Shapes of a model's tensors by name, without allocating them."""
    try:
        module = build(spec, device="meta")
    except (RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0].rstrip(".")[:100]
        raise DataError(f"config.json asks for sizes that no tensor can have ({reason}): fetch it again") from None
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def inspect_checkpoint(
    source: Path, config: Config, tensors: ForeignTensors, vocabulary: Vocabulary | None, stops: Any = None
) -> ForeignCheckpoint:
    """Find the adapter, read the config, and match every tensor."""
    family = family_for_config(config)
    try:
        with fields_of(config.name):
            spec = family.read(config, _Known(tensors, family.canonical))
    except SpecError as error:
        raise DataError(f"{config.name} describes no model that can be built ({error})") from None
    stacks = (spec.image, spec.text) if isinstance(spec, TwoTowerSpec) else (spec,)
    layers = sum(getattr(stack, name, None) or 0 for stack in stacks for name in ("layers", "decoder_layers"))
    experts = getattr(getattr(spec, "feedforward", None), "experts", 0)
    for count, what in ((layers, "layers"), (experts, "experts")):
        if count > len(tensors.shapes):
            raise DataError(
                f"{config.name} says {count:,} {what}, but {tensors.files} holds {len(tensors.shapes):,} tensors: "
                "they do not belong together"
            )
    rows = family.table(spec)
    found, left_out = match_tensors(rows, state_shapes(spec), tensors, family.canonical, family.copies, family.unused)
    folder = source if source.is_dir() else source.parent
    with fields_of(config.name):
        task, facts = detect_task(folder, spec, config, vocabulary, stops)
    tokenizer = None if vocabulary is None else vocabulary.tokenizer
    matched = {one.row.ours: one for one in found}
    architecture = config.architecture() or family.architectures[0]
    return ForeignCheckpoint(
        source, family, architecture, spec, tensors, matched, tuple(left_out), task, facts, tokenizer
    )
