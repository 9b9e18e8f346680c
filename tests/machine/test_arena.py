"""The arena: arrays aligned and poisoned, nothing named, and too much memory refused in words."""

import gc
import itertools
import json
import os
import re
import stat
import subprocess
import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastppo import PPO, make_vec
from fastppo.errors import ConfigError
from fastppo.machine import limits
from fastppo.machine.shared_memory import ALIGN, Arena, array_bytes

SPEC = {"f": ("<f4", (3, 5)), "d": ("<f8", (2,)), "i": ("<i8", (7, 1)), "u": ("|u1", (129,)),
        "b": ("|b1", (4, 3)), "one": ("<f4", ()), "none": ("<f4", (0,))}


@pytest.fixture
def block():
    made = Arena(SPEC)
    yield made
    made.close()


def test_every_array_has_its_dtype_and_shape_and_is_aligned_and_apart(block):
    ends = []
    for name, (dtype, shape) in SPEC.items():
        array = block[name]
        assert (array.dtype.str, array.shape) == (dtype, shape) and name in block.spec
        assert array.ctypes.data % ALIGN == 0 or not array.size
        assert array.flags.c_contiguous and array.flags.writeable
        if array.size:
            ends.append((array.ctypes.data, array.ctypes.data + array.nbytes))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert "other" not in block.spec


def test_memory_is_born_poisoned(block):
    assert np.isnan(block["f"]).all() and np.isnan(block["d"]).all() and np.isnan(block["one"])
    assert (block["i"] == -1).all() and (block["u"] == 255).all() and block["b"].all()


names = st.text("abcdefgh", min_size=1, max_size=4)
arrays = st.tuples(st.sampled_from(["<f4", "<f8", "<i8", "|u1", "|b1"]),
                   st.lists(st.integers(1, 9), max_size=3).map(tuple))


@hypothesis.settings(deadline=None)  # a loaded machine may take any time
@given(st.dictionaries(names, arrays, min_size=1, max_size=6))
def test_arrays_of_any_spec_never_share_a_byte(spec):
    made = Arena(spec)
    for name in spec:
        made[name].fill(0)
    for name in spec:
        made[name].fill(1)
        others = [other for other in spec if other != name]
        assert all(not made[other].any() for other in others)
        made[name].fill(0)
    assert os.fstat(made.fd).st_size == sum(array_bytes(spec).values())
    made.close()


def test_a_block_is_attached_by_descriptor_and_not_poisoned_again(block):
    block["f"][:] = 3
    other = Arena(SPEC, os.dup(block.fd))
    assert (other["f"] == 3).all()
    other["i"][0] = 9
    assert block["i"][0, 0] == 9
    other.close()
    assert (block["f"] == 3).all()


def test_another_process_sees_the_same_memory(block):
    code = ("import json, sys; from fastppo.machine.shared_memory import Arena\n"
            "spec = {k: (d, tuple(s)) for k, (d, s) in json.loads(sys.argv[2]).items()}\n"
            "Arena(spec, int(sys.argv[1]))['f'][1, 2] = 42\n")
    subprocess.run([sys.executable, "-c", code, str(block.fd), json.dumps(SPEC)],
                   pass_fds=[block.fd], check=True)
    assert block["f"][1, 2] == 42


def test_the_block_has_no_name_and_only_its_owner_may_open_it():
    before = set(os.listdir("/dev/shm"))
    made = Arena(SPEC)
    assert stat.S_IMODE(os.fstat(made.fd).st_mode) == 0o600
    assert not os.get_inheritable(made.fd)
    assert os.fstat(made.fd).st_nlink == 0
    assert set(os.listdir("/dev/shm")) <= before
    made.close()


def test_the_memory_is_allocated_before_it_is_used():
    made = Arena({"big": ("|u1", (1 << 22,))})
    assert os.fstat(made.fd).st_blocks * 512 >= 1 << 22
    made.close()


@pytest.mark.full
def test_closing_twice_is_fine_and_a_forgotten_block_gives_its_descriptors_back():
    gc.collect()  # what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    for closed in (True, False):
        made = Arena(SPEC)
        if closed:
            made.close()
            made.close()
        del made
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before


def test_arrays_taken_before_close_stay_readable(block):
    array = block["f"]
    block.close()
    assert np.isnan(array).all()


def tried(envs=512, env="CartPole-v1", **settings):
    PPO(env, **{"num_envs": envs, "num_steps": 512, "num_workers": 0, "preset": "none",
                **settings}).close()


def refusal(free, monkeypatch, make=tried, **settings) -> ConfigError:
    """What `make` is told where `free` bytes are free."""
    monkeypatch.setattr(limits, "free_memory", lambda: free)
    with pytest.raises(ConfigError) as caught:
        make(**settings)
    return caught.value


def test_too_much_memory_is_refused_with_the_largest_arrays(monkeypatch):
    for make in (tried, lambda: make_vec("CartPole-v1", num_envs=65_536, num_workers=0)):
        error = refusal(200 << 10, monkeypatch, make)
        assert re.search(r"MiB of shared memory \(\w+ \d+ MiB, .*but 0 MiB are free", error.what)
        assert "num_envs" in error.fix


def test_memory_the_system_refuses_is_the_same_error(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match="MiB of shared memory"):
        Arena(SPEC)
    assert len(os.listdir("/proc/self/fd")) == before
