"""Progress lines and notes for a terminal."""

import math
import sys
import time

from fastppo.outputs.metrics import EVAL_RETURN

LINE_SECONDS = 5.0
FIRST_SECONDS = 1.0


class ProgressLines:
    """A line of plain text after a second, every few seconds, at an evaluation, and at the end."""

    def __init__(self):
        self.due, self.line, self.first = time.monotonic() + FIRST_SECONDS, "", True

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Print a line if the last one is long enough ago, training done or just evaluated."""
        self.line = progress_line(ppo.step, ppo.total, stats, forecast=not self.first)
        if time.monotonic() >= self.due or ppo.step >= ppo.total or EVAL_RETURN in stats:
            self._print()

    def close(self) -> None:
        """Print the last line, if it has not been."""
        self._print()

    def _print(self) -> None:
        if self.line:
            print(self.line, flush=True)
            self.first = False
        self.line, self.due = "", time.monotonic() + LINE_SECONDS


def progress_line(step: int, total: int, stats: dict[str, float], forecast: bool = True) -> str:
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
            + (f"   evaluation {stats[EVAL_RETURN]:.1f}" if EVAL_RETURN in stats else ""))


def clock_time(seconds: int) -> str:
    """Seconds as minutes:seconds, from an hour on as hours:minutes:seconds."""
    minutes, rest = divmod(seconds, 60)
    whole = f"{minutes // 60}:{minutes % 60:02d}" if minutes >= 60 else str(minutes)
    return f"{whole}:{rest:02d}"


def note(text: str) -> None:
    """One line on stderr."""
    print(f"note: {text}", file=sys.stderr, flush=True)
