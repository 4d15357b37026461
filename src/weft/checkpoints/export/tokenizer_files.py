"""A run's tokenizer in the files of Hugging Face folders: tokenizer.json, tokenizer_config.json."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as Engine
from tokenizers import processors

from weft.checkpoints.export.export_source import ExportSource
from weft.checkpoints.formats.vocabulary import text_frame
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.files.atomic_files import write_text
from weft.foundation.spec import Tree


def write_tokenizer(run: ExportSource, out: Path) -> None:
    """Write the tokenizer and its settings, if the run has one."""
    if run.tokenizer is None:
        return
    write_text(out / "tokenizer.json", frame_engine(run.tokenizer, run.ids.before, run.ids.after).to_str())
    if run.tokenizer.target_engine is not None:
        write_text(out / "target_tokenizer.json", run.tokenizer.target.engine.to_str())
    settings: Tree = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **run.special_tokens(),
    }
    length = run.facts.get("length", getattr(run.model, "length", None))
    if length is not None:
        settings["model_max_length"] = length
    template = run.chat_template()
    if template is not None:
        settings["chat_template"] = template
    write_text(out / "tokenizer_config.json", json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def frame_engine(tokenizer: Tokenizer, before: tuple[int, ...], after: tuple[int, ...]) -> Engine:
    """The tokenizer's engine with a post-processor that puts these ids around each text."""
    if text_frame(tokenizer) == (before, after):
        return tokenizer.engine
    engine = Engine.from_str(tokenizer.engine.to_str())
    names = [[str(engine.id_to_token(index)) for index in ids] for ids in (before, after)]
    used = sorted({(name, int(engine.token_to_id(name) or 0)) for side in names for name in side})
    engine.post_processor = processors.TemplateProcessing(single=[*names[0], "$A", *names[1]], special_tokens=used)
    return engine
