"""Reads a command line: from argv to settings over the preset of the environment.

    argv -> flags as typed -> flags by setting -> texts -> values -> Config

--help             the verbs, and the settings that people change first
--help SECTION     the settings of a section, such as network
--help SETTING     one setting
--help-all         everything

Nothing here imports torch, gymnasium or numpy, so that --help and typing errors are quick.
"""

import argparse
import inspect
import re
import shutil
import textwrap
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, NoReturn, Sequence

from fastppo.config import Config, having
from fastppo.errors import ConfigError, Omit, format_value, program
from fastppo.settings.known_names import unknown_names
from fastppo.settings.presets import preset_name
from fastppo.settings.values import SWITCHES
from fastppo.trainer import setting_texts
from fastppo.trainer.setting_texts import SECTIONS, Setting, settings

VERBS = {
    "train": "trains; the verb where none is named",
    "eval": "plays a trained policy, and prints the returns",
    "match": "plays two policies against each other",
    "play": "shows a trained policy in a window or a video",
    "plot": "draws the learning curves of runs",
    "compare": "compares two groups of runs over their seeds",
    "envs": "lists the environments that can be trained on here",
    "doctor": "describes and tests the installation and the machine",
    "bench": "measures how fast training is on this machine",
    "export": "writes a trained policy as ONNX or TorchScript",
    "replay": "runs an episode again in which an environment failed",
    "reproduce": "trains a run again, and says which bits agree",
}


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
        about = (inspect.getdoc(options) or "").format(program(), "\n".join(
            f"  {program()} {name:{max(map(len, VERBS))}}  {text}"
            for name, text in VERBS.items() if name != "train")) + (
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
        raise ConfigError(*unknown_names(
            f"there is no section ({', '.join(SECTIONS.values())}) and no setting", [f"--{plain}"],
            known, verb))
    usage = " ".join(filter(None, (program(), verb, "[--setting=value ...]")))
    return FlagParser(shown, about, usage, end).format_help().strip()


def first_clause(setting: Setting) -> Setting:
    """`setting` with the part of its meaning before the first semicolon, and that of none."""
    first, *others = setting.text.split("; ")
    return setting._replace(text="; ".join([first, *(x for x in others if x[:5] == "none:")]))


@dataclass(frozen=True)
class Train:
    """Train PPO on a Gymnasium environment, then evaluate it; files go to runs/.

      {0} --env_name=CartPole-v1
      {0} --env_name=my_module:MyEnv --total_steps=2M --name=first

    Other verbs, each with a --help of its own:

    {1}
    """

    name: str | None = None
    """Name of the run, a part of its folder's name"""
    resume: str | None = None
    """Run to continue, a folder such as runs/latest or a checkpoint in it; auto: the last run of
    the same --name, or that in --run_dir, or a new one if there is none"""
    show_config: bool = False
    """Print all settings as they would be, in the form of a preset's file, and do nothing else"""
    video: bool = False
    """Record an episode at the end, of at most 1,000 frames"""
    seeds: str | None = None
    """Seeds to train with, side by side, such as 1..5 or 1,2,7; a process and a folder each, then a
    table and a picture of all"""
    init_from: str | None = None
    """Policy whose weights and observation moments a new run starts with, a file of another run"""


class Request(NamedTuple):
    """The settings of a command line."""

    given: dict[str, Any]  # values of the settings that it gives
    preset: str  # name of the preset, or "none"
    changes: dict[str, Any]  # settings that the preset changes, without those that are given
    config: Config
    options: Any  # of the verb, an instance of its dataclass

    @property
    def in_a_folder(self) -> Config:
        """The Config with a folder, as a run of the command has one; for its errors."""
        return self.config.replace(run_dir=self.config.run_dir or "runs")


def read(argv: Sequence[str], options: type = Train) -> Request:
    """The settings that `argv` gives; raises ConfigError for a name or value that is wrong.

    `options` is the dataclass, named after its verb, of the options that a verb has beside the
    settings; its docstring introduces --help. With --help it prints a page of py with the
    defaults of the named environment, and raises SystemExit.
    """
    own = settings(options)
    known = own | settings() | {
        "num_iterations": settings()["total_steps"]._replace(name="num_iterations", default=100)}
    texts, words, topic = parse(argv, known, verb_of(options))
    if words:
        raise ConfigError(f'"{words[0]}" is neither a command nor a setting: --env_name=CartPole-v1'
                          " is one", f"{program()} --help lists them")
    values = {name: known[name].read(text) for name, text in texts.items()
              if name not in having("by_preset") or text.lower() != "auto"}
    env_name, preset = values.get("env_name", Config.env_name), values.get("preset", "auto")
    changes = setting_texts.preset_settings(env_name, preset)
    changes = {name: value for name, value in changes.items() if value != getattr(Config, name)}
    preset = preset_name(env_name) if preset == "auto" else preset
    if topic is not None:
        print(training_page(options, verb_of(options), topic, values, preset, changes))
        raise SystemExit(0)
    given = {name: value for name, value in values.items() if name in settings()}
    changes = {name: value for name, value in changes.items() if name not in given}
    with setting_texts.naming_preset(env_name, given):
        config = Config(**given).replace(**changes)
    if "num_iterations" in values:
        if "total_steps" in given:
            raise ConfigError("--num_iterations and --total_steps both set total_steps",
                              Omit("num_iterations"))
        given["total_steps"] = values["num_iterations"] * config.rows * config.num_steps
        config = config.replace(total_steps=given["total_steps"])
    return Request(given, preset, changes, config, options(
        **{name: value for name, value in values.items() if name in own}))


def words_and_options(argv: Sequence[str], kind: Any) -> tuple[list[str], Any]:
    """(the words beside the options of a verb without settings, the options as a `kind`).

    The words, which may stand before and behind the options, are as many as `kind.OPERANDS` has:
    MODEL is one, [PATTERN] one or none, RUN ... one or more. Raises ConfigError for others, and for
    a wrong option; SystemExit after --help, whose page the docstring of `kind` introduces; {0} in
    it is the command.
    """
    known, verb, operands = settings(kind), verb_of(kind), kind.OPERANDS.split()
    texts, words, topic = parse(argv, known, verb)
    if topic is not None:
        about = (inspect.getdoc(kind) or "").format(program())
        usage = " ".join((program(), verb, *operands, "[--option=value ...]"))
        print(FlagParser(known.values(), about, usage).format_help().strip())
        raise SystemExit(0)
    options = kind(**{name: known[name].read(text) for name, text in texts.items()})
    needed = [one for one in operands if one[0] not in "[."]
    if len(words) < len(needed) or len(words) > len(operands) and "...]" not in operands:
        raise ConfigError(f"{verb} takes {kind.OPERANDS or 'no word'} beside its options, not"
                          f" {' '.join(words) or 'nothing'}", f"{program()} {verb} --help")
    return words, options


def verb_of(options: type) -> str:
    """The verb that a dataclass of options is named after; "" for training, which needs none."""
    return "" if options is Train else options.__name__.lower()


def parse(argv: Sequence[str], known: Mapping[str, Setting], verb: str
          ) -> tuple[dict[str, str], list[str], str | None]:
    """(texts by setting, words that belong to no flag, topic of --help) of a command line.

    Of several flags for one `known` setting the last one counts. The topic is "" for none, and None
    if no help is asked for. Raises ConfigError for all names that the `verb` does not know, and for
    a flag without a value.
    """
    parser = FlagParser(known.values())
    parser.add_argument("-h", "--help", nargs="?", const="")
    parser.add_argument("--help_all", dest="help", action="store_const", const=ALL)
    found, rest = parser.parse_known_args(plain_words(argv, known))
    if wrong := [word.partition("=")[0] for word in rest if is_flag(word)]:
        what = f"{verb} has no option" if verb else "there is no setting"
        raise ConfigError(*unknown_names(what, wrong, known, verb))
    texts = {name: ",".join(value) if isinstance(value, list) else value
             for name, value in vars(found).items() if name != "help"}
    if empty := [name for name, text in texts.items() if not text.strip()]:
        raise ConfigError(f"--{empty[0]} has no value")
    return texts, rest, getattr(found, "help", None)


def plain_words(argv: Sequence[str], known: Mapping[str, Setting]) -> Iterator[str]:
    """`argv` with our names of flags, and with the values of switches: --no-norm-obs as
    --norm_obs=False.
    """
    words = [*argv]
    while words:
        word = words.pop(0)
        name, equals, value = flag_name(word), *word.partition("=")[1:]
        if not is_flag(word) or not word.startswith("--"):
            yield word
            continue
        if name.startswith("no_") and not equals:
            name, equals, value = name.removeprefix("no_"), "=", "False"
        name = setting_texts.ALIASES.get(name, name)
        if name in known and known[name].kind is bool and not equals:
            switch = words.pop(0) if words and words[0].lower() in SWITCHES else "True"
            equals, value = "=", switch
        yield f"--{name}{equals}{value}"


def is_flag(word: str) -> bool:
    """True if a word begins with hyphens, and is no negative number."""
    return bool(re.match("--?[A-Za-z]", word))


def flag_name(word: str) -> str:
    """The name of a flag, with underscores: norm_obs of --norm-obs=True."""
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def flag_of_each_word(argv: Sequence[str]) -> list[tuple[str, str]]:
    """(name of the flag that it is, or is a value of; word) for each word of a valid `argv`."""
    found, name = [], ""
    for word in argv:
        name = flag_name(word) if is_flag(word) else name
        found.append((name, word))
    return found
