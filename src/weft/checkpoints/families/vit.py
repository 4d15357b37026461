"""ViT and DeiT: patches, a class token, learned positions; DeiT has a distillation token, and a head for it."""

from __future__ import annotations

from functools import partial

from weft.checkpoints.families.family import THEIR_ACTIVATIONS, Config, Family, KnownTensors
from weft.checkpoints.families.weight_maps import Reshaped, WeightRow, map_linear, map_norm
from weft.data.readers.files import DataError
from weft.foundation.spec import Tree
from weft.models.part_specs import AttentionSpec, ClassicSpec, LayerNormSpec
from weft.models.position_specs import GridTableSpec
from weft.models.vision import VisionSpec

BARE = "Model"
TEACHER = "DeiTForImageClassificationWithTeacher"


def read(config: Config, known: KnownTensors, deit: bool = False) -> VisionSpec:
    """The spec of a config."""
    name = config.architecture()
    bias = config.flag("qkv_bias", True)
    return VisionSpec(
        image=read_side(config, "image_size", 224),
        patch=read_side(config, "patch_size", 16),
        channels=config.whole("num_channels", 3),
        width=config.whole("hidden_size", 768),
        layers=config.whole("num_hidden_layers", 12),
        mixer=AttentionSpec(
            heads=config.whole("num_attention_heads", 12), bias=bias, output_bias=None if bias else True
        ),
        feedforward=ClassicSpec(
            hidden=config.whole("intermediate_size", 3072), activation=config.activation("hidden_act", "gelu")
        ),
        norm=LayerNormSpec(epsilon=config.number("layer_norm_eps", 1e-12)),
        grid=GridTableSpec(),
        pool="distilled" if name == TEACHER else "first",
        registers=1 if deit else 0,
        classes=None if name.endswith(BARE) else _classes(config),
    )


def read_side(config: Config, key: str, default: int) -> int:
    """The side of a square, which may be given as height and width."""
    value = config.get(key, default)
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1]:
            raise DataError(f"{config.name}: {key} is {value!r:.40}, but Weft's vision models take squares")
        return Config({key: value[0]}, config.name).whole(key)
    return config.whole(key, default)


def _classes(config: Config) -> int:
    labels = config.get("id2label")
    return len(labels) if isinstance(labels, dict) and labels else config.whole("num_labels", 2)


def write(spec: VisionSpec, deit: bool = False) -> Tree:
    """The config of a spec."""
    feedforward = spec.feedforward
    assert isinstance(feedforward, ClassicSpec) and isinstance(spec.norm, LayerNormSpec)
    classes = range(spec.classes or 0)
    name = f"{'DeiT' if deit else 'ViT'}{BARE if spec.classes is None else 'ForImageClassification'}"
    return {
        "architectures": [TEACHER if spec.pool == "distilled" else name],
        "model_type": "deit" if deit else "vit",
        "image_size": spec.image,
        "patch_size": spec.patch,
        "num_channels": spec.channels,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.attention().heads,
        "qkv_bias": spec.attention().bias,
        "intermediate_size": feedforward.hidden or 4 * spec.width,
        "hidden_act": THEIR_ACTIVATIONS[feedforward.activation],
        "layer_norm_eps": spec.norm.epsilon,
        "id2label": {str(number): f"LABEL_{number}" for number in classes},
        "label2id": {f"LABEL_{number}": number for number in classes},
    }


def table(spec: VisionSpec, deit: bool = False) -> list[WeightRow]:
    """Names of ViTForImageClassification and DeiTForImageClassification, with teacher or without; of bare models."""
    body = "" if spec.classes is None else "deit." if deit else "vit."
    D, C, p = spec.width, spec.channels, spec.patch
    entry, tokens = f"{body}embeddings", spec.extra + spec.side**2
    kernel = f"{entry}.patch_embeddings.projection"
    rows = [
        *map_linear("patches.linear", kernel, transform=Reshaped((D, C, p, p), (D, C * p * p))),
        WeightRow("class_token.vector", (f"{entry}.cls_token",), Reshaped((1, 1, D), (D,))),
        WeightRow("grid.table", (f"{entry}.position_embeddings",), Reshaped((1, tokens, D), (tokens, D))),
        *map_norm("stack.norm", f"{body}layernorm"),
    ]
    if spec.registers:
        rows.append(WeightRow("registers.table", (f"{entry}.distillation_token",), Reshaped((1, 1, D), (1, D))))
    if spec.pool == "distilled":
        rows += map_linear("head.linear", "cls_classifier") + map_linear("head.distilled", "distillation_classifier")
    elif spec.classes is not None:
        rows += map_linear("head.linear", "classifier")
    for layer in range(spec.layers):
        ours, theirs = f"stack.blocks.{layer}", f"{body}encoder.layer.{layer}"
        projections = [f"{theirs}.attention.attention.{name}" for name in ("query", "key", "value")]
        rows += map_linear(f"{ours}.mixer.qkv", *projections, sizes=(D,) * 3, bias=spec.attention().bias)
        rows += map_linear(f"{ours}.mixer.output", f"{theirs}.attention.output.dense")
        rows += map_linear(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense")
        rows += map_linear(f"{ours}.feedforward.down", f"{theirs}.output.dense")
        rows += map_norm(f"{ours}.mixer_norm", f"{theirs}.layernorm_before")
        rows += map_norm(f"{ours}.feedforward_norm", f"{theirs}.layernorm_after")
    return rows


def canonical(name: str) -> str:
    """With or without the prefix of the body."""
    return name.removeprefix("vit.").removeprefix("deit.")


VIT = Family(
    name="ViT",
    types=("vit",),
    architectures=("ViTForImageClassification", "ViTModel"),
    read=read,
    write=write,
    table=table,
    canonical=canonical,
    unused=("pooler.", "classifier."),
    text=False,
)
DEIT = Family(
    name="DeiT",
    types=("deit",),
    architectures=("DeiTForImageClassification", TEACHER, "DeiTModel"),
    read=partial(read, deit=True),
    write=partial(write, deit=True),
    table=partial(table, deit=True),
    canonical=canonical,
    unused=("pooler.", "classifier."),
    text=False,
)
