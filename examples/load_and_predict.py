"""Save a policy, load it elsewhere and run it; the file contains the normaliser."""

import gymnasium as gym

from fastppo import PPO, load

with PPO("CartPole-v1", seed=1, total_steps=50_000, progress="lines") as ppo:
    ppo.learn()
    ppo.save("cartpole.safetensors")

policy = load("cartpole.safetensors")
env = gym.make("CartPole-v1")
obs, _ = env.reset(seed=0)
total, done = 0.0, False
while not done:
    obs, reward, terminated, truncated, _ = env.step(policy.predict(obs))
    total, done = total + reward, terminated or truncated
env.close()
print("return", total)
