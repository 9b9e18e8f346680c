"""The rules of the house, as tests: sizes, arrows, docstrings, and what a worker may import."""

import ast
import collections
import fnmatch
import graphlib
import math
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from source_tree import (
    CEILING,
    CHAPTERS,
    CORE,
    LONGEST,
    PACKAGE,
    ROOT,
    code_lines,
    module_of,
    parsed,
)

from fastppo import Config

COMMAND = {"cli", "benchmark", "reports"}
# A package or core file imports only rows below its own, and the trainer and chapters each other.
ROWS = """
    __main__
    cli
    benchmark
    reports
    ppo
    trainer compiled ranks gpu vector runs loggers video terminal games compiled_envs
    evaluation
    learner
    workers
    update
    collect
    policy vecenv
    networks
    stepping
    envs
    spaces
    machine
    config
    reference
    settings
    errors
""".split("\n")
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row.split()}
CEILINGS = Path(__file__).with_name("ceilings.toml")
TWINS = {"machine.kernels", "machine.kernels_numba", "reference"}  # the same kernels by design
SAME_EVERYWHERE = {"log", "main"}  # the package's logger; a script's entry point
# Questions to the machine; a name of machine.limits that is imported could not be replaced.
ASKS = re.compile(r"cpu_count|sched_getaffinity|getloadavg|statvfs|getrlimit|isatty|shutil\.which"
                  r"|/proc/(cpuinfo|meminfo|driver)|/sys/fs|WAYLAND|machine\.limits import"
                  r"|cuda\.(is_available|device_count|is_bf16_supported)")


def row(module: str) -> str:
    """The package of a module, or the core file that it is."""
    return module.partition(".")[0]


def sizes() -> dict[str, int]:
    """Code lines of every module."""
    return {module_of(path): code_lines(path) for path in PACKAGE}


def test_the_core_is_small():
    core = {name: sizes()[name] for name in CORE}
    assert sum(core.values()) <= CEILING, core


def test_ppo_is_understood_from_three_files():
    read = {name: sizes()[name] for name in ("ppo", "learner", "reference")}
    assert sum(read.values()) <= 256, read


def test_the_package_is_no_larger_than_its_ceilings():
    assert sum(sizes().values()) <= sum(tomllib.loads(CEILINGS.read_text()).values())


@pytest.mark.parametrize("commit", ["HEAD", "HEAD^"])
def test_the_ceiling_of_the_house_only_falls(commit):
    shown = subprocess.run(["git", "show", f"{commit}:tests/house/ceilings.toml"], cwd=ROOT,
                           capture_output=True, text=True)
    before = tomllib.loads(shown.stdout).get("house", math.inf)  # inf: not in git
    assert tomllib.loads(CEILINGS.read_text())["house"] <= before


def test_files_are_neither_shreds_nor_heaps():
    """A file of less than 40 lines is a verb, a logger, or has a door of its own."""
    packages = {"cli", "loggers"}
    doors = {"__main__", "envs.car_racing", "spaces.tensor_actions", "stepping.rewards",
             "workers.bootstrap", "compiled_envs.check"}
    small = {name for name, size in sizes().items() if size < 40 and not name.endswith("__init__")
             and row(name) not in packages}
    assert small <= doors
    assert {name: size for name, size in sizes().items() if size > 320} == {}


def test_every_package_says_what_it_is():
    for path in PACKAGE:
        if path.stem == "__init__" and path.parent.name != "fastppo":
            first, *rest = ast.get_docstring(parsed(path)).split("\n\n")
            assert first.endswith("."), path
            chapter = any(text.startswith("A chapter: imported ") for text in rest)
            assert chapter == (path.parent.name in CHAPTERS), path


@pytest.mark.parametrize("path", PACKAGE, ids=module_of)
def test_a_chapter_has_one_door(path):
    ours = row(module_of(path))
    if ours in {"__init__", "trainer", *COMMAND, *CORE}:
        return
    others = {name for name in imported(path) if row(name) in CHAPTERS - {ours}}
    assert others == set(), f"{module_of(path)} imports {others}"


# A library, and the package of fastppo that alone imports it. Benchmarks measure other systems.
PLACES = {"torch.distributed": "ranks", "torch.utils.tensorboard": "loggers",
          "tensorboard": "loggers", "trackio": "loggers", "wandb": "loggers",
          "safetensors": "runs", "ale_py": "envs"}


def libraries(path: Path) -> set[str]:
    """The modules, and what is taken from modules, that a file imports."""
    nodes = [*ast.walk(parsed(path))]
    return {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
            } | {f"{node.module}.{alias.name}" for node in nodes
                 if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_a_library_is_used_in_one_package():
    used = {library: {row(module_of(path)) for path in PACKAGE for name in libraries(path)
                      if f"{name}.".startswith(f"{library}.")} - {"benchmark"}
            for library in PLACES}
    assert used == {library: {package} for library, package in PLACES.items()}


def test_graphs_of_cuda_are_made_in_one_package():
    assert {row(module_of(path)) for path in PACKAGE if "CUDAGraph" in path.read_text()} == {"gpu"}


def test_a_name_at_module_level_has_one_meaning():
    places = collections.defaultdict(set)
    for path in PACKAGE:
        for node in parsed(path).body:
            for name in defined(node):
                places[name].add(module_of(path))
    several = {name: where for name, where in places.items()
               if len(where) > 1 and not name.startswith("__") and name not in SAME_EVERYWHERE}
    assert {name: where for name, where in several.items() if not where <= TWINS} == {}


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement at module level defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else \
        [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target)
            if isinstance(name, ast.Name)]


def test_a_setting_knows_itself():
    """Few tables name several settings: what is true of a setting stands in its field."""
    tables = [f"{module_of(path)}.{name}" for path in PACKAGE for node in ast.walk(parsed(path))
              if path.stem not in ("config", "presets") and getattr(node, "value", None)
              for name in defined(node)[:1]
              if name.isupper() and len(named_settings(node.value)) > 1]
    assert len(tables) <= 7, tables


def named_settings(value: ast.expr) -> set[str]:
    """The settings whose names are words of texts, or keywords, in an expression."""
    words = [str(getattr(node, "value", "")) if isinstance(node, ast.Constant) else
             getattr(node, "arg", None) or "" for node in ast.walk(value)]
    return {*Config.__match_args__} & {*" ".join(words).split()}


def test_docstrings_are_no_riddles():
    """At most 2 % of the docstrings begin with a question word."""
    texts = [text for path in PACKAGE for node in ast.walk(parsed(path))
             if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
             and (text := ast.get_docstring(node))]
    riddles = [text.partition("\n")[0] for text in texts
               if re.match(r"(What|How|Whether|Who|Where)\b", text)]
    assert len(riddles) <= 0.02 * len(texts), riddles


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


@pytest.mark.parametrize("path", PACKAGE, ids=module_of)
def test_imports_point_down(path):
    ours = row(module_of(path))
    for name in imported(path):
        if not name.startswith("_") and row(name) != ours and ours != "__init__":
            assert RANK[row(name)] >= RANK[ours], f"{module_of(path)} imports {name}, not below it"


def test_one_module_asks_the_machine():
    """Its answers are replaced in tests/pretend_machine.py. peers runs where fastppo is not."""
    asking = {module_of(path) for path in PACKAGE if ASKS.search(path.read_text())}
    assert asking == {"machine.limits", "benchmark.peers"}


def test_no_imports_run_in_a_circle():
    graph = {module_of(path): {name for name in imported(path) if not name.startswith("_")}
             for path in PACKAGE}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("path", PACKAGE + [ROOT / "main.py"], ids=lambda path: path.stem)
def test_every_public_name_has_a_docstring(path):
    tree = parsed(path)
    assert ast.get_docstring(tree), path
    for holder in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        for node in holder.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.stem}.{node.name}"


def test_every_folder_of_tests_is_collected(pytestconfig):
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    left_out = pytestconfig.getini("norecursedirs")
    assert [name for name in folders for form in left_out if fnmatch.fnmatch(name, form)] == []


def test_a_worker_imports_neither_torch_nor_numba():
    code = ("import sys; import fastppo.workers.worker, fastppo.workers.worker;"
            "print([m for m in ('torch', 'numba', 'cloudpickle') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_importing_the_package_is_light():
    code = ("import sys, fastppo;"
            "print([m for m in ('torch', 'numpy', 'gymnasium') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
