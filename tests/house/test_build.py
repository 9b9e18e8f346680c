"""Other builds: sdist, wheel and editable install; debug, sanitizers, other instruction sets."""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The kernel asks only the first element of each array; fastppo.kernels compares the sizes.
CALL = """
import numpy as np
from fastppo import _kernels
steps, rows = 300, {rows}
arrays = [np.zeros((steps, 4), np.float32) for _ in range(3)]
ends = [np.zeros((steps, 4), np.uint8) for _ in range(3)]
_kernels.gae(*arrays, *ends, 0.9, 0.9, np.zeros((rows, 4), np.float32))
"""


TRAINING = """
from fastppo import PPO
for name in ("CartPole-v1", "Pendulum-v1"):
    with PPO(name, preset="none", seed=1, num_envs=5, num_steps=50, num_minibatches=2, epochs=2,
             hidden_sizes=(20, 33), learner="kernel", num_workers=0) as ppo:
        ppo.learn(500)
        print([values.numpy().tobytes() for values in ppo.policy.state_dict().values()])
"""


def built(folder: Path, root: Path = ROOT, **variables: str) -> Path:
    """The package as setup.py builds it under environment variables; skips where it cannot."""
    pytest.importorskip("Cython")
    base, lib = folder / "base", folder / "lib"
    subprocess.run([sys.executable, "setup.py", "-q", "build", "--build-base", base,
                    "--build-lib", lib], cwd=root, env={**os.environ, **variables}, check=True,
                   capture_output=True)
    if not list(lib.glob("fastppo/_kernels.*")):
        pytest.skip("no compiler that can build this")
    return lib


def gae_error(lib: Path, rows: int, **variables: str) -> str:
    """The stderr of a gae into `rows` rows instead of 300, which must fail."""
    variables = {**os.environ, "PYTHONPATH": str(lib), **variables}
    done = subprocess.run([sys.executable, "-P", "-c", CALL.format(rows=rows)], env=variables,
                          capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.slow
def test_a_debug_build_checks_bounds(tmp_path):
    assert "IndexError: Out of bounds" in gae_error(built(tmp_path, FASTPPO_DEBUG="1"), 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD and ldd are Linux's")
def test_a_sanitized_build_finds_a_write_behind_an_array(tmp_path):
    lib = built(tmp_path, FASTPPO_SANITIZE="address,undefined")
    linked = subprocess.run(["ldd", next(lib.glob("fastppo/_kernels.*"))], text=True,
                            capture_output=True, check=True).stdout
    preload = " ".join(re.findall(r"=> (\S*lib(?:asan|stdc)\S*)", linked))
    text = gae_error(lib, 299, LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")
    assert "heap-buffer-overflow" in text and "returns.c" in text


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="one variant elsewhere")
@pytest.mark.parametrize("widest, left_out", [(128, b"_avx2"), (256, b"_avx512")])
def test_narrower_instruction_sets_train_the_same_bits(tmp_path, widest, left_out):
    narrow = built(tmp_path, CFLAGS=f"-DFASTPPO_WIDEST={widest}")
    assert left_out not in next(narrow.glob("fastppo/_kernels.*")).read_bytes()
    policies = [subprocess.run([sys.executable, "-P", "-c", TRAINING], text=True, check=True,
                               env={**os.environ, "PYTHONPATH": str(lib)}, capture_output=True
                               ).stdout for lib in (narrow, ROOT)]
    assert policies[0] == policies[1] != ""


def copy_of_the_tree(folder: Path) -> Path:
    """A copy of the checkout in a folder called fastppo, without builds, runs and hidden files."""
    def left_out(place: str, names: list[str]) -> list[str]:
        made = ("build", "dist", "runs", "wandb") if place == str(ROOT) else ()
        return [name for name in names if name in made or name == "__pycache__"
                or name.startswith(".") or name.endswith((".so", ".pyd", ".egg-info"))]
    return shutil.copytree(ROOT, folder / "fastppo", ignore=left_out)


def fresh_environment(folder: Path) -> Path:
    """The Python of a new virtual environment, which sees the packages of this one.

    A path in a .pth file: the .pth files in it, such as that of an editable fastppo, are not read.
    """
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(python, "-m", "pip", "install", "-q", "setuptools>=77", "cython>=3.1")
    return python


def run(*command, cwd: Path | None = None, **variables: str) -> str:
    """The stdout of a command that must succeed, without this process's PYTHONPATH."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=kept | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


INSTALLED = """
import fastppo
from importlib.metadata import version
from fastppo import PPO
from fastppo.machine import kernels
with PPO("CartPole-v1", preset="none", num_envs=2, num_steps=8, num_minibatches=1) as ppo:
    ppo.learn(16)
    print(kernels.backend(), ppo.step, version("fastppo") == fastppo.__version__)
"""


def test_python_m_fastppo_is_the_command(tmp_path):
    done = subprocess.run([sys.executable, "-m", "fastppo", "--help"], capture_output=True,
                          text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m fastppo ")


@pytest.mark.slow
def test_sdist_and_wheel_hold_all_that_an_installation_needs(tmp_path):
    python, tree, dist = fresh_environment(tmp_path / "venv"), copy_of_the_tree(tmp_path), tmp_path
    run(python, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(dist)!r})",
        cwd=tree)
    sdist, = dist.glob("fastppo-*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/*/*")} <= names
    assert not [name for name in names if name.startswith("build/") or name.endswith(".so")]
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", dist, sdist)
    wheel, = dist.glob("fastppo-*.whl")
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel)
    away = tmp_path / "away"
    away.mkdir()
    assert run(python, "-c", INSTALLED, cwd=away) == "compiled 16 True\n"
    command = python.with_name("fastppo")
    for argv in ([python, "-m", "fastppo"], [command]):
        assert run(*argv, "--help", cwd=away).startswith("usage: ")
    assert "trained   16 steps" in run(
        command, "--env_name=CartPole-v1", "--preset=none", "--num_envs=2", "--num_steps=8",
        "--num_minibatches=1", "--total_steps=16", "--eval_episodes=0", cwd=away)
    found = run(python, "-c", "import fastppo; print(fastppo.__path__[0])", cwd=away)
    package = Path(found.strip())
    assert (package / "py.typed").exists() and tmp_path / "venv" in package.parents


@pytest.mark.slow
def test_an_editable_install_is_found_from_the_folder_that_holds_the_clone(tmp_path):
    python, tree = fresh_environment(tmp_path / "venv"), copy_of_the_tree(tmp_path)
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", tree,
        CC="false")  # without compiled extensions, which takes a while
    (tmp_path / "script.py").write_text("from fastppo import Config\nprint(Config().gamma)\n")
    assert run(python, "script.py", cwd=tmp_path) == "0.99\n"


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
@pytest.mark.parametrize("torch", ["", "cpu"])
def test_the_shell_can_read_every_line_of_an_installation(torch):
    said = subprocess.run(["make", "-n", "-B", f"TORCH={torch}", "train"], cwd=ROOT,
                          capture_output=True, text=True, check=True).stdout
    subprocess.run(["sh", "-n"], input=said, text=True, check=True)
    assert ("or:  make train, which" in said) is bool(torch)
