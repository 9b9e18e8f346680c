"""Times one step of an Atari game, four frames: ours, Gymnasium's wrappers and ale-py's own vector.

    python bench/atari.py --game pong --steps 1000 --rounds 7

All play the same actions from the same start, 20 steps of each in turns. Prints, for each, the
median over the rounds of the CPU microseconds of a step, and of its ratio to the emulator's time
alone for the same frames. Ours is without stacking, FIRE and lives; the vector has one environment
and one thread, of which the CPU time counts, and stacks one frame.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import ale_py
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing

from fastppo.envs.atari_game import AtariGame

STICKY = {"repeat_action_probability": 0.0}  # every random draw would be another game


def act_alone(env: AtariGame) -> Callable:
    """A function that has the emulator of `env` act for four frames, and does nothing else."""
    ale, actions = env.ale, env._action_set

    def step(action: int) -> None:
        for _ in range(4):
            ale.act(actions[action])

    return step


def steppers(game: str) -> dict[str, tuple[Callable, Callable]]:
    """(reset, step) of each way, by name."""
    bare, own = AtariGame(game, frameskip=1, **STICKY), AtariGame(game, frameskip=1, **STICKY)
    wrapped = AtariPreprocessing(gym.make("ale_py:ALE/Pong-v5", game=game, frameskip=1,
                                          obs_type="grayscale", disable_env_checker=True, **STICKY))
    vector = ale_py.AtariVectorEnv(game, 1, num_threads=1, stack_num=1, **STICKY)
    return {"emulator alone": (bare.reset, act_alone(bare)), "fastppo": (own.reset, own.step),
            "gymnasium": (wrapped.reset, wrapped.step),
            "ale-py vector": (vector.reset, lambda action: vector.step(np.array([action])))}


def measure(ways: dict[str, tuple[Callable, Callable]], steps: int, seed: int) -> dict[str, float]:
    """CPU microseconds of one step of each way, which take 20 steps in turns."""
    spent, names = dict.fromkeys(ways, 0.0), list(ways)
    for reset, _ in ways.values():
        reset(seed=seed)
    rng = np.random.default_rng(seed)
    for actions in rng.integers(6, size=(steps // 20, 20)).tolist():
        rng.shuffle(names)
        for name in names:
            step, begun = ways[name][1], time.process_time()
            for action in actions:
                step(action)
            spent[name] += time.process_time() - begun
    return {name: total / steps * 1e6 for name, total in spent.items()}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--game", default="pong")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    ways = steppers(options.game)
    rounds = [measure(ways, options.steps, seed) for seed in range(options.rounds)]
    for name in ways:
        ratios = [one[name] / one["emulator alone"] for one in rounds]
        print(f"{name:15} {statistics.median(one[name] for one in rounds):7.1f} us"
              f"   {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
              " of the emulator alone")


if __name__ == "__main__":
    main()
