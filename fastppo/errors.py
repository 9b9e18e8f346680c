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

from fastppo.settings.fixes import Fix, python_text, shell_text
from fastppo.settings.spelling import keywords


class Error(Exception):
    """Base of every error raised on purpose: `what` happened, why, and the `fix`, which is data.

    Its own text is for Python; `shell` is the text for the command line.
    """

    quotes = False  # whether `what` is somebody else's words, to be left as they are

    def __init__(self, what: str, fix: Fix = ""):
        self.what, self.fix = what, fix
        super().__init__(self.said())

    @property
    def shell(self) -> str:
        """The text with the fix as it is typed on a command line."""
        return f"{self.what}\n  fix: {shell_text(self.fix)}" if self.fix else self.what

    def said(self, env: str = "") -> str:
        """The error's own text; `env` is the call that the environment is an argument of."""
        what = self.what if self.quotes else keywords(self.what, bare=False)
        fix = keywords(self.fix, env) if isinstance(self.fix, str) else python_text(self.fix)
        return f"{what}\n  fix: {fix}" if fix else what


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
