"""The pages that --help prints.

    --help             the verbs, and the settings that people change first
    --help SECTION     the settings of a section, such as network
    --help SETTING     one setting
    --help-all         everything
"""

import inspect
import shutil
import textwrap
from typing import Any, Iterable, Mapping, Sequence

from fastppo.arguments.setting_types import SECTIONS, Setting, settings
from fastppo.arguments.verbs import VERBS
from fastppo.config import having
from fastppo.errors import ConfigError
from fastppo.settings.aliases import FOREIGN_NAMES
from fastppo.settings.fixes import format_value, program
from fastppo.settings.spelling import closest

MEANING_COLUMN, WIDEST = 30, 110
ALL = "all"
HELP_FLAGS = "-h", "--help", "--help-all", "--help_all"
SCHEDULES = """\
  SCHEDULE  linear:3e-4 or cosine:3e-4 (falls to 0), linear:3e-4:1e-5 (to 1e-5),
            constant:3e-4"""
VALUES = f"""\
Values and names:

  BOOL      --flag, --no-flag or --flag=True
  INT       16, 1_000, 1e6, 10M or 500k; none, where it is offered, is no value
{SCHEDULES}
  names     with underscores or hyphens; these are understood too:
            --env --lam --epsilon --ppo_epochs --num_batches --num_iterations
            --value_loss_coef"""


def split_help(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """(the topic of --help, the other words); None if no help is asked for, "" without a topic."""
    words, topic = [], None
    for word in argv:
        flag, equals, value = word.partition("=")
        words += [flag, value] if equals and flag in HELP_FLAGS else [word]
    for flag in HELP_FLAGS:
        if flag in words:
            at = words.index(flag)
            follows = words[at + 1:at + 2]
            has_topic = flag[-4:] == "help" and follows and not follows[0].startswith("-")
            topic = ALL if flag.endswith("all") else follows[0] if has_topic else ""
            del words[at:at + 1 + bool(has_topic)]
    return topic, words


def training_page(about: str, own: Mapping[str, Setting], topic: str, preset: str,
                  changes: Mapping[str, Any]) -> str:
    """The page on a `topic` for a verb that takes the settings of training beside its `own`.

    The defaults are those of a `preset`, which changes `changes`. Raises ConfigError for an unknown
    topic.
    """
    known = {**own, **settings()}
    sections = [*dict.fromkeys(setting.section for setting in known.values())]
    plain = topic.lstrip("-").replace("-", "_")
    if topic == ALL:
        return help_page(f"{about}\n\n{VALUES}", known.values(), preset, changes)
    if not topic:
        basic = (known[name]._replace(section="settings") for name in having("basic"))
        more = (f"More: --help SECTION, one of {', '.join(SECTIONS.values())};"
                " --help SETTING; --help-all")
        page = help_page(about, map(first_clause, [*own.values(), *basic]), preset, changes)
        return f"{page}\n\n{filled(more, '', '')}"
    if plain in known:
        form = SCHEDULES if "SCHEDULE" in known[plain].type else ""
        return help_page(form, [known[plain]], preset, changes).lstrip("\n")
    if plain not in sections:
        ours = FOREIGN_NAMES.get(plain)
        near = ours.split()[0] if isinstance(ours, str) else closest(plain, [*sections, *known])
        raise ConfigError(f'there is no section and no setting "{topic}"; the sections are '
                          + ", ".join(sections), f"{program()} --help {near or ALL}")
    return help_page(VALUES, [x for x in known.values() if x.section == plain], preset, changes)


def first_clause(setting: Setting) -> Setting:
    """`setting` with the part of its meaning before the first semicolon, and that of none."""
    first, *others = setting.text.split("; ")
    return setting._replace(text="; ".join([first, *(x for x in others if x[:5] == "none:")]))


def verb_lines() -> str:
    """The verbs, a line each."""
    return "\n".join(f"  {program()} {verb:{max(map(len, VERBS))}}  {text}"
                     for verb, text in VERBS.items() if verb != "train")


def verb_page(options: type, operands: str) -> str:
    """The page on a verb that takes `operands`, then the `options` of a dataclass named after it.

    The docstring of the class introduces it; {0} in it is the command.
    """
    about = (inspect.getdoc(options) or "").format(program())
    words = (program(), options.__name__.lower(), operands, "[--option=value ...]")
    usage = " ".join(filter(None, words))
    return help_page(f"usage: {usage}\n\n{about}", settings(options).values())


def asks_for_help(argv: Sequence[str]) -> bool:
    """True if --help is one of the words."""
    return any(word in HELP_FLAGS for word in argv)


def help_page(intro: str, shown: Iterable[Setting], preset: str = "none",
              changes: Mapping[str, Any] | None = None) -> str:
    """`intro`, then settings by section: type, meaning and default.

    The defaults are those of a `preset`, which changes `changes`.
    """
    lines, section, changes = [reflowed(intro)], "", changes or {}
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
        lines.append(filled(f"{setting.text} (default: {default})", f"{flag:{MEANING_COLUMN}}",
                            " " * MEANING_COLUMN))
    return "\n".join(lines)


def reflowed(text: str) -> str:
    """`text` with its paragraphs broken to the width of the terminal; indented lines stay."""
    parts = text.split("\n\n")
    return "\n\n".join(part if part.startswith(" ") or not part else
                       filled(part.replace("\n", " "), "", "") for part in parts)


def filled(text: str, first: str, indent: str) -> str:
    """`text` broken to the width of the terminal, after `first`, later lines after `indent`."""
    width = max(min(shutil.get_terminal_size().columns, WIDEST), 2 * MEANING_COLUMN)
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=indent,
                         break_on_hyphens=False, break_long_words=False)
