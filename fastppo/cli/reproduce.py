"""The verb: fastppo reproduce RUN [--total_steps=N].

Two runs that should have the same bits are compared: their metrics, policies and versions.
"""

import json
import re
from collections import ChainMap
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Iterator, Sequence

from fastppo.cli import command_line
from fastppo.errors import ConfigError, Set, format_value
from fastppo.machine.file_access import read_text
from fastppo.settings import known_names
from fastppo.trainer.setting_texts import read_settings

HIDDEN = '"***"'  # in config.json, in place of a password


@dataclass(frozen=True)
class Reproduce:
    """Train again what the folder of a run describes, and say which bits agree.

      {0} reproduce runs/latest --total_steps=20k

    The new run has the settings and the seed of RUN's config.json, and a folder
    of its own. Every metric but times is compared, row by row, and the final
    policy, number by number. It ends with 0 if all bits are equal, else with 1,
    and names what differs in versions and machine.
    """

    OPERANDS = "RUN"

    total_steps: int | None = None
    """Step at which to stop, for a quick look at the first rows; none: the last step of RUN"""
    env_name: str | None = None
    """Environment, where RUN's is `module:callable`: code that a file names is never imported"""
    env_kwargs: dict[str, Any] | None = None
    """Arguments of the environment, where RUN's have passwords, which config.json does not hold"""
    model: str | None = None
    """Network, where RUN's is `module:Class`"""
    eval_env: str | None = None
    """Environment of evaluations, where RUN's is `module:callable`"""
    init_from: str | None = None
    """Policy that RUN started with, if it had one"""


def reproduce_verb(argv: Sequence[str], interrupts) -> None:
    """Trains the run that `argv` names again; SystemExit(1) if a bit differs."""
    (word,), options = command_line.words_and_options(argv, Reproduce)
    folder = Path(word)
    folder = folder.parent / folder.readlink() if folder.is_symlink() else folder
    if not (folder / known_names.CONFIG_FILE).is_file():
        raise ConfigError(f"{folder} is not the folder of a run: it has no config.json")
    settings = read_settings(folder / known_names.CONFIG_FILE)
    check_given(folder, settings, options)
    from fastppo.reports.run_table import read_runs
    last = int(read_runs(str(folder))[0].columns[known_names.GLOBAL_STEP][-1])
    new, reached = train_again(command_again(folder, settings, options),
                               min(options.total_steps or last, last))
    if not report_bits(folder, new, reached):
        raise SystemExit(1)


def check_given(folder: Path, settings: dict[str, Any], options: Reproduce) -> None:
    """Raises ConfigError if a setting is code or a password, and is not given again."""
    from fastppo.envs.families import is_registered
    from fastppo.trainer.given_settings import code_named_in
    needed = {name: settings[name] for name in code_named_in(settings)}
    if not is_registered(str(settings.get("env_name")), settings.get("vec", "workers")):
        needed["env_name"] = settings.get("env_name") or "module:MyEnv"
    if HIDDEN in json.dumps(settings.get("env_kwargs")):
        needed["env_kwargs"] = settings["env_kwargs"]
    started = folder / known_names.COMMAND_FILE
    if started.is_file() and (found := re.search(r"--init[-_]from[ =](\S+)",
                                                 read_text(started, errors="replace"))):
        needed["init_from"] = found[1]
    if python := [name for name, value in settings.items() if str(value)[:1] == "<"]:
        raise ConfigError(f"{' and '.join(python)} of {folder} can be given only in Python")
    if missing := {name: value for name, value in needed.items() if getattr(options, name) is None}:
        raise ConfigError(f"the run in {folder} had {' and '.join(missing)} of its own: a file"
                          " holds neither code nor passwords", Set(**missing))


def command_again(folder: Path, settings: dict[str, Any], options: Reproduce) -> list[str]:
    """The words of the command that trains the run in a folder again, without its outputs."""
    again = {"preset": str(folder / known_names.CONFIG_FILE), "name": "reproduce",
             "device": settings.get("device", "cpu"), "progress": "auto", **vars(options)}
    if settings.get("eval_interval") is None and settings.get("eval_env") is None:
        again["eval_episodes"] = 0
    words = [f"--{name}={format_value(value)}" for name, value in again.items()
             if name != "total_steps" and value is not None]
    return [*words, "--video_interval=none", "--logger=none"]


def train_again(words: Sequence[str], steps: int) -> tuple[Path, int]:
    """(folder, last step) of the new run, which `words` ask for, and which stops at a step."""
    from fastppo.cli.run_folder import write_start_files
    from fastppo.cli.train import opened_run
    from fastppo.terminal.banner import banner
    request = command_line.read(words)
    with opened_run(request) as (ppo, folder, resumed):
        print(*banner(ppo, request, folder, resumed), sep="\n", flush=True)
        write_start_files(folder, words, ppo.config)
        ppo.learn(callbacks=[lambda ppo, _: ppo.step < steps])
        ppo.save(folder / known_names.MODEL_FILE)
        return folder, ppo.step


def report_bits(old: Path, new: Path, reached: int) -> bool:
    """Prints which bits of two runs agree up to a step, and likely causes; True if all do."""
    from fastppo.reports.run_table import read_object
    from fastppo.runs.policy_file import POLICY_FORMAT
    from fastppo.runs.tensor_file import read_tensor_file
    metrics, same = metrics_text(old, new, reached)
    summary = read_object(old / known_names.SUMMARY_FILE)
    model, same_model = "not compared, because the run has none of this step", True
    if summary.get("steps") == reached and (old / known_names.MODEL_FILE).is_file():
        model, same_model = model_text(*(
            read_tensor_file(folder / known_names.MODEL_FILE, POLICY_FORMAT)[0]
            for folder in (old, new)))
    same &= same_model
    print(f"{'equal' if same else 'differs':9} metrics: {metrics}; model: {model}", flush=True)
    causes = likely_causes(*(read_object(folder / known_names.SYSTEM_FILE)
                             for folder in (old, new)))
    if summary.get("resumed_at"):
        causes.append(f"the run was resumed at step {summary['resumed_at']:,}, perhaps with other"
                      " settings: see its command.txt")
    for text in () if same else causes or ["not known: versions and CPU are the same"]:
        print(f"cause     {text}", flush=True)
    return same


def metrics_text(first: Path, second: Path, last_step: int) -> tuple[str, bool]:
    """(the comparison of two runs' tables up to a step in words, True if they are equal).

    Equal texts are equal bits, because the tables have all digits. Raises ConfigError if a table
    cannot be read.
    """
    pairs = [*zip_longest(*(rows_until(folder / known_names.METRICS_FILE, last_step)
                            for folder in (first, second)), fillvalue={})]
    found = [(one, two) for one, two in pairs if one != two]
    if not found:
        return f"{len(pairs):,} rows", True
    one, two = found[0]
    name, *others = [name for name in {**one, **two} if one.get(name) != two.get(name)]
    step = (one or two)[known_names.GLOBAL_STEP]
    return (f"{len(found):,} of {len(pairs):,} rows, from step {step} on; there {name} was"
            f" {one.get(name, 'absent')}, is {two.get(name, 'absent')}"
            + f", and {len(others)} more" * bool(others)), False


def rows_until(file: Path, last_step: int) -> Iterator[dict[str, str]]:
    """The rows of a table up to a step: the texts of its metrics, without those of times."""
    from fastppo.reports.run_table import csv_rows
    names, *rows = csv_rows(file) or [[]]
    for row in rows:
        found = dict(zip(names, row))
        if len(row) == len(names) and found.get(known_names.GLOBAL_STEP, "").isdigit() \
                and int(found[known_names.GLOBAL_STEP]) <= last_step:
            yield {name: text for name, text in found.items()
                   if text and not name.startswith(known_names.TIMED)}


def model_text(first: dict[str, Any], second: dict[str, Any]) -> tuple[str, bool]:
    """(the comparison of two policies' tensors, bit by bit, in words, True if they are equal)."""
    import torch
    one, two = ({name: (x.dtype, x.shape, bytes(x.reshape(-1, 1).view(torch.uint8).numpy()))
                 for name, x in tensors.items()} for tensors in (first, second))
    found = [name for name in {**one, **two} if one.get(name) != two.get(name)]
    others = f" of {len(first)} tensors, such as {found[0]}" if found else " tensors, all bits"
    return f"{len(found or first)}{others}", not found


def likely_causes(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """What the system.json of two runs have different of versions and CPU: torch: 2.1 and 2.2."""
    one, two = (ChainMap(facts.get("fingerprint", {}), facts.get("packages", {}),
                         *facts.get("extras", {}).values()) for facts in (first, second))
    return [f"{name}: {one[name]} and {two[name]}" for name in sorted(one.keys() & two.keys())
            if one[name] != two[name]]
