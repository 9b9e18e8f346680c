"""With nan_policy=reset_env, a number of an environment that is not finite ends its episode."""

from typing import Any, Callable

import gymnasium as gym

from fastppo.envs.wrappers import unchecked_step
from fastppo.spaces.observations import NonFiniteValue, ObservationLayout
from fastppo.stepping.checks import checked_reward
from fastppo.stepping.environments import Environments, EpisodeRules
from fastppo.stepping.episodes import RolloutRecorder

MOST_DISCARDED = 100


def episode_step(env: gym.Env, limit: float, rules: EpisodeRules, layout: ObservationLayout
                 ) -> tuple[Callable[[Any], tuple], float]:
    """(step, limit) of an episode, see unchecked_step; it is truncated after `limit` at the latest.

    With reset_on_nan, the step raises NonFiniteValue.
    """
    step, longest = unchecked_step(env)
    return finite_step(step, layout) if rules.reset_on_nan else step, min(limit, longest)


def finite_step(step: Callable[[Any], tuple], layout: ObservationLayout) -> Callable[[Any], tuple]:
    """`step`, but it raises NonFiniteValue for a reward or an observation that is not finite."""
    def checked(action: Any) -> tuple:
        obs, rew, *rest = step(action)
        checked_reward(rew)
        layout.rows([obs])
        return obs, rew, *rest
    return checked


def discard_or_raise(envs: Environments, recorder: RolloutRecorder, t: int, e: int,
                     error: BaseException) -> None:
    """Raises the EnvError for a step that failed, or discards it if a number is not finite.

    Then row t of environment e becomes no step and ends the episode, which is truncated with the
    observation before it. The value of that one is known, because it was acted on. Raises the
    EnvError, too, after MOST_DISCARDED steps in a row: such an environment gives no samples.
    """
    if not (envs.rules.reset_on_nan and isinstance(error, NonFiniteValue)):
        raise envs.fault(e, "step()", error) from error
    last, count = envs.discarded[e]
    envs.discarded[e] = envs.now, count + 1 if last == envs.now - 1 else 1
    if envs.discarded[e][1] >= MOST_DISCARDED:
        error = NonFiniteValue(f"{error}, like those of {MOST_DISCARDED - 1} steps before it")
        raise envs.fault(e, "step()", error)
    views = recorder.views
    views.valid[t, e], recorder.rewards[t, e] = False, 0.0
    if t and not (views.term[t - 1, e] or views.trunc[t - 1, e]):
        views.trunc[t - 1, e], views.nxt[t - 1, e] = True, views.val[t, e]
    recorder.end(t, e, envs.running[e].start, False, True, {})
    envs.begin_next(e)
