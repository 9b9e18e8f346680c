"""The option --seeds of training: several seeds side by side, then a table and a picture."""

import os
import re
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple, Sequence

from fastppo.cli.command_line import Request, flag_of_each_word
from fastppo.cli.interrupts import Interrupts, Stop
from fastppo.cli.run_folder import check_empty, choose_run, new_folder
from fastppo.errors import ConfigError, Omit, program
from fastppo.machine import limits
from fastppo.machine.child_process import start_command, stop_command
from fastppo.machine.stderr import StatusLine, note
from fastppo.settings.known_names import MEAN_RETURN, METRICS_FILE, OUTPUT_FILE, SUMMARY_FILE
from fastppo.settings.values import return_text

MOST_SEEDS = 1_000
POLL_SECONDS = 0.1  # between looks at the processes
LAST_LINES = 12  # of a failed run's output


class SeedRun(NamedTuple):
    """The run of one seed, in a process."""

    seed: int
    folder: Path
    process: Popen[bytes]
    begun: float = 0.0  # monotonic


def train_seeds(argv: Sequence[str], request: Request, interrupts: Interrupts) -> None:
    """Trains with each of --seeds in a process of its own, then prints and draws the results.

    `argv` are the words of the `request`. Raises SystemExit if a seed has failed, ConfigError for
    options that contradict each other.
    """
    seeds, cores = chosen_seeds(request), limits.usable_cores()
    at_once = min(len(seeds), cores)
    words = [word for name, word in flag_of_each_word(argv) if name not in (
        "seeds", "name", "run_dir")]
    words += settings_of_each(request, cores // at_once)
    interrupts.stop_now = lambda: False  # run_seeds looks at the signal
    print(f"seeds     {len(seeds)}, {at_once} at a time", flush=True)
    runs = run_seeds(request, words, seeds, at_once, interrupts)
    trained = [run for run in runs if run.process.returncode == 0]
    if trained:
        print("\n".join(table_lines(trained)), flush=True)
    if interrupts.signum:
        print("".join(f"{line}\n" for run in runs for line in last_lines(run)
                      if line.startswith("resume ")), end="", flush=True)
        raise Stop
    if trained:
        draw_seeds(request, trained)
    if codes := {run.process.returncode for run in runs} - {0}:
        raise SystemExit(2 if codes == {2} and not trained else 1)


def chosen_seeds(request: Request) -> list[int]:
    """The seeds that a command asks for; ConfigError if other options contradict them."""
    from fastppo.trainer.given_settings import checked_source
    if limits.rank_count() > 1:
        raise ConfigError("--seeds starts processes itself, and torchrun has started this one",
                          (Omit("seeds"), "run it without torchrun"))
    if "seed" in request.given:
        raise ConfigError("--seed and --seeds both choose seeds", (Omit("seed"), Omit("seeds")))
    if request.options.resume not in (None, "auto"):
        raise ConfigError("--resume continues one run, and --seeds are several",
                          (Omit("seeds"), "--resume=auto with the --name or --run_dir of the runs"))
    # What a single run would refuse.
    choose_run(request.options, request.config, 0)
    checked_source(None, request.in_a_folder).close()
    if os.name == "nt":
        raise ConfigError("--seeds needs Linux or macOS", "give a command for each --seed")
    seeds, folder = parse_seeds(request.options.seeds), request.config.run_dir
    if folder and request.options.resume is None:
        for seed in seeds:
            check_empty(Path(folder, str(seed)), Path(folder))
    return seeds


def parse_seeds(text: str) -> list[int]:
    """The seeds in a text such as 1..5 or 1,2,7, each once; ConfigError if it is something else."""
    seeds: dict[int, None] = {}
    for part in re.split(r"[,\s]+", text.strip()):
        found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", part)
        numbers = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not 0 < len(numbers) <= MOST_SEEDS - len(seeds):
            raise ConfigError(f'seeds is "{text}", but must be at most {MOST_SEEDS:,} numbers, such'
                              " as 1,2,7 or 1..5")
        seeds |= dict.fromkeys(numbers)
    return [*seeds]


def settings_of_each(request: Request, cores: int) -> list[str]:
    """The settings that each seed's command has for its share of the cores, unless given."""
    from fastppo.trainer.rules import can_start_workers, needs_workers
    flags, given = ["--progress=lines"], request.given  # into its output.txt
    if "num_workers" not in given and request.config.vec in ("auto", "workers"):
        some = can_start_workers() and (cores > 1 or needs_workers(request.config))
        flags.append(f"--num_workers={cores if some else 0}")
    if cores == 1 and not {"update_threads", "torch_threads"} & {*given}:
        flags.append("--update_threads=1")
    return flags


def run_seeds(request: Request, words: Sequence[str], seeds: Sequence[int], at_once: int,
              interrupts: Interrupts) -> list[SeedRun]:
    """Runs the command `words` for each seed, `at_once` at a time; returns the runs, all ended.

    A signal is passed on to them once. If anything fails here, they are stopped.
    """
    waiting, running, runs, sent = [*seeds], [], [], 0
    with ExitStack() as stack, StatusLine() as line:
        try:
            while running or waiting and not interrupts.signum:
                while waiting and len(running) < at_once and not interrupts.signum:
                    runs.append(started(request, words, waiting.pop(0), stack))
                    running.append(runs[-1])
                if interrupts.signum and not sent:
                    sent = interrupts.signum
                    for run in running:
                        run.process.send_signal(sent)
                time.sleep(POLL_SECONDS)
                for run in [run for run in running if run.process.poll() is not None]:
                    running.remove(run)
                    stop_command(run.process)
                    line.clear()
                    print_seed_end(run)
                if line.is_due and request.config.progress != "none":
                    line("   |   ".join(map(state_text, running)))
        finally:
            for run in running:  # all at once, before each is waited for
                run.process.terminate()
    return runs


def print_seed_end(run: SeedRun) -> None:
    """Prints that a run is done, or has failed, with the last lines of its output."""
    if not run.process.returncode:
        print(f"seed {run.seed}   done, {time.monotonic() - run.begun:.0f} s", flush=True)
    else:
        print(f"seed {run.seed} failed with exit code {run.process.returncode}:"
              f" {run.folder / OUTPUT_FILE}; the end of its output:", *last_lines(run),
              sep="\n  ", file=sys.stderr, flush=True)


def started(request: Request, words: Sequence[str], seed: int, stack: ExitStack) -> SeedRun:
    """The run of a seed, in a new folder or that of the run to resume; `stack` stops it at the end.
    """
    options, config = request.options, request.config.replace(seed=seed)
    if config.run_dir:
        config = config.replace(run_dir=os.path.join(config.run_dir, str(seed)))
    chosen = choose_run(options, config, seed)
    folder = stack.enter_context(new_folder(chosen.folder, chosen.name, options.resume == "auto"))
    process = start_command([*words, f"--seed={seed}", f"--run_dir={folder}"],
                            folder / OUTPUT_FILE)
    stack.callback(stop_command, process)
    return SeedRun(seed, folder, process, time.monotonic())


def state_text(run: SeedRun) -> str:
    """The seed of a run, and of its last line of progress share and return: 42% return 148.3."""
    steps = [line.split() for line in last_lines(run) if line.startswith("step ")]
    now = " ".join(steps[-1][2:5]) if steps else f"starting, {time.monotonic() - run.begun:.0f} s"
    return f"seed {run.seed}   {now}"


def last_lines(run: SeedRun) -> list[str]:
    """The last lines of what the process of a run has printed."""
    text = (run.folder / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace")
    return text.splitlines()[-LAST_LINES:]


def table_lines(runs: Sequence[SeedRun]) -> list[str]:
    """A table with the score of each run, and the mean over them with its 95 % interval."""
    from fastppo.reports.run_table import mean_and_half, read_object
    found = [read_object(run.folder / SUMMARY_FILE) for run in runs]
    evaluated = all(one.get("evaluation") for one in found)
    scores = [one["evaluation"]["mean"] if evaluated else one.get("episodic_return")
              for one in found]
    known = [score for score in scores if score is not None]
    scale = max(map(abs, known), default=0.0)
    lines = [f"seed {'evaluation' if evaluated else 'last return':>12} {'training s':>11}  folder"]
    for run, one, score in zip(runs, found, scores):
        text = "-" if score is None else return_text(score, scale)
        lines.append(f"{run.seed:>4} {text:>12} {one.get('seconds', 0.0):>11,.1f}  {run.folder}")
    if len(known) > 1:
        mean, half = mean_and_half(known)
        lines.append(f"mean      {return_text(mean, scale)} ± {return_text(half, scale)}, with the"
                     f" 95 % interval of the mean over {len(known)} seeds")
    return lines


def draw_seeds(request: Request, runs: Sequence[SeedRun]) -> None:
    """Draws the curves of the runs into a file beside their folders, and prints the path."""
    from fastppo.reports.curves import save_curves
    from fastppo.reports.run_table import group_runs, read_table
    try:
        tables = [read_table(run.folder / METRICS_FILE) for run in runs]
        first = runs[0].folder
        stamp = "" if request.config.run_dir else f"-{first.name.rpartition('__')[2]}"
        picture = save_curves(group_runs([tables], None), MEAN_RETURN,
                              first.with_name(f"seeds{stamp}.png"))
        print(f"curves    {picture}", flush=True)
        names = request.config.run_dir or ",".join(str(run.folder) for run in runs)
        print(f"next      {program()} plot {shlex.quote(names)} --kind=density", flush=True)
    except ConfigError as error:  # such as no episode that has ended
        note(f"the curves are not drawn: {error.what}")
