"""Training steps per second beside Stable-Baselines3: equal sizes, one torch thread, interleaved.

    python bench/throughput.py --env CartPole-v1 LunarLander-v3 --rounds 3

Every figure comes from a fresh process that trains for `--steps` environment steps; the first
iteration is warm-up and not counted. Prints the median of the rounds, their spread, and the ratio
of the medians, which is all that may be quoted: absolute figures are of one machine at one hour.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

SIZES = dict(num_envs=16, num_steps=512, minibatch=1024, epochs=4)


def run_fastppo(env: str, steps: int) -> float:
    """Steps per second of fastppo, as many workers as there are usable cores."""
    from fastppo import PPO
    rows = SIZES["num_envs"] * SIZES["num_steps"]
    with PPO(env, preset="none", seed=1, num_envs=SIZES["num_envs"], num_steps=SIZES["num_steps"],
             num_minibatches=rows // SIZES["minibatch"], epochs=SIZES["epochs"], norm_obs=False,
             entropy_coef=0.0, total_steps=steps + rows, torch_threads=1) as ppo:
        ppo.learn(rows)
        start = time.perf_counter()
        ppo.learn(steps + rows)
        return (ppo.step - rows) / (time.perf_counter() - start)


def run_sb3(env: str, steps: int) -> float:
    """Steps per second of Stable-Baselines3 on its DummyVecEnv, here its faster one."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Stamp(BaseCallback):
        """Notes when the first iteration is over."""

        def _on_rollout_start(self) -> None:
            if self.num_timesteps and not hasattr(self, "start"):
                self.start, self.first = time.perf_counter(), self.num_timesteps

        def _on_step(self) -> bool:
            return True

    torch.set_num_threads(1)
    rows, stamp = SIZES["num_envs"] * SIZES["num_steps"], Stamp()
    model = PPO("MlpPolicy", make_vec_env(env, SIZES["num_envs"], seed=1), device="cpu", seed=1,
                n_steps=SIZES["num_steps"], batch_size=SIZES["minibatch"], n_epochs=SIZES["epochs"])
    model.learn(steps + rows, callback=stamp)
    return (model.num_timesteps - stamp.first) / (time.perf_counter() - stamp.start)


SYSTEMS = {"fastppo": run_fastppo, "sb3": run_sb3}


def measured(system: str, env: str, steps: int) -> float:
    """One figure, from a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", system, env, str(steps)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True)
                      .stdout.splitlines()[-1])


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", nargs="+", default=["CartPole-v1", "LunarLander-v3"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=65_536)
    parser.add_argument("--one", nargs=3, metavar=("SYSTEM", "ENV", "STEPS"), help="internal")
    args = parser.parse_args()
    if args.one:
        system, env, steps = args.one
        return print(json.dumps(SYSTEMS[system](env, int(steps))))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
          + ", ".join(f"{name} {value}" for name, value in SIZES.items()))
    for env in args.env:
        figures = {name: [] for name in SYSTEMS}
        for _ in range(args.rounds):
            for name in SYSTEMS:
                figures[name].append(measured(name, env, args.steps))
        medians = {name: statistics.median(values) for name, values in figures.items()}
        shown = "   ".join(f"{name} {medians[name]:8,.0f} ({min(v):,.0f} to {max(v):,.0f})"
                           for name, v in figures.items())
        print(f"{env:16} {shown}   ratio {medians['fastppo'] / medians['sb3']:.2f}", flush=True)


if __name__ == "__main__":
    main()
