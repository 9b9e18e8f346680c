"""The command of this package in a process of its own, which dies with this one."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Sequence

from fastppo.errors import ConfigError
from fastppo.machine.file_access import open_regular
from fastppo.machine.secrets import import_path

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
