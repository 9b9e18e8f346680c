"""The bundle of a fault: all that is needed to run an episode again up to the step that failed.

The seed of the run, the environment and its settings, the actions of the episode, the versions, and
the text of the error; no observation.
"""

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastppo.config import Config, default_of
from fastppo.envs.families import is_registered
from fastppo.envs.make import WRAPPING, Factory
from fastppo.errors import CheckpointError, FaultPlace, Set, program, truncate_text
from fastppo.machine.child_process import public_config
from fastppo.machine.file_access import CONTROL_CHARACTERS
from fastppo.runs.facts import fingerprint
from fastppo.runs.tensor_file import join_tree, read_tensor_file, split_tree, write_tensor_file
from fastppo.spaces.observations import ObservationLayout
from fastppo.stepping.environments import Environments, ResetOptions, RunningEpisode
from fastppo.stepping.replay import EpisodeHistory, read_options

BUNDLE = ".bundle"
BUNDLE_FORMAT = "fastppo bundle 1"
ENV_SETTINGS = "env_name", "env_kwargs", "max_episode_steps", *WRAPPING


class CrashBundle(NamedTuple):
    """The contents of a bundle's file."""

    settings: dict[str, Any]  # those of ENV_SETTINGS
    seed: int  # of the run
    place: FaultPlace
    form: str  # of the stored actions, see ActionMapping
    history: EpisodeHistory  # its last action is that of the step that failed
    error: str
    options: ResetOptions


def bundle_name(place: FaultPlace) -> str:
    """The name of the bundle's file."""
    episode = f"episode{place.episode}" if place.episode >= 0 else f"warmup{-place.episode}"
    step = f"step{place.step}" if place.step >= 0 else "reset"
    return f"fault-env{place.env}-{episode}-{step}{BUNDLE}"


def write_bundle(ppo, error: str, place: FaultPlace, path: Path) -> None:
    """Writes the bundle of a fault that has just happened; CheckpointError if that fails."""
    log, (env, number, step) = ppo.collector.snapshots.log, place
    rows = range(env * log.agents, (env + 1) * log.agents)
    start = log.running_now(rows[0])[1]
    history, *others = (log.history(row, RunningEpisode(number, None, start), start + step + 1)
                        for row in rows)
    if history.actions is None:
        raise CheckpointError(f"the episode of environment {env} is too long for a bundle: it has"
                              f" more than {log.limit} steps", Set(replay_limit=10 * log.limit))
    if others:  # of a game; a step has the actions of all agents
        history = history._replace(actions=np.stack([history.actions, *(
            one.actions for one in others)], 1))
    tensors, shown = {}, public_config(ppo.config)
    form = ppo.policy.actions.bounds_map if number >= 0 else "clip"  # the warm-up's
    texts = {"settings": {name: shown[name] for name in ENV_SETTINGS}, "seed": ppo.config.seed,
             "place": list(place), "form": form, "error": error,
             "history": split_tree(history[:-1], "history", tensors),
             "fingerprint": fingerprint(ppo.config.torch_threads),
             "options": log.state.options}
    write_tensor_file(path, BUNDLE_FORMAT, tensors, texts, private=True)


def read_bundle(path: Path) -> CrashBundle:
    """The bundle in a file; CheckpointError if it is missing, damaged or something else."""
    tensors, texts = read_tensor_file(path, BUNDLE_FORMAT)
    try:
        *numbers, actions = join_tree(texts["history"], tensors)
        stored = {name: default_of(name) for name in WRAPPING} | texts["settings"]
        settings = {name: stored[name] for name in ENV_SETTINGS}
        Config(**settings)  # refuses what no run has
        return CrashBundle(settings, int(texts["seed"]), FaultPlace(*map(int, texts["place"])),
                           texts["form"], EpisodeHistory(*map(int, numbers), actions.numpy()),
                           str(texts["error"]).translate(CONTROL_CHARACTERS),
                           read_options(texts["options"]))
    except Exception as error:  # a file may hold anything
        raise CheckpointError(f"{path} holds an invalid bundle: {truncate_text(repr(error), 500)}",
                              "give a bundle that a run has written") from error


class ReplayEnvs(Environments):
    """The environment of a bundle alone; its observations are checked and dropped."""

    def __init__(self, factory: Factory, seed: int, number: int, options: ResetOptions = ()):
        super().__init__([factory], seed, number, name="replay, ")
        self.options, self.first = options, number * self.agents
        self.layout = ObservationLayout(self.envs[0].observation_space, self.envs[0].action_space)

    def receive(self, e: int, obs: Any, info: dict, begins: RunningEpisode | None = None,
                ended: bool = False) -> None:
        """Raises ValueError for an observation that training refuses."""
        for one in obs.values() if self.agents > 1 else [obs]:
            if found := self.layout.unusable(self.layout.rows([one])):
                raise found[1]


def replay_command(bundle: Path, config: Config) -> str:
    """The command that replays a bundle."""
    name, kwargs = config.env_name, public_config(config)["env_kwargs"]
    named = "" if is_registered(name) else \
        f" --env_name={name if ':' in name else 'my_module:MyEnv'}"
    given = f" --env_kwargs={shlex.quote(json.dumps(kwargs))}" if kwargs else ""
    return f"{program()} replay {bundle}{named}{given}"
