"""The options that the verbs share which play episodes with a trained policy."""

from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from fastppo.errors import ConfigError
from fastppo.settings.file_names import BEST_FILE, MODEL_FILE
from fastppo.settings.fixes import Omit, Set

POLICY_FIX = "give the folder of a run, such as runs/latest, or the file of a policy"


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

    def file(self, place: Path) -> Path:
        """The file of the policy at `place`, a file or the folder of a run.

        Raises ConfigError if there is none.
        """
        path = place / (BEST_FILE if self.best else MODEL_FILE) if place.is_dir() else place
        if self.best and not place.is_dir():
            raise ConfigError(f"best is for the folder of a run, and {place} is none", Omit("best"))
        if not path.is_file():
            raise ConfigError(f"{place} has no {path.name}" if place.is_dir() else
                              f"there is no file or folder {place}", POLICY_FIX)
        return path


def check_episodes(episodes: Any) -> None:
    """Raises ConfigError unless `episodes` is a whole number, 1 or more."""
    if not isinstance(episodes, Integral) or isinstance(episodes, bool) or episodes < 1:
        raise ConfigError(f"episodes is {episodes!r}, but must be a whole number, 1 or more",
                          Set(episodes=100))
