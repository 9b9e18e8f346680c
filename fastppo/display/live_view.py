"""The live view: a block of lines at the end of the terminal, redrawn in place."""

import time

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from fastppo.display.banner import folded
from fastppo.display.hints import Hints
from fastppo.display.panel import line, panel
from fastppo.display.snapshot import REDRAWS, RunHistory, Snapshot, current_part
from fastppo.settings.metric_names import EVAL_RETURN

SHOWN_AFTER = 2.0  # seconds after which the time in the current part is shown


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
        self.message = ""
        self.clock, self.due = None, 0.0

    def on_start(self, ppo) -> None:
        """Begins to draw."""
        self.clock = ppo.clock
        self.history.begin(ppo)
        self.live = Live(self, console=self.console, refresh_per_second=REDRAWS)
        self.live.start()
        self.console.show_cursor(True)  # a process that is killed cannot show it again

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Takes over the numbers of an iteration, if it is time; prints hints above the view."""
        self.history.add(ppo.step, stats)
        if time.monotonic() < self.due and ppo.step < ppo.total and EVAL_RETURN not in stats:
            return
        self.due = time.monotonic() + 1 / REDRAWS
        self.now = self.history.snapshot(ppo, stats)
        for text in self.hints.take(self.now):
            self.console.print(Text(folded([f"hint      {text}"])[0], style="yellow"))

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
        doing = self.message or self._doing()
        lines = [line("now", [doing or "starting"], options.max_width)] if self.now is None else \
            panel(self.now, doing, options.max_width)
        yield Text("\n").join(lines)

    def _doing(self) -> str:
        """The part that the run is in, with its seconds if it takes long."""
        if not self.clock:
            return ""
        name, seconds = current_part(self.clock)
        return f"{name} {seconds:.0f} s" if name and seconds > SHOWN_AFTER else name
