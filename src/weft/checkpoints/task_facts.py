"""The task that a foreign checkpoint fits, and the facts that the task needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.checkpoints.families.family import Config
from weft.checkpoints.formats.untrusted_files import file_inside, read_json, read_modules, read_optional_json
from weft.checkpoints.formats.vocabulary import Vocabulary, pair_frame
from weft.data.readers.files import DataError
from weft.foundation.spec import Tree
from weft.models.build import AnySpec
from weft.models.encoder import EncoderSpec, MaskedLanguageSpec, PerTokenSpec, PooledSpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.two_tower import TwoTowerSpec
from weft.models.vision import VisionSpec

LONGEST_ANSWER = 512
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
IDENTITY = "torch.nn.modules.linear.Identity"
SCORE_ACTIVATIONS = {IDENTITY: "identity", "torch.nn.modules.activation.Sigmoid": "sigmoid"}
MASK_TOKENS = ("[MASK]", "<mask>")
PREPROCESSOR = "preprocessor_config.json"
# What CLIP's preprocessor does where its config does not say otherwise.
CLIP_PICTURES: Tree = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": 224,
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
POOLS = {"cls": "first", "mean": "mean", "lasttoken": "last"}


def text_facts(vocabulary: Vocabulary, stops: Any) -> Tree:
    """Ids before each text, ids at which a text stops, and the chat template."""
    ids = stops if isinstance(stops, list) else [] if stops is None else [stops]
    known = [index for index in ids if isinstance(index, int) and 0 <= index < vocabulary.tokenizer.vocabulary]
    stop = vocabulary.id_of("eos_token")
    if not known and stop is not None:
        known = [stop]
    facts: Tree = {"before": list(vocabulary.before), "stops": known}
    if vocabulary.template is not None:
        facts["chat"] = {"template": vocabulary.template, "names": dict(vocabulary.names)}
    return facts


def translation_facts(spec: EncoderDecoderSpec, config: Config, vocabulary: Vocabulary) -> Tree:
    """The ids around sources and targets; the ids that Marian must never and BART must first generate."""
    stop, pad = (config.get(f"{name}_token_id") for name in ("eos", "pad"))
    start = config.get("decoder_start_token_id", pad if config.get("model_type") == "t5" else stop)
    for name, index in (("eos_token_id", stop), ("pad_token_id", pad), ("decoder_start_token_id", start)):
        if not isinstance(index, int) or not 0 <= index < spec.vocabulary:
            raise config.wrong(name, f"a token from 0 to {spec.vocabulary - 1}")
    first = config.get("forced_bos_token_id")
    return {
        "longest": [min(spec.length, LONGEST_ANSWER)] * 2,
        "pairs": 0,
        "ends": {"start": start, "stop": stop, "pad": pad},
        "before": {"source": list(vocabulary.before), "target": [first] if isinstance(first, int) else []},
        "forbidden": [pad] if config.get("model_type") == "marian" else [],
    }


def class_names(config: Config, count: int) -> list[str]:
    """Names of classes, from id2label; duplicate names get their number."""
    table = config.get("id2label") or {}
    if not isinstance(table, dict):
        raise config.wrong("id2label", "a table of numbers and names")
    names = [str(table.get(str(number), f"LABEL_{number}")) for number in range(count)]
    often = Counter(names)
    return [name if often[name] == 1 else f"{name} ({number})" for number, name in enumerate(names)]


def label_facts(output: PooledSpec | PerTokenSpec, config: Config, vocabulary: Vocabulary) -> Tree:
    """Names of classes or tags, and the ids around each text."""
    names = class_names(config, output.classes or 0)
    own: Tree = {"tags": names} if isinstance(output, PerTokenSpec) else {"classes": names, "reading": "tokens"}
    return {**own, "before": list(vocabulary.before), "after": list(vocabulary.after)}


def regression_facts(spec: EncoderSpec, config: Config, vocabulary: Vocabulary) -> Tree:
    """What makes a score of the logit, as sentence-transformers names it, and the ids around and between texts."""
    own = config.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, dict) else None
    name = named or config.get("sbert_ce_default_activation_function") or IDENTITY
    if not isinstance(name, str) or name not in SCORE_ACTIVATIONS:
        known = " and ".join(SCORE_ACTIVATIONS)
        raise DataError(f"{config.name} makes scores by the activation_fn {name!r:.60}: Weft has {known}")
    facts: Tree = {"activation": SCORE_ACTIVATIONS[name], "length": spec.length}
    facts |= {"before": list(vocabulary.before), "after": list(vocabulary.after)}
    pair = pair_frame(vocabulary.tokenizer, vocabulary.before, vocabulary.after)
    if pair is not None:
        segment = pair[1] if pair[1] < (spec.input.segments or 1) else 0
        facts |= {"between": list(pair[0]), "segment": segment}
    return facts


def fill_mask_facts(spec: EncoderSpec, vocabulary: Vocabulary) -> Tree:
    """The id of the mask token, and the ids around each text."""
    named = vocabulary.id_of("mask_token")
    mask = next((i for i in (named, *map(vocabulary.tokenizer.id_of, MASK_TOKENS)) if i is not None), None)
    if mask is None:
        raise DataError(
            f"the vocabulary has no mask token ({' or '.join(MASK_TOKENS)}), which a masked language model fills in: "
            "fetch tokenizer_config.json too"
        )
    return {"mask": mask, "length": spec.length, "before": list(vocabulary.before), "after": list(vocabulary.after)}


def embedding_facts(folder: Path, spec: EncoderSpec, vocabulary: Vocabulary) -> Tree:
    """How tokens are pooled to one vector: as modules.json of sentence-transformers says, else by their mean."""
    facts: Tree = {
        "pool": "mean",
        "normalize": False,
        "length": spec.length,
        "before": list(vocabulary.before),
        "after": list(vocabulary.after),
    }
    most = read_optional_json(folder, "sentence_bert_config.json").get("max_seq_length")
    if isinstance(most, int) and 0 < most <= spec.length:
        facts["length"] = most
    for kind, place in read_modules(folder):
        if kind == "Pooling":
            facts["pool"] = _pool(place)
        elif kind == "Normalize":
            facts["normalize"] = True
        elif kind not in ("Transformer", "Dropout"):
            raise DataError(
                f"modules.json has a module {kind!r:.40}, which Weft does not have: only Pooling and Normalize"
            )
    return facts


def _pool(folder: Path) -> str:
    config = read_json(file_inside(folder, "config.json"))
    named = config.get("pooling_mode")
    modes = (
        [named]
        if isinstance(named, str)
        else [
            key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
            for key, value in config.items()
            if key.startswith("pooling_mode_") and value is True
        ]
    )
    if len(modes) != 1 or modes[0] not in POOLS:
        raise DataError(
            f"{folder.name} pools by {' and '.join(map(str, modes)) or 'nothing'}: Weft has cls, mean and lasttoken"
        )
    return POOLS[modes[0]]


def images_facts(folder: Path, spec: VisionSpec, config: Config) -> Tree:
    """Names of classes; mean and deviation of the channels and how pictures are resized, by the preprocessor config."""
    table = Config(read_optional_json(folder, PREPROCESSOR), PREPROCESSOR)
    names = {"classes": class_names(config, spec.classes or 0)}
    return names | _pictures(table, spec) | {"augmentation": []}


def two_tower_facts(folder: Path, spec: TwoTowerSpec, vocabulary: Vocabulary) -> Tree:
    """How pictures are prepared and which ids are around each text: it must end in the token it is pooled at."""
    before, after = vocabulary.before, vocabulary.after
    if not after or spec.text.end_token not in (None, *after):
        end = "an end token" if spec.text.end_token is None else f"the end token {spec.text.end_token}"
        raise DataError(
            f"the vocabulary does not put {end} after a text, where its vector is read: fetch tokenizer.json again, "
            "and check eos_token_id of config.json"
        )
    if vocabulary.tokenizer.vocabulary > spec.text.vocabulary:
        raise DataError(
            f"the vocabulary has {vocabulary.tokenizer.vocabulary:,} tokens, but vocab_size of config.json is "
            f"{spec.text.vocabulary:,}: they do not belong together"
        )
    frame = {"before": list(before), "after": list(after), "length": spec.length}
    return _pictures(_clip_preprocessor(folder, spec.image.image), spec.image) | frame


def _clip_preprocessor(folder: Path, side: int) -> Config:
    """CLIP's settings, where a single number for the size is that of the shorter edge; newer folders nest them."""
    name, tree = PREPROCESSOR, read_optional_json(folder, PREPROCESSOR)
    if not tree:
        name = "processor_config.json"
        tree = read_optional_json(folder, name).get("image_processor") or {}
    if not isinstance(tree, Mapping):
        raise Config({"image_processor": tree}, name).wrong("image_processor", "a table of settings")
    given = {key: value for key, value in tree.items() if value is not None} or {"size": side, "crop_size": side}
    if isinstance(given.get("size"), int):
        given["size"] = {"shortest_edge": given["size"]}
    found = Config({**CLIP_PICTURES, **given}, name)
    for key, usual in (("do_resize", True), ("do_center_crop", True), ("do_pad", False), ("use_square_size", False)):
        found.expect(key, usual)
    return found


def _pictures(table: Config, spec: VisionSpec) -> Tree:
    """The side, mean and deviation of the channels, and how pictures are resized."""
    mean, deviation = (
        _each(table, key, 0.5, spec.channels)
        if table.flag("do_normalize", True)
        else [float(key == "image_std")] * spec.channels
        for key in ("image_mean", "image_std")
    )
    # The preprocessor multiplies bytes by a factor, 1/255; here pixels are always from 0 to 1.
    unit = 255 * (table.number("rescale_factor", 1 / 255) if table.flag("do_rescale", True) else 1.0)
    facts: Tree = {
        "side": spec.image,
        "mean": [value / unit for value in mean],
        "deviation": [value / unit for value in deviation],
    }
    if table.tree:
        facts["fitting"] = _fitting(table, spec.image)
    return facts


def _each(table: Config, key: str, default: float, channels: int) -> list[float]:
    value = table.get(key, default)
    values = value if isinstance(value, list) else [value] * channels
    if len(values) != channels or not all(isinstance(one, (int, float)) for one in values):
        raise table.wrong(key, f"a number for each of {channels} channels")
    return [float(one) for one in values]


def _fitting(table: Config, side: int) -> Tree:
    """How a picture becomes a square: resized to a height and width, or by its shorter edge, then cropped."""
    asked = table.get("resample", 2)
    name = FILTERS.get(asked) if isinstance(asked, int) else None
    if name is None:
        raise table.wrong("resample", f"one of {', '.join(map(str, FILTERS))}")
    scaled = _edges(table, "size", side) if table.flag("do_resize", True) else [side, side]
    if table.flag("do_center_crop", False):
        cut = _edges(table, "crop_size", side)
        if cut != [side, side]:
            raise DataError(f"{table.name} cuts pictures to {cut}, but the model takes {side} x {side}")
    elif scaled not in ([side, side],):
        raise DataError(f"{table.name} scales pictures to {scaled}, but the model takes {side} x {side}")
    return {"scaled": scaled, "filter": name}


def _edges(table: Config, key: str, side: int) -> list[int]:
    """[height, width], or [the shorter edge]."""
    value: Any = table.get(key, side)
    if isinstance(value, Mapping):
        value = [value["shortest_edge"]] if "shortest_edge" in value else [value.get("height"), value.get("width")]
    elif isinstance(value, int):
        value = [value, value]
    if not isinstance(value, list) or not value or not all(isinstance(one, int) and 0 < one < 1 << 16 for one in value):
        raise table.wrong(key, "a height and width in pixels")
    return value


def detect_task(
    folder: Path, spec: AnySpec, config: Config, vocabulary: Vocabulary | None, stops: Any
) -> tuple[str, Tree]:
    """(task, facts) for a model."""
    if isinstance(spec, VisionSpec):
        return "images", images_facts(folder, spec, config)
    assert vocabulary is not None
    if isinstance(spec, TwoTowerSpec):
        return "image-text-embedding", two_tower_facts(folder, spec, vocabulary)
    if isinstance(spec, EncoderDecoderSpec):
        return "translation", translation_facts(spec, config, vocabulary)
    if isinstance(spec, EncoderSpec):
        if isinstance(spec.output, MaskedLanguageSpec) and not read_modules(folder):
            return "fill-mask", fill_mask_facts(spec, vocabulary)
        if isinstance(spec.output, MaskedLanguageSpec) or spec.output.classes is None:
            return "embedding", embedding_facts(folder, spec, vocabulary)
        if isinstance(spec.output, PooledSpec) and spec.output.classes == 1:
            return "regression", regression_facts(spec, config, vocabulary)
        task = "tagging" if isinstance(spec.output, PerTokenSpec) else "classification"
        return task, label_facts(spec.output, config, vocabulary)
    return "text", text_facts(vocabulary, stops)
