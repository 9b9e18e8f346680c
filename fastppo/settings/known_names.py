"""Names: of the files of a run, of metrics, and those that other libraries have for ours.

The names of `charts/` and `losses/` are CleanRL's; docs/metrics.md describes all metrics.
"""

import difflib
from typing import Iterable

from fastppo.errors import DidYouMean, Each, Fix

MODEL_FILE, BEST_FILE = "model.safetensors", "best.safetensors"  # policies
CONFIG_FILE, SUMMARY_FILE = "config.json", "summary.json"
METRICS_FILE, EPISODES_FILE = "metrics.csv", "episodes.csv"
COMMAND_FILE, SYSTEM_FILE, OUTPUT_FILE = "command.txt", "system.json", "output.txt"
# Those of a run without an iteration.
START_FILES = {CONFIG_FILE, COMMAND_FILE, SYSTEM_FILE, SUMMARY_FILE, METRICS_FILE, EPISODES_FILE}


GLOBAL_STEP = "global_step"  # environment steps; the column of metrics.csv
MEAN_RETURN, RETURN_STD = "charts/episodic_return", "charts/episodic_return_std"
MEAN_LENGTH = "charts/episodic_length"
ELO = "games/elo"
EPISODES = "charts/episodes"
# The columns of episodes.csv, and that of each metric that is a mean of one.
EPISODE_COLUMNS = (GLOBAL_STEP, "return", "length")
SINGLE = {MEAN_RETURN: "return", MEAN_LENGTH: "length"}
SPEED = "charts/SPS"
KL, ENTROPY = "losses/approx_kl", "losses/entropy"
EXPLAINED_VARIANCE = "losses/explained_variance"
EVAL_RETURN = "eval/return_mean"
EVALUATION, VIDEO = "evaluate", "video"  # parts of a run's time
ASIDE = EVALUATION, VIDEO  # the parts that are not training


NEAR = 0.75  # similarity from which a name is proposed: one or two letters are wrong

MAKES_ENVS = "PPO(env, num_envs=8) makes its environments; without a trainer: make_vec(env, 8)"
NEW_TRAINER = 'make a new trainer with its weights: PPO(env, init_from="model.safetensors")'

# Names of CleanRL, Stable-Baselines3, rl-zoo3, rl_games, RLlib and others. Each has ours for the
# same, where several may be meant with | between them, or else what there is in its place.
FOREIGN_NAMES = {
    "total_timesteps": "total_steps", "learning_rate": "lr", "ent_coef": "entropy_coef",
    "vf_coef": "value_coef", "env_id": "env_name", "update_epochs": "epochs",
    "clip_coef": "clip_range", "wandb_project_name": "wandb_project", "exp_name": "name|run_dir",
    "track": "logger", "norm_adv": "norm_advantages", "clip_vloss": "clip_range_vf",
    "cuda": "device", "torch_deterministic": "leave it out: the same seed gives the same run",
    "capture_video": "video|video_interval", "video": "video_interval",
    "save_model": 'the command saves the model; in Python ppo.save("model.safetensors")',
    **dict.fromkeys(
        ("minibatch_size", "batch_size"),
        "num_minibatches, which is num_envs x num_steps / the size of a minibatch"),
    "n_steps": "num_steps", "n_envs": "num_envs", "n_epochs": "epochs",
    "n_timesteps": "total_steps", "policy": "model", "policy_kwargs": "hidden_sizes|activation",
    "features_extractor_class": "model", "share_features_extractor": "shared_critic",
    "lstm_hidden_size": "rnn_size", "net_arch": "hidden_sizes", "activation_fn": "activation",
    "optimizer_class": "optimizer", "optimizer_kwargs": "optimizer",
    "log_path": "run_dir", "tensorboard_log": "logger",
    "tb_log_name": 'PPO(env, logger="tensorboard", run_dir="runs/first")',
    "normalize": "norm_obs|norm_rewards", "normalize_advantage": "norm_advantages",
    "clip_obs": "obs_limit", "clip_reward": "clip_rewards|reward_limit",
    "verbose": "progress", "log_interval": 'progress|PPO(env, progress="lines")',
    "progress_bar": 'progress|PPO(env, progress="live")', "algo": "leave it out: it is PPO",
    "deterministic": "leave it out; eval and play sample actions with --stochastic",
    "n_eval_episodes": "eval_episodes|episodes", "n_episodes": "episodes",
    "num_episodes": "episodes", "return_episode_rewards": "the result has returns and lengths",
    "eval_freq": "eval_interval", "use_sde": "sde", "callback": "callbacks",
    "callbacks": "ppo.learn(callbacks=...)", "name": "run_dir", "run_name": "name|run_dir",
    "reset_num_timesteps": "leave it out: learn goes on, and a new PPO begins at step 0",
    "resume": 'PPO.resume("runs/latest")', "seeds": "make a PPO for each seed",
    "action_masks": "action_mask",
    "episode_start": "leave it out; in place of evaluate_policy: ppo.evaluate(episodes=...)",
    # of a trainer
    "load": 'fastppo.load("model.safetensors") for a policy; PPO.resume("runs/latest") to train on',
    "env": f"env_name|{MAKES_ENVS}", "get_env": MAKES_ENVS, "custom_objects": "model",
    "set_env": NEW_TRAINER, "set_parameters": NEW_TRAINER,
    "get_parameters": "ppo.policy.state_dict()", "get_vec_normalize_env": "ppo.policy.observer",
    "num_timesteps": "total_steps|ppo.step", "train": "ppo.update(ppo.collect())",
    "observation_space": "ppo.policy.obs_space", "action_space": "ppo.policy.act_space",
    "rollout_buffer": "rollout", "set_random_seed": "PPO(env, seed=1)", "set_logger": "logger",
    "fit": "learn", "run": "learn",
    # of other libraries
    "timesteps": "total_steps", "max_steps": "total_steps|max_episode_steps",
    "num_processes": "num_workers",
    "n_workers": "num_workers", "n_cpus": "num_workers", "discount": "gamma", "tau": "gae_lambda",
    "clip_ratio": "clip_range", "clip_param": "clip_range", "entropy_coeff": "entropy_coef",
    "ent_coeff": "entropy_coef", "vf_loss_coeff": "value_coef", "grad_clip": "max_grad_norm",
    "num_epochs": "epochs", "num_sgd_iter": "epochs", "desired_kl": "adaptive_kl",
    "log_dir": "run_dir", "output_dir": "run_dir", "config": "preset", "gpu": "device",
    "reward_clip": "clip_rewards", "num_stack": "frame_stack", "stack_num": "frame_stack",
    "n_stack": "frame_stack", "screen_size": "resize", "episodic_life": "end_on_life_loss",
    "episode_life": "end_on_life_loss", "terminal_on_life_loss": "end_on_life_loss",
    "use_fire_reset": "fire_on_reset", "sticky_actions": "env_kwargs",
    "repeat_action_probability": "env_kwargs", "rnn_type": "rnn", "recurrent": "rnn",
    "use_rnn": "rnn", "use_lstm": "rnn", "wandb": "logger", "tensorboard": "logger",
    "trackio": "logger", "render": "video|video_interval",
}


def unknown_names(what: str, names: Iterable[str], known: Iterable[str], verb: str | None = None
                  ) -> tuple[str, Fix]:
    """(`what` with all `names` that nobody knows, the fix): ours, or the nearest of the `known`.

    `verb`: they are options of a verb of the command, for which a page lists those there are.
    """
    names, known = [*names], [*known]
    fixes = {name: fix for name in names if (fix := name_fix(name, known))}
    rest: Fix = DidYouMean(verb=verb) if verb is not None else f"it has {', '.join(known)}"
    return f"{what} {', '.join(names)}", fixes.get(names[0], rest) if len(names) == 1 else Each(
        *((name, fixes.get(name, rest)) for name in names))


def name_fix(name: str, known: Iterable[str]) -> Fix | None:
    """What is meant by an unknown `name`, as far as that is certain, or near one letter or two."""
    known, plain = [*known], name.lstrip("-").replace("-", "_").removeprefix("no_")
    near = [plain] if plain in FOREIGN_NAMES else difflib.get_close_matches(
        plain, [*known, *FOREIGN_NAMES], 1, NEAR)
    parts = [part for one in near for part in FOREIGN_NAMES.get(one, one).split("|")]
    ours = [part for part in parts if part in known]
    others = [part for part in parts if not part.isidentifier()]
    return DidYouMean(*ours) if ours else others[0] if others else None
