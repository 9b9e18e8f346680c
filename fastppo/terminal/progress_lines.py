"""Progress as plain lines."""

import math
import time
from threading import Event, Thread

from fastppo.machine.stderr import LINE_SECONDS
from fastppo.settings.known_names import EVAL_RETURN, KL, MEAN_RETURN, SPEED
from fastppo.settings.values import return_text
from fastppo.terminal.hints import Hints
from fastppo.terminal.snapshot import CurrentPart, RunHistory

FIRST_SECONDS = 1.0


class ProgressLines:
    """Prints a line after a second, every few seconds, after an evaluation, and at the end.

    A thread prints how far a part of an iteration is that takes long. A hint has a line of its own.
    """

    def __init__(self):
        self.due, self.line, self.first = time.monotonic() + FIRST_SECONDS, "", True
        self.history, self.hints = RunHistory(), Hints()
        self.said, self.over = 0.0, Event()

    def on_start(self, ppo) -> None:
        """Begins to look for hints, and for iterations that take long."""
        self.history.begin(ppo)
        self.said, self.over = time.monotonic(), Event()
        Thread(target=self._watch, args=(CurrentPart(ppo), self.over), daemon=True).start()

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Prints a line if it is due, if training is done, or after an evaluation."""
        found = self.hints.new(self.hints.of_learning(ppo, stats))
        self.line = progress_line(ppo.step, ppo.total, stats, forecast=not self.first)
        if time.monotonic() >= self.due or ppo.step >= ppo.total or EVAL_RETURN in stats:
            self._print()
            found += self.hints.new(self.hints.of_speed(self.history.snapshot(ppo, stats)))
        print("".join(f"{text}\n" for text in found), end="", flush=True)

    def on_end(self, ppo) -> None:
        """Ends the thread, and prints the last line, unless it was printed."""
        self.close()
        self._print()

    def close(self) -> None:
        """Ends the thread."""
        self.over.set()

    def _watch(self, part: CurrentPart, over: Event) -> None:
        """Prints the part that the run is in, where no line has come for long."""
        while not over.wait(1.0):
            text, long = part.text(), part.seconds >= LINE_SECONDS / 2  # else a line comes soon
            if text and long and time.monotonic() - self.said >= LINE_SECONDS:
                hints = self.hints.new(("rollout", text) for text in part.hint())
                print(text, *hints, sep="\n", flush=True)
                self.said = time.monotonic()

    def _print(self) -> None:
        if self.line:
            print(self.line, flush=True)
            self.first, self.said = False, time.monotonic()
        self.line, self.due = "", time.monotonic() + LINE_SECONDS


def progress_line(step: int, total: int, stats: dict[str, float], forecast: bool = True) -> str:
    """Steps, return, speed and KL, at most 80 columns; an evaluation has a line of its own.

    `forecast` adds the time left. The first line of a run has none, because start-up and warm-up
    slow the first steps.
    """
    value, width = stats.get(MEAN_RETURN), len(f"{total:,}")
    shown = " no episode yet" if value is None else f"return {return_text(value):>8}"
    forecast = forecast and stats[SPEED] > 0  # 0 if every step so far was discarded
    left = clock_time(math.ceil(max(0, total - step) / stats[SPEED])) if forecast else ""
    found = f"\nevaluation return {return_text(stats[EVAL_RETURN])}" if EVAL_RETURN in stats else ""
    return (f"step {step:{width},} {min(1.0, step / total):4.0%}  {shown}"
            f"  {stats[SPEED]:7,.0f} steps/s  kl {stats[KL]:.4f}" + f"  left {left}" * forecast
            + found)


def clock_time(seconds: int) -> str:
    """Seconds as minutes:seconds, or as hours:minutes:seconds from an hour on."""
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}:{seconds:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
