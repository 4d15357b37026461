"""Peak memory of `weft import` compared with the size of the checkpoint on disk.

A Llama-shaped folder of random weights is written tensor by tensor, imported in a process of its own, and the peak of
resident memory of that process is compared with the folder's size. Memory-mapped files count as resident, so this is an
upper bound; it includes the parity certificate unless that is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from weft.checkpoints.families.llama import FAMILY
from weft.checkpoints.formats.foreign_checkpoint import state_shapes
from weft.checkpoints.formats.safetensors_writer import TensorInfo, stream_safetensors
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.foundation.errors import WeftError
from weft.models.decoder import DecoderSpec
from weft.models.presets import preset

# The kernel's peak of this program alone; the value of getrusage starts with its parent's.
COMMAND = (
    "import sys; from weft.cli.main import app\n"
    "try:\n    app(sys.argv[1:], prog_name='weft')\n"
    "finally:\n    print(next(l for l in open('/proc/self/status') if 'VmHWM' in l).split()[1], file=sys.stderr)"
)


def llama_spec(weights: float) -> DecoderSpec:
    """A Llama with about this many weights: 22 layers of width 2,048 have 1.1 billion."""
    width = 2048 if weights > 3e8 else 256
    base = preset("llama-2-7b")
    assert isinstance(base, DecoderSpec)
    base = base.replace(
        width=width, length=2048, **{"mixer.heads": 32, "mixer.key_heads": 4, "feedforward.hidden": width * 11 // 4}
    )
    fixed, one = (count(base.replace(layers=n)) for n in (0, 1))
    return base.replace(layers=max(1, round((weights - fixed) / (one - fixed))))


def count(spec: DecoderSpec) -> int:
    """Number of weights."""
    return sum(torch.Size(shape).numel() for shape in state_shapes(spec).values())


def write_folder(folder: Path, spec: DecoderSpec, kind: torch.dtype) -> int:
    """Write a Hugging Face folder of random weights; returns its size in bytes."""
    folder.mkdir(parents=True)
    ours = state_shapes(spec)
    infos: dict[str, TensorInfo] = {}
    for row in FAMILY.table(spec):
        shapes = row.transform.shapes(ours[row.ours])
        infos |= {name: TensorInfo(kind, shape) for name, shape in zip(row.theirs, shapes, strict=True)}
    random = torch.Generator().manual_seed(0)

    def make(name: str) -> torch.Tensor:
        drawn = torch.randn(infos[name].shape, generator=random)
        return (drawn * (0.02 if drawn.dim() > 1 else 0.1) + float(drawn.dim() == 1)).to(kind)

    stream_safetensors(folder / "model.safetensors", infos, make)
    (folder / "config.json").write_text(json.dumps(FAMILY.write(spec)))
    train_tokenizer("bytes", []).save(folder / "tokenizer.json")
    return sum(file.stat().st_size for file in folder.iterdir())


def measure_import(weights: float, kind: str = "bfloat16", certificate: bool = True) -> dict[str, float]:
    """Write a folder of about so many weights, import it in a process of its own: bytes on disk, and its peak."""
    with tempfile.TemporaryDirectory() as place:
        spec = llama_spec(weights)
        size = write_folder(Path(place) / "folder", spec, getattr(torch, kind))
        command = [sys.executable, "-c", COMMAND, "import", f"{place}/folder", "--out", f"{place}/run", "--json"]
        command += [] if certificate else ["--no-certificate"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WeftError(f"the import fails: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        peak = 1024 * int(done.stderr.strip().splitlines()[-1])
        return {"weights": count(spec), "bytes": size, "peak": peak, "ratio": peak / size}
