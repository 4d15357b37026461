"""Hugging Face folders from runs: the weight maps in reverse, so that `from_pretrained` gives the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from weft.checkpoints.convert_checkpoint import ConversionProgress
from weft.checkpoints.export.export_source import ExportSource
from weft.checkpoints.export.tokenizer_files import write_tokenizer
from weft.checkpoints.families import explicit_spec, find_family
from weft.checkpoints.families.family import Family
from weft.checkpoints.families.weight_maps import WeightRow
from weft.checkpoints.formats.safetensors_writer import TensorInfo, stream_safetensors
from weft.checkpoints.task_facts import FILTERS, POOLS, SCORE_ACTIVATIONS
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import write_text
from weft.foundation.spec import Tree
from weft.models.two_tower import TwoTowerSpec
from weft.models.vision import VisionSpec

HEAD = "lm_head.weight"


def write_huggingface(run: ExportSource, out: Path, progress: ConversionProgress | None = None) -> str:
    """Write config.json, model.safetensors, the tokenizer and the task's other files; returns the architecture."""
    family, config = find_family(run.model, run.family)
    rows = family.table(explicit_spec(run.model))
    kinds = {tensor.dtype for tensor in run.weights.values()}
    config["dtype"] = str(max(kinds, key=lambda kind: kind.itemsize)).removeprefix("torch.")
    config |= _ids(run, str(config["model_type"]))
    _write_json(out / "config.json", config | _classes(run) | _score(run))
    if run.generates and run.tokenizer is not None:
        _write_json(out / "generation_config.json", _generation(run))
    if isinstance(run.model, (VisionSpec, TwoTowerSpec)):
        _write_json(out / "preprocessor_config.json", _preprocessor(run))
    if run.embeds:
        _write_modules(run, out)
    write_tokenizer(run, out)
    if config.get("tie_word_embeddings") is False:
        rows += _copied_head(rows, family)
    _write_weights(rows, run.weights, out / "model.safetensors", progress)
    return str(config["architectures"][0])


def _copied_head(rows: list[WeightRow], family: Family) -> list[WeightRow]:
    """A tied head that the config cannot call tied (T5's without a scale) is written as a copy."""
    original = family.copies.get(HEAD)
    if original is None or any(HEAD in row.theirs for row in rows):
        return []
    return [WeightRow(row.ours, (HEAD,)) for row in rows if row.theirs == (original,)]


def _write_weights(
    rows: list[WeightRow], weights: dict[str, Tensor], path: Path, progress: ConversionProgress | None
) -> None:
    """Write their tensors one at a time, each a view or a small copy of ours."""
    infos: dict[str, TensorInfo] = {}
    origin: dict[str, tuple[WeightRow, int]] = {}
    for row in rows:
        ours = weights[row.ours]
        for place, (name, shape) in enumerate(zip(row.theirs, row.transform.shapes(tuple(ours.shape)), strict=True)):
            infos[name], origin[name] = TensorInfo(ours.dtype, shape), (row, place)
    whole, done = max(1, sum(info.bytes for info in infos.values())), 0

    def make(name: str) -> Tensor:
        nonlocal done
        if progress is not None:
            progress(done / whole, name)
        done += infos[name].bytes
        row, place = origin[name]
        return row.transform.write(weights[row.ours])[place]

    stream_safetensors(path, infos, make, {"format": "pt"})


def _ids(run: ExportSource, kind: str) -> Tree:
    """Special ids as a config names them."""
    ids, tokenizer = run.ids, run.tokenizer
    if tokenizer is None:
        return {}
    found: Tree = {}
    if kind == "bert" and ids.pad is not None:
        found["pad_token_id"] = ids.pad
    if run.generates and run.tokenizer is not None:
        found |= _generation(run)
        found.pop("forced_bos_token_id", None)
    return found


def _generation(run: ExportSource) -> Tree:
    """The ids that begin and end generated texts."""
    ids, tokenizer = run.ids, run.tokenizer
    assert tokenizer is not None
    found: Tree = {"eos_token_id": ids.stops[0] if len(ids.stops) == 1 else list(ids.stops) or None}
    first = ids.before[0] if ids.before else tokenizer.start
    found |= {"bos_token_id": first, "pad_token_id": ids.pad, "decoder_start_token_id": ids.start}
    forced = run.facts.get("before", {}).get("target", ()) if run.model.declares().seq2seq else ()
    if forced:
        found["forced_bos_token_id"] = forced[0]
    return {name: value for name, value in found.items() if value is not None}


def _classes(run: ExportSource) -> Tree:
    """The names of classes."""
    names = run.facts.get("classes", run.facts.get("tags"))
    if not isinstance(names, list):
        return {}
    table = {str(number): name for number, name in enumerate(names)}
    return {"id2label": table, "label2id": {name: number for number, name in enumerate(names)}}


def _score(run: ExportSource) -> Tree:
    """What makes a score of the logit, where sentence-transformers looks for it."""
    activation = run.facts.get("activation")
    names = {ours: theirs for theirs, ours in SCORE_ACTIVATIONS.items()}
    return {"sentence_transformers": {"activation_fn": names[activation]}} if activation in names else {}


def _preprocessor(run: ExportSource) -> Tree:
    """The image preprocessing; by default pictures are resized to cover the square and center-cropped."""
    facts, side = run.facts, int(run.facts["side"])
    how: Any = facts.get("fitting") or {"scaled": [side], "filter": "bilinear"}
    scaled = how["scaled"]
    size = {"shortest_edge": scaled[0]} if len(scaled) == 1 else {"height": scaled[0], "width": scaled[1]}
    return {
        "image_processor_type": "ViTImageProcessor" if isinstance(run.model, VisionSpec) else "CLIPImageProcessor",
        "do_resize": True,
        "size": size,
        "resample": next(number for number, name in FILTERS.items() if name == how["filter"]),
        "do_center_crop": scaled != [side, side],
        "crop_size": {"height": side, "width": side},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(facts["mean"]),
        "image_std": list(facts["deviation"]),
    }


def _write_modules(run: ExportSource, out: Path) -> None:
    """The pooling modules in the files of sentence-transformers."""
    facts = run.facts
    name = next((name for name, pool in POOLS.items() if pool == facts["pool"]), None)
    if name is None:
        raise WeftError(f"the pool {facts['pool']!r} maps to none of sentence-transformers: use first, mean or last")
    kinds = ["Transformer", "Pooling", *(["Normalize"] if facts["normalize"] else [])]
    rows = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    write_text(out / "modules.json", json.dumps(rows, indent=2) + "\n")
    for row in rows[1:]:
        (out / str(row["path"])).mkdir()
    flags = {f"pooling_mode_{known}_token{'s' if known == 'mean' else ''}": known == name for known in ("cls", "mean")}
    flags["pooling_mode_lasttoken"] = name == "lasttoken"
    width = {"word_embedding_dimension": run.model.width}
    _write_json(out / "1_Pooling" / "config.json", width | flags)
    _write_json(out / "sentence_bert_config.json", {"max_seq_length": facts["length"], "do_lower_case": False})


def _write_json(path: Path, tree: Tree) -> None:
    write_text(path, json.dumps(tree, indent=2, ensure_ascii=False) + "\n")
