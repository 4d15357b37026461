"""From a run to the formats of other programs, atomically, with the largest difference of logits measured."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from weft.checkpoints.convert_checkpoint import ConversionProgress, open_checkpoint
from weft.checkpoints.export.export_source import ExportSource
from weft.checkpoints.export.huggingface import write_huggingface
from weft.checkpoints.formats.foreign_checkpoint import ForeignCheckpoint
from weft.checkpoints.parity_certificate import (
    TOLERANCE,
    UPCAST_WHOLE,
    ParityCertificate,
    certify_parity,
    random_inputs,
)
from weft.data.readers.files import DataError
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import atomic_folder
from weft.foundation.files.tensor_files import write_tensors
from weft.foundation.spec import Tree
from weft.models.build import AnySpec, build

ExportFormat = Literal["huggingface", "gguf", "onnx"]
EXPORT_FORMATS: tuple[str, ...] = get_args(ExportFormat)
GGUF_FILE = "model.gguf"
LLAMA_CPP_TOLERANCE = 0.05  # of the largest logit: with quantized weights llama.cpp rounds activations too


@dataclass(frozen=True)
class ExportReport:
    """What was written: path, format, architecture; `parity` is the largest difference from the run's logits (None: not
    measured), `largest` the largest logit."""

    path: Path
    format: str
    architecture: str
    parameters: int
    parity: float | None = None
    largest: float | None = None
    peer: str | None = None
    why: str | None = None

    def to_tree(self) -> Tree:
        return {**self.__dict__, "path": str(self.path)}


def export_checkpoint(
    run: ExportSource,
    to: str,
    out: Path,
    kind: str | None = None,
    certified: bool = True,
    progress: ConversionProgress | None = None,
) -> ExportReport:
    """Write a run in another format into a new folder; on any error nothing remains in `out`.

    `kind` is the type of a GGUF file's weights. If the other program is installed, its logits are compared; if they
    differ, nothing is written.
    """
    if to not in EXPORT_FORMATS:
        raise WeftError(f"there is no format {to!r}: choose one of {', '.join(EXPORT_FORMATS)}")
    if kind is not None and to != "gguf":
        raise WeftError(f"--type is for GGUF files; in {to} weights keep their type: leave it out")
    with atomic_folder(out, "exporting") as fresh:
        write = {"huggingface": _huggingface, "gguf": _gguf, "onnx": _onnx}[to]
        return write(run, fresh, out, kind, certified, progress)


def _huggingface(
    run: ExportSource, fresh: Path, out: Path, kind: str | None, certified: bool, progress: ConversionProgress | None
) -> ExportReport:
    architecture = write_huggingface(run, fresh, progress)
    certificate, why = _certify(open_checkpoint(fresh), run) if certified else (None, "it was not asked for")
    if certificate is not None and not certificate.holds:
        raise _differ(certificate.peer, certificate.difference, certificate.largest)
    if certificate is None:
        return ExportReport(out, "huggingface", architecture, run.parameters, why=why)
    compared = (certificate.difference, certificate.largest, certificate.peer)
    return ExportReport(out, "huggingface", architecture, run.parameters, *compared)


def _certify(found: ForeignCheckpoint, run: ExportSource) -> tuple[ParityCertificate | None, str | None]:
    """Compare the folder as transformers reads it with the run's own spec."""
    found = replace(found, spec=run.model)
    if not run.changed:
        return certify_parity(found, run.folder.path)
    with tempfile.TemporaryDirectory() as place:
        write_tensors(Path(place) / "model.safetensors", run.weights)
        return certify_parity(found, Path(place))


def _gguf(
    run: ExportSource, fresh: Path, out: Path, kind: str | None, certified: bool, progress: ConversionProgress | None
) -> ExportReport:
    from weft.checkpoints.export.gguf import write_gguf

    architecture = write_gguf(run, fresh / GGUF_FILE, kind, progress)
    found = open_checkpoint(fresh / GGUF_FILE)
    if not certified:
        return ExportReport(out / GGUF_FILE, "gguf", architecture, run.parameters, why="it was not asked for")
    tokens = random_inputs(run.model)["tokens"][:1]
    back = {name: one.read(found.tensors) for name, one in found.matched.items()}
    ours, read = (_logits(*model, tokens) for model in ((run.model, run.weights), (found.spec, back)))
    theirs = ask_llama_cpp(fresh / GGUF_FILE, tokens[0]) if run.parameters <= UPCAST_WHOLE else None
    largest = float(ours.abs().max())
    if theirs is not None and (difference := float((theirs - read).abs().max())) > LLAMA_CPP_TOLERANCE * max(
        largest, 1e-6
    ):
        raise _differ("llama.cpp", difference, largest)
    peer = "the file itself, read back" if theirs is None else "llama.cpp"
    compared = (float(((read if theirs is None else theirs) - ours).abs().max()), largest, peer)
    return ExportReport(out / GGUF_FILE, "gguf", architecture, run.parameters, *compared)


def _logits(spec: AnySpec, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Logits [T, C] of one row of tokens, in float32."""
    module = build(spec, device="meta")
    module.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    with torch.inference_mode():
        return module.eval()(tokens).logits[0].clone()


def ask_llama_cpp(path: Path, tokens: Tensor) -> Tensor | None:
    """llama.cpp's logits [T, C] of a file; None without llama-cpp-python."""
    if importlib.util.find_spec("llama_cpp") is None:
        return None
    from llama_cpp import GGML_TYPE_F32, Llama

    model = Llama(
        str(path), n_ctx=len(tokens), logits_all=True, verbose=False, type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32
    )
    try:
        model.eval(tokens.tolist())
        return torch.from_numpy(model.scores[: len(tokens)].copy()).float()
    finally:
        model.close()


def _onnx(
    run: ExportSource, fresh: Path, out: Path, kind: str | None, certified: bool, progress: ConversionProgress | None
) -> ExportReport:
    from weft.checkpoints.export.onnx import INSTALL, compare_onnx, write_onnx

    files = write_onnx(run, fresh)
    compared = compare_onnx(run, fresh) if certified else None
    if compared is None:
        why = f"onnxruntime is not installed: {INSTALL}" if certified else "it was not asked for"
        return ExportReport(out, "onnx", ", ".join(files), run.parameters, why=why)
    if compared[0] > TOLERANCE * max(compared[1], 1e-6):
        raise _differ("onnxruntime", *compared)
    return ExportReport(out, "onnx", ", ".join(files), run.parameters, *compared, "onnxruntime")


def _differ(peer: str, difference: float, largest: float) -> DataError:
    return DataError(
        f"the outputs of {peer} differ by {difference:.2g} (they reach {largest:.2g}), so nothing was written: "
        "--no-certificate writes it all the same"
    )
