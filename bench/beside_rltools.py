"""Training steps per second on Pendulum beside RLtools, one core each, in turns.

    python bench/beside_rltools.py PATH/TO/PYTHON [ROUNDS]

PYTHON has RLtools (`pip install rltools`; g++ and libopenblas-dev), which compiles its PPO for
these sizes and its own Pendulum in C++. Ours is the compiled one of examples/compiled. Both have
two layers of 64 with ReLU for actor and critic each, 16 environments x 128 steps, and ten epochs of
minibatches of 64. Needs an idle machine.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 4.0  # of one measurement
ENVS, STEPS, MINIBATCH, EPOCHS, WIDTH = 16, 128, 64, 10, 64
HEADER = """
#include <rl_tools/rl/environments/pendulum/operations_cpu.h>
namespace pendulum = rl_tools::rl::environments::pendulum;
template <typename T, typename TI>
using ENVIRONMENT_FACTORY = rl_tools::rl::environments::Pendulum<
    pendulum::Specification<T, TI, pendulum::DefaultParameters<T>>>;
"""


def rate(iterate):
    """Training steps per second of a function that takes one iteration."""
    for _ in range(3):
        iterate()
    begin, iterations = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        iterate()
        iterations += 1
    return iterations * ENVS * STEPS / (time.perf_counter() - begin)


def own_pendulum(**settings):
    """RLtools' PPO, compiled for these settings and its own pendulum."""
    from rltools import PPO
    folder = Path(tempfile.gettempdir(), "fastppo_rltools_pendulum")
    folder.mkdir(exist_ok=True)
    (folder / "environment.h").write_text(HEADER)
    return PPO({"path": str(folder), "action_dim": 1, "observation_dim": 3},
               interface_name="fastppo_pendulum", enable_evaluation=False,
               TOTAL_STEP_LIMIT=10**9, **settings)


def rltools():
    """The rate of RLtools."""
    kind = own_pendulum(ACTOR_HIDDEN_DIM=WIDTH, CRITIC_HIDDEN_DIM=WIDTH, N_EPOCHS=EPOCHS,
                        N_ENVIRONMENTS=ENVS, ON_POLICY_RUNNER_STEPS_PER_ENV=STEPS,
                        BATCH_SIZE=MINIBATCH)
    return rate(kind.State(1).step)


def fastppo():
    """Our rate."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from examples.compiled.pendulum import Pendulum
    from fastppo import PPO
    with PPO(Pendulum, preset="none", seed=1, num_workers=0, num_envs=ENVS, num_steps=STEPS,
             epochs=EPOCHS, num_minibatches=ENVS * STEPS // MINIBATCH, activation="relu",
             hidden_sizes=(WIDTH, WIDTH), norm_obs=False, total_steps=10**9) as ppo:
        return rate(lambda: ppo.update(ppo.collect()))


def measured(python, name):
    """The rate that another process of `python` prints, on one core."""
    core = max(os.sched_getaffinity(0))
    lines = subprocess.run(
        [python, __file__, name], stdout=subprocess.PIPE, text=True, check=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, {core})).stdout.splitlines()
    return float(lines[-1])


def main(python, rounds=3):
    """Prints both medians with their ranges."""
    found = {"RLtools": [], "fastppo": []}
    for _ in range(int(rounds)):
        found["RLtools"].append(measured(python, "rltools"))
        found["fastppo"].append(measured(sys.executable, "fastppo"))
    for name, rates in found.items():
        print(f"{name:8} {statistics.median(rates):>9,.0f} ({min(rates):,.0f} to"
              f" {max(rates):,.0f})")


if __name__ == "__main__":
    if sys.argv[1] in ("rltools", "fastppo"):
        print(f"\n{globals()[sys.argv[1]]():.1f}", flush=True)
    else:
        main(*sys.argv[1:])
