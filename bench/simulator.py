"""Training steps per second on a simulator with tensors on one device.

    python bench/simulator.py --device=cuda --num_envs=8192 --json=found.json
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    """Trains on the example's Pendulum or CartPole; prints steps per second, medians of rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--env", choices=["CartPole", "Pendulum"], default="Pendulum")
    parser.add_argument("--num_envs", type=int, default=8192)
    parser.add_argument("--num_steps", type=int, default=16)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256, 256])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--num_minibatches", type=int, default=4)
    parser.add_argument("--learner", default="auto")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()

    from fastppo import PPO
    spec = importlib.util.spec_from_file_location("simulator", ROOT / "examples" / "simulator.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    seconds: dict[str, list[float]] = {"collect": [], "update": [], "simulator": []}
    env = getattr(example, given.env)(given.num_envs, given.device)
    with PPO(env, num_steps=given.num_steps, hidden_sizes=tuple(given.hidden), epochs=given.epochs,
             num_minibatches=given.num_minibatches, learner=given.learner, seed=1,
             activation="elu") as ppo:
        for name in range(given.rounds + 2):
            begun = time.perf_counter()
            rollout = ppo.collect()
            collected = time.perf_counter()
            ppo.update(rollout)  # its statistics are read, so the device is done
            updated = time.perf_counter()
            actions = ppo.collector.vec.to_env(rollout.act[0])
            for _ in range(given.num_steps):
                found = env.step(actions)
            found[1].sum().item()  # waits for the device
            ended = time.perf_counter()
            if name >= 2:  # libraries choose their kernels in the first ones
                for part, spent in zip(seconds, (collected - begun, updated - collected,
                                                 ended - updated)):
                    seconds[part].append(spent)
        samples = given.num_envs * given.num_steps
        medians = {part: statistics.median(x) for part, x in seconds.items()}
        whole = statistics.median(map(sum, zip(seconds["collect"], seconds["update"])))
        result = {"device": given.device, "learner": ppo.config.learner, "samples": samples,
                  "milliseconds": {part: 1e3 * x for part, x in medians.items()},
                  "steps_per_second": samples / whole,
                  "simulator_steps_per_second": samples / medians["simulator"]}
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
