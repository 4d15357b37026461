"""Chat templates by name, for models that have none of their own: `--template chatml`, or a Jinja file."""

from __future__ import annotations

from pathlib import Path

from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError
from weft.tasks.support.language.prompt_format import ChatTemplate, PromptFormat

# Each opens the assistant's turn where `add_generation_prompt` is true, as templates of other libraries do.
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama-3": (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
        "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "zephyr": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    "alpaca": (
        "{% for m in messages %}"
        "{% if m.role == 'user' %}### Instruction:\n{% elif m.role == 'assistant' %}### Response:\n{% endif %}"
        "{{ m.content }}\n\n{% endfor %}{% if add_generation_prompt %}### Response:\n{% endif %}"
    ),
    "plain": (
        "{% for m in messages %}"
        "{% if m.role == 'user' %}User: {% elif m.role == 'assistant' %}Assistant: {% endif %}"
        "{{ m.content | trim }}\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
    ),
}


def read_template(name: str, own: PromptFormat, tokenizer: Tokenizer) -> ChatTemplate:
    """The template of a name, or the one in a Jinja file; it knows the names of the model's start and stop tokens."""
    text = TEMPLATES.get(name)
    if text is None:
        text = _read(Path(name))
    tokens = {"bos_token": own.before[:1] or (tokenizer.start,), "eos_token": own.stopping(tokenizer)[:1]}
    names = {
        role: str(tokenizer.engine.id_to_token(ids[0])) for role, ids in tokens.items() if ids and ids[0] is not None
    }
    template = ChatTemplate(text, {**names, **({} if own.chat is None else own.chat.names)})
    template.check(name)
    return template


def _read(path: Path) -> str:
    if not path.is_file():
        raise WeftError(
            f"there is no chat template {str(path)!r}: choose one of {', '.join(TEMPLATES)}, or give a Jinja file"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise WeftError(f"{path} is not UTF-8 text: give a chat template in Jinja") from None
