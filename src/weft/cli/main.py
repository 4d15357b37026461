"""The command `weft`. Nothing here imports torch: help and version answer at once, rooms load inside the commands."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from weft import __version__
from weft.foundation.errors import WeftError

FAILED, USER_ERROR, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141


class _TrainCommand(TyperCommand):
    """`weft train TASK --help` also shows every default of that task."""

    def get_help(self, ctx: Any) -> str:
        from weft.cli.settings import list_defaults
        from weft.tasks.names import TASKS

        named = next((word for word in sys.argv[1:] if word in TASKS), None)
        return super().get_help(ctx) + ("" if named is None else f"\n\n{list_defaults(named)}")


class _Commands(TyperGroup):
    """Turns what may go wrong in any command into one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except WeftError as error:
            raise _stop(str(error), USER_ERROR) from None
        except KeyboardInterrupt:
            raise _stop("stopped", INTERRUPTED) from None
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(CLOSED_PIPE) from None
        except OSError as error:
            _drop_output()
            where = error.filename or "the output"
            raise _stop(f"cannot read or write {where}: {error.strerror}; check disk and path", USER_ERROR) from None
        return result


def _stop(sentence: str, code: int) -> typer.Exit:
    if code == USER_ERROR and os.environ.get("WEFT_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    print(f"weft: {sentence}", file=sys.stderr)
    return typer.Exit(code)


def _drop_output() -> None:
    """Send to nowhere what is still in the buffer: it would fail again when Python closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=_Commands,
    name="weft",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON value.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"weft {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _weft(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Weft: transformers, all of the textbook from one set of parts.

    \b
    Examples:
      weft demo                   train two small models and see what they learned
      weft train text book.txt --out runs/book --minutes 5
      weft predict runs/book "Once upon a time"
      weft look runs/book "Once upon a time" --out book.html
      weft show                   all presets
      weft show gpt2              parameters, shapes, matrix products, memory, FLOPs
      weft laws gpt2              check that it does what it declares
    """
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command(cls=_TrainCommand)
def train(
    task: Annotated[
        str,
        typer.Argument(
            help="text, translation, classification, tagging, images, captions, forecast or sequences.", metavar="TASK"
        ),
    ],
    data: Annotated[
        list[str], typer.Argument(help="Files or folders, or sample: for built-in data.", metavar="DATA...")
    ],
    out: Annotated[Path | None, typer.Option(help="The run's folder.", metavar="RUN")] = None,
    preset: Annotated[str, typer.Option(help="A preset's name; auto suits model to data and time.")] = "auto",
    settings: Annotated[
        list[str], typer.Option("--set", help="Change one option: a.b=c; may come often.", metavar="A.B=C")
    ] = [],  # noqa: B006
    config: Annotated[Path | None, typer.Option(help="Options from a .toml file.")] = None,
    steps: Annotated[int | None, typer.Option(help="So many steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="So long; 5 if neither is given.")] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, to the same bits.")] = False,
    base: Annotated[
        Path | None, typer.Option("--from", help="Train this run on: its model, tokeniser and weights.", metavar="RUN")
    ] = None,
    lora: Annotated[
        int | None, typer.Option(help="With --from: adapters of this rank learn, the weights stay.", metavar="R")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; the best one if left out.")] = None,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Train through torch.compile.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on your data.

    The time plan measures this machine, picks model, batch and steps to end on time, and is frozen into the run.

    \b
    Examples:
      weft train text book.txt --out runs/book --minutes 5
      weft train translation train.en train.de --out runs/ende --preset nano-gru-additive --steps 2000
      weft train images sample:digits --out runs/digits --set training.rate=0.001
      weft train text letters.txt --from runs/book --lora 8 --out runs/letters
      weft train text --help                   every default of a task
    """
    from weft.cli.settings import read_changes
    from weft.cli.train import run_train
    from weft.training.train import Order

    orders, changes = read_changes(settings, config)
    given = {"preset": preset if preset != "auto" else None, "steps": steps, "minutes": minutes, "device": device}
    given |= {"seed": seed or None, "base": None if base is None else str(base)}
    if lora is not None:
        changes["training.lora"] = lora
    orders.update({name: value for name, value in given.items() if value is not None})
    run_train(task, data, out, Order(changes=changes, resume=resume, compiled=compiled, **orders), tensorboard, as_json)


Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps; the best one if left out.")]
Quantize = Annotated[str | None, typer.Option(help="int8 weights: a quarter of the memory, faster; else as trained.")]


@app.command("eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")],
    data: Annotated[list[str], typer.Argument(help="Held-out data: files, or sample:.", metavar="DATA...")],
    shots: Annotated[
        int | None, typer.Option(help="A text run labels texts after so many examples in its prompt.", metavar="K")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="With --shots: words for the labels, in their order.", metavar="A,B")
    ] = None,
    examples: Annotated[
        Path | None, typer.Option(help="With --shots: where examples are drawn from; DATA if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="With --shots: which examples are drawn.")] = 0,
    quantize: Quantize = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """The task's metrics on held-out data.

    \b
    Examples:
      weft eval runs/book other-book.txt
      weft eval runs/ende test.en test.de --json
      weft eval runs/smollm dev.tsv --shots 8 --labels negative,positive
    """
    from weft.cli.use import run_eval

    more = {"labels": None if labels is None else labels.split(","), "examples": examples, "seed": seed}
    if shots is None and any(more.values()):
        raise WeftError("--labels, --examples and --seed go with --shots: give --shots K, from 0")
    run_eval(run, data, {} if shots is None else {"shots": shots, **more}, device, quantize, as_json)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Texts, or paths of images and tables; none reads lines from stdin.", metavar="[INPUT...]"),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest; higher varies more.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample among tokens of this joint probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Leave out tokens below this share of the likeliest.")] = None,
    beam: Annotated[int | None, typer.Option(help="Beam search with so many hypotheses.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="At most so many new tokens.")] = None,
    seed: Annotated[int, typer.Option(help="What is drawn follows from it.")] = 0,
    samples: Annotated[int, typer.Option(help="So many answers to each input.")] = 1,
    repetition: Annotated[float, typer.Option(help="Above 1 makes tokens seen before less likely.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="A text ends before this; may be given again.")] = None,
    guess: Annotated[bool, typer.Option(help="Guess tokens from the text so far: faster where texts repeat.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="The input is what a user says to a chat model.")] = False,
    overflow: Annotated[
        str, typer.Option(help="Texts longer than trained for: slide (forget the oldest), refuse, extend.")
    ] = "slide",
    quantize: Quantize = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Answers: text -> continuation, sentence -> translation, image -> label, table -> forecast.

    \b
    Examples:
      weft predict runs/book "Once upon a time" --max-tokens 80 --seed 1
      weft predict runs/digits seven.png three.png --json
      cat sentences.txt | weft predict runs/ende --beam 5
      weft predict runs/book "Once upon a time" --quantize int8 --stop "The end"
    """
    from weft.cli.use import run_predict

    how: dict[str, object] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "beam": beam}
    how |= {"max_tokens": max_tokens, "seed": seed, "samples": samples}
    how |= {"repetition": repetition, "stop": stop, "guess": guess, "chat": chat, "overflow": overflow}
    run_predict(run, inputs or [], how, device, quantize, as_json)


@app.command()
def look(
    run: Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")],
    given: Annotated[
        str,
        typer.Argument(
            help="A text, a path of an image, table or sequence, or sample:NAME/N, a held-out example.", metavar="INPUT"
        ),
    ],
    out: Annotated[Path, typer.Option(help="A page (.html) or a still (.png, .svg).", metavar="F")] = Path("look.html"),
    kind: Annotated[
        str | None, typer.Option(help="Another picture than the task's own; an unknown one lists all.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="The layer shown first, from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="The head shown first, from 0.")] = None,
    row: Annotated[str | None, typer.Option(help="The token whose looks are shown: itself, or its number.")] = None,
    pair: Annotated[str | None, typer.Option(help="Two words whose query and key meet.", metavar="A,B")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Unfold one attention output into all its numbers.")
    ] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """See what a model looks at: attention, alignment, rollout, filters as one page or a still.

    The page is a single file that needs no network: layers and heads are chosen in it, and the pointer shows numbers.

    \b
    Examples:
      weft look runs/book "Once upon a time" --out book.html
      weft look runs/ende "A dog runs." --out alignment.png
      weft look runs/opinions "the film was not terrible" --pair not,terrible
      weft look runs/digits seven.png --kind rollout --out rollout.svg
      weft look runs/book "Once upon" --explain --layer 2 --head 1 --row upon
    """
    from weft.cli.look import Wish, run_look

    run_look(run, given, out, Wish(kind, layer, head, row, pair, explain), device, as_json)


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A Hugging Face folder, or a .gguf file.", metavar="DIR")],
    out: Annotated[Path, typer.Option(help="The run's folder.", metavar="RUN")],
    certificate: Annotated[
        bool, typer.Option("--certificate/--no-certificate", help="Compare logits with transformers', if installed.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Make a run of a checkpoint from elsewhere.

    GPT-2, Llama, Mistral, Qwen2, Qwen3, Mixtral, BERT, MiniLM, RoBERTa, ViT, DeiT, T5, BART, Marian; GGUF of Llama and
    GPT-2 kinds. Nothing in the files is run; what is broken or unknown is refused, and then nothing is written.

    \b
    Examples:
      weft import SmolLM2-135M-Instruct --out runs/smollm
      weft predict runs/smollm "What is the capital of France?" --chat
      weft import model.Q4_K_M.gguf --out runs/model --json
    """
    from weft.cli.interop import run_import

    run_import(source, out, certificate, as_json)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")],
    to: Annotated[str, typer.Option(help="huggingface, gguf or onnx.", metavar="FORMAT")],
    out: Annotated[Path, typer.Option(help="A new folder.", metavar="DIR")],
    kind: Annotated[
        str | None, typer.Option("--type", help="Of a GGUF file's weights: f32, f16, bf16, q8_0; as stored if left out.")
    ] = None,
    certificate: Annotated[
        bool, typer.Option("--certificate/--no-certificate", help="Compare logits with the other program's.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write a run for other programs.

    Hugging Face folders (GPT-2, Llama, Mistral, Qwen2, Qwen3, Mixtral, BERT, RoBERTa, ViT, DeiT, T5, BART, Marian
    shapes), GGUF files of Llama and GPT-2 kinds for llama.cpp, ONNX files with the decoder's memory as inputs and
    outputs. A model that has no such shape is told which field stands in the way.

    \b
    Examples:
      weft export runs/book --to huggingface --out book-hf
      weft export runs/smollm --to gguf --type q8_0 --out smollm-gguf
      weft export runs/book --to onnx --out book-onnx --json
    """
    from weft.cli.export import run_export

    run_export(run, to, out, kind, certificate, as_json)


@app.command()
def show(
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|PRESET",
            help="A preset's name, a run's folder or a spec file (.json, .toml); none lists all presets.",
        ),
    ] = None,
    length: Annotated[int | None, typer.Option(help="N, the length in tokens; the model's own if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a model is made of and what it costs.

    Parameters, shapes, the matrix products of a block, memory and FLOPs, of any size: nothing large is built.

    \b
    Examples:
      weft show                                all presets with family and parameters
      weft show gpt2
      weft show gpt3-175b --length 100000      what N x N attention weights would take
      weft show my-model.toml --json
    """
    from weft.cli.show import show_model, show_presets

    if preset is None:
        show_presets(as_json)
    else:
        show_model(preset, length, as_json)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="So long a training, for both models together.")] = 90.0,
    out: Annotated[Path, typer.Option(help="Where runs and the picture go; a demo before is replaced.")] = Path(
        "weft-demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Train two small models on built-in data and see what they learned.

    A language model reads what comes with Python; a translator learns to read dates. No network is needed.

    \b
    Examples:
      weft demo
      weft demo --seconds 300 --out /tmp/demo
      weft demo --json
    """
    from weft.cli.demo import run_demo

    run_demo(seconds, out, as_json)


@app.command()
def laws(
    preset: Annotated[
        str | None, typer.Argument(metavar="[RUN|PRESET]", help="A run's folder or a preset's name.")
    ] = None,
    module: Annotated[
        str | None, typer.Option(help="A model of your own: package.module:factory, a function that makes it.")
    ] = None,
    example: Annotated[
        str | None, typer.Option(help="Tokens that it takes, such as 3,1,4; else drawn at random.")
    ] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal/--not-causal", help="Declare whether it looks only back.")
    ] = None,
    positions: Annotated[str | None, typer.Option(help="Declare its positions: none, absolute or relative.")] = None,
    reach: Annotated[int | None, typer.Option(help="Declare how many tokens back it looks, over all layers.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Declare how many tokens there are.")] = None,
    compiled: Annotated[bool, typer.Option("--compiled", help="Also compare with torch.compile.")] = False,
    html: Annotated[Path | None, typer.Option(help="Draw the report into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a model does what it declares.

    No look ahead, padding, batch company and packing change nothing, the cache equals the full forward, and more.
    Exit code 1 if a declared law is broken.

    \b
    Examples:
      weft laws nano-gpt
      weft laws mixtral-8x7b --json                large presets are judged in small
      weft laws --module my_project.model:build --causal --html laws.html
    """
    from weft.cli.laws import run_laws

    given = {"causal": causal, "positions": positions, "reach": reach, "vocabulary": vocabulary}
    declared = {name: value for name, value in given.items() if value is not None}
    if not run_laws(preset, module, example, declared, as_json, html, compiled):
        raise typer.Exit(FAILED)


def run() -> None:
    """The entry point: `weft ...`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a sign gets a question mark instead of a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app(prog_name="weft")
    except KeyboardInterrupt:
        print("weft: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
