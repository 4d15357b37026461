"""Tiny random checkpoints of other libraries as folders on disk, each with a vocabulary; one function a family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from torch import nn

import peers
from weft.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from weft.data.tokenizers.vocabulary_files import from_wordpiece

C, D, H, G, F, L = 277, 42, 6, 2, 37, 2
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "##s", "a", "dog", "."]
LABELS = {0: "bad", 1: "good", 2: "so so"}


def save(model: nn.Module, folder: Path, **files: Any) -> nn.Module:
    """Random weights everywhere, saved as the library does and read back; `files` are written beside."""
    peers.randomize(model)
    for name, buffer in model.named_buffers():
        if name == "final_logits_bias":
            buffer.normal_()
    model.eval().save_pretrained(folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    # The fast experts want sizes that are multiples of 16 bytes.
    how = {"experts_implementation": "eager"} if "Mixtral" in type(model).__name__ else {}
    return type(model).from_pretrained(folder, **how).eval()


def letters(folder: Path, before: str | None = None, after: str | None = None) -> Tokenizer:
    """tokenizer.json over bytes; every text is framed by these tokens."""
    from tokenizers import processors

    tokenizer = train_tokenizer("bytes", [], special_tokens=["<mask>"])
    single = " ".join(part for part in (before, "$A", after) if part)
    named = [(name, tokenizer.id_of(name)) for name in (before, after) if name]
    if named:
        tokenizer.engine.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder / "tokenizer.json")
    return tokenizer


def words(folder: Path) -> None:
    """BERT's vocab.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    Tokenizer(from_wordpiece(folder / "vocab.txt")).save(folder / "tokenizer.json")


def gpt2(folder: Path, **more: Any) -> nn.Module:
    letters(folder)
    config = {"vocab_size": C, "n_positions": 97, "n_embd": D, "n_layer": L, "n_head": H, "n_inner": F}
    ends = {"bos_token_id": 2, "eos_token_id": 2}
    return save(transformers.GPT2LMHeadModel(transformers.GPT2Config(**(config | ends | more))), folder)


SIZES = {
    "vocab_size": C,
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "head_dim": 10,
    "rms_norm_eps": 1e-3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 97,
}


def decoder(folder: Path, name: str, **more: Any) -> nn.Module:
    letters(folder, before="<start>")
    kind = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, kind)(**(SIZES | more))
    return save(getattr(transformers, f"{name}ForCausalLM")(config), folder)


def llama3(folder: Path) -> nn.Module:
    rope = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 7.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
    return decoder(folder, "Llama", rope_parameters={**rope, "original_max_position_embeddings": 131})


def yarn(folder: Path, **more: Any) -> nn.Module:
    rope = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 3.0, "beta_fast": 5.0, "beta_slow": 0.5}
    return decoder(folder, "Llama", rope_parameters={**rope, "original_max_position_embeddings": 31, **more})


def neox(folder: Path, **more: Any) -> nn.Module:
    letters(folder)
    sizes = {key: SIZES[key] for key in SIZES if key not in ("num_key_value_heads", "head_dim", "rms_norm_eps")}
    config = transformers.GPTNeoXConfig(**(sizes | {"rotary_pct": 0.6, "layer_norm_eps": 1e-3} | more))
    return save(transformers.GPTNeoXForCausalLM(config), folder)


def opt(folder: Path, **more: Any) -> nn.Module:
    letters(folder, before="<start>")
    config = {"vocab_size": C, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": H, "ffn_dim": F}
    ends = {"max_position_embeddings": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return save(transformers.OPTForCausalLM(transformers.OPTConfig(**(config | ends | more))), folder)


GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 777.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 55.0},
}


def gemma(folder: Path, name: str, **more: Any) -> nn.Module:
    """Three layers: two with a window, one without; scores and logits large enough to meet their caps."""
    caps = {"final_logit_softcapping": 1.5, "attn_logit_softcapping": 0.7} if name == "Gemma2" else {}
    pattern = ["sliding_attention", "sliding_attention", "full_attention"]
    sizes = {"num_hidden_layers": 3, "layer_types": pattern, "sliding_window": 5, "query_pre_attn_scalar": 7}
    return decoder(folder, name, **(sizes | caps | {"pad_token_id": 0} | more))


BERT = {
    "vocab_size": len(WORDS),
    "hidden_size": D,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": 19,
}


def bert(folder: Path, kind: str = "Model", **more: Any) -> nn.Module:
    words(folder)
    return save(getattr(transformers, f"Bert{kind}")(transformers.BertConfig(**(BERT | more))), folder)


def roberta(folder: Path, kind: str = "Model", **more: Any) -> nn.Module:
    letters(folder, "<start>", "<stop>")
    config = transformers.RobertaConfig(**(BERT | {"vocab_size": C, "type_vocab_size": 1} | more))
    return save(getattr(transformers, f"Roberta{kind}")(config), folder)


IMAGE = {
    "hidden_size": D,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "intermediate_size": F,
    "image_size": 21,
    "patch_size": 7,
    "id2label": LABELS,
    "label2id": {name: number for number, name in LABELS.items()},
}


def vision(folder: Path, name: str = "ViT", kind: str = "ForImageClassification", **more: Any) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**(IMAGE | more))
    seen = {"image_mean": [0.3, 0.4, 0.5], "image_std": [0.2, 0.25, 0.5], "size": {"height": 21, "width": 21}}
    return save(getattr(transformers, f"{name}{kind}")(config), folder, preprocessor_config=seen)


CLIP_START, CLIP_END = "<|startoftext|>", "<|endoftext|>"


def clip_words(folder: Path) -> None:
    """CLIP's vocab.json and merges.txt: bytes, each also as the end of a word, a few merges, start and end."""
    from weft.data.tokenizers.vocabulary_files import byte_letters

    merges = ["c a", "ca t</w>", "d o", "do g</w>"]
    pieces = [*byte_letters(), *(f"{letter}</w>" for letter in byte_letters())]
    pieces += [merge.replace(" ", "") for merge in merges]
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {piece: number for number, piece in enumerate([*pieces, CLIP_START, CLIP_END])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")


CLIP_WORDS = 2 * 256 + 4 + 2  # bytes, merges, start and end


def clip(folder: Path, text: Any = None, vision: Any = None, **more: Any) -> nn.Module:
    """Two towers of different sizes; the end token is the last of the vocabulary."""
    clip_words(folder)
    sizes = {"hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "intermediate_size": 31}
    ends = {"bos_token_id": CLIP_WORDS - 2, "eos_token_id": CLIP_WORDS - 1, "pad_token_id": CLIP_WORDS - 1}
    words = {"vocab_size": CLIP_WORDS, "max_position_embeddings": 19, **sizes, **ends, **(text or {})}
    image = {key: value for key, value in IMAGE.items() if "label" not in key}
    config = transformers.CLIPConfig(
        text_config=words, vision_config={**image, **(vision or {})}, **({"projection_dim": 17} | more)
    )
    seen = {"size": 23, "crop_size": 21, "resample": 3, "image_mean": [0.3, 0.4, 0.5], "image_std": [0.2, 0.25, 0.5]}
    return save(transformers.CLIPModel(config), folder, preprocessor_config=seen)


def t5(folder: Path, gated: bool = False, untied: bool = False) -> nn.Module:
    letters(folder, after="<stop>")
    config = transformers.T5Config(
        vocab_size=C, d_model=23, d_kv=7, d_ff=F, num_layers=1, num_decoder_layers=2, num_heads=5,
        relative_attention_num_buckets=8, relative_attention_max_distance=19, n_positions=61, pad_token_id=0,
        eos_token_id=2, feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    if untied:
        import torch

        model.lm_head.weight = nn.Parameter(torch.empty(C, 23))
        model.config.tie_word_embeddings = False
    return save(model, folder)


def bart(folder: Path, name: str = "Bart", **more: Any) -> nn.Module:
    letters(folder, "<start>" if name == "Bart" else None, "<stop>")
    sizes = {
        f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in (("attention_heads", H), ("ffn_dim", F))
    }
    numbers = {"vocab_size": C, "d_model": D, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 53}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    if name == "Marian":
        ends |= {"decoder_start_token_id": 0, "forced_eos_token_id": 2, "scale_embedding": True}
    else:
        ends |= {"forced_bos_token_id": 1, "forced_eos_token_id": 2}
    config = getattr(transformers, f"{name}Config")(**(sizes | numbers | ends | more))
    kind = "MarianMTModel" if name == "Marian" else "BartForConditionalGeneration"
    return save(getattr(transformers, kind)(config), folder)


FOLDERS = {
    "gpt2": gpt2,
    "llama": lambda f: decoder(f, "Llama"),
    "llama, tied, with biases": lambda f: decoder(
        f, "Llama", tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "llama 3": llama3,
    "mistral": lambda f: decoder(f, "Mistral", sliding_window=5),
    "qwen2": lambda f: decoder(f, "Qwen2"),
    "qwen3": lambda f: decoder(f, "Qwen3"),
    "qwen3, mixed windows": lambda f: decoder(
        f, "Qwen3", use_sliding_window=True, sliding_window=5, layer_types=["full_attention", "sliding_attention"]
    ),
    "mixtral": lambda f: decoder(f, "Mixtral", num_local_experts=5, num_experts_per_tok=3),
    "llama, yarn": yarn,
    "llama, yarn with its own amplitude": lambda f: yarn(f, attention_factor=1.3, truncate=False),
    "neox": neox,
    "neox, one branch after the other, tied": lambda f: neox(
        f, use_parallel_residual=False, tie_word_embeddings=True, attention_bias=False
    ),
    "opt": opt,
    "opt, post-norm, no biases": lambda f: opt(f, do_layer_norm_before=False, enable_bias=False),
    "phi3": lambda f: decoder(f, "Phi3", pad_token_id=0),
    "phi3, window, partly turning": lambda f: decoder(
        f, "Phi3", pad_token_id=0, sliding_window=5, tie_word_embeddings=True, partial_rotary_factor=0.6
    ),
    "gemma2": lambda f: gemma(f, "Gemma2"),
    "gemma2, untied, with biases": lambda f: gemma(
        f, "Gemma2", tie_word_embeddings=False, attention_bias=True, attn_logit_softcapping=None
    ),
    "gemma3": lambda f: gemma(f, "Gemma3"),
    "gemma3, capped and scaled": lambda f: gemma(
        f, "Gemma3", final_logit_softcapping=1.5, query_pre_attn_scalar=10, rope_parameters=GEMMA_ROPE
    ),
    "bert": bert,
    "bert, classes": lambda f: bert(f, "ForSequenceClassification", id2label=LABELS, num_labels=3),
    "bert, tags": lambda f: bert(f, "ForTokenClassification", id2label=LABELS, num_labels=3),
    "bert, masked": lambda f: bert(f, "ForMaskedLM"),
    "bert, pretraining": lambda f: bert(f, "ForPreTraining", hidden_act="relu"),
    "bert, score": lambda f: bert(f, "ForSequenceClassification", num_labels=1, problem_type="regression"),
    "roberta": roberta,
    "roberta, score": lambda f: roberta(f, "ForSequenceClassification", num_labels=1),
    "roberta, masked": lambda f: roberta(f, "ForMaskedLM", hidden_act="relu"),
    "roberta, classes": lambda f: roberta(f, "ForSequenceClassification", id2label=LABELS),
    "roberta, tags": lambda f: roberta(f, "ForTokenClassification", id2label=LABELS),
    "vit": vision,
    "vit, bare": lambda f: vision(f, kind="Model"),
    "vit, no biases": lambda f: vision(f, qkv_bias=False),
    "deit, bare": lambda f: vision(f, "DeiT", "Model"),
    "deit": lambda f: vision(f, "DeiT"),
    "deit, teacher": lambda f: vision(f, "DeiT", "ForImageClassificationWithTeacher"),
    "t5": t5,
    "t5, gated": lambda f: t5(f, gated=True),
    "t5, gated and untied": lambda f: t5(f, gated=True, untied=True),
    "bart": bart,
    "marian": lambda f: bart(f, "Marian"),
}
