"""The page that --help prints."""

import shutil
import textwrap
from typing import Any, Iterable, Mapping

from fastppo.arguments.setting_types import Setting
from fastppo.settings.fixes import format_value

MEANING_COLUMN, WIDEST = 30, 110


def help_page(intro: str, shown: Iterable[Setting], preset: str = "none",
              changes: Mapping[str, Any] | None = None) -> str:
    """`intro`, then settings by section: type, meaning and default.

    The defaults are those of a `preset`, which changes `changes`.
    """
    lines, section, changes = [intro], "", changes or {}
    indent, width = " " * MEANING_COLUMN, min(shutil.get_terminal_size().columns, WIDEST)
    for setting in shown:
        if setting.section != section:
            section = setting.section
            lines += ["", f"{section}:"]
        flag = f"  --{setting.name} {setting.type}"
        if len(flag) >= MEANING_COLUMN:
            lines.append(flag)
            flag = ""
        default = format_value(setting.default)
        if setting.name in changes:
            default = f"{format_value(changes[setting.name])} by preset {preset}, else {default}"
        meaning = f"{setting.text} (default: {default})"
        lines.append(textwrap.fill(meaning, max(width, 2 * MEANING_COLUMN), break_on_hyphens=False,
                                   initial_indent=f"{flag:{MEANING_COLUMN}}",
                                   subsequent_indent=indent, break_long_words=False))
    return "\n".join(lines)
