"""Rotary positions in configs: rope_parameters of transformers 5, rope_theta and rope_scaling of earlier versions."""

from __future__ import annotations

import math

from weft.checkpoints.families.family import Config
from weft.data.readers.files import DataError
from weft.foundation.spec import Tree
from weft.models.position_specs import LinearScalingSpec, Llama3ScalingSpec, RotarySpec, ScalingSpec, YaRNScalingSpec

KINDS = ("default", "linear", "llama3", "yarn")


def read_rotary(config: Config, kinds: tuple[str, ...] = KINDS, fraction: float = 1.0) -> RotarySpec:
    """The positions of a config; `kinds` are the scalings that its architecture has, `fraction` is its default share
    of turning coordinates."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise config.wrong("rope_parameters", "a table")
    outer = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    rope = Config({**outer, **given}, f"{config.name}, rope_parameters")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in kinds:
        known = ", ".join(kinds)
        raise DataError(
            f"{config.name} scales rotary positions by {kind!r:.40}, but Weft reads only {known} of this kind"
        )
    base, share = rope.number("rope_theta", 10_000.0), rope.number("partial_rotary_factor", fraction)
    return RotarySpec(base=base, fraction=share, scaling=_scaling(rope, kind, config))


def _scaling(rope: Config, kind: str, config: Config) -> ScalingSpec | None:
    if kind == "linear":
        return LinearScalingSpec(factor=rope.number("factor"))
    if kind == "llama3":
        return Llama3ScalingSpec(
            factor=rope.number("factor"),
            low=rope.number("low_freq_factor"),
            high=rope.number("high_freq_factor"),
            original=rope.whole("original_max_position_embeddings"),
        )
    return _yarn(rope, config) if kind == "yarn" else None


def _yarn(rope: Config, config: Config) -> YaRNScalingSpec:
    """Missing numbers are as in the library: the original length is the model's own, the factor their ratio."""
    length = config.whole("max_position_embeddings", 2048)
    original = rope.whole("original_max_position_embeddings", length)
    factor = rope.number("factor", length / original)
    magnitude = rope.number("attention_factor") if rope.get("attention_factor") is not None else None
    ends = [rope.number(key) if rope.get(key) else None for key in ("mscale", "mscale_all_dim")]
    if magnitude is None and ends[0] is not None and ends[1] is not None:
        above, below = (0.1 * end * math.log(factor) + 1 if factor > 1 else 1.0 for end in ends if end is not None)
        magnitude = above / below
    return YaRNScalingSpec(
        factor=factor,
        original=original,
        fast=rope.number("beta_fast", 32.0),
        slow=rope.number("beta_slow", 1.0),
        rounded=rope.flag("truncate", True),
        magnitude=magnitude,
    )


def write_rotary(positions: RotarySpec) -> Tree:
    """The fields of transformers 5, and those of earlier versions: rope_theta and rope_scaling."""
    scaling, theta = positions.scaling, positions.base
    how: Tree = {"rope_type": "default"}
    if isinstance(scaling, LinearScalingSpec):
        how = {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, Llama3ScalingSpec):
        how = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.original,
        }
    if isinstance(scaling, YaRNScalingSpec):
        how = {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original,
            "beta_fast": scaling.fast,
            "beta_slow": scaling.slow,
            "truncate": scaling.rounded,
        }
        how |= {} if scaling.magnitude is None else {"attention_factor": scaling.magnitude}
    share: Tree = {} if positions.fraction == 1.0 else {"partial_rotary_factor": positions.fraction}
    known = {"rope_theta": theta, **share, "rope_parameters": {**how, **share, "rope_theta": theta}}
    return known if scaling is None else known | {"rope_scaling": how}
