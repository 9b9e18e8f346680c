"""Memories on CartPole without velocities: their speed beside an MLP's, and what they learn.

    python bench/memory.py speed [ROUNDS]     training steps per second, in turns; sb3-contrib's
                                              RecurrentPPO, too, if it is installed
    python bench/memory.py learn [KIND ...]   evaluations after 100,000 steps, seeds 1 to 8

All have two layers of 64 for actor and critic each, of which a memory is the second one.
"""

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.memory import make_env  # noqa: E402
from fastppo import PPO  # noqa: E402

SECONDS = 4.0  # of one measurement
ENVS, STEPS, MINIBATCHES, EPOCHS, LR = 8, 128, 4, 10, 1e-3
MEMORY = {"hidden_sizes": (64,), "rnn_size": 64}
KINDS = {"mlp": {"hidden_sizes": (64, 64)}, "gru": MEMORY | {"rnn": "gru"},
         "mingru": MEMORY | {"rnn": "mingru"}}


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


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "speed":
        print_speeds(int(rest[0]) if rest else 3)
    else:
        print_learnt(rest or ["mingru", "gru"])
