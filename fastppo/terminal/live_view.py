"""The live view: a block of lines at the end of the terminal, redrawn in place."""

import math
import time
from typing import Sequence

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from fastppo.settings import known_names
from fastppo.settings.known_names import EVAL_RETURN
from fastppo.settings.values import return_text
from fastppo.terminal.hints import Hints, hint_line
from fastppo.terminal.progress_lines import clock_time
from fastppo.terminal.snapshot import REDRAWS, CurrentPart, RunHistory, Snapshot

LABEL = 10  # columns of the first word of a line
PANEL_WIDTH = 100  # at most
BLOCKS = "▁▂▃▄▅▆▇█"
SOLVED = "green"
Part = str | tuple[str, str]  # text, or (text, style)


def panel(now: Snapshot, doing: str, columns: int) -> list[Text]:
    """The lines of a run in a terminal of so many `columns`; `doing` is the current part."""
    width, stats = min(columns, PANEL_WIDTH), now.stats
    value = stats[known_names.EXPLAINED_VARIANCE]
    elo = [f"{x:,.0f}" for name, x in stats.items() if name.startswith(known_names.ELO)]
    workers = f"{now.workers} worker{'s' * (now.workers != 1)}" if now.workers else "one process"
    memory = [f"{now.memory / 1e9:.1f} GB"] if now.memory else []
    facts = [workers, *memory, f"lr {number(now.lr)}"]
    while facts and len("   ".join([*facts, doing])) > width - LABEL:
        facts.pop()
    return [
        progress_bar(now, width),
        line("return", return_parts(now), width),
        *sparkline_of_returns(now, width),
        *[line("elo", [*elo[:1], " ".join(["past", *elo[1:]])], width)] * bool(elo),
        line("speed", speed_parts(now), width),
        *[line("time", [(f"{part} {share:.0%}", "bold" if share > 0.5 else "")
                        for part, share in now.shares.items()], width)] * bool(now.shares),
        line("update", [f"kl {stats[known_names.KL]:.4f}",
                        f"clipped {stats['losses/clipfrac']:.0%}",
                        "explained variance " + (f"{value:.2f}" if value > -9.995 else "< -10")],
             width),
        line("losses", [f"{word} {number(stats[f'losses/{name}'])}" for word, name in (
            ("policy", "policy_loss"), ("value", "value_loss"), ("entropy", "entropy"))], width),
        line("now", [*facts, doing], width),
    ]


def line(label: str, parts: Sequence[Part], width: int) -> Text:
    """`label`, then as many of the parts as fit into `width` columns."""
    text = Text(f"{label:{LABEL}}", style="dim", no_wrap=True, end="")
    for i, part in enumerate(parts):
        word, style = (part, "") if isinstance(part, str) else part
        gap = "   " * (i > 0)
        if len(text) + len(gap) + len(word) > width:
            break
        text.append(gap + word, f"not dim {style}")
    return text


def progress_bar(now: Snapshot, width: int) -> Text:
    """A bar, the share of the steps, the steps, and the time left."""
    share = min(1.0, now.step / now.total) if now.total else 1.0
    parts = [f"{share:4.0%}", f"{now.step:,} / {now.total:,}"]
    if now.seconds_left is not None:
        parts.append(f"left {clock_time(math.ceil(now.seconds_left))}")
    after = "   ".join(parts)
    room = width - LABEL - len(after) - 1
    if room < 8:
        return line("step", parts, width)
    done = round(share * room)
    return Text.assemble((f"{'step':{LABEL}}", "dim"), ("━" * done, "cyan"),
                         ("─" * (room - done), "dim"), f" {after}", no_wrap=True, end="")


def return_parts(now: Snapshot) -> list[Part]:
    """Mean return, the best mean, length of an episode, the number of episodes."""
    mean, stats = now.stats.get(known_names.MEAN_RETURN), now.stats
    if mean is None or now.best_return is None:
        return ["no episode has ended yet"]
    episodes = stats[known_names.EPISODES]
    solved = now.threshold is not None and mean >= now.threshold
    style = f"bold {SOLVED}" if solved else "bold"
    mark = [(f"solved (from {now.threshold:g})", style)] if solved else []
    return [(return_text(mean), style), *mark, f"best {return_text(now.best_return)}",
            *([f"evaluation {return_text(now.evaluation)}"] if now.evaluation is not None else []),
            f"length {stats[known_names.MEAN_LENGTH]:,.0f}", f"{episodes:,.0f} episodes",
            "mean of the last 100" if episodes > 100 else "mean of all"]


def sparkline_of_returns(now: Snapshot, width: int) -> list[Text]:
    """A line with the mean return over the steps so far, from its lowest to its highest."""
    if len(now.returns) < 2:
        return []
    values = [value for _, value in now.returns]
    low, high = f"{return_text(min(values))} ", f" {return_text(max(values))}"
    room = width - LABEL - len(low) - len(high)
    if room < 8:
        return []
    return [Text(f"{'':{LABEL}}", no_wrap=True, end="").append(low, "dim").append(
        sparkline(now.returns, room), "cyan").append(high, "dim")]


def sparkline(points: Sequence[tuple[int, float]], width: int) -> str:
    """`points` (step, value) as `width` blocks, whose heights go from the lowest to the highest."""
    steps, values = np.array(points, float).T
    grid = np.interp(np.linspace(steps[0], steps[-1], width), steps, values)
    low, high = values.min(), values.max()
    heights = (grid - low) / ((high - low) or 1.0) * (len(BLOCKS) - 1)
    return "".join(BLOCKS[round(height)] for height in heights)


def speed_parts(now: Snapshot) -> list[Part]:
    """Steps per second: now, the limit of this machine, the mean of `learn` and its share of it."""
    parts: list[Part] = [(f"{now.speed or now.mean_speed:,.0f} steps/s", "bold")]
    mean = f"mean {now.mean_speed:,.0f}"
    if not now.limit:
        return [*parts, mean]
    return [*parts, f"limit {now.limit:,.0f} of {now.cores} core{'s' * (now.cores != 1)}",
            f"{mean}, {now.mean_speed / now.limit:.0%}"]


def number(value: float) -> str:
    """A number in at most seven characters: three digits that count."""
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


class LiveView:
    """Shows the last iteration of a run, and the part it is in, while `learn` runs.

    A thread redraws it, so that it also moves in a long iteration; what others print appears above
    it. It reads the trainer and changes nothing. Where a process is killed the terminal is as
    before: nothing is hidden or cleared.
    """

    def __init__(self, console: Console | None = None):
        self.console = console or Console(highlight=False, soft_wrap=False)
        self.history, self.hints = RunHistory(), Hints()
        self.live: Live | None = None
        self.now: Snapshot | None = None
        self.message, self.due = "", 0.0
        self.part: CurrentPart | None = None

    def on_start(self, ppo) -> None:
        """Begins to draw."""
        self.part = CurrentPart(ppo)
        self.history.begin(ppo)
        self.live = Live(self, console=self.console, refresh_per_second=REDRAWS)
        self.live.start()
        self.console.show_cursor(True)  # a process that is killed cannot show it again

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Takes over the numbers of an iteration, if it is time; prints hints above the view."""
        self.history.add(ppo.step, stats)
        found = self.hints.new(self.hints.of_learning(ppo, stats))
        if time.monotonic() >= self.due or ppo.step >= ppo.total or EVAL_RETURN in stats:
            self.due = time.monotonic() + 1 / REDRAWS
            self.now = self.history.snapshot(ppo, stats)
            found += self.hints.new(self.hints.of_speed(self.now))
        for text in found:
            self.console.print(Text(text, "yellow"))

    def say(self, text: str) -> None:
        """Shows `text` in the view from the next redraw on; for signal handlers, it only stores."""
        self.message = text

    def on_end(self, ppo) -> None:
        """Draws the last state, which stays, with the speed that the command's last line has."""
        if self.now is not None:
            self.now = self.now._replace(mean_speed=self.history.mean_speed(ppo))
        self.close()

    def close(self) -> None:
        """Ends the drawing; a second call does nothing."""
        if self.live is not None:
            live, self.live = self.live, None
            live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines as they are now."""
        doing = self.message or (self.part.text() if self.part else "") or "starting"
        yield Text("\n").join(panel(self.now, doing, options.max_width) if self.now else [
            line("now", [doing], options.max_width),
            *[Text(hint_line(text), "yellow") for text in (self.part.hint() if self.part else ())]])
