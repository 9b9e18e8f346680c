"""Interrupts before any line of chosen modules, and comparisons of the results."""

import linecache
import os
import sys

from fault_envs import guard

import fastppo
from fastppo import PPO

SETTINGS = dict(preset="none", seed=5, num_envs=3, num_steps=10, num_minibatches=2, epochs=1,
                hidden_sizes=(4,), norm_rewards=True)

FOLDER = os.path.dirname(fastppo.__file__)

TIMED = ("charts/SPS", "time/collect", "time/update", "time/environment", "time/policy",
         "time/advantages", "time/start")


class Interruption:
    """Raises KeyboardInterrupt once, before line number `at` of those run in `modules`.

    If that line is one of the places `struck` before, it is the next one that is not.
    """

    def __init__(self, at, modules, struck=()):
        self.at, self.lines, self.place, self.struck = at, 0, None, struck
        self.files = {os.path.join(FOLDER, f"{name}.py") for name in modules.split()}

    def __enter__(self):
        sys.settrace(self.call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def call(self, frame, event, arg):
        """Trace the lines of the chosen modules only."""
        return self.line if frame.f_code.co_filename in self.files else None

    def line(self, frame, event, arg):
        """Count lines, and interrupt before line `at`."""
        place = frame.f_code.co_filename, frame.f_lineno
        # A tracer can strike between a block and its __exit__, where no signal is looked at.
        if event == "line" and not linecache.getline(*place).lstrip().startswith("with "):
            self.lines += 1
            if 0 < self.at <= self.lines and self.place is None:
                name = f"{os.path.basename(place[0])}:{place[1]}"
                if name not in self.struck:
                    self.place = name
                    raise KeyboardInterrupt
        return self.line


def snapshot(ppo, stats):
    """All results of an iteration, in a form that can be compared."""
    state = {name: value.numpy().tobytes() for name, value in ppo.policy.state_dict().items()}
    arrays = {name: array.numpy().tobytes() for name, array in ppo.rollout._asdict().items()}
    numbers = {name: value for name, value in stats.items() if name not in TIMED}
    return {**state, **{f"rollout.{name}": value for name, value in arrays.items()}, **numbers,
            "adam": ppo.learner.optimizer.steps, "step": ppo.step}


def iteration(ppo):
    """One iteration by learn, which goes on with an interrupted one."""
    seen = []
    ppo.learn(10**6, [lambda ppo, stats: seen.append(snapshot(ppo, stats)) or False])
    return seen[0] if seen else None


def undisturbed(env, workers, acting, count, modules=""):
    """The results of `count` iterations, and how many lines of `modules` the second one runs."""
    with guard(300), PPO(env, num_workers=workers, acting=acting, **SETTINGS) as ppo:
        made = [iteration(ppo)]
        with Interruption(-1, modules) as counted:
            made += [iteration(ppo) for _ in range(count > 1)]
        return made + [iteration(ppo) for _ in range(count - 2)], counted.lines


def interrupted(ppo, at, modules):
    """An iteration with an interrupt before line `at`, and the place it struck."""
    with Interruption(at, modules) as strike:
        try:
            return iteration(ppo), strike.place
        except KeyboardInterrupt:
            pass
    return iteration(ppo), strike.place


def differing(made, wanted):
    """The names of what is not the same, in one snapshot or in a list of them."""
    if isinstance(wanted, list):
        return [name for one, two in zip(made, wanted, strict=True) for name in differing(one, two)]
    return [name for name in wanted if made.get(name) != wanted[name]]


def assert_interrupts_change_nothing(env, workers, acting, modules, points):
    """Interrupt one iteration after the other, at `points` places spread over it."""
    wanted, total = undisturbed(env, workers, acting, points + 6, modules)
    struck = set()
    with guard(300), PPO(env, num_workers=workers, acting=acting, **SETTINGS) as ppo:
        for i in range(points):
            made, place = interrupted(ppo, 1 + i * total // points, modules)
            assert made is not None, place
            # One after the update's last line finds an iteration that is done: that costs a line
            # of metrics, with the episodes it would have shown.
            ahead = ppo.progress.iteration - 1
            worse = [name for name in differing(made, wanted[ahead])
                     if ahead == i or not name.startswith("charts/episod")]
            assert worse == [], (i, place)
            struck.add(place)
    assert ppo.progress.iteration < points + 6
    assert len(struck) > min(points, 12) // 2
