"""From argv to settings: names, spellings and numbers as people type them, read with tyro.

    argv -> flags by name -> texts by setting -> values by setting, over the environment's preset

Nothing here imports torch, gymnasium or numpy, so that --help and a typing error cost no wait.
"""

import ast
import difflib
import inspect
import json
import re
from dataclasses import field, fields, make_dataclass
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Callable, Literal, NamedTuple, Sequence, Union, get_args, get_origin

from .config import Config
from .errors import ConfigError
from .presets import PRESETS, preset_of

# Where each group of settings begins; --help and docs/config.md follow it.
SECTIONS = {"env_name": "environment", "model": "network", "num_envs": "rollout",
            "gamma": "returns", "epochs": "update", "device": "machine", "eval_episodes": "output"}

UNITS = {"max_episode_steps": "steps", "total_steps": "steps", "hidden_sizes": "units",
         "log_std_init": "nats", "num_envs": "environments", "num_steps": "steps",
         "num_workers": "processes", "step_timeout": "s", "reset_timeout": "s",
         "reward_limit": "standard deviations", "target_kl": "nats", "epochs": "passes",
         "num_minibatches": "minibatches", "torch_threads": "threads", "eval_episodes": "episodes"}

# Names of the first life; `name` and `num_iterations` are computed from (see `computed`).
ALIASES = {"env": "env_name", "lam": "gae_lambda", "epsilon": "clip_range", "ppo_epochs": "epochs",
           "num_batches": "num_minibatches", "value_loss_coef": "value_coef"}
COMPUTED = {"name": "run_dir", "num_iterations": "total_steps"}

# CleanRL's names are answered: with our name, or with what to do where it is on, and where off.
CLEANRL: dict[str, Any] = {
    "env_id": "env_name", "total_timesteps": "total_steps", "learning_rate": "lr",
    "update_epochs": "epochs", "clip_coef": "clip_range", "ent_coef": "entropy_coef",
    "vf_coef": "value_coef", "wandb_project_name": "wandb_project", "exp_name": "name",
    "track": ("--logger=wandb", "--logger=none"),
    "norm_adv": ("--norm_advantages=minibatch", "--norm_advantages=none"),
    "clip_vloss": ("--clip_range_vf=0.2", "--clip_range_vf=none"),
    "cuda": ("--device=cuda", "--device=cpu"),
    "wandb_entity": ("export WANDB_ENTITY=...",) * 2,
    "torch_deterministic": ("leave it out: the same seed always gives the same run",) * 2,
    "capture_video": ("leave it out: there are no videos yet", "leave it out"),
}

SUFFIXES = {"k": 3, "m": 6, "g": 9}
WORDS = {"true": True, "1": True, "yes": True, "on": True,
         "false": False, "0": False, "no": False, "off": False}
NAMES = {int: "INT", float: "FLOAT", bool: "True|False", str: "TEXT", Any: "TEXT"}
NAMES |= {tuple[int, ...]: "INT,...", dict[str, Any]: "JSON"}


class Setting(NamedTuple):
    """One field of Config, as --help and docs/config.md show it."""

    name: str
    kind: Any  # its type without None
    optional: bool  # whether None is a value
    default: Any
    text: str  # meaning and unit, in one line
    source: str  # of the default; "" where it has none
    section: str

    @property
    def unit(self) -> str:
        """The unit of its values; "" where they have none."""
        return UNITS.get(self.name, "")

    @property
    def type(self) -> str:
        """What its values look like: INT, FLOAT, a|b|c, ..."""
        plain = "|".join(get_args(self.kind)) if get_origin(self.kind) is Literal \
            else NAMES[self.kind]
        return plain + "|none" * self.optional

    def read(self, text: str) -> Any:
        """The value that `text` stands for; raises ConfigError where there is none."""
        if self.optional and text.lower() == "none":
            return None
        try:
            return reader(self.kind)(text)
        except ValueError as error:
            fix = f"--{self.name}={shown(self.default)}"
            why = f"{self.name} is {json.dumps(text)}, but must be {error}"
            raise ConfigError(why, f"leave {self.name} out" if self.default is None else fix) from None


class Request(NamedTuple):
    """What a command line asks for."""

    asked: dict[str, Any]  # what was given, by setting
    preset: str  # name of the preset beneath it, or "none",
    changes: dict[str, Any]  # and what that changes of the defaults, where nothing else was asked
    config: Config  # all of it together


def read(argv: Sequence[str]) -> Request:
    """What `argv` asks for; raises ConfigError for anything that cannot be.

    With --help it prints every setting, with the defaults of the environment that is named, and
    raises SystemExit.
    """
    given = by_setting(flags(argv))
    texts = {name: text_of(flag) for name, flag in given.items() if name not in ("help", *COMPUTED)}
    changes = preset_for(texts)
    preset = next((name for name, values in PRESETS.items() if values == changes), "none")
    values = parsed(texts, changes, preset, "help" in given)
    asked = {name: values[name] for name in texts}
    asked |= computed(given, {**changes, **asked})
    kept = {name: value for name, value in changes.items() if name not in asked}
    return Request(asked, preset, kept, Config(**{**kept, **asked}))


def settings() -> dict[str, Setting]:
    """Every field of Config by name, with the text below it in the source."""
    body = ast.parse(inspect.getsource(Config)).body[0].body
    texts = {one.target.id: inspect.cleandoc(below.value.value) for one, below in zip(body, body[1:])
             if isinstance(one, ast.AnnAssign)}
    found, section = {}, ""
    for one in fields(Config):
        text, source = re.fullmatch(r"(.*?)(?: \[([^]]*)\])?",
                                    " ".join(texts[one.name].split())).groups("")
        optional = get_origin(one.type) is Union
        kind = get_args(one.type)[0] if optional else one.type
        section = SECTIONS.get(one.name, section)
        found[one.name] = Setting(one.name, kind, optional, one.default, text, source, section)
    return found


class Flag(NamedTuple):
    """One flag as it was typed, and what followed it."""

    flag: str
    name: str  # with underscores, and without no_ in front
    values: list[str]


def flags(argv: Sequence[str]) -> list[Flag]:
    """The flags of `argv` with their values; a hyphen in a name is as good as an underscore."""
    found: list[Flag] = []
    for token in argv:
        if re.match(r"--?[A-Za-z]", token):
            flag, equals, value = token.partition("=")
            name = flag[2:].replace("-", "_") if flag.startswith("--") else flag
            found.append(Flag(flag, name, [value] if equals else []))
        elif found:
            found[-1].values.append(token)
        else:
            raise ConfigError(f'"{token}" is not a setting', f"--env_name={token}" if
                              re.search(r"-v\d+$|:", token) else "python main.py --help lists them")
    return found


def by_setting(given: Sequence[Flag]) -> dict[str, Flag]:
    """The flags by the setting they mean, the last of several; ConfigError for what is no setting.

    Two names for one setting are an error: nobody can tell which of them was meant.
    """
    known, found = settings(), {}
    for flag in given:
        if flag.name in ("help", "-h"):
            found["help"] = flag
            continue
        flag = _positive(flag, known)
        name = ALIASES.get(flag.name, flag.name)
        if flag.name in CLEANRL:
            raise _answer(flag)
        if name not in (*known, *COMPUTED):
            raise _unknown(flag.name, [*known, *COMPUTED, *ALIASES])
        other = found.get(name)
        if other and other.name != flag.name:
            raise ConfigError(f"--{other.name} and --{flag.name} are two names of one setting",
                              f"give only --{name}")
        found[name] = flag
    return found


def _positive(flag: Flag, known: dict[str, Setting]) -> Flag:
    """--no-flag as --flag=False, where that can be meant."""
    name = flag.name.removeprefix("no_")
    switch = name in known and known[name].kind is bool or isinstance(CLEANRL.get(name), tuple)
    if name == flag.name or not switch:
        return flag
    if flag.values:
        raise ConfigError(f"{flag.flag} takes no value, but was given {' '.join(flag.values)}",
                          f"--{name}=False")
    return Flag(flag.flag, name, ["False"])


def _answer(flag: Flag) -> ConfigError:
    """The error for one of CleanRL's names, with ours as its fix."""
    ours, value = CLEANRL[flag.name], " ".join(flag.values)
    if isinstance(ours, tuple):
        fix = ours[0] if WORDS.get(value.lower(), True) else ours[1]
    else:
        fix = f"--{ours}={value or '...'}"
    return ConfigError(f"{flag.flag} is CleanRL's name", fix)


def _unknown(name: str, known: Sequence[str]) -> ConfigError:
    near = difflib.get_close_matches(name.lstrip("-").removeprefix("no_"), known, 1, 0.5)
    return ConfigError(f'there is no setting "{name}"', f"did you mean --{near[0]}?" if near else
                       "python main.py --help lists them all")


def text_of(flag: Flag) -> str:
    """The one text that follows a flag: True where nothing does and it is a switch."""
    setting = settings()[ALIASES.get(flag.name, flag.name)]
    if setting.kind is bool and not flag.values:
        return "True"
    if setting.kind == tuple[int, ...] and flag.values:
        return ",".join(flag.values)
    return single(flag, setting.type)


def single(flag: Flag, kind: str) -> str:
    """The only value of a flag; raises ConfigError where there are none or several."""
    if len(flag.values) != 1 or not flag.values[0]:
        got = f", not \"{' '.join(flag.values)}\"" if len(flag.values) > 1 else ""
        raise ConfigError(f"{flag.flag} takes one value{got}", f"{flag.flag}={kind}")
    return flag.values[0]


def preset_for(texts: dict[str, str]) -> dict[str, Any]:
    """What the preset of the environment that is named changes; ConfigError for an unknown preset."""
    preset = texts.get("preset", "auto")
    if preset not in ("auto", "none", *PRESETS):
        near = difflib.get_close_matches(preset, PRESETS, 1, 0.4)
        raise ConfigError(f'there is no preset "{preset}", only auto, none, {", ".join(PRESETS)}',
                          f"--preset={near[0] if near else 'auto'}")
    return preset_of(texts.get("env_name", Config.env_name), preset)


def computed(given: dict[str, Flag], values: dict[str, Any]) -> dict[str, Any]:
    """What `--num_iterations` and `--name` come to, over the settings that hold beside them.

    The first is total_steps in rollouts of num_envs x num_steps; the second the run folder's name.
    """
    for name, setting in COMPUTED.items():
        if name in given and setting in given:
            raise ConfigError(f"--{name} and --{setting} say the same thing twice",
                              f"give only --{setting}")
    found = {}
    if "num_iterations" in given:
        count = Setting("num_iterations", int, False, 100, "", "", "").read(
            single(given["num_iterations"], "INT"))
        envs, steps = (values.get(name, getattr(Config, name)) for name in ("num_envs", "num_steps"))
        found["total_steps"] = count * envs * steps
    if "name" in given:
        found["run_dir"] = f"runs/{slug(single(given['name'], 'TEXT'))}"
    return found


def slug(name: str) -> str:
    """`name` as one folder's name."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def reader(kind: Any) -> Callable[[str], Any]:
    """The function from a text to a value of `kind`; its ValueErrors say what must be there."""
    if get_origin(kind) is Literal:
        return lambda text: _choice(text, get_args(kind))
    return {int: whole, float: _number, bool: _switch, tuple[int, ...]: _sizes,
            dict[str, Any]: _object}.get(kind, str)


def whole(text: str) -> int:
    """A whole number: 16, 1_000, 1e6, 10M or 500k."""
    match = re.fullmatch(r"(.*?)([kmg]?)", text.strip(), re.IGNORECASE | re.DOTALL)
    try:
        value = Decimal(match[1]).scaleb(SUFFIXES.get(match[2].lower(), 0))
        if value.is_finite() and value.adjusted() < 30 and value == int(value):
            return int(value)
    except InvalidOperation:
        pass
    raise ValueError("a whole number, such as 16, 1e6, 10M or 500k")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number, such as 0.5 or 3e-4") from None


def _switch(text: str) -> bool:
    if text.lower() not in WORDS:
        raise ValueError("True or False")
    return WORDS[text.lower()]


def _choice(text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise ValueError("one of " + ", ".join(choices))
    return text


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(whole(part) for part in re.split(r"[,\s]+", text.strip("()[] ,")) if part)
    except ValueError:
        raise ValueError("whole numbers, such as 64,64") from None


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"""a JSON object, such as '{{"name": 1}}' ({error})""") from None
    if not isinstance(value, dict):
        raise ValueError("""a JSON object, such as '{"name": 1}'""")
    return value


def shown(value: Any) -> str:
    """A value as it would be typed."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"
    return json.dumps(value) if isinstance(value, dict) else "none" if value is None else str(value)


def parsed(texts: dict[str, str], changes: dict[str, Any], preset: str, wants_help: bool
           ) -> dict[str, Any]:
    """All settings, with `texts` read by tyro over `changes` over the defaults."""
    import tyro
    sections: dict[str, list[Setting]] = {}
    for setting in settings().values():
        sections.setdefault(setting.section, []).append(setting)
    boxes = [(title, Annotated[_box(title, held, changes, preset), tyro.conf.OmitArgPrefixes])
             for title, held in sections.items()]
    whole_page = make_dataclass("Settings", boxes)
    args = ["--help"] if wants_help else [f"--{name}={text}" for name, text in texts.items()]
    page = tyro.cli(whole_page, args=args, prog="python main.py", use_underscores=True,
                    description=_description(changes, preset))
    return {name: value for title, _ in boxes for name, value in vars(getattr(page, title)).items()}


def _box(title: str, held: Sequence[Setting], changes: dict[str, Any], preset: str) -> type:
    """A dataclass of some settings with their defaults, as tyro wants to see them."""
    import tyro
    made = []
    for setting in held:
        value = changes.get(setting.name, setting.default)
        default = " ".join(filter(None, [shown(value), "" if value is None else setting.unit]))
        if setting.name in changes:
            default += f" by preset {preset}, else {shown(setting.default)}"
        spec = tyro.constructors.PrimitiveConstructorSpec(
            nargs=1, metavar=setting.type, is_instance=lambda value: True,
            instance_from_str=lambda words, setting=setting: setting.read(words[0]),
            str_from_instance=lambda value: [shown(value)])
        shape = tyro.conf.arg(help=setting.text, help_behavior_hint=f"(default: {default})")
        made.append((setting.name, Annotated[object, spec, shape],
                     field(default_factory=lambda value=value: value)))
    return make_dataclass(title.capitalize(), made)


def _description(changes: dict[str, Any], preset: str) -> str:
    over = (f"The defaults below are those of the preset {preset}, which changes {len(changes)}."
            if changes else "")
    return ("Train PPO on a Gymnasium environment; without settings, on LunarLander-v3.\n\n"
            "Names take underscores or hyphens; switches are --flag, --no-flag or --flag=True; whole"
            " numbers may be written 1e6, 10M or 500k; none is no value.\n\n"
            f"{over} A preset's own defaults are shown where an environment is named:"
            " python main.py --env_name=LunarLander-v3 --help").replace("\n\n ", "\n\n")
