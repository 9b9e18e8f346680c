"""Evaluate while training, in an environment of its own kind, and keep the best model so far."""

import gymnasium as gym

from fastppo import load, PPO


def tested():
    """CartPole with episodes twice as long as in training: has it learnt more than it was shown?"""
    return gym.make("CartPole-v1", max_episode_steps=1000)


def told(ppo, stats):
    """A callback sees the metrics of an evaluation in the iteration after which it was played."""
    if "eval/return_mean" in stats:
        print(f"{ppo.step:7,}   {stats['eval/return_mean']:.1f} ± {stats['eval/return_std']:.1f}")
    return stats.get("eval/return_mean", 0) < 1000  # False ends training


with PPO("CartPole-v1", seed=1, total_steps=100_000, eval_interval=10_000, eval_episodes=20,
         eval_env=tested, run_dir="runs/evaluated") as ppo:
    ppo.learn(callbacks=told)

best = load("runs/evaluated/best.safetensors")
print("action of the best for a pole that leans right:", best.predict([0.0, 0.0, 0.1, 0.0]))
