"""Adapters of other libraries' checkpoints, one file per family; foreign names live only here.

Other packages add theirs, each a `Family`, by the entry points `weft.families`, named by the model_type that they read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.checkpoints.families import bart, bert, clip, gemma, gpt2, gpt_neox, llama, opt, phi3, t5, vit
from weft.checkpoints.families.family import Config, Family
from weft.data.readers.files import DataError
from weft.foundation.errors import WeftError
from weft.foundation.plugins import Registry
from weft.foundation.spec import Tree
from weft.models.build import AnySpec, read_spec

BUILT_IN: tuple[Family, ...] = (
    gpt2.FAMILY,
    llama.FAMILY,
    gpt_neox.FAMILY,
    opt.FAMILY,
    phi3.FAMILY,
    gemma.FAMILY,
    bert.BERT,
    bert.ROBERTA,
    vit.VIT,
    vit.DEIT,
    clip.FAMILY,
    t5.FAMILY,
    bart.BART,
    bart.MARIAN,
)
FAMILIES: Registry[Family] = Registry(
    "weft.families", "family of checkpoints", {kind: family for family in BUILT_IN for kind in family.types}
)


# What to do if a model has no counterpart elsewhere, by its family.
ALTERNATIVES = {
    "decoder": "train with --preset nano-llama or nano-mixtral, or export to onnx",
    "encoder-decoder": "train with --preset nano-t5, or export to onnx",
    "vision": "train with --preset nano-vit, or export to onnx",
    "encoder": "train an imported BERT on with --from, or export to onnx",
    "two-tower": "keep it as a run",
    "series": "export to onnx",
}


def family_for_config(config: Config) -> Family:
    """The adapter for a config; an architecture without one is refused."""
    kind = config.get("model_type")
    name = config.architecture()
    if not isinstance(kind, str) or kind not in FAMILIES:
        types = ", ".join(FAMILIES)
        raise DataError(f"{config.name}: there is no adapter for model_type {kind!r:.60}: Weft reads {types}")
    known = FAMILIES[kind]
    if not isinstance(known, Family) or kind not in known.types:
        raise WeftError(
            f"the adapter for model_type {kind!r} is not a Family of that type: fix the package that adds it"
        )
    if name and name not in known.architectures:
        classes = ", ".join(known.architectures)
        raise DataError(
            f"{config.name}: there is no adapter for the architecture {name!r:.80}: of {known.name} it reads {classes}"
        )
    if config.get("quantization_config") is not None:
        raise DataError(
            f"{config.name} says that the weights are quantized: fetch the unquantized folder, or a GGUF file"
        )
    return known


def find_family(spec: AnySpec, first: str | None = None) -> tuple[Family, Tree]:
    """The family and config of another library for a spec; the error for a spec without one names the obstacle.

    A config is right if reading it gives the spec back, except for fields that matter in training only. Of several
    families the one named `first` is taken: RoBERTa's and BERT's models are the same.
    """
    source = getattr(getattr(spec, "source", None), "kind", "tokens")
    if source != "tokens":
        raise WeftError(
            f"this model maps to no architecture of another library (source is {source!r}, there only 'tokens'): "
            "keep it as a run"
        )
    reasons: list[str] = []
    plain = explicit_spec(spec)
    for family in _in_turn(first):
        try:
            config = family.write(plain)
            names = {family.canonical(name) for row in family.table(plain) for name in row.theirs}
            back = explicit_spec(family.read(Config(config), _Names(names)))
        except (AssertionError, AttributeError, KeyError, TypeError, WeftError, StopIteration):
            continue
        if back == plain:
            return family, config
        if back.family == plain.family:
            reasons.append(f"{family.name}: {_difference(plain.to_tree(), back.to_tree())}")
    reason = "; ".join(reasons[:3]) or _obstacle(spec)
    other = ALTERNATIVES.get(spec.family, "keep it as a run")
    raise WeftError(f"this model maps to no architecture of another library ({reason}): {other}")


def _in_turn(first: str | None) -> Iterator[Family]:
    """The family named `first`, the built-in ones, and those of other packages, which are loaded only if need be."""
    if first is None or first in {family.name for family in BUILT_IN}:
        yield from sorted(BUILT_IN, key=lambda family: family.name != first)
        yield from _added()
    else:
        yield from sorted((*BUILT_IN, *_added()), key=lambda family: family.name != first)


def _added() -> list[Family]:
    return [FAMILIES[kind] for kind in FAMILIES if kind not in FAMILIES.builtin]


class _Names:
    """What `read` may ask about tensors that do not exist yet: their names; none is a copy of another."""

    def __init__(self, names: set[str | None]) -> None:
        self.names = names

    def has(self, name: str) -> bool:
        return name in self.names

    def same(self, name: str, other: str) -> bool:
        return False


TRAINING_FIELDS = ("dropout", "stochastic_depth", "initialization")


def explicit_spec(spec: AnySpec) -> Any:
    """The spec without fields that matter in training only, and with all defaults filled in."""
    return read_spec(_explicit(spec.to_tree()))


def _explicit(tree: Tree) -> Tree:
    """The same of a tree; each of two towers is one of its own."""
    if tree["family"] == "two-tower":
        return {**tree, "image": _explicit(tree["image"]), "text": _explicit(tree["text"]), "initialization": {}}
    for part in (tree, *tree.get("mixer", []), tree.get("feedforward", {})):
        for name in TRAINING_FIELDS:
            part.pop(name, None)
    for mixer in tree.get("mixer", []):
        if mixer["kind"] == "attention":
            mixer["key_heads"] = mixer["key_heads"] or mixer["heads"]
            size = mixer["head_width"] or tree["width"] // mixer["heads"]
            mixer["head_width"], mixer["value_width"] = size, mixer["value_width"] or size
            mixer["output_bias"] = mixer["bias"] if mixer["output_bias"] is None else mixer["output_bias"]
    feedforward = tree.get("feedforward", {})
    if feedforward.get("kind") == "classic":
        feedforward["hidden"] = feedforward["hidden"] or 4 * tree["width"]
    if feedforward.get("kind") in ("gated", "experts"):
        from weft.parts.feedforward import gated_width

        feedforward["hidden"] = feedforward["hidden"] or gated_width(tree["width"])
    if feedforward.get("kind") == "experts":
        from weft.parts.experts import usual_gates

        feedforward["gates"] = feedforward["gates"] or usual_gates(feedforward["active"])
    if tree.get("family") == "encoder-decoder" and tree["decoder_layers"] is None:
        tree["decoder_layers"] = tree["layers"]
    if tree.get("last_norm") is None and "arrangement" in tree:
        tree["last_norm"] = tree["arrangement"] != "post-norm"
    return tree


def _obstacle(spec: AnySpec) -> str:
    """The feature that no family has."""
    mixers = getattr(spec, "mixer", ())
    other = next((mixer.kind for mixer in mixers if mixer.kind != "attention"), None)
    if spec.family in ("decoder", "encoder", "encoder-decoder", "vision") and other is not None:
        return f"mixer is {other!r}, there only 'attention'"
    given = getattr(getattr(spec, "input", None), "kind", "tokens")
    if given != "tokens":
        return f"input is {given!r}, there only 'tokens'"
    return f"family is {spec.family!r}, there only decoders, encoders, encoder-decoders and vision"


def _difference(ours: Any, theirs: Any, path: str = "") -> str:
    """The first field in which two trees differ, with both values."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.get("kind") == theirs.get("kind"):
        for key in ours:
            if ours[key] != theirs.get(key):
                return _difference(ours[key], theirs.get(key), f"{path}.{key}" if path else key)
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for a, b in zip(ours, theirs, strict=True):
            if a != b:
                return _difference(a, b, path)
    short = [one.get("kind", one) if isinstance(one, dict) else one for one in (ours, theirs)]
    return f"{path} is {short[0]!r:.40}, there only {short[1]!r:.40}"
