"""Callbacks: functions or objects that `learn` calls while it trains.

    on_start(ppo)                 before the first iteration of a call of learn
    on_collect(ppo, rollout)      after a rollout, before its update
    on_iteration(ppo, stats)      after an iteration; False ends training
    on_video(ppo, path)           after a video has been written, see video_interval
    on_end(ppo)                   after the last iteration, also after an exception; not where its
                                  own on_start has not succeeded

An object has any of these methods; a function is called like on_iteration. Sinks are callbacks.
"""

import inspect
import logging
import math
from contextlib import contextmanager
from functools import partial
from numbers import Real
from typing import Any, Callable, Iterable, Iterator

import numpy as np

from fastppo.collect import Rollout
from fastppo.errors import ConfigError, Error
from fastppo.update.schedules import coefficients_at

# The methods of a callback, and the number of their arguments, of which `ppo` is the first.
EVENTS = {"on_start": 1, "on_collect": 2, "on_iteration": 2, "on_video": 2, "on_end": 1}
Callback = Callable[[Any, dict[str, float]], Any] | object
Callbacks = Callback | Iterable[Callback]

log = logging.getLogger("fastppo")


class Hooks:
    """The methods of some callbacks by event, in the order of the callbacks.

    `calling` is True while one of them runs.
    """

    calling = False

    def __init__(self, callbacks: Iterable[Callback] = ()):
        self.callbacks = list(callbacks)
        self.collect, self.iteration, self.video = (
            [methods[event] for callback in self.callbacks
             if event in (methods := _methods(callback))]
            for event in ("on_collect", "on_iteration", "on_video"))

    def report(self, ppo, stats: dict[str, float]) -> bool:
        """Calls on_iteration of all, if any; True if one of them, on any rank, ends training."""
        if ppo.ranks.size == 1 and not self.iteration:
            return False
        if any(ppo.ranks.gather(bool(self.iteration))):  # its numbers are of all ranks
            from fastppo.trainer.metrics import action_metrics
            stats = stats | action_metrics(ppo)
        ended = any([isinstance(answer, (bool, np.bool_)) and not answer
                     for answer in self.call(self.iteration, ppo, stats)])
        return any(ppo.ranks.gather(ended))

    def call(self, methods: Iterable[Callable | None], *given: Any) -> list[Any]:
        """The answers of some methods; None is no method."""
        self.calling = True
        try:
            return [method(*given) for method in methods if method]
        finally:
            self.calling = False


NO_HOOKS = Hooks()  # those of a trainer that does not learn


@contextmanager
def learning(ppo, total_steps: int | None, callbacks: Callbacks
             ) -> Iterator[Callable[[dict[str, float]], bool]]:
    """Sets `ppo.total` and the hooks of `ppo` inside the block; calls on_start and on_end.

    Yields a function that reports the metrics of an iteration, and is True if training ends: on all
    ranks of a run if a callback of one of them ends it. Of several exceptions the first is raised,
    but an interrupt before all others. Error if `ppo` learns already.
    """
    hooks = Hooks([*ppo.sinks, *(() if callbacks == () else as_callbacks(callbacks))])
    ppo.check_open()
    if ppo.hooks is not NO_HOOKS:
        raise learns_already()
    total, started, errors = target_steps(ppo, total_steps), [], []
    try:
        ppo.total, ppo.hooks = total, hooks
        try:
            for callback in hooks.callbacks:
                hooks.call([_methods(callback).get("on_start")], ppo)
                started.append(callback)
            yield partial(hooks.report, ppo)
        except BaseException as error:
            errors.append(error)
        for callback in started:
            try:
                hooks.call([_methods(callback).get("on_end")], ppo)
            except BaseException as error:
                errors.append(error)
    finally:
        ppo.total, ppo.hooks = ppo.config.total_steps, NO_HOOKS
    errors.sort(key=lambda error: isinstance(error, Exception))  # Ctrl-C before all others
    for error in errors[1:]:
        if not isinstance(error, BrokenPipeError):  # whoever reads has left
            log.warning("on_end of a callback failed, too: %s: %s", type(error).__name__, error)
    if errors:
        raise errors.pop(0)  # `errors` would keep its frames, and they keep `errors`


def learns_already() -> Error:
    """The error for a part of training that is called while `learn` runs."""
    return Error("learn of this trainer is running, and until it has ended no callback and no other"
                 " thread may call learn, collect or update",
                 "call it after that (a callback ends learn by returning False), or make another"
                 " trainer")


def rollout_collected(ppo, rollout: Rollout) -> None:
    """Counts the episodes that ended in a rollout, and calls on_collect."""
    log = ppo.collector.snapshots.log
    ppo.episodes.add(ppo.arena, ppo.progress.iteration, log.state.options, log.agents)
    if log.agents > 1:
        past, valid = ppo.collector.past, ppo.arena["valid"]
        ppo.episodes.beside |= {
            "charts/env_steps": float(ppo.progress.iteration * valid.size // log.agents),
            "games/valid": float(valid.mean())} | (past.stats() if past else {})
    if ppo.hooks.collect:
        ppo.hooks.call(ppo.hooks.collect, ppo, rollout)


def as_callbacks(callbacks: Callbacks) -> tuple[Callback, ...]:
    """`callbacks`, one or several, as a tuple; ConfigError for one that `learn` cannot call."""
    one = isinstance(callbacks, str) or _methods(callbacks)
    found = tuple(callbacks) if isinstance(callbacks, Iterable) and not one else (callbacks,)
    for callback in found:
        wrong = [name for name in dir(callback) if name.startswith("on_") and name not in EVENTS
                 and callable(getattr(callback, name, None))]
        if wrong or isinstance(callback, type) or not (methods := _methods(callback)):
            what = f"has {', '.join(wrong)}" if wrong else "is a class" \
                if isinstance(callback, type) else "is no function"
            raise ConfigError(f"the callback {callback!r} {what}, but learn calls only"
                              f" {', '.join(EVENTS)} of an object, or a function",
                              "ppo.learn(callbacks=[lambda ppo, stats: print(stats)])")
        for event, method in methods.items():
            try:
                inspect.signature(method).bind(*range(EVENTS[event]))
            except ValueError:  # it is written in C and has no signature
                continue
            except TypeError as error:
                raise ConfigError(f"{event} of the callback {callback!r} does not take"
                                  f" {EVENTS[event]} arguments, of which ppo is the first: {error}"
                                  ) from error
    return found


def _methods(callback: Any) -> dict[str, Callable]:
    """The methods of a callback by event; a function is called after every iteration."""
    found = {event: getattr(callback, event, None) for event in EVENTS}
    if found["on_iteration"] is None and callable(callback):
        found["on_iteration"] = callback
    return {event: method for event, method in found.items() if callable(method)}


def target_steps(ppo: Any, total_steps: int | None) -> int:
    """The step at which `learn` ends; warns if that is passed, or if the learning rate rises.

    ConfigError for `total_steps` that are not a whole number, 0 or more.
    """
    total = ppo.config.total_steps if total_steps is None else total_steps
    if isinstance(total, bool) or not isinstance(total, Real) or not 0 <= total < math.inf \
            or total != int(total):
        raise ConfigError(f"learn was given {total!r} steps, but they must be a whole number, 0 or"
                          " more", "ppo.learn(1_000_000)")
    total, last = int(total), ppo.learner.optimizer.rates
    if ppo.step >= total and not ppo.pending:
        log.warning("%d steps were asked for, but %d are already done: nothing to do\n"
                    "  fix: ppo.learn(ppo.step + %d)", total, ppo.step, total or 1)
    elif ppo.step and not ppo.pending:
        following = ppo.learner.kl_control.rates(
            coefficients_at(ppo.config, 1.0 - min(ppo.step / total, 1.0), ppo.progress.begin))
        if any(after > before for before, after in zip(last, following)):
            log.warning("the learning rate rises, from %.3g to %.3g, because its schedule now ends"
                        " at step %d; a run that is to be prolonged begins best with its last"
                        " total_steps, or with anneal_lr=False", last[0], following[0], total)
    return total
