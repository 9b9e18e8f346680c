"""The folder of a run: a new one, or that of the run to resume; and its files on the start.

A new one is runs/ENVIRONMENT__NAME__SEED__TIME.
"""

import json
import logging
import os
import re
import shlex
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Sequence

from fastppo.cli.command_line import Train, flag_of_each_word
from fastppo.config import Config
from fastppo.errors import ConfigError, Error, Omit, Set, format_value, program
from fastppo.machine import file_access
from fastppo.machine.child_process import without_secrets
from fastppo.runs.folder import FolderLock, check_file, checkpoint_files, checkpoints_in, policy_at
from fastppo.settings import known_names

log = logging.getLogger("fastppo")


def write_start_files(folder: Path, argv: Sequence[str], config: Config) -> None:
    """Adds the command to command.txt, and writes the facts on the machine to system.json.

    The command has the words `argv`, as they are typed in a shell. A warning says if a file cannot
    be written.
    """
    try:
        with open(folder / known_names.COMMAND_FILE, "a", encoding="utf-8",
                  errors="surrogateescape", opener=file_access.open_regular) as file:
            file.write(f"{program()} {shlex.join(public_words(argv, config.env_kwargs))}\n")
        from fastppo.runs.facts import system_facts
        facts = json.dumps(system_facts(config.torch_threads or 1), indent=1)
        file_access.write_bytes(folder / known_names.SYSTEM_FILE, f"{facts}\n".encode())
    except Exception as error:  # whatever it is, a run does not end for it
        reason = getattr(error, "strerror", None) or getattr(error, "what", error)
        log.warning("%s has no complete record of its start: %s", folder, reason)


def public_words(argv: Sequence[str], env_kwargs: dict[str, Any] | None) -> list[str]:
    """The words of a command; its `env_kwargs` come last, with *** for what may be a password."""
    words = [word for name, word in flag_of_each_word(argv) if name != "env_kwargs"]
    public = f"--env_kwargs={format_value(without_secrets(env_kwargs))}"
    return words + [public] * (len(words) < len(argv))


class ChosenRun(NamedTuple):
    """The run that a command asks for."""

    place: Path | None  # its folder or a checkpoint in it, if it is resumed
    folder: Path | None  # that it writes into; None: a new one, called `name` and a time
    name: str
    seed: int


def choose_run(options: Train, config: Config, drawn: int) -> ChosenRun:
    """The run that the options and settings of a command ask for; a new one has the seed `drawn`.

    Raises ConfigError for options that contradict each other, and for what needs no torch to be
    refused: files that are missing, and models that cannot be imported.
    """
    given, seed = Path(config.run_dir) if config.run_dir else None, config.seed
    if options.resume is not None and options.init_from is not None:
        raise ConfigError("--init_from starts a new run, and --resume continues one",
                          (Omit("resume"), Omit("init_from")))
    if options.name is not None and given:
        raise ConfigError("--name is a part of a new folder's name, and --run_dir names the folder",
                          (Omit("name"), Omit("run_dir")))
    place = None
    if options.resume == "auto":
        given = given or last_run(config.env_name, options.name, seed)
        seed = stored_seed(given) if seed is None else seed
        place = given if given and checkpoints_in(given) else None
    elif options.resume is not None:
        place = Path(options.resume)
        place = place.parent / os.readlink(place) if place.is_symlink() else place
        checkpoint_files(place)
    if place is None:
        from fastppo.envs.make import import_callable
        import_callable(config.model, "model")
        if options.init_from is not None:
            check_file(policy_at(Path(options.init_from)), "policy")
    else:
        folder = place if place.is_dir() else place.parent
        check_resumed(options, folder, given or folder)
        given = folder
    if given and str(given) != str(given).translate(file_access.CONTROL_CHARACTERS):
        raise ConfigError(f"the run's folder {str(given)!r} has control characters in its name",
                          "rename it")
    seed = drawn if seed is None else seed
    return ChosenRun(place, given, name_of_run(config.env_name, options.name, seed), seed)


def check_resumed(options: Train, folder: Path, given: Path) -> None:
    """Raises ConfigError for an option of a new run, beside the resumed one in `folder`.

    `given` is the run_dir.
    """
    new = {"name": options.name and options.resume != "auto", "show_config": options.show_config,
           "run_dir": given.resolve() != folder.resolve()}
    if wrong := [*filter(new.get, new)]:
        raise ConfigError(f"--{wrong[0]} is for a new run, and --resume continues the one in"
                          f" {folder}", Omit(wrong[0]))


def name_of_run(env_name: str, name: str | None, seed: int | str) -> str:
    """The name of a run's folder without its time; a run without a name is called ppo."""
    parts = re.sub(r"[^\w.-]+", "-", env_name), re.sub(r"[^\w.-]+", "-", name or "ppo")
    return "__".join([*(part.strip("-.") or "run" for part in parts), str(seed)])


def last_run(env_name: str, name: str | None, seed: int | None) -> Path | None:
    """The folder of the last run of an environment with a name, and with a seed if one is given.

    None if there is none. Raises ConfigError without a name: any run would be meant.
    """
    if name is None:
        raise ConfigError("resume=auto continues the run of a name, and there is none",
                          Set(name="my_run"))
    found = Path("runs").glob(f"{name_of_run(env_name, name, '*' if seed is None else seed)}__*")
    return max(found, key=lambda folder: folder.name.rpartition("__")[2], default=None)


def stored_seed(run_dir: Path | None) -> int | None:
    """The seed of the run in a folder, which may have ended before its first checkpoint."""
    with suppress(OSError, ValueError, LookupError, TypeError):  # none, or not ours
        seed = run_dir and file_access.read_json(run_dir / known_names.CONFIG_FILE)["seed"]
        return seed if isinstance(seed, int) else None


@contextmanager
def new_folder(run_dir: Path | None, name: str, again: bool = False) -> Iterator[Path]:
    """The folder for a run, `run_dir` or a new runs/{name}__{now}; if it stays empty it is removed.

    So it is after an Error or an interrupt before the first iteration. Raises ConfigError if it
    cannot be made, or, unless `again`, if it has files beside OUTPUT_FILE.
    """
    folder = Path(run_dir or f"runs/{name}__{datetime.now():%Y%m%d-%H%M%S}")
    if run_dir and not again:
        check_empty(folder, folder)
    try:
        folder = folder if run_dir or not folder.exists() else file_access.free_path(folder)
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=bool(run_dir))
        before = {*os.listdir(folder)}
    except OSError as error:
        raise file_access.write_error(folder, error) from error
    try:
        yield folder
    except (Error, KeyboardInterrupt):
        # The error that ended the run is the one to see; and what another run has is left to it.
        with suppress(OSError, ValueError), closing(FolderLock(folder)):
            remove_start(folder, before)
        raise
    finally:
        with suppress(OSError):  # it holds files
            if made:
                folder.rmdir()
            if not run_dir:
                repair_latest(folder.parent)
                folder.parent.rmdir()


def check_empty(folder: Path, given: Path) -> None:
    """Raises ConfigError if a folder has files beside OUTPUT_FILE; `given` is the run_dir."""
    if folder.is_dir() and {*os.listdir(folder)} - {known_names.OUTPUT_FILE}:
        raise ConfigError(f"the folder {folder} is not empty: it may hold another run",
                          Set(run_dir=str(file_access.free_path(given))))


def remove_start(folder: Path, before: set[str]) -> None:
    """Removes the files of a run that ended before its first iteration, if it has no others.

    Those that were there `before` it stay, and OUTPUT_FILE, for who started the run.
    """
    tables = known_names.METRICS_FILE, known_names.EPISODES_FILE
    rows = [len(file_access.read_text(folder / name).splitlines()) for name in tables
            if (folder / name).exists()]
    files = {*os.listdir(folder)} - {known_names.OUTPUT_FILE} - before
    if files <= known_names.START_FILES and max(rows, default=0) <= 1:
        for name in files:
            (folder / name).unlink()


def repair_latest(runs: Path) -> None:
    """Makes runs/latest, if what it links to is gone, a link to the run that was started last."""
    link = runs / known_names.LATEST
    if link.is_symlink() and not link.exists():
        link.unlink()
        if folders := [path for path in runs.glob("*__*") if path.is_dir()]:
            link_latest(max(folders, key=lambda path: path.name.rpartition("__")[2]))


def link_latest(folder: Path) -> None:
    """Makes runs/latest a link to the folder of a run in runs/, if the system has links."""
    link = folder.parent / known_names.LATEST
    new = link.with_name(f".{link.name}.{os.getpid()}")
    if folder.parent.name != "runs" or link.exists() and not link.is_symlink():
        return
    with suppress(OSError, NotImplementedError):
        new.symlink_to(folder.name, target_is_directory=True)
        os.replace(new, link)
