"""Your own sink: a callback that appends the metrics of each iteration to a file of JSON lines."""

import json
from pathlib import Path

from fastppo import PPO


class JsonLines:
    """Appends {"global_step": ..., "charts/episodic_return": ..., ...} after every iteration."""

    def __init__(self, path):
        self.path = Path(path)

    def on_start(self, ppo):
        """Open the file: `learn` calls this before its first iteration."""
        self.file = self.path.open("a", encoding="utf-8")

    def on_iteration(self, ppo, stats):
        """Write a line, at once, so that another program can follow the file."""
        self.file.write(json.dumps({"global_step": ppo.step, **stats}) + "\n")
        self.file.flush()

    def on_end(self, ppo):
        """Close the file: `learn` calls this last, also after an exception."""
        self.file.close()


with PPO("CartPole-v1", seed=1, total_steps=20_000, eval_interval=10_000, eval_episodes=10) as ppo:
    ppo.learn(callbacks=JsonLines("cartpole.jsonl"))

with open("cartpole.jsonl", encoding="utf-8") as file:
    rows = [json.loads(line) for line in file]
for row in rows:
    if "eval/return_mean" in row:  # in the row of the iteration before the evaluation
        print(f"{row['global_step']:6,}   return {row['eval/return_mean']:.1f}")
print(len(rows), "lines with up to", max(map(len, rows)), "values each")
