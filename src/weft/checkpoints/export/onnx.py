"""ONNX files from runs, for any batch and length; decoders have their cache as inputs and outputs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoints.export.export_source import ExportSource
from weft.checkpoints.export.onnx_graphs import (
    DecoderGraph,
    EncoderGraph,
    PlainGraph,
    SourceGraph,
    TargetGraph,
    expect_exportable,
    make_exportable,
)
from weft.checkpoints.export.tokenizer_files import write_tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import write_text
from weft.foundation.spec import Tree
from weft.models.build import build
from weft.models.encoder import EncoderSpec
from weft.models.vision import VisionSpec

MAX_EMBEDDED_WEIGHTS = (
    1 << 30
)  # bytes; larger weights are stored beside the file, because an ONNX file is at most 2 GiB
INSTALL = "pip install 'weft[onnx]'"


@dataclass(frozen=True)
class OnnxGraph:
    """One file: a module, example inputs by name with their dynamic axes, and names of its outputs."""

    file: str
    module: nn.Module
    inputs: dict[str, Tensor]
    axes: dict[str, dict[int, str]]
    outputs: list[str]


def write_onnx(run: ExportSource, out: Path) -> list[str]:
    """Write one file, or encoder.onnx and decoder.onnx, the tokenizer, and model.json with names and sizes."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise WeftError(f"ONNX files need the package {error.name}: {INSTALL}") from None
    expect_exportable(run.model)
    graphs = _graphs(run, make_exportable(float32_module(run)))
    for graph in graphs:
        _write(graph, out, sum(tensor.nbytes for tensor in run.weights.values()))
    write_tokenizer(run, out)
    write_text(out / "model.json", json.dumps(_tree(run, graphs), indent=2) + "\n")
    return [graph.file for graph in graphs]


def float32_module(run: ExportSource) -> nn.Module:
    """The model with the run's weights in float32."""
    module = build(run.model, device="meta")
    module.load_state_dict({name: tensor.float() for name, tensor in run.weights.items()}, assign=True)
    return module.eval()


def _tree(run: ExportSource, graphs: list[OnnxGraph]) -> Tree:
    files = {graph.file: {"inputs": list(graph.inputs), "outputs": graph.outputs} for graph in graphs}
    ids = run.ids
    special = {"before": list(ids.before), "after": list(ids.after), "stops": list(ids.stops), "start": ids.start}
    known: Tree = {name: run.facts[name] for name in ("classes", "mean", "deviation", "side") if name in run.facts}
    return {"task": run.run.task, "files": files, "ids": special, **known, "model": run.model.to_tree()}


# --- graphs ----------------------------------------------------------------------------------------------------------


def _graphs(run: ExportSource, model: Any) -> list[OnnxGraph]:
    """The graphs of a model, each with example inputs of distinct sizes."""
    spec: Any = run.model
    B, T, S, N = 2, 5, 3, 7
    if isinstance(spec, VisionSpec):
        images = {"images": torch.randn(B, spec.channels, spec.image, spec.image)}
        return [OnnxGraph("model.onnx", PlainGraph(model), images, {"images": {0: "batch"}}, ["logits"])]
    if spec.family == "series":
        values = {"values": torch.randn(B, T * spec.patch, spec.channels)}
        return [OnnxGraph("model.onnx", PlainGraph(model), values, {"values": BATCH_AND_LENGTH}, ["logits"])]
    if isinstance(spec, EncoderSpec):
        return [_encoder(run, model, B, T)]
    past, past_axes, present = _memory(model.decoder if spec.family == "encoder-decoder" else model.stack, B, S)
    tokens = torch.randint(0, spec.vocabulary, (B, T))
    if spec.family == "decoder":
        mask = torch.ones(B, S + T, dtype=torch.long)
        inputs = {"tokens": tokens, "mask": mask, **past}
        axes = {"tokens": BATCH_AND_LENGTH, "mask": {0: "batch", 1: "past + length"}, **past_axes}
        return [OnnxGraph("model.onnx", DecoderGraph(model), inputs, axes, ["logits", *present])]
    source = {"source": torch.randint(0, spec.vocabulary, (B, N)), "source_mask": torch.ones(B, N, dtype=torch.long)}
    seen = {0: "batch", 1: "source length"}
    first = OnnxGraph("encoder.onnx", SourceGraph(model), source, dict.fromkeys(source, seen), ["memory"])
    memory = {"memory": torch.randn(B, N, spec.encoder_stack().width), "source_mask": source["source_mask"]}
    inputs = {"target": tokens, **memory, **past}
    axes = {"target": BATCH_AND_LENGTH, **dict.fromkeys(memory, seen), **past_axes}
    return [first, OnnxGraph("decoder.onnx", TargetGraph(model), inputs, axes, ["logits", *present])]


BATCH_AND_LENGTH = {0: "batch", 1: "length"}


def _encoder(run: ExportSource, model: Any, B: int, T: int) -> OnnxGraph:
    spec = run.model
    assert isinstance(spec, EncoderSpec)
    tokens = encoder_inputs(spec, B, T)
    if any(mixer.kind == "convolution" for mixer in spec.mixer):
        # A convolution over padded rows has no static graph: all rows of a call have one length.
        return OnnxGraph("model.onnx", PlainGraph(model), {"tokens": tokens}, {"tokens": BATCH_AND_LENGTH}, ["logits"])
    facts = run.facts if run.embeds else {}
    graph = EncoderGraph(model, facts.get("pool"), bool(facts.get("normalize")))
    inputs = {"tokens": tokens, "mask": torch.ones(B, T, dtype=torch.long)}
    return OnnxGraph(
        "model.onnx", graph, inputs, dict.fromkeys(inputs, BATCH_AND_LENGTH), ["vectors" if facts else "logits"]
    )


def encoder_inputs(spec: EncoderSpec, B: int, T: int) -> Tensor:
    """Random tokens [B, T], words with their characters [B, T, 1 + L], or vectors [B, T, C]."""
    given: Any = spec.input
    if given.kind == "vectors":
        return torch.randn(B, T, given.channels)
    if given.kind == "tokens":
        return torch.randint(0, given.vocabulary, (B, T))
    return torch.cat(
        (
            torch.randint(0, given.vocabulary, (B, T, 1)),
            torch.randint(0, given.characters, (B, T, given.longest)),
        ),
        2,
    )


def _memory(stack: Any, B: int, S: int) -> tuple[dict[str, Tensor], dict[str, dict[int, str]], list[str]]:
    """Keys and values of all attention layers: example inputs, dynamic axes, and names of the outputs."""
    past: dict[str, Tensor] = {}
    for layer, block in enumerate(stack.blocks):
        mixer = block.mixer
        for name, size in (("keys", mixer.head_width), ("values", mixer.value_width)):
            past[f"past.{layer}.{name}"] = torch.randn(B, mixer.key_heads, S, size)
    axes = {name: {0: "batch", 2: "past"} for name in past}
    return past, axes, [name.replace("past", "present", 1) for name in past]


# --- writing and comparing -------------------------------------------------------------------------------------------


def _write(graph: OnnxGraph, out: Path, size: int) -> None:
    dynamic = [dict.fromkeys(graph.axes[name], torch.export.Dim.DYNAMIC) for name in graph.inputs]
    past = sum(name.startswith("past.") for name in graph.inputs)
    own = len(dynamic) - past
    shapes: Any = (*dynamic[:own], tuple(dynamic[own:])) if past else tuple(dynamic)
    with _quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                graph.module,
                tuple(graph.inputs.values()),
                input_names=list(graph.inputs),
                output_names=graph.outputs,
                dynamic_shapes=shapes,
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            _name_axes(program, graph.axes)
            program.save(out / graph.file, external_data=size > MAX_EMBEDDED_WEIGHTS)
        except (torch.onnx.OnnxExporterError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0][:160]
            raise WeftError(
                f"{graph.file} cannot be written as ONNX ({reason}): export to huggingface instead"
            ) from None


def _name_axes(program: Any, axes: dict[str, dict[int, str]]) -> None:
    """Name the dynamic axes by what they count."""
    for value in program.model.graph.inputs:
        if value.shape is not None:
            for axis, name in axes.get(str(value.name), {}).items():
                value.shape[axis] = name


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's own messages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere:
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                yield
    finally:
        logger.setLevel(level)


OnnxSession = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def open_session(path: Path) -> OnnxSession:
    """An onnxruntime session: tensors by name in, tensors by name out."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def ask(given: dict[str, Tensor]) -> dict[str, Tensor]:
        found = session.run(names, {name: tensor.numpy() for name, tensor in given.items()})
        return {name: torch.from_numpy(array) for name, array in zip(names, found, strict=True)}

    return ask


def compare_onnx(run: ExportSource, out: Path) -> tuple[float, float] | None:
    """(largest difference, largest value) of onnxruntime's outputs and ours, for other sizes than the example's; None
    without onnxruntime."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return None
    graphs = _graphs(run, make_exportable(float32_module(run)))
    worst = largest = 0.0
    with torch.no_grad():
        for graph in graphs:
            given = _other_sizes(graph)
            theirs, ours = open_session(out / graph.file)(given), graph.module(*given.values())
            for name, tensor in zip(graph.outputs, ours if isinstance(ours, tuple) else (ours,), strict=True):
                worst = max(worst, float((theirs[name] - tensor).abs().max()) if tensor.numel() else 0.0)
                largest = max(largest, float(tensor.abs().max()) if tensor.numel() else 0.0)
    return worst, largest


def _other_sizes(graph: OnnxGraph) -> dict[str, Tensor]:
    """The example's inputs in a batch of one more row, and without a past."""
    given = {}
    for name, tensor in graph.inputs.items():
        tensor = torch.cat((tensor, tensor[:1]))
        if name.startswith("past."):
            tensor = tensor[:, :, :0]
        elif name == "mask" and "tokens" in graph.inputs:
            tensor = tensor[:, : graph.inputs["tokens"].shape[1]]
        given[name] = tensor.contiguous()
    return given
