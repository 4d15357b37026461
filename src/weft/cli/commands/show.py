"""`weft show`: what a model is made of and what it costs."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.app import AsJson, app
from weft.cli.environment import load_torch
from weft.foundation.errors import SpecError, WeftError
from weft.foundation.files.regular_files import expect_regular

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from weft.models.build import AnySpec
    from weft.models.estimate_types import Estimate, PartNode


SUFFIXES = (".json", ".toml")
WIDE = 100
MASK_TOKENS_DRAWN = 20  # tokens of a mask in its picture


@app.command()
def show(
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|PRESET",
            help="Name of a preset, folder of a run, or spec file (.json, .toml); all presets if left out.",
        ),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Sequence length N in tokens; the model's own if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model is made of and what it costs.

    Parameters, shapes, the matrix products of a block, memory and FLOPs, for models of any size: no weights are made.

    \b
    Examples:
      weft show                                all presets with family and parameters
      weft show gpt2
      weft show gpt3-175b --length 100000      what N x N attention weights would take
      weft show my-model.toml --json
    """
    if preset is None:
        show_presets(as_json)
    else:
        show_model(preset, length, as_json)


def show_presets(as_json: bool) -> None:
    """Print all presets with family and number of parameters."""
    from weft.cli.terminal import console, print_json
    from weft.models.stored_estimates import stored_estimate, stored_presets

    stored = {name: found for name in stored_presets() if (found := stored_estimate(name)) is not None}
    rows = [
        {"preset": name, "family": found.estimate.family, "parameters": found.estimate.parameters}
        for name, found in stored.items()
    ]
    if as_json:
        print_json(rows)
        return
    table = plain_table("preset", "family", "parameters>")
    for row in rows:
        table.add_row(str(row["preset"]), str(row["family"]), f"{row['parameters']:,}")
    out, plain = console(), [name for name, found in stored.items() if found.plain]
    out.print(table)
    out.print(
        f"\n[dim]{plain[0]} to {plain[-1]}: the models as lectures draw them; training chooses their size.[/dim]",
        soft_wrap=True,
    )
    out.print("[dim]Details of one: weft show gpt2[/dim]")


def show_model(source: str, length: int | None, as_json: bool) -> None:
    """Print parts, matrix products, memory and FLOPs of one model at length N; a preset's own are stored."""
    from weft.cli.terminal import console, print_json
    from weft.models.stored_estimates import stored_estimate

    stored = stored_estimate(source) if length is None else None
    if stored is not None and stored.everywhere:
        spec, found, declares = None, stored.estimate, stored.declares
    else:
        load_torch()
        from weft.models.estimates import estimate

        spec = find_spec(source)
        found, declares = estimate(spec, length), spec.declares().to_tree()
    if as_json:
        print_json({"name": source, **found.to_tree(), "declares": declares})
        return
    out = console()
    _print_head(out, source, found)
    if spec is not None:
        _print_masks(out, spec, found.length)
    _print_parts(out, found)
    _print_products(out, found)
    _print_memory(out, found)
    _print_flops(out, found)


def find_spec(source: str) -> AnySpec:
    """The spec of a preset, of a run's model, or in a .json or .toml file."""
    from weft.checkpoints.run_folder import RunFolder
    from weft.checkpoints.sample_runs import locate_run
    from weft.models.build import read_spec
    from weft.models.presets import preset, presets

    if source in presets():
        return preset(source)
    path = locate_run(source)
    if path.is_dir():
        return read_spec(RunFolder(path).read_spec().model)
    if path.suffix.lower() not in SUFFIXES:
        close = difflib.get_close_matches(source.lower(), presets(), n=3, cutoff=0.75)
        hint = f"did you mean {' or '.join(close)}?" if close else "`weft show` lists the presets"
        raise WeftError(
            f"there is no preset {source!r}, no folder of a run, and a spec file ends in .json or .toml: {hint}"
        )
    try:
        text = expect_regular(path).read_text(encoding="utf-8")
    except OSError as error:
        raise WeftError(f"cannot read {source}: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise SpecError(f"{source} is not UTF-8 text: a spec is a JSON or TOML file") from None
    try:
        return read_spec(text if path.suffix.lower() == ".json" else tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{source}: this spec is not TOML ({error}): check the file") from None
    except WeftError as error:
        raise SpecError(f"{source}: {error}") from None


def plain_table(*columns: str, title: str | None = None) -> Table:
    """A table without frame; a column whose name ends in > is aligned right."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        table.add_column(
            column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold", header_style="dim"
        )
    return table


def _print_head(out: Console, source: str, found: Estimate) -> None:
    from rich.markup import escape

    active = ""
    if found.active_parameters != found.parameters:
        active = f", {found.active_parameters:,} active per token"
    sizes = {"layers (L)": found.layers, "width (D)": found.width, "heads (H)": found.heads, "length (N)": found.length}
    words = [f"{name} {size:,}" for name, size in sizes.items() if size]
    if found.tokens != found.length:
        words.append(f"tokens in the blocks {found.tokens:,}")
    out.print(f"[bold]{escape(source)}[/bold]: {found.family}, {found.parameters:,} parameters{active}")
    out.print(", ".join(words))
    for note in found.notes:
        out.print(f"[yellow]Note: {note}[/yellow]")
    out.print()


def _print_masks(out: Console, spec: AnySpec, length: int) -> None:
    """The masks of the layers as pictures, where there are more than causality and windows."""
    masks, length = spec.declares().masks or (), min(length, spec.declares().length or length)
    for mask in dict.fromkeys(masks):
        layers = ", ".join(str(layer) for layer, own in enumerate(masks) if own == mask)
        out.print(f"[bold]Mask of layers {layers}[/bold]: {mask!r}", highlight=False)
        out.print(mask.text(min(length, MASK_TOKENS_DRAWN)), highlight=False)
        visible = f"{mask.share(length):.1%} of the N x N pairs are visible at N = {length:,}"
        out.print(f"[dim]{visible}; FLOPs below count N keys per query, within a window or blocks only those.[/dim]\n")


def _print_parts(out: Console, found: Estimate) -> None:
    table = plain_table("part", "kind", "shapes", "parameters>", title="Parts")
    table.columns[0].no_wrap = True
    for stem, part in _branches(found.parts):
        name = part.name if part.copies == 1 else f"{part.name} x {part.copies}"
        count = f"{part.total:,}" if part.total else "-"
        table.add_row(f"[dim]{stem}[/dim]{name}", f"[dim]{part.kind}[/dim]", part.shapes, count)
    out.print(table)
    if any(part.copies > 1 for _, part in found.parts.walk()):
        out.print("[dim]Numbers inside a repeated part are those of one copy.[/dim]")
    out.print()
    table = plain_table("for", "parameters>", "share>", title="Parameters by part")
    for role, size in sorted(found.roles.items(), key=lambda item: -item[1]):
        table.add_row(role, f"{size:,}", f"{size / found.parameters:.1%}")
    table.add_row("[bold]all[/bold]", f"[bold]{found.parameters:,}[/bold]", "")
    out.print(table, "", sep="\n")


def _branches(part: PartNode, before: str = "", own: str = "") -> Iterator[tuple[str, PartNode]]:
    """(branches drawn as lines, part) from the top of the tree."""
    yield before + own, part
    inside = before + {"": "", "├─ ": "│  ", "└─ ": "   "}[own]
    for index, child in enumerate(part.children):
        yield from _branches(child, inside, "└─ " if index == len(part.children) - 1 else "├─ ")


def _print_products(out: Console, found: Estimate) -> None:
    from rich.markup import escape

    from weft.cli.terminal import in_flops

    wide = out.width >= WIDE
    names = ("where", "product", "formula", "shapes", "cost>", "share>")
    title = f"Matrix products of one sequence at N = {found.length:,}"
    table = plain_table(*(name for name in names if wide or name != "formula"), title=title)
    total = max(found.flops_forward, 1)
    for group in found.groups:
        where = group.where if group.copies == 1 else f"{group.where} x {group.copies}"
        for product in group.products:
            formula = [escape(product.formula)] if wide else []
            shapes = product.shapes if wide else product.shapes.partition(" -> ")[0]
            share = f"{group.copies * product.flops / total:.1%}"
            table.add_row(where, product.name, *formula, escape(shapes), in_flops(product.flops), share)
            where = ""
        table.add_section()
    out.print(table)
    out.print("[dim]Costs are per block, shares of the whole model.[/dim]\n")


def _print_memory(out: Console, found: Estimate) -> None:
    from weft.cli.terminal import in_bytes

    memory, N = found.memory, f"{found.tokens:,}"
    table = plain_table("what", "memory>", "how", title="Memory")
    table.add_row("weights, float32", in_bytes(memory.weights_float32), "4 bytes per parameter")
    table.add_row("weights, 2 bytes", in_bytes(memory.weights_2_bytes), "bfloat16 or float16")
    table.add_row(
        "training, AdamW",
        in_bytes(memory.training_adamw),
        "weights, gradients, 2 moments, float32; no activations",
    )
    if found.state:
        kept = ", ".join(part.what for part in found.state)
        table.add_row("state, float32", in_bytes(memory.state_float32), f"{kept}; one sequence of {N} tokens")
        table.add_row("state, 2 bytes", in_bytes(memory.state_2_bytes), "")
    if found.heads:
        how = f"H x N x N = {found.heads} x {N} x {N}, 2 bytes, one layer; {_fate_of_weights(found)}"
        table.add_row("attention weights", in_bytes(memory.unfused_attention), how)
    for words, purposes in _kernels_in_words(found).items():
        table.add_row("", "" if len(purposes) > 1 else purposes[0], words)
    out.print(table, "", sep="\n")


def _kernels_in_words(found: Estimate) -> dict[str, list[str]]:
    """Each kernel that runs and why, with what for."""
    words: dict[str, list[str]] = {}
    for use in found.kernels:
        words.setdefault(f"{use.kernel}: {use.reason}", []).append(use.purpose)
    return words


def _fate_of_weights(found: Estimate) -> str:
    """Whether the attention weights are stored, in words."""
    if not found.kernels:
        return "kept as the alignment"
    purposes = dict.fromkeys(use.purpose for use in found.kernels if use.stores_weights)
    return f"stored in {' and '.join(purposes)}" if purposes else "never stored"


def _print_flops(out: Console, found: Estimate) -> None:
    from weft.cli.terminal import in_flops

    table = plain_table("pass", "per token>", "per sequence>", title="FLOPs")
    table.add_row("forward", in_flops(found.flops_per_token), in_flops(found.flops_forward))
    table.add_row("training", in_flops(found.training_flops_per_token), in_flops(3 * found.flops_forward))
    out.print(table)
    out.print(
        "[dim]2 per multiply-add, attention scores at length N, causal not discounted; training is 3 x forward.[/dim]"
    )
