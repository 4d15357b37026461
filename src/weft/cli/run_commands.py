"""Commands that use runs: eval, predict, look, import, export. They import what they need when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.app import AsJson, Device, Quantize, app
from weft.foundation.errors import WeftError


@app.command("eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    data: Annotated[
        list[str],
        typer.Argument(
            help="Data that the run was not trained on: files, or sample: for built-in data.", metavar="DATA"
        ),
    ],
    shots: Annotated[
        int | None,
        typer.Option(help="A language model labels texts after K examples in its prompt.", metavar="K"),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="With --shots: words for the labels, in the order of the labels.", metavar="A,B")
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(help="With --shots: file that examples are drawn from; DATA if left out.", metavar="FILE"),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="With --shots: format of an example, such as 'Review: {text}\\nMood: {label}'.")
    ] = None,
    seed: Annotated[int, typer.Option(help="With --shots: seed of the drawn examples.")] = 0,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set", help="Change how data are read, such as data.columns=text,mood; repeatable.", metavar="DATA.B=C"
        ),
    ] = [],  # noqa: B006
    quantize: Quantize = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Print the task's metrics on data that the run was not trained on.

    \b
    Examples:
      weft eval runs/book other-book.txt
      weft eval runs/ende test.en test.de --json
      weft eval runs/smollm dev.tsv --shots 8 --labels negative,positive --prompt 'Review: {text}\\nMood: {label}'
    """
    from weft.cli.answers import run_eval
    from weft.cli.settings import read_settings

    more: dict[str, object] = {"examples": examples}
    more["labels"] = None if labels is None else [word.strip() for word in labels.split(",")]
    more |= {"prompt": None if prompt is None else prompt.replace("\\n", "\n"), "seed": seed}
    if shots is None and any(more.values()):
        raise WeftError("--labels, --examples, --prompt and --seed go with --shots: give --shots K, from 0")
    few_shot = {} if shots is None else {"shots": shots, **more}
    run_eval(run, data, few_shot, read_settings(settings), device, quantize, as_json)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Texts, or paths of images and tables; lines of stdin if left out.", metavar="INPUT"),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 takes the most probable token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample among the most probable tokens that reach this probability together.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Leave out tokens below this share of the highest probability.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Number of beam search hypotheses.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Largest number of new tokens.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
    samples: Annotated[int, typer.Option(help="Number of answers per input.")] = 1,
    repetition: Annotated[
        float, typer.Option(help="Repetition penalty: above 1, repeated tokens are less probable.")
    ] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Text to stop before; repeatable.")] = None,
    speculative: Annotated[
        bool, typer.Option(help="Speculative decoding by prompt lookup: faster where texts repeat themselves.")
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Format the input as a user's message to a chat model.")] = False,
    overflow: Annotated[
        str, typer.Option(help="For texts longer than in training: slide (drop the oldest tokens), refuse or extend.")
    ] = "slide",
    quantize: Quantize = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Predict: text -> continuation, sentence -> translation, image -> label, table -> forecast.

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
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    given: Annotated[
        str,
        typer.Argument(
            help="Text, path of an image, table or sequence, or sample:NAME/N for a validation example.",
            metavar="INPUT",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="File to write: a page (.html) or an image (.png, .svg).", metavar="FILE")
    ] = Path("look.html"),
    kind: Annotated[str | None, typer.Option(help="Kind of picture, if not the task's own.")] = None,
    layer: Annotated[int | None, typer.Option(help="Layer to show first, from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Head to show first, from 0.")] = None,
    row: Annotated[str | None, typer.Option(help="Token whose attention is shown: its text or its number.")] = None,
    pair: Annotated[str | None, typer.Option(help="Two words whose query and key are compared.", metavar="A,B")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Explain one attention output number by number.")] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Draw what a model looks at: attention, alignment, rollout or filters, as a page or an image.

    The page is a single file that needs no network: choose layers and heads in it, and point at cells for their values.
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
    from weft.cli.look import run_look
    from weft.inspection.pictures.look_options import LookOptions, parse_pair

    options = LookOptions(kind, layer, head, row, parse_pair(pair), explain)
    run_look(run, given, out, options, device, as_json)


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="Hugging Face folder, or .gguf file.", metavar="DIR")],
    out: Annotated[Path, typer.Option(help="Folder of the new run.", metavar="RUN")],
    certificate: Annotated[
        bool,
        typer.Option(
            "--certificate/--no-certificate", help="Compare the logits with those of transformers, if it is installed."
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Make a run of a checkpoint from another library.

    Takes GPT-2, Llama, Mistral, Qwen2, Qwen3, Mixtral, BERT, MiniLM, RoBERTa, ViT, DeiT, T5, BART and Marian; GGUF
    files of Llama and GPT-2 models. No code in the files is executed; broken or unknown files are refused, and then
    nothing is written.

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
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    to: Annotated[str, typer.Option(help="Format to write: huggingface, gguf or onnx.", metavar="FORMAT")],
    out: Annotated[Path, typer.Option(help="Folder to create.", metavar="DIR")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--type", help="Type of the weights in a GGUF file: f32, f16, bf16 or q8_0; as stored if left out."
        ),
    ] = None,
    certificate: Annotated[
        bool, typer.Option("--certificate/--no-certificate", help="Compare the logits with those of the other library.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write a run in the format of another library.

    Hugging Face folders (GPT-2, Llama, Mistral, Qwen2, Qwen3, Mixtral, BERT, RoBERTa, ViT, DeiT, T5, BART and Marian
    architectures), GGUF files of Llama and GPT-2 models for llama.cpp, ONNX files with the decoder's cache as inputs
    and outputs. If no architecture fits the model, the error names the field that prevents it.

    \b
    Examples:
      weft export runs/llama --to huggingface --out llama-hf
      weft export runs/smollm --to gguf --type q8_0 --out smollm-gguf
      weft export runs/book --to onnx --out book-onnx --json
    """
    from weft.cli.export import run_export

    run_export(run, to, out, kind, certificate, as_json)
