"""Other builds: bounds of a debug build, memory under the sanitizers, other instruction sets."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The kernel asks only the first element of each array; fastppo.kernels compares the sizes.
CALL = """
import numpy as np
from fastppo import _kernels
steps, rows = 300, {rows}
arrays = [np.zeros((steps, 4), np.float32) for _ in range(3)]
ends = [np.zeros((steps, 4), np.uint8) for _ in range(2)]
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


def built(folder: Path, **asked: str) -> Path:
    """The package as setup.py builds it under the variables `asked`; skips where that cannot be."""
    pytest.importorskip("Cython")
    base, lib = folder / "base", folder / "lib"
    subprocess.run([sys.executable, "setup.py", "-q", "build", "--build-base", base,
                    "--build-lib", lib], cwd=ROOT, env={**os.environ, **asked}, check=True,
                   capture_output=True)
    if not list(lib.glob("fastppo/_kernels.*")):
        pytest.skip("no compiler that can build this")
    return lib


def told(lib: Path, rows: int, **variables: str) -> str:
    """What a gae into `rows` rows instead of 300 says on stderr; it must not end well."""
    variables = {**os.environ, "PYTHONPATH": str(lib), **variables}
    done = subprocess.run([sys.executable, "-P", "-c", CALL.format(rows=rows)], env=variables,
                          capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.slow
def test_a_debug_build_checks_bounds(tmp_path):
    assert "IndexError: Out of bounds" in told(built(tmp_path, FASTPPO_DEBUG="1"), 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD and ldd are Linux's")
def test_a_sanitized_build_finds_a_write_behind_an_array(tmp_path):
    lib = built(tmp_path, FASTPPO_SANITIZE="address,undefined")
    linked = subprocess.run(["ldd", next(lib.glob("fastppo/_kernels.*"))], text=True,
                            capture_output=True, check=True).stdout
    preload = " ".join(re.findall(r"=> (\S*lib(?:asan|stdc)\S*)", linked))
    text = told(lib, 299, LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")
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
