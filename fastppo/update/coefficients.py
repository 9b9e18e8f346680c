"""Scheduled coefficients; KL early stop and adaptive learning rate."""

import logging
import math
from typing import Any, NamedTuple

from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.settings.schedules import Scheduled, schedule_function

SLOWEST, FASTEST, FACTOR = 1e-6, 1e-2, 1.5  # of an adaptive learning rate [rl_games]
KL_ROUNDING = 2e-7  # an estimated KL below this may be 0: ratios are rounded to float32

log = logging.getLogger("fastppo")


class Coefficients(NamedTuple):
    """The numbers of one iteration, named as in Config; of a schedule, what it is now."""

    lr: float
    critic_lr: float
    clip_range: float
    clip_range_vf: float | None
    entropy_coef: float
    value_coef: float
    dual_clip: float | None


def coefficients_at(config: Config, remaining: float) -> Coefficients:
    """The coefficients when `remaining` of the progress is left, 1 to 0.

    A learning rate that is a plain number falls with it under anneal_lr; not lr under adaptive_kl.
    Raises ConfigError where a function of the user's returns what no coefficient can be.
    """
    def now(name: str, value: Any) -> float | None:
        return None if value is None else scheduled_value(name, value, remaining)

    def rate(name: str, value: Any) -> float:
        plain, adapted = isinstance(value, (int, float)), config.adaptive_kl is not None
        falls = plain and config.anneal_lr and not (adapted and name == "lr")
        return scheduled_value(name, value, remaining) * (remaining if falls else 1.0)

    lr = rate("lr", config.lr)
    return Coefficients(
        lr, lr if config.critic_lr is None else rate("critic_lr", config.critic_lr),
        now("clip_range", config.clip_range), now("clip_range_vf", config.clip_range_vf),
        now("entropy_coef", config.entropy_coef), config.value_coef, config.dual_clip)


class KLControl:
    """What the KL of an epoch decides: whether it is the last one, and the next one's rate.

    target_kl: no further epoch after one whose KL is above 1.5 times it [SB3]. adaptive_kl: the
    learning rate is divided by 1.5 where the KL is above twice that, multiplied by 1.5 where it is
    below half of it, from 1e-6 to 1e-2 [rl_games, rsl_rl]; it goes on through the iterations.
    """

    def __init__(self, config: Config):
        self.config, self.state = config, None  # the adapted learning rate, once there is one
        self.told = False  # that nothing is learnt any more

    def rates(self, now: Coefficients) -> tuple[float, float]:
        """(actor's, critic's) learning rate; a critic without one of its own has the actor's."""
        lr = now.lr if self.state is None else self.state
        return lr, lr if self.config.critic_lr is None else now.critic_lr

    def over(self, kl: Any, now: Coefficients) -> bool:
        """Take in an epoch's mean KL (read only where it counts); whether it was the last one."""
        self._tell(now)
        target, aim = self.config.target_kl, self.config.adaptive_kl
        if aim is not None:
            lr, kl = self.rates(now)[0], float(kl)
            if kl > 2.0 * aim:
                lr = max(lr / FACTOR, SLOWEST)
            elif KL_ROUNDING < kl < 0.5 * aim:  # 0: nothing was measured after a step
                lr = min(lr * FACTOR, FASTEST)
            self.state = lr
        return target is not None and bool(kl > 1.5 * target)

    def _tell(self, now: Coefficients) -> None:
        """Say, once, that a loop goes on although its schedule has come to its end."""
        if not self.told and not any(self.rates(now)):
            self.told = True
            log.warning("the learning rate has fallen to 0, for all total_steps are done: this"
                        " update changes nothing\n  fix: PPO(..., total_steps=...), as many as"
                        " your loop will take")

    def restore(self, state: float | None) -> None:
        """Go back to a `state`."""
        self.state = state


def scheduled_value(name: str, value: Scheduled, remaining: float) -> float:
    """What the setting `name` is when `remaining` of the progress is left.

    Raises ConfigError where a function fails, or returns no finite number, 0 or more.
    """
    fix = f"{name}=lambda remaining: {0.2 if 'clip' in name else 3e-4} * remaining"
    try:
        found = schedule_function(value)(remaining)
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(f"the function given as {name} failed for the remaining progress"
                          f" {remaining:g}: {type(error).__name__}: {error}", fix) from error
    try:
        number = float(found)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ConfigError(f"the function given as {name} returned {found!r} for the remaining"
                          f" progress {remaining:g}, but must return a finite number, 0 or more",
                          fix)
    return number
