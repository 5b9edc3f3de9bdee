"""What the older tutorials, nanoGPT and transformers' Trainer call a parameter, and what it is called here.

An old name is never taken in silence: it is refused, and the message names the new one.
"""

from collections.abc import Iterable

from helpers.wording import did_you_mean

NEW_NAMES = {
    # the book
    "raw_data_path": "source",
    "tokenizer_path": "pretrained_model",
    "fp16": "precision",
    "fp16_opt_level": "precision",
    "length": "max_new_tokens",
    "topk": "top_k",
    "topp": "top_p",
    "nsamples": "samples",
    # the CPM article
    "max_len": "n_ctx",
    "num_workers": "workers",
    "log_interval": "log_step",
    # MiniMind
    "learning_rate": "lr",
    "dtype": "precision",
    "accumulation_steps": "gradient_accumulation",
    "grad_clip": "max_grad_norm",
    "warmup_iters": "warmup_steps",
    "save_interval": "checkpoint_step",
    "hidden_size": "n_embd",
    "dim": "n_embd",
    "num_hidden_layers": "n_layer",
    "n_layers": "n_layer",
    "num_attention_heads": "n_head",
    "n_heads": "n_head",
    "num_key_value_heads": "n_kv_head",
    "n_kv_heads": "n_kv_head",
    "max_seq_len": "n_ctx",
    "n_routed_experts": "n_experts",
    "num_experts_per_tok": "experts_per_token",
    "aux_loss_alpha": "aux_loss_coef",
    "data_path": "source",
    # nanoGPT
    "block_size": "n_ctx",
    "n_positions": "n_ctx",
    "gradient_accumulation_steps": "gradient_accumulation",
    "eval_interval": "eval_step",
    "init_from": "pretrained_model",
    # transformers' Trainer
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "eval_steps": "eval_step",
    "save_steps": "checkpoint_step",
    "logging_steps": "log_step",
    "lr_scheduler_type": "schedule",
    "adam_beta2": "beta2",
    "adam_epsilon": "eps",
    "report_to": "tracker",
    "model_name_or_path": "pretrained_model",
    "early_stopping_patience": "patience",
}
GONE = {
    "tokenized_data_path": "ids are made by notebook 03 from the text: give that as source",
    "output_dir": "a run is in runs/<run>/: name it with --run, or set RUNS_DIR",
    "out_dir": "a run is in runs/<run>/: name it with --run, or set RUNS_DIR",
    "save_dir": "a run is in runs/<run>/: name it with --run, or set RUNS_DIR",
    "writer_dir": "TensorBoard's files are in runs/<run>/model/tensorboard",
    "vocab_filename": "the vocabulary is in runs/<run>/vocab; give a list of your own as vocab_file",
    "model_config": "give it as a preset: --preset model_config.json",
    "max_iters": "give epochs or max_minutes",
    "max_steps": "give epochs or max_minutes",
    "no_cuda": "it is device here: cpu",
    "min_lr": "give final_lr_fraction, which is min_lr / lr",
}


def explain(name: str, known: Iterable[str]) -> str:
    """Return what to say of a name that no notebook has: its new name, where it went, or the nearest known one."""
    if name in NEW_NAMES:
        return f": {name} is called {NEW_NAMES[name]} here"
    if name in GONE:
        return f": {GONE[name]}"
    return did_you_mean(name, known)
