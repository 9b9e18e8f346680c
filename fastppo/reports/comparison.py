"""Two groups of runs compared over their seeds, after Agarwal et al. 2021 (arXiv:2108.13264)."""

import textwrap
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from fastppo.errors import ConfigError, Set
from fastppo.reports.run_table import RunTable
from fastppo.settings.known_names import MEAN_RETURN
from fastppo.settings.values import digits_of

RESAMPLES = 10_000
SEED = 0  # of the bootstrap: the same runs have the same intervals
FEW_RUNS, FEWEST_RUNS = 5, 2  # below the first a warning, below the second an error
EVALUATION_SCORE = "mean return of the evaluation after training (summary.json)"
TEXT_WIDTH = 80
HEADINGS = "runs", "IQM", "95 % interval", "mean", "median"


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


class Side(NamedTuple):
    """One of the groups; over several environments its numbers are means of normalised scores."""

    runs: int
    iqm: Estimate  # interquartile mean of the scores
    mean: float
    median: float
    scores: list[float]  # one for each run, never normalised


class Comparison(NamedTuple):
    """Group a against group b."""

    environments: list[str]  # of all runs
    warnings: list[str]  # what makes them less comparable
    score: str  # the meaning of a run's score
    a: Side
    b: Side
    improvement: Estimate  # P(A > B), see improvement_of

    def as_dict(self) -> dict[str, Any]:
        """The comparison as plain values for JSON."""
        sides = {name: side._asdict() | {"iqm": side.iqm._asdict()}
                 for name, side in (("a", self.a), ("b", self.b))}
        return self._asdict() | sides | {"improvement": self.improvement._asdict()}


def compare_runs(a: Sequence[RunTable], b: Sequence[RunTable], metric: str | None = None
                 ) -> Comparison:
    """Compares the scores of two groups of runs.

    The score of a run is the mean of its evaluation after training; without one in any run it is
    the mean of the last tenth of the values of charts/episodic_return, and with `metric` that of
    the metric. Intervals are percentile bootstraps of RESAMPLES resamples with a fixed seed; runs
    are drawn from each group and environment separately (stratified). Over several environments
    P(A > B) and the statistics of normalised scores are means over environments, as in rliable.
    Raises ConfigError for fewer than FEWEST_RUNS runs, for a run in both groups, for an environment
    in one of them, if only some runs have an evaluation, and if a score is not finite.
    """
    for name, side in (("A", a), ("B", b)):
        if len(side) < FEWEST_RUNS:
            raise ConfigError(f"{name} has {len(side)} run, and a comparison over seeds needs"
                              f" {FEWEST_RUNS} or more", "train with --seed=2, --seed=3, ...")
    if both := {table.file.resolve() for table in a} & {table.file.resolve() for table in b}:
        raise ConfigError(f"{min(both)} is in both groups", "give groups without a common run")
    score, values = run_scores([*a, *b], metric)
    titles = {table.env_name: table.title for table in [*a, *b]}
    scores = values[:len(a)], values[len(a):]
    first, second = ([part[[table.env_name == name for table in side]] for name in titles]
                     for side, part in zip((a, b), scores))  # of each environment
    for title, *parts in zip(titles.values(), first, second):
        if not all(map(len, parts)):
            raise ConfigError(f"{title} is in one group only", "give groups of the same"
                              " environments")
    few = min(map(len, (*first, *second)))
    warnings = [f"{few} runs on a side are few, and the intervals too narrow; use {FEW_RUNS} or"
                " more on each side"] * (few < FEW_RUNS)
    return Comparison([*titles.values()], warnings, score,
                      *map(side_of, normalised(first, second), scores),
                      bootstrapped((*first, *second), improvement_over))


def normalised(first: Sequence[np.ndarray], second: Sequence[np.ndarray]
               ) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The scores of both groups; of several environments from 0, the lowest of each, to 1."""
    if len(first) == 1:
        return [*first], [*second]
    limits = [(min(*a, *b), max(*a, *b)) for a, b in zip(first, second)]
    return tuple([(x - low) / ((high - low) or 1.0) for x, (low, high) in zip(side, limits)]
                 for side in (first, second))


def run_scores(tables: Sequence[RunTable], metric: str | None) -> tuple[str, np.ndarray]:
    """(the meaning of a score, the score of each run f64 [runs]); see compare_runs."""
    evaluated = [evaluation_mean(table) for table in tables]
    without = [table.file for table, value in zip(tables, evaluated) if value is None]
    if metric is None and 0 < len(without) < len(tables):
        raise ConfigError(f"{len(without)} of {len(tables)} runs have no evaluation after training,"
                          f" such as {without[0]}: their scores would not be alike",
                          Set(metric=MEAN_RETURN))
    if metric is None and not without:
        score, values = EVALUATION_SCORE, evaluated
    else:
        metric = metric or MEAN_RETURN
        score, values = f"{metric}, mean of the last tenth", [
            last_tenth(table.curve(metric)[1]) for table in tables]
    for table, value in zip(tables, values):
        if not np.isfinite(value):
            raise ConfigError(f"the score of {table.file} is {value}", "leave that run out")
    return score, np.array(values)


def evaluation_mean(table: RunTable) -> float | None:
    """The mean return of the evaluation in a run's summary; None if there is none."""
    try:
        return float(table.summary["evaluation"]["mean"])
    except (KeyError, TypeError, ValueError):
        return None


def last_tenth(values: np.ndarray) -> float:
    """The mean of the last tenth of `values`, of one at least."""
    return float(values[-max(1, round(len(values) / 10)):].mean())


def side_of(parts: Sequence[np.ndarray], scores: np.ndarray) -> Side:
    """The statistics of one group: of its scores f64 [runs] in each environment, their means."""
    return Side(len(scores), bootstrapped(parts, mean_iqm), *(
        float(np.mean([statistic(part) for part in parts])) for statistic in (np.mean, np.median)),
        scores.tolist())


def mean_iqm(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean over environments of the interquartile mean of each."""
    return np.mean([interquartile_mean(part, axis) for part in parts], axis=0)


def improvement_over(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean over environments of P(A > B); the scores of A in all of them, then those of B."""
    half = len(parts) // 2
    return np.mean([improvement_of(a, b, axis) for a, b in zip(parts[:half], parts[half:])], axis=0)


def interquartile_mean(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean without the lowest and the highest quarter (rounded down) of the scores."""
    from scipy.stats import trim_mean
    return trim_mean(scores, 0.25, axis=axis)


def improvement_of(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """P(A > B): the share of the pairs of runs in which that of `a` is better, ties counted half.

    It is the Mann-Whitney U statistic divided by the number of pairs.
    """
    pairs = np.sign(np.moveaxis(a, axis, -1)[..., :, None] - np.moveaxis(b, axis, -1)[..., None, :])
    return (1 + pairs.mean(axis=(-2, -1))) / 2


def bootstrapped(groups: Sequence[np.ndarray], statistic: Callable) -> Estimate:
    """The value of a statistic of groups of scores, with its 95 % interval; see compare_runs."""
    from scipy.stats import bootstrap
    drawn = [np.repeat(x, 2) if len(x) == 1 else x for x in groups]  # scipy wants two at least
    found = bootstrap(drawn, statistic, n_resamples=RESAMPLES, batch=RESAMPLES // 10,
                      vectorized=True, method="percentile", rng=np.random.default_rng(SEED))
    low, high = found.confidence_interval
    return Estimate(float(statistic(*groups)), float(low), float(high))


def comparison_text(found: Comparison, names: tuple[str, str]) -> str:
    """The table of a comparison and its meaning, in lines of at most 80 letters.

    `names` are those of the groups; a long one is shortened at its beginning.
    """
    digits = 3 if len(found.environments) > 1 else \
        digits_of(max(map(abs, found.a.scores + found.b.scores)))
    rows = [HEADINGS, *([str(side.runs), f"{side.iqm.value:z,.{digits}f}",
                         interval_text(side.iqm, digits), f"{side.mean:z,.{digits}f}",
                         f"{side.median:z,.{digits}f}"] for side in (found.a, found.b))]
    widths = [max(map(len, column)) + 2 for column in zip(*rows)]
    numbers = ["".join(f"{cell:>{width}}" for cell, width in zip(row, widths)) for row in rows]
    room = max(12, TEXT_WIDTH - sum(widths) - 3)
    labels = [name if len(name) <= room else "..." + name[3 - room:] for name in names]
    wide = 3 + max(map(len, labels))
    listed = ", ".join(found.environments)
    place = f"environment: {listed}" if len(found.environments) == 1 else (
        f"environments: {listed}; scores are normalised in each, from 0, the lowest of all runs, to"
        " 1, and the numbers are means over environments")
    lines = [f"score: {found.score}", place, "",
             " " * wide + numbers[0],
             *(f"{f'{letter}  {label}':<{wide}}{row}"
               for letter, label, row in zip("AB", labels, numbers[1:])), "",
             f"P(A > B) = {found.improvement.value:.2f},"
             f" 95 % interval {interval_text(found.improvement, 2)}", meaning(found)]
    return "\n".join(textwrap.fill(line, TEXT_WIDTH) if line[:1] not in " AB" else line
                     for line in lines)


def meaning(found: Comparison) -> str:
    """A sentence on what the runs show; with few runs the warning instead."""
    value, low, high = found.improvement
    if found.warnings:
        return f"warning: {'; '.join(found.warnings)}"
    if low <= 0.5 <= high:
        return "The interval contains 0.5: these runs do not show which of the two is higher."
    first, second = "AB" if value > 0.5 else "BA"
    return f"The interval does not contain 0.5: the scores of {first} are higher than {second}'s."


def interval_text(estimate: Estimate, digits: int) -> str:
    """The ends of a 95 % interval."""
    return f"{estimate.low:z,.{digits}f} to {estimate.high:z,.{digits}f}"
