"""Files that somebody else wrote: each gives one error of ours, or a policy that acts, and soon.

Mutations of bytes, which the checksum finds, and of contents under a checksum that is right.
"""

import copy
import json
import random
import time

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from fastppo import PPO, load
from fastppo.errors import CheckpointError, Error
from fastppo.files.checkpoint import CHECKPOINT_FORMAT, read_checkpoint
from fastppo.files.policy_file import POLICY_FORMAT
from fastppo.files.tensor_file import read_tensor_file, write_tensor_file

SPACES = (Dict(a=Box(-5, 5, (3,), np.float32), b=Discrete(3),
               c=Tuple([MultiBinary(2), MultiDiscrete([2, 3])])), Box(-1, 1, (2,), np.float32))
TINY = dict(preset="none", seed=1, num_envs=2, num_steps=8, num_minibatches=1, epochs=1,
            num_workers=0, hidden_sizes=(4,), action_scaling=True)
SECONDS = 5.0  # a guard: each file takes some milliseconds
VALUES = [None, True, -1, 0, 10**9, 10**30, 1e308, float("nan"), float("inf"), "", "x", "O",
          "V99999999", "<U999999", "M8[s]", [], [[]], {}, {"n": 10**9}, {"tensor": "x"},
          {"list": [{}]}, "__import__('os')", "a" * 10_000, [1] * 5_000]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A policy and a checkpoint, by the function that reads them."""
    folder = tmp_path_factory.mktemp("files")
    with PPO(lambda: Chance(*SPACES), **TINY) as ppo:
        ppo.learn(32)
        ppo.save(folder / "policy.safetensors")
        ppo.checkpoint(folder / "checkpoint.safetensors")
    return folder


KINDS = {"policy": (load, POLICY_FORMAT), "checkpoint": (read_checkpoint, CHECKPOINT_FORMAT)}


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
def test_bytes_that_were_changed_are_found(kind, files, tmp_path):
    read, _ = KINDS[kind]
    data, rng = (files / f"{kind}.safetensors").read_bytes(), random.Random(1)
    path = tmp_path / "mutated"
    for _ in range(500):
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_contents_that_were_changed_give_one_error_or_are_harmless(kind, files, tmp_path):
    read, form = KINDS[kind]
    tensors, texts = read_tensor_file(files / f"{kind}.safetensors", form, "", "")
    rng, refused = random.Random(2), 0
    for _ in range(500):
        changed = mutated_tensors(rng, tensors) if rng.random() < 0.4 else tensors
        write_tensor_file(tmp_path / "mutated", form, changed, mutated_texts(rng, texts))
        refused += outcome(read, tmp_path / "mutated") is not None
    assert refused > 50


def lying(files, tmp_path, change):
    """The error of a policy's file whose texts and tensors `change` has changed."""
    tensors, texts = read_tensor_file(files / "policy.safetensors", POLICY_FORMAT, "", "")
    change(tensors, texts)
    write_tensor_file(tmp_path / "lies", POLICY_FORMAT, tensors, texts)
    return outcome(load, tmp_path / "lies")


def deep(levels):
    return {"parts": [deep(levels - 1)]} if levels else {"n": 2, "start": 0}


LIES = {
    "a dtype of 100 MB": lambda x, t: t["act_space"].update(dtype="V99999999"),
    "20,000 parts": lambda x, t: t.update(obs_space={"parts": [{"n": 2, "start": 0}] * 20_000}),
    "200 levels": lambda x, t: t.update(obs_space=deep(200)),
    "a billion bits": lambda x, t: t.update(obs_space={"bits": 10**9}),
    "a billion bits in many axes": lambda x, t: t.update(obs_space={"bits": [1000, 1000, 1000]}),
    "infinite bounds": lambda x, t: x["act_space.high"].fill_(float("inf")),
    "bounds that are no numbers": lambda x, t: x["act_space.low"].fill_(float("nan")),
    "a large network": lambda x, t: t["config"].update(hidden_sizes=[20_000, 20_000]),
    "a negative count": lambda x, t: x["observer.count"].fill_(-1),
    "an infinite count": lambda x, t: x["observer.count"].fill_(float("inf")),
    "a negative variance": lambda x, t: x["observer.m2"].fill_(-1),
    "a mean that is no number": lambda x, t: x["observer.mean"].fill_(float("nan")),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_refused(lie, files, tmp_path):
    assert lying(files, tmp_path, LIES[lie]) is not None


def test_a_header_of_a_million_tensors_is_refused_before_it_is_read(tmp_path):
    header = json.dumps({f"x{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
                         for i in range(10**5)}).encode()
    for kind, (read, _) in KINDS.items():
        path = tmp_path / kind
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(CheckpointError, match="header is longer"):
            read(path)


def test_no_link_is_followed_out_of_a_folder_of_a_run(files, tmp_path):
    from fastppo.files.checkpoint import find_checkpoint
    (tmp_path / "checkpoint-000000000099.safetensors").symlink_to("/dev/zero")
    (tmp_path / "checkpoint-000000000007.safetensors").write_bytes(
        (files / "checkpoint.safetensors").read_bytes())
    assert find_checkpoint(tmp_path).path.name.endswith("007.safetensors")
