"""The same model in small: every kind kept, every number reduced, so that laws are judged in a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.models.build import AnySpec

WIDTH, LAYERS, VOCABULARY, LENGTH, IMAGE, PATCH = 48, 2, 101, 64, 12, 4
CHARACTERS, LONGEST = 29, 5
ENCODER_WIDTH, CHANNELS = 36, 5


def shrink(spec: AnySpec, layers: int = LAYERS) -> AnySpec:
    """A spec of the same kinds with small numbers: 2 layers, width 48, at most 6 heads, a window of 5."""
    if spec.family == "recurrent-seq2seq":
        return spec.replace(vocabulary=VOCABULARY, target_vocabulary=97, width=13, hidden=11, length=LENGTH)
    if spec.family == "two-tower":
        image, text = (_stack(tower, layers).to_tree() for tower in (spec.image, spec.text))
        return spec.replace(width=23, image=image, text=text)
    return _stack(spec, layers)


def _stack(spec: Any, layers: int) -> Any:
    """The same of one stack, which may be a tower of two."""
    changes: dict[str, Any] = {
        "width": WIDTH,
        "layers": min(layers, spec.layers),
        "mixer": [_mixer(mixer.to_tree()) for mixer in spec.mixer],
        "feedforward": _feedforward(spec.feedforward.to_tree()),
    }
    if spec.positions.own_width():
        changes["positions"] = {**spec.positions.to_tree(), "width": 8}
    if spec.family in ("decoder", "encoder-decoder", "image-text", "text-tower"):
        changes["vocabulary"] = VOCABULARY
    if spec.family == "text-tower" and spec.end_token is not None:
        changes["end_token"] = VOCABULARY - 1
    if spec.family == "encoder-decoder":
        changes |= {"target_vocabulary": spec.target_vocabulary and 97, "decoder_layers": None}
        changes |= {"source": _source(spec.source.to_tree()), "encoder": _encoder_side(spec.encoder.to_tree())}
        changes["cross"] = None if spec.cross is None else _mixer(spec.cross.to_tree())
    if spec.family == "encoder" and spec.input.kind != "vectors":
        changes["input.vocabulary"] = VOCABULARY
    if spec.family == "encoder" and spec.input.kind == "words":
        changes |= {"input.characters": CHARACTERS, "input.character_width": 7, "input.longest": LONGEST}
    if spec.family in ("vision", "image-text"):
        changes |= {"image": IMAGE * 2 ** len(spec.stem), "patch": PATCH}
    if spec.family != "vision":
        changes["length"] = LENGTH
    return spec.replace(**changes)


def _source(source: dict[str, Any]) -> dict[str, Any]:
    if source["kind"] == "patches":
        return source | {"image": IMAGE * 2 ** len(source["stem"]), "patch": PATCH}
    small = {"channels": CHANNELS, "length": LENGTH, "patch": 3}
    return {name: small.get(name, value) for name, value in source.items()}


def _encoder_side(encoder: dict[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {"width": encoder["width"] and ENCODER_WIDTH}
    if encoder["mixer"] is not None:
        changes["mixer"] = [_mixer(mixer, ENCODER_WIDTH if encoder["width"] else WIDTH) for mixer in encoder["mixer"]]
    if encoder["feedforward"] is not None:
        changes["feedforward"] = _feedforward(encoder["feedforward"])
    if (encoder["positions"] or {}).get("join") == "concatenate":
        changes["positions"] = encoder["positions"] | {"width": 8}
    return encoder | changes


def _mixer(mixer: dict[str, Any], width: int = WIDTH) -> dict[str, Any]:
    if mixer["kind"] == "attention":
        grouped = mixer["key_heads"] not in (None, mixer["heads"])
        one = mixer["key_heads"] == 1
        heads = 6 if grouped else 3
        sizes = {name: mixer[name] and 8 for name in ("head_width", "value_width")}
        seen = {"window": mixer["window"] and 5, "mask": mixer["mask"] and _mask(mixer["mask"])}
        return mixer | sizes | seen | {"heads": heads, "key_heads": (1 if one else 2) if grouped else None}
    if mixer["kind"] == "linear-attention":
        return mixer | {"heads": 3, "head_width": None}
    if mixer["kind"] in ("convolution", "grid-convolution"):
        return mixer | {"kernel": min(mixer["kernel"], 3), "groups": 1 if mixer["groups"] == 1 else width}
    if mixer["kind"] == "recurrence":
        return mixer | {"hidden": mixer["hidden"] and 11}
    return mixer


def _mask(mask: dict[str, Any]) -> dict[str, Any]:
    """Smaller sizes; a graph stays as it is."""
    most = {"length": 5, "width": 5, "step": 3, "size": 3}
    return mask | {name: min(value, most[name]) for name, value in mask.items() if name in most}


def _feedforward(feedforward: dict[str, Any]) -> dict[str, Any]:
    if feedforward["kind"] == "experts":
        return feedforward | {"experts": 5, "active": min(2, feedforward["active"]), "hidden": 19}
    return feedforward if feedforward["kind"] == "none" else feedforward | {"hidden": 37}
