"""KL early stop, and the learning rate that adapts to the KL."""

import logging
import math

from torch import Tensor

from fastppo.config import Config
from fastppo.update.batches import Batch
from fastppo.update.coefficients import Coefficients

SLOWEST, FASTEST, FACTOR = 1e-6, 1e-2, 1.5  # of the adaptive learning rate [rl_games]

log = logging.getLogger("fastppo")


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

    def adapt(self, kl: Tensor, coefs: Coefficients, epoch: int, samples: Batch) -> None:
        """Adapts the learning rate to the mean KL [] of `epoch`, which is read only if needed.

        The KL of the first epoch is 0, but for rounding, if the samples are one minibatch: it is
        computed before the step.
        """
        self._warn_at_rate_0(coefs)
        lr, aim = self.rates(coefs)[0], self.config.adaptive_kl
        if aim is None or epoch == 0 and min(self.config.num_minibatches, samples.units) == 1:
            return
        if kl > 2.0 * aim:
            self.state = max(lr / FACTOR, SLOWEST)
        elif 0 != kl < 0.5 * aim:  # rounding can make a small KL negative
            self.state = min(lr * FACTOR, FASTEST)

    def exceeded(self, kl: Tensor) -> bool:
        """Returns True if an epoch with this mean KL [] is the last one of its iteration."""
        target = self.config.target_kl
        return target is not None and bool(kl > 1.5 * target)

    def restore(self, state: float | None) -> None:
        """Restores a `state`; ValueError if it is no learning rate.

        It may lie outside the limits above, because `lr`, from which it is adapted, may.
        """
        if state is not None and not 0 < float(state) < math.inf:
            raise ValueError(f"the adapted learning rate is {state!r}")
        self.state = state

    def _warn_at_rate_0(self, coefs: Coefficients) -> None:
        """Warns once if a loop of the user's continues after the end of the schedule."""
        if not self.warned and not any(self.rates(coefs)):
            self.warned = True
            log.warning("the learning rate has fallen to 0, for all total_steps are done: this"
                        " update changes nothing\n  fix: PPO(..., total_steps=...), as many as"
                        " your loop will take")
