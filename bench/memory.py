"""Memories on CartPole without velocities: their speed beside an MLP's, and what they learn.

And in a corridor, without a preset: a sign at its start says the way to turn at its end.

    python bench/memory.py speed [ROUNDS]     training steps per second, in turns; sb3-contrib's
                                              RecurrentPPO, too, if it is installed
    python bench/memory.py learn [KIND ...]   evaluations after 100,000 steps, seeds 1 to 8
    python bench/memory.py corridor [KIND ...]   after 200,000 steps, of 3 to 25 steps, seeds 1 to 4

On CartPole actor and critic have two layers of 64 each, of which a memory is the second one.
"""

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np  # noqa: E402
from gymnasium.spaces import Box, Discrete  # noqa: E402

from examples.memory import make_env  # noqa: E402
from fastppo import PPO, compiled_env  # noqa: E402

SECONDS = 4.0  # of one measurement
ENVS, STEPS, MINIBATCHES, EPOCHS, LR = 8, 128, 4, 10, 1e-3
MEMORY = {"hidden_sizes": (64,), "rnn_size": 64}
KINDS = {"mlp": {"hidden_sizes": (64, 64)}, "gru": MEMORY | {"rnn": "gru"},
         "mingru": MEMORY | {"rnn": "mingru"}}
LENGTHS = 3, 12, 25  # of corridors, in steps


@compiled_env
class Corridor:
    """The sign of the first observation says which way to turn at the end: 1, else -1."""

    observation_space = Box(-1.0, 1.0, (3,), np.float32)
    action_space = Discrete(3)  # forward, left, right
    max_episode_steps = 100
    state = [("sign", "i8"), ("place", "i8"), ("length", "i8")]
    options = {"length": 12}

    def reset(state, rng, options):
        """At the start."""
        state.sign = 1 if rng.random() < 0.5 else -1
        state.length = options.length

    def step(state, action, rng):
        """Forward until the end, then left or right."""
        if state.place < state.length:
            state.place += action == 0
            return -0.01, False
        return (1.0 if action == (2 if state.sign == 1 else 1) else -1.0), True

    def observe(state, obs):
        """The sign, if it is here; the place; 1 at the end."""
        obs[0] = state.sign if state.place == 0 else 0
        obs[1] = state.place / state.length
        obs[2] = state.place == state.length


def trainer(kind, workers=None, **settings):
    """A PPO of one of KINDS."""
    return PPO(make_env, num_envs=ENVS, num_steps=STEPS, num_minibatches=MINIBATCHES, epochs=EPOCHS,
               lr=LR, num_workers=workers, **KINDS[kind], **settings)


def speed(kind, workers):
    """Training steps per second of one of KINDS."""
    with trainer(kind, workers, seed=1, total_steps=10**9) as ppo:
        for _ in range(2):
            ppo.update(ppo.collect())
        begin, first = time.perf_counter(), ppo.step
        while time.perf_counter() - begin < SECONDS:
            ppo.update(ppo.collect())
        return (ppo.step - first) / (time.perf_counter() - begin)


def speed_of_sb3():
    """Training steps per second of sb3-contrib's RecurrentPPO with the same sizes."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env
    model = RecurrentPPO(
        "MlpLstmPolicy", make_vec_env(make_env, ENVS), n_steps=STEPS, n_epochs=EPOCHS,
        batch_size=ENVS * STEPS // MINIBATCHES, learning_rate=LR, device="cpu",
        policy_kwargs={"lstm_hidden_size": 64, "net_arch": [64]})
    model.learn(ENVS * STEPS)
    begin = time.perf_counter()
    model.learn(4 * ENVS * STEPS)
    return 4 * ENVS * STEPS / (time.perf_counter() - begin)


def print_speeds(rounds):
    """Prints the medians of all kinds, measured in turns."""
    runs = {(kind, workers): (lambda kind=kind, workers=workers: speed(kind, workers))
            for kind in KINDS for workers in (0, 2)}
    try:
        import sb3_contrib  # noqa: F401
        runs["sb3-contrib", 0] = speed_of_sb3
    except ImportError:
        print("sb3-contrib is not installed")
    found = {case: [] for case in runs}
    for _ in range(rounds):
        for case, run in runs.items():
            found[case].append(run())
    for (kind, workers), rates in found.items():
        print(f"{kind:12} {workers} workers {statistics.median(rates):>9,.0f}"
              f" ({min(rates):,.0f} to {max(rates):,.0f})", flush=True)


def print_learnt(kinds):
    """Prints the evaluations of each kind, and the median of the seconds until then."""
    for kind in kinds:
        returns, seconds = [], []
        for seed in range(1, 9):
            begin = time.perf_counter()
            with trainer(kind, 0, seed=seed, total_steps=100_000) as ppo:
                returns.append(ppo.learn().evaluate(100).mean)
            seconds.append(time.perf_counter() - begin)
        print(f"{kind:8} {' '.join(f'{mean:.1f}' for mean in returns)}"
              f"   {statistics.median(seconds):.1f} s", flush=True)


def print_corridors(kinds):
    """Prints the returns of each kind and length: 1 at most, less 0.01 for each step."""
    for kind in kinds:
        for length in LENGTHS:
            found = []
            for seed in range(1, 5):
                with PPO(Corridor, preset="none", env_kwargs={"length": length}, num_envs=32,
                         num_steps=64, total_steps=200_000, seed=seed, num_workers=0,
                         rnn=kind) as ppo:
                    found.append(ppo.learn().evaluate(100).mean)
            print(f"{kind:8} {length:3}   {' '.join(f'{mean:5.2f}' for mean in found)}", flush=True)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "speed":
        print_speeds(int(rest[0]) if rest else 3)
    elif what == "corridor":
        print_corridors(rest or ["mingru"])
    else:
        print_learnt(rest or ["mingru", "gru"])
