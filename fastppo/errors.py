"""What can go wrong, as a tree of exceptions; each text says what, why, and a fix that works.

    Error
    |- ConfigError        a setting that cannot be right               (also a ValueError)
    |- SpaceError         an observation or action space not served     (also a ValueError)
    |- ModelError         a network that does not fit its spaces        (also a ValueError)
    |- InputError         what a call of predict, value or update cannot take (also a ValueError)
    |- KernelError        a kernel called with the wrong array          (also a ValueError)
    |- CheckpointError    a file that cannot be read or written
    |- EnvError           an environment that broke its contract
    |  `- WorkerError     a worker process that raised, died or hung
    `- ClosedError        something used after close()
"""


from .names import keywords


class Error(Exception):
    """Base of every error raised on purpose: `what` happened, and the `fix` if there is one.

    Settings stand in `fix` as flags of the command, which shows `typed`, and in the error's own
    text as keyword arguments.
    """

    def __init__(self, what: str, fix: str = ""):
        self.what, self.fix = what, fix
        self.typed = f"{what}\n  fix: {fix}" if fix else what
        super().__init__(f"{what}\n  fix: {keywords(fix)}" if fix else what)


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


class EnvError(Error):
    """An environment that raised or broke its contract; the text names where it stood."""


class WorkerError(EnvError):
    """A worker process that raised, died or hung; the text carries its traceback or last words."""


class ClosedError(Error):
    """Something used after it was closed."""
