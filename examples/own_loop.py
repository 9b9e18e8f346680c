"""Your own training loop: collect, inspect (or change) the rollout, update, stop at any time."""

from fastppo import PPO

with PPO("CartPole-v1", seed=1, total_steps=100_000) as ppo:
    end_rate = 1.0  # running mean of the fraction of steps that end an episode
    while ppo.step < 100_000 and end_rate > 1 / 450:  # until an episode has 450 steps
        rollout = ppo.collect()  # tensors [t e ...] over shared memory, with adv and ret
        ended = rollout.term | rollout.trunc
        stats = ppo.update(rollout)  # a dict of floats
        if ppo.progress.iteration % 10 == 0:
            print(f"{ppo.step:7,}   episodes ended {int(ended.sum()):3}   "
                  f"kl {stats['losses/approx_kl']:.4f}   entropy {stats['losses/entropy']:.3f}")
        end_rate = 0.95 * end_rate + 0.05 * float(ended.float().mean())
    print("evaluation return", ppo.evaluate(20))
