"""The coefficients of an iteration: scheduled learning rates, clip ranges and loss weights."""

import math
from typing import NamedTuple

from fastppo.config import Config
from fastppo.errors import ConfigError, user_code
from fastppo.settings.schedules import Scheduled, schedule_function

FIRST_SHARE = 0.01  # of the learning rate at the beginning of a warm-up


class Coefficients(NamedTuple):
    """The numbers of one iteration, named as in Config; schedules are evaluated."""

    lr: float
    critic_lr: float
    clip_range: float
    clip_range_vf: float | None
    entropy_coef: float
    value_coef: float
    dual_clip: float | None


def coefficients_of(config: Config, begin: int, total: int) -> Coefficients:
    """The coefficients of the iteration that begins at step `begin` of `total`."""
    return coefficients_at(config, 1.0 - min(begin / (total or 1), 1.0), begin)


def coefficients_at(config: Config, remaining: float, step: float = math.inf) -> Coefficients:
    """The coefficients when the share `remaining` of training is left, from 1 to 0, at `step`.

    With anneal_lr a learning rate that is a plain number falls linearly; not lr with adaptive_kl.
    Before step lr_warmup both rates rise linearly from a hundredth. Raises ConfigError if a
    function of the user's returns an impossible value.
    """
    done = min(1.0, step / config.lr_warmup) if config.lr_warmup else 1.0
    warm = FIRST_SHARE + (1.0 - FIRST_SHARE) * done

    def value(name: str) -> float | None:
        setting = getattr(config, name)
        return None if setting is None else scheduled_value(name, setting, remaining)

    def rate(name: str) -> float:
        constant = isinstance(getattr(config, name), (int, float))
        adapted = name == "lr" and config.adaptive_kl is not None
        falls = constant and config.anneal_lr and not adapted
        return value(name) * (remaining if falls else 1.0) * warm

    lr = rate("lr")
    return Coefficients(
        lr=lr, critic_lr=lr if config.critic_lr is None else rate("critic_lr"),
        clip_range=value("clip_range"), clip_range_vf=value("clip_range_vf"),
        entropy_coef=value("entropy_coef"), value_coef=config.value_coef,
        dual_clip=config.dual_clip)


def scheduled_value(name: str, setting: Scheduled, remaining: float) -> float:
    """The value of a setting when the share `remaining` of training is left.

    Raises ConfigError if a function fails, or returns no finite number of 0 or more.
    """
    with user_code(ConfigError, f"the function given as {name}, called with the remaining progress"
                   f" {remaining:g},", "return a finite number, 0 or more"):
        number = float(schedule_function(setting)(remaining))
        if not 0 <= number < math.inf:
            raise ValueError(f"it returned {number}")
        return number
