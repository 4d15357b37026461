"""The table of devices: peak FLOP/s, memory, links and failures of each, from `devices.toml` and files of the user."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PositiveInt

from weft.foundation.errors import SpecError, WeftError
from weft.foundation.spec import Spec

PrecisionName = Literal["bf16", "fp16", "tf32", "fp32"]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]

GB = 10**9
MOST_DEVICES = 1_000_000
WRITTEN = re.compile(r"(?:(?P<count>[+-]?\d[\d_,]*)\s*[x×*])?\s*(?P<name>\S+)", re.IGNORECASE)


class Device(Spec):
    """One kind of device, in the units that its field names say; `devices.toml` says what each field means."""

    tflops: dict[PrecisionName, Amount] = Field(min_length=1)
    memory_gb: Amount
    memory_gb_per_second: Amount
    link_within_gb_per_second: Amount
    link_between_gb_per_second: Amount
    devices_per_node: PositiveInt
    storage_gb_per_second: Amount
    mtbf_hours: Amount
    sources: tuple[str, ...] = ()

    def flops(self, precision: PrecisionName) -> float:
        """Peak FLOP/s of one device in this precision."""
        return self.tflops[precision] * 1e12

    def default_precision(self) -> PrecisionName:
        """The first that it has of bf16, fp16, tf32, fp32."""
        order: tuple[PrecisionName, ...] = ("bf16", "fp16", "tf32", "fp32")
        return next(name for name in order if name in self.tflops)


@dataclass(frozen=True)
class Cluster:
    """`count` devices of one kind."""

    name: str
    device: Device
    count: int

    @property
    def words(self) -> str:
        """As users write it: `64xH100`."""
        return f"{self.count}x{self.name}"

    def link(self, size: int, stride: int) -> float:
        """Bytes per second that one device sends in a ring of `size` devices that are `stride` apart, one direction.

        Within a node it is the link of the node. A ring over several nodes has m devices in each, and shares the
        node's network with the other rings: m times what one device sends to other nodes.
        """
        within = self.device.link_within_gb_per_second * GB
        node = min(self.device.devices_per_node, self.count)
        if size * stride <= node:
            return within
        return min(within, max(1, node // stride) * self.device.link_between_gb_per_second * GB)


def device_table(file: str | Path | None = None) -> dict[str, Device]:
    """The built-in devices; those of the file are added, or stand in place of built-in ones of the same name."""
    trees = _parse(resources.files("weft.models.cluster").joinpath("devices.toml").read_text("utf-8"), "devices.toml")
    own: dict[str, Any] = {}
    if file is not None:
        own = _parse(_read(Path(file)), str(file))
    table = {name: Device.from_tree(tree) for name, tree in trees.items()}
    for name in own:
        try:
            table[name] = Device.from_tree(_complete(name, {**trees, **own}, trees))
        except SpecError as error:
            raise SpecError(f"{file}: device {name}: {error}") from None
    return table


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise WeftError(f"cannot read {path}: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text: a table of devices is a TOML file") from None


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{where} is not TOML ({error}): check the file") from None
    loose = next((name for name, fields in tree.items() if not isinstance(fields, dict)), None)
    if loose is not None:
        raise SpecError(f"{where}: {loose!r} stands outside of a device: write it below a line such as [H100]")
    return tree


def _complete(
    name: str, trees: Mapping[str, Any], built_in: Mapping[str, Any], seen: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The fields of a device with those of the one that it is `like`; its own name there means the built-in one."""
    tree = dict(trees[name])
    like = tree.pop("like", None)
    if like is None:
        return tree
    if like == name and name in built_in:
        return {**built_in[name], **tree}
    if like in (name, *seen):
        raise SpecError(f"like = {like!r} leads back to itself: start from another device")
    if not isinstance(like, str) or like not in trees:
        raise SpecError(f"like = {like!r}, {_suggest(str(like), list(trees))}")
    return {**_complete(like, trees, built_in, (*seen, name)), **tree}


def _suggest(name: str, known: list[str]) -> str:
    lower = {other.lower(): other for other in known}
    begins = [other for other in lower if other.startswith(name.lower())]
    near = begins or difflib.get_close_matches(name.lower(), lower, 3, cutoff=0.5)
    hint = f"did you mean {' or '.join(lower[other] for other in near)}? " if near else ""
    return f"but there is no such device: {hint}Known are {', '.join(known)}; --devices-file adds others"


def read_cluster(words: str, table: Mapping[str, Device]) -> Cluster:
    """`64xH100`, or `H100` for one; upper and lower case are the same."""
    found = WRITTEN.fullmatch(words.strip())
    if found is None:
        raise WeftError(f"--devices {words!r} is not a number and a device: write it as 64xH100")
    count = int((found["count"] or "1").replace(",", "").replace("_", ""))
    if not 1 <= count <= MOST_DEVICES:
        raise WeftError(f"--devices {words!r}: {count:,} devices, but a plan is for 1 to {MOST_DEVICES:,}: change it")
    lower = {other.lower(): other for other in table}
    name = lower.get(found["name"].lower())
    if name is None:
        raise WeftError(f"--devices names {found['name']!r}, {_suggest(found['name'], list(table))}")
    return Cluster(name, table[name], count)


def read_precision(words: str) -> PrecisionName:
    """The precision of this name."""
    known: tuple[PrecisionName, ...] = get_args(PrecisionName)
    found = next((name for name in known if name == words.lower()), None)
    if found is None:
        raise WeftError(f"--precision {words!r} is unknown: choose from {', '.join(known)}")
    return found
