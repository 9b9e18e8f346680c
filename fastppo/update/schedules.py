"""The coefficients of an iteration: scheduled and adapted learning rates, clip ranges, weights."""

import logging
import math
from typing import Any, NamedTuple

from torch import Tensor

from fastppo.config import Config
from fastppo.errors import ConfigError, user_code
from fastppo.settings.values import Scheduled, schedule_function
from fastppo.update.batches import Batch

FIRST_SHARE = 0.01  # of the learning rate at the beginning of a warm-up
SLOWEST, FASTEST, FACTOR = 1e-6, 1e-2, 1.5  # of the adaptive learning rate [rl_games]

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


def coefficients_at(config: Config, remaining: float, step: float = math.inf) -> Coefficients:
    """The coefficients when the share `remaining` of training is left, from 1 to 0, at `step`.

    With anneal_lr a learning rate that is a plain number falls linearly; not lr with adaptive_kl.
    Before step lr_warmup both rates rise linearly from a hundredth. Raises ConfigError if a
    function of the user's returns an impossible value.
    """
    done = min(1.0, step / config.lr_warmup) if config.lr_warmup else 1.0
    warm = FIRST_SHARE + (1.0 - FIRST_SHARE) * done

    found: dict[str, Any] = {}
    for name in ("lr", "critic_lr", "clip_range", "clip_range_vf", "entropy_coef"):
        setting = getattr(config, name)
        constant = setting is None or isinstance(setting, (int, float))
        found[name] = setting if constant else scheduled_value(name, setting, remaining)
        if name in ("lr", "critic_lr") and setting is not None:
            adapted = name == "lr" and config.adaptive_kl is not None
            falls = constant and config.anneal_lr and not adapted
            found[name] = found[name] * (remaining if falls else 1.0) * warm
    if found["critic_lr"] is None:
        found["critic_lr"] = found["lr"]
    return Coefficients(**found, value_coef=config.value_coef, dual_clip=config.dual_clip)


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


class KLControl:
    """KL early stop and the learning rate that adapts to the KL.

    target_kl: an epoch whose mean KL is above 1.5 times it is the last one [SB3]. adaptive_kl: the
    learning rate is divided by 1.5 if the KL is above twice it, multiplied by 1.5 if the KL is
    below half of it, within 1e-6 and 1e-2; it is kept between iterations [rl_games, rsl_rl].
    """

    def __init__(self, config: Config):
        self.config, self.warned = config, False
        self.state: float | None = None  # the adapted learning rate

    def rates(self, coefs: Coefficients) -> tuple[float, float]:
        """(actor's, critic's) learning rate; without critic_lr both are the same."""
        lr = coefs.lr if self.state is None else self.state
        return lr, lr if self.config.critic_lr is None else coefs.critic_lr

    def adapt(self, kl: Tensor, coefs: Coefficients, epoch: int, samples: Batch) -> bool:
        """Adapts the rate to the mean KL [] of `epoch`; returns True if no epoch is to follow.

        The KL, which is read only if needed, is 0 in the first epoch, but for rounding, if the
        samples are one minibatch: it is computed before the step. Warns once if a loop of the
        user's continues after the end of the schedule.
        """
        (lr, critic_lr), aim, target = self.rates(coefs), self.config.adaptive_kl, \
            self.config.target_kl
        if not (self.warned or lr or critic_lr):
            self.warned = True
            log.warning("the learning rate has fallen to 0, for all total_steps are done: this"
                        " update changes nothing\n  fix: PPO(..., total_steps=...), as many as"
                        " your loop will take")
        if aim is not None and (epoch or min(self.config.num_minibatches,
                                             len(samples.ends) - 1) > 1):
            if kl > 2.0 * aim:
                self.state = max(lr / FACTOR, SLOWEST)
            elif 0 != kl < 0.5 * aim:  # rounding can make a small KL negative
                self.state = min(lr * FACTOR, FASTEST)
        return target is not None and bool(kl > 1.5 * target)

    def restore(self, state: float | None) -> None:
        """Restores a `state`; ValueError if it is no learning rate.

        It may lie outside the limits above, because `lr`, from which it is adapted, may.
        """
        if state is not None and not 0 < float(state) < math.inf:
            raise ValueError(f"the adapted learning rate is {state!r}")
        self.state = state
