"""Files that somebody else wrote: each gives one error of ours, or a policy that acts, and soon.

Mutations of bytes, which the checksum finds, and of contents under a checksum that is right.
"""

import copy
import json
import os
import random
import resource
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from fastppo import PPO, load
from fastppo.errors import CheckpointError, ConfigError, Error, FaultPlace
from fastppo.runs.checkpoint import CHECKPOINT_FORMAT, read_checkpoint
from fastppo.runs.crash_bundle import BUNDLE_FORMAT, read_bundle, write_bundle
from fastppo.runs.policy_file import POLICY_FORMAT
from fastppo.runs.tensor_file import read_tensor_file, write_tensor_file

SPACES = (Dict(a=Box(-5, 5, (3,), np.float32), b=Discrete(3),
               c=Tuple([MultiBinary(2), MultiDiscrete([2, 3])])), Box(-1, 1, (2,), np.float32))
TINY = dict(preset="none", seed=1, num_envs=2, num_steps=8, num_minibatches=1, epochs=1,
            num_workers=0, hidden_sizes=(4,), action_scaling=True)
SECONDS = 5.0  # a guard: each file takes some milliseconds
VALUES = [None, True, -1, 0, 10**9, 10**30, 1e308, float("nan"), float("inf"), "", "x", "O",
          "V99999999", "<U999999", "M8[s]", [], [[]], {}, {"n": 10**9}, {"tensor": "x"},
          {"list": [{}]}, "__import__('os')", "a" * 10_000, [1] * 5_000]


def chance():
    return Chance(*SPACES)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A policy and a checkpoint, by the function that reads them."""
    folder = tmp_path_factory.mktemp("files")
    with PPO(chance, **TINY) as ppo:
        ppo.learn(32)
        ppo.save(folder / "policy.safetensors")
        ppo.checkpoint(folder / "checkpoint.safetensors")
        write_bundle(ppo, "an error", FaultPlace(1, 0, 3), folder / "bundle.safetensors")
    return folder


@pytest.fixture(autouse=True)
def little_memory():
    """Two more GB of address space during a test: what takes that much is an error, not the end."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        space = int(file.read().split()[0]) * resource.getpagesize() + (2 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (space, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


KINDS = {"policy": (load, POLICY_FORMAT), "checkpoint": (read_checkpoint, CHECKPOINT_FORMAT),
         "bundle": (read_bundle, BUNDLE_FORMAT)}


def mutations(seed):
    """Parametrises (how many, seed): 500 in the fast tests, and 25,000 more in parts."""
    many = [pytest.param(2_500, 100 + part, marks=pytest.mark.faults) for part in range(10)]
    return pytest.mark.parametrize(("count", "seed"), [(500, seed), *many])


def outcome(read, path):
    """The error of ours that a file gives, or None after using what it holds."""
    start = time.monotonic()
    try:
        found = read(path)
        if read is load:
            action = found.predict(found.obs_space.sample())
            assert found.act_space.contains(action)
    except Error as error:
        assert len(str(error)) < 20_000
        return error
    finally:
        assert time.monotonic() - start < SECONDS
    return None


@pytest.mark.parametrize("kind", KINDS)
@mutations(1)
def test_bytes_that_were_changed_are_found(count, seed, kind, files, tmp_path):
    read, _ = KINDS[kind]
    data, rng = (files / f"{kind}.safetensors").read_bytes(), random.Random(seed)
    path = tmp_path / "mutated"
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(rng.choice([1, 1, 1, 8])):
            changed[rng.randrange(min(len(data), rng.choice([8, 4000, len(data)])))] ^= \
                1 << rng.randrange(8)
        cut = rng.randrange(len(data)) if rng.random() < 0.2 else len(data)
        path.write_bytes(bytes(changed[:cut]))
        assert bytes(changed[:cut]) == data or outcome(read, path) is not None


def places(value, path=()):
    """The paths to all parts of a JSON value."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) \
        if isinstance(value, list) else ()
    for key, part in pairs:
        yield from places(part, (*path, key))


def mutated_texts(rng, texts):
    """The texts with one part replaced, removed or renamed."""
    texts = json.loads(json.dumps(texts))
    *outer, last = rng.choice([path for path in places(texts) if path])
    inner = texts
    for key in outer:
        inner = inner[key]
    if rng.random() < 0.8:
        inner[last] = copy.deepcopy(rng.choice(VALUES))
    elif isinstance(inner, dict):
        inner[str(rng.choice(VALUES))[:50]] = inner.pop(last)
    else:
        del inner[last]
    return texts


def mutated_tensors(rng, tensors):
    """The tensors with one of another shape, dtype or content."""
    name = rng.choice(sorted(tensors))
    x = tensors[name]
    return tensors | {name: rng.choice([
        x[:0] if x.ndim else x, x.float().half(), torch.zeros(0), torch.zeros(3, 4, 5),
        x.reshape(-1), torch.full_like(x.float(), float("nan")),
        torch.full_like(x.float(), -1e30)]).clone()}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@mutations(2)
def test_contents_that_were_changed_give_one_error_or_are_harmless(
        count, seed, kind, files, tmp_path):
    read, form = KINDS[kind]
    tensors, texts = read_tensor_file(files / f"{kind}.safetensors", form)
    rng, refused = random.Random(seed), 0
    for _ in range(count):
        changed = mutated_tensors(rng, tensors) if rng.random() < 0.4 else tensors
        write_tensor_file(tmp_path / "mutated", form, changed, mutated_texts(rng, texts))
        refused += outcome(read, tmp_path / "mutated") is not None
    assert refused > count // 10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("count", "seed"), [
    (60, 3), *(pytest.param(1_000, 200 + part, marks=pytest.mark.faults) for part in range(4))])
def test_a_run_that_is_resumed_from_changed_contents_is_one_error_or_goes_on(
        count, seed, files, tmp_path):
    tensors, texts = read_tensor_file(files / "checkpoint.safetensors", CHECKPOINT_FORMAT)
    rng, refused, path = random.Random(seed), 0, tmp_path / "mutated"
    for _ in range(count):
        changed = mutated_tensors(rng, tensors) if rng.random() < 0.4 else tensors
        write_tensor_file(path, CHECKPOINT_FORMAT, changed, mutated_texts(rng, texts))
        try:
            with PPO.resume(path, lambda: Chance(*SPACES)) as ppo:
                ppo.update(ppo.collect())
        except Error:
            refused += 1
    assert refused > count // 4


def lying(files, tmp_path, change):
    """The error of a policy's file whose texts and tensors `change` has changed."""
    tensors, texts = read_tensor_file(files / "policy.safetensors", POLICY_FORMAT)
    change(tensors, texts)
    write_tensor_file(tmp_path / "lies", POLICY_FORMAT, tensors, texts)
    return outcome(load, tmp_path / "lies")


def deep(levels):
    return {"parts": [deep(levels - 1)]} if levels else {"n": 2, "start": 0}


LIES = {
    "a billion actions": lambda x, t: t.update(act_space={"n": 10**9, "start": 0}),
    "200 levels": lambda x, t: t.update(obs_space=deep(200)),
    "bounds that are no numbers": lambda x, t: x["act_space.low"].fill_(float("nan")),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_refused(lie, files, tmp_path):
    assert lying(files, tmp_path, LIES[lie]) is not None


SETTINGS = {
    "a billion frames of an action": dict(frame_skip=10**9),
    "a million threads": dict(torch_threads=10**6),
    "a model to import": dict(model="pwn:go"), "an environment to import": dict(env_name="pwn:go"),
    "an environment to evaluate in": dict(eval_env="pwn:go", eval_interval=64),
    "a function to abort with": dict(eval_env="os:abort"), "a loss to import": dict(loss="pwn:go"),
    "an optimizer to import": dict(optimizer="pwn:go"),
    "negative steps": dict(num_steps=-1), "other environments": dict(num_envs=99),
}


@pytest.mark.parametrize("lie", SETTINGS)
def test_a_checkpoint_whose_settings_lie_is_refused_and_imports_nothing(
        lie, files, tmp_path, monkeypatch):
    (tmp_path / "pwn.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "checkpoint.safetensors"
    tensors, texts = read_tensor_file(files / "checkpoint.safetensors", CHECKPOINT_FORMAT)
    texts["config"].update(SETTINGS[lie])
    write_tensor_file(path, CHECKPOINT_FORMAT, tensors, texts)
    with pytest.raises((CheckpointError, ConfigError)):
        PPO.resume(path, chance, num_workers=0)
    assert "pwn" not in sys.modules


def test_a_checkpoint_does_not_choose_where_files_are_written(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tensors, texts = read_tensor_file(files / "checkpoint.safetensors", CHECKPOINT_FORMAT)
    texts["config"].update(run_dir=str(tmp_path / "evil"), worker_env=["AWS_SECRET_KEY"])
    write_tensor_file(tmp_path / "c", CHECKPOINT_FORMAT, tensors, texts)
    with PPO.resume(tmp_path / "c", chance) as ppo:
        assert (ppo.config.run_dir, ppo.config.worker_env) == (None, None)
    assert not (tmp_path / "evil").exists()


def test_no_link_is_followed_out_of_a_folder_of_a_run(files, tmp_path):
    from fastppo.runs.checkpoint import find_checkpoint
    (tmp_path / "checkpoint-000000000099.safetensors").symlink_to("/dev/zero")
    (tmp_path / "checkpoint-000000000007.safetensors").write_bytes(
        (files / "checkpoint.safetensors").read_bytes())
    assert find_checkpoint(tmp_path).path.name.endswith("007.safetensors")


# ---- memory ------------------------------------------------------------------------------------

def with_header(header, data=b""):
    """The bytes of a safetensors file with a header, a JSON value or its text, that may lie."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + data


FORMATS = {"format": POLICY_FORMAT, "sha256": "0" * 64}


def claiming(shape, offsets=(0, 64), dtype="F32"):
    """A file with 64 bytes, and one tensor that is what it says."""
    part = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    return with_header({"__metadata__": FORMATS, "x": part}, bytes(64))


BITS = {"BOOL": 8, "I8": 8, "U16": 16, "F16": 16, "BF16": 16, "U64": 64, "C64": 64, "F4": 4,
        "F8_E4M3": 8, "F8_E8M0": 8, "F1024": 1}  # of a number of a dtype; there is no last one
TENSOR = '"dtype": "F32", "shape": [16], "data_offsets": [0, 64]'
PLAIN = json.loads(f"{{{TENSOR}}}")
HOSTILE = {
    **{f"numbers of {name}": claiming([512 // bits], dtype=name) for name, bits in BITS.items()},
    "a huge shape": claiming([10**12], [0, 4 * 10**12]),
    "a huge shape of few bytes": claiming([10**12]),
    "a shape whose product is too large": claiming([2**32, 2**32, 2**32]),
    "a shape whose product is zero": claiming([2**62, 0], [0, 0]),
    "a thousand axes": claiming([1] * 1000 + [16]),
    "a negative axis": claiming([-16]),
    "an axis that is no number": claiming(["16"]),
    "offsets beyond the end": claiming([16], [10**15, 10**15 + 64]),
    "offsets in turned order": claiming([16], [64, 0]),
    "the largest offsets": claiming([16], [2**64 - 65, 2**64 - 1]),
    "offsets that overlap": with_header({"x": PLAIN, "y": PLAIN, "z": PLAIN}, bytes(64)),
    "offsets with a gap": with_header({"x": PLAIN, "y": PLAIN | {"data_offsets": [128, 192]}},
                                      bytes(192)),
    "a tensor twice": with_header(f'{{"x": {{{TENSOR}}}, "x": {{{TENSOR}}}}}', bytes(64)),
    "a key twice": with_header(f'{{"x": {{{TENSOR}, "shape": [{10**12}]}}}}', bytes(64)),
    "a text twice": with_header('{"__metadata__": {"format": "a", "format": "b"}}'),
    "10,000 levels": with_header('{"x": ' + "[" * 10_000 + "]" * 10_000 + "}"),
    "10,000 levels of metadata": with_header('{"__metadata__": ' * 10_000 + "1" + "}" * 10_000),
    "half of a byte": claiming([127], dtype="F4"),
    "metadata that are no texts": with_header({"__metadata__": {"format": 1}, "x": PLAIN}),
    "a header that is a list": with_header([1, 2, 3]),
    "no header": (0).to_bytes(8, "little") + bytes(64),
    "a header longer than the file": (1 << 21).to_bytes(8, "little") + b"{}",
    "a header of 2**63 bytes": (1 << 63).to_bytes(8, "little") + b"{}",
    "a header of spaces": with_header("{}" + " " * (3 << 20)),
    "a long text": with_header({"__metadata__": FORMATS | {"state": "[" * (3 << 20)}}),
    "40,000 tensors": with_header({f"x{i}": PLAIN for i in range(40_000)}, bytes(64)),
    "nothing": b"",
}
NO_FILES = {
    "a link to endless zeros": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a pipe": os.mkfifo,
    "a link to a pipe": lambda path: (os.mkfifo(f"{path}-"), path.symlink_to(f"{path}-")),
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path.name),
}
EXTRA = 300  # MB of address space that reading may take, and 100 MB of memory

READER = """
import resource, sys
from pathlib import Path
from fastppo import load
from fastppo.errors import Error
from fastppo.runs.checkpoint import find_checkpoint
def outcome(path):
    for read in (load, find_checkpoint):
        try:
            read(path)
            yield "read"
        except Error as error:
            assert len(str(error)) < 20_000
            yield "memory" if "MemoryError" in str(error) or "allocate" in str(error) else "error"
sound, *paths = map(Path, sys.argv[1:])
list(outcome(sound))  # what the first one imports is no part of the others
with open("/proc/self/statm") as file:
    space = int(file.read().split()[0]) * resource.getpagesize() + ({extra} << 20)
resource.setrlimit(resource.RLIMIT_AS, (space, space))
for path in paths:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(path.name, *outcome(path), end=" ")
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, flush=True)
"""


@pytest.mark.full
def test_no_file_makes_its_reader_take_the_memory_that_it_claims_or_wait(files, tmp_path):
    names = {}
    for name, make in [*HOSTILE.items(), *NO_FILES.items()]:
        path = tmp_path / str(len(names))
        path.write_bytes(make) if isinstance(make, bytes) else make(path)
        names[path.name] = name
    for name, lie in LIES.items():
        tensors, texts = read_tensor_file(files / "policy.safetensors", POLICY_FORMAT)
        lie(tensors, texts)
        write_tensor_file(tmp_path / str(len(names)), POLICY_FORMAT, tensors, texts)
        names[str(len(names))] = name
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READER.format(extra=EXTRA),
         files / "policy.safetensors", *[tmp_path / name for name in names]],
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    found = {names[line.split()[0]]: line.split()[1:] for line in done.stdout.splitlines()}
    assert done.returncode == 0, (done.stderr, found)
    assert {name: one for name, one in found.items() if one[:2] != ["error", "error"]} == {}
    assert {name: one for name, one in found.items() if int(one[2]) > 100} == {}
    assert [*found] == [*names.values()]
