"""The tasks of bench/study.md with their numbers of steps, and how those are made that are no ids.

What follows a dot in a task's name is a change of the environment, or 1m for a million steps.
The unseen ones need shimmy[dm-control], gymnasium-robotics, minigrid, highway-env and
flappy-bird-gymnasium.
"""

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import FlattenObservation, TransformObservation, TransformReward

DEVELOPMENT = {
    "CartPole-v1": 100_000, "Acrobot-v1": 80_000, "MountainCar-v0": 500_000,
    "MountainCarContinuous-v0": 50_000, "Pendulum-v1": 100_000, "LunarLander-v3": 400_000,
    "LunarLanderContinuous-v3": 250_000, "BipedalWalker-v3": 1_500_000,
    "InvertedPendulum-v5": 100_000, "Reacher-v5": 500_000, "HalfCheetah-v5": 500_000,
    "Hopper-v5": 1_000_000, "Walker2d-v5": 1_000_000}
UNSEEN = {
    "dm_control/cheetah-run-v0": 250_000, "dm_control/walker-walk-v0": 250_000,
    "dm_control/finger-spin-v0": 250_000, "dm_control/reacher-hard-v0": 250_000,
    "dm_control/cartpole-swingup_sparse-v0": 250_000, "Swimmer-v5": 500_000,
    "PointMaze_UMaze-v3": 300_000, "MiniGrid-DoorKey-6x6-v0": 300_000, "highway-fast-v0": 20_000,
    "FlappyBird-v0": 300_000, "LunarLander-v3.small_rewards": 400_000,
    "Pendulum-v1.large_rewards": 100_000, "CartPole-v1.odd_observations": 100_000,
    "Hopper-v5.fine_steps": 500_000}
MUJOCO = {name: 1_000_000 for name in (
    "HalfCheetah-v5.1m", "Hopper-v5", "Walker2d-v5", "Ant-v5.1m", "Swimmer-v5.1m",
    "Humanoid-v5.1m", "InvertedDoublePendulum-v5.1m", "Reacher-v5.1m")}
DM_CONTROL = {f"dm_control/{name}-v0.1m": 1_000_000 for name in """
    acrobot-swingup acrobot-swingup_sparse ball_in_cup-catch cartpole-balance
    cartpole-balance_sparse cartpole-swingup cartpole-swingup_sparse cheetah-run finger-spin
    finger-turn_easy finger-turn_hard fish-swim fish-upright hopper-hop hopper-stand humanoid-run
    humanoid-stand humanoid-walk manipulator-bring_ball pendulum-swingup point_mass-easy
    reacher-easy reacher-hard swimmer-swimmer6 swimmer-swimmer15 walker-run walker-stand walker-walk
""".split()}
SWINGUP = {"Swingup": 1_000_000}  # of study_swingup.py
GOALS = {"CartPole-v1": 475, "Acrobot-v1": -90, "Pendulum-v1": -200, "LunarLander-v3": 200,
         "HalfCheetah-v5": 4_000, "BipedalWalker-v3": 250}  # of the timed runs
SETS = {"development": DEVELOPMENT, "unseen": UNSEEN, "mujoco": MUJOCO, "dm_control": DM_CONTROL,
        "swingup": SWINGUP,
        "timed": {task: DEVELOPMENT[task] for task in GOALS}}
ARGUMENTS = {"FlappyBird-v0": {"use_lidar": False},
             "Hopper-v5.fine_steps": {"frame_skip": 1, "max_episode_steps": 4_000}}
PACKAGES = {"dm_control": "shimmy", "PointMaze": "gymnasium_robotics", "MiniGrid": "minigrid",
            "highway": "highway_env", "FlappyBird": "flappy_bird_gymnasium"}


def episodes(task: str) -> int:
    """The episodes of an evaluation."""
    return 20 if task in DEVELOPMENT else 5


def environment(task: str):
    """What makes the environment of a task: its id, or a function."""
    return task if task in DEVELOPMENT else partial(make, task)


def make(task: str) -> gymnasium.Env:
    """An environment of a task, with flat observations."""
    if task in SWINGUP:
        from study_swingup import Swingup
        return Swingup.env()
    name, _, change = task.partition(".")
    for start, package in PACKAGES.items():
        if name.startswith(start):
            gymnasium.register_envs(importlib.import_module(package))
    env = gymnasium.make(name, **ARGUMENTS.get(task, {}))
    if name.startswith("MiniGrid"):
        from minigrid.wrappers import ImgObsWrapper
        env = ImgObsWrapper(env)
    if len(env.observation_space.shape or ()) != 1:
        env = FlattenObservation(env)
    if change == "small_rewards":
        return TransformReward(env, lambda reward: 0.001 * reward)
    if change == "large_rewards":
        return TransformReward(env, lambda reward: 100 * reward + 300)
    if change == "odd_observations":
        factor, shift = np.float32([1000, 0.001, 10, 1]), np.float32([5, 0, -3, 0])
        space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
        return TransformObservation(env, lambda obs: obs * factor + shift, space)
    return env


def mean_return(env: gymnasium.Env, act: Callable[[Any], Any], seeds: Iterable[int]) -> float:
    """The mean return of an episode for each seed, with the actions of `act`."""
    totals = []
    for seed in seeds:
        (obs, _), total, ended = env.reset(seed=seed), 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += float(reward)
            ended = terminated or truncated
        totals.append(total)
    return sum(totals) / len(totals)
