"""The verb: python main.py export MODEL [--to=onnx|torchscript] [--output=FILE]."""

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Sequence

from fastppo.cli.arguments import ALIASES, flag_text, split_flags
from fastppo.cli.interrupts import Interrupts
from fastppo.cli.setting_types import settings
from fastppo.errors import ConfigError, Error
from fastppo.settings.aliases import nearest_setting
from fastppo.settings.fixes import format_value

EXPORT_USAGE = "python main.py export MODEL"


@dataclass(frozen=True)
class Export:
    """Write a trained policy as one graph: raw observation in, the environment's action out.

    It is checked before it is written: on steps of the environment it was trained on, where that is
    an id of Gymnasium's, or else on samples of its observation space.
    """

    to: Literal["onnx", "torchscript"] | None = None
    """Format; none: as the name of the output ends, else onnx, for which there is an extra:
    pip install "fastppo[export]" """
    output: str | None = None
    """File to write; none: the policy's own name with another ending, .onnx or .pt"""
    env_name: str | None = None
    """Environment whose steps it is checked on, an id or `module:callable`; none: the one in the
    file if that is an id of Gymnasium's, for a file never names code to import"""
    model: str | None = None
    """Class of the network in the file, as `module:Class`, where it is one of your own"""


def export_verb(argv: Sequence[str], interrupts: Interrupts) -> None:
    """Do what `argv` asks for, and say what came of it."""
    interrupts.at_once = lambda: True
    if any(word in ("-h", "--help") for word in argv):
        print(help_page())
        return
    model, options = parse_options(argv)
    from fastppo.outputs import export as exporter
    from fastppo.outputs.policy_file import load, nearest_model
    ending = exporter.FORMATS[options.to or "onnx"]
    path = Path(options.output or model.with_suffix(ending))
    if path.absolute() == model.absolute():
        raise ConfigError(f"{path} is the policy itself", "leave --output out")
    to = exporter.format_of(path, options.to)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # --env_name=my_module:MyEnv; --model=my_module:MyNet
    if not model.is_file():
        rest = [word for word in argv if word.startswith("--")]
        raise ConfigError(f"there is no file {model}", " ".join([
            "python main.py export", str(nearest_model(model) or example_path()), *rest]))
    policy, trained = load(model, model=options.model), stored_env(model)
    steps, what = steps_to_check(policy, options.env_name, *trained)
    exporter.write_graph(policy, path, to, steps, options.env_name or trained[0])
    print(f"exported  {path}   acts as the policy does on {len(steps.first)} {what}")


def steps_to_check(policy, asked_for: str | None, name: str, kwargs: dict[str, Any],
             seen: dict[str, Any]):
    """(recorded steps, what they are) to check on: see Export."""
    from gymnasium import registry

    from fastppo.envs.env_hints import is_atari_id
    from fastppo.envs.make import make_factory
    from fastppo.outputs import export_samples
    if asked_for:
        return export_samples.play_episodes(policy, make_factory(asked_for, **seen)), f"steps of {asked_for}"
    if name in registry or is_atari_id(name):  # the module of these is known without the file
        with contextlib.suppress(Error):  # not installed here, or another version of it
            made = make_factory(name, None, kwargs, **seen)
            return export_samples.play_episodes(policy, made), f"steps of {name}"
    return export_samples.sample_episodes(policy), "samples of its observation space"


def parse_options(argv: Sequence[str]) -> tuple[Path, Export]:
    """The policy's file and the options of a command line; ConfigError for what cannot be."""
    known = settings(Export)
    if not argv or argv[0].startswith("-"):
        raise ConfigError("export needs the file of a policy", f"{EXPORT_USAGE}, such as {example_path()}")
    values: dict[str, Any] = {}
    for flag in split_flags(argv[1:]):
        name = ALIASES.get(flag.name, flag.name)
        if name not in known:
            raise ConfigError(f'export has no option "{name}"', nearest_setting(name, known, "--"))
        values[name] = known[name].read(flag_text(flag, known))
    model = Path(argv[0])
    return model / "model.safetensors" if model.is_dir() else model, Export(**values)


def example_path() -> Path:
    """The newest policy under runs/, or what one might be called."""
    found = sorted(Path("runs").glob("*/*.safetensors"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else Path("runs/CartPole-v1__1/model.safetensors")


def stored_env(model: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(environment's name, its arguments, those of `factory`) in a loaded policy's file."""
    from safetensors import safe_open

    from fastppo.envs.atari import atari_options
    with safe_open(model, "pt") as file:
        config = json.loads(file.metadata()["config"])
    seen = {"stack": config.get("frame_stack", 1), "games": atari_options(
        config.get("preprocessing", "none"), config.get("end_on_life_loss", False))}
    return config["env_name"], config["env_kwargs"] or {}, seen


def help_page() -> str:
    """What --help says."""
    rows = [f"  --{one.name} {one.type}   (default: {format_value(one.default)})\n      {one.text}"
            for one in settings(Export).values()]
    return "\n".join([f"usage: {EXPORT_USAGE} [options]", "", Export.__doc__.strip(), "", *rows])
