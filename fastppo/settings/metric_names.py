"""Names of metrics that several places use; docs/metrics.md describes all metrics.

The names of `charts/` and `losses/` are CleanRL's.
"""

GLOBAL_STEP = "global_step"  # environment steps; the column of metrics.csv
MEAN_RETURN = "charts/episodic_return"
MEAN_LENGTH = "charts/episodic_length"
EPISODES = "charts/episodes"
SPEED = "charts/SPS"
KL = "losses/approx_kl"
EXPLAINED_VARIANCE = "losses/explained_variance"
EVAL_RETURN = "eval/return_mean"
EVALUATION = "evaluate"  # the part of a run's time that is not training
