"""The EnvError for an environment that raised or returned something invalid."""

import logging
import signal
import threading
import time
import traceback
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from fastppo.errors import EnvError, Fix, Set, exception_text
from fastppo.machine.global_rng import preserved_global_rng
from fastppo.spaces.observations import NonFiniteValue

CONTRACT = ("step() must take the action, and return (obs, reward, terminated, truncated, info),"
            " reset() must take seed and options by name, and return (obs, info), as its spaces"
            " declare")
GAME_CONTRACT = ("keep to PettingZoo's interface: parallel_api_test of pettingzoo.test checks it,"
                 " of an AEC api_test")
IN_MAIN = "correct the environment; with num_workers=0 a breakpoint() in it works"
# Parts of the exceptions of other packages whose cause is known, and what mends it.
KNOWN_FAULTS = {
    "NoSuchDisplayException": "PYGLET_HEADLESS=1 in front of the command: there is no display",
    "gladLoadGL error": "MUJOCO_GL=egl in front of the command: there is no display",
    "OpenGL platform library": "MUJOCO_GL=egl in front of the command: there is no display",
    "multiple emulator instances per process": "give num_workers the number of environments",
    "of one agent": "add several objectives up, as mo_gymnasium.wrappers.LinearReward does",
}
CLOSE_SECONDS = 2.0  # for the close() of all environments together

log = logging.getLogger("fastppo")


class OutOfTime(TimeoutError):
    """The end of a time_limit."""

    __module__ = "builtins"  # an error's text has the name alone


@contextmanager
def time_limit(seconds: float, env: Any, field: str) -> Iterator[None]:
    """Raises EnvError inside the block after `seconds` (0: never), in Python code or a sleep.

    Only in the main thread of systems with SIGALRM, whose handler and timer are put back.
    """
    if not seconds or not hasattr(signal, "setitimer") or \
            threading.current_thread() is not threading.main_thread():
        yield
        return

    def expired(*_) -> None:
        raise OutOfTime(f"it has taken longer than reset_timeout={seconds:g} s")
    handler = signal.signal(signal.SIGALRM, expired)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except OutOfTime as error:
        raise env_error(f"the environment {env}, which is made once to read its spaces,", field,
                        error) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)


def first_info(env: Any) -> dict:
    """The info of a first reset; {} if that is no dict, or fails: training reports it."""
    try:
        with preserved_global_rng():
            # A vector environment of the user's is seeded once, by the run.
            info = env.reset(seed=None if isinstance(env, VectorEnv) else 0)[1]
            return info if isinstance(info, dict) else {}
    except OutOfTime:
        raise
    except Exception:  # an environment may raise anything
        return {}


def episode_text(seed: int | None, episode: int) -> str:
    """Seed and number of an episode; numbers below 0 are of the warm-up."""
    return f"seed {seed}, " + (f"episode {episode}" if episode >= 0 else
                               f"warm-up episode {-episode}")


def env_error(where: str, field: str, error: BaseException, fix: Fix = IN_MAIN,
              env: Any = None) -> EnvError:
    """The EnvError for an environment that failed in `field`, with its own traceback as text.

    `env` is that environment; its id is named if it has one. A KeyboardInterrupt of the user is
    raised again as it is. In a worker, which ignores that signal, it is the environment's own.
    """
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        raise error
    wrong = isinstance(error, (ValueError, TypeError)) and not in_user_code(error)
    if wrong and isinstance(error, NonFiniteValue) and field == "step()":
        fix = "correct what it returns", *[Set(nan_policy="reset_env")] * (not hasattr(env, "game"))
    elif wrong and field in ("step()", "reset()"):
        fix = GAME_CONTRACT if hasattr(env, "game") else CONTRACT
    elif isinstance(error, OutOfTime):
        fix = "mend what hangs, or give it more time by reset_timeout"
    spec = getattr(env, "spec", None)
    name = f" of {spec.id}" if isinstance(spec, EnvSpec) else ""
    return EnvError(f"{where} failed in {field}{name}: {exception_text(error, trace=not wrong)}",
                    known_fix(error) or fix)


def known_fix(error: BaseException) -> Fix:
    """What mends an exception whose cause is known; "" for all others."""
    text = exception_text(error, trace=False)
    return next((fix for part, fix in KNOWN_FAULTS.items() if part in text), "")


@contextmanager
def fault_in(where: Callable[[], str], field: str, fix: Fix) -> Iterator[None]:
    """Raises the EnvError of `env_error` for what fails inside the block."""
    try:
        yield
    except BaseException as error:  # a user's code may raise anything
        raise env_error(where(), field, error, fix) from error


def in_user_code(error: BaseException) -> bool:
    """True if neither fastppo nor Gymnasium raised it; then its traceback says more than its text.
    """
    modules = [frame.f_globals.get("__name__", "")
               for frame, _ in traceback.walk_tb(error.__traceback__)]
    place = next((name for name in reversed(modules) if not name.startswith("numpy")), "fastppo")
    return not place.startswith(("fastppo", "gymnas"))


def close_all(envs: list) -> None:
    """Closes and removes all of `envs`; the first exception is logged, and all others are closed.

    Each one is closed in a thread of its own, and a close that hangs is left there. One that draws
    is closed here, because its OpenGL belongs to this thread.
    """
    deadline, threads, errors = time.monotonic() + CLOSE_SECONDS, [], []
    while envs:
        if getattr(envs[-1], "render_mode", None) == "rgb_array":
            _close(envs.pop(), errors)
            continue
        threads.append(threading.Thread(target=_close, args=(envs.pop(), errors), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if hanging := sum(thread.is_alive() for thread in threads):
        log.warning("close() of %d environments has not returned after %g s; going on without it",
                    hanging, CLOSE_SECONDS)
    if errors:
        log.warning("close() of %d environments has failed; the first:\n%s", len(errors),
                    "".join(traceback.format_exception(errors[0])).rstrip())


def _close(env: Any, errors: list[BaseException]) -> None:
    try:
        env.close()
    except (Exception, SystemExit) as error:  # a user's close may raise anything
        errors.append(error)
