"""A policy as one file: weights, observation moments, spaces and settings; see tensor_file.

Such a policy can be evaluated without a trainer.
"""

import logging
import os
from contextlib import closing
from pathlib import Path
from typing import Any, Mapping

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from torch import Tensor

from fastppo.config import MODELS, Config, having
from fastppo.envs.families import check_registered, made_by_envpool
from fastppo.envs.make import EnvFactory, import_callable
from fastppo.errors import (
    CheckpointError,
    ConfigError,
    ModelError,
    Omit,
    PathError,
    Set,
    truncate_text,
)
from fastppo.evaluation.evaluate import Evaluation, check_spaces, evaluate
from fastppo.machine import limits
from fastppo.machine.child_process import public_config
from fastppo.networks.torch_state import default_torch, torch_threads
from fastppo.policy import Policy
from fastppo.runs.facts import fingerprint
from fastppo.runs.folder import policy_at
from fastppo.runs.tensor_file import read_tensor_file, write_tensor_file
from fastppo.spaces.leaves import MaskedDict, brief_text, subspaces
from fastppo.trainer.given_settings import source_for
from fastppo.trainer.policy_and_learner import build_policy
from fastppo.trainer.resolve import checked_device

POLICY_FORMAT = "fastppo policy 1"

log = logging.getLogger("fastppo")


@default_torch()
def save_policy(policy: Policy, config: Config, path: str | os.PathLike,
                weights: Mapping[str, Tensor] | None = None) -> Path:
    """Writes a policy, with its own weights or `weights`, and returns the path of the file.

    A missing folder is made. Raises CheckpointError if it cannot be written.
    """
    path = Path(path)
    tensors = {name: x.detach().cpu().clone(memory_format=torch.contiguous_format)
               for name, x in (weights or policy.state_dict()).items()}
    texts = {name: describe_space(space, name, tensors) for name, space in (
        ("obs_space", policy.obs_space), ("act_space", policy.act_space))}
    shown = {"env_kwargs": public_config(config)["env_kwargs"]}  # without passwords
    texts |= {"config": vars(config) | shown, "fingerprint": fingerprint(config.torch_threads or 1)}
    write_tensor_file(path, POLICY_FORMAT, tensors, texts)
    return path


@default_torch()
def read_policy(path: str | os.PathLike, model=None) -> tuple[Policy, Config]:
    """(policy, settings of the run that trained it) of a file or run; see fastppo.load.

    `model` is the class of the policy's network, if that is a network of the user's.
    """
    path = policy_at(Path(path))
    if model is not None:  # what is wrong with it is no fault of the file
        Config(model=model)
        model = import_callable(model, "model") if isinstance(model, str) else model
    tensors, texts = read_tensor_file(path, POLICY_FORMAT)
    try:
        stored = texts["config"]
        if stored["model"] not in MODELS and model is None:
            name = stored["model"]
            raise PathError(f"{path} holds a model of your own, {name}, and code that a file names"
                            " is never imported",
                            Set(model=name if ":" in name else "my_module:MyNet"))
        stored["model"] = model or stored["model"]
        config = Config(**{name: stored[name] for name in Config.__match_args__  # and no others
                           if name in stored and name not in having("not_in_policy")})
        spaces = [_build_space(texts[name], name, tensors) for name in ("obs_space", "act_space")]
        policy = build_policy(*spaces, config, model)
        policy.load_state_dict(tensors)
        return policy, config
    except (CheckpointError, ModelError):
        raise
    except Exception as error:  # a file may hold anything
        text = truncate_text(repr(error), 500)
        raise CheckpointError(f"{path} does not fit the model, or is invalid: {text}",
                              "load(path, model=MyNet) with the class it was trained with; a"
                              " built-in network has none") from error


def start_from_policy(ppo, path: str | os.PathLike) -> None:
    """Gives `ppo` the weights and observation moments of a policy's file.

    The log says what such a file does not have. Raises CheckpointError if it does not fit.
    """
    own = None if ppo.config.model in MODELS else ppo.config.model
    found, config = read_policy(path, own)
    pairs = (found.obs_space, ppo.policy.obs_space), (found.act_space, ppo.policy.act_space)
    for what, (theirs, ours) in zip(("observations", "actions"), pairs):
        if theirs != ours:
            theirs, ours = (brief_text(space, 1_000) for space in (theirs, ours))
            raise PathError(f"the policy in {path} is for {what} of the space {theirs}, and"
                            f" this run has {ours}", (
                                "give the environment that it was trained with", Omit("init_from")))
    try:
        ppo.policy.load_state_dict(found.state_dict())
    except RuntimeError as error:
        other = {name: getattr(config, name) for name in having("of_network")
                 if getattr(config, name) != getattr(ppo.config, name)}
        raise PathError(f"the policy in {path} has another network than this run",
                        Set(**other) if other else "give the model that it was trained with"
                        ) from error
    log.warning("starting with the weights and observation moments of %s; it does not have the"
                " optimizer's moments, adapted rates, the scaling of rewards or steps taken", path)


def describe_space(space: Space, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """A space as JSON values; its arrays go to `tensors`, with names that begin with `name`."""
    if inner := subspaces(space):
        text: dict[str, Any] = {"parts": [describe_space(part, f"{name}.{i}", tensors)
                                          for i, (_, part) in enumerate(inner)]}
        if isinstance(space, Dict):
            text |= {"keys": list(space.spaces), "wrapped": isinstance(space, MaskedDict)}
        return text
    if isinstance(space, Discrete):
        # Older versions of Gymnasium have no argument for another dtype.
        other = {} if space.dtype == np.int64 else {"dtype": space.dtype.str}
        return {"n": int(space.n), "start": int(space.start), **other}
    if isinstance(space, MultiBinary):
        return {"bits": np.asarray(space.n).tolist()}
    if isinstance(space, MultiDiscrete):
        text, kinds, dtype = {"choices": space.dtype.str}, ("nvec", "start"), np.dtype(np.int64)
    else:
        text, kinds, dtype = {"dtype": space.dtype.str}, ("low", "high"), space.dtype
    if dtype.char == "g":  # longdouble, which no tensor has
        dtype = np.dtype(np.float64)
    for kind in kinds:
        with np.errstate(over="ignore"):  # a bound beyond float64 becomes infinite
            array = np.array(getattr(space, kind), dtype.newbyteorder("="))
        tensors[f"{name}.{kind}"] = torch.from_numpy(array)
    return text


def _build_space(text: dict[str, Any], name: str, tensors: dict[str, torch.Tensor]) -> Space:
    """The space that `text` describes; its arrays are removed from `tensors`."""
    if "parts" in text:
        inner = [_build_space(part, f"{name}.{i}", tensors) for i, part in enumerate(text["parts"])]
        if "keys" not in text:
            return Tuple(inner)
        return (MaskedDict if text["wrapped"] else Dict)([*zip(text["keys"], inner)])
    if "n" in text:
        return Discrete(**text)
    if "bits" in text:
        return MultiBinary(text["bits"])
    first, second = ("nvec", "start") if "choices" in text else ("low", "high")
    low, high = (tensors.pop(f"{name}.{kind}").numpy() for kind in (first, second))
    if "choices" in text:
        return MultiDiscrete(low, np.dtype(text["choices"]), start=high)
    dtype = np.dtype(text["dtype"])
    return Box(low.astype(dtype), high.astype(dtype), low.shape, dtype)


class LoadedPolicy(Policy):
    """A policy from a file; `config` has the settings of the run that trained it."""

    def __init__(self, policy: Policy, config: Config):
        super().__init__(policy.obs_space, policy.act_space, policy.net, config.norm_obs,
                         policy.head, policy.seed, config.obs_limit)
        self.observer, self.config = policy.observer, config
        self.eval()

    def __repr__(self) -> str:
        config = self.config
        model = getattr(config.model, "__name__", config.model)
        return f"<policy for {config.env_name}: {model}, of a run of {config.total_steps:,} steps>"

    def evaluate(self, env: Any = None, episodes: int = 100, deterministic: bool = True,
                 seed: int | None = None, env_kwargs: dict[str, Any] | None = None,
                 max_episode_steps: int | None = None) -> Evaluation:
        """Plays episodes; with the defaults those that `ppo.evaluate` plays after training.

        `env`: an id or callable to play in; None: the environment in the file, which must be an id.
        Ids are EnvPool's if vec was envpool. `seed`: None for that of the run. `env_kwargs` and
        `max_episode_steps` replace those of the run. Raises ConfigError for an environment that the
        policy cannot play, EnvError for one that fails.
        """
        factories = factories_for(self, env, env_kwargs, max_episode_steps)
        with torch_threads(self.threads, self.config.precision == "tf32"):
            return evaluate(self, factories, self.seed_of_episodes(seed), episodes, deterministic)

    @property
    def threads(self) -> int:
        """The threads of torch in an evaluation: as many as in the run, if there are the cores."""
        return min(self.config.torch_threads or 1, limits.usable_cores())

    def seed_of_episodes(self, seed: int | None) -> int:
        """`seed`, or that of the run for None; raises ConfigError for one that no run has."""
        return (self.config if seed is None else self.config.replace(seed=seed)).seed or 0


def load(path: str | os.PathLike, device: str = "cpu", model=None) -> LoadedPolicy:
    """The policy in a file, or the last one in the folder of a run.

    `model` is the class of its network, if it is a network of your own. Loading imports and runs
    nothing that the file names. Raises CheckpointError if the file is missing, damaged, or not a
    policy.
    """
    place = checked_device(str(device))
    return LoadedPolicy(*read_policy(path, model)).to(place)


def factories_for(policy: LoadedPolicy, env: Any = None, env_kwargs: dict[str, Any] | None = None,
                  max_episode_steps: int | None = None) -> list[EnvFactory]:
    """The factories of environments in which to evaluate a policy from a file, as after training.

    The arguments are those of LoadedPolicy.evaluate. Raises ConfigError if the environment must be
    named, cannot be made, or has other spaces than the policy.
    """
    config = policy.config
    if env is None:
        env = config.eval_env or config.env_name
        check_registered(env, "the policy", config.vec)
    if env_kwargs is None and env == config.env_name:
        env_kwargs = stored_arguments(config.env_name, config.env_kwargs)
    limit = config.max_episode_steps if max_episode_steps is None else max_episode_steps
    own = env == config.env_name or made_by_envpool(env, config.vec)
    changes = {"vec": config.vec, "env_name": env} if own else {"vec": "workers"}
    with closing(source_for(env, config.replace(
            env_kwargs=env_kwargs, max_episode_steps=limit, eval_env=None, num_workers=0,
            **changes))) as source:
        check_spaces(f"{source.factories[0].name} does not fit: its",
                     (policy.obs_space, policy.act_space), (source.obs_space, source.act_space),
                     "give the environment that it was trained on, with the same env_kwargs")
        return source.evaluation_factories()


def stored_arguments(env_name: str, env_kwargs: dict[str, Any] | None) -> dict[str, Any] | None:
    """The arguments of an environment in a file, if they are numbers; else raises ConfigError.

    Texts may name files or modules, so they must be given.
    """
    if has_text(env_kwargs):
        raise ConfigError(f"{env_name} had arguments in training, and texts of a file are never"
                          " used as arguments", Set(env_kwargs=env_kwargs))
    return env_kwargs


def has_text(value: Any) -> bool:
    """True for a text, and for a dict or a list with one."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, str) or any(map(has_text, parts))
