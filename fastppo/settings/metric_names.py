"""Names of metrics that several places use; docs/metrics.md describes all metrics.

The names of `charts/` and `losses/` are CleanRL's.
"""

GLOBAL_STEP = "global_step"  # environment steps; the column of metrics.csv
MEAN_RETURN, RETURN_STD = "charts/episodic_return", "charts/episodic_return_std"
MEAN_LENGTH = "charts/episodic_length"
EPISODES = "charts/episodes"
# The columns of episodes.csv, and that of each metric that is a mean of one.
EPISODE_COLUMNS = (GLOBAL_STEP, "return", "length")
SINGLE = {MEAN_RETURN: "return", MEAN_LENGTH: "length"}
SPEED = "charts/SPS"
KL = "losses/approx_kl"
EXPLAINED_VARIANCE = "losses/explained_variance"
EVAL_RETURN = "eval/return_mean"
EVALUATION, VIDEO = "evaluate", "video"  # parts of a run's time
ASIDE = EVALUATION, VIDEO  # the parts that are not training
