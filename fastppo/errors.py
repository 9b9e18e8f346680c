"""What can go wrong, as a tree of exceptions; each text says what, why, and a fix that works.

    Error
    |- ConfigError        a setting that cannot be right               (also a ValueError)
    |- SpaceError         an observation or action space not served     (also a ValueError)
    |- ModelError         a network that does not fit its spaces        (also a ValueError)
    |- InputError         what a call of predict, value or update cannot take (also a ValueError)
    |- KernelError        a kernel called with the wrong array          (also a ValueError)
    |- ExportError        a policy that cannot be made a graph, or acts otherwise as one
    |- CheckpointError    a file that cannot be read or written
    |- EnvError           an environment that broke its contract
    |  `- WorkerError     a worker process that raised, died or hung
    `- ClosedError        something used after close()
"""

from contextlib import contextmanager
from typing import Iterator

from fastppo.settings.spelling import keywords


class Error(Exception):
    """Base of every error raised on purpose: `what` happened, and the `fix` if there is one.

    Settings stand in both as flags of the command, which shows `typed`, and in the error's own text
    as keyword arguments.
    """

    quotes = False  # whether `what` is somebody else's words, to be left as they are

    def __init__(self, what: str, fix: str = ""):
        self.what, self.fix = what, fix
        self.typed = f"{what}\n  fix: {fix}" if fix else what
        super().__init__(self.said())

    def said(self, env: str = "") -> str:
        """The error's own text; `env` is the call that the environment is an argument of."""
        what = self.what if self.quotes else keywords(self.what, bare=False)
        return f"{what}\n  fix: {keywords(self.fix, env)}" if self.fix else what


class ConfigError(Error, ValueError):
    """A setting that cannot be right: unknown, out of range, or at odds with another one."""


class SpaceError(Error, ValueError):
    """An observation or action space that is not served (yet)."""


class ModelError(Error, ValueError):
    """A network that does not fit its spaces, or whose parameters changed after construction."""


class InputError(Error, ValueError):
    """Something handed to predict, value or update that does not fit the policy's spaces."""


class KernelError(Error, ValueError):
    """A kernel called with an array of the wrong dtype, shape or layout."""


class CheckpointError(Error):
    """A file that cannot be read or written as a policy."""


class ExportError(Error):
    """A policy that cannot be made a graph, or that acts otherwise as one."""


class EnvError(Error):
    """An environment that raised or broke its contract; the text names where it stood."""

    quotes = True


class WorkerError(EnvError):
    """A worker process that raised, died or hung; the text carries its traceback or last words."""


class ClosedError(Error):
    """Something used after it was closed."""


@contextmanager
def spelt(env: str) -> Iterator[None]:
    """Let a fix that names another environment name it as the call `env`, such as PPO({}), does."""
    try:
        yield
    except Error as error:
        error.args = (error.said(env),)
        raise
