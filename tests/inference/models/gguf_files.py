"""Small models in GGUF, written by the package of llama.cpp's authors."""

from __future__ import annotations

import json
from pathlib import Path

from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map

from uirl.inference import LoadedModel


def write_gguf(loaded: LoadedModel, file: Path, *, pre: str = "qwen2") -> Path:
    """Write a Qwen2 with its tokenizer to `file`, in float32; `pre`: how the file says that texts are cut."""
    config, tokenizer = loaded.config, loaded.tokenizer
    writer = GGUFWriter(file, "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if id in tokenizer.all_special_ids else 1 for id in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    names = get_tensor_name_map(MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, value in loaded.model.state_dict().items():
        if name != "lm_head.weight":  # tied
            writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
