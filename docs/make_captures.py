"""Writes live_80_light.svg, ... _120_dark.svg, the live view at 60 %: python docs/make_captures.py

It trains LunarLander-v3 twice, in terminals of tmux, in a folder that is deleted afterwards.
"""

import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, TerminalTheme
from rich.text import Text

DOCS = Path(__file__).parent
COLOURS = [(40, 44, 52), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239),
           (198, 120, 221), (86, 182, 194), (171, 178, 191)]
DARK = TerminalTheme((24, 27, 33), (214, 217, 222), COLOURS)
THEMES, WIDTHS = {"light": DEFAULT_TERMINAL_THEME, "dark": DARK}, (80, 120)
PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<title>The live view of a run at 60 %</title>
<style>.{unique_id}-matrix {{font: {char_height}px Menlo, Consolas, "DejaVu Sans Mono", monospace}}
{styles}</style>
<defs>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="BACKGROUND" stroke="#9aa8bb"/>
<g class="{unique_id}-matrix" transform="translate({terminal_x}, 24)">{backgrounds}{matrix}</g>
</svg>
"""


def tmux(*words: str) -> subprocess.CompletedProcess:
    """The result of a command of tmux, in a server of its own."""
    return subprocess.run(["tmux", "-L", "captures", *words], capture_output=True, text=True)


def capture(columns: int) -> str:
    """The terminal of a run that has taken 60 % of its steps, with its colours as ANSI codes."""
    seen, share = "", 0
    with tempfile.TemporaryDirectory() as folder:
        tmux("new-session", "-d", "-x", str(columns), "-y", "30", "-c", folder,
             sys.executable, str(DOCS.parent / "main.py"), "--seed=1", "--eval_episodes=0")
        while tmux("has-session").returncode == 0:
            time.sleep(0.5)
            now = tmux("capture-pane", "-e", "-p").stdout.rstrip()
            found = re.search(r"(\d+)%   [\d,]+ / ", now)
            if found and share < 60:
                seen, share = now, int(found[1])
    return seen


def picture(text: str, columns: int, theme: TerminalTheme) -> str:
    """`text` with ANSI codes as an SVG image."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True,
                      color_system="standard")
    console.print(Text.from_ansi(text))
    form = PICTURE.replace("BACKGROUND", theme.background_color.hex)
    return console.export_svg(theme=theme, code_format=form, unique_id="live",
                              font_aspect_ratio=0.602)  # Menlo's and DejaVu's


if __name__ == "__main__":
    for columns in WIDTHS:
        text = capture(columns)
        for name, theme in THEMES.items():
            path = DOCS / f"live_{columns}_{name}.svg"
            path.write_text(picture(text, columns, theme), "utf-8")
