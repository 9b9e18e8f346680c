"""The error for an environment that failed: where, in what, with its traceback."""

import logging
import signal
import traceback

from fastppo.errors import EnvError

log = logging.getLogger("fastppo")
ANSWERS = {"step()": "(obs, reward, terminated, truncated, info)", "reset()": "(obs, info)"}
IN_MAIN = "--num_workers=0 runs it in the main process, where a breakpoint() in it works"
WORDS_MAX, TRACE_MAX = 2_000, 12_000  # characters of an exception's own text and of its traceback


def env_error_at(env: int, name: str, seed: int | None, episode: int, step: int, field: str,
             error: BaseException) -> EnvError:
    """The fault of environment `env` of worker `name` ("": the main process) at a step.

    Episodes below 0 are the warm-up's, or, without a seed, no episode at all yet.
    """
    begun = f"seed {seed}, " + (f"episode {episode}" if episode >= 0 else
                                f"warm-up episode {-episode}") + f", step {step}"
    where = f"{name}before its first episode" if seed is None and episode < 0 else name + begun
    alone = "play it alone" + f", from env.reset(seed={seed}) on" * (seed is not None)
    fix = IN_MAIN if name else f"{alone}; or put a breakpoint() where it fails"
    return env_error(f"environment {env} ({where})", field, error, fix)


def env_error(where: str, field: str, error: BaseException, fix: str = IN_MAIN) -> EnvError:
    """The EnvError for an environment that failed in `field`, with its own traceback as text.

    A Ctrl-C is no fault of the environment's and is raised as it is; in a worker, which ignores
    that signal, it can only be the environment's own.
    """
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        raise error
    fix = _old_api(field, error) or fix
    trace = "".join(traceback.format_exception(error)) if error.__traceback__ else ""
    what = f"{where} failed in {field}: {_words(error)}\n{truncate_text(trace, TRACE_MAX)}".rstrip()
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


def truncate_text(text: str, limit: int) -> str:
    """`text`, or its beginning and its end where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    return f"{text[:limit // 2]}\n[{len(text) - limit} characters left out]\n{text[-(limit // 2):]}"


def _words(error: BaseException) -> str:
    try:
        return truncate_text(f"{type(error).__name__}: {error}", WORDS_MAX)
    except Exception:  # a user's __str__ may raise anything
        return f"{type(error).__name__}, whose text cannot be had"


def close_all(envs: list) -> None:
    """Close and forget all of `envs`; what they raise is printed and stops nobody."""
    while envs:
        try:
            envs.pop().close()
        except (Exception, SystemExit):  # a user's close may raise anything
            traceback.print_exc()
