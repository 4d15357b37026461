"""From a name or a spec to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import nn

from weft.foundation.errors import SpecError
from weft.foundation.numerics import pick_device
from weft.foundation.seeds import generator
from weft.foundation.spec import VersionedSpec, parse_table
from weft.models.decoder import DecoderSpec
from weft.models.encoder import EncoderSpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.image_text import ImageTextSpec
from weft.models.module_spec import ModuleSpec
from weft.models.presets import preset
from weft.models.recurrent_seq2seq import RecurrentSeq2SeqSpec
from weft.models.series import SeriesSpec
from weft.models.two_tower import TwoTowerSpec
from weft.models.vision import VisionSpec
from weft.parts.initialization import initialize

AnySpec = (
    DecoderSpec
    | EncoderSpec
    | EncoderDecoderSpec
    | VisionSpec
    | ImageTextSpec
    | SeriesSpec
    | RecurrentSeq2SeqSpec
    | TwoTowerSpec
)
MODEL_FAMILIES: dict[str, type[VersionedSpec]] = {
    kind.model_fields["family"].default: kind for kind in get_args(AnySpec)
}
MODULE: str = ModuleSpec.model_fields["family"].default


def read_spec(source: str | Mapping[str, Any]) -> AnySpec:
    """A spec of any family from JSON or TOML text or a tree; `family` says which.

    That of a user's own module, `ModuleSpec`, describes a model which cannot be built from it.
    """
    tree = parse_table(source) if isinstance(source, str) else dict(source)
    family = tree.get("family")
    if family == MODULE:
        return ModuleSpec.from_tree(tree)  # type: ignore[return-value]
    if not isinstance(family, str) or family not in MODEL_FAMILIES:
        raise SpecError(f"family {family!r} is unknown: choose one of {', '.join(MODEL_FAMILIES)}")
    return MODEL_FAMILIES[family].from_tree(tree)  # type: ignore[return-value]


def build(
    model: str | AnySpec,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A model from a preset's name or a spec, initialized from `seed` alone; device "meta" builds without memory."""
    spec = preset(model) if isinstance(model, str) else read_spec(model) if isinstance(model, Mapping) else model
    if not isinstance(spec, VersionedSpec):
        raise SpecError(f"a model is built from a preset's name or a spec, not from a {type(model).__name__}")
    if str(device) == "meta":
        with torch.device("meta"):
            return spec.build().to(dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = spec.build()
    initialize(module, spec.initialization.build(), generator(seed, "weights"))
    return module.to(device=pick_device(str(device)), dtype=dtype)
