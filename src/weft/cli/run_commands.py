"""Commands on runs: judge them, use them, look into them, bring them in and out. Rooms load inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.app import AsJson, Device, Quantize, app
from weft.foundation.errors import WeftError


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
    prompt: Annotated[
        str | None, typer.Option(help="With --shots: how each is written, such as 'Review: {text}\\nMood: {label}'.")
    ] = None,
    seed: Annotated[int, typer.Option(help="With --shots: which examples are drawn.")] = 0,
    settings: Annotated[
        list[str], typer.Option("--set", help="How data are read: data.columns=text,mood.", metavar="DATA.B=C")
    ] = [],  # noqa: B006
    quantize: Quantize = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """The task's metrics on held-out data.

    \b
    Examples:
      weft eval runs/book other-book.txt
      weft eval runs/ende test.en test.de --json
      weft eval runs/smollm dev.tsv --shots 8 --labels negative,positive --prompt 'Review: {text}\\nMood: {label}'
    """
    from weft.cli.answers import run_eval
    from weft.cli.settings import read_changes

    more: dict[str, object] = {"examples": examples}
    more["labels"] = None if labels is None else [word.strip() for word in labels.split(",")]
    more |= {"prompt": None if prompt is None else prompt.replace("\\n", "\n"), "seed": seed}
    if shots is None and any(more.values()):
        raise WeftError("--labels, --examples, --prompt and --seed go with --shots: give --shots K, from 0")
    _, changes = read_changes(settings, None)
    run_eval(run, data, {} if shots is None else {"shots": shots, **more}, changes, device, quantize, as_json)


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
    speculative: Annotated[
        bool, typer.Option(help="Speculative decoding by prompt look-up: faster where texts repeat.")
    ] = False,
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
    from weft.cli.answers import run_predict

    how: dict[str, object] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "beam": beam}
    how |= {"max_tokens": max_tokens, "seed": seed, "samples": samples}
    how |= {"repetition": repetition, "stop": stop, "speculative": speculative, "chat": chat, "overflow": overflow}
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
    Kinds, as far as a run has them: attention, alignment, pair, rollout, flow, statistics, effects, lens, residuals,
    routing, next, loss, reach, filters, positions, explain.

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
    from weft.cli.import_checkpoint import run_import

    run_import(source, out, certificate, as_json)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")],
    to: Annotated[str, typer.Option(help="huggingface, gguf or onnx.", metavar="FORMAT")],
    out: Annotated[Path, typer.Option(help="A new folder.", metavar="DIR")],
    kind: Annotated[
        str | None, typer.Option("--type", help="Of a GGUF file's weights: f32, f16, bf16, q8_0; else as stored.")
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
      weft export runs/llama --to huggingface --out llama-hf
      weft export runs/smollm --to gguf --type q8_0 --out smollm-gguf
      weft export runs/book --to onnx --out book-onnx --json
    """
    from weft.cli.export import run_export

    run_export(run, to, out, kind, certificate, as_json)
