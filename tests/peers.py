"""Weights of other libraries' modules brought into Weft's by explicit name maps, one function a family.

A map gives {our name: their tensor}; `load` is strict both ways: each of our weights is in the map, and none of theirs
is left out.
"""

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


@torch.no_grad()
def randomize(module: nn.Module, seed: int = 0) -> None:
    """Every weight random: a norm at one or a bias at zero would hide that the map forgot it."""
    random = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        drawn = torch.randn(weight.shape, generator=random)
        if weight.dim() > 1:
            drawn *= 0.7 * weight.shape[-1] ** -0.5  # small enough for float32 to keep 1e-5 through all layers
        else:
            drawn = 0.3 * drawn + (1.0 if name.endswith("weight") else 0.0)
        weight.copy_(drawn)


def load(ours: nn.Module, weights: Weights, theirs: nn.Module) -> None:
    """Fill ours from the map."""
    ours.load_state_dict(weights)
    size, known = (sum(weight.numel() for weight in module.parameters()) for module in (ours, theirs))
    assert size == known, f"the map fills {size} numbers, but the peer has {known}"


def linear(name: str, weights: Weights, *sources: str, turned: bool = False) -> Weights:
    """One linear map from one or several of theirs, rows put under each other; `turned`: theirs are [in, out]."""
    rows = torch.cat([weights[f"{source}.weight"].T if turned else weights[f"{source}.weight"] for source in sources])
    biases = [weights[f"{source}.bias"] for source in sources if f"{source}.bias" in weights]
    return {f"{name}.weight": rows} | ({f"{name}.bias": torch.cat(biases)} if biases else {})


def norm(name: str, weights: Weights, source: str) -> Weights:
    """gamma and, where there is one, beta."""
    beta = weights.get(f"{source}.bias")
    return {f"{name}.gamma": weights[f"{source}.weight"]} | ({} if beta is None else {f"{name}.beta": beta})


def prefixed(prefix: str, weights: Weights) -> Weights:
    return {f"{prefix}.{name}": weight for name, weight in weights.items()}


def self_attention(theirs: nn.MultiheadAttention) -> Weights:
    """nn.MultiheadAttention of one width -> SelfAttention."""
    weights = theirs.state_dict()
    biases = {"qkv.bias": weights["in_proj_bias"]} if "in_proj_bias" in weights else {}
    return {"qkv.weight": weights["in_proj_weight"]} | biases | linear("output", weights, "out_proj")


def cross_attention(theirs: nn.MultiheadAttention) -> Weights:
    """nn.MultiheadAttention -> CrossAttention; with kdim != vdim for a memory that is [keys; values] side by side."""
    weights = theirs.state_dict()
    if "in_proj_weight" in weights:
        query, key, value = weights["in_proj_weight"].chunk(3)
        key_value = torch.cat((key, value))
    else:
        query, key, value = (weights[f"{name}_proj_weight"] for name in "qkv")
        key_value = torch.cat((key, value)) if theirs.kdim == theirs.vdim else torch.block_diag(key, value)
    found = {"query.weight": query, "key_value.weight": key_value} | linear("output", weights, "out_proj")
    if "in_proj_bias" in weights:
        width = theirs.embed_dim
        found |= {"query.bias": weights["in_proj_bias"][:width], "key_value.bias": weights["in_proj_bias"][width:]}
    return found


def torch_block(theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> Weights:
    """nn.TransformerEncoderLayer or nn.TransformerDecoderLayer -> PreNorm or PostNorm."""
    weights = theirs.state_dict()
    found = prefixed("mixer", self_attention(theirs.self_attn)) | norm("mixer_norm", weights, "norm1")
    last = "norm2"
    if isinstance(theirs, nn.TransformerDecoderLayer):
        found |= prefixed("cross", cross_attention(theirs.multihead_attn)) | norm("cross_norm", weights, "norm2")
        last = "norm3"
    found |= linear("feedforward.up", weights, "linear1") | linear("feedforward.down", weights, "linear2")
    return found | norm("feedforward_norm", weights, last)


def gpt2(theirs: nn.Module) -> Weights:
    """GPT2LMHeadModel -> decoder; its Conv1D holds [in, out]."""
    weights = theirs.state_dict()
    found = {
        "embedding.weight": weights["transformer.wte.weight"],
        "input.position.table": weights["transformer.wpe.weight"],
        **norm("stack.norm", weights, "transformer.ln_f"),
    }
    for layer in range(theirs.config.n_layer):
        block, source = f"stack.blocks.{layer}", f"transformer.h.{layer}"
        found |= linear(f"{block}.mixer.qkv", weights, f"{source}.attn.c_attn", turned=True)
        found |= linear(f"{block}.mixer.output", weights, f"{source}.attn.c_proj", turned=True)
        found |= linear(f"{block}.feedforward.up", weights, f"{source}.mlp.c_fc", turned=True)
        found |= linear(f"{block}.feedforward.down", weights, f"{source}.mlp.c_proj", turned=True)
        found |= norm(f"{block}.mixer_norm", weights, f"{source}.ln_1")
        found |= norm(f"{block}.feedforward_norm", weights, f"{source}.ln_2")
    return found


def llama(theirs: nn.Module) -> Weights:
    """LlamaForCausalLM and its kin (Mistral; Qwen3 with norms on queries and keys; Mixtral with experts) -> decoder."""
    weights = theirs.state_dict()
    found = {"embedding.weight": weights["model.embed_tokens.weight"], **norm("stack.norm", weights, "model.norm")}
    if not theirs.config.tie_word_embeddings:
        found |= linear("head.linear", weights, "lm_head")
    for layer in range(theirs.config.num_hidden_layers):
        block, source = f"stack.blocks.{layer}", f"model.layers.{layer}"
        attention, mlp = f"{source}.self_attn", f"{source}.mlp"
        found |= linear(f"{block}.mixer.qkv", weights, *(f"{attention}.{name}_proj" for name in "qkv"))
        found |= linear(f"{block}.mixer.output", weights, f"{attention}.o_proj")
        found |= norm(f"{block}.mixer_norm", weights, f"{source}.input_layernorm")
        found |= norm(f"{block}.feedforward_norm", weights, f"{source}.post_attention_layernorm")
        if f"{attention}.q_norm.weight" in weights:
            found |= norm(f"{block}.mixer.query_norm", weights, f"{attention}.q_norm")
            found |= norm(f"{block}.mixer.key_norm", weights, f"{attention}.k_norm")
        if f"{mlp}.gate.weight" in weights:
            found[f"{block}.feedforward.router"] = weights[f"{mlp}.gate.weight"]
            found[f"{block}.feedforward.up"] = weights[f"{mlp}.experts.gate_up_proj"]
            found[f"{block}.feedforward.down"] = weights[f"{mlp}.experts.down_proj"]
        else:
            found |= linear(f"{block}.feedforward.gate_up", weights, f"{mlp}.gate_proj", f"{mlp}.up_proj")
            found |= linear(f"{block}.feedforward.down", weights, f"{mlp}.down_proj")
    return found


def bert(theirs: nn.Module) -> Weights:
    """BertModel -> encoder, its pooler -> the head's hidden layer."""
    weights = theirs.state_dict()
    found = {
        "embedding.weight": weights["embeddings.word_embeddings.weight"],
        "input.position.table": weights["embeddings.position_embeddings.weight"],
        "input.segments.table": weights["embeddings.token_type_embeddings.weight"],
        **norm("input.norm", weights, "embeddings.LayerNorm"),
        **linear("head.hidden", weights, "pooler.dense"),
    }
    for layer in range(theirs.config.num_hidden_layers):
        block, source = f"stack.blocks.{layer}", f"encoder.layer.{layer}"
        names = (f"{source}.attention.self.{name}" for name in ("query", "key", "value"))
        found |= linear(f"{block}.mixer.qkv", weights, *names)
        found |= linear(f"{block}.mixer.output", weights, f"{source}.attention.output.dense")
        found |= linear(f"{block}.feedforward.up", weights, f"{source}.intermediate.dense")
        found |= linear(f"{block}.feedforward.down", weights, f"{source}.output.dense")
        found |= norm(f"{block}.mixer_norm", weights, f"{source}.attention.output.LayerNorm")
        found |= norm(f"{block}.feedforward_norm", weights, f"{source}.output.LayerNorm")
    return found


def vit(theirs: nn.Module) -> Weights:
    """ViTForImageClassification -> vision; the convolution's kernels flattened are the rows of our map."""
    weights = theirs.state_dict()
    patches = "vit.embeddings.patch_embeddings.projection"
    found = {
        "patches.linear.weight": weights[f"{patches}.weight"].flatten(1),
        "patches.linear.bias": weights[f"{patches}.bias"],
        "class_token.vector": weights["vit.embeddings.cls_token"][0, 0],
        "grid.table": weights["vit.embeddings.position_embeddings"][0],
        **norm("stack.norm", weights, "vit.layernorm"),
        **linear("head.linear", weights, "classifier"),
    }
    for layer in range(theirs.config.num_hidden_layers):
        block, source = f"stack.blocks.{layer}", f"vit.layers.{layer}"
        found |= linear(f"{block}.mixer.qkv", weights, *(f"{source}.attention.{name}_proj" for name in "qkv"))
        found |= linear(f"{block}.mixer.output", weights, f"{source}.attention.o_proj")
        found |= linear(f"{block}.feedforward.up", weights, f"{source}.mlp.fc1")
        found |= linear(f"{block}.feedforward.down", weights, f"{source}.mlp.fc2")
        found |= norm(f"{block}.mixer_norm", weights, f"{source}.layernorm_before")
        found |= norm(f"{block}.feedforward_norm", weights, f"{source}.layernorm_after")
    return found


def t5(theirs: nn.Module) -> Weights:
    """T5ForConditionalGeneration -> encoder-decoder, classic or gated; an untied head is a linear one."""
    weights, config = theirs.state_dict(), theirs.config
    found = {"embedding.weight": weights["shared.weight"]}
    if theirs.lm_head.weight is not theirs.shared.weight:
        found |= linear("head.linear", weights, "lm_head")
    for side, layers in (("encoder", config.num_layers), ("decoder", config.num_decoder_layers)):
        table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found |= {f"{side}.position.table": weights[table], **norm(f"{side}.norm", weights, f"{side}.final_layer_norm")}
        for layer in range(layers):
            block, source = f"{side}.blocks.{layer}", f"{side}.block.{layer}.layer"
            attention, cross, last = f"{source}.0.SelfAttention", f"{source}.1.EncDecAttention", f"{source}.1"
            found |= linear(f"{block}.mixer.qkv", weights, *(f"{attention}.{name}" for name in "qkv"))
            found |= linear(f"{block}.mixer.output", weights, f"{attention}.o")
            found |= norm(f"{block}.mixer_norm", weights, f"{source}.0.layer_norm")
            if side == "decoder":
                last = f"{source}.2"
                found |= linear(f"{block}.cross.query", weights, f"{cross}.q")
                found |= linear(f"{block}.cross.key_value", weights, f"{cross}.k", f"{cross}.v")
                found |= linear(f"{block}.cross.output", weights, f"{cross}.o")
                found |= norm(f"{block}.cross_norm", weights, f"{source}.1.layer_norm")
            mlp = f"{last}.DenseReluDense"
            if config.is_gated_act:
                found |= linear(f"{block}.feedforward.gate_up", weights, f"{mlp}.wi_0", f"{mlp}.wi_1")
            else:
                found |= linear(f"{block}.feedforward.up", weights, f"{mlp}.wi")
            found |= linear(f"{block}.feedforward.down", weights, f"{mlp}.wo")
            found |= norm(f"{block}.feedforward_norm", weights, f"{last}.layer_norm")
    return found
