"""Makes the tables of docs/results.md from stored results: medians, intervals, goals met or not.

A result is a dict: system, env, budget, seed, steps, seconds, mean, ci95; `budget` is the number of
steps allowed, `steps` the number taken. Nothing is trained here.
"""

import json
import os
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Iterable, NamedTuple, Sequence

Result = dict[str, Any]
KEY = "system", "env", "budget", "seed"
BEGIN, END = "<!-- tables: bench/learning.py -->", "<!-- end of tables -->"
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
STUDENT = 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14
MANY = 2.1  # for more of them: at most 0.15 too much


class Goal(NamedTuple):
    """A score that the median over seeds must reach within `steps`; None: no goal."""

    env: str
    steps: int
    wanted: float | None


def interval(scores: Sequence[float]) -> float:
    """Half the 95 % interval of the mean over seeds, by Student's t; NaN for one seed."""
    if len(scores) < 2:
        return float("nan")
    free = len(scores) - 1
    return (STUDENT[free - 1] if free <= len(STUDENT) else MANY) * stdev(scores) / len(scores)**0.5


def load(path: Path) -> dict[str, Any]:
    """The stored {"made": {system: machine and versions}, "results": [...]}; empty if none."""
    return json.loads(path.read_text()) if path.exists() else {"made": {}, "results": []}


def keep(path: Path, result: Result, made: str) -> None:
    """Store a result in place of an older one with the same key; sorted, one per line."""
    kept = load(path)
    key = [result[name] for name in KEY]
    kept["results"] = sorted([one for one in kept["results"] if [one[k] for k in KEY] != key]
                             + [result], key=lambda one: [one[name] for name in KEY])
    kept["made"][result["system"]] = made
    lines = ",\n  ".join(json.dumps(one) for one in kept["results"])
    text = f'{{"made": {json.dumps(kept["made"], indent=2)},\n "results": [\n  {lines}\n]}}\n'
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    os.replace(partial, path)


def found(results: Iterable[Result], system: str, goal: Goal) -> list[Result]:
    """The results of a system for a goal."""
    return [one for one in results
            if (one["system"], one["env"], one["budget"]) == (system, goal.env, goal.steps)]


def figures(results: Sequence[Result]) -> list[str]:
    """Cells: seeds, steps, seconds, mean and interval, lowest, median; dashes where nothing is."""
    if not results:
        return ["0", *["–"] * 5]
    scores = [one["mean"] for one in results]
    spread = f" ± {interval(scores):,.1f}" if len(scores) > 1 else ""
    return [str(len(scores)), f"{results[0]['steps']:,}",
            f"{median(one['seconds'] for one in results):,.0f}", f"{mean(scores):,.1f}{spread}",
            f"{min(scores):,.1f}", f"**{median(scores):,.1f}**"]


def verdict(results: Sequence[Result], wanted: float | None) -> str:
    """yes if the median reaches the goal, else no; a dash if there is no result or no goal."""
    if not results or wanted is None:
        return "–"
    return "yes" if median(one["mean"] for one in results) >= wanted else "**no**"


def comparison(own: Sequence[Result], other: Sequence[Result]) -> str:
    """`verdict` on the other's median; a no tells if the intervals of the means overlap."""
    answer = verdict(own, median(one["mean"] for one in other) if other else None)
    if answer != "**no**" or min(len(own), len(other)) < 2:
        return answer
    scores = [[one["mean"] for one in results] for results in (own, other)]
    apart = abs(mean(scores[0]) - mean(scores[1])) > sum(map(interval, scores))
    return answer if apart else "no, within noise"


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


FIGURES = "seeds", "steps", "seconds", "mean and 95 % interval", "lowest", "median"


def with_presets(results: Sequence[Result], goals: Iterable[Goal]) -> str:
    """The table of goals with the presets: one row per environment."""
    rows = []
    for goal in goals:
        own = found(results, "preset", goal)
        rows.append([goal.env, *figures(own), f"{goal.wanted:,g} in {goal.steps:,}",
                     verdict(own, goal.wanted)])
    return markdown(["environment", *FIGURES, "wanted", "met"], rows)


def without_presets(results: Sequence[Result], goals: Iterable[Goal]) -> str:
    """The table of the defaults, compared with another system's: one row per environment."""
    rows = []
    for goal in goals:
        own, other = found(results, "none", goal), found(results, "sb3", goal)
        wanted = "–" if goal.wanted is None else f"{goal.wanted:,g}"
        rows.append([goal.env, *figures(own), wanted, verdict(own, goal.wanted),
                     *(figures(other)[i] for i in (0, 3, 5)), comparison(own, other)])
    return markdown(["environment", *FIGURES, "wanted", "met", "SB3: seeds",
                     "mean and 95 % interval", "median", "not below"], rows)


def section(kept: dict[str, Any], goals: Iterable[Goal], plain: Iterable[Goal]) -> str:
    """The generated part of docs/results.md: both tables, the machines and versions."""
    results = kept["results"]
    made = "\n".join(f"- {system}: {text}" for system, text in sorted(kept["made"].items()))
    return "\n\n".join(["## With the presets", with_presets(results, goals),
                        "## Without a preset, beside Stable-Baselines3's defaults",
                        without_presets(results, plain), "Made on:", made])


def rewrite(page: Path, text: str) -> None:
    """Replace the generated part of the page, between its two marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
