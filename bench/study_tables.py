"""Shows the stored runs of study.py, as tables of Markdown and as a picture.

    python bench/study_tables.py table general zoo --seeds 1 2 3 4 5 --tasks CartPole-v1 Acrobot-v1
    python bench/study_tables.py beside general cleanrl --seeds 1 2 3 --tasks dm_control --training
    python bench/study_tables.py seconds preset_timed zoo_timed --seeds 1 2 3 --tasks timed
    python bench/study_tables.py plot general sb3 --seeds 1 2 3 --tasks unseen --output unseen.png
    python bench/study_tables.py page      # makes the tables of docs/results.md again

`table` has the areas of bench/study.md and each name's chance to beat the last one; `beside` means
and standard deviations, also of bench/published.json; with --training of our last hundred training
episodes in place of the last evaluation. On the page each table stands below the command that makes
it.
"""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterable, Sized
from pathlib import Path

import numpy as np
from scipy.stats import ttest_ind_from_stats
from study import EVALUATIONS, HERE, STEPS, options, path_of
from study_tasks import DEVELOPMENT, GOALS

PAGE = HERE.parent.parent / "docs" / "results.md"
BLOCK = re.compile(r"(<!-- study_tables\.py (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
PUBLISHED = json.loads((HERE.parent / "published.json").read_text())
TITLES = {"general": "fastppo", "preset": "fastppo with presets", "sb3": "Stable-Baselines3",
          "zoo": "rl-zoo3's settings", "cleanrl": "CleanRL", "tianshou": "Tianshou",
          "cleanrl_script": "CleanRL's script", "preset_timed": "fastppo",
          "zoo_timed": "Stable-Baselines3, rl-zoo3's settings",
          "rl_games_timed": "rl_games on EnvPool", "rltools_timed": "RLtools"}
REPORTED, PRESET_SEEDS = range(1, 11), range(1, 6)
SURE = 0.05  # two means differ if Welch's p is below


def stored(name: str, task: str, seeds: Iterable[int]) -> list[dict]:
    """The stored runs of these seeds."""
    paths = (path_of(name, task, seed) for seed in seeds)
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def areas_of(runs: list[dict], low: float, best: float) -> np.ndarray:
    """The area of each run: the mean of its curve, which begins at `low`, as a share."""
    marks = STEPS[runs[0]["task"]] * np.arange(1, EVALUATIONS + 1) / EVALUATIONS
    means = np.array([np.interp(marks, [0, *run["steps"]], [low, *run["returns"]]).mean()
                      for run in runs])
    return np.clip((means - low) / (best - low), 0, 1.2)


def scale(task: str) -> tuple[float, float]:
    """(the return of random actions, the best known one), see bench/study.md."""
    low = stored("random", task, [0])[0]["returns"][0]
    if task in DEVELOPMENT:
        return low, float(np.median([run["returns"][-1]
                                     for run in stored("preset", task, PRESET_SEEDS)]))
    ends = [[run["returns"][-1] for run in stored(path.name, task, REPORTED)]
            for path in HERE.iterdir() if path.name != "random"]
    return low, max(float(np.mean(end)) for end in ends if end)


def title(name: str) -> str:
    """What the readers of a table call a name."""
    return TITLES.get(name, name)


def markdown(titles: list[str], rows: Iterable[list[str]]) -> str:
    """A table of Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def count(runs: Sized) -> str:
    """How many seeds they are."""
    return f"{len(runs)} seed{'s' * (len(runs) > 1)}"


def not_yet(tasks: list[str]) -> list[str]:
    """The line about tasks without runs, if there are any."""
    return [f"- not run yet: {', '.join(tasks)}"] * bool(tasks)


def table(args: argparse.Namespace) -> str:
    """A row for each task that all have run, then each name's score and chance to beat the last."""
    from fastppo.reports.comparison import bootstrapped, improvement_over, interquartile_mean
    areas: dict[str, list[np.ndarray]] = {name: [] for name in args.names}
    rows, missing = [], []
    for task in args.tasks:
        needed = {name: args.seeds for name in args.names} | {"random": [0]} | (
            {"preset": PRESET_SEEDS} if task in DEVELOPMENT else {})
        if not all(path_of(name, task, seed).exists()
                   for name, seeds in needed.items() for seed in seeds):
            missing.append(task)
            continue
        low, best = scale(task)
        cells = [task, f"{low:,.1f}", f"{best:,.1f}"]
        for name in args.names:
            runs = stored(name, task, args.seeds)
            last = np.array([run["returns"][-1] for run in runs])
            areas[name].append(areas_of(runs, low, best))
            cells += [f"{np.median(last):,.1f} ({last.min():,.1f})",
                      f"{(np.median(last) - low) / (best - low):.2f}",
                      f"{areas[name][-1].mean():.2f}"]
        rows.append(cells)

    def score(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
        return interquartile_mean(np.concatenate(parts, axis), axis)

    last, text = args.names[-1], not_yet(missing)
    for name in args.names if rows else []:
        mean = bootstrapped(areas[name], score)
        text.append(f"- {title(name)}: interquartile mean of the areas {mean.value:.3f}"
                    f" ({mean.low:.3f} to {mean.high:.3f})")
        if name != last:
            better = bootstrapped((*areas[name], *areas[last]), improvement_over)
            text[-1] += (f"; P(better than {title(last)}) {better.value:.3f} ({better.low:.3f} to"
                         f" {better.high:.3f})")
    heads = [head for name in args.names
             for head in (f"{title(name)}: median (lowest) at the end", "share", "area")]
    return "\n\n".join([markdown(["task", "random", "best", *heads], rows), "\n".join(text)])


def moments(name: str, task: str, seeds: Iterable[int], training: bool
            ) -> tuple[float, float, int] | None:
    """(mean, standard deviation, seeds) of the returns at the end; None without two runs.

    Returns are of the last evaluation, with `training` of the last hundred training episodes. A
    deviation that was not published is NaN.
    """
    if name in PUBLISHED:
        found = PUBLISHED[name]["tasks"].get(task)
        return found and (*np.array(found, float), PUBLISHED[name]["seeds"])
    runs = np.array([run["training"] if training else run["returns"][-1]
                     for run in stored(name, task, seeds)])
    return (runs.mean(), runs.std(ddof=1), len(runs)) if len(runs) > 1 else None


def beside(args: argparse.Namespace) -> str:
    """The first name's means beside the others', and how often they are higher and lower."""
    rows, missing, (first, *others) = [], [], args.names
    higher, lower = ({name: np.zeros(2, int) for name in others} for _ in range(2))
    for task in args.tasks:
        own, cells = moments(first, task, args.seeds, args.training), [task]
        if own is None:
            missing.append(task)
            continue
        for name in args.names:
            found = moments(name, task, args.seeds, args.training)
            if found is None:
                cells.append("–")
                continue
            spread = "" if np.isnan(found[1]) else f" ± {found[1]:,.1f}"
            cells.append(f"{found[0]:,.1f}{spread} ({found[2]})")
            if name != first:
                is_higher = own[0] > found[0]
                is_sure = ttest_ind_from_stats(*own, *found, equal_var=False).pvalue < SURE
                higher[name] += np.array([is_higher, is_higher and is_sure])
                lower[name] += np.array([not is_higher, not is_higher and is_sure])
        rows.append(cells)
    text = [f"- {title(first)} has a higher mean than {title(name)} in {higher[name][0]}"
            f" ({higher[name][1]} by Welch's test, p < {SURE}), a lower one in {lower[name][0]}"
            f" ({lower[name][1]})" for name in others if sum(higher[name] + lower[name])]
    text += not_yet(missing)
    return "\n\n".join([markdown(["task", *map(title, args.names)], rows), "\n".join(text)])


def brief(seconds: float) -> str:
    """A number with a digit after the point, below a second two."""
    return f"{seconds:.{1 if seconds >= 1 else 2}f}"


def seconds_cell(runs: list[dict], goal: float) -> str:
    """The seconds of some runs to a goal: median, lowest, highest; how long they ran without."""
    if not runs:
        return "–"
    found = [run["seconds"][-1] if run["returns"][-1] >= goal else float("inf") for run in runs]
    if np.isinf(np.median(found)):
        return f"not in {max(run['seconds'][-1] for run in runs):.0f} s ({count(found)})"
    spread = f"{brief(min(found))} to {brief(max(found))}; " if found[1:] else ""
    return f"**{brief(np.median(found))}** ({spread}{count(found)})"


def seconds(args: argparse.Namespace) -> str:
    """The seconds of training until an evaluation reached the goal of each task."""
    rows = [[f"{task} {GOALS[task]:,}", *(seconds_cell(stored(name, task, args.seeds), GOALS[task])
                                          for name in args.names)] for task in args.tasks]
    return markdown(["goal", *map(title, args.names)], rows)


def plot(args: argparse.Namespace) -> str:
    """Write small multiples: evaluations by steps, or by seconds at each run's median speed."""
    from fastppo.reports.curves import save_curves
    from fastppo.reports.run_table import RunGroup, RunTable
    from fastppo.settings.known_names import EVAL_RETURN, GLOBAL_STEP, SPEED

    def as_table(run: dict) -> RunTable:
        steps, found = np.array(run["steps"], float), np.array(run["returns"])
        columns = {GLOBAL_STEP: steps, EVAL_RETURN: found}
        if args.by_seconds:  # median, because many runs were paused while others were timed
            each = np.median(np.diff([steps, run["seconds"]], prepend=0), axis=1)
            columns[SPEED] = np.full_like(steps, each[0] / each[1])
        return RunTable(path_of(run["name"], run["task"], run["seed"]), run["task"], run["seed"],
                        columns, {}, {})

    groups = [RunGroup(title(name), [as_table(run) for task in args.tasks
                                     for run in stored(name, task, args.seeds)
                                     if isinstance(run["seconds"], list) or not args.by_seconds])
              for name in args.names]
    return str(save_curves(groups, EVAL_RETURN, args.output, args.by_seconds))


def rewrite(text: str) -> str:
    """A page with its tables made again, each by the command above it."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{shown(shlex.split(block[2]))}\n\n{block[3]}",
                     text)


SHOWS = {"table": table, "beside": beside, "seconds": seconds, "plot": plot}


def shown(words: list[str]) -> str:
    """What a command line shows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("show", choices=SHOWS)
    parser.add_argument("--output", type=Path, default=Path("study.png"))
    parser.add_argument("--by_seconds", action="store_true")
    parser.add_argument("--training", action="store_true")
    args = options(parser, words)
    return SHOWS[args.show](args)


def main() -> None:
    """Print, or write the page."""
    if sys.argv[1:] == ["page"]:
        PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(shown(sys.argv[1:]))


if __name__ == "__main__":
    main()
