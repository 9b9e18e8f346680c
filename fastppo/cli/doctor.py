"""The verb: fastppo doctor [--json]."""

import json
import time
from dataclasses import dataclass
from typing import Any, Sequence

from fastppo.cli.command_line import words_and_options
from fastppo.cli.envs import filled_rows
from fastppo.errors import Error

SUBJECT_COLUMN, GIB = 15, 2**30
NOT_LISTED = "extras", "fingerprint", "problems"  # subjects that the report has in another form


@dataclass(frozen=True)
class Doctor:
    """Describe this installation and machine, for a report of a problem.

      {0} doctor
      {0} doctor --json

    It trains for about a second, with and without workers, and compares the
    bits. What is wrong is a line with its fix. No environment variable is shown.
    In brackets are the extras: pip install "fastppo[NAME]" adds what is "none".
    It ends with 1 if the self-test fails.
    """

    OPERANDS = ""

    json: bool = False
    """Print everything as JSON"""


def doctor_verb(argv: Sequence[str], interrupts) -> None:
    """Prints facts, problems and a self-test; SystemExit(1) if that fails."""
    _, options = words_and_options(argv, Doctor)
    facts = all_facts()
    if not options.json:
        print(*report(facts), sep="\n", flush=True)
    test = self_test(facts["kernels"]["workers"])
    result = {True: "same bits for 0 and 2 workers: yes", None: "trains; there can be no workers",
              False: "same bits for 0 and 2 workers: NO"}[test["same_bits"]]
    lines = filled_rows(SUBJECT_COLUMN, {"self-test": f"failed: {test['error']}" if test["error"]
                                         else f"{result}   ({test['seconds']} s)"})
    for problem in facts["problems"] or [{"what": "none", "fix": ""}]:
        lines += filled_rows(SUBJECT_COLUMN, {"problem": problem["what"], "  fix": problem["fix"]})
    print(json.dumps(facts | {"self_test": test}, indent=1) if options.json else "\n".join(lines),
          flush=True)
    if test["error"] or test["same_bits"] is False:
        raise SystemExit(1)


def all_facts() -> dict[str, Any]:
    """The facts of system_facts, the names of the devices, and the problems.

    Raises Error if the compiled extension cannot be loaded.
    """
    from fastppo.machine.installation import BUILD
    try:
        from fastppo.runs.facts import system_facts
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError):  # a package that is needed; main says so
            raise
        raise Error(f"the compiled extension cannot be loaded: {error}", BUILD) from error
    import torch
    facts = system_facts(torch.get_num_threads())
    names = [torch.cuda.get_device_name(i) for i in range(facts["torch"]["devices"])]
    facts["torch"]["names"] = names
    facts["problems"] = [{"what": what, "fix": fix} for what, fix in problems()]
    return facts


def problems() -> list[tuple[str, str]]:
    """[(what is wrong with the installation, its fix)]."""
    from fastppo.machine.installation import BUILD, extension_file, needed_packages
    found = []
    if extension_file() is None:
        found.append(("there is no compiled extension for this Python: one process only, and"
                      " slower", BUILD))
    for extra, packages in needed_packages().items():
        if extra and None in [version for _, version in packages]:
            continue  # it is not in use
        by = f"the extra {extra}" if extra else "fastppo"
        for wanted, version in packages:
            if not extra if version is None else not wanted.specifier.contains(
                    version, prereleases=True):
                found.append((f"{wanted.name} {version or 'is not installed'}, but {by} needs"
                              f" {wanted.specifier}",
                              f'pip install "{wanted.name}{wanted.specifier}"'))
    return found


def self_test(workers_possible: bool) -> dict[str, Any]:
    """Trains three iterations on CartPole with 0 and 2 workers, and compares the weights.

    `same_bits` is None if there can be no workers, or if training fails; then `error` says how.
    """
    started = time.monotonic()
    test: dict[str, Any] = {"workers": [0, 2] if workers_possible else [0], "same_bits": None,
                            "error": None}
    try:
        first, *others = [trained_bits(count) for count in test["workers"]]
        test["same_bits"] = first == others[0] if others else None
    except Exception as error:  # whatever it is, it belongs into the report
        test["error"] = f"{type(error).__name__}: {getattr(error, 'what', error)}"
    return test | {"seconds": round(time.monotonic() - started, 2)}


def trained_bits(num_workers: int) -> bytes:
    """The weights of a short run."""
    from fastppo.ppo import PPO
    with PPO("CartPole-v1", seed=1, preset="none", num_envs=4, num_steps=64, epochs=2,
             num_minibatches=4, hidden_sizes=(16,), num_workers=num_workers) as ppo:
        ppo.learn(3 * 4 * 64)
        return b"".join(values.cpu().numpy().tobytes()
                        for values in ppo.policy.state_dict().values())


def report(subjects: dict[str, Any]) -> list[str]:
    """The facts that are known, a line or more for each subject; an extra is one."""
    extras = {f"[{extra}]": packages for extra, packages in subjects.get("extras", {}).items()}
    return filled_rows(SUBJECT_COLUMN, {subject: ", ".join(
        f"{name}\N{NO-BREAK SPACE}{shown(value)}" for name, value in found.items())
        for subject, found in (subjects | extras).items() if subject not in NOT_LISTED})


def shown(value: Any) -> str:
    """A value in words, sizes in GiB."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value > GIB:
        return f"{value / GIB:.1f}\N{NO-BREAK SPACE}GiB"
    return ", ".join(value) if isinstance(value, list) and value else str(value or "none")
