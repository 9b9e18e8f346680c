"""The exceptions of fastppo; the text of each says what happened, why, and a fix that works.

Error
|- ConfigError        a setting with a wrong value                    (also a ValueError)
|- SpaceError         an observation or action space without support  (also a ValueError)
|- ModelError         a network that does not fit its spaces          (also a ValueError)
|- InputError         a wrong argument of predict, value or update    (also a ValueError)
|- KernelError        a kernel called with the wrong array            (also a ValueError)
|- ExportError        a policy without an equivalent graph
|- CheckpointError    a file that cannot be read or written
|  `- PathError       a path at which there is no file of the kind that is needed
|- NonFiniteError     a number of the network or the update that is NaN or infinite
|- EnvError           an environment that broke its contract
|  `- WorkerError     a worker process that raised, died or hung
|- RankError          another process of a run under torchrun has ended
`- ClosedError        something used after close()

A fix is data, rendered once for a shell and once for Python:

Set(target_kl=None)     --target_kl=none                   target_kl=None
Omit("lr", "gamma")     leave --lr and --gamma out         leave lr and gamma out
Install("atari")        pip install "fastppo[atari]"       the same
"a sentence"            the sentence                       the same
(fix, fix)              alternatives, joined by "; or "
"""

import errno
import json
import os
import shlex
import sys
import traceback
from contextlib import contextmanager
from typing import Any, Iterator, NamedTuple

PYTHON_NAMES = {"env_name": "env"}  # parameters of PPO, make_vec and evaluate
MESSAGE_MAX, TRACE_MAX = 2_000, 12_000  # characters of an exception's own text and of its traceback
PATH_ERRORS = errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP


class Set:
    """Settings to give, by name, with the values that mend the error."""

    def __init__(self, **settings: Any):
        self.names, self.settings = (*settings,), settings

    def text(self, shell: bool) -> str:
        """--lr=0.001 --hidden_sizes=64,64, or lr=0.001, hidden_sizes=(64, 64)."""
        if shell:
            return " ".join(flag(name, value) for name, value in self.settings.items())
        return ", ".join(f"{PYTHON_NAMES.get(name, name)}={_python_value(value)}"
                         for name, value in self.settings.items())


class Omit:
    """Settings to leave out, by name."""

    def __init__(self, *names: str):
        self.names = names

    def text(self, shell: bool) -> str:
        """leave --lr and --gamma out."""
        return f"leave {' and '.join('--' * shell + name for name in self.names)} out"


class Install:
    """An optional dependency to install, by the name of its extra."""

    def __init__(self, extra: str):
        self.extra = extra

    def text(self, shell: bool) -> str:
        """The command for pip."""
        return f'pip install "fastppo[{self.extra}]"'


SingleFix = str | Set | Omit | Install
Fix = SingleFix | tuple[SingleFix, ...]


def fix_text(fix: Fix, shell: bool) -> str:
    """`fix` as it is typed in a shell, or written in Python."""
    if isinstance(fix, tuple):
        return "; or ".join(fix_text(one, shell) for one in fix)
    return fix if isinstance(fix, str) else fix.text(shell)


def program() -> str:
    """The command as the user started it: python main.py, python -m fastppo or fastppo."""
    commands = {"main.py": "python main.py", "__main__.py": "python -m fastppo"}
    return commands.get(os.path.basename(sys.argv[0]), "fastppo")


def flag(name: str, value: Any) -> str:
    """The flag that gives setting `name` a value."""
    return f"--{name}={shlex.quote(format_value(value))}"


def format_value(value: Any) -> str:
    """A value as it is typed, before a shell's quotes: 1_000_000, 64,64, none, {"level": 1}."""
    if value is None or isinstance(value, (bool, str)):
        return "none" if value is None else str(value)
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, int):
        return f"{value:_}"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, default=repr)


def _python_value(value: Any) -> str:
    if type(value) is int:
        return f"{value:_}"
    return f'"{value}"' if isinstance(value, str) else getattr(value, "__qualname__", repr(value))


class Error(Exception):
    """Base of every error raised on purpose: `what` happened, why, and the `fix` as data.

    str(error) has the fix as it is written in Python, `shell` as it is typed on a command line.
    """

    def __init__(self, what: str, fix: Fix = ""):
        self.what, self.fix = what, fix
        super().__init__(what, fix)

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {fix_text(self.fix, False)}" if self.fix else self.what

    @property
    def shell(self) -> str:
        """The text with the fix as it is typed on a command line."""
        return f"{self.what}\n  fix: {fix_text(self.fix, True)}" if self.fix else self.what


def truncate_text(text: str, limit: int) -> str:
    """`text`; only its beginning and end if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    return f"{text[:limit // 2]}\n[{len(text) - limit} characters left out]\n{text[-(limit // 2):]}"


def exception_text(error: BaseException, trace: bool = True) -> str:
    """The type and text of an exception, and its traceback; unlike str(error), it cannot raise."""
    text = truncate_text("".join(traceback.format_exception_only(error)), MESSAGE_MAX)
    if trace:
        text += truncate_text("".join(traceback.format_exception(error)), TRACE_MAX)
    return text.strip().encode(errors="backslashreplace").decode()


@contextmanager
def user_code(kind: type[Error], what: str, fix: Fix) -> Iterator[None]:
    """Raises `kind` if code of the user's fails inside the block, with its traceback as text."""
    try:
        yield
    except Error:
        raise
    except Exception as error:  # it may raise anything
        error.__traceback__ = error.__traceback__.tb_next  # without this generator
        raise kind(f"{what} failed: {exception_text(error)}", fix) from error


class ConfigError(Error, ValueError):
    """A setting with a wrong value: unknown, out of range, or in conflict with another one."""


class SpaceError(Error, ValueError):
    """An observation or action space without support."""


class ModelError(Error, ValueError):
    """A network that does not fit its spaces, or whose parameters changed after construction."""


class InputError(Error, ValueError):
    """An argument of predict, value or update that does not fit the policy's spaces."""


class KernelError(Error, ValueError):
    """A kernel called with an array of the wrong dtype, shape or layout."""


class CheckpointError(Error):
    """A file that cannot be read or written as a policy."""


class PathError(CheckpointError):
    """A path at which there is no file of the kind that is needed."""


@contextmanager
def path_errors() -> Iterator[None]:
    """Raises PathError for a path that is too long for a file, or may not be looked at.

    An exception of other code than fastppo's, such as an environment's, stays as it is.
    """
    try:
        yield
    except OSError as error:
        modules = [frame.f_globals.get("__name__", "").partition(".")[0]
                   for frame, _ in traceback.walk_tb(error.__traceback__)]
        others = [name for name in modules if name not in sys.stdlib_module_names]
        ours = others[-1:] == ["fastppo"] and error.filename is not None
        if not ours or error.errno not in PATH_ERRORS:
            raise
        raise PathError(f"the path {error.filename} cannot be used: {error.strerror}",
                        "give a shorter path, or one that you may read") from error


USAGE_ERRORS = ConfigError, ModelError, PathError, SpaceError  # of what was typed


class ExportError(Error):
    """A policy that cannot become a graph, or whose graph acts differently."""


class NonFiniteError(Error):
    """A number of the network or the update that is NaN or infinite; the weights are unchanged."""


class FaultPlace(NamedTuple):
    """The place at which an environment failed."""

    env: int
    episode: int  # its number; below 0 in the warm-up
    step: int  # of the episode, from 0 on; -1 in its reset


class EnvError(Error):
    """An environment that raised or broke its contract; the text names the environment and step.

    `places` has the place of each environment that failed, as far as they are known.
    """

    places: tuple[FaultPlace, ...] = ()


class WorkerError(EnvError):
    """A worker process that raised, died or hung; the text has its traceback or last output."""


class RankError(Error):
    """Another process of a run under torchrun has ended."""


class ClosedError(Error):
    """Something used after it was closed."""
