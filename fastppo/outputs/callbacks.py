"""Callbacks: functions or objects that `learn` calls while it trains.

    on_start(ppo)                 before the first iteration of a call of learn
    on_collect(ppo, rollout)      after a rollout, before its update
    on_iteration(ppo, stats)      after an iteration; False ends training
    on_video(ppo, path)           after a video has been written, see video_interval
    on_end(ppo)                   after the last iteration, also after an exception

An object has any of these methods; a function is called like on_iteration. Sinks are callbacks.
"""

import inspect
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator

import numpy as np

from fastppo.build.resolve import target_steps
from fastppo.collect import Rollout
from fastppo.errors import ConfigError
from fastppo.outputs.action_metrics import action_metrics
from fastppo.settings.script_names import unknown_arguments
from fastppo.settings.spelling import closest

# The methods of a callback, and the number of their arguments.
EVENTS = {"on_start": 1, "on_collect": 2, "on_iteration": 2, "on_video": 2, "on_end": 1}
SECOND_ARGUMENT = {"on_collect": "rollout", "on_video": "path"}  # of the others: stats
SB3_EVENTS = {"on_training_start": "on_start", "on_rollout_start": "on_iteration",
              "on_step": "on_iteration", "on_rollout_end": "on_collect",
              "on_training_end": "on_end"}  # Stable-Baselines3's methods
Callback = Callable[[Any, dict[str, float]], Any] | object
Callbacks = Callback | Iterable[Callback]


class Hooks:
    """The methods of some callbacks by event, in the order of the callbacks."""

    def __init__(self, callbacks: Iterable[Callback] = ()):
        found = list(callbacks)
        self.start, self.collect, self.iteration, self.video, self.end = (
            [method for callback in found if (method := _method(callback, event))]
            for event in EVENTS)

    def report(self, ppo, stats: dict[str, float]) -> bool:
        """Calls on_iteration of all, if any; returns True if one of them ends training."""
        if self.iteration:
            stats = stats | action_metrics(ppo)
        return any([asks_to_stop(method(ppo, stats)) for method in self.iteration])


@contextmanager
def learning(ppo, total_steps: int | None, callbacks: Callbacks, others: dict[str, Any]
             ) -> Iterator[Callable[[dict[str, float]], bool]]:
    """Sets `ppo.total` and the hooks of `ppo` inside the block; calls on_start and on_end.

    Yields a function that reports the metrics of an iteration, and is True if training ends: on all
    ranks of a run if a callback of one of them ends it.
    `others` are arguments that learn does not have: ConfigError.
    """
    if others:
        raise ConfigError(*unknown_arguments("learn", others))
    hooks = Hooks([*ppo.sinks, *as_callbacks(callbacks)])
    ppo.total, ppo.hooks = target_steps(ppo, total_steps), hooks
    try:
        for method in hooks.start:
            method(ppo)
        yield lambda stats: any(ppo.ranks.gather(hooks.report(ppo, stats)))
    finally:
        ppo.total, ppo.hooks = ppo.config.total_steps, Hooks()
        for method in hooks.end:
            method(ppo)


def rollout_collected(ppo, rollout: Rollout) -> None:
    """Counts the episodes that ended in a rollout, and calls on_collect."""
    ppo.episodes.add(ppo.arena, ppo.progress.iteration)
    for method in ppo.hooks.collect:
        method(ppo, rollout)


def as_callbacks(callbacks: Callbacks) -> tuple[Callback, ...]:
    """`callbacks`, one or several, as a tuple; ConfigError for one that has no method to call."""
    one = isinstance(callbacks, str) or _methods(callbacks)
    several = isinstance(callbacks, Iterable) and not one
    found = tuple(callbacks) if several else (callbacks,)
    for callback in found:
        _check_events(callback)
        if isinstance(callback, type) or not _methods(callback):
            example = f"{callback.__name__}()" if isinstance(callback, type) and _methods(
                callback) else "lambda ppo, stats: print(stats)"
            what = "is a class" if isinstance(callback, type) else "is no function"
            raise ConfigError(f"learn was given the callback {callback!r}, which {what} and no"
                              f" object with any of {', '.join(EVENTS)}",
                              f"ppo.learn(callbacks=[{example}])")
        _check_arguments(callback)
    return found


def asks_to_stop(answer: Any) -> bool:
    """True if the answer of a callback ends training: False, or numpy's False."""
    return isinstance(answer, (bool, np.bool_)) and not answer


def _check_events(callback: Any) -> None:
    """Raises ConfigError for methods on_... that learn does not call."""
    wrong = [name for name in dir(callback) if name.startswith("on_") and name not in EVENTS
             and callable(getattr(callback, name, None))]
    if wrong:
        ours = [SB3_EVENTS.get(name) or closest(name, EVENTS) for name in wrong]
        renamed = ", ".join(f"{name} to {our}" for name, our in zip(wrong, ours) if our)
        raise ConfigError(f"the callback {callback!r} has {', '.join(wrong)}, but learn calls only"
                          f" {', '.join(EVENTS)}", f"rename {renamed}" if renamed else
                          "give it another name")


def _check_arguments(callback: Any) -> None:
    """Raises ConfigError for a method that cannot be called with its arguments."""
    for event, count in EVENTS.items():
        try:
            if method := _method(callback, event):
                inspect.signature(method).bind(*range(count))
        except ValueError:  # it is written in C and has no signature
            continue
        except TypeError as error:
            given = "(ppo)" if count == 1 else f"(ppo, {SECOND_ARGUMENT.get(event, 'stats')})"
            raise ConfigError(f"{event} of the callback {callback!r} is called with {given}, but:"
                              f" {error}", f"give it the parameters {given}") from error


def _methods(callback: Any) -> list[Callable]:
    return [method for event in EVENTS if (method := _method(callback, event))]


def _method(callback: Any, event: str) -> Callable | None:
    """The method of a callback for an event; a function is called after every iteration."""
    method = getattr(callback, event, None)
    if method is None and event == "on_iteration" and callable(callback):
        return callback
    return method if callable(method) else None
