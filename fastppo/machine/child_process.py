"""Child processes: their environment variables, where modules are imported from, how they end.

A command has the working directory on sys.path only from the moment on at which it imports a
module that was typed. Until then a file beside a run that somebody else has made is never taken
for an installed package.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Sequence

from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.machine.file_access import open_regular

# Whole words between other characters: GH_TOKEN and API_KEY, but not KEYMAP or MJKEY.
SECRET = re.compile(r"(?<![A-Z])(API|ACCESS|AUTH|PRIVATE|SECRET)*(KEY|TOKEN|SECRET|CREDENTIAL)S?"
                    r"(?![A-Z])|PASSW|PASSPHRASE|AUTHORIZATION", re.IGNORECASE)
# The variable PWD is a folder, so that SECRET, which chooses variables, lacks the word.
PASSWORD = re.compile(r"PASSW|PASSPHRASE|(?<![A-Z])PWD(?![A-Z])", re.IGNORECASE)
USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
PASS_ON = "FASTPPO_WORKER_ENV"  # names of variables that workers get although they look secret
# Of typed modules; none in a script of the user's, whose own folder Python puts on sys.path.
FOLDERS: list[str] = []
THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                 "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS")
# It runs in a fresh interpreter. Its stdin becomes the lifeline.
CHILD = """\
import json, os, sys
sys.path[:], sys.argv[:] = json.loads(sys.argv[1])
lifeline = os.dup(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
from fastppo.workers.bootstrap import die_with_parent
die_with_parent(lifeline)
from fastppo.cli.main import main
main()
"""
END_SECONDS = 10.0  # that a command which is stopped has for its end


def secrecy(name: str) -> int:
    """2 if a name looks like that of a password, 1 of another credential, in camel case too; or 0.
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name))
    return 2 if PASSWORD.search(words) else int(bool(SECRET.search(words)))


def without_secrets(value: Any, secret: int = 0) -> Any:
    """`value`, in which texts under a name like that of a credential are ***.

    So are numbers that are passwords, and a user in a URL; `n_keys` may be a number.
    """
    if isinstance(value, dict):
        return {key: without_secrets(part, max(secret, secrecy(key))) for key, part in
                value.items()}
    if isinstance(value, list):
        return [without_secrets(part, secret) for part in value]
    if isinstance(value, str):
        return "***" if secret else USER_IN_URL.sub("***", value)
    return "***" if secret == 2 and type(value) in (int, float) else value


def worker_environment(allowed: Sequence[str] = ()) -> dict[str, str]:
    """The environment variables of a worker: one thread per library, and no credentials.

    But those whose names are `allowed`, here or in PASS_ON.
    """
    allowed = {*allowed, *re.split(r"[,\s]+", os.environ.get(PASS_ON, ""))}
    kept = {name: value for name, value in os.environ.items()
            if name in allowed or not SECRET.search(name)}
    return kept | dict.fromkeys(THREAD_LIMITS, "1") | {"PYTHONUNBUFFERED": "1"}


def import_path() -> list[str]:
    """The entries of sys.path, and the folder of this package if it is not among them."""
    path, package = list(map(str, sys.path)), str(Path(__file__).parents[2])
    return path if package in path else [*path, package]


def add_folders(path: list[str]) -> None:
    """Adds FOLDERS to a path, before installed packages, as in a script of the user's.

    They come after Python's own modules, which a file such as queue.py must not hide.
    """
    for folder in FOLDERS:
        if folder not in path:
            installed = (i for i, place in enumerate(path) if place.endswith("-packages"))
            path.insert(next(installed, len(path)), folder)


def leave_folder(folder: str, own: str, path: list[str]) -> None:
    """Removes `folder`, which `python -m` puts first, from a path; not the package's `own` one."""
    if path[:1] in ([""], [folder]) and folder != own:
        del path[0]


def public_config(config: Config) -> dict[str, Any]:
    """A Config as plain JSON values; what may be a password in env_kwargs becomes ***."""
    plain = json.loads(json.dumps(vars(config), default=repr))
    return plain | {"env_kwargs": without_secrets(plain["env_kwargs"])}


def start_command(argv: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    """Starts the command with the words `argv`, whose output is added to the end of a file.

    It has a process group of its own, so that Ctrl-C in a terminal does not reach it. The lifeline
    is a pipe without data: it closes when this process ends, however it does, and then Linux kills
    the child. Raises ConfigError if it cannot be started.
    """
    job = json.dumps([import_path(), [str(sys.argv[0]), *argv]])
    try:
        with open(output, "ab", opener=open_regular) as file:
            return subprocess.Popen(
                [sys.executable, "-P", "-c", CHILD, job], process_group=0, stdin=subprocess.PIPE,
                stdout=file, stderr=subprocess.STDOUT)
    except OSError as error:
        raise ConfigError(f"cannot start a process: {error.strerror}", "use fewer processes"
                          ) from error


def stop_command(process: subprocess.Popen[bytes]) -> None:
    """Stops a process, by SIGKILL if SIGTERM does not; a second call does nothing."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    process.kill()
    process.communicate()  # closes the lifeline
