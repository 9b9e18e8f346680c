"""The verb: fastppo doctor [--json]."""

import json
import time
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

from fastppo.arguments.command_line import words_and_options
from fastppo.cli.envs import filled_at
from fastppo.cli.interrupts import Interrupts
from fastppo.errors import Error
from fastppo.settings.fixes import program

SUBJECT_COLUMN, EXTRA_COLUMN = 11, 24
FLAGS_SHOWN = "sse4_2", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve"
GIB = 2**30


@dataclass(frozen=True)
class Doctor:
    """Describe this installation and machine, for a report of a problem.

      {0} doctor
      {0} doctor --json

    It trains for about a second, with and without workers, and compares the
    bits. What is wrong is a line with its fix. No environment variable is shown.
    It ends with 1 if the self-test fails.
    """

    json: bool = False
    """Print everything as JSON"""


def doctor_verb(argv: Sequence[str], interrupts: Interrupts) -> None:
    """Prints facts, problems and a self-test; SystemExit(1) if that fails."""
    _, options = words_and_options(argv, Doctor, "", 0)
    facts = all_facts()
    if options.json:
        test = self_test(facts["kernels"]["workers"])
        print(json.dumps(facts | {"self_test": test}, indent=1), flush=True)
    else:
        print("\n".join(report(facts)), flush=True)
        test = self_test(facts["kernels"]["workers"])
        print("\n".join(filled_at(SUBJECT_COLUMN, "self-test", test_text(test))), flush=True)
        print("\n".join(problem_lines(facts["problems"])), flush=True)
    if test["error"] or test["same_bits"] is False:
        raise SystemExit(1)


def all_facts() -> dict[str, Any]:
    """The facts of system_facts, the names of the devices, and the problems.

    Raises Error if the compiled extension cannot be loaded.
    """
    from fastppo.machine.installation import BUILD
    try:
        from fastppo.files.system_facts import system_facts
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError):  # a package that is needed; main says so
            raise
        raise Error(f"the compiled extension cannot be loaded: {error}", BUILD) from error
    import torch
    facts = system_facts(torch.get_num_threads())
    names = [torch.cuda.get_device_name(i) for i in range(facts["torch"]["devices"])]
    facts["torch"]["names"] = names
    facts["problems"] = [problem._asdict() for problem in problems(facts["machine"])]
    return facts


def problems(machine: dict[str, Any]) -> list[Any]:
    """What is wrong with the installation and the machine, as Problems."""
    from fastppo.machine.installation import Problem, installation_problems
    from fastppo.machine.requirements import needed_packages
    found = installation_problems()
    if (machine["quota"] or 1) < 1:
        found.append(Problem(
            f"the control group allows {machine['quota']:g} of a core: everything is slower",
            "give it more: docker run --cpus=2, or resources.limits.cpu of Kubernetes"))
    for extra, packages in needed_packages().items():
        found += [Problem(f"{x.name} {x.version or 'is not installed'}, but {wanted_by(extra)}"
                          f" {x.wanted}", f'pip install "{x.name}{x.wanted}"')
                  for x in packages if not x.fits and (x.version or not extra)]
    return [*dict.fromkeys(found)]


def wanted_by(extra: str) -> str:
    """The beginning of a sentence about the versions that are needed."""
    return f"the extra {extra} needs" if extra else "fastppo needs"


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


def test_text(test: dict[str, Any]) -> str:
    """The result of the self-test in a line."""
    if test["error"]:
        return f"failed: {test['error']}"
    same = {True: "same bits for 0 and 2 workers: yes", None: "trains; there can be no workers",
            False: "same bits for 0 and 2 workers: NO"}[test["same_bits"]]
    return f"{same}   ({test['seconds']} s)"


def report(facts: dict[str, Any]) -> list[str]:
    """The facts, a line or more for each subject."""
    own, python, kernels = facts["fastppo"], facts["python"], facts["kernels"]
    commit = f"   commit {own['commit']}" if own["commit"] else ""
    file = f", {kernels['simd']}   {kernels['file']}" if kernels["file"] else ""
    lines = [line for subject, text in [
        ("fastppo", f"{own['version']}{commit}   {own['folder']}"),
        ("python", f"{python['version']} {python['implementation']}   {python['executable']}"),
        ("platform", python["platform"]),
        ("torch", torch_text(facts["torch"])),
        ("packages", listed(facts["packages"])),
        *machine_lines(facts["machine"], facts["fingerprint"]["cpu_flags"].split()),
        ("kernels", kernels["backend"] + file),
        ("workers", f"possible; up to {facts['machine']['usable']} by default"
         if kernels["workers"] else "not possible without the compiled extension"),
        ("envs", envs_text(facts["environments"])),
    ] for line in filled_at(SUBJECT_COLUMN, subject, text)]
    return lines + extra_lines(facts["extras"], facts["packages"])


def torch_text(torch: dict[str, Any]) -> str:
    """The build of torch and its devices."""
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else "CPU"
    names = ", ".join(f"cuda:{i} {name}" for i, name in enumerate(torch["names"]))
    return f"{torch['version']} ({build})   {names or 'no CUDA device: ' + torch['no_device']}"


def machine_lines(machine: dict[str, Any], flags: list[str]) -> list[tuple[str, str]]:
    """The cores, the memory and the limits."""
    quota = f"a quota of {machine['quota']:g}" if machine["quota"] else "no quota"
    limit, shm = machine["memory_limit"], machine["dev_shm"]
    group = f", {gib(limit)} in its control group" if limit else ""
    shown = " ".join(name for name in FLAGS_SHOWN if name in flags) or "unknown"
    files = "any number" if machine["open_files"] is None else f"at most {machine['open_files']:,}"
    shared = "no /dev/shm" if shm is None else f"/dev/shm {gib(shm)} free"
    return [("cpu", f"{machine['cpu']}, {machine['cores']} cores by affinity, {quota}"),
            ("simd", f"{shown}   bf16: {'yes' if machine['bf16'] else 'no'}"),
            ("memory", f"{gib(machine['memory'])}{group}, {gib(machine['memory_free'])} free"),
            ("files", f"{files} open; {shared}, which fastppo does not need")]


def gib(size: int | None) -> str:
    """Bytes in GiB."""
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"


def envs_text(families: dict[str, bool]) -> str:
    """The families of environments that are installed, and those that are not."""
    here, missing = ([name for name, found in families.items() if found is wanted]
                     for wanted in (True, False))
    more = f"; missing: {', '.join(missing)} ({program()} envs says how to get them)"
    return ", ".join(here) + more * bool(missing)


def extra_lines(extras: dict[str, dict[str, str | None]], core: Iterable[str]) -> list[str]:
    """The installed extras with their versions, and how to get the others."""
    lines, core = [], {*core}
    for extra, packages in extras.items():
        missing = [name for name, version in packages.items() if version is None]
        own = {name: version for name, version in packages.items() if name not in core}
        text = f'missing {", ".join(missing)}: pip install "fastppo[{extra}]"' if missing else \
            listed(own) or "not needed here"
        subject = f"{'' if lines else 'extras':{SUBJECT_COLUMN}}{extra}"
        lines += filled_at(EXTRA_COLUMN, subject, text)
    return lines


def listed(packages: dict[str, str | None]) -> str:
    """Names with their versions, of which none is broken at the end of a line."""
    return ", ".join(f"{name}\N{NO-BREAK SPACE}{version or 'missing'}"
                     for name, version in packages.items())


def problem_lines(found: list[dict[str, str]]) -> list[str]:
    """The problems, each with its fix; or that there are none."""
    if not found:
        return filled_at(SUBJECT_COLUMN, "problems", "none")
    return [line for problem in found for line in [
        *filled_at(SUBJECT_COLUMN, "problem", problem["what"]),
        *filled_at(SUBJECT_COLUMN, "  fix", problem["fix"])]]
