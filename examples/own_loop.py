"""Own the loop: collect, look at (or change) the rollout, update, stop when you like."""

from fastppo import PPO

with PPO("CartPole-v1", seed=1, total_steps=100_000) as ppo:
    ends = 1.0  # share of steps that end an episode, a running mean: 1 / 450 is 450 steps a pole
    while ppo.step < 100_000 and ends > 1 / 450:
        rollout = ppo.collect()  # tensors [t e ...] over shared memory, with adv and ret
        ended = rollout.term | rollout.trunc
        stats = ppo.update(rollout)  # a dict of floats
        if ppo.progress.iteration % 10 == 0:
            print(f"{ppo.step:7,}   episodes ended {int(ended.sum()):3}   "
                  f"kl {stats['losses/approx_kl']:.4f}   entropy {stats['losses/entropy']:.3f}")
        ends = 0.95 * ends + 0.05 * float(ended.float().mean())
    print("evaluation return", ppo.evaluate(20))
