"""What an environment's answers must be, and the error that says which of them was not."""

import logging
import pickle
import random
import traceback

import numpy as np

from .errors import EnvError
from .spaces import castable

REWARD_MAX = float(np.finfo(np.float32).max)
REPLAY_LIMIT = 100_000  # steps of an episode that can be played again after an interrupt

log = logging.getLogger("fastppo")
WORDS_MAX, TRACE_MAX = 2_000, 12_000  # characters of an exception's own text and of its traceback


def reward(rew) -> float:
    """`rew` as a float; raises ValueError for what is not one finite real number in float32."""
    if rew is None or isinstance(rew, (str, bytes)) or np.ndim(rew) or not np.isreal(rew):
        raise ValueError(f"the reward is {rew!r}, not a number")
    if not abs(float(rew)) <= REWARD_MAX:
        raise ValueError(f"the reward is {float(rew)}, not finite in float32")
    return float(rew)


def observation(obs, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """`obs` as an array of its space's shape that `dtype` can keep; raises ValueError otherwise."""
    array = np.asarray(obs)
    if array.shape != shape:
        raise ValueError(f"the observation has shape {array.shape}, its space {shape}")
    if array.dtype not in castable(dtype):
        raise ValueError(f"the observation is {array.dtype}, which {dtype} does not keep")
    return array


def nonfinite(rows: np.ndarray, at: int) -> tuple[int, ValueError]:
    """The environment whose number at the flat index `at` of rows [e ...] is not finite; why."""
    e, index = divmod(at, max(1, rows[0].size))
    return e, ValueError(f"observation[{index}] is {rows.reshape(-1)[at]} in float32")


def fault(where: str, field: str, error: BaseException,
          fix: str = "num_workers=0 runs it in this process, under a debugger if you like"):
    """The EnvError for an environment that failed in `field`, with its own traceback as text.

    A Ctrl-C is no fault of the environment's and is raised as it is.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    trace = "".join(traceback.format_exception(error)) if error.__traceback__ else ""
    what = f"{where} failed in {field}: {_words(error)}\n{shortened(trace, TRACE_MAX)}".rstrip()
    return EnvError(what.encode(errors="backslashreplace").decode(), fix)


def shortened(text: str, limit: int) -> str:
    """`text`, or its beginning and its end where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    return f"{text[:limit // 2]}\n[{len(text) - limit} characters left out]\n{text[-(limit // 2):]}"


def _words(error: BaseException) -> str:
    try:
        return shortened(f"{type(error).__name__}: {error}", WORDS_MAX)
    except Exception:  # a user's __str__ may raise anything
        return f"{type(error).__name__}, whose text cannot be had"


def close(envs: list) -> None:
    """Close and forget all of `envs`; what they raise is printed and stops nobody."""
    while envs:
        try:
            envs.pop().close()
        except (Exception, SystemExit):  # a user's close may raise anything
            traceback.print_exc()


def replay(env, seed: int, actions: list, length: int) -> None:
    """Bring `env` to step `length` of the episode `seed`, of which `actions` were taken."""
    if length > REPLAY_LIMIT:
        raise EnvError(f"an environment was interrupted in step {length} of its episode: only"
                       f" {REPLAY_LIMIT} can be played again", "train anew, or with workers")
    env.reset(seed=seed)
    del actions[length:]
    for action in actions:
        env.step(action)


def global_noise() -> tuple[bytes, ...]:
    """The state of the generators that all of a process shares: random's and numpy's."""
    return tuple(map(pickle.dumps, (random.getstate(), np.random.get_state())))


def check_global_noise(before: tuple[bytes, ...], name: str) -> None:
    """Say so, once, where environments have drawn from a shared generator since `before`."""
    drawn = [which for which, was, now in zip(("random", "numpy.random"), before, global_noise())
             if was != now]
    if drawn:
        log.warning("%san environment draws from the global generator of %s: the same seed will not"
                    " give the same run; draw from self.np_random instead", name,
                    " and ".join(drawn))
