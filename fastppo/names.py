"""What settings are called elsewhere, and how they are spelt for a shell and in Python."""

import ast
import difflib
import json
import re
import shlex
from typing import Any, Iterable

SIZE = ("say into how many the num_envs x num_steps rows are cut: --num_minibatches=4",) * 2
MODELS = "auto", "mlp", "cnn", "impala", "impoola"  # networks that a setting can name
MODEL = "leave it out: the command always saves the model, in the run's folder"

# Others' names by whose they are: ours, or what to say instead, of a switch (if on, if off).
HOUSES: dict[str, dict[str, str | tuple[str, str]]] = {
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
        "save_model": (MODEL,) * 2, "minibatch_size": SIZE,
    },
    "Stable-Baselines3's": {
        "n_steps": "num_steps", "n_envs": "num_envs", "n_epochs": "epochs",
        "n_timesteps": "total_steps", "batch_size": SIZE, "policy": ("--model=mlp",) * 2,
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
FLAG = re.compile(
    r"(?<![\w-])--(?!help\b|no-)(\w+)(?:=('(?:[^']|'\"'\"')*'|[^\s;)'\"]*[^\s;),.:'\"]))?")
FLAGS = re.compile(f"{FLAG.pattern}(?: {FLAG.pattern})*")
# Settings of which none is a word, in Python, too.
NONE = {"preset", "preprocessing", "rnn", "norm_advantages", "logger", "progress"}
WORDS, SIZES = {"actor_keys", "critic_keys"}, {"hidden_sizes"}  # settings that are tuples
OTHERS = {name: ours for names in HOUSES.values() for name, ours in names.items()}


def owner(name: str) -> str:
    """Whose name of a setting `name` is."""
    return next(house for house, names in HOUSES.items() if name in names)


def nearest(name: str, known: Iterable[str], dashes: str = "") -> str:
    """The fix for the unknown `name`: the one of `known` that is meant, by its sense or letters."""
    known = list(known)
    near = [name] if name in OTHERS else difflib.get_close_matches(name, [*known, *OTHERS], 3, 0.5)
    found = [ours for one in near for ours in _meant(one) if ours in known]
    return f"did you mean {dashes}{found[0]}?" if found else "python main.py --help lists them all"


def flag_meant(name: str, value: Any, wanted: str, default: Any) -> str:
    """The flag for a setting that is none of those `wanted` lists: the nearest, or the default."""
    among = wanted.removeprefix("one of ").split(", ") if isinstance(value, str) else []
    meant = alike(value, among) if len(among) > 1 else None
    return flag(name, meant or default)


def alike(text: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that a mistyped `text` is near, in either case; None if none is."""
    return next(iter(difflib.get_close_matches(text.lower(), choices, 1)), None)


def _meant(name: str) -> list[str]:
    """Our names for what `name` is in whichever house; `name` itself where it is in none."""
    ours = OTHERS.get(name, name)
    return re.findall(r"--(\w+)", ours[0]) if isinstance(ours, tuple) else [ours]


def mended(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` was probably meant to be; None if nobody can tell.

    Understood are Python's spelling, and what a shell makes of JSON without its quotes.
    """
    bare = r"""(?<![\w"'.+-])(?!true\b|false\b|null\b|True\b|False\b|None\b)[A-Za-z_][\w./-]*"""
    for tried in (text, re.sub(bare, r'"\g<0>"', text)):
        for read in (json.loads, ast.literal_eval):
            try:
                value = read(tried)
                json.dumps(value, allow_nan=False)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
            if isinstance(value, dict) and all(isinstance(name, str) for name in value):
                return value
    return None


def shown(value: Any) -> str:
    """A value as it would be typed: 1_000_000, 64,64, none, ..."""
    if value is None or isinstance(value, (bool, str)):
        return "none" if value is None else str(value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:_}" if isinstance(value, int) else f"{value:g}" \
        if isinstance(value, float) else json.dumps(value)


def flag(name: str, value: Any) -> str:
    """The flag that gives setting `name` a value."""
    return f"--{name}={shown(value)}"


def json_flag(name: str, value: dict[str, Any]) -> str:
    """The flag that gives setting `name` a JSON object; an empty one is better left out.

    Values that JSON does not know are shown as Python does.
    """
    text = shlex.quote(json.dumps(value, default=repr))
    return f"--{name}={text}" if value else f"leave --{name} out"


def keywords(text: str, env: str = "", bare: bool = True) -> str:
    """`text` with its flags as keyword arguments: --target_kl=none is target_kl=None.

    `env`, such as PPO({}), is the call in which the environment stands first, without its name.
    Flags that have no value are changed only if `bare`.
    """
    return FLAGS.sub(lambda found: _arguments(found[0], env, bare), text)


def _arguments(flags: str, env: str, bare: bool) -> str:
    found = [(name, value) for name, value in FLAG.findall(flags)]
    if not bare and any(not value for _, value in found):
        return flags
    said = [f"{name}={_literal(value, name)}" if value else name for name, value in found]
    name, value = found[0]
    if not (env and name == "env_name" and value):
        return ", ".join(said)
    return env.format(", ".join([_literal(value), *said[1:]]))


def _literal(value: str, name: str = "") -> str:
    """What follows the equals sign of the flag of setting `name`, as it is written in Python."""
    plain = "".join(shlex.split(value))
    if plain != "none" and name in WORDS | SIZES:
        found = [word if name in SIZES else f'"{word}"' for word in plain.split(",")]
        return f"({', '.join(found)}{',' * (len(found) == 1)})"
    if plain.startswith("{") and (held := mended(plain)) is not None:
        return repr(held)
    if plain == "none" and name not in NONE:
        return "None"
    return plain if re.fullmatch(r"-?[\d_.]+(e-?\d+)?|True|False|\.\.\.", plain) else f'"{plain}"'
