"""A policy from a file, which can be evaluated without a trainer."""

import os
from typing import Any, Never

from fastppo.config import Config
from fastppo.envs.families import check_registered
from fastppo.envs.make import EnvFactory
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError, Set
from fastppo.evaluation.evaluate import Evaluation, evaluate
from fastppo.evaluation.factories import check_spaces
from fastppo.machine import limits
from fastppo.networks.torch_state import torch_threads
from fastppo.policy import Policy
from fastppo.runs.policy_file import read_policy
from fastppo.settings.known_names import unknown_names
from fastppo.trainer.resolve import usable_device


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
                 max_episode_steps: int | None = None, **others: Never) -> Evaluation:
        """Plays episodes; with the defaults those that `ppo.evaluate` plays after training.

        `env`: an id or callable to play in; None: the environment in the file, which must be an id
        of Gymnasium's. `seed`: None for that of the run. `env_kwargs` and `max_episode_steps`
        replace those of the run. Raises ConfigError for an environment that the policy cannot play,
        EnvError for one that fails.
        """
        if others:
            raise ConfigError(*unknown_names("evaluate has no argument", others, (
                "env", "episodes", "deterministic", "seed", "env_kwargs", "max_episode_steps")))
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


def load(path: str | os.PathLike, device: str = "cpu", model=None, **others: Never
         ) -> LoadedPolicy:
    """The policy in a file, or the last one in the folder of a run.

    `model` is the class of its network, if it is a network of your own. Loading imports and runs
    nothing that the file names. Raises CheckpointError if the file is missing, damaged, or not a
    policy.
    """
    if others:
        raise ConfigError(*unknown_names("load has no argument", others, (
            "path", "device", "model")))
    place = usable_device(Config(device=str(device)))
    return LoadedPolicy(*read_policy(path, model)).to(place)


def factories_for(policy: LoadedPolicy, env: Any = None, env_kwargs: dict[str, Any] | None = None,
                  max_episode_steps: int | None = None) -> list[EnvFactory]:
    """The factories of environments in which to evaluate a policy from a file, as after training.

    The arguments are those of LoadedPolicy.evaluate. Raises ConfigError if the environment must be
    named, cannot be made, or has other spaces than the policy.
    """
    config = policy.config
    env = trained_environment(config) if env is None else env
    if env_kwargs is None and env == config.env_name:
        env_kwargs = stored_arguments(config.env_name, config.env_kwargs)
    limit = config.max_episode_steps if max_episode_steps is None else max_episode_steps
    source = EnvSource(env, config.replace(env_kwargs=env_kwargs, max_episode_steps=limit,
                                           eval_env=None, num_workers=0))
    check_spaces(f"{source.factories[0].name} does not fit: its",
                 (policy.obs_space, policy.act_space), (source.obs_space, source.act_space),
                 "give the environment that it was trained on, with the same env_kwargs")
    return source.evaluation_factories()


def trained_environment(config: Config) -> str:
    """The id of the environment in which a run evaluated; ConfigError if it is no registered id."""
    name = config.eval_env or config.env_name
    check_registered(name, "the policy")
    return name


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
