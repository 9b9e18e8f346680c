"""Names that other libraries give to our settings, as data; the nearest name to an unknown one."""

import difflib
import re
from typing import Any, Iterable, NamedTuple, Sequence

from fastppo.settings.fixes import DidYouMean, Each, Fix, Set
from fastppo.settings.values import DASHES, LOGGERS

NEAR = 0.75  # similarity from which a name is proposed: one or two letters are wrong

# Words for values of ours, where a setting has that value.
VALUE_ALIASES = {"pt": "torchscript", "jit": "torchscript", "tb": "tensorboard", "gpu": "auto",
                 "MlpPolicy": "mlp", "CnnPolicy": "cnn", "MultiInputPolicy": "auto"}


# Values that belong to another setting.
OTHER_SETTINGS = {("model", name): Set(rnn=rnn) for name, rnn in (
    ("lstm", "lstm"), ("gru", "gru"), ("rnn", "gru"), ("recurrent", "lstm"),
    ("MlpLstmPolicy", "lstm"))}


class Answer(NamedTuple):
    """The fix for a setting of another library that is no setting of ours under another name."""

    on: Fix
    off: Fix | None = None  # the fix where the setting is switched off; None: the same
    why: str = ""


MINIBATCH_SIZE = Answer("give num_minibatches, which is num_envs x num_steps / the size of a"
                        " minibatch", why="; here the number of minibatches is set")

# Settings of other libraries, by library: our name for the same setting (several: one of them is
# meant), or an Answer.
LIBRARY_NAMES: dict[str, dict[str, str | Answer]] = {
    "CleanRL's and Stable-Baselines3's": {
        "total_timesteps": "total_steps", "learning_rate": "lr", "ent_coef": "entropy_coef",
        "vf_coef": "value_coef",
    },
    "CleanRL's": {
        "env_id": "env_name", "update_epochs": "epochs", "clip_coef": "clip_range",
        "wandb_project_name": "wandb_project", "exp_name": "name",
        "track": Answer(Set(logger="wandb"), Set(logger="none")),
        "norm_adv": Answer(Set(norm_advantages="minibatch"), Set(norm_advantages="none")),
        "clip_vloss": Answer(Set(clip_range_vf=0.2), Set(clip_range_vf=None)),
        "cuda": Answer(Set(device="auto"), Set(device="cpu")),
        "torch_deterministic": Answer("leave it out: the same seed always gives the same run"),
        "capture_video": Answer(Set(video=True), "leave it out"),
        "save_model": Answer(
            "leave it out: the command always saves the model, in the folder of the run"),
        "minibatch_size": MINIBATCH_SIZE,
    },
    "Stable-Baselines3's": {
        "n_steps": "num_steps", "n_envs": "num_envs", "n_epochs": "epochs",
        "n_timesteps": "total_steps", "batch_size": MINIBATCH_SIZE,
        "policy": "model",
        "policy_kwargs": Answer(Set(hidden_sizes=(64, 64), activation="tanh")),
        "share_features_extractor": "shared_critic", "lstm_hidden_size": "rnn_size",
        "net_arch": "hidden_sizes", "log_path": "run_dir",
        "tensorboard_log": Answer(Set(logger="tensorboard"), why="; event files go to run_dir"),
        "normalize": Answer(Set(norm_obs=True, norm_rewards=True), Set(norm_obs=False)),
        "normalize_advantage": Answer(Set(norm_advantages="minibatch"),
                                      Set(norm_advantages="none")),
        "clip_obs": "obs_limit", "clip_reward": "clip_rewards reward_limit",
        "verbose": Answer(Set(progress="lines"), Set(progress="none")),
        "deterministic": Answer("leave it out; eval and play sample actions with --stochastic"),
        "algo": Answer("leave it out: it is PPO"), "n_eval_episodes": "eval_episodes",
        "eval_freq": "eval_interval", "use_sde": Answer(Set(sde=True), Set(sde=False)),
        "log_interval": Answer(Set(progress="lines"), Set(progress="none")),
        "features_extractor_class": Answer(Set(model="my_module:MyNet")),
        **dict.fromkeys(("optimizer_class", "optimizer_kwargs"), Answer(
            "in Python: optimizer=functools.partial(torch.optim.AdamW, weight_decay=0.01)")),
    },
    "another library's": {
        "timesteps": "total_steps", "max_steps": "total_steps", "num_timesteps": "total_steps",
        "num_processes": "num_workers", "n_workers": "num_workers", "n_cpus": "num_workers",
        "discount": "gamma", "tau": "gae_lambda", "clip_ratio": "clip_range",
        "clip_param": "clip_range", "entropy_coeff": "entropy_coef", "ent_coeff": "entropy_coef",
        "vf_loss_coeff": "value_coef", "grad_clip": "max_grad_norm", "num_epochs": "epochs",
        "num_sgd_iter": "epochs", "desired_kl": "adaptive_kl",
        "log_dir": "run_dir", "output_dir": "run_dir", "config": "preset",
        "run_name": "name", "load": "init_from resume",
        "gpu": Answer(Set(device="auto"), Set(device="cpu")),
        "reward_clip": "clip_rewards", "num_stack": "frame_stack", "stack_num": "frame_stack",
        "n_stack": "frame_stack", "screen_size": "resize", "episodic_life": "end_on_life_loss",
        "episode_life": "end_on_life_loss", "terminal_on_life_loss": "end_on_life_loss",
        "use_fire_reset": "fire_on_reset",
        **dict.fromkeys(("sticky_actions", "repeat_action_probability"), Answer(
            Set(env_kwargs={"repeat_action_probability": 0.25}),
            Set(env_kwargs={"repeat_action_probability": 0.0}))),
        "rnn_type": Answer(Set(rnn="gru")),
        "recurrent": Answer(Set(rnn="lstm"), Set(rnn="none")),
        "use_rnn": Answer(Set(rnn="gru"), Set(rnn="none")),
        "use_lstm": Answer(Set(rnn="lstm"), Set(rnn="none")),
        **{name: Answer(Set(logger=name), Set(logger="none")) for name in LOGGERS},
        "render": Answer(Set(video=True), "leave it out"),
    },
}
FOREIGN_NAMES = {name: ours for names in LIBRARY_NAMES.values() for name, ours in names.items()}


def library_of(name: str) -> str:
    """The library that has a setting called `name`, in the genitive."""
    return next(library for library, names in LIBRARY_NAMES.items() if name in names)


def nearest_setting(name: str, known: Iterable[str], verb: str = "", value: Any = "") -> Fix:
    """The fix for the unknown `name`: the nearest of the `known` names, by meaning or spelling.

    If none is near, those that have its words. `verb`: the one that has them as options. It has
    the `value`, unless that is empty, or the name stands for settings with values of their own.
    """
    known, name = list(known), re.sub(f"^[{DASHES}]*(no_)?", "", name).replace("-", "_")
    answer = FOREIGN_NAMES.get(name)
    if isinstance(answer, Answer) and not isinstance(answer.on, Set):
        return answer.on
    near = [name] if name in FOREIGN_NAMES else difflib.get_close_matches(
        name, [*known, *FOREIGN_NAMES], 1, NEAR)
    found = [ours for candidate in near for ours in _our_names(candidate) if ours in known]
    found = found[:1] or [one for one in known if {*name.split("_")} <= {*one.split("_")} or (
        len(name) > 2 and one.startswith(name))][:3]
    own = any(isinstance(FOREIGN_NAMES.get(one), Answer) for one in near)
    return Set(**{found[0]: value}) if len(found) == 1 and _is_written(value) and not own else \
        DidYouMean(*found, verb=verb)


def unknown_setting(typed: str, name: str, value: Any, off: bool, known: Sequence[str]
                    ) -> tuple[str, Fix]:
    """(what is wrong with a name that is no setting, the fix with its `value`).

    `off`: the value switches it off.
    """
    if name not in FOREIGN_NAMES:
        return f'there is no setting "{name}"', nearest_setting(name, known, value=value)
    ours = FOREIGN_NAMES[name]
    if isinstance(ours, str):
        given = "..." if value in ("", None) else VALUE_ALIASES.get(str(value), value)
        ours = Answer(tuple(Set(**{one: given}) if _is_written(given) else f"call it {one}"
                            for one in ours.split()))
    return (f"{typed} is a name of {library_of(name)}, not of fastppo{ours.why}",
            off and ours.off or ours.on)


def in_one(errors: Sequence[tuple[str, Fix]], several: str) -> tuple[str, Fix]:
    """One (what, fix) for those of several errors; the same one if it is alone."""
    return errors[0] if len(errors) == 1 else (f"{len(errors)} {several}", Each(*errors))


def _is_written(value: Any) -> bool:
    """True for a value that is more than an empty text and has a short form in a fix."""
    return isinstance(value, (str, int, float, list, tuple)) and value != ""


def _our_names(name: str) -> list[str]:
    """The settings that `name` of another library sets; `name` itself if no library has it."""
    ours = FOREIGN_NAMES.get(name, name)
    if isinstance(ours, Answer):
        return list(ours.on.settings) if isinstance(ours.on, Set) else []
    return ours.split()
