"""Trains rl_games, RLtools and CleanRL for study.py, in a Python that has them.

rl_games steps EnvPool's environments with the settings that it comes with. RLtools has those of
its own zoo, where it has some for PPO, and its own environment in C++. Both are evaluated in
Gymnasium's environments. CleanRL's scripts are run as they are, and print the returns of their
training episodes.
"""

import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from study_tasks import DEVELOPMENT, episodes, mean_return

CONFIGS = {"CartPole-v1": "ppo_cartpole", "Pendulum-v1": "ppo_pendulum_torch",
           "LunarLander-v3": "ppo_lunar_discrete", "BipedalWalker-v3": "ppo_walker",
           "HalfCheetah-v5": "mujoco/halfcheetah_envpool"}  # of rl_games
DISCRETE = "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3"  # of CleanRL's ppo.py
PRINTED = re.compile(r"global_step=(\d+), episodic_return=\[?(.+?)\]?$")  # by CleanRL
LIMIT = 2  # a run takes at most as many times the steps of its task in study_tasks.py


def evaluated(task: str, act: Callable[[np.ndarray], Any]) -> float:
    """The mean return of an evaluation in Gymnasium's environment."""
    with gymnasium.make(task) as env:
        return mean_return(env, act, range(10_000, 10_000 + episodes(task)))


def own_params(task: str, seed: int) -> dict:
    """The settings that rl_games comes with for a task, for EnvPool and the CPU."""
    import rl_games
    import yaml
    sys.path.insert(0, str(Path(__file__).parents[1] / "fastppo/benchmark"))
    from peers import envpool_id
    path = Path(rl_games.__file__).parent / f"configs/{CONFIGS[task]}.yaml"
    params = yaml.safe_load(path.read_text())["params"] | {"seed": seed, "torch_threads": 1}
    params["config"] |= {
        "env_name": "envpool", "env_config": {"env_name": envpool_id(task), "seed": seed},
        "device": "cpu", "device_name": "cpu", "train_dir": tempfile.mkdtemp(), "ppo": True,
        "score_to_win": 1e9, "max_epochs": 10**9, "save_frequency": 0, "save_best_after": 10**9}
    return params


def rl_games(task: str, seed: int, marks) -> dict:
    """Train rl_games' PPO on EnvPool, with its own settings of the task."""
    import torch
    from rl_games.common import env_configurations, vecenv
    from rl_games.envs.envpool import Envpool
    from rl_games.torch_runner import Runner
    params = own_params(task, seed)
    rows = params["config"]["num_actors"] * params["config"]["horizon_length"]
    torch.set_num_threads(1)
    vecenv.register("ENVPOOL", lambda name, count, **kwargs: Envpool(name, count, **kwargs))
    env_configurations.register("envpool", {"vecenv_type": "ENVPOOL", "env_creator": None})
    marks.start()
    runner = Runner()
    runner.load({"params": params})
    agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
    agent.init_tensors()
    agent.obs, step = agent.env_reset(), 0

    @torch.no_grad()
    def act(obs: np.ndarray) -> np.ndarray:
        found = agent.model({"is_train": False, "prev_actions": None, "rnn_states": None,
                             "obs": torch.as_tensor(obs, dtype=torch.float32)[None]})
        if "mus" in found:
            return agent.preprocess_actions(found["mus"])[0]
        return int(found["logits"].argmax())

    def evaluate() -> float:
        agent.set_eval()
        return evaluated(task, act)

    marks.evaluate = evaluate
    while step < LIMIT * DEVELOPMENT[task] and marks.reached(step):
        agent.update_epoch()
        agent.train_epoch()
        agent.dataset.update_values_dict(None)
        step += rows
    return marks.result(step)


def rltools(task: str, seed: int, marks) -> dict:
    """Train RLtools' PPO on its own pendulum."""
    from beside_rltools import own_pendulum
    kind = own_pendulum(N_ENVIRONMENTS=4, ON_POLICY_RUNNER_STEPS_PER_ENV=1024, BATCH_SIZE=256,
                        N_EPOCHS=2, GAMMA=0.95, ACTION_ENTROPY_COEFFICIENT=1.0,
                        EPISODE_STEP_LIMIT=200)
    marks.start()
    state, step = kind.State(seed), 0
    marks.evaluate = lambda: evaluated(task, lambda obs: 2 * np.clip(
        np.atleast_1d(state.action(obs)), -1, 1))
    while step < LIMIT * DEVELOPMENT[task] and marks.reached(step):
        state.step()
        step += 4 * 1024
    return marks.result(step)


def cleanrl_script(task: str, seed: int, marks) -> dict:
    """Run CleanRL's script; in place of evaluations its last hundred training episodes count."""
    import cleanrl
    script = "ppo" if task in DISCRETE else "ppo_continuous_action"
    command = [sys.executable, "-u", Path(cleanrl.__path__[0], f"{script}.py"), "--seed",
               str(seed), "--env-id", task.replace("Lander-v3", "Lander-v2"), "--cuda", "False",
               "--total-timesteps", str(DEVELOPMENT[task])]
    last: deque[float] = deque(maxlen=100)
    marks.evaluate = lambda: np.mean(last)
    marks.start()
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if found := PRINTED.match(line.strip()):
                last.append(float(found[2]))
                marks.reached(int(found[1]))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return marks.result(DEVELOPMENT[task])
