"""Small random models of transformers, one of each design of a family."""

import hugging_face_tokenizers
import torch
import transformers

CAUSAL = {
    "vocab_size": 47,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "bos_token_id": 45,
    "eos_token_id": 46,
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
BART = {
    "vocab_size": 47,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 30,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": 47,
    "d_model": 24,
    "d_kv": 5,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
BERT = {
    "vocab_size": 47,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 30,
}
# A class of transformers, its settings, and the family that it is written as.
DESIGNS = {
    "gpt2": (
        "GPT2LMHeadModel",
        {
            **{"vocab_size": 47, "n_embd": 24, "n_layer": 2, "n_head": 4},
            **{"n_positions": 30, "bos_token_id": 46, "eos_token_id": 46},
        },
        "gpt2",
    ),
    "llama 2": ("LlamaForCausalLM", CAUSAL, "llama"),
    "llama 3": (
        "LlamaForCausalLM",
        {**CAUSAL, "rope_parameters": LLAMA_3, "tie_word_embeddings": True},
        "llama",
    ),
    "llama, biases and yarn": (
        "LlamaForCausalLM",
        {**CAUSAL, "rope_parameters": YARN, "attention_bias": True, "mlp_bias": True},
        "llama",
    ),
    "llama, linear": (
        "LlamaForCausalLM",
        {**CAUSAL, "rope_parameters": {"rope_type": "linear", "factor": 3.0}},
        "llama",
    ),
    "llama, dynamic": (
        "LlamaForCausalLM",
        {
            **{**CAUSAL, "max_position_embeddings": 16},
            "rope_parameters": {"rope_type": "dynamic", "factor": 3.0},
        },
        "llama",
    ),
    "mistral": ("MistralForCausalLM", {**CAUSAL, "sliding_window": 5}, "mistral"),
    "qwen 2": (
        "Qwen2ForCausalLM",
        {
            **CAUSAL,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
        "qwen2",
    ),
    "qwen 3": ("Qwen3ForCausalLM", {**CAUSAL, "head_dim": 10}, "qwen3"),
    "bart": ("BartForConditionalGeneration", BART, "bart"),
    "mbart": (
        "MBartForConditionalGeneration",
        {**BART, "decoder_start_token_id": 2, "scale_embedding": True},
        "mbart",
    ),
    "m2m-100": ("M2M100ForConditionalGeneration", BART, "m2m_100"),
    "t5": ("T5ForConditionalGeneration", T5, "t5"),
    "t5, gated": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "t5",
    ),
    "bert": ("BertModel", BERT, "bert"),
    "roberta": ("RobertaModel", {**BERT, "type_vocab_size": 1}, "roberta"),
    "distilbert": (
        "DistilBertModel",
        {
            **{"vocab_size": 47, "dim": 24, "n_layers": 2, "n_heads": 4},
            **{"hidden_dim": 40, "max_position_embeddings": 30},
        },
        "distilbert",
    ),
}


def random_model(name, **changes):
    """Returns a model with weights of which none has no effect."""
    kind, settings, _ = DESIGNS[name]
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**{**settings, **changes})).eval()
    if name == "t5, gated":  # as in T5 1.1
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(47, 24))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            is_gain = weight.dim() == 1 and key.endswith("weight")
            weight.copy_(0.2 * torch.randn(weight.shape, generator=generator) + is_gain)
    return model


# The design of a model, the kind of its tokenizer, and further settings.
WITH_TEXTS = {
    "gpt2": ("gpt2", "gpt2", {}),
    "llama 2": ("llama 2", "llama2", {}),
    "llama 3": ("llama 3", "llama3", {}),
    "qwen 3": ("qwen 3", "qwen2", {}),
    "bart": ("bart", "roberta", {"forced_bos_token_id": "<s>"}),
    "mbart": ("mbart", "mbart", {"decoder_start_token_id": "ro_RO"}),
    "nllb": ("m2m-100", "nllb", {}),
    "t5": ("t5", "t5", {}),
    "bert": ("bert", "bert", {}),
}


def write_folder(name, path):
    """Writes a model with a tokenizer; returns both."""
    design, kind, settings = WITH_TEXTS[name]
    own = hugging_face_tokenizers.KINDS[kind]()
    pad, unknown, start, end = hugging_face_tokenizers.TOKENS[kind]
    tokens = {"pad_token": pad, "unk_token": unknown, "eos_token": end}
    tokens["bos_token"] = start if kind != "t5" else None
    if kind == "bert":
        tokens = {"pad_token": pad, "unk_token": unknown, "cls_token": start}
        tokens["sep_token"] = end
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=own, **tokens)
    ids = {role: token and own.token_to_id(token) for role, token in tokens.items()}
    special = {
        "vocab_size": own.get_vocab_size() + 3,
        "pad_token_id": ids["pad_token"],
    }
    if kind != "bert":
        special |= {"eos_token_id": ids["eos_token"]}
    if design not in ("t5", "bert"):
        special |= {"bos_token_id": ids["bos_token"]}
    if design in ("bart", "mbart", "m2m-100"):
        special |= {"decoder_start_token_id": ids["eos_token"]}
    special |= {key: own.token_to_id(token) for key, token in settings.items()}
    if design == "m2m-100":  # transformers has a position for the padding token.
        special |= {"max_position_embeddings": special["vocab_size"]}
    theirs = random_model(design, **special)
    theirs.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return theirs, tokenizer
