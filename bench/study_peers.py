"""Trains rl_games and RLtools for the timed runs of study.py, in a Python that has them.

rl_games steps EnvPool's environments and has the sizes of fastppo's defaults. RLtools has the
settings of its own zoo, where it has some for PPO, and its own environment in C++. Both are
evaluated in Gymnasium's environments.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from study_tasks import DEVELOPMENT, mean_return

EPISODES = 20  # of an evaluation
ROWS = 8 * 256  # of a rollout of rl_games
LIMIT = 2  # a run takes at most as many times the steps of fastppo's preset


def evaluated(task: str, act: Callable[[np.ndarray], Any]) -> float:
    """The mean return of an evaluation in Gymnasium's environment."""
    with gymnasium.make(task) as env:
        return mean_return(env, act, range(10_000, 10_000 + EPISODES))


def rl_games(task: str, seed: int, marks) -> dict:
    """Train rl_games' PPO on EnvPool."""
    import torch
    sys.path.insert(0, str(Path(__file__).parents[1] / "fastppo/benchmark"))
    import peers
    from rl_games.common import env_configurations, vecenv
    from rl_games.envs.envpool import Envpool
    from rl_games.torch_runner import Runner
    sizes = dict(env_name=task, env_kwargs={"seed": seed}, activation="elu", hidden_sizes=[64, 64],
                 model="mlp", shared_critic=False, cores=2, num_envs=8, num_steps=256,
                 minibatch=64, epochs=10, gamma=0.99, gae_lambda=0.95, lr=3e-4, entropy_coef=0.0,
                 norm_obs=True, reward_scale=1.0, max_episode_steps=None, preprocessing="none",
                 frame_stack=1, end_on_life_loss=False, clip_rewards=False)
    params = peers.rl_games_params(sizes, peers.envpool_id(task)) | {"seed": seed}
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
        step += ROWS
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
