"""What a run says about itself: its clock, its metrics, and the sinks that take them.

A sink is a callback, `sink(ppo, stats)` once an iteration, with a `close()`; none of them raises
while a run trains, save an evaluator whose environment is faulty. Metric names are CleanRL's;
docs/metrics.md says what each one means.
"""

import csv
import json
import logging
import math
import os
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from .collect import Rollout
from .config import Config
from .envs import Source
from .errors import ConfigError
from .evaluator import PART, RETURN, Evaluator, wanted
from .infos import SLOTS, WINDOW, Told
from .processes import SECRET
from .sinks_wandb import Wandb, check_wandb, note

log = logging.getLogger("fastppo")
LINE_SECONDS = 5.0
FIRST_SECONDS = 1.0


class Clock:
    """Seconds spent in each named part: `with clock("update"): ...`; `part` is the one now."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.part = ""

    @contextmanager
    def __call__(self, part: str):
        """Count the time inside the block to `part`."""
        start, self.part = time.monotonic(), part
        try:
            yield
        finally:
            self.part = ""
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - start

    def stats(self, step: int) -> dict[str, float]:
        """Steps per second of training, and each part's seconds as a share of training's.

        Evaluating is a part that is no training: it stands beside the others, which add up to 1.
        """
        busy = sum(spent for part, spent in self.seconds.items() if part != PART)
        shares = {f"time/{part}": spent / busy for part, spent in self.seconds.items()}
        return {"charts/SPS": step / busy, **shares}


class Seen(NamedTuple):
    """The episodes so far; replaced whole, so that an interrupt never leaves half a rollout's."""

    iteration: int | None = None  # the last rollout of which they were taken
    recent: tuple[tuple[float, int, dict], ...] = ()  # return, length and numbers of the last ones
    count: int = 0
    names: tuple[str, ...] = ()  # of the numbers that are shown


class Episodes:
    """The last finished episodes, and the metrics that follow from them."""

    def __init__(self):
        self.seen = Seen()

    @property
    def recent(self) -> tuple[tuple[float, int, dict], ...]:
        """(return, length, numbers told) of the last WINDOW finished episodes."""
        return self.seen.recent

    @property
    def count(self) -> int:
        """How many episodes have finished."""
        return self.seen.count

    def take(self, total: np.ndarray, length: np.ndarray, told: Told | None = None,
             iteration: int | None = None) -> None:
        """Add those that ended in a rollout: return f64 and length i64 [t e], 0 where none did.

        `told` is what they said at their end; the first SLOTS names are shown, for all of the run.
        The rollout of an `iteration` given again, after an interrupt, is taken once.
        """
        if iteration is not None and iteration == self.seen.iteration:
            return
        ended, told = np.argwhere(length > 0), told or {}
        last = [(float(total[t, e]), int(length[t, e]), told.get((t, e), {}))
                for t, e in ended[-WINDOW:].tolist()]
        names = dict.fromkeys([*self.seen.names, *(name for *_, found in last for name in found)])
        self.seen = Seen(iteration, (*self.recent, *last)[-WINDOW:], self.count + len(ended),
                         tuple(names)[:SLOTS])

    def stats(self) -> dict[str, float]:
        """Means over the last 100, or those of them that told a number; none before the first."""
        if not self.recent:
            return {}
        total, length, told = zip(*self.recent)
        means = {"charts/episodic_return": float(np.mean(total)),
                 "charts/episodic_length": float(np.mean(length)),
                 "charts/episodes": float(self.count)}
        for name in self.seen.names:
            if found := [numbers[name] for numbers in told if name in numbers]:
                means[f"env/{name}"] = float(np.mean(found))
        return means


def explained_variance(rollout: Rollout) -> float:
    """1 - var(ret - val) / var(ret) over valid rows: 1 for a perfect critic, 0 for constant ret."""
    ret, val = rollout.ret[rollout.valid].double(), rollout.val[rollout.valid].double()
    variance = ret.var(correction=0).item() if len(ret) else 0.0
    return 1 - (ret - val).var(correction=0).item() / variance if variance > 0 else 0.0


def described(ppo) -> str:
    """A trainer in one line: its environment, how far it is, and whether it is closed."""
    closed = ", closed" * (ppo.collector is None)
    return f"<PPO on {ppo.config.env_name}: step {ppo.step:,} of {ppo.total:,}{closed}>"


def stops(answer) -> bool:
    """Whether a callback's answer asks to end training: False, also as numpy compares."""
    return isinstance(answer, (bool, np.bool_)) and not answer


class Sink(Protocol):
    """Takes the metrics of every iteration."""

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """One iteration's metrics."""

    def close(self) -> None:
        """No more will come."""


class Lines:
    """A line of plain text after a second, every few seconds, at an evaluation, and at the end."""

    def __init__(self):
        self.due, self.line, self.first = time.monotonic() + FIRST_SECONDS, "", True

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Print a line if the last one is long enough ago, training done or just evaluated."""
        self.line = line(ppo.step, ppo.total, stats, forecast=not self.first)
        if time.monotonic() >= self.due or ppo.step >= ppo.total or RETURN in stats:
            self._print()

    def close(self) -> None:
        """Print the last line, if it has not been."""
        self._print()

    def _print(self) -> None:
        if self.line:
            print(self.line, flush=True)
            self.first = False
        self.line, self.due = "", time.monotonic() + LINE_SECONDS


def line(step: int, total: int, stats: dict[str, float], forecast: bool = True) -> str:
    """One line of progress: how far, how good, how fast, how healthy, and how long still.

    No `forecast` goes into a run's first line: its seconds are the warm-up's and the first calls'.
    """
    value, wide = stats.get("charts/episodic_return"), len(f"{total:,}")
    shown = "       -" if value is None else f"{value:8.1f}"
    left = clock_time(math.ceil(max(0, total - step) / stats["charts/SPS"]))
    return (f"step {step:{wide},} / {total:,} {min(1.0, step / total):4.0%}   return {shown}   "
            f"{stats['charts/SPS']:7,.0f} steps/s   kl {stats['losses/approx_kl']:.4f}   "
            f"ev {stats['losses/explained_variance']:5.2f}"
            + f"   left {left}" * forecast
            + (f"   evaluation {stats[RETURN]:.1f}" if RETURN in stats else ""))


def clock_time(seconds: int) -> str:
    """Seconds as minutes:seconds, from an hour on as hours:minutes:seconds."""
    minutes, rest = divmod(seconds, 60)
    whole = f"{minutes // 60}:{minutes % 60:02d}" if minutes >= 60 else str(minutes)
    return f"{whole}:{rest:02d}"


class Csv:
    """A table with a row for every iteration; a metric that comes late gets a column of its own.

    An older table at `path` is kept under another name, which the log says. A disk that fills up is
    noted, once, and the run goes on. Raises ConfigError where the file cannot be made.
    """

    def __init__(self, path: Path):
        self.path, self.lost = path, False
        self.names = ["global_step", "charts/episodic_return", "charts/episodic_length",
                      "charts/episodes"]
        try:
            if path.exists():
                self._keep()
            self._rewrite([])
        except OSError as error:
            raise unwritable(path, error) from error

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Write a row; metrics without a value are empty."""
        if self.lost:
            return
        row = {"global_step": ppo.step, **stats}
        late = [name for name in row if name not in self.names]
        try:
            if late:
                self._widen(late)
            with open(self.path, "a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.names).writerow(row)
        except OSError as error:
            self.lost = True
            note(f"{self.path}: {error.strerror}; metrics from step {ppo.step:,} on are lost")

    def close(self) -> None:
        """Nothing is open between two rows."""

    def _keep(self) -> None:
        """Give the table of an earlier run a name that is free."""
        free = (self.path.with_name(f"{self.path.stem}-{i}{self.path.suffix}") for i in count(1))
        older = next(path for path in free if not path.exists())
        os.replace(self.path, older)
        log.warning("%s of an earlier run is now %s", self.path, older.name)

    def _widen(self, late: list[str]) -> None:
        with open(self.path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.names += late
        self._rewrite(rows)

    def _rewrite(self, rows: list[dict]) -> None:
        """Write the whole table; a reader sees the old one or this one."""
        partial = self.path.with_name(f".{self.path.name}.part")
        with open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.names)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(partial, self.path)


def public(config: Config) -> dict[str, Any]:
    """A Config as plain JSON values, without what looks like a password in env_kwargs."""
    plain = json.loads(json.dumps(vars(config), default=repr))
    return plain | {"env_kwargs": _without_secrets(plain["env_kwargs"])}


def _without_secrets(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(held, key) for key, held in value.items()}
    return "***" if isinstance(value, str) and SECRET.search(name) else value


def unwritable(path: Path, error: OSError) -> ConfigError:
    """The error for a run's folder that cannot be written."""
    return ConfigError(f"cannot write {path}: {error.strerror}", "--run_dir=another/folder")


def folder_of(config: Config) -> Path | None:
    """The folder a Config asks for, made if need be and with config.json in it; or None."""
    if config.run_dir is None:
        return None
    folder = Path(config.run_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(public(config), indent=2)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def sinks_of(config: Config, source: Source) -> list[Sink]:
    """The sinks a Config asks for; an evaluator first, so that the others get its metrics."""
    if config.logger == "wandb":
        check_wandb()
    sinks: list[Sink] = [Evaluator(config, source)] if wanted(config) else []
    folder = folder_of(config)
    sinks += [Csv(folder / "metrics.csv")] if folder else []
    if config.logger == "wandb":
        sinks.append(Wandb(config.wandb_project, folder or Path("."), public(config)))
    return sinks + ([Lines()] if config.progress == "lines" else [])
