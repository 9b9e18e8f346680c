"""Names that other libraries give to our settings, and the nearest name of an unknown one."""

import difflib
import re
from typing import Iterable

MINIBATCH_SIZE = ("say into how many the num_envs x num_steps rows are cut: --num_minibatches=4",) * 2
SAVED_ALWAYS = "leave it out: the command always saves the model, in the run's folder"

# Others' names by whose they are: ours, or what to say instead, of a switch (if on, if off).
LIBRARY_NAMES: dict[str, dict[str, str | tuple[str, str]]] = {
    "CleanRL's": {
        "env_id": "env_name", "total_timesteps": "total_steps", "learning_rate": "lr",
        "update_epochs": "epochs", "clip_coef": "clip_range", "ent_coef": "entropy_coef",
        "vf_coef": "value_coef", "wandb_project_name": "wandb_project", "exp_name": "name",
        "track": ("--logger=wandb", "--logger=none"),
        "norm_adv": ("--norm_advantages=minibatch", "--norm_advantages=none"),
        "clip_vloss": ("--clip_range_vf=0.2", "--clip_range_vf=none"),
        "cuda": ("--device=cuda", "--device=cpu"),
        "wandb_entity": ("export WANDB_ENTITY=... before the command",) * 2,
        "torch_deterministic": ("leave it out: the same seed always gives the same run",) * 2,
        "capture_video": ("leave it out: there are no videos yet", "leave it out"),
        "save_model": (SAVED_ALWAYS,) * 2, "minibatch_size": MINIBATCH_SIZE,
    },
    "Stable-Baselines3's": {
        "n_steps": "num_steps", "n_envs": "num_envs", "n_epochs": "epochs",
        "n_timesteps": "total_steps", "batch_size": MINIBATCH_SIZE, "policy": ("--model=mlp",) * 2,
        "policy_kwargs": ("--hidden_sizes=64,64 --activation=tanh",) * 2,
        "share_features_extractor": "shared_critic", "lstm_hidden_size": "rnn_size",
        "net_arch": "hidden_sizes", "tensorboard_log": "run_dir", "log_path": "run_dir",
        "normalize": ("--norm_obs --norm_rewards", "--no-norm_obs"),
        "normalize_advantage": ("--norm_advantages=minibatch", "--norm_advantages=none"),
        "clip_obs": "obs_limit", "clip_reward": "reward_limit",
        "verbose": ("--progress=lines", "--progress=none"),
        "algo": ("leave it out: it is PPO",) * 2, "n_eval_episodes": "eval_episodes",
        "eval_freq": "eval_interval",
    },
    "another library's": {
        "timesteps": "total_steps", "max_steps": "total_steps", "num_timesteps": "total_steps",
        "num_processes": "num_workers", "n_workers": "num_workers", "n_cpus": "num_workers",
        "discount": "gamma", "tau": "gae_lambda", "clip_ratio": "clip_range",
        "clip_param": "clip_range", "entropy_coeff": "entropy_coef", "ent_coeff": "entropy_coef",
        "vf_loss_coeff": "value_coef", "grad_clip": "max_grad_norm", "num_epochs": "epochs",
        "num_sgd_iter": "epochs", "desired_kl": "adaptive_kl",
        "log_dir": "run_dir", "output_dir": "run_dir",
        "rnn_type": ("--rnn=gru",) * 2, "recurrent": ("--rnn=lstm", "--rnn=none"),
        "use_rnn": ("--rnn=gru", "--rnn=none"), "use_lstm": ("--rnn=lstm", "--rnn=none"),
        "wandb": ("--logger=wandb", "--logger=none"),
        "resume": ("leave it out: a run cannot be resumed yet",) * 2,
        "render": ("leave it out: there are no videos yet", "leave it out"),
    },
}
FOREIGN_NAMES = {name: ours for names in LIBRARY_NAMES.values() for name, ours in names.items()}


def library_of(name: str) -> str:
    """Whose name of a setting `name` is."""
    return next(house for house, names in LIBRARY_NAMES.items() if name in names)


def nearest_setting(name: str, known: Iterable[str], dashes: str = "") -> str:
    """The fix for the unknown `name`: the one of `known` that is meant, by its sense or letters."""
    known = list(known)
    near = [name] if name in FOREIGN_NAMES else difflib.get_close_matches(name, [*known, *FOREIGN_NAMES], 3, 0.5)
    found = [ours for one in near for ours in _meant(one) if ours in known]
    return f"did you mean {dashes}{found[0]}?" if found else "python main.py --help lists them all"


def _meant(name: str) -> list[str]:
    """Our names for what `name` is in whichever house; `name` itself where it is in none."""
    ours = FOREIGN_NAMES.get(name, name)
    return re.findall(r"--(\w+)", ours[0]) if isinstance(ours, tuple) else [ours]
