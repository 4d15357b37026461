"""The layout of a training over processes, as `--parallel` writes it: `ddp`, `fsdp`, `tp=2`, `cp=2`, `fsdp,tp=2`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.foundation.errors import WeftError

DataKind = Literal["ddp", "fsdp"]
DATA, TENSOR = "data", "tensor"  # the names of the mesh's axes
KINDS = "ddp, fsdp, tp=N, cp=N, or several with commas, such as fsdp,tp=2"


@dataclass(frozen=True)
class ParallelLayout:
    """Over the data ranks the model is replicated (`ddp`) or its weights are sharded (`fsdp`); `tensor` processes each
    compute one model together, and `context` ones the tokens of a long text.
    """

    data: DataKind = "ddp"
    tensor: int = 1
    context: int = 1

    @classmethod
    def parse(cls, text: str) -> ParallelLayout:
        """From the words of the command line."""
        data: DataKind | None = None
        sizes: dict[str, int] = {}
        for word in text.split(","):
            name, equals, number = word.strip().partition("=")
            if name in ("ddp", "fsdp") and not equals and data is None:
                data = "ddp" if name == "ddp" else "fsdp"
            elif name in ("tp", "cp") and name not in sizes:
                sizes[name] = _size(word.strip(), number)
            else:
                raise WeftError(f"--parallel {text}: write {KINDS}")
        return cls(data or "ddp", sizes.get("tp", 1), sizes.get("cp", 1))

    @property
    def together(self) -> int:
        """The number of processes that compute one share of a batch."""
        return self.tensor * self.context

    def data_ranks(self, processes: int) -> int:
        """The number of shares of a batch; refused where the processes do not divide."""
        together = self.together
        if processes % together:
            raise WeftError(
                f"{self} needs groups of {together} processes, but there are {processes}: "
                f"start a multiple of {together}"
            )
        return processes // together

    def expect_possible(self, device_type: str) -> None:
        """Refuse what this kind of device cannot do."""
        if self.context == 1:
            return
        if device_type != "cuda":
            raise WeftError(f"cp={self.context} (context parallelism) runs on GPUs only: use tp=N or fsdp on a CPU")
        if self.tensor > 1:
            raise WeftError(f"{self}: context and tensor parallelism are not combined: leave one of cp and tp out")

    def __str__(self) -> str:
        sizes = [f"{name}={size}" for name, size in (("tp", self.tensor), ("cp", self.context)) if size > 1]
        return ",".join([self.data, *sizes] if self.data == "fsdp" or not sizes else sizes)


def _size(word: str, number: str) -> int:
    try:
        size = int(number)
    except ValueError:
        size = 0
    if size < 1:
        raise WeftError(f"--parallel {word}: give a number of processes, such as {word.partition('=')[0]}=2")
    return size
