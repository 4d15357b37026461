"""Tiny models of other libraries, built from their configs with random weights: nothing is downloaded.

A row is a class (a second word tells variants apart) with the shape words of its family and what it needs besides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# fmt: off
SPECIAL = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {**SPECIAL, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
        "max_position_embeddings": 64}
LLAMA = {**BERT, "num_key_value_heads": 2}
GEMMA = {**LLAMA, "head_dim": 6}
CROSSED = {**BERT, "is_decoder": True, "add_cross_attention": True}
THREE = {"num_attention_heads": 3, "num_key_value_heads": 3}  # heads of 8, so that a quarter of one can be turned
WINDOW = {**GEMMA, "sliding_window": 4}
GPT2 = {**SPECIAL, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}
BART = {**SPECIAL, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 64,
        "decoder_start_token_id": 2}
BART_DECODER = {**BART, "is_decoder": True}
PROPHET = {**SPECIAL, "hidden_size": 24, "num_encoder_layers": 2, "num_decoder_layers": 2, "encoder_ffn_dim": 40,
           "decoder_ffn_dim": 40, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4,
           "max_position_embeddings": 64, "decoder_start_token_id": 1}
T5 = {**SPECIAL, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
XLM = {**SPECIAL, "emb_dim": 24, "n_layers": 2, "n_heads": 4}
XLNET = {**SPECIAL, "d_model": 24, "n_layer": 2, "n_head": 4, "d_inner": 40}
DISTIL = {**SPECIAL, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64}
VIT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 16,
       "patch_size": 8, "num_channels": 3}
SWIN = {"image_size": 16, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2}
MOE = {"num_experts": 3, "num_local_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
       "shared_expert_intermediate_size": 16, "shared_intermediate_size": 16}
DEEPSEEK = {**LLAMA, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
            "topk_group": 1, "moe_intermediate_size": 16, "kv_lora_rank": 8, "q_lora_rank": 12, "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 6, "v_head_dim": 6, "first_k_dense_replace": 1, "n_shared_experts": 1}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 12, "mamba_d_state": 8, "mamba_chunk_size": 4}

Row = tuple[dict[str, Any], dict[str, Any]]

DECODERS: dict[str, Row] = {
    "GPT2LMHeadModel": (GPT2, {}),
    "GPT2Model": (GPT2, {}),
    "GPTNeoForCausalLM": (BERT, {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
                                 "window_size": 4}),
    "GPTNeoXForCausalLM": (BERT, {}),
    "GPTNeoXJapaneseForCausalLM": (BERT, {}),
    "GPTJForCausalLM": (GPT2, {"rotary_dim": 4}),
    "CodeGenForCausalLM": (GPT2, {"rotary_dim": 4}),
    "GPTBigCodeForCausalLM": (GPT2, {}),
    "OpenAIGPTLMHeadModel": (GPT2, {}),
    "CTRLLMHeadModel": (GPT2, {"dff": 40}),
    "OPTForCausalLM": (BERT, {"ffn_dim": 40, "word_embed_proj_dim": 24}),
    "BloomForCausalLM": (GPT2, {"hidden_size": 24}),
    "XGLMForCausalLM": (BART, {"attention_heads": 4, "num_layers": 2, "ffn_dim": 40}),
    "BioGptForCausalLM": (BERT, {}),
    "MptForCausalLM": ({**SPECIAL, "d_model": 24, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}, {}),
    "FalconForCausalLM": (BERT, {}),
    "FalconForCausalLM alibi": (BERT, {"alibi": True}),
    "FalconForCausalLM grouped": (BERT, {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "LlamaForCausalLM": (LLAMA, {}),
    "LlamaModel": (LLAMA, {}),
    "MistralForCausalLM": (LLAMA, {"sliding_window": 4}),
    "MinistralForCausalLM": (WINDOW, {}),
    "MixtralForCausalLM": (LLAMA, MOE),
    "Qwen2ForCausalLM": (LLAMA, {}),
    "Qwen3ForCausalLM": (GEMMA, {}),
    "Qwen2MoeForCausalLM": (LLAMA, MOE),
    "Qwen3MoeForCausalLM": (GEMMA, MOE),
    "Qwen3NextForCausalLM": (GEMMA, {**MOE, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
                                     "linear_key_head_dim": 6, "linear_value_head_dim": 6,
                                     "layer_types": ["linear_attention", "full_attention"]}),
    "GemmaForCausalLM": (GEMMA, {}),
    "Gemma2ForCausalLM": (WINDOW, {"query_pre_attn_scalar": 6}),
    "Gemma3ForCausalLM": (WINDOW, {"query_pre_attn_scalar": 6}),
    "VaultGemmaForCausalLM": (WINDOW, {"query_pre_attn_scalar": 6}),
    "PhiForCausalLM": (LLAMA, THREE),
    "Phi3ForCausalLM": (LLAMA, {"sliding_window": 4}),
    "PhimoeForCausalLM": (LLAMA, MOE),
    "StableLmForCausalLM": (LLAMA, THREE),
    "Starcoder2ForCausalLM": (LLAMA, {}),
    "OlmoForCausalLM": (LLAMA, {}),
    "Olmo2ForCausalLM": (LLAMA, {}),
    "Olmo3ForCausalLM": (LLAMA, {"sliding_window": 4}),
    "OlmoeForCausalLM": (LLAMA, MOE),
    "FlexOlmoForCausalLM": (LLAMA, MOE),
    "CohereForCausalLM": (LLAMA, {}),
    "Cohere2ForCausalLM": (WINDOW, {}),
    "GraniteForCausalLM": (LLAMA, {}),
    "GraniteMoeForCausalLM": (LLAMA, MOE),
    "GraniteMoeSharedForCausalLM": (LLAMA, MOE),
    "GraniteMoeHybridForCausalLM": (LLAMA, {**MOE, **MAMBA, "layer_types": ["mamba", "attention"]}),
    "NemotronForCausalLM": (LLAMA, {}),
    "SmolLM3ForCausalLM": (LLAMA, {}),
    "PersimmonForCausalLM": (BERT, THREE),
    "DeepseekV2ForCausalLM": (DEEPSEEK, {}),
    "DeepseekV3ForCausalLM": (DEEPSEEK, {}),
    "ApertusForCausalLM": (LLAMA, {}),
    "ArceeForCausalLM": (LLAMA, {}),
    "BitNetForCausalLM": (LLAMA, {}),
    "DiffLlamaForCausalLM": (LLAMA, {}),
    "DogeForCausalLM": (LLAMA, {}),
    "Dots1ForCausalLM": (GEMMA, {**DEEPSEEK, "n_group": 1}),
    "Ernie4_5ForCausalLM": (GEMMA, {}),
    "Exaone4ForCausalLM": (LLAMA, {"sliding_window": 4}),
    "GlmForCausalLM": (GEMMA, {}),
    "Glm4ForCausalLM": (GEMMA, {}),
    "Glm4MoeForCausalLM": (GEMMA, {**DEEPSEEK, "n_group": 1}),
    "GptOssForCausalLM": (WINDOW, MOE),
    "HeliumForCausalLM": (GEMMA, {}),
    "HunYuanDenseV1ForCausalLM": (GEMMA, {}),
    "JambaForCausalLM": (LLAMA, {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4,
                                 "mamba_dt_rank": 4, "use_mamba_kernels": False}),
    "JetMoeForCausalLM": (LLAMA, {**MOE, "kv_channels": 6}),
    "Lfm2ForCausalLM": (LLAMA, {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8}),
    "Llama4ForCausalLM": (GEMMA, {"num_local_experts": 3, "intermediate_size_mlp": 40, "attention_chunk_size": 5}),
    "MambaForCausalLM": (BERT, {"state_size": 4}),
    "Mamba2ForCausalLM": (BERT, {"num_heads": 4, "head_dim": 12, "state_size": 8, "n_groups": 1, "chunk_size": 4}),
    "FalconMambaForCausalLM": (BERT, {"state_size": 4}),
    "MiniMaxForCausalLM": (GEMMA, {**MOE, "block_size": 4}),
    "ModernBertDecoderForCausalLM": (BERT, {"local_attention": 8}),
    "NanoChatForCausalLM": (LLAMA, {}),
    "RecurrentGemmaForCausalLM": (GEMMA, {"attention_window_size": 5, "num_hidden_layers": 3, "lru_width": 24}),
    "RwkvForCausalLM": (BERT, {"attention_hidden_size": 24, "context_length": 64}),
    "SeedOssForCausalLM": (GEMMA, {}),
    "xLSTMForCausalLM": (SPECIAL, {"hidden_size": 32, "num_heads": 2, "num_blocks": 2, "chunk_size": 4}),
    "BambaForCausalLM": (LLAMA, {**MAMBA, "attn_layer_indices": [1]}),
    "BertLMHeadModel": (BERT, {"is_decoder": True}),
    "BertLMHeadModel undeclared": (BERT, {}),
    "BertGenerationDecoder": (BERT, {"is_decoder": True}),
    "RobertaForCausalLM": (BERT, {"is_decoder": True}),
    "ElectraForCausalLM": (BERT, {"is_decoder": True, "embedding_size": 24}),
    "RoFormerForCausalLM": (BERT, {"is_decoder": True}),
    "BartForCausalLM": (BART_DECODER, {}),
    "MarianForCausalLM": (BART_DECODER, {}),
    "PegasusForCausalLM": (BART_DECODER, {}),
    "TrOCRForCausalLM": (BART_DECODER, {}),
    "ProphetNetForCausalLM": (PROPHET, {"is_decoder": True}),
    "XLMWithLMHeadModel causal": (XLM, {"causal": True}),
}

ENCODERS: dict[str, Row] = {
    "BertModel": (BERT, {}),
    "BertForMaskedLM": (BERT, {}),
    "BertForTokenClassification": (BERT, {}),
    "RobertaModel": (BERT, {}),
    "RobertaForMaskedLM": (BERT, {}),
    "RobertaPreLayerNormForMaskedLM": (BERT, {}),
    "DistilBertModel": (DISTIL, {}),
    "DistilBertForMaskedLM": (DISTIL, {}),
    "ElectraModel": (BERT, {"embedding_size": 24}),
    "ElectraForMaskedLM": (BERT, {"embedding_size": 16}),
    "AlbertModel": (BERT, {"embedding_size": 16}),
    "AlbertForMaskedLM": (BERT, {"embedding_size": 16}),
    "DebertaModel": (BERT, {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "DebertaForMaskedLM": (BERT, {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "DebertaV2Model": (BERT, {"relative_attention": True, "pos_att_type": ["c2p", "p2c"],
                              "position_biased_input": False}),
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
    "SqueezeBertForMaskedLM": (BERT, {"embedding_size": 24}),
    "ConvBertForMaskedLM": (BERT, {"embedding_size": 24}),
    "Data2VecTextForMaskedLM": (BERT, {}),
    "ErnieForMaskedLM": (BERT, {}),
    "EsmForMaskedLM": (BERT, {"mask_token_id": 3, "position_embedding_type": "rotary"}),
    "EuroBertForMaskedLM": (LLAMA, {}),
    "NomicBertForMaskedLM": (BERT, {}),
    "FNetForMaskedLM": (BERT, {}),
    "IBertForMaskedLM": (BERT, {}),
    "LongformerForMaskedLM": (BERT, {"attention_window": 4}),
    "NystromformerForMaskedLM": (BERT, {"num_landmarks": 64, "segment_means_seq_len": 64}),
    "XmodForMaskedLM": (BERT, {"default_language": "en_XX"}),
    "XLNetModel": (XLNET, {}),
    "XLNetLMHeadModel": (XLNET, {}),
    "XLMWithLMHeadModel": (XLM, {}),
    "CLIPTextModel": (BERT, {}),
    "SiglipTextModel": (BERT, {}),
    "LayoutLMForMaskedLM": (BERT, {}),
    "BigBirdForMaskedLM": (BERT, {"attention_type": "original_full"}),
    "T5EncoderModel": (T5, {}),
    "UMT5EncoderModel": (T5, {}),
}

SEQ2SEQ: dict[str, Row] = {
    "T5ForConditionalGeneration": (T5, {}),
    "T5Model": (T5, {}),
    "MT5ForConditionalGeneration": (T5, {}),
    "UMT5ForConditionalGeneration": (T5, {}),
    "LongT5ForConditionalGeneration": (T5, {"local_radius": 4}),
    "SwitchTransformersForConditionalGeneration": (T5, {"num_experts": 3, "num_decoder_layers": 2}),
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
    "LEDForConditionalGeneration": (BART, {"attention_window": 4, "max_encoder_position_embeddings": 64,
                                           "max_decoder_position_embeddings": 64}),
    "FSMTForConditionalGeneration": (BART, {"langs": ["en", "de"], "src_vocab_size": 61, "tgt_vocab_size": 61}),
    "ProphetNetForConditionalGeneration": (PROPHET, {}),
    "BigBirdPegasusForConditionalGeneration": (BART, {"attention_type": "original_full"}),
    "WhisperForConditionalGeneration": (BART, {"max_source_positions": 8, "max_target_positions": 64, "num_mel_bins": 5,
                                               "suppress_tokens": None, "begin_suppress_tokens": None}),
    "Speech2TextForConditionalGeneration": (BART, {"max_source_positions": 32, "max_target_positions": 64,
                                                   "input_feat_per_channel": 5, "conv_channels": 8}),
}

COMPOSED: dict[str, Row] = {
    "EncoderDecoderModel": ({}, {"encoder": ("BertConfig", BERT), "decoder": ("BertConfig", CROSSED)}),
    "VisionEncoderDecoderModel": ({}, {"encoder": ("ViTConfig", VIT), "decoder": ("BertConfig", CROSSED)}),
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
    "DINOv3ViTModel": (VIT, {"num_attention_heads": 3}),
    "CLIPVisionModel": (VIT, {}),
    "SiglipVisionModel": (VIT, {}),
    "SwinModel": (SWIN, {}),
    "Swinv2Model": (SWIN, {}),
    "ViTMSNModel": (VIT, {}),
    "IJepaModel": (VIT, {}),
    "YolosModel": (VIT, {"image_size": [16, 16]}),
    "ConvNextModel": ({"image_size": 32, "hidden_sizes": [4, 8], "depths": [1, 1], "num_stages": 2}, {}),
    "ResNetModel": ({"image_size": 32, "embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1],
                     "layer_type": "basic"}, {}),
}

IMAGE_TEXT: dict[str, Row] = {
    "LlavaForConditionalGeneration": ({"image_token_index": 60}, {"vision_config": ("CLIPVisionConfig", VIT),
                                                                  "text_config": ("LlamaConfig", LLAMA)}),
    "VipLlavaForConditionalGeneration": ({"image_token_index": 60, "vision_feature_layers": [-1, -2]},
                                         {"vision_config": ("CLIPVisionConfig", VIT),
                                          "text_config": ("LlamaConfig", LLAMA)}),
    "PaliGemmaForConditionalGeneration": ({"image_token_index": 60, "projection_dim": 24},
                                          {"vision_config": ("SiglipVisionConfig", {**VIT, "vision_use_head": False}),
                                           "text_config": ("GemmaConfig", GEMMA)}),
    "Gemma3ForConditionalGeneration": ({"image_token_index": 60, "boi_token_index": 58, "eoi_token_index": 59,
                                        "mm_tokens_per_image": 4},
                                       {"vision_config": ("SiglipVisionConfig", {**VIT, "vision_use_head": False}),
                                        "text_config": ("Gemma3TextConfig", {**GEMMA, "sliding_window": 32})}),
    "InternVLForConditionalGeneration": ({"image_token_id": 60, "downsample_ratio": 1.0},
                                         {"vision_config": ("InternVLVisionConfig", {**VIT, "image_size": [16, 16],
                                                                                     "patch_size": [8, 8]}),
                                          "text_config": ("Qwen2Config", LLAMA)}),
    "Mistral3ForConditionalGeneration": ({"image_token_index": 60}, {"vision_config": ("PixtralVisionConfig", VIT),
                                                                     "text_config": ("MistralConfig", LLAMA)}),
}
# fmt: on

HUGGINGFACE: dict[str, Row] = {**DECODERS, **ENCODERS, **SEQ2SEQ, **COMPOSED, **IMAGES, **IMAGE_TEXT}


def huggingface(name: str, **extra: Any) -> nn.Module:
    """A tiny model of one class."""
    import transformers

    transformers.logging.set_verbosity_error()
    shape, own = HUGGINGFACE[name]
    kind = getattr(transformers, name.split()[0])
    if name in IMAGE_TEXT or name in COMPOSED:
        own = {part: getattr(transformers, config)(**words) for part, (config, words) in own.items()}
    torch.manual_seed(0)
    if name in COMPOSED:
        return kind(kind.config_class.from_encoder_decoder_configs(own["encoder"], own["decoder"])).eval()
    return kind(kind.config_class(**{**shape, **own, **extra})).eval()


def x_transformers() -> dict[str, Callable[[], nn.Module]]:
    """Wrappers with the options that people use."""
    import x_transformers as x

    layers = {"dim": 24, "depth": 2, "heads": 3, "attn_dim_head": 8}

    def decoder(wrapper: dict[str, Any] | None = None, **options: Any) -> Callable[[], nn.Module]:
        return lambda: wrap(x.Decoder(**{**layers, **options}), **(wrapper or {}))

    def encoder(**options: Any) -> Callable[[], nn.Module]:
        return lambda: wrap(x.Encoder(**{**layers, **options}))

    def wrap(stack: nn.Module, **options: Any) -> nn.Module:
        return x.TransformerWrapper(num_tokens=61, max_seq_len=64, attn_layers=stack, **options)

    sides = {f"{side}_{key}": value for side in ("enc", "dec") for key, value in
             {"num_tokens": 61, "depth": 2, "heads": 3, "max_seq_len": 64}.items()}  # fmt: skip
    return {
        "decoder": decoder(),
        "rotary": decoder(rotary_pos_emb=True),
        "xpos": decoder(rotary_xpos=True),
        "alibi": decoder(alibi_pos_bias=True, alibi_num_heads=2),
        "relative bias": decoder(rel_pos_bias=True),
        "dynamic bias": decoder(dynamic_pos_bias=True),
        "flash": decoder(attn_flash=True),
        "flash with alibi": decoder(attn_flash=True, alibi_pos_bias=True),
        "normed queries and keys": decoder(attn_qk_norm=True),
        "grouped queries": decoder(heads=4, attn_kv_heads=2),
        "one key head": decoder(attn_one_kv_head=True),
        "talking heads": decoder(attn_pre_talking_heads=True),
        "root mean square, gated": decoder(use_rmsnorm=True, ff_glu=True, ff_swish=True),
        "memory keys": decoder(attn_num_mem_kv=2),
        "sandwich norm": decoder(sandwich_norm=True),
        "macaron": decoder(macaron=True),
        "sinusoids": decoder({"scaled_sinu_pos_emb": True}),
        "no positions": decoder({"use_abs_pos_emb": False}),
        "tied": decoder({"tie_embedding": True}),
        "memory tokens": decoder({"num_memory_tokens": 2}),
        "shifted tokens": decoder(shift_tokens=1),
        "encoder": encoder(),
        "encoder, rotary": encoder(rotary_pos_emb=True),
        "encoder, flash": encoder(attn_flash=True),
        "autoregressive wrapper": lambda: x.AutoregressiveWrapper(decoder(rotary_pos_emb=True)()),
        "encoder-decoder": lambda: x.XTransformer(dim=24, **sides),
        "vectors": lambda: x.ContinuousTransformerWrapper(
            dim_in=7, dim_out=5, max_seq_len=64, attn_layers=x.Decoder(**layers)
        ),
        "image": lambda: x.ViTransformerWrapper(
            image_size=16, patch_size=8, num_classes=5, attn_layers=x.Encoder(**layers)
        ),
        "layers alone": lambda: x.Decoder(**layers),
    }


X_TRANSFORMERS = (
    "decoder", "rotary", "xpos", "alibi", "relative bias", "dynamic bias", "flash", "flash with alibi",
    "normed queries and keys", "grouped queries", "one key head", "talking heads", "root mean square, gated",
    "memory keys", "sandwich norm", "macaron", "sinusoids", "no positions", "tied", "memory tokens", "shifted tokens",
    "encoder", "encoder, rotary", "encoder, flash", "autoregressive wrapper", "encoder-decoder", "vectors", "image",
    "layers alone",
)  # fmt: skip


def torch_module(kind: str, batch_first: bool, norm_first: bool) -> nn.Module:
    """torch.nn's own, tiny."""
    torch.manual_seed(0)
    options = {"d_model": 24, "nhead": 4, "dim_feedforward": 40, "batch_first": batch_first, "norm_first": norm_first}
    nested = batch_first and not norm_first
    made: dict[str, Callable[[], nn.Module]] = {
        "EncoderLayer": lambda: nn.TransformerEncoderLayer(**options),
        "Encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), 2, enable_nested_tensor=nested),
        "DecoderLayer": lambda: nn.TransformerDecoderLayer(**options),
        "Decoder": lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 2),
        "Transformer": lambda: nn.Transformer(num_encoder_layers=2, num_decoder_layers=2, **options),
        "MultiheadAttention": lambda: nn.MultiheadAttention(24, 4, batch_first=batch_first),
    }
    return made[kind]()


class SelfAttention(nn.Module):
    """As people write it after the lecture; the triangle is a buffer."""

    def __init__(self, width: int = 24, heads: int = 4, length: int = 32) -> None:
        super().__init__()
        self.qkv, self.output, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.register_buffer("tril", torch.ones(length, length).tril())

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        T = x.shape[1]
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        hidden = self.tril[:T, :T] == 0
        if real is not None:
            hidden = hidden | ~real[:, None, None].bool()
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        return self.output((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Two residual lines; `norm` makes the norms."""

    def __init__(self, width: int = 24, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = SelfAttention(width), norm(width), norm(width)
        self.feedforward = nn.Sequential(nn.Linear(width, 40), nn.GELU(), nn.Linear(40, width))

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), real)
        return x + self.feedforward(self.norm2(x))


class OwnModel(nn.Module):
    """A user's own decoder under a name that says nothing; `answer` shapes what it gives."""

    answer: Callable[[Tensor], Any] = staticmethod(lambda logits: logits)

    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.tokens, self.pos = nn.Embedding(61, 24), nn.Embedding(32, 24)
        self.blocks = nn.ModuleList(Block(norm=norm) for _ in range(2))
        self.head = nn.Linear(24, 61)

    def forward(self, tokens: Tensor) -> Any:
        return self.answer(self.logits(tokens, None))

    def logits(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        x = self.tokens(tokens) + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, real)
        return self.head(x)


class OverTime(nn.Module):
    """BatchNorm1d over the width, as it is often put in place of a LayerNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)
