"""Evaluate while training, in a separate kind of environment, and keep the best model so far."""

import gymnasium as gym

from fastppo import PPO, load


def make_eval_env():
    """CartPole with episodes twice as long as in training."""
    return gym.make("CartPole-v1", max_episode_steps=1000)


def on_iteration(ppo, stats):
    """Print the metrics of an evaluation; they are in the stats of the iteration before it."""
    if "eval/return_mean" in stats:
        print(f"{ppo.step:7,}   {stats['eval/return_mean']:.1f} ± {stats['eval/return_std']:.1f}")
    return stats.get("eval/return_mean", 0) < 1000  # False ends training


with PPO("CartPole-v1", seed=1, total_steps=100_000, eval_interval=10_000, eval_episodes=20,
         eval_env=make_eval_env, run_dir="runs/evaluated") as ppo:
    ppo.learn(callbacks=on_iteration)

best = load("runs/evaluated/best.safetensors")
print("action of the best policy for a pole that leans right:", best.predict([0.0, 0.0, 0.1, 0.0]))
