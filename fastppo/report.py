"""What a run says about itself: its clock, its metrics, and the sinks that take them.

A sink is a callback, `sink(ppo, stats)` once an iteration, with a `close()`. Metric names are
CleanRL's; docs/metrics.md says what each one means.
"""

import csv
import json
import os
import sys
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import numpy as np

from .collect import Rollout
from .config import Config
from .errors import ConfigError

WINDOW = 100  # finished episodes that charts/episodic_return is the mean of
LINE_SECONDS = 5.0


class Clock:
    """Seconds spent in each named part: `with clock("update"): ...`."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str):
        """Count the time inside the block to `part`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - start

    def stats(self, step: int) -> dict[str, float]:
        """Steps per second of all parts together, and each part's share of that time."""
        busy = sum(self.seconds.values())
        shares = {f"time/{part}": spent / busy for part, spent in self.seconds.items()}
        return {"charts/SPS": step / busy, **shares}


class Episodes:
    """The last finished episodes, and the metrics that follow from them."""

    def __init__(self):
        self.recent: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self.count = 0

    def take(self, total: np.ndarray, length: np.ndarray) -> None:
        """Add those that ended in a rollout: return f64 and length i64 [t e], 0 where none did."""
        ended = length > 0
        self.recent.extend(zip(total[ended].tolist(), length[ended].tolist()))
        self.count += int(ended.sum())

    def stats(self) -> dict[str, float]:
        """Means over the last 100; nothing before the first one."""
        if not self.recent:
            return {}
        total, length = np.mean(self.recent, axis=0)
        return {"charts/episodic_return": float(total), "charts/episodic_length": float(length),
                "charts/episodes": float(self.count)}


def explained_variance(rollout: Rollout) -> float:
    """1 - var(ret - val) / var(ret) over valid rows: 1 is a perfect critic; 0 where ret is constant."""
    ret, val = rollout.ret[rollout.valid].double(), rollout.val[rollout.valid].double()
    variance = ret.var(correction=0).item()
    return 1 - (ret - val).var(correction=0).item() / variance if variance > 0 else 0.0


class Sink(Protocol):
    """Takes the metrics of every iteration."""

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """One iteration's metrics."""

    def close(self) -> None:
        """No more will come."""


class Lines:
    """A line of plain text every few seconds, and at the end."""

    def __init__(self):
        self.last, self.line = time.monotonic() - LINE_SECONDS + 1, ""

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Print a line if the last one is long enough ago."""
        shown = f"{stats['charts/episodic_return']:8.1f}" if "charts/episodic_return" in stats \
            else "     ..."
        self.line = (f"step {ppo.step:>9,} / {ppo.total:,}   return {shown}   "
                     f"{stats['charts/SPS']:8,.0f} steps/s   kl {stats['losses/approx_kl']:.4f}   "
                     f"explained variance {stats['losses/explained_variance']:.2f}")
        if time.monotonic() - self.last > LINE_SECONDS:
            self._print()

    def close(self) -> None:
        """Print the last line."""
        self._print()

    def _print(self) -> None:
        if self.line:
            print(self.line, flush=True)
        self.line, self.last = "", time.monotonic()


class Csv:
    """metrics.csv and config.json in a run's folder; columns are known from the first iteration on."""

    def __init__(self, run_dir: Path, config: Config):
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.json").write_text(json.dumps(asdict(config), indent=2, default=repr) + "\n")
        self.file = open(run_dir / "metrics.csv", "w", newline="")
        self.writer: csv.DictWriter | None = None

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Write a row; metrics without a value yet are empty."""
        if self.writer is None:
            late = ("charts/episodic_return", "charts/episodic_length", "charts/episodes")
            names = ["global_step", *dict.fromkeys([*late, *stats])]
            self.writer = csv.DictWriter(self.file, names, extrasaction="ignore")
            self.writer.writeheader()
        self.writer.writerow({"global_step": ppo.step, **stats})
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class Wandb:
    """Metrics to Weights & Biases, online or offline; what goes wrong there never stops a run."""

    def __init__(self, config: Config, run_dir: Path | None):
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("--logger=wandb needs the package wandb",
                              'pip install "fastppo[wandb]"') from error
        folder = run_dir or Path(".")
        folder.mkdir(parents=True, exist_ok=True)
        settings = dict(project=config.wandb_project, dir=str(folder), name=folder.name or None,
                        config=json.loads(json.dumps(asdict(config), default=repr)),
                        settings=wandb.Settings(console="off", save_code=False, init_timeout=20))
        self.run = _wandb_run(wandb, settings)

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Log one iteration."""
        if self.run is None:
            return
        try:
            self.run.log({"global_step": ppo.step, **stats}, step=ppo.step)
        except Exception as error:  # whatever a logger does, training goes on
            _note(f"wandb: {error}; logging there has stopped")
            self.run = None

    def close(self) -> None:
        """Finish the run."""
        if self.run is not None:
            self.run.finish()


def _wandb_run(wandb, settings: dict):
    mode = os.environ.get("WANDB_MODE")
    if mode is None and not (os.environ.get("WANDB_API_KEY") or wandb.api.api_key):
        _note(f"wandb: not logged in; writing offline to {settings['dir']}/wandb"
              " (later: wandb sync)")
        mode = "offline"
    for attempt in dict.fromkeys((mode, "offline")):
        try:
            return wandb.init(mode=attempt, **settings)
        except Exception as error:  # no network, no account, a full disk
            _note(f"wandb: {error}; " + ("going on without it" if attempt == "offline"
                                         else "writing offline"))
    return None


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


def sinks_of(config: Config) -> list[Sink]:
    """The sinks a Config asks for."""
    folder = Path(config.run_dir) if config.run_dir else None
    return [*([Csv(folder, config)] if folder else []),
            *([Wandb(config, folder)] if config.logger == "wandb" else []),
            *([Lines()] if config.progress == "lines" else [])]
