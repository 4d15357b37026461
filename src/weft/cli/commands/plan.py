"""`weft plan`: what training a model on many devices would take, and how to share the work among them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.app import AsJson, app
from weft.cli.environment import load_torch
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from rich.console import Console

    from weft.models.cluster.candidates import Candidate
    from weft.models.cluster.cluster_plan import ClusterPlan

ESTIMATE = "An estimate for planning: nothing is run. `weft train --parallel` trains with dp (ddp), fsdp and tp."
PIPELINE = "Pipeline parallelism (pp) is not offered."
COUNT = re.compile(r"(\d+(?:[_,]\d+)*(?:\.\d+)?(?:e\d{1,2})?)\s*([kmbt]?)", re.IGNORECASE)
FACTORS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


@app.command()
def plan(
    preset: Annotated[
        str,
        typer.Argument(metavar="RUN|PRESET", help="Name of a preset, folder of a run, or spec file (.json, .toml)."),
    ],
    devices: Annotated[
        str,
        typer.Option(
            help="Number and kind of devices, such as 64xH100; known are V100, A100-40, A100-80, H100, H200, B200, "
            "L40S, RTX4090, and those of --devices-file."
        ),
    ],
    tokens: Annotated[
        str | None,
        typer.Option(help="Training tokens, such as 300B or 1.5T; 20 per active parameter if left out."),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(help="Tokens per step on all devices, such as 4M; that of GPT-3's nearest size if left out."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Sequence length N in tokens; the model's own if left out.")
    ] = None,
    efficiency: Annotated[
        float, typer.Option(help="Share of the peak FLOP/s that a device reaches while it computes.")
    ] = 0.45,
    precision: Annotated[
        str | None,
        typer.Option(
            help="bf16 or fp16 (mixed, with float32 optimizer state), tf32, fp32; bf16 if left out, fp16 without it."
        ),
    ] = None,
    devices_file: Annotated[
        str | None, typer.Option(help="A .toml file with more devices: FLOP/s, memory, links, failures.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a training on many devices: memory, communication, time, failures, and the layout to choose.

    This is an estimate for planning: nothing is run. `weft train --parallel` trains with these layouts.
    Layouts are meshes of data parallelism (dp), fully sharded data parallelism (fsdp) and tensor parallelism (tp);
    pipeline parallelism is not offered.

    \b
    Examples:
      weft plan gpt2 --devices 8xRTX4090
      weft plan gpt3-175b --devices 1024xA100-80 --tokens 300B
      weft plan llama-2-7b --devices 64xH100 --tokens 2T --batch 4M
      weft plan runs/book --devices 4xMyGPU --devices-file gpus.toml --json

    \b
    A file of devices (the built-in table has the same form; `like` starts from a known device):
      [MyGPU]
      like = "H100"
      memory_gb = 96
      link_between_gb_per_second = 12.5
    """
    run_plan(preset, devices, devices_file, tokens, batch, length, efficiency, precision, as_json)


def run_plan(
    preset: str,
    devices: str,
    devices_file: str | None,
    tokens: str | None,
    batch: str | None,
    length: int | None,
    efficiency: float,
    precision: str | None,
    as_json: bool,
) -> None:
    """Read what was asked, plan, and print."""
    load_torch()
    from weft.cli.commands.show import find_spec
    from weft.cli.terminal import console, print_json
    from weft.models.cluster.cluster_plan import plan_cluster
    from weft.models.cluster.device_table import device_table, read_cluster, read_precision

    cluster = read_cluster(devices, device_table(devices_file))
    found = plan_cluster(
        find_spec(preset),
        cluster,
        tokens=None if tokens is None else read_count("--tokens", tokens),
        batch=None if batch is None else read_count("--batch", batch),
        length=length,
        precision=None if precision is None else read_precision(precision),
        efficiency=efficiency,
    )
    if as_json:
        print_json({"name": preset, "estimate": f"{ESTIMATE} {PIPELINE}", **found.to_tree()})
        return
    out = console()
    _print_head(out, preset, found)
    _print_memory(out, found)
    _print_communication(out, found)
    _print_time(out, found)
    _print_layouts(out, found)
    _print_assumptions(out, found)


def read_count(option: str, words: str) -> int:
    """A number of tokens as users write it: 300B, 1.5T, 4M, 2e9, 1_000_000."""
    found = COUNT.fullmatch(words.strip())
    count = round(float(re.sub("[_,]", "", found[1])) * FACTORS[found[2].lower()]) if found else 0
    if count < 1:
        raise WeftError(f"{option} {words!r} is not a number of tokens: write it as 300B, 1.5T, 4M or 1000000")
    return count


def in_count(count: float) -> str:
    """A large count as users write it: `300B`, `1.5T`."""
    for name, factor in reversed(FACTORS.items()):
        if count >= factor and name:
            return f"{count / factor:.4g}{name.upper()}"
    return f"{count:,.0f}"


def in_time(seconds: float) -> str:
    """A time with the unit that suits it."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * size or (unit == "s" and seconds >= 1):
            return f"{seconds / size:,.1f} {unit}"
    return f"{1000 * seconds:.3g} ms"


def _print_head(out: Console, name: str, found: ClusterPlan) -> None:
    from rich.markup import escape

    model, cluster = found.profile.model, found.request.cluster
    out.print(f"[bold]{escape(name)}[/bold] on [bold]{escape(cluster.words)}[/bold]: {model.parameters:,} parameters")
    out.print(
        f"{in_count(found.request.tokens)} tokens in {found.steps:,} steps of {found.sequences:,} sequences of "
        f"{model.tokens:,} tokens ({found.batch_tokens:,} per step)",
        soft_wrap=True,
    )
    out.print(f"[yellow]{ESTIMATE}[/yellow]", soft_wrap=True)
    for note in found.notes:
        out.print(f"[yellow]Note: {note}[/yellow]", soft_wrap=True)
    out.print(f"\n[bold]Recommended layout: {found.best.layout.words}[/bold] ({_way(found.best)})", soft_wrap=True)
    for reason in (*found.reasons, PIPELINE):
        out.print(f"  {reason}", soft_wrap=True)
    out.print()


def _way(candidate: Candidate) -> str:
    """Micro-batch and recomputation in words."""
    steps, again = candidate.pieces.micro_steps, "with" if candidate.recompute else "without"
    parts = "micro-batch" if steps == 1 else "micro-batches"
    return f"{steps} {parts} of {_sequences(candidate)}, {again} recomputation"


def _sequences(candidate: Candidate) -> str:
    count = candidate.pieces.micro_batch
    return "1 sequence" if count == 1 else f"{count} sequences"


def _print_memory(out: Console, found: ClusterPlan) -> None:
    from weft.cli.commands.show import plain_table
    from weft.cli.terminal import in_decimal_bytes
    from weft.models.cluster.candidates import usable_memory
    from weft.models.cluster.device_memory import SIZES

    best, cluster, sizes = found.best, found.request.cluster, SIZES[found.request.precision]
    shards = best.layout.fsdp * best.layout.tp
    split = f", / {shards}" if shards > 1 else ""
    gathered = "; and those of the blocks that run" if best.layout.fsdp > 1 else ""
    kept = "inputs of blocks, and one block at a time" if best.recompute else "of all blocks"
    when = "" if best.memory.early_gradients else "; they come as activations go"
    table = plain_table("what", "memory>", "how", title="Memory per device")
    rows = (
        ("weights", best.memory.weights, f"{sizes.number} bytes per parameter{split}{gathered}"),
        ("gradients", best.memory.gradients, f"{sizes.number} bytes per parameter{split}{gathered}{when}"),
        ("optimizer", best.memory.optimizer, f"{sizes.optimizer} bytes per parameter{split}"),
        ("activations", best.memory.activations, f"{kept}, and of the loss, for {_sequences(best)}"),
        ("update", best.memory.update, "what the end of a step takes, when activations are gone"),
    )
    for what, size, how in rows:
        table.add_row(what, in_decimal_bytes(size), how)
    usable = f"of {in_decimal_bytes(usable_memory(cluster))} usable, {cluster.device.memory_gb:g} GB in all"
    table.add_row("[bold]at once[/bold]", f"[bold]{in_decimal_bytes(best.memory.total)}[/bold]", usable)
    out.print(table, "", sep="\n")


def _print_communication(out: Console, found: ClusterPlan) -> None:
    from weft.cli.commands.show import plain_table
    from weft.cli.terminal import in_decimal_bytes

    if not found.best.collectives:
        out.print("[bold]Communication[/bold]: none\n")
        return
    table = plain_table("kind", "of", "over", "sent>", "time>", title="Communication per step, sent by each device")
    for one in found.best.collectives:
        over = f"{one.devices} devices ({one.axis})"
        table.add_row(one.kind, one.what, over, in_decimal_bytes(one.bytes), in_time(one.seconds))
    out.print(table, "", sep="\n")


def _print_time(out: Console, found: ClusterPlan) -> None:
    from weft.cli.commands.show import plain_table

    time, lost, best = found.best.time, found.failures, found.best
    table = plain_table("what", "time>", "how", title="Time")
    table.add_row("computing", in_time(time.computing), "per step")
    table.add_row("waiting", in_time(time.waiting), "communication that computing does not hide")
    table.add_row("optimizer", in_time(time.optimizer), "reads and writes its state")
    table.add_row("[bold]step[/bold]", f"[bold]{in_time(time.total)}[/bold]", f"MFU {found.mfu(best):.1%} of the peak")
    table.add_section()
    table.add_row("between failures", in_time(lost.mtbf), "of all devices together")
    table.add_row("checkpoint", in_time(lost.checkpoint), "to write it")
    table.add_row("checkpoint every", in_time(lost.interval), "Young: sqrt(2 x writing x between failures)")
    table.add_section()
    seconds = 86400 * found.days(best)
    hours = seconds / 3600 * found.request.cluster.count
    how = f"{hours:,.{0 if hours >= 10 else 1}f} device hours; failures and checkpoints take {lost.lost:.1%}"
    table.add_row("[bold]training[/bold]", f"[bold]{in_time(seconds)}[/bold]", how)
    out.print(table, "", sep="\n")


def _print_layouts(out: Console, found: ClusterPlan) -> None:
    from weft.cli.commands.show import plain_table
    from weft.cli.terminal import in_decimal_bytes

    table = plain_table("layout", "how", "memory>", "step>", "training>", title="Layouts: the best of each kind")
    for candidate in (found.best, *found.runners_up):
        memory, step = in_decimal_bytes(candidate.memory.total), in_time(candidate.time.total)
        total = in_time(86400 * found.days(candidate))
        style = "bold" if candidate is found.best else ""
        table.add_row(candidate.layout.words, _way(candidate), memory, step, total, style=style)
    for candidate in found.too_large:
        memory = in_decimal_bytes(candidate.memory.total)
        table.add_row(candidate.layout.words, _way(candidate), memory, "does not fit", "-", style="dim")
    out.print(table, "", sep="\n")


def _print_assumptions(out: Console, found: ClusterPlan) -> None:
    from weft.models.cluster.candidates import USABLE
    from weft.models.cluster.communication import LINK_EFFICIENCY
    from weft.models.cluster.failures import RESTART_SECONDS

    request, device = found.request, found.request.cluster.device
    out.print(
        f"[dim]Assumed: {request.precision} at {device.tflops[request.precision]:g} TFLOP/s peak, of which computing "
        f"reaches {request.efficiency:g} (--efficiency); links reach {LINK_EFFICIENCY:g} of "
        f"{device.link_within_gb_per_second:g} GB/s within a node of {device.devices_per_node} and "
        f"{device.link_between_gb_per_second:g} GB/s between nodes; {USABLE:g} of the memory is usable; a device fails "
        f"every {device.mtbf_hours:,.0f} h, and a restart takes {RESTART_SECONDS / 60:g} min. GB are 10^9 bytes; "
        f"latency is not counted.[/dim]"
    )
