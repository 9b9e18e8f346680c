"""The verb: fastppo replay BUNDLE [--env_name=module:MyEnv] [--env_kwargs=JSON] [--debugger]."""

import bdb
import pdb
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Sequence

from fastppo.cli.command_line import words_and_options
from fastppo.errors import ConfigError, EnvError
from fastppo.machine.stderr import note, status_while
from fastppo.runs.folder import check_file


@dataclass(frozen=True)
class Replay:
    """Run the episode of a fault again, in this process, up to the step that failed.

      {0} replay runs/latest/fault-env3-episode12-step57.bundle

    BUNDLE is a file fault-*.bundle in the folder of a run. The environment is reset with the seed
    of the episode and takes its actions. It ends with 0 if the step fails again, and with 1 if it
    does not: then the cause was outside, such as a lack of memory, or the environment is no
    function of its seed and actions.
    """

    OPERANDS = "BUNDLE"

    env_name: str | None = None
    """Environment, an id or `module:callable`; none: the one in the file if that is an id of
    Gymnasium's, because code that a file names is never imported"""
    env_kwargs: dict[str, Any] | None = None
    """Arguments of the environment; none: those in the file, if they are numbers"""
    debugger: bool = False
    """Take the last step under Python's debugger, which also starts where the step raises"""


def replay_verb(argv: Sequence[str], interrupts) -> None:
    """Replays the bundle that `argv` names; SystemExit(1) if nothing fails."""
    (word,), options = words_and_options(argv, Replay)
    path = Path(word)
    check_file(path, "bundle")
    with status_while(f"loading {path}"):
        from fastppo.runs.crash_bundle import read_bundle
        bundle = read_bundle(path)
        envs, to_env = make_environment(bundle, options, path)
    print(f"fault     {indented(bundle.error)}", flush=True)
    try:
        play(envs, to_env, bundle, options.debugger)
    except EnvError as error:
        print(f"again     {indented(error.what)}", flush=True)
    else:
        print("result    nothing has failed: the cause was outside of the environment, or it is no"
              " function of its seed and actions")
        raise SystemExit(1)
    finally:
        envs.close()


def play(envs, to_env, bundle, debugger: bool) -> None:
    """Takes the steps of a bundle's episode; EnvError if the environment fails."""
    from fastppo.envs.faults import episode_text
    from fastppo.stepping.replay import replay_episode
    place, history = bundle.place, bundle.history
    begun, steps = time.monotonic(), len(history.actions) - (place.step >= 0)
    replay_episode(envs, 0, history._replace(actions=history.actions[:steps]), to_env)
    seed, seconds = envs.running[0].seed, time.monotonic() - begun
    print(f"replay    environment {place.env}, {episode_text(seed, place.episode)}: {steps} steps"
          f" in {seconds:.1f} s", flush=True)
    if place.step < 0:
        return
    action, envs.now = to_env(history.actions[steps:])[0], envs.running[0].start + place.step
    print(f"step      {place.step}, with the action {action}", flush=True)
    inner = envs.envs[0].unwrapped
    if debugger:
        inner.step = debugged(inner.step)
    try:
        envs.take_step(0, action)
    except EnvError as error:
        if isinstance(error.__cause__, bdb.BdbQuit):
            raise SystemExit("stopped in the debugger") from None
        if debugger and error.__cause__:
            pdb.post_mortem(error.__cause__.__traceback__)
        raise


def debugged(step: Callable) -> Callable:
    """`step` under Python's debugger, which begins in its first line; BdbQuit where that ends."""
    def run(action: Any) -> Any:
        answer = pdb.runcall(step, action)
        if answer is None:
            raise bdb.BdbQuit
        return answer
    return run


def make_environment(bundle, options: Replay, path: Path) -> tuple[Any, Callable]:
    """(the environment of a bundle, as Environments; its stored actions as its own)."""
    from fastppo.envs.families import check_registered
    from fastppo.envs.make import make_factory, wrapping
    from fastppo.runs.crash_bundle import ReplayEnvs
    from fastppo.runs.policy_file import stored_arguments
    from fastppo.spaces.actions import ActionMapping
    stored = bundle.settings
    if options.env_name is None:
        check_registered(stored["env_name"], path)
    elif stored["env_name"].rpartition(":")[2] != options.env_name.rpartition(":")[2]:
        note(f"the fault was in {stored['env_name']}, and {options.env_name} is run in its place")
    kwargs = options.env_kwargs
    if kwargs is None:
        kwargs = stored_arguments(stored["env_name"], stored["env_kwargs"])
    factory = make_factory(options.env_name or stored["env_name"], stored["max_episode_steps"],
                           kwargs, **wrapping(stored))
    envs = ReplayEnvs(factory, bundle.seed, bundle.place.env, bundle.options)
    actions, taken = ActionMapping(envs.envs[0].action_space, bundle.form), bundle.history.actions
    agents = envs.agents
    shape = (agents, *actions.store.shape)[agents == 1:]
    if (taken.dtype, taken.shape[1:]) != (actions.store.dtype, shape):
        envs.close()
        raise ConfigError(f"the actions in {path}, {taken.dtype} {taken.shape[1:]}, are not of the"
                          f" space {actions.space}", "give the environment of the run")
    return envs, actions.to_env(agents)


def indented(text: str) -> str:
    """A text of several lines, the later ones below the first."""
    return text.replace("\n", "\n          ")
