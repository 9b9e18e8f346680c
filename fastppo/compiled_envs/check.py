"""Compares the machine code of an environment with its Python code, step by step."""

from typing import Any

import numpy as np

from fastppo.envs.source import random_actions
from fastppo.errors import EnvError

DIFFERENCE = 1e-5  # relative, and absolute near 0


def check_machine_code(python: Any, env: Any, steps: int, seed: int) -> None:
    """Takes `steps` random steps in an environment as Python runs it and in one of machine code.

    Raises EnvError for the first field of the state, observation, reward or end that differs by
    more than 1e-5, and for one that is not finite. Python finds an index out of range.
    """
    action_for, episode, taken = random_actions(env, seed), 0, 0
    while taken < steps:
        answers = [one.reset(seed=seed + episode)[0] for one in (python, env)]
        compare(python, env, answers, f"episode {episode}, reset")
        episode, over = episode + 1, False
        while not over and taken < steps:
            action = action_for(answers[0])
            answers = [one.step(action)[:4] for one in (python, env)]
            taken, over = taken + 1, any(answers[0][2:])
            compare(python, env, answers, f"episode {episode - 1}, step {int(python.row.length)}")
            answers = [answer[0] for answer in answers]


def compare(python: Any, env: Any, answers: list[Any], where: str) -> None:
    """Raises EnvError for the first difference of two environments and of what they returned."""
    pairs = [(f"state.{name}", *(getattr(one.row.state, name) for one in (python, env)))
             for name in env.layout.state.names]
    if not isinstance(answers[0], tuple):
        answers = [(answer,) for answer in answers]
    for name, *values in zip(("obs", "reward", "terminated", "truncated"), *answers):
        keys = env.observation_space if isinstance(values[0], dict) else [None]
        pairs += [(name if key is None else f"{name}.{key}", *(
            value if key is None else value[key] for value in values)) for key in keys]
    for name, one, other in pairs:
        one, other = (np.asarray(x, np.float64) for x in (one, other))
        if not (np.isfinite(one) | name.startswith("state.")).all():
            raise EnvError(f"{where}: {name} is {one}")
        if not np.allclose(one, other, DIFFERENCE, DIFFERENCE, equal_nan=True):
            raise EnvError(f"{where}: {name} is {one} in Python, and {other} as machine code")
