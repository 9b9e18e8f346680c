"""Own the loop: collect, look at (or change) the rollout, update, stop when you like."""

from fastppo import PPO

with PPO("CartPole-v1", seed=1, total_steps=100_000) as ppo:
    while ppo.step < 100_000:
        rollout = ppo.collect()  # tensors [t e ...] over shared memory, with adv and ret
        ended = rollout.term | rollout.trunc
        stats = ppo.update(rollout)  # a dict of floats
        print(f"{ppo.step:7,}   episodes ended {int(ended.sum()):3}   "
              f"kl {stats['losses/approx_kl']:.4f}   entropy {stats['losses/entropy']:.3f}")
        if ended.float().mean() < 1 / 400:  # nearly every step is one of a long episode
            break
    print("evaluation return", ppo.evaluate(20))
