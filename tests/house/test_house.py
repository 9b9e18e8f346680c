"""The rules of the house, as tests: sizes, arrows, docstrings, and what a worker may import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import CEILING, CORE, LONGEST, PACKAGE, ROOT, code_lines, parsed, room

# A module may import those of later rows only (and nothing else of the package).
ROWS = """
    __main__
    cli.main
    cli.bench cli.export
    cli.train
    cli.arguments cli.interrupts cli.stdout_guard
    cli.setting_types
    benchmark.session benchmark.table
    benchmark.figures
    benchmark.measure_one
    benchmark.limit benchmark.trace benchmark.options
    benchmark.peers
    ppo
    outputs.sinks
    outputs.csv_sink outputs.evaluator
    outputs.wandb_sink outputs.run_folder outputs.evaluate
    outputs.console outputs.export
    outputs.metrics
    outputs.export_samples
    outputs.export_graph outputs.policy_file
    outputs.fingerprint
    build.run
    build.arena_layout build.resolve
    build.check_settings
    build.model
    build.user_model build.memory_estimate
    learners.compiled
    learners.shared_minibatches
    learner
    workers.vector_env workers.worker_envs
    workers.vector_messages workers.update_helper
    workers.team
    workers.worker_process workers.worker_loop workers.count workers.vector_stepper
    workers.protocol
    update.epoch_transforms update.custom_loss update.sequences update.optimizers
    update.batches update.coefficients update.flat_parameters
    collect
    vecenv policy
    networks.encoders networks.user_distribution networks.value_normalisation
    networks.cnn networks.recurrent networks.predict_input
    networks.normaliser networks.heads networks.mlp networks.compiled_gru networks.torch_state
    stepping.native_vector
    stepping.actors stepping.environments stepping.episodes
    stepping.observation_buffer stepping.rewards
    stepping.replay stepping.checks stepping.infos
    envs.vector_source
    envs.source envs.envpool
    envs.step_time
    envs.make
    envs.wrappers
    envs.masks envs.atari envs.faults
    envs.actions envs.observation_checks
    envs.observations
    envs.spaces
    envs.env_hints
    machine.noise machine.arena
    machine.kernels
    machine.kernel_checks machine.kernels_numba machine.limits machine.child_env machine.global_rng
    config
    reference
    settings.schedules
    errors
    settings.aliases
    settings.spelling settings.presets
    settings.fixes
""".split("\n")
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row.split()}








def test_the_core_is_small():
    sizes = {name: code_lines(ROOT / "fastppo" / f"{name}.py") for name in CORE}
    assert sum(sizes.values()) <= CEILING, sizes


@pytest.mark.parametrize("path", PACKAGE + [ROOT / "main.py", ROOT / "setup.py"],
                         ids=lambda path: path.stem)
def test_no_python_function_is_long(path):
    long = {node.name: node.end_lineno - node.lineno + 1 for node in ast.walk(parsed(path))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    assert {name: size for name, size in long.items() if size > LONGEST} == {}


def c_functions(text: str):
    """(first line, length) of every function body that starts with a brace at a line's end."""
    lines = text.splitlines()
    start = None
    for number, line in enumerate(lines):
        ends = line.rstrip().endswith(";")
        if start is None and re.match(r"^[A-Za-z_].*\(.*", line) and not ends:
            start = number
        elif start is not None and line.startswith("}"):
            yield lines[start], number - start + 1
            start = None
        elif start is not None and ends and not line.startswith((" ", "\t")):
            start = None


def test_no_c_function_is_long():
    found = [(path.name, *one) for path in sorted((ROOT / "csrc").rglob("*.[ch]"))
             for one in c_functions(path.read_text())]
    assert len(found) > 20
    assert [one for one in found if one[2] > LONGEST] == []


def test_no_cython_function_is_long():
    for path in sorted((ROOT / "csrc").rglob("*.p[yx]*")):
        lines = path.read_text().splitlines() + ["end"]
        starts = [i for i, line in enumerate(lines) if re.match(r"(    )?(cp?def|def) .*\(", line)]
        for start in starts:
            depth = len(lines[start]) - len(lines[start].lstrip())
            end = next(i for i, line in enumerate(lines[start + 1:], start + 1)
                       if line.strip() and len(line) - len(line.lstrip()) <= depth)
            # Two more: the blank lines after it.
            assert end - start <= LONGEST + 2, f"{path.name}: {lines[start]}"


def test_nothing_is_written_twice():
    """No ten lines of code in a row stand in two places."""
    seen = {}
    for path in [*PACKAGE, *sorted((ROOT / "csrc").rglob("*.[chp]*"))]:
        lines = [(number, " ".join(line.split())) for number, line in
                 enumerate(path.read_text().splitlines(), 1)]
        lines = [one for one in lines if len(one[1]) > 3 and not one[1].startswith(
            ("import ", "from ", "#include", "#", "cdef extern", "*", "/*"))]
        for i in range(len(lines) - 9):
            run = tuple(text for _, text in lines[i:i + 10])
            place = f"{path.name}:{lines[i][0]}"
            assert seen.setdefault(run, place) == place, f"{seen[run]} and {place}"


def imported(path: Path):
    """The modules of the package that a module imports, as ROWS has them."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = (ROOT / node.module.replace(".", "/")).is_dir()
            names = [f"{node.module}.{alias.name}" for alias in node.names] if package else [
                node.module]
        else:
            names = []
        yield from (name.removeprefix("fastppo.") for name in names if name.startswith("fastppo."))


@pytest.mark.parametrize("path", PACKAGE, ids=room)
def test_imports_point_down(path):
    if path.stem in ("__init__", "bootstrap"):
        return
    for name in imported(path):
        if not name.startswith("_"):
            assert RANK[name] > RANK[room(path)], f"{room(path)} imports {name}, not below it"


@pytest.mark.parametrize("path", PACKAGE + [ROOT / "main.py"], ids=lambda path: path.stem)
def test_every_public_name_has_a_docstring(path):
    tree = parsed(path)
    assert ast.get_docstring(tree), path
    for holder in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        for node in holder.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.stem}.{node.name}"


def test_a_worker_imports_neither_torch_nor_numba():
    code = ("import sys; import fastppo.workers.worker_envs, fastppo.workers.worker_loop;"
            "print([m for m in ('torch', 'numba', 'cloudpickle') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_importing_the_package_is_light():
    code = ("import sys, fastppo;"
            "print([m for m in ('torch', 'numpy', 'gymnasium') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
