"""The training state of several processes: each writes and reads the parts of tensors that it holds.

torch.distributed.checkpoint does the work, in the background and as safetensors. What is stored has the names and the
layout of one process, so a run goes on with any number of processes and any parallelism.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_saver import async_save

from weft.checkpoints.run_folder import RunFolder, Snapshot
from weft.checkpoints.sharded_files import SECTION, as_tensors, first_reason, load, read_index, section_key
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import DiskError
from weft.foundation.spec import Tree
from weft.training.distribution import TrainingState
from weft.training.parallel.local_tensors import local, own_ranges, whole
from weft.training.parallel.tensor_splits import Sections, interleaved
from weft.training.snapshots import gather_state, parameter_of, prepare_moments


class Piece:
    """A stretch of a stored tensor of this `shape` that this process holds: `tensor`, from `offsets` on.

    `source`: the tensor of the state that the stored one is, or the row at which it begins in it. Speaks the protocol
    by which torch.distributed.checkpoint asks tensors for their parts.
    """

    def __init__(
        self, key: str, shape: torch.Size, offsets: tuple[int, ...], tensor: Tensor, source: tuple[str, int] = ("", 0)
    ) -> None:
        self.key, self.shape, self.offsets, self.tensor, self.source = key, shape, offsets, tensor, source

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        chunk = self.__create_chunk_list__()[0]
        data = TensorWriteData(chunk, TensorProperties.create_from_tensor(self.tensor), self.shape)
        return [WriteItem(MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(self.offsets), self.tensor.shape)]

    def staged(self) -> Piece:
        """The same with a copy of the tensor on the CPU, which training does not change."""
        copy = torch.empty(self.tensor.shape, dtype=self.tensor.dtype)
        return Piece(self.key, self.shape, self.offsets, copy.copy_(self.tensor.detach()))


@dataclass(frozen=True)
class StateLayout:
    """How state tensors are laid out here: fused weights' `sections`, whose rows `tensor_ranks` hold interleaved."""

    sections: dict[str, Sections]
    tensor_ranks: int = 1

    def pieces(self, name: str, tensor: Tensor) -> Iterator[Piece]:
        """The pieces of one tensor of the state that are here."""
        ranges, own = own_ranges(tensor), local(tensor)
        sections = self.sections.get(parameter_of(name), ())
        starts = tuple(start for start, _ in ranges)
        if not sections:
            if own.numel():
                yield Piece(name, tensor.shape, starts, own, (name, 0))
            return
        rows = interleaved(sections, self.tensor_ranks)[slice(*ranges[0])]
        begin = 0
        for number, size in enumerate(sections):
            here = ((rows >= begin) & (rows < begin + size)).nonzero()[:, 0]
            if len(here) and own.numel():
                first, last = int(here[0]), int(here[-1]) + 1  # the rows of one section are neighbors
                offsets = (int(rows[first]) - begin, *starts[1:])
                shape = torch.Size((size, *tensor.shape[1:]))
                yield Piece(section_key(name, number), shape, offsets, own[first:last], (name, begin))
            begin += size

    def logical(self, name: str, tensor: Tensor) -> Tensor:
        """The whole tensor in the layout of one process; every process has to ask for it."""
        full = whole(tensor)
        sections = self.sections.get(parameter_of(name), ())
        if not sections or self.tensor_ranks == 1 or not full.dim():
            return full
        return full[interleaved(sections, self.tensor_ranks).argsort().to(full.device)]


def _once(do: Callable[[], None]) -> Callable[[], None]:
    """`do` the first time that it is called; others wait until it is done. After an error, again."""
    lock, done = threading.Lock(), threading.Event()

    def do_once() -> None:
        with lock:
            if not done.is_set():
                do()
                done.set()

    return do_once


def _finish_if_written(finish: Callable[[], None], written: Future[Any]) -> None:
    """In the background, so that a state counts as soon as it is there; what goes wrong is told by `wait`."""
    if written.exception() is None:
        with contextlib.suppress(WeftError):
            finish()


class _SavePlanner(DefaultSavePlanner):
    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn].tensor


class _LoadPlanner(DefaultLoadPlanner):
    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """As given: the default one looks for tensors in what it is given, and takes pieces for something else."""
        self.flatten_state_dict = False
        self.state_dict = self.original_state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        found: Tensor = self.state_dict[index.fqn].tensor
        return found


class _Staged(AsyncStager):
    """What is given is a copy already."""

    _synchronize_after_execute = False

    def stage(self, state_dict: Any) -> Any:
        return state_dict

    def synchronize_staging(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class ShardedState:
    """Writes states in the background, one at a time, through a process group of its own."""

    leads: bool
    _pending: Future[Any] | None = None
    _finish: Callable[[], None] = lambda: None
    _group: dist.ProcessGroup = field(default_factory=lambda: dist.new_group(backend="gloo"))

    def write(
        self, folder: RunFolder, layout: StateLayout, state: TrainingState, step: int, facts: Tree, keep: int
    ) -> None:
        """Copy the state, and write it while training goes on; `state.json` comes last and makes it count."""
        self.wait()
        tensors, scalars = _sorted(gather_state(state.module, state.optimizers, state.average))
        found = (piece for name, tensor in tensors.items() for piece in layout.pieces(name, tensor))
        pieces = {piece.key: piece.staged() for piece in found}
        path = folder.sharded_state(step)
        if self.leads and path.exists():
            shutil.rmtree(path)  # parts that a killed training left, perhaps of another number of processes
        writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
        response: Any = async_save(
            pieces,
            storage_writer=writer,
            planner=_SavePlanner(),
            process_group=self._group,
            async_stager=_Staged(),
        )
        self._pending = getattr(response, "upload_completion", response)
        self._finish = _once(lambda: folder.complete_sharded_state(step, facts, scalars, keep))
        self._pending.add_done_callback(partial(_finish_if_written, self._finish))

    def wait(self) -> None:
        """Until what is being written is complete."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except BaseException as error:  # torch's own CheckpointException is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            raise DiskError(
                f"the training state could not be written ({first_reason(error)}); the last good state is kept"
            ) from None
        self._finish()

    def gather(self, layout: StateLayout, state: TrainingState) -> dict[str, Tensor]:
        """The whole state on the first process, as one process has it; empty on the others."""
        found: dict[str, Tensor] = {}
        for name, tensor in gather_state(state.module, state.optimizers, state.average).items():
            full = layout.logical(name, tensor).detach()
            if self.leads:
                found[name] = full.to("cpu", copy=True)
        return found

    def restore(self, source: Path | Snapshot, layout: StateLayout, state: TrainingState) -> None:
        """Load the parts that are held here, from a folder of parts or from the whole state of one process."""
        if isinstance(source, Snapshot):
            names = list(source.tensors)
            scalars = {name: tensor for name, tensor in source.tensors.items() if not tensor.dim()}
        else:
            names = list(dcp_names(source))
            scalars = as_tensors(read_index(source)["scalars"])
        prepare_moments([*names, *scalars], scalars, state.module, state.optimizers)
        for name, number in scalars.items():
            if state.average is not None and name.startswith("average."):
                state.average.shadow[parameter_of(name)].copy_(number)
        tensors, _ = _sorted(gather_state(state.module, state.optimizers, state.average))
        pieces = [piece for name, tensor in tensors.items() for piece in layout.pieces(name, tensor)]
        with torch.no_grad():
            if isinstance(source, Snapshot):
                _copy_pieces(source.tensors, pieces)
            else:
                load({piece.key: piece for piece in pieces}, source, planner=_LoadPlanner())


def dcp_names(folder: Path) -> set[str]:
    """The names of the tensors in a folder of parts."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    stored = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {key.partition(SECTION)[0] for key in stored}


def _copy_pieces(tensors: dict[str, Tensor], pieces: list[Piece]) -> None:
    for piece in pieces:
        name, begin = piece.source
        if name not in tensors:
            raise DiskError("the training state belongs to another model: resume with the options of the run")
        part = tensors[name]
        for dim, (offset, size) in enumerate(zip(piece.offsets, piece.tensor.shape, strict=True)):
            part = part.narrow(dim, offset + (begin if dim == 0 else 0), size)
        piece.tensor.copy_(part)


def _sorted(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """(tensors, numbers): what has no axes is no tensor in a safetensors file of torch's, but a pickle."""
    numbers = {name: float(tensor) for name, tensor in tensors.items() if not tensor.dim()}
    return {name: tensor for name, tensor in tensors.items() if tensor.dim()}, numbers
