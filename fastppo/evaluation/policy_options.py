"""The options that the verbs share which play episodes with a trained policy."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

from fastppo.errors import ConfigError, Set


@dataclass(frozen=True)
class PolicyOptions:
    """Which policy is played, in which environment."""

    OPERANDS = "MODEL|RUN"
    best: bool = False
    """Of a run's folder take best.safetensors, the best policy of the evaluations while training,
    not model.safetensors, the last one"""
    model: str | None = None
    """Class of the network in the file, as `module:Class`, if it is a network of your own"""
    env_name: str | None = None
    """Environment, an id or `module:callable`; none: the one in the file if that is an id of
    Gymnasium's, because code that a file names is never imported"""
    env_kwargs: dict[str, Any] | None = None
    """Arguments of the environment; none: those in the file, if they are numbers"""
    max_episode_steps: int | None = None
    """Steps after which an episode ends; none: as in training"""
    seed: int | None = None
    """Seed of the episodes; none: that of the run, so they are those of its last evaluation"""
    stochastic: bool = False
    """Sample the actions, as in training, instead of taking the likeliest ones"""


def check_episodes(episodes: Any) -> None:
    """Raises ConfigError unless `episodes` is a whole number, 1 or more."""
    if not isinstance(episodes, Integral) or isinstance(episodes, bool) or episodes < 1:
        raise ConfigError(f"episodes is {episodes!r}, but must be a whole number, 1 or more",
                          Set(episodes=100))
