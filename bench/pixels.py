"""Times one step of an environment of images: ours, Gymnasium's wrappers, and ale-py's own vector.

    python bench/pixels.py --game pong --steps 1000 --rounds 7
    python bench/pixels.py --car --skip 2 --steps 250 --rounds 7

All play the same actions from the same start, some steps of each in turns. Prints, for each, the
median over the rounds of the CPU microseconds of a step, and of its ratio to the first way's time.

A game of Atari is four frames; the first way is the emulator alone for the same frames. Ours is
without stacking, FIRE and lives; the vector has one environment and one thread, of which the CPU
time counts, and stacks one frame. --car is CarRacing-v3 in grey, at 64 x 64, with two frames
stacked, and an action for --skip frames; the first way is Gymnasium's wrappers.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import (
    AtariPreprocessing,
    FrameStackObservation,
    GrayscaleObservation,
    ResizeObservation,
)

from fastppo.envs.images import ImageOptions
from fastppo.envs.make import make_factory

STICKY = {"repeat_action_probability": 0.0}  # every random draw would be another game
Ways = dict[str, tuple[Callable, Callable]]  # (reset, step) of each way, by name


class Skip(gym.Wrapper):
    """An action for several frames."""

    def __init__(self, env: gym.Env, frames: int):
        super().__init__(env)
        self.frames = frames

    def step(self, action):
        """The last frame, and the sum of the rewards."""
        total = 0.0
        for _ in range(self.frames):
            obs, rew, term, trunc, info = self.env.step(action)
            total += float(rew)
            if term or trunc:
                break
        return obs, total, term, trunc, info


def act_alone(env) -> Callable:
    """A function that has the emulator of an AtariGame act for four frames, and nothing else."""
    ale, actions = env.ale, env._action_set

    def step(action: int) -> None:
        for _ in range(4):
            ale.act(actions[action])

    return step


def game_ways(game: str) -> Ways:
    """The ways to step a game of Atari."""
    import ale_py

    from fastppo.envs.atari_game import AtariGame
    bare, own = AtariGame(game, frameskip=1, **STICKY), AtariGame(game, frameskip=1, **STICKY)
    wrapped = AtariPreprocessing(gym.make("ale_py:ALE/Pong-v5", game=game, frameskip=1,
                                          obs_type="grayscale", disable_env_checker=True, **STICKY))
    vector = ale_py.AtariVectorEnv(game, 1, num_threads=1, stack_num=1, **STICKY)
    return {"emulator alone": (bare.reset, act_alone(bare)), "fastppo": (own.reset, own.step),
            "gymnasium": (wrapped.reset, wrapped.step),
            "ale-py vector": (vector.reset, lambda action: vector.step(np.array([action])))}


def car_ways(skip: int) -> Ways:
    """The ways to step CarRacing."""
    env = Skip(gym.make("CarRacing-v3", disable_env_checker=True), skip)
    env = FrameStackObservation(ResizeObservation(GrayscaleObservation(env), (64, 64)), 2)
    own = make_factory("CarRacing-v3", stack=2, images=ImageOptions(skip, True, 64))()
    return {"gymnasium": (env.reset, env.step), "fastppo": (own.reset, own.step)}


def measure(ways: Ways, actions: Sequence, seed: int, turn: int = 20) -> dict[str, float]:
    """CPU microseconds of one step of each way, which take some steps in turns."""
    spent, names = dict.fromkeys(ways, 0.0), list(ways)
    for reset, _ in ways.values():
        reset(seed=seed)
    rng = np.random.default_rng(seed)
    for first in range(0, len(actions), turn):
        rng.shuffle(names)
        for name in names:
            step, begun = ways[name][1], time.process_time()
            for action in actions[first:first + turn]:
                step(action)
            spent[name] += time.process_time() - begun
    return {name: total / len(actions) * 1e6 for name, total in spent.items()}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--game", default="pong")
    parser.add_argument("--car", action="store_true")
    parser.add_argument("--skip", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    ways = car_ways(options.skip) if options.car else game_ways(options.game)
    found = []
    for seed in range(options.rounds):
        rng = np.random.default_rng(seed)
        actions = rng.uniform((-0.5, 0.2, 0), (0.5, 0.6, 0.1), (options.steps, 3)).astype("f4") \
            if options.car else rng.integers(6, size=options.steps).tolist()
        found.append(measure(ways, actions, seed))
    first = next(iter(ways))
    for name in ways:
        ratios = [one[name] / one[first] for one in found]
        print(f"{name:15} {statistics.median(one[name] for one in found):7.1f} us"
              f"   {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
              f" of {first}")


if __name__ == "__main__":
    main()
