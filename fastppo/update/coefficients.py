"""Scheduled coefficients; KL early stop and adaptive learning rate."""

import logging
import math
from typing import NamedTuple

from torch import Tensor

from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.settings.schedules import Scheduled, schedule_function

SLOWEST, FASTEST, FACTOR = 1e-6, 1e-2, 1.5  # of the adaptive learning rate [rl_games]
KL_ROUNDING = 2e-7  # an estimated KL below this may be 0: ratios are rounded to float32

log = logging.getLogger("fastppo")


class Coefficients(NamedTuple):
    """The numbers of one iteration, named as in Config; schedules are evaluated."""

    lr: float
    critic_lr: float
    clip_range: float
    clip_range_vf: float | None
    entropy_coef: float
    value_coef: float
    dual_clip: float | None


def coefficients_at(config: Config, remaining: float) -> Coefficients:
    """The coefficients when the share `remaining` of training is left, from 1 to 0.

    With anneal_lr a learning rate that is a plain number falls linearly; not lr with adaptive_kl.
    Raises ConfigError if a function of the user's returns an impossible value.
    """
    def value(name: str) -> float | None:
        setting = getattr(config, name)
        return None if setting is None else scheduled_value(name, setting, remaining)

    def rate(name: str) -> float:
        constant = isinstance(getattr(config, name), (int, float))
        adapted = name == "lr" and config.adaptive_kl is not None
        falls = constant and config.anneal_lr and not adapted
        return value(name) * (remaining if falls else 1.0)

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
    try:
        number = float(schedule_function(setting)(remaining))
        if not 0 <= number < math.inf:
            raise ValueError(f"it returned {number}")
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(f"the function given as {name} gave no finite number, 0 or more, for the"
                          f" remaining progress {remaining:g}: {type(error).__name__}: {error}",
                          f"{name}=lambda remaining: {0.2 if 'clip' in name else 3e-4} * remaining"
                          ) from error
    return number


class KLControl:
    """KL early stop and the learning rate that adapts to the KL.

    target_kl: an epoch whose mean KL is above 1.5 times it is the last one [SB3]. adaptive_kl: the
    learning rate is divided by 1.5 if the KL is above twice it, multiplied by 1.5 if the KL is
    below half of it, within 1e-6 and 1e-2; it is kept between iterations [rl_games, rsl_rl].
    """

    def __init__(self, config: Config):
        self.config, self.warned = config, False
        self.state: float | None = None  # the adapted learning rate

    def rates(self, now: Coefficients) -> tuple[float, float]:
        """(actor's, critic's) learning rate; without critic_lr both are the same."""
        lr = now.lr if self.state is None else self.state
        return lr, lr if self.config.critic_lr is None else now.critic_lr

    def stops(self, kl: Tensor, now: Coefficients) -> bool:
        """Adapts the learning rate to an epoch's mean KL; returns True if the epoch is the last.

        The KL [] is read from its device only if a setting needs it.
        """
        self._warn_at_rate_0(now)
        lr, target, aim = self.rates(now)[0], self.config.target_kl, self.config.adaptive_kl
        if aim is not None and kl > 2.0 * aim:
            self.state = max(lr / FACTOR, SLOWEST)
        elif aim is not None and KL_ROUNDING < kl < 0.5 * aim:  # 0: before the first step
            self.state = min(lr * FACTOR, FASTEST)
        return target is not None and bool(kl > 1.5 * target)

    def restore(self, state: float | None) -> None:
        """Restores a `state`."""
        self.state = state

    def _warn_at_rate_0(self, now: Coefficients) -> None:
        """Warns once if a loop of the user's continues after the end of the schedule."""
        if not self.warned and not any(self.rates(now)):
            self.warned = True
            log.warning("the learning rate has fallen to 0, for all total_steps are done: this"
                        " update changes nothing\n  fix: PPO(..., total_steps=...), as many as"
                        " your loop will take")
