"""With nan_policy=reset_env, a number of an environment that is not finite ends its episode."""

from typing import Any, Callable

from fastppo.envs.observations import ObservationLayout
from fastppo.stepping.checks import checked_reward
from fastppo.stepping.environments import Environments
from fastppo.stepping.episodes import RolloutRecorder


def finite_step(step: Callable[[Any], tuple], layout: ObservationLayout) -> Callable[[Any], tuple]:
    """`step`, but it raises NonFiniteValue for a reward or an observation that is not finite."""
    def checked(action: Any) -> tuple:
        result = obs, rew, _, _, _ = step(action)
        checked_reward(rew)
        if found := layout.unusable(layout.rows([obs])):
            raise found[1]
        return result
    return checked


def discard_step(envs: Environments, recorder: RolloutRecorder, t: int, e: int) -> None:
    """Row t of environment e becomes no step, and ends the episode; the next one begins after it.

    The episode is truncated with the observation before that step, whose value is known: it was
    acted on.
    """
    views, (number, _, start, _) = recorder.views, envs.running[e]
    views.valid[t, e], recorder.rewards[t, e] = False, 0.0
    if t and not (views.term[t - 1, e] or views.trunc[t - 1, e]):
        views.trunc[t - 1, e], views.nxt[t - 1, e] = True, views.val[t, e]
    recorder.end(t, e, start, False, True, {})
    envs.begin_episode(e, envs.new_episode(e, number + 1 if number >= 0 else number - 1))
