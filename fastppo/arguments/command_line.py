"""Reads a command line: from argv to settings over the preset of the environment.

    argv -> flags as typed -> flags by setting -> texts -> values -> Config

Nothing here imports torch, gymnasium or numpy, so that --help and typing errors are quick.
"""

import inspect
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from fastppo.arguments import help_page
from fastppo.arguments.preset_files import config_over_preset, is_preset_file, preset_settings
from fastppo.arguments.setting_types import ALIASES, Setting, settings
from fastppo.config import Config, having
from fastppo.errors import ConfigError
from fastppo.settings.aliases import MINIBATCH_SIZE, in_one, nearest_setting, unknown_setting
from fastppo.settings.fixes import Fix, Omit, Set, Within, program
from fastppo.settings.presets import PRESETS
from fastppo.settings.values import DASHES, SWITCHES

# Flags that are no settings, and the setting that is computed from each.
COMPUTED = {"num_iterations": "total_steps"}


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
    options: dict[str, Any]  # values of all options of the verb


class Flag(NamedTuple):
    """One flag and the words after it."""

    typed: str  # --no-norm-obs
    name: str  # norm_obs
    values: list[str]


def read(argv: Sequence[str], options: type = Train) -> Request:
    """The settings that `argv` gives; raises ConfigError for a name or value that is wrong.

    `options` is the dataclass, named after its verb, of the options that a verb has beside the
    settings; its docstring introduces --help. With --help it prints a page of help_page.py with the
    defaults of the named environment, and raises SystemExit.
    """
    own = settings(options)
    known = own | settings() | {
        "num_iterations": settings()["total_steps"]._replace(name="num_iterations", default=100)}
    topic, words = help_page.split_help(argv)
    flags = flags_by_setting(split_flags(words), known, verb_of(options))
    preset, changes = preset_for({name: flag_text(flags[name], known[name])
                                  for name in ("env_name", "preset") if name in flags})
    known = {name: one._replace(default=changes.get(name, one.default))
             for name, one in known.items()}
    texts = {name: flag_text(flag, known[name]) for name, flag in flags.items()}
    texts = {name: text for name, text in texts.items()
             if name not in having("by_preset") or text.lower() != "auto"}
    if topic is not None:
        about = _intro(options, texts, preset, changes)
        print(help_page.training_page(about, own, topic, preset, changes))
        raise SystemExit(0)
    values = {name: known[name].read(text) for name, text in texts.items()}
    given = {name: value for name, value in values.items() if name in settings()}
    changes = {name: value for name, value in changes.items() if name not in given}
    config = config_over_preset(changes, given)
    computed = computed_settings(values, config)
    return Request(given | computed, preset, changes, config.replace(**computed),
                   {name: values.get(name, option.default) for name, option in own.items()})


def file_and_options(argv: Sequence[str], kind: type, operand: str, needed: str,
                     example: str = "runs/latest") -> tuple[Path, Any]:
    """(the path that a command line names, its options as an instance of `kind`).

    It is the only `operand`, see words_and_options.
    """
    paths, options = words_and_options(argv, kind, operand, 1, needed, example)
    return Path(paths[0]), options


def words_and_options(argv: Sequence[str], kind: type, operands: str, most: int | None = None,
                      needed: str = "", example: str = "runs/latest") -> tuple[list[str], Any]:
    """(the words beside the options of a verb without settings, the options as a `kind`).

    The words, on the page of --help called `operands`, may stand before and behind the options.
    Raises ConfigError for a wrong option, for more than `most` words, and for none if they are
    `needed`; SystemExit after --help.
    """
    if help_page.asks_for_help(argv):
        print(help_page.verb_page(kind, operands))
        raise SystemExit(0)
    words, flags = split_words(argv, settings(kind))
    known, verb, command = settings(kind), verb_of(kind), f"{program()} {verb_of(kind)}"
    options = kind(**{name: known[name].read(flag_text(flag, known[name]))
                      for name, flag in flags_by_setting(flags, known, verb).items()})
    if needed and not words:
        raise ConfigError(f"{verb} needs {needed}", f"{command} {example}")
    if most is not None and len(words) > most:
        raise ConfigError(f"{verb} takes {most or 'no'} word beside its options, not {len(words)}:"
                          f" {' '.join(words)}",
                          f"{' '.join([command, *words[:most]])}; its options: {command} --help")
    return words, options


def split_words(argv: Sequence[str], known: Mapping[str, Setting]) -> tuple[list[str], list[Flag]]:
    """(the words that are no values of flags, the flags) of a command line."""
    words, flags, takes = [], [], 0
    for word in argv:
        if is_flag(word):
            flags += split_flags([word])
            setting = known.get(flags[-1].name)
            takes = 0 if "=" in word else len(argv) if setting and setting.has_several else 1
        elif takes and (word.lower() in SWITCHES or not setting or setting.kind is not bool):
            flags[-1].values.append(word)
            takes -= 1
        else:
            words.append(word)
    return words, flags


def verb_of(options: type) -> str:
    """The verb that a dataclass of options is named after; "" for training, which needs none."""
    return "" if options is Train else options.__name__.lower()


def split_flags(argv: Sequence[str]) -> list[Flag]:
    """The flags of `argv`, names with underscores, --no-flag as --flag=False.

    Raises ConfigError for a word before the first flag.
    """
    found: list[Flag] = []
    for word in argv:
        if is_flag(word):
            typed, equals, value = map(str.strip, word.partition("="))
            if value.startswith("="):
                raise ConfigError(f'"{word}" has more than one =',
                                  Set(**{typed.lstrip(DASHES): value.lstrip("= ")}))
            name = typed[2:].replace("-", "_") if typed.startswith("--") else typed
            if name.startswith("no_"):
                name = name.removeprefix("no_")
                if equals:
                    raise ConfigError(f"{typed} takes no value", Set(**{name: False}))
                equals, value = "=", "False"
            found.append(Flag(typed, name, [value] if equals else []))
        elif found:
            found[-1].values.append(word)
        else:
            is_env = re.search(r"-v\d+$|:", word)
            raise ConfigError(f'"{word}" is neither a command nor a setting, which begins with --',
                              Set(env_name=word) if is_env else f"{program()} --help lists them")
    return found


def is_flag(word: str) -> bool:
    """True if a word begins with hyphens, or dashes in their place, and is no negative number."""
    return bool(re.match(rf"[{DASHES}]{{1,2}}[A-Za-z]", word))


def flag_of_each_word(argv: Sequence[str]) -> list[tuple[str, str]]:
    """(name of the flag that it is, or is a value of; word) for each word of a valid `argv`."""
    found, name = [], ""
    for word in argv:
        name = split_flags([word])[0].name if is_flag(word) else name
        found.append((name, word))
    return found


def flags_by_setting(flags: Sequence[Flag], known: Mapping[str, Setting], verb: str
                     ) -> dict[str, Flag]:
    """The flags by the name of the `known` setting that they set; the last of several counts.

    Raises ConfigError for all names that the `verb` does not know, also those of other libraries,
    and for a setting that is given under two names.
    """
    found: dict[str, Flag] = {}
    unknown = [flag for flag in flags if ALIASES.get(flag.name, flag.name) not in known]
    if unknown:
        names = [*known, *(alias for alias, name in ALIASES.items() if name in known)]
        rows = rows_of_flags(flags)
        raise ConfigError(*in_one([_unknown_flag(flag, names, verb, rows) for flag in unknown],
                                  f"flags are no settings of {verb or 'fastppo'}"))
    for flag in flags:
        name = ALIASES.get(flag.name, flag.name)
        before = found.get(name, flag)
        if before.name != flag.name:
            alias = flag.name if before.name == name else before.name
            raise ConfigError(f"--{before.name} and --{flag.name} are two names of one setting",
                              Omit(alias))
        found[name] = flag
    return found


def flag_text(flag: Flag, setting: Setting) -> str:
    """The text that a flag gives `setting`; raises ConfigError if there is none, or several.

    Spaces around its = change nothing.
    """
    if setting.bare and not flag.values:
        return setting.bare
    values = [text for value in flag.values if (text := value.removeprefix("=")).strip()]
    if setting.has_several and values:
        return ",".join(values)
    if len(values) != 1:
        text = " ".join(values)
        got = f', not "{text}"' if text else ""
        fix = Set(**{setting.name: values[0]}) if text and setting.kind is str else \
            Set(seeds=",".join(values)) if text and setting.name == "seed" else setting.fix(text)
        raise ConfigError(f"{flag.typed} takes one value{got}", fix)
    return values[0]


def preset_for(texts: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """(name of the preset, the settings that it changes); ConfigError for an unknown preset."""
    preset = texts.get("preset", "auto")
    values = preset_settings(texts.get("env_name", Config.env_name), preset)
    name = preset if is_preset_file(preset) else next(
        (name for name, ours in PRESETS.items() if ours == values), "none")
    return name, {key: value for key, value in values.items() if value != getattr(Config, key)}


def computed_settings(values: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The setting that --num_iterations stands for: total_steps in rollouts.

    Raises ConfigError if that is given too.
    """
    found: dict[str, Any] = {}
    for name, setting in COMPUTED.items():
        if name in values and setting in values:
            raise ConfigError(f"--{name} and --{setting} both set {setting}", Omit(name))
        if name in values:
            found[setting] = values[name] * config.num_envs * config.num_steps
    return found


def _intro(options: type, texts: Mapping[str, str], preset: str, changes: dict) -> str:
    """The text of --help above the settings."""
    verb = f" {verb_of(options)}".rstrip()
    about = (inspect.getdoc(options) or "").format(program(), help_page.verb_lines())
    which = f"preset {preset}: {len(changes)} differ" if changes else "no preset"
    return (f"usage: {program()}{verb} [--setting=value ...]\n\n{about}\n\n"
            f"The defaults are those of {texts.get('env_name', Config.env_name)} ({which});"
            " --env_name=... --help shows others.")


def rows_of_flags(flags: Sequence[Flag]) -> int:
    """The samples of a rollout with these flags, some of which are unknown; 0 if others are wrong.
    """
    texts = {ALIASES.get(flag.name, flag.name): flag.values[0] for flag in flags if flag.values}
    try:
        changes = preset_for(texts)[1]
        return math.prod(settings()[name].read(texts[name]) if name in texts else
                         changes.get(name, getattr(Config, name)) for name in having("by_preset"))
    except ConfigError:
        return 0


def _unknown_flag(flag: Flag, known: Sequence[str], verb: str, rows: int) -> tuple[str, Fix]:
    """What is wrong with a flag that is no setting of the verb, and the fix.

    `rows`: the samples of a rollout, 0 if they are unknown.
    """
    value = " ".join(flag.values)
    if verb:
        return f"{verb} has no option {flag.typed}", nearest_setting(flag.name, known, verb, value)
    off = not SWITCHES.get(value.lower(), True)
    what, fix = unknown_setting(flag.typed, flag.name, value, off, known)
    if fix == MINIBATCH_SIZE.on and rows and re.fullmatch("[1-9][0-9]{0,9}", value):
        count = max(1, rows // int(value))
        fix = Within(f"{{}}, for {rows // count:,} of the {rows:,} samples of num_envs x num_steps",
                     Set(num_minibatches=count))
    return what, fix
