"""What an environment's answers must be, and the error that says which of them was not."""

import logging
import pickle
import random
import signal
import sys
import traceback

import numpy as np
from gymnasium.spaces import Tuple

from . import kernels
from .errors import EnvError, Error, InputError
from .observations import Observations, flags
from .spaces import MASK, Store, keeps

REWARD_MAX = float(np.finfo(np.float32).max)
GENERATORS = "random", "numpy.random", "torch"  # that all of a process shares
FLAGS = bool, np.bool_
PLAIN = frozenset({int, float, np.float32, np.float64, np.int32, np.int64})  # fast to check
REPLAY_LIMIT = 100_000  # steps of an episode that can be played again after an interrupt

log = logging.getLogger("fastppo")
ANSWERS = {"step()": "(obs, reward, terminated, truncated, info)", "reset()": "(obs, info)"}
ANSWERED = {2: "obs, info = env.reset()",
            5: "obs, reward, terminated, truncated, info = env.step(action)"}
PASSED_ON = "give what the last predict returned: action, state = policy.predict(obs, state=state)"
IN_MAIN = "--num_workers=0 runs it in the main process, where a breakpoint() in it works"
WORDS_MAX, TRACE_MAX = 2_000, 12_000  # characters of an exception's own text and of its traceback


def reward(rew) -> float:
    """`rew` as a float; raises ValueError for what is not one finite real number in float32."""
    if type(rew) in PLAIN and abs(rew) <= REWARD_MAX:
        return float(rew)
    kind = getattr(getattr(rew, "dtype", None), "kind", "f")  # torch's dtypes have none
    try:
        value = None if isinstance(rew, (str, bytes)) or kind in "cSUmM" or np.ndim(rew) \
            else float(rew)
    except (TypeError, ValueError, RuntimeError):  # as numpy and torch refuse it
        value = None
    if value is None:
        raise ValueError(f"the reward is {rew!r}, not a number")
    if not abs(value) <= REWARD_MAX:
        raise ValueError(f"the reward is {value}, not finite in float32")
    return value


def observation(obs, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """`obs` as an array of its space's shape that `dtype` can keep; raises ValueError otherwise."""
    array = np.asarray(obs)
    if array.shape != shape:
        raise ValueError(f"the observation has shape {array.shape}, its space {shape}")
    if not keeps(dtype, array.dtype):
        raise ValueError(f"the observation is {array.dtype}, which {dtype} does not keep")
    return array


def flag(value, name: str = "terminated or truncated") -> bool:
    """`value` as a bool; raises ValueError for what is none, None above all."""
    if isinstance(value, FLAGS):
        return bool(value)
    if value is None or isinstance(value, (str, bytes)) or np.ndim(value) or value not in (0, 1):
        raise ValueError(f"{name} is {value!r}, not True or False")
    return bool(value)


def batch(obs, seen: Observations, mask=None) -> tuple[np.ndarray, bool]:
    """`obs`, one observation or a batch of any size, as stored rows [b ...]; whether it was one.

    `mask`: the action mask, where it is not in `obs`; True: everything is legal. Raises InputError
    for another shape, and for a dtype that training would refuse.
    """
    whole = isinstance(obs, tuple) and len(obs) in ANSWERED and isinstance(obs[-1], dict)
    if whole and not isinstance(seen.shown, Tuple):
        raise InputError("this is an environment's whole answer, not the observation alone",
                         ANSWERED[len(obs)])
    if seen.mask is None and mask is not None and mask is not True:
        raise InputError("an action mask was given, but the policy has learnt without one",
                         "leave action_mask out")
    if seen.plain:
        return _boxes(obs, seen.store)
    try:
        obs = obs if seen.mask is None or mask is None else seen.whole(obs, mask)
        lead = seen.lead(obs)
        if seen.mask is not None:
            obs = {**obs, MASK: _mask(obs[MASK], (*lead, int(seen.factors.sum())))}
        return (seen.batch(obs, *lead), False) if lead else (seen.rows([obs]), True)
    except InputError:
        raise
    except (ValueError, KeyError, IndexError, TypeError) as error:
        lacks = seen.mask is not None and not (isinstance(obs, dict) and MASK in obs)
        why = "it lacks the action mask with which the policy has learnt" if lacks else error
        raise InputError(f"the observation does not fit the space {seen.space}: {why}",
                         f"policy.predict(obs, {MASK}=info['{MASK}'])" if lacks else
                         "one that its `sample()` could give, or a batch of them") from error


def _mask(mask, shape: tuple[int, ...]) -> np.ndarray:
    """A mask, as environments may give it, as bool of `shape`; InputError for what is none."""
    try:
        return flags(mask, shape[-1], "the action mask", shape[:-1])
    except ValueError as error:
        one = len(shape) == 2 and np.shape(mask) == shape[1:]
        raise InputError(str(error), f"{MASK}=np.broadcast_to(mask, {shape}), if all have the same"
                         if one else f"an array of bool, of shape {shape}") from error


def _boxes(obs, store: Store) -> tuple[np.ndarray, bool]:
    """`batch` for a plain Box."""
    row, dtype = store.shape, np.dtype(store.dtype)
    fix = f"an array of {dtype} and shape {row}, or a batch of them"
    try:
        array = np.asarray(obs)
    except Exception as error:  # a ragged list, a tensor elsewhere, or an object of the user's
        raise InputError(f"the observation is no array: {error}", fix) from error
    single = array.ndim == len(row)
    if array.ndim - len(row) not in (0, 1) or array.shape[array.ndim - len(row):] != row:
        raise InputError(f"an observation of shape {array.shape} does not fit the space's {row}",
                         fix)
    if not keeps(dtype, array.dtype):
        raise InputError(f"the observation is {array.dtype}, which {dtype} does not keep", fix)
    with np.errstate(over="ignore"):
        return np.require(array[None] if single else array, dtype, "CW"), single


def check_rows(rows: np.ndarray, seen: Observations) -> None:
    """Raise InputError for the first stored observation of [b ...] on which nobody can act."""
    if found := unfit(rows, seen):
        row, why = found
        raise InputError(f"{why}, in row {row}", "look where it comes from: training refuses it")


def unfit(rows: np.ndarray, seen: Observations) -> tuple[int, ValueError] | None:
    """(row, why) of the first stored observation of [n ...] on which nobody can act.

    A number of it is not finite, or its mask forbids every action.
    """
    if rows.dtype == np.float32 and (at := kernels.first_nonfinite(rows)) >= 0:
        return nonfinite(rows, at)
    return seen.stuck(rows)


def check_state(state, rows: int, size: int) -> None:
    """Raise InputError for what is no memory of `size` numbers for `rows` observations."""
    if state is None:
        return
    if not size:
        raise InputError("predict was given a state, but the policy has no memory", "leave it out")
    own = isinstance(state, np.ndarray)
    if not own or state.shape != (rows, size) or state.dtype != np.float32:
        told = f"{state.dtype} {list(state.shape)}" if own else f"of type {type(state).__name__}"
        raise InputError(f"the state is {told}, not float32 {[rows, size]}", PASSED_ON)
    if not (finite := np.isfinite(state)).all():
        raise InputError(f"the state has {state[~finite][0]} in row {np.argwhere(~finite)[0, 0]}",
                         PASSED_ON)


def numbers(params):
    """A network's action parameters [b p], a tensor; raises Error for the first row with a NaN."""
    if hasattr(params, "isnan") and params.isnan().any():  # distributions refuse NaN themselves
        row = int(params.isnan().flatten(1).any(1).nonzero()[0, 0])
        raise Error(f"the network's action parameters for row {row} are not numbers (NaN)",
                    "return finite numbers from the model's forward; of a built-in network: train"
                    " it with a lower --lr")
    return params


def nonfinite(rows: np.ndarray, at: int) -> tuple[int, ValueError]:
    """The environment whose number at the flat index `at` of rows [e ...] is not finite; why."""
    e, index = divmod(at, max(1, rows[0].size))
    return e, ValueError(f"observation[{index}] is {rows.reshape(-1)[at]} in float32")


def fault_of(env: int, name: str, seed: int | None, episode: int, step: int, field: str,
             error: BaseException) -> EnvError:
    """The fault of environment `env` of worker `name` ("": the main process) at a step.

    Episodes below 0 are the warm-up's, or, without a seed, no episode at all yet.
    """
    begun = f"seed {seed}, " + (f"episode {episode}" if episode >= 0 else
                                f"warm-up episode {-episode}") + f", step {step}"
    where = f"{name}before its first episode" if seed is None and episode < 0 else name + begun
    alone = "play it alone" + f", from env.reset(seed={seed}) on" * (seed is not None)
    fix = IN_MAIN if name else f"{alone}; or put a breakpoint() where it fails"
    return fault(f"environment {env} ({where})", field, error, fix)


def fault(where: str, field: str, error: BaseException, fix: str = IN_MAIN) -> EnvError:
    """The EnvError for an environment that failed in `field`, with its own traceback as text.

    A Ctrl-C is no fault of the environment's and is raised as it is; in a worker, which ignores
    that signal, it can only be the environment's own.
    """
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        raise error
    fix = _old_api(field, error) or fix
    trace = "".join(traceback.format_exception(error)) if error.__traceback__ else ""
    what = f"{where} failed in {field}: {_words(error)}\n{shortened(trace, TRACE_MAX)}".rstrip()
    return EnvError(what.encode(errors="backslashreplace").decode(), fix)


def _old_api(field: str, error: BaseException) -> str:
    """The fix for an answer of another length than Gymnasium's, which we or its wrappers unpack."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    ours = trace and trace.tb_frame.f_globals.get("__name__", "").startswith(("fastppo", "gymnas"))
    wanted = ANSWERS.get(field)
    if not (wanted and ours and isinstance(error, (ValueError, TypeError))
            and "unpack" in str(error)):
        return ""
    return (f"{field} must return {wanted}; for the old API of gym, before 0.26, there is"
            " shimmy.GymV21CompatibilityV0(env=env)")


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


def global_noise() -> tuple[bytes, ...]:
    """The states of GENERATORS; nothing for torch's while nobody has imported torch."""
    torch = sys.modules.get("torch")
    return (*map(pickle.dumps, (random.getstate(), np.random.get_state())),
            torch.get_rng_state().numpy().tobytes() if torch else b"")


class GlobalNoise:
    """Notices environments that draw from a shared generator, until their first episodes are over.

    Enters in `drawn`, bool [3], from which of GENERATORS. Workers, which have a `name`, leave it to
    the main process to say so: once for all of them.
    """

    def __init__(self, drawn: np.ndarray, name: str):
        self.drawn, self.name, self.before = drawn, name, global_noise()
        drawn.fill(False)

    def listen(self, iteration: int) -> None:
        """A rollout begins; what others drew since the last one is none of its business."""
        if self.before and iteration:
            self.before = global_noise()

    def tell(self, over: bool) -> None:
        """It has ended; `over`: and with it every environment's first episode."""
        if not self.before:
            return
        self.drawn |= [bool(was) and was != is_ for was, is_ in zip(self.before, global_noise())]
        said = not self.name and say_global_noise(self.drawn)
        if over or said:
            self.before = ()


def say_global_noise(drawn: np.ndarray) -> bool:
    """Say which shared generators environments of any process have drawn from, bool [... 3]."""
    names = [which for which, any_ in zip(GENERATORS, drawn.reshape(-1, 3).any(0)) if any_]
    if names:
        log.warning("an environment, or a model of your own, draws from the global generator of %s:"
                    " the same seed will not give the same run; environments have self.np_random"
                    " instead", " and ".join(names))
    return bool(names)
