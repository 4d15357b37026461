"""CLIP: a vision transformer and a causal text tower, projected to one space (Radford et al. 2021).

Where `eos_token_id` is 2, which older configs say by mistake, texts are pooled at their token of the highest id.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.checkpoints.families.family import THEIR_ACTIVATIONS, Config, Family, KnownTensors
from weft.checkpoints.families.vit import read_side
from weft.checkpoints.families.weight_maps import Reshaped, WeightRow, map_linear, map_norm
from weft.foundation.spec import Tree
from weft.models.part_specs import AttentionSpec, ClassicSpec, LayerNormSpec
from weft.models.position_specs import GridTableSpec, LearnedSpec
from weft.models.stack_spec import StackSpec
from weft.models.two_tower import TextTowerSpec, TwoTowerSpec
from weft.models.vision import VisionSpec

MISTAKEN_END = 2


def read(config: Config, known: KnownTensors) -> TwoTowerSpec:
    """The spec of a config."""
    return TwoTowerSpec(
        width=config.whole("projection_dim", 512),
        image=_image(_tower(config, "vision")),
        text=_text(_tower(config, "text")),
    )


def _tower(config: Config, name: str) -> Config:
    """The config of one tower; older ones are in `text_config_dict`, which then counts alone."""
    key = f"{name}_config_dict" if config.get(f"{name}_config_dict") is not None else f"{name}_config"
    tree = config.get(key, {})
    if not isinstance(tree, Mapping):
        raise config.wrong(key, "a table of settings")
    found = Config(tree, f"{config.name}, {key}")
    found.expect("model_type", f"clip_{name}_model")
    return found


def _image(config: Config) -> VisionSpec:
    return VisionSpec(
        image=read_side(config, "image_size", 224),
        patch=read_side(config, "patch_size", 32),
        channels=config.whole("num_channels", 3),
        patch_bias=False,
        input_norm=True,
        grid=GridTableSpec(),
        **_body(config, width=768, heads=12, hidden=3072),
    )


def _text(config: Config) -> TextTowerSpec:
    vocabulary = config.whole("vocab_size", 49408)
    end = config.get("eos_token_id", 49407)
    if not isinstance(end, int) or isinstance(end, bool) or not 0 <= end < vocabulary:
        raise config.wrong("eos_token_id", f"one token from 0 to {vocabulary - 1}")
    return TextTowerSpec(
        vocabulary=vocabulary,
        length=config.whole("max_position_embeddings", 77),
        end_token=None if end == MISTAKEN_END else end,
        positions=LearnedSpec(),
        **_body(config, width=512, heads=8, hidden=2048),
    )


def _body(config: Config, width: int, heads: int, hidden: int) -> Tree:
    """What both towers have, with the defaults of each."""
    return {
        "width": config.whole("hidden_size", width),
        "layers": config.whole("num_hidden_layers", 12),
        "mixer": AttentionSpec(heads=config.whole("num_attention_heads", heads)),
        "feedforward": ClassicSpec(
            hidden=config.whole("intermediate_size", hidden),
            activation=config.activation("hidden_act", "quick_gelu"),
        ),
        "norm": LayerNormSpec(epsilon=config.number("layer_norm_eps", 1e-5)),
    }


def write(spec: TwoTowerSpec) -> Tree:
    """The config of a spec."""
    image, text = spec.image, spec.text
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": spec.width,
        "vision_config": {
            "model_type": "clip_vision_model",
            "image_size": image.image,
            "patch_size": image.patch,
            "num_channels": image.channels,
            **_written(image, spec.width),
        },
        "text_config": {
            "model_type": "clip_text_model",
            "vocab_size": text.vocabulary,
            "max_position_embeddings": text.length,
            "eos_token_id": MISTAKEN_END if text.end_token is None else text.end_token,
            **_written(text, spec.width),
        },
    }


def _written(tower: VisionSpec | TextTowerSpec, shared: int) -> Tree:
    feedforward = tower.feedforward
    assert isinstance(feedforward, ClassicSpec) and isinstance(tower.norm, LayerNormSpec)
    return {
        "hidden_size": tower.width,
        "num_hidden_layers": tower.layers,
        "num_attention_heads": tower.attention().heads,
        "intermediate_size": feedforward.hidden or 4 * tower.width,
        "hidden_act": THEIR_ACTIVATIONS[feedforward.activation],
        "layer_norm_eps": tower.norm.epsilon,
        "projection_dim": shared,
    }


def table(spec: TwoTowerSpec) -> list[WeightRow]:
    """Names of CLIPModel."""
    image = spec.image
    D, C, p = image.width, image.channels, image.patch
    seen, read = "vision_model.embeddings", "text_model.embeddings"
    return [
        WeightRow(
            "image.patches.linear.weight",
            (f"{seen}.patch_embedding.weight",),
            Reshaped((D, C, p, p), (D, C * p * p)),
        ),
        WeightRow("image.class_token.vector", (f"{seen}.class_embedding",)),
        WeightRow("image.grid.table", (f"{seen}.position_embedding.weight",)),
        # The name is misspelled in the files.
        *map_norm("image.input_norm", "vision_model.pre_layrnorm"),
        *_blocks("image", "vision_model", image),
        *map_norm("image.stack.norm", "vision_model.post_layernorm"),
        WeightRow("text.embedding.weight", (f"{read}.token_embedding.weight",)),
        WeightRow("text.input.position.table", (f"{read}.position_embedding.weight",)),
        *_blocks("text", "text_model", spec.text),
        *map_norm("text.stack.norm", "text_model.final_layer_norm"),
        *map_linear("image_head.linear", "visual_projection", bias=False),
        *map_linear("text_head.linear", "text_projection", bias=False),
        WeightRow("similarity.scale", ("logit_scale",)),
    ]


def _blocks(tower: str, name: str, spec: StackSpec) -> list[WeightRow]:
    rows: list[WeightRow] = []
    for layer in range(spec.layers):
        ours, theirs = f"{tower}.stack.blocks.{layer}", f"{name}.encoder.layers.{layer}"
        projections = [f"{theirs}.self_attn.{letter}_proj" for letter in "qkv"]
        rows += map_linear(f"{ours}.mixer.qkv", *projections, sizes=(spec.width,) * 3)
        rows += map_linear(f"{ours}.mixer.output", f"{theirs}.self_attn.out_proj")
        rows += map_linear(f"{ours}.feedforward.up", f"{theirs}.mlp.fc1")
        rows += map_linear(f"{ours}.feedforward.down", f"{theirs}.mlp.fc2")
        rows += map_norm(f"{ours}.mixer_norm", f"{theirs}.layer_norm1")
        rows += map_norm(f"{ours}.feedforward_norm", f"{theirs}.layer_norm2")
    return rows


def canonical(name: str) -> str | None:
    """Older files hold the numbers of positions, which are no weights."""
    return None if name.endswith(".embeddings.position_ids") else name


FAMILY = Family(
    name="CLIP",
    types=("clip",),
    architectures=("CLIPModel",),
    read=read,
    write=write,
    table=table,
    canonical=canonical,
)
