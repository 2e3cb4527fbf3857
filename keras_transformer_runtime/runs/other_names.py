"""Names that other toolkits have for options, and the option that does the same.

The names are those of OpenNMT-tf, OpenNMT-py, Sockeye, JoeyNMT, fairseq, Marian,
nanoGPT, transformers and llama.cpp, without dashes and with `_` for `-`.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Meaning(NamedTuple):
    """An option, the names that other toolkits have for it, and how it differs."""

    option: str  # or an option and a value; "" if no option does it
    names: str
    remark: str = ""  # a sentence


_IN_TOKENS = "Its size is in tokens, so a batch has fewer long texts than short ones."
_IN_EPOCHS = "It is a number of epochs."
_PAIR = "Source and target file follow each other, as in --train a.en a.de."
_BACKEND = (
    "The backend, KERAS_BACKEND, uses a GPU if there is one; CUDA_VISIBLE_DEVICES= "
    "hides it."
)

OF_TRAIN = (
    # Text.
    Meaning(
        "train",
        "train_data train_src train_tgt training_data train_file trainpref train_sets "
        "train_features_file train_labels_file prepared_data dataset data data_path "
        "source target src tgt input text",
        _PAIR,
    ),
    Meaning(
        "valid",
        "valid_data valid_src valid_tgt validation validation_source validation_target "
        "validation_file validation_data validation_split validpref valid_sets "
        "eval_features_file eval_labels_file eval_data dev dev_data val val_data",
        "A fraction of the training text, such as 2%, is held out.",
    ),
    Meaning("test", "test_data test_src test_tgt test_file testpref"),
    Meaning(
        "languages",
        "source_lang target_lang src_lang tgt_lang source_language target_language "
        "langs lang_pair",
        "Source and target follow each other, as in --languages en de.",
    ),
    Meaning(
        "output",
        "save_dir output_dir out_dir model_dir run_dir checkpoint_dir save_model "
        "save_path out o",
    ),
    Meaning("lowercase", "lower lc uncased do_lower_case"),
    Meaning(
        "max_length",
        "max_len max_seq_len max_sent_length src_seq_length tgt_seq_length "
        "max_source_positions max_target_positions max_source_length "
        "max_target_length maximum_features_length maximum_labels_length",
        "It limits both sides.",
    ),
    Meaning(
        "length",
        "block_size tokens_per_sample context context_length context_size "
        "max_seq_length seq_len sequence_length",
        "It is for --model causal; --max-length limits the sentences of pairs.",
    ),
    # Vocabulary.
    Meaning("tokenizer bpe", "bpe bpe_level bpe_codes"),
    Meaning("tokenizer unigram", "sentencepiece spm unigram"),
    Meaning("tokenizer characters", "char chars char_level character_level"),
    Meaning("tokenizer", "tokenizer_type tokenization tok level"),
    Meaning("source_tokenizer", "src_tokenizer source_tokenization"),
    Meaning("target_tokenizer", "tgt_tokenizer target_tokenization"),
    Meaning(
        "vocabulary_size",
        "vocab_size num_words num_merges bpe_size bpe_operations dim_vocabs",
    ),
    Meaning("source_vocabulary_size", "src_vocab_size nwordssrc source_vocab_size"),
    Meaning("target_vocabulary_size", "tgt_vocab_size nwordstgt target_vocab_size"),
    Meaning(
        "vocabularies joint",
        "share_vocab shared_vocab joint_vocab joined_dictionary share_embeddings "
        "share_all_embeddings tied_embeddings tied_embeddings_all tied_softmax "
        "weight_tying weight_tying_type",
        "The embeddings of a joint vocabulary are tied.",
    ),
    Meaning(
        "vocabulary_size",
        "vocab vocabs src_vocab tgt_vocab source_vocab target_vocab "
        "source_vocabulary target_vocabulary srcdict tgtdict",
        "The run learns the vocabulary from the training text.",
    ),
    # Model.
    Meaning("preset", "arch size model_size auto_config"),
    Meaning("model", "model_type task", "Its size is that of --preset."),
    Meaning("model causal", "language_model lm decoder_only"),
    Meaning(
        "num_layers",
        "layers n_layer n_layers num_blocks enc_layers dec_layers encoder_layers "
        "decoder_layers num_encoder_layers num_decoder_layers num_hidden_layers "
        "enc_depth dec_depth depth",
        "Encoder and decoder have the same number.",
    ),
    Meaning(
        "hidden_dim",
        "hidden_size d_model n_embd rnn_size dim_emb embed_dim embedding_dim "
        "encoder_embed_dim decoder_embed_dim transformer_model_size num_embed "
        "num_units word_vec_size model_dim width",
    ),
    Meaning(
        "intermediate_dim",
        "ffn_dim ff_size d_ff dff ff_dim dim_feedforward intermediate_size n_inner "
        "encoder_ffn_embed_dim decoder_ffn_embed_dim ffn_inner_dim transformer_ff "
        "transformer_dim_ffn transformer_feed_forward_num_hidden",
    ),
    Meaning(
        "num_heads",
        "heads n_head n_heads nhead attention_heads encoder_attention_heads "
        "decoder_attention_heads transformer_heads transformer_attention_heads "
        "num_attention_heads",
    ),
    Meaning(
        "",
        "num_kv_heads n_kv_heads num_key_value_heads",
        "Each head has its own keys; in Python, CausalLM has num_key_value_heads.",
    ),
    Meaning(
        "positions",
        "position_encoding pos_emb max_relative_positions position_embedding_type",
    ),
    Meaning("positions learned", "encoder_learned_pos decoder_learned_pos"),
    Meaning(
        "dropout",
        "dropout_rate resid_pdrop embd_pdrop transformer_dropout embed_dropout "
        "hidden_dropout_prob",
    ),
    Meaning(
        "attention_dropout",
        "attn_dropout attn_pdrop transformer_dropout_attention",
    ),
    Meaning(
        "start_from",
        "init init_from pretrained_model pretrained model_name_or_path checkpoint "
        "checkpoint_path finetune_from_model load_model",
    ),
    Meaning("lora", "lora_r lora_rank peft use_lora use_peft"),
    Meaning("lora_targets", "target_modules lora_target_modules lora_modules"),
    Meaning("", "lora_dropout", "The updates have no dropout of their own."),
    # Training.
    Meaning(
        "tokens_per_batch",
        "batch_size train_batch_size per_device_train_batch_size batch_type "
        "mini_batch effective_batch_size batch_sentences",
        _IN_TOKENS,
    ),
    Meaning("tokens_per_batch", "max_tokens mini_batch_words batch_tokens"),
    Meaning(
        "micro_batches",
        "gradient_accumulation_steps accum_count accum_grad update_freq "
        "update_interval batch_multiplier optimizer_delay",
        "It splits a batch, whose whole size is --tokens-per-batch.",
    ),
    Meaning("epochs", "max_epochs max_epoch num_epochs max_num_epochs after_epochs"),
    Meaning("epochs", "num_train_epochs train_epochs"),
    Meaning(
        "steps",
        "max_steps max_step max_update max_updates max_iters train_steps num_steps "
        "total_steps total_num_update max_iter after_batches iterations",
    ),
    Meaning("optimizer", "optim optimizer_type"),
    Meaning(
        "optimizer",
        "beta1 beta2 betas adam_betas adam_beta1 adam_beta2 adam_eps adam_epsilon "
        "optimizer_params optimizer_betas momentum",
        "Each has fixed betas and epsilon.",
    ),
    Meaning("learning_rate", "lr max_lr peak_lr initial_learning_rate"),
    Meaning(
        "schedule",
        "lr_scheduler lr_scheduler_type lr_schedule scheduling scheduler decay_method "
        "decay_type learning_rate_scheduler_type",
    ),
    Meaning(
        "cooldown",
        "decay_lr min_lr stop_min_lr lr_decay learning_rate_decay lr_decay_iters "
        "learning_rate_min lr_decay_inv_sqrt start_decay_steps",
        "--schedule is the course of the rate before.",
    ),
    Meaning(
        "warmup_steps",
        "warmup warmup_updates warmup_iters lr_warmup learning_rate_warmup "
        "warmup_ratio",
    ),
    Meaning("weight_decay", "wd l2"),
    Meaning(
        "clip_norm",
        "clip grad_clip clip_grad_norm max_grad_norm clip_gradients "
        "gradient_clipping_threshold",
    ),
    Meaning("label_smoothing", "smoothing label_smoothing_factor"),
    Meaning("r_drop", "rdrop rdrop_alpha reg_alpha"),
    Meaning("subword_sampling", "bpe_dropout subword_regularization src_subword_alpha"),
    Meaning(
        "dtype mixed_float16",
        "fp16 amp mixed_precision half model_dtype",
        "--dtype mixed_bfloat16 needs no loss scale.",
    ),
    Meaning("dtype mixed_bfloat16", "bf16"),
    Meaning("dtype", "precision"),
    Meaning(
        "devices",
        "gpus num_gpus n_gpu gpu_ranks world_size distributed_world_size num_devices "
        "nproc_per_node",
        "One GPU needs no option.",
    ),
    Meaning("workers", "nnodes num_nodes"),
    Meaning("", "device device_id device_ids use_cuda use_cpu cpu no_cuda", _BACKEND),
    Meaning(
        "",
        "num_workers dataloader_num_workers cpu_threads threads",
        "The backend uses all cores; --workers are machines of a Ray cluster.",
    ),
    Meaning(
        "average",
        "keep_checkpoint_max keep_last_epochs keep_last_params keep_best_ckpts "
        "save_total_limit keep_checkpoint average_last_checkpoints num_avg",
        "Their checkpoints are kept.",
    ),
    Meaning(
        "metric",
        "valid_metrics eval_metric eval_metrics early_stopping_metric "
        "optimized_metric best_checkpoint_metric metric_for_best_model scorers",
    ),
    Meaning(
        "metric_every",
        "validation_freq valid_freq valid_steps valid_interval eval_steps "
        "eval_interval validate_interval validate_interval_updates",
        _IN_EPOCHS,
    ),
    Meaning(
        "patience",
        "early_stopping early_stopping_patience max_num_checkpoint_not_improved",
        _IN_EPOCHS,
    ),
    Meaning(
        "save_every",
        "save_freq save_steps save_interval save_interval_updates "
        "save_checkpoint_steps save_checkpoints_steps checkpoint_interval",
    ),
    Meaning(
        "",
        "resume resume_from_checkpoint resume_training restore_file train_from "
        "continue",
        "The same command resumes a run that was stopped.",
    ),
    Meaning(
        "",
        "overwrite overwrite_output overwrite_output_dir reset",
        "Give another --output for a new run.",
    ),
    Meaning("seed", "random_seed manual_seed"),
    Meaning("members", "ensemble ensemble_size num_models models num_seeds seeds"),
    Meaning(
        "distill", "distillation distillation_alpha knowledge_distillation teacher"
    ),
    Meaning("verbose", "quiet silent log_interval logging_steps report_every"),
    Meaning("tensorboard", "tensorboard_logdir log_dir logdir report_to"),
    Meaning(
        "tensorboard",
        "wandb wandb_log wandb_project",
        "history.csv has the losses of all epochs.",
    ),
    Meaning(
        "num_beams",
        "beam beams beam_size beam_width",
        "It is for the evaluation; translate has its own.",
    ),
    Meaning("bleu_tokenize", "sacrebleu sacrebleu_tokenize sacrebleu_tokenizer"),
    Meaning("config", "config_file options_file yaml"),
)
# Of the commands that use a model: the first option of a name that the command has.
OF_DECODING = (
    Meaning("num_beams", "beam beams beam_size beam_width k"),
    Meaning(
        "max_length",
        "max_new_tokens max_len max_tokens max_len_b max_output_length max_gen_len "
        "max_decoding_length maximum_decoding_length num_tokens n_predict",
    ),
    Meaning("min_length", "min_new_tokens min_len minimum_decoding_length"),
    Meaning("length_penalty", "lenpen alpha beam_alpha length_penalty_alpha normalize"),
    Meaning(
        "num_hypotheses",
        "n_best nbest nbest_size num_return_sequences num_samples n best_of",
    ),
    Meaning("num_beam_groups", "diverse_beam_groups beam_groups"),
    Meaning("diversity_penalty", "diverse_beam_strength"),
    Meaning("temperature", "temp sampling_temperature"),
    Meaning("temperature 1", "sampling do_sample sample"),
    Meaning("top_k", "sampling_topk random_sampling_topk topk"),
    Meaning("top_p", "sampling_topp random_sampling_topp topp nucleus"),
    Meaning("no_repeat_ngram_size", "block_ngram_repeat no_repeat_ngram"),
    Meaning("repetition_penalty", "repeat_penalty"),
    Meaning("batch_size", "mini_batch max_sentences max_batch_size bs"),
    Meaning("stop", "stop_sequences stop_strings stop_token"),
    Meaning("prompt", "start text prompts"),
    Meaning("prefix", "target_prefix prefix_text"),
    Meaning("dictionary", "terminology glossary phrase_table terms"),
    Meaning("align", "alignment alignments with_alignments report_align"),
    Meaning("align", "print_alignment"),
    Meaning("seed", "random_seed manual_seed"),
    Meaning("quiet", "silent no_progress_bar"),
    Meaning("overwrite", "force"),
    Meaning("bleu_tokenize", "tokenize sacrebleu_tokenize tok"),
    Meaning("lowercase", "lc lower"),
    Meaning("processes", "workers num_workers threads"),
    Meaning("workers", "processes num_workers num_processes"),
    Meaning("port", "p http_port rest_api_port"),
    Meaning("host", "address bind ip"),
    Meaning("api_key", "token key"),
    Meaning("split_sentences", "sentence_splitter"),
    Meaning("languages", "source_lang target_lang src_lang tgt_lang"),
    Meaning("format", "export_format output_format to"),
    Meaning("quantization", "quantize compute_type precision"),
    Meaning("context", "block_size seq_len max_seq_length"),
    Meaning("engine", "backend runtime"),
    Meaning("", "device device_id cuda use_cuda gpu gpus cpu use_cpu", _BACKEND),
    Meaning(
        "",
        "model models model_path model_dir model_name_or_path checkpoint "
        "checkpoint_path path m",
        "The model is the first argument.",
    ),
    Meaning(
        "",
        "source src input input_file features_file i target tgt output output_file "
        "predictions_file out output_dir o reference references ref",
        "Files and folders are arguments, after the model.",
    ),
)


def find_meaning(
    name: str, options: Mapping[str, str], table: tuple[Meaning, ...]
) -> Meaning | None:
    """Returns the meaning of a name that is no option, if it is known.

    Args:
        name: the name, with or without dashes.
        options: the descriptions of the options by name.
        table: `OF_TRAIN` or `OF_DECODING`.
    """
    plain = name.lstrip("-").replace("-", "_").lower()
    if plain in options:
        return Meaning(plain, name)
    for meaning in table:
        option = meaning.option.partition(" ")[0]
        if plain in meaning.names.split() and (option in options or not option):
            return meaning
    return None


def explanation(meaning: Meaning, options: Mapping[str, str], typed: str) -> str:
    """Returns sentences on an option: what it is, and how it differs from another.

    Args:
        meaning: what `find_meaning` returns.
        options: the descriptions of the options by name.
        typed: the option as it is typed; nothing if there is none.
    """
    if not typed:
        return meaning.remark
    description = options[meaning.option.partition(" ")[0]]
    if description[1:2].islower():
        description = description[0].lower() + description[1:]
    return f"Here it is {typed}: {description} {meaning.remark}".rstrip()
