"""The functions of an environment as machine code, by Numba or from a shared library.

Each is a C function of addresses, see csrc/envs/rows.h; it returns -1 if it has failed.
"""

import ctypes
import hashlib
import linecache
import os
import re
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Callable, Iterator, Sequence

import numpy as np
from numba import carray, cfunc, njit, types
from numba.core import config as numba_config
from numba.core.dispatcher import Dispatcher
from numba.core.typing.arraydecl import RecordAttribute
from numba.extending import overload, overload_method

from fastppo.compiled_envs.rows import FAILS, STREAM, RandomStream
from fastppo.errors import ConfigError
from fastppo.machine.kernels import EnvRows
from fastppo.machine.kernels_numba import philox
from fastppo.machine.stderr import status_while
from fastppo.reference import Purpose

PURPOSE = int(Purpose.ENVIRONMENT)
OURS = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
ADDRESSES = {"reset": 3, "step": 4, "observe": 2}  # that each function takes

# What stands for these names in the copy of a function below that is compiled for an environment.
USER: Any = None
STATE_DTYPE = OPTIONS_DTYPE = ACT_DTYPE = OBS_DTYPE = ACT_SHAPE = OBS_SHAPE = None


def reset(state, rng, options):
    """The user's reset; state, rng and options are addresses."""
    try:
        USER(value_at(state, (), STATE_DTYPE), value_at(rng, (), STREAM),
             value_at(options, (), OPTIONS_DTYPE))
    except Exception:
        return -1
    return 0


def step(state, action, rng, reward):
    """The user's step; 1 if the episode has terminated."""
    try:
        given, terminated = USER(value_at(state, (), STATE_DTYPE), value_at(
            action, ACT_SHAPE, ACT_DTYPE), value_at(rng, (), STREAM))
    except Exception:
        return -1
    carray(reward, 1, np.float64)[0] = given
    return 1 if terminated else 0


def observe(state, obs):
    """The user's observe."""
    try:
        USER(value_at(state, (), STATE_DTYPE), value_at(obs, OBS_SHAPE, OBS_DTYPE))
    except Exception:
        return -1
    return 0


def value_at(address, shape, dtype):
    """The number, record or array of this shape at an address; for compiled functions alone."""
    raise NotImplementedError


@overload(value_at)
def _value_at(address, shape, dtype):
    if shape == types.Tuple(()):
        return lambda address, shape, dtype: carray(address, shape, dtype)[()]
    return lambda address, shape, dtype: carray(address, shape, dtype)


# Numba asks a record for a field first, where it has compiled anything before the lines below, and
# raises KeyError for a method's name: a template of attributes returns None for what it lacks.
RecordAttribute.generic_resolve = lambda _, record, name: record.fields.get(name, [None])[0]


def _has_method(function: Callable) -> None:
    """Makes a STREAM have a method of RandomStream in compiled functions."""
    @overload_method(types.Record, function.__name__)
    @wraps(function)
    def of_records(rng, *_, **__):
        return function if "draws" in rng.fields else None


for method in "random", "uniform", "integers", "normal":
    _has_method(getattr(RandomStream, method))


@overload_method(types.Record, "words")
def _words(rng):
    """See RandomStream.words."""
    def words(rng):
        draws = rng.draws + np.uint64(1)
        rng.draws = draws
        return philox(rng.seed, draws, draws >> np.uint64(32), 0, PURPOSE)
    return words if "draws" in rng.fields else None


class MachineCode:
    """The functions of a class of environments as machine code, with the methods of Interpreted.

    `functions` are their addresses, `python` the same functions as Python runs them. One that fails
    is called again there, from the same state, for the error. Raises ConfigError for one that Numba
    cannot compile.
    """

    def __init__(self, kind: type, python: Any):
        self.python, user, self.layout = python, python.user, kind.layout
        names = {f"{name}_DTYPE": for_numba(getattr(kind.layout, name.lower()))
                 for name in ("STATE", "OPTIONS", "ACT", "OBS")}
        names |= {"ACT_SHAPE": kind.layout.act_shape, "OBS_SHAPE": kind.layout.obs_shape}
        label = kind.__qualname__
        with status_while(f"compiling {label}"):
            self.calls = [c_function(name, getattr(user, name), f"{label}.{name}", names)
                          for name in ADDRESSES]
        self.functions = [ctypes.cast(call, ctypes.c_void_p).value for call in self.calls]

    def use(self, env: Any) -> None:
        """Stores in an environment where its row and its arrays are."""
        base, layout = env.memory.ctypes.data, self.layout
        state, rng = base + layout.state_at, base
        action, reward, obs = (x.ctypes.data for x in (env.action, env.reward, env.obs))
        env.places = ((state, rng, base + layout.options_at), (state, action, rng, reward),
                      (state, obs))

    def env_rows(self, rows: np.ndarray, seed: int, first: int, final: np.ndarray,
                 arrays: Sequence[np.ndarray]) -> EnvRows:
        """The EnvRows of rows u1 [e bytes]; see machine/kernels.py."""
        layout = self.layout
        return EnvRows(self.functions, rows, np.empty(layout.state.itemsize, np.uint8),
                       (layout.state_at, layout.options_at), seed, first, final, arrays)

    def reset(self, env: Any) -> None:
        """See Interpreted.reset."""
        self._call(0, env)

    def step(self, env: Any) -> tuple[float, bool]:
        """See Interpreted.step."""
        terminated = self._call(1, env) == 1
        return float(env.reward[0]), terminated

    def observe(self, env: Any) -> None:
        """See Interpreted.observe."""
        self._call(2, env)

    def _call(self, number: int, env: Any) -> int:
        before = env.memory.copy()
        answer = self.calls[number](*env.places[number])
        if answer < 0:
            env.memory[:], name = before, [*ADDRESSES][number]
            if from_library(getattr(self.python.user, name)):
                raise RuntimeError(f"{name} of the shared library has returned {answer}")
            getattr(self.python, name)(env)
            raise RuntimeError(FAILS)
        return answer


def for_numba(dtype: np.dtype) -> np.dtype:
    """The same dtype, but flags are uint8: Numba's records cannot have them."""
    if dtype.subdtype:
        return np.dtype((for_numba(dtype.base), dtype.shape))
    if not dtype.names:
        return np.dtype("u1") if dtype.kind == "b" else dtype
    return np.dtype({"names": [*dtype.names], "formats": [
        for_numba(dtype[name]) for name in dtype.names], "offsets": [
        dtype.fields[name][1] for name in dtype.names], "itemsize": dtype.itemsize})


def from_library(function: Any) -> bool:
    """True for a function of a shared library, as ctypes has it."""
    return isinstance(function, ctypes._CFuncPtr)


def c_function(name: str, function: Any, label: str, names: dict[str, Any]) -> Any:
    """The C function of one `function`; that of a shared library is taken as it is."""
    arguments = [types.voidptr] * ADDRESSES[name]
    if from_library(function):
        function.restype, function.argtypes = ctypes.c_int32, [ctypes.c_void_p] * len(arguments)
        return function
    checked, file = bool(numba_config.BOUNDSCHECK), function.__code__.co_filename
    user = njit(error_model="numpy", boundscheck=checked)(function)
    # Numba's cache knows it by file and name, and compiles it again when the file has changed.
    own = f"{label}.{code_digest(function, checked, names)}"
    code = globals()[name].__code__.replace(co_filename=file, co_name=own, co_qualname=own)
    wrapper = FunctionType(code, {**globals(), **names, "USER": user}, own)
    wrapper.__qualname__ = own
    signature = types.int32(*arguments)
    with cache_folder() as exists, suppress(Exception):  # such as a module that is not found
        if exists and os.path.isfile(file):
            return cfunc(signature, cache=True)(wrapper).ctypes
    try:
        return cfunc(signature)(wrapper).ctypes
    except Exception as error:  # Numba raises many
        reason = reason_of(error, file, function.__code__.co_firstlineno)
        raise ConfigError(f"Numba cannot compile {label}: {reason}") from None


def code_digest(function: Any, *more: Any) -> str:
    """A digest of a function's code, of the values that it has from outside, and of `more`.

    The same of the compiled functions that it calls, and of this package, which calls it.
    """
    functions, texts = [function], []
    for one in functions:  # which grows meanwhile
        values = [cell.cell_contents for cell in one.__closure__ or ()]
        values += [one.__globals__.get(name) for name in one.__code__.co_names]
        texts += one.__module__, *map(value_text, (one.__code__, *values))
        helpers = [x.py_func for x in values if isinstance(x, Dispatcher)]
        functions += [x for x in helpers if x not in functions]
    return hashlib.sha256(OURS + repr((texts, more)).encode()).hexdigest()[:12]


def value_text(value: Any) -> str:
    """A text that is another one for another number, array, tuple of such, or code; else ""."""
    if isinstance(value, CodeType):
        return repr((value.co_code, value.co_names, *map(value_text, value.co_consts)))
    if isinstance(value, np.ndarray):
        return repr((value.shape, value.dtype, value.tobytes()))
    return repr(value) if isinstance(value, (int, float, str, bytes, tuple, np.generic)) else ""


@contextmanager
def cache_folder() -> Iterator[bool]:
    """Numba's cache in a private folder of the user's; False if there is none.

    It holds pickles, so nobody else may write there.
    """
    before, folder = numba_config.CACHE_DIR, Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastppo"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        info = folder.stat()
        exists = bool(before) or info.st_uid == os.getuid() and not info.st_mode & 0o022
    except OSError:
        exists = bool(before)
    numba_config.CACHE_DIR = before or str(folder)
    try:
        yield exists
    finally:
        numba_config.CACHE_DIR = before


def reason_of(error: Exception, file: str, line: int) -> str:
    """Numba's reason and its line of `file`, without its page of types; else the function's."""
    text = re.sub(r"Failed in nopython.*\n", "", str(error))
    reason = re.split(r"\n\s*\n|\nDuring|\nThere are", text)[0] or type(error).__name__
    if call := re.search(r">>> (.+)", text):
        reason += f" {call[1]}"
    line = int((re.search(rf'{re.escape(Path(file).name)}", line (\d+):', text) or (0, line))[1])
    return f'{reason}\n  File "{file}", line {line}: {linecache.getline(file, line).strip()}'
