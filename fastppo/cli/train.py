"""The verb train: learns, saves, evaluates, and prints the results."""

import json
import os
import secrets
import shlex
import sys
import tempfile
import time
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Iterator, Sequence

from fastppo import __version__
from fastppo.cli.command_line import Request, read
from fastppo.cli.eval import result_numbers
from fastppo.cli.interrupts import Interrupts, Stop
from fastppo.cli.run_folder import choose_run, link_latest, new_folder, write_start_files
from fastppo.cli.seeds import train_seeds
from fastppo.errors import CheckpointError, Error, flag, program
from fastppo.machine import limits
from fastppo.machine.child_process import without_secrets
from fastppo.machine.file_access import read_json, write_bytes
from fastppo.machine.stderr import note, show_status, status_while
from fastppo.runs.folder import checkpoints_in
from fastppo.settings.known_names import ASIDE, MEAN_RETURN, MODEL_FILE, SUMMARY_FILE
from fastppo.settings.values import return_text
from fastppo.terminal.banner import banner, folded
from fastppo.trainer.setting_texts import naming_preset, settings_text, sources_of

PROCESS_START = time.monotonic()


def train_verb(argv: Sequence[str], interrupts: Interrupts) -> None:
    """Trains with the settings of `argv`, saves and evaluates, in the folder of the run."""
    request = read(argv)
    with naming_preset(request.config.env_name, request.given):
        train_request(argv, request, interrupts)


def train_request(argv: Sequence[str], request: Request, interrupts: Interrupts) -> None:
    """Trains as requested; `argv` is the command line."""
    further = limits.rank_of_process() > 0
    if request.options.show_config and not further:
        choose_run(request.options, request.config, 0)  # for its errors
        print(shown_config(request))
        return
    if request.options.seeds is not None and not further:
        train_seeds(argv, request, interrupts)
        return
    interrupts.stop_now = lambda: not further  # these stop after the same iteration as the first
    with opened_run(request) as (ppo, folder, resumed):
        if further:
            if ppo.ranks.share(None):
                ppo.learn(callbacks=[lambda *_: not interrupts.signum])
            return
        from fastppo.evaluation.evaluator import evaluator_of
        if ppo.config.learner != "kernel":
            limits.keep_freed_memory()
        link_latest(folder)
        announce(ppo, *banner(ppo, request, folder, resumed))
        if not ppo.ranks.share(not is_complete(ppo, folder)):
            print(f"complete  {ppo.step:,} of {ppo.total:,} steps   {folder / MODEL_FILE}")
            return
        write_start_files(folder, argv, ppo.config)
        sinks = list(ppo.sinks)
        summary = learn_and_save(ppo, folder, interrupts, request.options.video)
        if ppo.config.eval_episodes:
            final_evaluation(ppo, folder, summary, evaluator_of(sinks))
        try:
            print_pictures(ppo, folder, request.options.video)
        except Stop:
            show_status("")
            print(f"complete  without its curve: {program()} plot {shlex.quote(str(folder))}",
                  flush=True)
            raise
    if any(getattr(sink, "hung", False) for sink in sinks):
        sys.stdout.flush()
        os._exit(0)  # a normal exit would wait for wandb again


def shown_config(request: Request) -> str:
    """All settings of a new run as TOML, those that are resolved for this machine included."""
    from fastppo.trainer.given_settings import checked_source
    with closing(checked_source(None, request.in_a_folder)) as source:
        config = source.resolved.replace(run_dir=request.config.run_dir)
    if request.config.seed is None:
        config = config.replace(seed=None)
    sources = sources_of(request.given, request.changes, request.preset, config)
    return settings_text(config.replace(env_kwargs=without_secrets(config.env_kwargs)), sources)


@contextmanager
def opened_run(request: Request) -> Iterator[tuple[Any, Path, bool]]:
    """(trainer, folder, whether it is resumed) of the run that a command line asks for.

    Until the trainer has locked the folder another process may still write a checkpoint into it,
    such as the run that a supervisor has just ended. Then the folder is looked at again.
    A further process of torchrun's has the run of the first one, which reports, and no folder.
    """
    options, config, further = request.options, request.config, limits.rank_of_process() > 0
    progress = "none" if further else "live" if config.progress == "auto" else config.progress
    drawn, opened, ranks = secrets.randbits(31), False, None
    while not opened:
        run = None if further else choose_run(options, config, drawn)
        with new_folder(run.folder, run.name, options.resume is not None) if run \
                else nullcontext(Path()) as folder:
            changes = {"progress": progress, "run_dir": str(folder)}
            changes |= {"run_dir": None, "logger": None} if further else {}
            start = request.given | changes
            known = [] if further else checkpoints_in(folder)
            from fastppo.trainer.given_settings import checked_source, joined_ranks
            ranks = ranks or joined_ranks(config)
            place, seed = ranks.share(run and (run.place, run.seed))
            text = f"fastppo {__version__}   {place or config.env_name}   starting"
            with status_while(text) if progress != "none" else nullcontext():
                if place is None:  # settings that do not fit are refused without torch
                    source = checked_source(None, config.replace(seed=seed, **changes))
                    start = {"env": source, "init_from": options.init_from}
                from fastppo.ppo import PPO
                ppo = PPO(checkpoint=place, **start)
            with ppo:
                opened = ranks.share(further or checkpoints_in(folder) == known and bool(
                    place or not known))
                if opened:
                    yield ppo, folder, place is not None


def is_complete(ppo, folder: Path) -> bool:
    """True for a resumed run that has nothing left to do: trained, saved and evaluated."""
    try:
        summary = read_json(folder / SUMMARY_FILE)
        evaluated = summary["evaluation"] is not None or not ppo.config.eval_episodes
    except (OSError, ValueError, LookupError, TypeError):  # not there, or not ours
        return False
    return evaluated and (folder / MODEL_FILE).exists() and ppo.step >= ppo.total


def learn_and_save(ppo, folder: Path, interrupts: Interrupts, video: bool) -> dict[str, Any]:
    """Learns, and saves the policy even after an error or a signal; returns the run's summary.

    A signal stops at once while steps are collected, evaluated or recorded, else after the
    iteration; an update that takes long is undone.
    """
    from fastppo.trainer.run import shorten_waits
    started, ended, begun = time.monotonic(), "error", ppo.step
    aside = -ppo.clock.not_training
    waits = ("collect", *ASIDE) if ppo.ranks.size == 1 else ASIDE
    interrupts.stop_now = lambda: ppo.clock.part in waits
    interrupts.stop_late = lambda: ppo.clock.part in ("update", "collect", *ASIDE)
    say = interrupts.say
    try:
        interrupts.say = next((sink.say for sink in ppo.sinks if hasattr(sink, "say")), say)
        ppo.learn(callbacks=[lambda *_: not interrupts.signum])
        ended = "signal" if ppo.ranks.size > 1 and ppo.step < ppo.total else "done"  # of others
    except Stop:
        pass
    finally:
        aside += ppo.clock.not_training
        seconds = time.monotonic() - started - aside
        interrupts.stop_now = interrupts.stop_late = lambda: False
        interrupts.say = say
        ended = "signal" if interrupts.signum else ended
        model = save_state(ppo, folder, ended) if ppo.learner.last_iteration >= 0 else None
        summary = make_summary(ppo, ended, started - PROCESS_START, seconds, begun, model)
        write_summary(folder, summary)
        if ended == "signal":
            shorten_waits(ppo.sinks)
        ppo.close()
        print(*folded(ending_lines(summary, model)), sep="\n", flush=True)
        announce(ppo, *folded(best_line(summary, folder)))
        if ended != "done":
            print_resume_line(ppo, folder, video)
        interrupts.stop_now = lambda: True
    if interrupts.signum:
        raise Stop
    return summary


def print_resume_line(ppo, folder: Path, video: bool) -> None:
    """Prints the whole command that resumes a run, if it has a checkpoint."""
    from fastppo.runs.checkpoint import checkpointer_of
    from fastppo.trainer.given_settings import given_again
    if checkpointer_of(ppo.sinks).newest:
        again = given_again(ppo) | {"worker_env": ppo.config.worker_env}
        flags = [flag(name, value) for name, value in again.items() if value] + ["--video"] * video
        print("resume   ", program(), f"--resume={shlex.quote(str(folder))}", *flags, flush=True)


def save_state(ppo, folder: Path, ended: str) -> Path | None:
    """Saves the policy, and a checkpoint unless that is done; returns the policy's file.

    After an error of the device its memory may be lost; then the policy has the weights that were
    copied last, and the last checkpoint is what there is.
    """
    from fastppo.runs.checkpoint import checkpointer_of
    checkpointer = checkpointer_of(ppo.sinks)
    try:
        model = save_model(ppo, folder)
    except RuntimeError as error:
        return checkpointer.save_copied(ppo, error)
    checkpointer.copied = None  # older than the policy that is saved
    if ended != "done":
        try:
            checkpointer.write(ppo)
        except RuntimeError as error:
            note(f"no checkpoint is written: {str(error).partition(chr(10))[0]}")
    return model


def save_model(ppo, folder: Path) -> Path:
    """Saves the policy in the run's folder, or else in a new temporary one; returns the file."""
    try:
        ppo.save(folder / MODEL_FILE)
        return folder / MODEL_FILE
    except CheckpointError as error:  # a full disk must not cost a run
        other = Path(tempfile.mkdtemp(prefix="fastppo-")) / MODEL_FILE
        note(f"{error.what}; the policy is in {other}")
        ppo.save(other)
        return other


def final_evaluation(ppo, folder: Path, summary: dict[str, Any], evaluator) -> None:
    """Evaluates the final policy, unless `evaluator` has just done it, and prints the return.

    A note says if that fails: the run has ended well.
    """
    episodes = ppo.config.eval_episodes
    try:
        known = evaluator and evaluator.latest[0] == ppo.step
        found = evaluator.latest[1] if known else ppo.evaluate(episodes)
    except Stop:
        print(f"stopped   during the evaluation   {folder / MODEL_FILE}", flush=True)
        raise
    except Error as error:
        note(f"the evaluation failed: {error.shell}")
        return
    numbers = result_numbers(found)
    result = {name: numbers[name] for name in ("mean", "std", "ci95", "episodes", "length")}
    write_summary(folder, summary | {"evaluation": result})
    print(f"evaluation return {found}", flush=True)


def print_pictures(ppo, folder: Path, video: bool) -> None:
    """Draws the learning curve, records a video if one is asked for, and prints the files.

    A note says if that fails: the run has ended well.
    """
    from fastppo.reports.curves import save_curve
    from fastppo.runs.policy_file import has_text
    from fastppo.trainer.given_settings import given_again
    from fastppo.video.recorder import best_format, record_episode
    try:
        if ppo.episodes.count:
            announce(ppo, f"curve     {save_curve(folder)}")
        if video:
            shows = ppo.config.progress != "none"
            with status_while("recording an episode") if shows else nullcontext():
                path = record_episode(ppo, folder / f"video{best_format()}")
            announce(ppo, f"video     {path}")
    except Error as error:
        note(error.shell)
    named = given_again(ppo)
    if "eval_env" in named:  # it is played in
        named["env_name"] = named.pop("eval_env")
    elif has_text(ppo.config.env_kwargs):  # which a file's reader does not use
        named["env_kwargs"] = without_secrets(ppo.config.env_kwargs)
    flags = [flag(name, text) for name, text in named.items()]
    modes = ppo.source.metadata.get("render_modes", ())
    if "rgb_array" not in modes:
        flags.append(flag("view", "network"))
    elif limits.has_display() and "human" not in modes:
        flags.append(flag("output", str(folder / f"video{best_format()}")))
    announce(ppo, " ".join([f"next      {program()} play {shlex.quote(str(folder))}", *flags]))


def announce(ppo, *lines: str) -> None:
    """Prints lines, unless progress=none asks for the result alone."""
    if lines and ppo.config.progress != "none":
        print(*lines, sep="\n", flush=True)


def make_summary(ppo, ended: str, startup: float, seconds: float, begun: int, model: Path | None
                 ) -> dict[str, Any]:
    """The contents of summary.json; `startup` and `seconds` of training in seconds.

    `begun` is the step at which this process began. The live view's mean speed is computed alike.
    """
    from fastppo.collect import WARMUP_STEPS
    from fastppo.evaluation.evaluator import evaluator_of
    from fastppo.machine import kernels
    from fastppo.runs.facts import fingerprint
    config, recent, evaluator = ppo.config, ppo.episodes.stats(), evaluator_of(ppo.sinks)
    best = evaluator and evaluator.best
    rows = config.rows * min(config.num_steps, WARMUP_STEPS)
    return {"env_name": config.env_name, "seed": config.seed, "ended": ended,
            "steps": ppo.complete_steps, "resumed_at": begun,
            "iterations": ppo.learner.last_iteration + 1, "episodes": ppo.episodes.count,
            "seconds": seconds, "startup_seconds": startup,
            "steps_per_second": (ppo.complete_steps - begun) / seconds,
            "warmup_steps": rows * ppo.policy.observer.norm,
            "episodic_return": recent.get(MEAN_RETURN),
            "faults": {name: x for name, x in recent.items() if name.startswith("faults/")},
            "evaluation": None, "best": best and best._asdict(),
            "model": model and model.name,
            "kernels": kernels.backend(), "version": __version__,
            "fingerprint": fingerprint(config.torch_threads)}


def ending_lines(summary: dict[str, Any], model: Path | None) -> list[str]:
    """How training ended, and the policy's file."""
    word = {"done": "trained", "signal": "stopped", "error": "failed"}[summary["ended"]]
    faults = "".join(f", {count:.0f} {name.partition('/')[2]}"
                     for name, count in summary["faults"].items())
    place = f"{'to' if word == 'trained' else 'at'} step {summary['steps']:,}"
    if model is None:
        return [f"{word:9} before the first iteration was complete: there is no model"
                if not summary["iterations"] else f"{word:9} {place}"]
    begun = summary["resumed_at"]
    place = f"{place}: " * bool(begun or word != "trained")
    return [f"{word:9} {place}{summary['steps'] - begun:,} steps in {summary['seconds']:.1f} s"
            f" after {summary['startup_seconds']:.1f} s of start-up,"
            f" {summary['steps_per_second']:,.0f} steps/s{faults}", f"saved     {model}"]


def best_line(summary: dict[str, Any], folder: Path) -> list[str]:
    """The line about the best evaluation during training, if there was one."""
    best = summary["best"]
    return [f"best      evaluation {return_text(best['mean'])} at step {best['step']:,}"
            f"   {folder / best['model']}"] if best and best["model"] else []


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Writes the summary to a run's folder; a note says if that fails."""
    path = folder / SUMMARY_FILE
    try:
        write_bytes(path, f"{json.dumps(summary, indent=2)}\n".encode())
    except OSError as error:
        note(f"cannot write {path}: {error.strerror}")
