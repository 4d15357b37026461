"""From a foreign checkpoint to a run folder: streamed tensor by tensor, atomically."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from weft.checkpoints.formats.foreign_checkpoint import ForeignCheckpoint
from weft.checkpoints.formats.huggingface_folder import open_huggingface
from weft.checkpoints.formats.safetensors_writer import stream_safetensors
from weft.checkpoints.parity_certificate import ParityCertificate, certify_parity
from weft.checkpoints.run_folder import RunFolder, RunSpec, block_notes
from weft.data.hub import local_model
from weft.data.readers.files import DataError
from weft.foundation.files.atomic_files import atomic_folder, write_text
from weft.foundation.spec import Tree

ConversionProgress = Callable[[float, str], None]


@dataclass(frozen=True)
class ImportReport:
    """What an import made: the run's folder and its facts; `certificate` is None, with a reason, if there is none.

    `blocks`: kinds of the blocks of few bits that weights stay in.
    """

    run: Path
    source: str
    family: str
    architecture: str
    task: str
    parameters: int
    left_out: tuple[str, ...]
    certificate: ParityCertificate | None
    uncertified: str | None = None
    blocks: tuple[str, ...] = ()

    def to_tree(self) -> Tree:
        """Plain JSON; `parity` is the largest difference of logits, or null."""
        parity = None if self.certificate is None else self.certificate.difference
        lists = {"left_out": list(self.left_out), "blocks": list(self.blocks)}
        return {**asdict(self), "run": str(self.run), **lists, "parity": parity}


def open_checkpoint(source: str | Path) -> ForeignCheckpoint:
    """Inspect a Hugging Face folder, a name on its hub, or a GGUF file; nothing large is read of what is here."""
    path = local_model(source)
    if path.is_file() and path.suffix.lower() == ".gguf":
        from weft.checkpoints.formats.gguf_checkpoint import open_gguf

        return open_gguf(path)
    if path.is_file():
        raise DataError(f"{path} is a single file: give its folder, with config.json, or a .gguf file")
    return open_huggingface(path)


def convert_checkpoint(
    source: str | Path, out: str | Path, certified: bool = True, progress: ConversionProgress | None = None
) -> ImportReport:
    """Convert a foreign checkpoint to a run; on any error nothing remains in `out`.

    If the package transformers is installed, the logits of both models are compared; if they differ, the checkpoint is
    refused.
    """
    found = open_checkpoint(source)
    with atomic_folder(Path(out), "importing") as folder:
        _write(found, RunFolder(folder), progress)
        certificate, why = certify_parity(found, folder) if certified else (None, "it was not asked for")
        if certificate is not None and not certificate.holds:
            raise DataError(
                f"the logits differ from those of transformers by {certificate.difference:.2g} (they reach "
                f"{certificate.largest:.2g}), so {source} was not imported: --no-certificate takes it all the same"
            )
        made = ImportReport(
            Path(out),
            str(source),
            found.family.name,
            found.architecture,
            found.task,
            found.parameters,
            found.left_out,
            certificate,
            why,
            found.block_kinds,
        )
        write_text(folder / "import.json", json.dumps(made.to_tree(), indent=2) + "\n")
    return made


def _write(found: ForeignCheckpoint, folder: RunFolder, progress: ConversionProgress | None) -> None:
    infos = found.tensor_infos
    whole = max(1, sum(info.bytes for info in infos.values()))
    done = 0

    def make(name: str) -> torch.Tensor:
        nonlocal done
        if progress is not None:
            progress(done / whole, name)
        done += infos[name].bytes
        return found.read(name)

    stream_safetensors(folder.path / "model.safetensors", infos, make, block_notes(found.block_layouts))
    if found.tokenizer is not None:
        folder.write_tokenizer(found.tokenizer)
    source = str(found.source)
    folder.write_spec(RunSpec(task=found.task, sources=(source,), facts=found.facts, model=found.spec.to_tree()))
