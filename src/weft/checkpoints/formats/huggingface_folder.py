"""Hugging Face folders: config.json, weights in safetensors, tokenizer.json or the family's vocabulary files."""

from __future__ import annotations

from pathlib import Path

from weft.checkpoints.families import family_for_config
from weft.checkpoints.families.family import Config
from weft.checkpoints.formats.foreign_checkpoint import ForeignCheckpoint, inspect_checkpoint
from weft.checkpoints.formats.foreign_tensors import open_tensors
from weft.checkpoints.formats.untrusted_files import (
    SMALL_JSON,
    fields_of,
    file_inside,
    has_file,
    read_json,
    read_modules,
    read_optional_json,
)
from weft.checkpoints.formats.vocabulary import read_vocabulary
from weft.data.readers.files import DataError


def open_huggingface(folder: Path) -> ForeignCheckpoint:
    """Inspect a Hugging Face folder."""
    home = model_folder(folder)
    if not has_file(home, "config.json"):
        raise DataError(f"{folder} has no config.json: give a folder as the Hugging Face hub has them, or a .gguf file")
    config = Config(read_json(file_inside(home, "config.json"), SMALL_JSON))
    with fields_of(config.name):
        vocabulary = read_vocabulary(home, config) if family_for_config(config).text else None
    generation = read_optional_json(home, "generation_config.json")
    # Fields of generation were moved from config.json to a file of their own.
    written = ("decoder_start_token_id", "forced_bos_token_id", "eos_token_id", "pad_token_id")
    extra = {key: generation[key] for key in written if generation.get(key) is not None and config.get(key) is None}
    whole = Config({**config.tree, **extra}, config.name)
    stops = generation.get("eos_token_id", config.get("eos_token_id"))
    return inspect_checkpoint(folder, whole, open_tensors(home), vocabulary, stops)


def model_folder(folder: Path) -> Path:
    """The folder itself; older folders of sentence-transformers keep the model in 0_Transformer."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}: give one with config.json, or a .gguf file")
    modules = [] if has_file(folder, "config.json") else read_modules(folder)
    return modules[0][1] if modules else folder
