"""From argv to settings: names and spellings as people type them, read with tyro.

    argv -> flags as typed -> flags by setting -> texts -> values, over the environment's preset

Nothing here imports torch, gymnasium or numpy: --help and a typing error cost no wait.
"""

import difflib
import inspect
import re
from dataclasses import field, make_dataclass
from types import MappingProxyType
from typing import Annotated, Any, Iterable, Mapping, NamedTuple, Sequence, get_origin

from fastppo.cli.setting_types import SWITCHES, Setting, settings
from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.settings.aliases import FOREIGN_NAMES, library_of, nearest_setting
from fastppo.settings.fixes import format_value
from fastppo.settings.presets import BY_PRESET, PRESETS, preset_of

# Names of the first life. Two are no settings of their own: `computed` says what they come to.
ALIASES = {"env": "env_name", "lam": "gae_lambda", "epsilon": "clip_range", "ppo_epochs": "epochs",
           "num_batches": "num_minibatches", "value_loss_coef": "value_coef"}
COMPUTED = {"name": "run_dir", "num_iterations": "total_steps"}

HELP = """\
Train PPO on a Gymnasium environment, then evaluate it; files go to runs/.
"python main.py bench" measures how fast that is here, "python main.py export" writes a trained
policy as ONNX or TorchScript; each has a --help of its own.
  BOOL    --flag, --no-flag or --flag=True
  INT     16, 1_000, 1e6, 10M or 500k; none, where it is offered, is no value
  SCHEDULE  linear:3e-4 or cosine:3e-4 (falls to 0), linear:3e-4:1e-5 (to 1e-5), constant:3e-4
  names   with underscores or hyphens; these are understood too:
          --env --name (of the run) --lam --epsilon --ppo_epochs --num_batches
          --num_iterations --value_loss_coef"""


class Request(NamedTuple):
    """What a command line asks for."""

    asked: dict[str, Any]  # what was given, by setting
    preset: str  # name of the preset beneath it, or "none",
    changes: dict[str, Any]  # and what of it holds, because nothing else was given
    config: Config  # all of it over the defaults
    own: dict[str, Any] = {}  # the verb's own settings


class Flag(NamedTuple):
    """One flag and what followed it."""

    typed: str  # --no-norm-obs
    name: str  # norm_obs
    values: list[str]


def read(argv: Sequence[str], own: type | None = None) -> Request:
    """What `argv` asks for; raises ConfigError for what cannot be.

    `own` is the dataclass, named after its verb, of the settings a verb has beside Config's. With
    --help it prints every setting, with the defaults of the environment that is named, and raises
    SystemExit.
    """
    mine = settings(own) if own else {}
    given = by_setting(split_flags(argv), mine)
    texts = {name: flag_text(flag, mine) for name, flag in given.items()
             if name not in ("help", *COMPUTED)}
    texts = {name: text for name, text in texts.items()
             if name not in BY_PRESET or text.lower() != "auto"}
    preset, changes = preset_for(texts)
    values = parse_with_tyro(texts, preset, changes, "help" in given, own)
    asked = {name: values[name] for name in texts if name not in mine}
    asked |= computed_settings(given, values)
    changes = {name: value for name, value in changes.items() if name not in asked}
    return Request(asked, preset, changes, Config(**{**changes, **asked}),
                   {name: values[name] for name in mine})


def split_flags(argv: Sequence[str]) -> list[Flag]:
    """The flags of `argv` as typed, names with underscores; raises ConfigError for a stray word."""
    found: list[Flag] = []
    for word in argv:
        if re.match(r"--?[A-Za-z]", word):  # a negative number is a value
            typed, equals, value = word.partition("=")
            name = typed[2:].replace("-", "_") if typed.startswith("--") else typed
            found.append(Flag(typed, name, [value] if equals else []))
        elif found:
            found[-1].values.append(word)
        else:
            named = re.search(r"-v\d+$|:", word)
            raise ConfigError(f'"{word}" is no command, and no setting: they begin with --',
                              f"--env_name={word}" if named else "python main.py --help lists them")
    return found


def by_setting(given: Sequence[Flag], own: Mapping[str, Setting]) -> dict[str, Flag]:
    """The flags by the setting they mean, Config's or the verb's `own`; of several the last.

    Raises ConfigError for what is no setting, for another library's name, and for one setting under
    two names: nobody can tell which of them was meant.
    """
    found: dict[str, Flag] = {}
    for flag in map(_positive, given):
        name = ALIASES.get(flag.name, "help" if flag.name == "-h" else flag.name)
        if name in FOREIGN_NAMES:
            raise _answer(flag)
        if name not in (*settings(), *own, *COMPUTED, "help"):
            raise _unknown(flag.name, own)
        before = found.get(name, flag)
        if before.name != flag.name:
            raise ConfigError(f"--{before.name} and --{flag.name} are two names of one setting",
                              f"give --{name} alone")
        found[name] = flag
    return found


def flag_text(flag: Flag, own: Mapping[str, Setting] = MappingProxyType({})) -> str:
    """The text that follows a flag, True where nothing has to; ConfigError for none or too many."""
    setting = {**settings(), **own}.get(ALIASES.get(flag.name, flag.name))
    if setting and setting.bare and not flag.values:
        return setting.bare
    if setting and get_origin(setting.kind) is tuple and flag.values:
        return ",".join(flag.values)
    if len(flag.values) != 1 or not flag.values[0].strip():
        got = f', not "{" ".join(flag.values)}"' if len(flag.values) > 1 else ""
        raise ConfigError(f"{flag.typed} takes one value{got}", setting.remedy(
            " ".join(flag.values)) if setting else f"leave {flag.typed} out")
    return flag.values[0]


def preset_for(texts: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Name of the preset of a command line, and what it changes; ConfigError for an unknown one."""
    asked = texts.get("preset", "auto")
    if asked not in ("auto", "none", *PRESETS):
        near = difflib.get_close_matches(asked, PRESETS, 1) or ["auto"]
        raise ConfigError(f'there is no preset "{asked}", only auto, none, {", ".join(PRESETS)}',
                          f"--preset={near[0]}")
    values = preset_of(texts.get("env_name", Config.env_name), asked)
    name = next((name for name, held in PRESETS.items() if held == values), "none")
    return name, {key: value for key, value in values.items() if value != getattr(Config, key)}


def computed_settings(given: dict[str, Flag], values: dict[str, Any]) -> dict[str, Any]:
    """What --num_iterations and --name come to, beside the `values` of all settings.

    The first is total_steps counted in rollouts of num_envs x num_steps; the second names the run's
    folder under runs/. Raises ConfigError where that setting is given too.
    """
    for name, setting in COMPUTED.items():
        if name in given and setting in given:
            raise ConfigError(f"--{name} and --{setting} both say what {setting} is",
                              f"give --{setting} alone")
    found: dict[str, Any] = {}
    if "num_iterations" in given:
        count = settings()["total_steps"]._replace(name="num_iterations", default=100).read(
            flag_text(given["num_iterations"]))
        found["total_steps"] = count * values["num_envs"] * values["num_steps"]
    if "name" in given:
        found["run_dir"] = f"runs/{folder_name(flag_text(given['name']))}"
    return found


def folder_name(name: str) -> str:
    """`name` as the name of one folder."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def parse_with_tyro(texts: dict[str, str], preset: str, changes: dict[str, Any], wants_help: bool,
           own: type | None = None) -> dict[str, Any]:
    """All settings by name: `texts` read by tyro, over `changes`, over the defaults."""
    import tyro
    sections: dict[str, list[Setting]] = {}
    for setting in (*(settings(own).values() if own else ()), *settings().values()):
        sections.setdefault(setting.section, []).append(setting)
    boxes = [(title, Annotated[_box(title, held, preset, changes), tyro.conf.OmitArgPrefixes])
             for title, held in sections.items()]
    args = [f"--{name}={text}" for name, text in texts.items()]
    try:
        page = tyro.cli(make_dataclass("Settings", boxes), use_underscores=True,
                        prog="python main.py" + (f" {own.__name__.lower()}" if own else ""),
                        args=["--help"] if wants_help else args,
                        description=(inspect.getdoc(own) if own else HELP)
                        + _about(texts, preset, changes))
    except _Refusal as refusal:
        raise refusal.args[0] from None
    return {name: value for title, _ in boxes for name, value in vars(getattr(page, title)).items()}


class _Refusal(Exception):
    """A ConfigError on its way through tyro, which has its own way with ValueErrors."""


def _box(title: str, held: Sequence[Setting], preset: str, changes: dict[str, Any]) -> type:
    """A dataclass of some settings, as tyro reads and shows them."""
    import tyro
    made = []
    for setting in held:
        value = changes.get(setting.name, setting.default)
        unit = f" {setting.unit}" if setting.unit and value is not None else ""
        over = f" by preset {preset}, else {format_value(setting.default)}" * (setting.name in changes)
        spec = tyro.constructors.PrimitiveConstructorSpec(
            nargs=1, metavar=setting.type,
            instance_from_str=_reading(setting._replace(default=value)),
            is_instance=lambda value: True, str_from_instance=lambda value: [format_value(value)])
        look = tyro.conf.arg(help=setting.text,
                             help_behavior_hint=f"(default: {format_value(value)}{unit}{over})")
        made.append((setting.name, Annotated[object, spec, look],
                     field(default_factory=lambda value=value: value)))
    return make_dataclass(title.capitalize(), made)


def _reading(setting: Setting):
    def read_one(words: Sequence[str]) -> Any:
        try:
            return setting.read(words[0])
        except ConfigError as error:
            raise _Refusal(error) from None
    return read_one


def _about(texts: dict[str, str], preset: str, changes: dict[str, Any]) -> str:
    env = texts.get("env_name", Config.env_name)
    which = f"preset {preset}: {len(changes)} differ" if changes else "no preset"
    other = "" if "env_name" in texts else "\n--env_name=CartPole-v1 --help shows another one's."
    return f"\n\nThe defaults below are those of {env} ({which}).{other}"


def _positive(flag: Flag) -> Flag:
    """--no-flag as --flag=False, where that can be meant."""
    name = flag.name.removeprefix("no_")
    setting = settings().get(name)
    known = setting.kind is bool if setting else isinstance(FOREIGN_NAMES.get(name), tuple)
    if name == flag.name or not known:
        return flag
    if flag.values:
        raise ConfigError(f"{flag.typed} takes no value, but was given {' '.join(flag.values)}",
                          f"--{name}=False")
    return Flag(flag.typed, name, ["False"])


def _answer(flag: Flag) -> ConfigError:
    """The error for another library's name, with ours as its fix."""
    ours, value = FOREIGN_NAMES[flag.name], " ".join(flag.values)
    if isinstance(ours, tuple):
        fix = ours[0] if SWITCHES.get(value.lower(), True) else ours[1]
    else:
        fix = f"--{ours}={value or '...'}"
    return ConfigError(f"{flag.typed} is a name of {library_of(flag.name)}, here it has another", fix)


def _unknown(name: str, own: Iterable[str]) -> ConfigError:
    known = [*own, *settings(), *COMPUTED, *ALIASES]
    return ConfigError(f'there is no setting "{name}"',
                       nearest_setting(name.lstrip("-").removeprefix("no_"), known, "--"))
