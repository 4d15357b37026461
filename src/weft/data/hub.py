"""Names on the Hugging Face hub, as sources of models and data: fetched by the package huggingface_hub into its cache.

A local path of the same name wins. Only weights in safetensors, JSON, tokenizers and parquet files are fetched: nothing
that holds code or a pickle. HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE mean what they mean to that package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from weft.data.readers.files import DataError, existing_path, name_suffix

PREFIX = "hf:"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.spm", "vocab.txt", "merges.txt")
DATA_FILES = ("*.parquet", "*.jsonl", "*.json")
# Copies of the weights for other programs lie in folders; what sentence-transformers keeps there is JSON.
LEFT_OUT = ("*/*.safetensors", "onnx/*", "openvino/*")
DATA_SUFFIXES, NO_DATA = (".parquet", ".jsonl"), ("dataset_infos.json", "dataset_info.json")
USUAL_SPLIT = "train"


def local_model(source: str | Path) -> Path:
    """The folder of a model: a path as it is, or the cached files of `org/name` (or `hf:name`) on the hub."""
    given = str(source)
    if given.startswith(PREFIX):
        return _fetch(given.removeprefix(PREFIX), "model", MODEL_FILES, LEFT_OUT)
    if existing_path(source) is None and NAME.fullmatch(given):
        return _fetch(given, "model", MODEL_FILES, LEFT_OUT)
    return Path(source)


def local_sources(sources: Sequence[str]) -> list[str]:
    """Sources of data with those on the hub as cached files; `hf:org/name` means the files of its training part.

    `hf:org/name:test` means those of another part, `hf:org/name/folder` those in a folder of the data set.
    """
    return [path for source in sources for path in _local_source(str(source))]


def _local_source(source: str) -> list[str]:
    if not source.startswith(PREFIX) or existing_path(source) is not None:
        return [source]
    name, _, part = source.removeprefix(PREFIX).partition(":")
    *home, folder = name.split("/", 2) if name.count("/") > 1 else (name, "")
    wanted = tuple(f"{folder}/{pattern}" for pattern in DATA_FILES) if folder else DATA_FILES
    place = _fetch("/".join(home), "dataset", wanted)
    files = [file for file in sorted(place.rglob("*")) if file.is_file() and name_suffix(file) in DATA_SUFFIXES]
    if not files:
        raise DataError(f"{source} holds no {' or '.join(DATA_SUFFIXES)} file: fetch it yourself, and give its files")
    chosen = [file for file in files if _is_part(file.relative_to(place), part or USUAL_SPLIT)]
    if not chosen and part:
        names = ", ".join(str(file.relative_to(place)) for file in files)[:200]
        raise DataError(f"{source}: no file belongs to {part}, it has {names}")
    return [str(file) for file in chosen or files]


def _is_part(file: Path, part: str) -> bool:
    """Whether a file is of this part: data/train-00000-of-00001.parquet, train.jsonl, train/0000.parquet."""
    return part in file.parts[:-1] or re.match(rf"{re.escape(part)}\b", file.name) is not None


def _fetch(name: str, kind: str, wanted: Sequence[str], left_out: Sequence[str] = ()) -> Path:
    """The folder in the cache of huggingface_hub, complete as far as the wanted files go."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError:
        raise DataError(
            f"{name} is no path here, and to fetch it from the Hugging Face hub needs a package: "
            "pip install huggingface_hub, or give the path of a folder"
        ) from None
    try:
        return Path(
            huggingface_hub.snapshot_download(
                name,
                repo_type=kind,
                allow_patterns=list(wanted),
                ignore_patterns=list(left_out),
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
        )
    except errors.GatedRepoError:
        raise DataError(
            f"{name} is only for those who accept its terms: do so on the hub, then hf auth login"
        ) from None
    except errors.RepositoryNotFoundError:
        raise DataError(
            f"there is no {kind} {name} on the Hugging Face hub, or it is private: check the name, or hf auth login"
        ) from None
    except errors.HFValidationError:
        raise DataError(f"{name!r:.80} is no name on the Hugging Face hub: write org/name") from None
    except (OSError, errors.LocalEntryNotFoundError, errors.HfHubHTTPError) as error:
        reason = str(error).strip().split("\n")[0][:120]
        raise DataError(
            f"{name} is not in the cache, and the Hugging Face hub does not give it ({reason}): connect to a network, "
            f"or fetch it elsewhere (hf download {name}) and give the path of the folder"
        ) from None
