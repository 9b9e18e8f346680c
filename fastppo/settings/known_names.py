"""Names: of the files of a run and of metrics, and what is said of unknown ones.

The names of `charts/` and `losses/` are CleanRL's; docs/metrics.md describes all metrics.
"""

import difflib
from typing import Iterable

from fastppo.errors import program

MODEL_FILE, BEST_FILE = "model.safetensors", "best.safetensors"  # policies
CONFIG_FILE, SUMMARY_FILE = "config.json", "summary.json"
METRICS_FILE, EPISODES_FILE = "metrics.csv", "episodes.csv"
COMMAND_FILE, SYSTEM_FILE, OUTPUT_FILE = "command.txt", "system.json", "output.txt"
CURVE_FILE = "curve.png"
# Those of a run without an iteration.
START_FILES = {CONFIG_FILE, COMMAND_FILE, SYSTEM_FILE, SUMMARY_FILE, METRICS_FILE, EPISODES_FILE}
LATEST = "latest"  # in runs/: a link to the folder of the last run that was started

GLOBAL_STEP = "global_step"  # environment steps; the column of metrics.csv
MEAN_RETURN, RETURN_STD = "charts/episodic_return", "charts/episodic_return_std"
MEAN_LENGTH = "charts/episodic_length"
ELO = "games/elo"
EPISODES = "charts/episodes"
# The columns of episodes.csv, and that of each metric that is a mean of one.
EPISODE_COLUMNS = (GLOBAL_STEP, "return", "length")
SINGLE = {MEAN_RETURN: "return", MEAN_LENGTH: "length"}
SPEED = "charts/SPS"
KL, ENTROPY = "losses/approx_kl", "losses/entropy"
EXPLAINED_VARIANCE = "losses/explained_variance"
EVAL_RETURN = "eval/return_mean"
EVAL_VIDEO = "eval/video"
TIMED = "time/", SPEED, "faults/restarts"  # beginnings of metrics of the machine
EVALUATION, VIDEO = "evaluate", "video"  # parts of a run's time
ASIDE = EVALUATION, VIDEO  # the parts that are not training
PARTS = "environment", "policy", "advantages", "update"  # of training
PART_NAMES = {"collect": "collecting", "update": "updating", EVALUATION: "evaluating",
              VIDEO: "recording"}


NEAR = 0.75  # similarity from which a name is proposed: one or two letters are wrong


def unknown_names(what: str, names: Iterable[str], known: Iterable[str], verb: str
                  ) -> tuple[str, str]:
    """(`what` with all `names` that nobody knows, the fix): the nearest of the `known`.

    `verb`: they are options of a verb of the command, or settings for "": a page lists them.
    """
    names, known = [*names], [*known]
    dashes = "--" * names[0].startswith("-")
    near = [dashes + one for name in names for one in difflib.get_close_matches(
        name.lstrip("-").replace("-", "_").removeprefix("no_"), known, 1, NEAR)]
    what = f"{what} {', '.join(names)}"
    if near:
        return what, f"did you mean {', '.join(near)}?"
    if verb:
        return what, f"{program()} {verb} --help lists them"
    page = f"{program()} --help-all" if dashes else "help(fastppo.PPO)"
    return what, f"{page} lists them, docs/coming_from.md those of other libraries"
