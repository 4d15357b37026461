"""BERT, MiniLM and RoBERTa: post-norm encoders with learned positions; bare, with classes or a masked language head.

RoBERTa's positions begin at 2, its classifier has a hidden layer of its own in place of the pooler, and its masked
language head is always GELU's.
"""

from __future__ import annotations

from functools import partial

from weft.checkpoints.families.family import THEIR_ACTIVATIONS, Config, Family, KnownTensors
from weft.checkpoints.families.weight_maps import SkippedRows, WeightRow, map_linear, map_norm
from weft.data.readers.files import DataError
from weft.foundation.spec import Tree
from weft.models.encoder import EncoderSpec, MaskedLanguageSpec, PerTokenSpec, PooledSpec, TokensSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, LayerNormSpec
from weft.models.position_specs import LearnedSpec

LABELS, TAGS = "ForSequenceClassification", "ForTokenClassification"
MASKED, PRETRAINED = "ForMaskedLM", "ForPreTraining"
CLS = "cls.predictions.transform"
UNUSED_POSITIONS = 2  # RoBERTa counts from its padding token, 1, on


def read(config: Config, known: KnownTensors, roberta: bool = False) -> EncoderSpec:
    """The spec of a config; the architecture and the weights say whether there are a pooler and classes."""
    config.expect("position_embedding_type", "absolute")
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    if roberta:
        config.expect("pad_token_id", UNUSED_POSITIONS - 1)
    width = config.whole("hidden_size", 768)
    length = config.whole("max_position_embeddings", 512) - (UNUSED_POSITIONS if roberta else 0)
    return EncoderSpec(
        input=TokensSpec(vocabulary=config.whole("vocab_size"), segments=config.whole("type_vocab_size", 2)),
        length=length,
        width=width,
        layers=config.whole("num_hidden_layers", 12),
        mixer=AttentionSpec(heads=config.whole("num_attention_heads", 12)),
        feedforward=ClassicSpec(
            hidden=config.whole("intermediate_size", 3072), activation=config.activation("hidden_act", "gelu")
        ),
        positions=LearnedSpec(),
        norm=LayerNormSpec(epsilon=config.number("layer_norm_eps", 1e-12)),
        arrangement="post-norm",
        input_norm=True,
        output=_output(config, known, width, roberta),
    )


def _output(
    config: Config, known: KnownTensors, width: int, roberta: bool
) -> PooledSpec | PerTokenSpec | MaskedLanguageSpec:
    """One output per text (with a pooler if there is one), one per token, fillings of masks, or the hidden states."""
    name = config.architecture()
    if name.endswith((MASKED, PRETRAINED)) and known.has("lm_head.dense.weight" if roberta else f"{CLS}.dense.weight"):
        config.expect("tie_word_embeddings", True)
        return MaskedLanguageSpec(activation="gelu" if roberta else config.activation("hidden_act", "gelu"))
    if name.endswith(TAGS):
        return PerTokenSpec(classes=_classes(config, 2))
    classes = _classes(config) if name.endswith(LABELS) else None
    pools = classes is not None or known.has("pooler.dense.weight")
    return PooledSpec(hidden=width if pools else None, classes=classes)


def _classes(config: Config, least: int = 1) -> int:
    """How many labels there are; one label is a score."""
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, dict) and labels else config.whole("num_labels", 2)
    config.expect("problem_type", "regression" if count == 1 else "single_label_classification")
    if count < least:
        raise DataError(f"{config.name} has one label for each token: Weft has two tags or more, no scores of tokens")
    return count


def write(spec: EncoderSpec, roberta: bool = False) -> Tree:
    """The config of a spec."""
    feedforward, output, given = spec.feedforward, spec.output, spec.input
    assert isinstance(feedforward, ClassicSpec) and isinstance(spec.norm, LayerNormSpec)
    assert isinstance(given, TokensSpec)
    name = "Roberta" if roberta else "Bert"
    suffix = "Model" if output.classes is None else LABELS
    if output.EACH_TOKEN:
        suffix = TAGS if isinstance(output, PerTokenSpec) else MASKED
    config: Tree = {
        "architectures": [name + suffix],
        "model_type": name.lower(),
        "vocab_size": given.vocabulary,
        "type_vocab_size": given.segments,
        "max_position_embeddings": spec.length + (UNUSED_POSITIONS if roberta else 0),
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.attention().heads,
        "intermediate_size": feedforward.hidden or 4 * spec.width,
        "hidden_act": THEIR_ACTIVATIONS[feedforward.activation],
        "layer_norm_eps": spec.norm.epsilon,
        "pad_token_id": UNUSED_POSITIONS - 1 if roberta else 0,
    }
    if output.classes is not None:
        config["id2label"] = {str(number): f"LABEL_{number}" for number in range(output.classes)}
        config["label2id"] = {f"LABEL_{number}": number for number in range(output.classes)}
    return config


def table(spec: EncoderSpec, roberta: bool = False) -> list[WeightRow]:
    """Names of BertModel; with a head those of BertForSequenceClassification, ForTokenClassification, ForMaskedLM."""
    output = spec.output
    bare = isinstance(output, PooledSpec) and output.classes is None
    body = "" if bare else "roberta." if roberta else "bert."
    places = WeightRow("input.position.table", (f"{body}embeddings.position_embeddings.weight",))
    rows = [
        WeightRow("embedding.weight", (f"{body}embeddings.word_embeddings.weight",)),
        places._replace(transform=SkippedRows(UNUSED_POSITIONS)) if roberta else places,
        WeightRow("input.segments.table", (f"{body}embeddings.token_type_embeddings.weight",)),
        *map_norm("input.norm", f"{body}embeddings.LayerNorm"),
    ]
    own_head = roberta and isinstance(output, PooledSpec) and output.classes is not None
    if isinstance(output, PooledSpec) and output.hidden is not None:
        rows += map_linear("head.hidden", "classifier.dense" if own_head else f"{body}pooler.dense")
    if output.classes is not None:
        rows += map_linear("head.linear", "classifier.out_proj" if own_head else "classifier")
    if isinstance(output, MaskedLanguageSpec):
        rows += map_linear("head.transform", "lm_head.dense" if roberta else f"{CLS}.dense")
        rows += map_norm("head.norm", "lm_head.layer_norm" if roberta else f"{CLS}.LayerNorm")
        rows.append(WeightRow("head.tied.bias", ("lm_head.bias" if roberta else "cls.predictions.bias",)))
    for layer in range(spec.layers):
        ours, theirs = f"stack.blocks.{layer}", f"{body}encoder.layer.{layer}"
        projections = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
        rows += map_linear(f"{ours}.mixer.qkv", *projections, sizes=(spec.width,) * 3)
        rows += map_linear(f"{ours}.mixer.output", f"{theirs}.attention.output.dense")
        rows += map_linear(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense")
        rows += map_linear(f"{ours}.feedforward.down", f"{theirs}.output.dense")
        rows += map_norm(f"{ours}.mixer_norm", f"{theirs}.attention.output.LayerNorm")
        rows += map_norm(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm")
    return rows


def canonical(name: str) -> str | None:
    """With or without the prefix of the body; the first files call a norm's weights gamma and beta."""
    if name.endswith("embeddings.position_ids"):
        return None
    name = name.removeprefix("bert.").removeprefix("roberta.")
    for old, new in ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


BERT = Family(
    name="BERT",
    types=("bert",),
    architectures=tuple(f"Bert{use}" for use in ("Model", LABELS, TAGS, MASKED, PRETRAINED)),
    read=read,
    write=write,
    table=table,
    canonical=canonical,
    copies={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    unused=("cls.", "pooler."),
)
ROBERTA = Family(
    name="RoBERTa",
    types=("roberta", "xlm-roberta"),
    architectures=tuple(
        f"{name}{use}" for name in ("Roberta", "XLMRoberta") for use in ("Model", LABELS, TAGS, MASKED)
    ),
    read=partial(read, roberta=True),
    write=partial(write, roberta=True),
    table=partial(table, roberta=True),
    canonical=canonical,
    copies={
        "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    unused=("lm_head.", "pooler."),
)
