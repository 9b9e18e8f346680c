"""The command of this package in a process of its own, which dies with this one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Sequence

from fastppo.errors import ConfigError
from fastppo.machine.child_env import import_path
from fastppo.machine.file_access import open_regular

# It runs in a fresh interpreter, and gets its lifeline, the import path and the command as JSON.
CHILD = """\
import json, sys
lifeline, sys.path[:], sys.argv[:] = json.loads(sys.argv[1])
from fastppo.workers.bootstrap import die_with_parent
die_with_parent(lifeline)
from fastppo.cli.main import main
main()
"""
END_SECONDS = 10.0  # that a command which is closed has for its end


class ChildCommand:
    """The command with the words `argv`, whose output is added to the end of a file.

    It has a process group of its own, so that Ctrl-C in a terminal reaches it only by send(). The
    lifeline is a pipe without data: it closes when this process ends, however it does, and then
    Linux kills the child. Raises ConfigError if it cannot be started.
    """

    def __init__(self, argv: Sequence[str], output: Path):
        from fastppo.machine.arena import above_stdio
        try:
            theirs, self.lifeline = map(above_stdio, os.pipe())
        except OSError as error:
            raise _start_error(error) from error
        job = json.dumps([theirs, import_path(), [str(sys.argv[0]), *argv]])
        try:
            with open(output, "ab", opener=open_regular) as file:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", CHILD, job], pass_fds=[theirs], process_group=0,
                    stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        except OSError as error:
            os.close(self.lifeline)
            raise _start_error(error) from error
        finally:
            os.close(theirs)

    @property
    def code(self) -> int | None:
        """The exit code, below 0 for the signal that has ended it; None while it runs."""
        return self.process.poll()

    def send(self, signum: int) -> None:
        """Sends a signal, unless it has ended."""
        self.process.send_signal(signum)

    def close(self) -> None:
        """Stops it, by SIGKILL if SIGTERM does not; a second call does nothing."""
        self.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        self.process.kill()
        self.process.wait()
        if self.lifeline >= 0:
            os.close(self.lifeline)
        self.lifeline = -1


def _start_error(error: OSError) -> ConfigError:
    return ConfigError(f"cannot start a process: {error.strerror}", "use fewer processes")
