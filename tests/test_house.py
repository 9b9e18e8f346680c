"""The rules of the house, as tests: sizes, arrows, docstrings, and what a worker may import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "fastppo").rglob("*.py"))
CORE = ("ppo", "learner", "collect", "policy", "vecenv", "reference", "config")
CEILING, LONGEST = 600, 40

# A module may import those of later rows only (and nothing else of the package).
ROWS = """
    cli
    benchmark.command
    benchmark.session benchmark.table
    benchmark.account
    benchmark.one
    benchmark.limit benchmark.trace benchmark.options
    benchmark.peers
    export_verb
    arguments interrupts output
    fields
    exporter
    recording
    graph
    ppo vector
    crew settings report engines
    kernel_learner evaluator
    evaluate checkpoint learner
    models losses passes
    bodies own
    optimizers sequences letters
    batches
    collect images
    rewards policy workers native flat
    values
    observer shards distributions
    recurrent
    heads nets unrolling vecenv stepper forecast
    actors processes
    envs intake books
    masks atari
    contract measure infos
    fingerprint
    actions observations
    spaces arena kernels
    numba_twins sinks_wandb
    pace
    config reference machine
    schedules
    errors remedies
    names presets
""".split("\n")
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row.split()}


def room(path: Path) -> str:
    """The name of a module as ROWS has it."""
    return ".".join(path.relative_to(ROOT / "fastppo").with_suffix("").parts)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def code_lines(path: Path) -> int:
    """Lines of logic: no blanks, comments or docstrings; continuation lines count."""
    tree, skipped = parsed(path), set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else []:
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) \
                    and isinstance(child.value.value, str):
                skipped |= set(range(child.lineno, child.end_lineno + 1))
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    skipped |= set(range(field.lineno, field.end_lineno + 1))
    return sum(1 for number, line in enumerate(path.read_text().splitlines(), 1)
               if number not in skipped and line.strip() and not line.strip().startswith("#"))


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
    found = [(path.name, *one) for path in sorted((ROOT / "csrc").glob("*.[ch]"))
             for one in c_functions(path.read_text())]
    assert len(found) > 20
    assert [one for one in found if one[2] > LONGEST] == []


def test_no_cython_function_is_long():
    for path in sorted((ROOT / "csrc").glob("*.p[yx]*")):
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
    for path in [*PACKAGE, *sorted((ROOT / "csrc").glob("*.[chp]*"))]:
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
        elif isinstance(node, ast.ImportFrom) and node.level:
            parts = ["fastppo", *room(path).split(".")][:-node.level]
            names = [".".join([*parts, node.module])] if node.module else [
                ".".join([*parts, alias.name]) for alias in node.names]
        else:
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
        yield from (name.removeprefix("fastppo.") for name in names if name.startswith("fastppo."))


@pytest.mark.parametrize("path", PACKAGE, ids=room)
def test_imports_point_down(path):
    if path.stem in ("__init__", "worker"):
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
    code = ("import sys; from fastppo import workers, worker, actors;"
            "print([m for m in ('torch', 'numba', 'cloudpickle') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_importing_the_package_is_light():
    code = ("import sys, fastppo;"
            "print([m for m in ('torch', 'numpy', 'gymnasium') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
