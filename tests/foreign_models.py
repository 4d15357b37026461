"""Tiny models of other libraries, built from their configs with random weights: nothing is downloaded.

A class is a row: its name, the shape words of its family, and what it needs besides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

VOCABULARY = 61
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, **SPECIAL,
}  # fmt: skip
GEMMA = {**LLAMA, "head_dim": 6}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, **SPECIAL}
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 64, **SPECIAL,
}  # fmt: skip
BART = {
    "vocab_size": VOCABULARY, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 64,
    "decoder_start_token_id": 2, **SPECIAL,
}  # fmt: skip
T5 = {
    "vocab_size": VOCABULARY, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
VIT = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 16,
    "patch_size": 8, "num_channels": 3,
}  # fmt: skip

Row = tuple[dict[str, Any], dict[str, Any]]

DECODERS: dict[str, Row] = {
    "GPT2LMHeadModel": (GPT2, {}),
    "GPT2Model": (GPT2, {}),
    "GPTNeoForCausalLM": (
        {**LLAMA},
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "GPTNeoXForCausalLM": (BERT, {}),
    "GPTNeoXJapaneseForCausalLM": (BERT, {}),
    "GPTJForCausalLM": (GPT2, {"rotary_dim": 4}),
    "CodeGenForCausalLM": (GPT2, {"rotary_dim": 4, "n_head": 4}),
    "GPTBigCodeForCausalLM": (GPT2, {}),
    "OpenAIGPTLMHeadModel": (GPT2, {}),
    "CTRLLMHeadModel": (GPT2, {"dff": 40}),
    "OPTForCausalLM": (LLAMA, {"ffn_dim": 40, "word_embed_proj_dim": 24}),
    "BloomForCausalLM": (GPT2, {"hidden_size": 24}),
    "XGLMForCausalLM": (BART, {"attention_heads": 4, "num_layers": 2, "ffn_dim": 40}),
    "BioGptForCausalLM": (BERT, {}),
    "MptForCausalLM": ({"vocab_size": VOCABULARY, "d_model": 24, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}, {}),
    "FalconForCausalLM": (BERT, {}),
    "FalconForCausalLM alibi": (BERT, {"alibi": True}),
    "FalconForCausalLM new": (BERT, {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "LlamaForCausalLM": (LLAMA, {}),
    "LlamaModel": (LLAMA, {}),
    "MistralForCausalLM": (LLAMA, {"sliding_window": 4}),
    "MinistralForCausalLM": (GEMMA, {"sliding_window": 4}),
    "MixtralForCausalLM": (LLAMA, {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None}),
    "Qwen2ForCausalLM": (LLAMA, {}),
    "Qwen3ForCausalLM": (GEMMA, {}),
    "Qwen2MoeForCausalLM": (
        LLAMA,
        {
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "Qwen3MoeForCausalLM": (GEMMA, {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "Qwen3NextForCausalLM": (
        GEMMA,
        {
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 6,
            "linear_value_head_dim": 6,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "GemmaForCausalLM": (GEMMA, {}),
    "Gemma2ForCausalLM": (GEMMA, {"sliding_window": 4, "query_pre_attn_scalar": 6}),
    "Gemma3ForCausalLM": (GEMMA, {"sliding_window": 4, "query_pre_attn_scalar": 6}),
    "VaultGemmaForCausalLM": (GEMMA, {"sliding_window": 4, "query_pre_attn_scalar": 6}),
    "PhiForCausalLM": (LLAMA, {"num_attention_heads": 3, "num_key_value_heads": 3}),
    "Phi3ForCausalLM": (LLAMA, {"sliding_window": 4}),
    "PhimoeForCausalLM": (LLAMA, {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "StableLmForCausalLM": (LLAMA, {"num_attention_heads": 3, "num_key_value_heads": 3}),
    "Starcoder2ForCausalLM": (LLAMA, {}),
    "OlmoForCausalLM": (LLAMA, {}),
    "Olmo2ForCausalLM": (LLAMA, {}),
    "Olmo3ForCausalLM": (LLAMA, {"sliding_window": 4}),
    "OlmoeForCausalLM": (LLAMA, {"num_experts": 3, "num_experts_per_tok": 2}),
    "FlexOlmoForCausalLM": (LLAMA, {"num_experts": 3, "num_experts_per_tok": 2}),
    "CohereForCausalLM": (LLAMA, {}),
    "Cohere2ForCausalLM": (GEMMA, {"sliding_window": 4}),
    "GraniteForCausalLM": (LLAMA, {}),
    "GraniteMoeForCausalLM": (LLAMA, {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "GraniteMoeSharedForCausalLM": (
        LLAMA,
        {"num_local_experts": 3, "num_experts_per_tok": 2, "shared_intermediate_size": 16},
    ),
    "GraniteMoeHybridForCausalLM": (
        LLAMA,
        {
            "num_local_experts": 3,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 16,
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 4,
            "mamba_d_head": 12,
            "mamba_d_state": 8,
            "mamba_chunk_size": 4,
        },
    ),
    "NemotronForCausalLM": (LLAMA, {}),
    "SmolLM3ForCausalLM": (LLAMA, {}),
    "PersimmonForCausalLM": (BERT, {"num_attention_heads": 3}),
    "DeepseekV2ForCausalLM": (
        LLAMA,
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "kv_lora_rank": 8,
            "q_lora_rank": 12,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 6,
            "v_head_dim": 6,
            "first_k_dense_replace": 1,
        },
    ),
    "DeepseekV3ForCausalLM": (
        LLAMA,
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "kv_lora_rank": 8,
            "q_lora_rank": 12,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 6,
            "v_head_dim": 6,
            "first_k_dense_replace": 1,
        },
    ),
    "ApertusForCausalLM": (LLAMA, {}),
    "ArceeForCausalLM": (LLAMA, {}),
    "BitNetForCausalLM": (LLAMA, {}),
    "DiffLlamaForCausalLM": (LLAMA, {}),
    "DogeForCausalLM": (LLAMA, {}),
    "Dots1ForCausalLM": (
        LLAMA,
        {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 6},
    ),
    "Ernie4_5ForCausalLM": (GEMMA, {}),
    "Exaone4ForCausalLM": (LLAMA, {"sliding_window": 4}),
    "GlmForCausalLM": (GEMMA, {}),
    "Glm4ForCausalLM": (GEMMA, {}),
    "Glm4MoeForCausalLM": (GEMMA, {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "GptOssForCausalLM": (GEMMA, {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 4}),
    "HeliumForCausalLM": (GEMMA, {}),
    "HunYuanDenseV1ForCausalLM": (GEMMA, {}),
    "JambaForCausalLM": (
        LLAMA,
        {
            "num_experts": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "JetMoeForCausalLM": (LLAMA, {"num_local_experts": 3, "num_experts_per_tok": 2, "kv_channels": 6}),
    "Lfm2ForCausalLM": (LLAMA, {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8}),
    "Llama4ForCausalLM": (GEMMA, {"num_local_experts": 3, "intermediate_size_mlp": 40, "attention_chunk_size": 5}),
    "MambaForCausalLM": (LLAMA, {"state_size": 4}),
    "Mamba2ForCausalLM": (LLAMA, {"num_heads": 4, "head_dim": 12, "state_size": 8, "n_groups": 1, "chunk_size": 4}),
    "FalconMambaForCausalLM": (LLAMA, {"state_size": 4}),
    "MiniMaxForCausalLM": (GEMMA, {"num_local_experts": 3, "num_experts_per_tok": 2, "block_size": 4}),
    "ModernBertDecoderForCausalLM": (BERT, {"local_attention": 8}),
    "NanoChatForCausalLM": (LLAMA, {}),
    "RecurrentGemmaForCausalLM": (GEMMA, {"attention_window_size": 5, "num_hidden_layers": 3, "lru_width": 24}),
    "RwkvForCausalLM": (BERT, {"attention_hidden_size": 24, "context_length": 64}),
    "SeedOssForCausalLM": (GEMMA, {}),
    "xLSTMForCausalLM": ({"vocab_size": VOCABULARY, "hidden_size": 32, **SPECIAL}, {"num_heads": 2, "num_blocks": 2, "chunk_size": 4}),
        "BambaForCausalLM": (
        LLAMA,
        {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 12, "mamba_d_state": 8, "mamba_chunk_size": 4},
    ),
    "BertLMHeadModel": (BERT, {"is_decoder": True}),
    "BertGenerationDecoder": (BERT, {"is_decoder": True}),
    "RobertaForCausalLM": (BERT, {"is_decoder": True}),
    "ElectraForCausalLM": (BERT, {"is_decoder": True, "embedding_size": 24}),
    "RoFormerForCausalLM": (BERT, {"is_decoder": True}),
    "BartForCausalLM": (BART, {"is_decoder": True}),
    "MarianForCausalLM": (BART, {"is_decoder": True}),
    "PegasusForCausalLM": (BART, {"is_decoder": True}),
    "TrOCRForCausalLM": (BART, {"is_decoder": True}),
    "ProphetNetForCausalLM": ({"vocab_size": VOCABULARY, "hidden_size": 24, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 64, "ngram": 2, **SPECIAL}, {"is_decoder": True}),
    "XLNetLMHeadModel": ({"vocab_size": VOCABULARY, "d_model": 24, "n_layer": 2, "n_head": 4, "d_inner": 40, **SPECIAL}, {}),
    "XLMWithLMHeadModel": (BERT, {"emb_dim": 24, "n_layers": 2, "n_heads": 4}),
    "XLMWithLMHeadModel causal": (BERT, {"emb_dim": 24, "n_layers": 2, "n_heads": 4, "causal": True}),
}

ENCODERS: dict[str, Row] = {
    "BertModel": (BERT, {}),
    "BertForMaskedLM": (BERT, {}),
    "BertForTokenClassification": (BERT, {}),
    "RobertaModel": (BERT, {}),
    "RobertaForMaskedLM": (BERT, {}),
    "RobertaPreLayerNormForMaskedLM": (BERT, {}),
    "DistilBertModel": (
        {
            "vocab_size": VOCABULARY,
            "dim": 24,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 40,
            "max_position_embeddings": 64,
            **SPECIAL,
        },
        {},
    ),
    "DistilBertForMaskedLM": (
        {
            "vocab_size": VOCABULARY,
            "dim": 24,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 40,
            "max_position_embeddings": 64,
            **SPECIAL,
        },
        {},
    ),
    "ElectraModel": (BERT, {"embedding_size": 24}),
    "ElectraForMaskedLM": (BERT, {"embedding_size": 16}),
    "AlbertModel": (BERT, {"embedding_size": 16}),
    "AlbertForMaskedLM": (BERT, {"embedding_size": 16}),
    "DebertaModel": (BERT, {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "DebertaForMaskedLM": (BERT, {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "DebertaV2Model": (
        BERT,
        {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    ),
    "DebertaV2ForMaskedLM": (BERT, {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "MPNetModel": (BERT, {"pad_token_id": 1}),
    "MPNetForMaskedLM": (BERT, {"pad_token_id": 1}),
    "ModernBertModel": (BERT, {"local_attention": 8}),
    "ModernBertForMaskedLM": (BERT, {"local_attention": 8}),
    "XLMRobertaModel": (BERT, {}),
    "XLMRobertaForMaskedLM": (BERT, {}),
    "XLMRobertaXLForMaskedLM": (BERT, {}),
    "CamembertForMaskedLM": (BERT, {}),
    "MegatronBertForMaskedLM": (BERT, {}),
    "MobileBertForMaskedLM": (BERT, {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}),
    "RemBertForMaskedLM": (BERT, {"input_embedding_size": 16, "output_embedding_size": 16}),
    "RoFormerModel": (BERT, {}),
    "RoFormerForMaskedLM": (BERT, {}),
    "SqueezeBertForMaskedLM": (
        BERT,
        {
            "embedding_size": 24,
            "q_groups": 1,
            "k_groups": 1,
            "v_groups": 1,
            "post_attention_groups": 1,
            "intermediate_groups": 1,
            "output_groups": 1,
        },
    ),
    "ConvBertForMaskedLM": (BERT, {"embedding_size": 24}),
    "Data2VecTextForMaskedLM": (BERT, {}),
    "ErnieForMaskedLM": (BERT, {}),
    "EsmForMaskedLM": (BERT, {"mask_token_id": 3, "position_embedding_type": "rotary"}),
    "EuroBertForMaskedLM": (LLAMA, {}),
    "FNetForMaskedLM": (BERT, {}),
    "FunnelModel": ({"vocab_size": VOCABULARY, "d_model": 24, "n_head": 4, "d_head": 6, "d_inner": 40, "block_sizes": [1, 1], **SPECIAL}, {}),
    "IBertForMaskedLM": (BERT, {}),
    "LongformerForMaskedLM": (BERT, {"attention_window": 4}),
    "NystromformerForMaskedLM": (BERT, {"num_landmarks": 64, "segment_means_seq_len": 64}),
    "XmodForMaskedLM": (BERT, {"default_language": "en_XX"}),
    "XLNetModel": ({"vocab_size": VOCABULARY, "d_model": 24, "n_layer": 2, "n_head": 4, "d_inner": 40, **SPECIAL}, {}),
    "CanineModel": (BERT, {}),
    "CLIPTextModel": (BERT, {}),
    "SiglipTextModel": (BERT, {}),
    "LayoutLMForMaskedLM": (BERT, {}),
    "BigBirdForMaskedLM": (BERT, {"attention_type": "original_full"}),
    "T5EncoderModel": (T5, {}),
    "UMT5EncoderModel": (T5, {}),
    "NomicBertForMaskedLM": (BERT, {}),
}

SEQ2SEQ: dict[str, Row] = {
    "T5ForConditionalGeneration": (T5, {}),
    "T5Model": (T5, {}),
    "MT5ForConditionalGeneration": (T5, {}),
    "UMT5ForConditionalGeneration": (T5, {}),
    "LongT5ForConditionalGeneration": (T5, {"local_radius": 4}),
    "SwitchTransformersForConditionalGeneration": (T5, {"num_experts": 3, "num_decoder_layers": 2, "expert_capacity": 3}),
    "BartForConditionalGeneration": (BART, {}),
    "BartModel": (BART, {}),
    "MBartForConditionalGeneration": (BART, {}),
    "MarianMTModel": (BART, {}),
    "PegasusForConditionalGeneration": (BART, {}),
    "PegasusXForConditionalGeneration": (BART, {"num_global_tokens": 2, "block_size": 4}),
    "BlenderbotForConditionalGeneration": (BART, {}),
    "BlenderbotSmallForConditionalGeneration": (BART, {}),
    "PLBartForConditionalGeneration": (BART, {}),
    "MvpForConditionalGeneration": (BART, {}),
    "M2M100ForConditionalGeneration": (BART, {}),
    "NllbMoeForConditionalGeneration": (BART, {"num_experts": 3}),
    "LEDForConditionalGeneration": (
        BART,
        {"attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
    ),
    "FSMTForConditionalGeneration": (
        BART,
        {"langs": ["en", "de"], "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY},
    ),
    "ProphetNetForConditionalGeneration": ({"vocab_size": VOCABULARY, "hidden_size": 24, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 64, "ngram": 2, **SPECIAL}, {"decoder_start_token_id": 1}),
        BART,
        {
            "hidden_size": 24,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
        },
    ),
    "BigBirdPegasusForConditionalGeneration": (BART, {"attention_type": "original_full"}),
}

IMAGES: dict[str, Row] = {
    "ViTModel": (VIT, {}),
    "ViTForImageClassification": (VIT, {}),
    "DeiTModel": (VIT, {}),
    "DeiTForImageClassification": (VIT, {}),
    "BeitModel": (VIT, {}),
    "BeitForImageClassification": (VIT, {}),
    "Data2VecVisionModel": (VIT, {}),
    "Dinov2Model": (VIT, {}),
    "Dinov2ForImageClassification": (VIT, {}),
    "Dinov2WithRegistersModel": (VIT, {}),
    "DINOv3ViTModel": (VIT, {}),
    "CLIPVisionModel": (VIT, {}),
    "SiglipVisionModel": (VIT, {}),
    "SwinModel": (
        {"image_size": 16, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2},
        {},
    ),
    "Swinv2Model": (
        {"image_size": 16, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2},
        {},
    ),
    "ViTMSNModel": (VIT, {}),
    "IJepaModel": (VIT, {}),
    "YolosModel": (VIT, {"image_size": [16, 16]}),
    "HieraModel": (VIT, {}),
    "ConvNextModel": ({"image_size": 32, "hidden_sizes": [4, 8], "depths": [1, 1], "num_stages": 2}, {}),
    "ResNetModel": ({"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic"}, {}),
}

HUGGINGFACE: dict[str, Row] = {**DECODERS, **ENCODERS, **SEQ2SEQ, **IMAGES}


def huggingface(name: str, **extra: Any) -> nn.Module:
    """A tiny model of one class."""
    import transformers

    shape, own = HUGGINGFACE[name]
    kind = getattr(transformers, name.split()[0])
    torch.manual_seed(0)
    return kind(kind.config_class(**{**shape, **own, **extra})).eval()
