"""The parser of flags, and the pages that --help prints.

    --help             the verbs, and the settings that people change first
    --help SECTION     the settings of a section, such as network
    --help SETTING     one setting
    --help-all         everything
"""

import argparse
import inspect
import shutil
import textwrap
from typing import Any, Iterable, Mapping, NoReturn

from fastppo.arguments.setting_types import SECTIONS, Setting, settings
from fastppo.arguments.verbs import VERBS
from fastppo.config import Config, having
from fastppo.errors import ConfigError
from fastppo.settings.aliases import name_fix
from fastppo.settings.fixes import format_value, program

MEANING_COLUMN, WIDEST = 30, 110
ALL = "all"
SCHEDULES = """\
  SCHEDULE  linear:3e-4 or cosine:3e-4 (falls to 0), linear:3e-4:1e-5 (to 1e-5),
            constant:3e-4"""
VALUES = f"""\
Values and names:

  BOOL      --flag, --no-flag or --flag=True
  INT       16, 1_000, 1e6, 10M or 500k; none, where it is offered, is no value
{SCHEDULES}
  names     with underscores or hyphens"""


class PageFormatter(argparse.HelpFormatter):
    """Breaks paragraphs and meanings to the width of the terminal; indented lines stay."""

    def __init__(self, prog: str):
        columns = min(shutil.get_terminal_size().columns, WIDEST)
        super().__init__(prog, max_help_position=MEANING_COLUMN, width=max(columns, 60))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(part if part.startswith(" ") else textwrap.fill(
            part, width, break_on_hyphens=False) for part in text.split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return str(action.metavar)


class FlagParser(argparse.ArgumentParser):
    """A parser with a flag for each setting, whose values stay texts; it raises ConfigError."""

    def __init__(self, known: Iterable[Setting], about: str = "", usage: str = "", end: str = ""):
        super().__init__(program(), usage, about, end, formatter_class=PageFormatter,
                         add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
        groups: dict[str, Any] = {}
        for one in known:
            if one.section not in groups:
                groups[one.section] = self.add_argument_group(one.section)
            nargs = "+" if one.has_several else "?" if one.bare else None
            groups[one.section].add_argument(
                f"--{one.name}", nargs=nargs, const=one.bare, metavar=one.type,
                help=f"{one.text} (default: {format_value(one.default)})".replace("%", "%%"))

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError with argparse's own text."""
        raise ConfigError(message)


def training_page(options: type, verb: str, topic: str, values: Mapping[str, Any], preset: str,
                  changes: Mapping[str, Any]) -> str:
    """The page on a `topic` for a `verb` that takes the settings of training beside its `options`.

    The defaults are those of a `preset`, which changes `changes`. Raises ConfigError for an unknown
    topic.
    """
    own, plain = settings(options), topic.lstrip("-").replace("-", "_")
    known = own | settings() | {name: settings()[name]._replace(
        default=f"{format_value(value)} by preset {preset},"
                f" else {format_value(settings()[name].default)}")
        for name, value in changes.items()}
    about = end = ""
    if topic in ("", ALL):
        env_name = values.get("env_name", Config.env_name)
        which = f"preset {preset}: {len(changes)} differ" if changes else "no preset"
        about = (inspect.getdoc(options) or "").format(program(), verb_lines()) + (
            f"\n\nThe defaults are those of {env_name} ({which}); --env_name=... --help shows"
            " others.")
    if topic == ALL:
        shown, end = [*known.values()], VALUES
    elif not topic:
        basic = (known[name]._replace(section="settings") for name in having("basic"))
        shown = [first_clause(one) for one in (*own.values(), *basic)]
        end = (f"More: --help SECTION, one of {', '.join(SECTIONS.values())};"
               " --help SETTING; --help-all")
    elif plain in known:
        shown, end = [known[plain]], SCHEDULES * ("SCHEDULE" in known[plain].type)
    else:
        shown = [one for one in known.values() if one.section == plain]
    if not shown:
        raise ConfigError(f'there is no section and no setting "{topic}"; the sections are '
                          + ", ".join(SECTIONS.values()), name_fix(plain, known) or "")
    usage = " ".join(filter(None, (program(), verb, "[--setting=value ...]")))
    return FlagParser(shown, about, usage, end).format_help().strip()


def first_clause(setting: Setting) -> Setting:
    """`setting` with the part of its meaning before the first semicolon, and that of none."""
    first, *others = setting.text.split("; ")
    return setting._replace(text="; ".join([first, *(x for x in others if x[:5] == "none:")]))


def verb_lines() -> str:
    """The verbs, a line each."""
    return "\n".join(f"  {program()} {verb:{max(map(len, VERBS))}}  {text}"
                     for verb, text in VERBS.items() if verb != "train")


def verb_page(options: Any) -> str:
    """The page on a verb that takes the OPERANDS and the options of a dataclass named after it.

    The docstring of the class introduces it; {0} in it is the command.
    """
    about = (inspect.getdoc(options) or "").format(program())
    usage = f"{program()} {options.__name__.lower()} {options.OPERANDS}".rstrip()
    return FlagParser(settings(options).values(), about,
                      f"{usage} [--option=value ...]").format_help().strip()
