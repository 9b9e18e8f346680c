"""The verb: fastppo play MODEL|RUN [--episodes=1] [--view=env|network|both] [--output=FILE]."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Sequence

from fastppo.cli.command_line import words_and_options
from fastppo.cli.eval import PolicyOptions, check_game, loaded, policy_file
from fastppo.cli.interrupts import Interrupts, Stop, write_line
from fastppo.errors import ConfigError, Omit
from fastppo.machine import limits
from fastppo.machine.file_access import free_path
from fastppo.machine.stderr import StatusLine, status_while
from fastppo.settings.values import check_episodes, return_text


@dataclass(frozen=True)
class Play(PolicyOptions):
    """Show a trained policy: in a window if there is a display, else as a video.

      {0} play runs/latest
      {0} play runs/latest --view=both --output=landing.mp4
      {0} play runs/latest --view=network --output=seen.png

    MODEL is the file of a policy, RUN the folder of a run. The video is video.mp4
    (pip install "fastppo[video]") or else video.webp, in the folder of the run, or
    in this folder for a single file; if there is one, video-2.mp4 and so on. It has
    at most 10,000 frames. A .png is the last frame alone.
    """

    episodes: int = 1
    """Number of episodes"""
    output: str | None = None
    """File to write or replace, .mp4, .webp or .png, instead of a window; none: see above"""
    view: Literal["env", "network", "both"] = "env"
    """Picture: the environment, the network's inputs and outputs, or both; only a video has the
    network's"""
    person: bool = False
    """Play a game with actions that are numbers yourself, in the terminal, against the policy: you
    are X"""
    fps: int | None = None
    """Frames per second of the video; none: the environment's own rate"""
    caption: bool = True
    """Write the environment, episode, step and return below the frames of a video"""


def play_verb(argv: Sequence[str], interrupts: Interrupts) -> None:
    """Shows the policy that `argv` names, and prints the return of each episode."""
    (word,), options = words_and_options(argv, Play)
    if options.fps is not None and not 1 <= options.fps <= 240:
        raise ConfigError(f"fps is {options.fps}, but must be from 1 to 240", Omit("fps"))
    check_episodes(options.episodes)
    if not limits.has_display():
        os.environ.setdefault("MUJOCO_GL", "egl")  # dm_control reads it when it is imported
    place = Path(word)
    path = policy_file(place, options)
    output = None if options.person or wants_window(options) else output_file(place, options)
    policy, factories, seed, text = loaded(path, options)
    print(text, flush=True)
    if options.person:
        play_person(policy, factories[0], seed, options)
    elif output is None:
        show_window(policy, factories[0], seed, options)
    else:
        write_video(policy, factories[0], seed, options, output, interrupts)


def wants_window(options: Play) -> bool:
    """True if there is a display and no option that only a video has."""
    return limits.has_display() and options.output is None and options.view == "env" \
        and options.fps is None


def output_file(place: Path, options: Play) -> Path:
    """The file of the video, a new one unless it is given; ConfigError if it cannot be written."""
    from fastppo.video.recorder import best_format, check_video_path
    folder = place if place.is_dir() else Path()
    path = Path(options.output or folder / f"video{best_format()}")
    path = free_path(path) if path.exists() and not options.output else path
    check_video_path(path)
    return path


def show_window(policy, factory, seed: int, options: Play) -> None:
    """Plays the episodes in the environment's own window; raises EnvError if there can be none."""
    from fastppo.evaluation.evaluate import WINDOW
    from fastppo.video.frames import watched_env, watched_moments
    with watched_env(policy, factory, seed, WINDOW) as envs:
        for moment in watched_moments(envs, options.episodes, not options.stochastic):
            if moment.over:
                print_end(moment)


def write_video(policy, factory, seed: int, options: Play, path: Path, interrupts: Interrupts
                ) -> None:
    """Records the episodes, and prints a line on the file; after a signal, what was recorded."""
    from fastppo.video.recorder import FRAME_LIMIT, STILL_FORMAT, record_video
    frames = 0
    interrupts.stop_now, interrupts.stop_late = lambda: False, lambda: True
    interrupts.say = lambda text: write_line("stopping after this frame; another signal ends the"
                                             " process at once")
    with StatusLine() as status:
        def report(moment) -> bool:
            nonlocal frames
            frames += 1
            status(f"recorded {frames:,} frames")
            if moment.over:
                status.clear()
                print_end(moment)
            if interrupts.signum:
                interrupts.stop_late = lambda: False  # encoding may take longer than a frame
            return bool(interrupts.signum)

        record_video(policy, factory, path, seed, options.episodes, not options.stochastic,
                     options.view, options.caption, options.fps, report, encoding=lambda:
                     status_while(f"encoding {frames:,} frames for {path}"))
    cut = ", the most that a video has" * (frames == FRAME_LIMIT)
    kind = "picture" if path.suffix.lower() == STILL_FORMAT else "video"
    print(f"{kind:<9} {path}   {frames:,} frames{cut}", flush=True)
    if interrupts.signum:
        raise Stop


def play_person(policy, factory, seed: int, options: Play) -> None:
    """Plays the episodes at the terminal, each with another agent as the policy's."""
    from gymnasium.spaces import Discrete

    from fastppo.evaluation.evaluate import evaluate
    from fastppo.evaluation.match import MatchEnvs, Person
    check_game(policy)
    if not isinstance(policy.act_space, Discrete):
        raise ConfigError(f"the actions of {factory.name} are no numbers, but of the space"
                          f" {policy.act_space}", Omit("person"))
    found = evaluate(policy, [factory], seed, options.episodes, not options.stochastic,
                     make=partial(MatchEnvs, opponent=Person(policy.observer.layout, seed)))
    for score in found.scores:
        print({1: "the policy has won", 0.5: "a draw", 0: "you have won"}[score], flush=True)


def print_end(moment) -> None:
    """Prints the line of an episode that has ended."""
    print(f"episode   {moment.episode + 1}: return {return_text(moment.total)},"
          f" {moment.step:,} steps", flush=True)
