"""A device changes where the network computes, and not what: the CPU's results are the measure.

Every test also runs with the CPU as the device, so that it is tried where there is no GPU.
"""

from functools import partial

import numpy as np
import pytest
import torch
from envs_for_tests import Chance, Fenced
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from tiny_settings import TINY

from fastppo import PPO, load
from fastppo.networks.torch_state import gpu_arithmetic

FLOATS, BOX = Box(-5, 5, (3,), np.float32), Box(-1, 1, (2,), np.float32)
IMAGE = Box(0, 255, (36, 36), np.uint8)
CHANCE = partial(Chance, FLOATS)


class Recurrent(torch.nn.Module):
    """A model of the user's with a memory, which cuDNN computes; its dropout is never on."""

    state_size = 8

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.cell, self.heads = torch.nn.GRU(3, 4, 2, dropout=0.5), torch.nn.Linear(4, 4)

    def forward(self, obs, state):
        out, state = self.cell(obs[None], torch.stack(state.chunk(2, -1)))
        out = self.heads(out[0])
        return out[:, :3], out[:, 3], torch.cat([*state], -1)


CASES = {
    "categorical": (partial(CHANCE, Discrete(3)), {}),
    "gaussian": (partial(CHANCE, BOX), dict(norm_rewards=True, entropy_coef=0.01)),
    "squashed": (partial(CHANCE, BOX), dict(distribution="squashed")),
    "beta": (partial(CHANCE, BOX), dict(distribution="beta")),
    "sde": (partial(CHANCE, BOX), dict(sde=True)),
    "choices": (partial(CHANCE, MultiDiscrete([2, 3])), dict(norm_values=True)),
    "masked": (partial(Fenced, "method", Discrete(4), FLOATS), {}),
    "parts": (partial(Chance, Dict(a=BOX, b=Discrete(3)), Discrete(2)), {}),
    "gru": (partial(CHANCE, Discrete(3)), dict(rnn="gru", rnn_size=4)),
    "lstm": (partial(CHANCE, BOX), dict(rnn="lstm", rnn_size=4)),
    "own gru": (partial(CHANCE, Discrete(3)), dict(model=Recurrent)),
    "images": (partial(Chance, IMAGE, Discrete(3)), dict(model="cnn", frame_stack=2)),
    "impala": (partial(Chance, IMAGE, Discrete(3)), dict(model="impala")),
    "sgd": (partial(CHANCE, Discrete(3)), dict(optimizer=torch.optim.SGD, lr=0.1)),
    "rates": (partial(CHANCE, Discrete(3)), dict(adaptive_kl=0.01, critic_lr=1e-3, target_kl=0.1)),
    "clipped": (partial(CHANCE, Discrete(3)), dict(clip_range_vf=0.2, dual_clip=3.0,
                                                   grad_clipping="network")),
    "parts of a minibatch": (partial(CHANCE, Discrete(3)), dict(num_microbatches=2, epochs=2)),
}
WITHOUT_GRAPH = "gru", "lstm", "own gru", "sgd"
CUDA = pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU with CUDA")])
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])
EACH = pytest.mark.parametrize("case", CASES)
STORED = pytest.mark.parametrize("case", [case for case in CASES if case != "own gru"])


def trained(case, device, iterations=3, **settings):
    """The trainer of a case after some iterations on a device, as a GPU has it; to be closed."""
    env, own = CASES[case]
    learner = "torch" if case in WITHOUT_GRAPH else "graph"
    ppo = PPO(env, **TINY | {"learner": learner} | own | {"device": device} | settings)
    for _ in range(iterations):
        ppo.update(ppo.collect())
    return ppo


def weights(ppo):
    """All that the policy holds, by name, as bytes that can be compared."""
    return {name: x.cpu().numpy().tobytes() for name, x in ppo.policy.state_dict().items()}


@DEVICES
@EACH
def test_an_update_on_a_device_is_that_of_the_cpu(case, device):
    exact = dict(precision="fp32")  # TF32 rounds to a thousandth
    with trained(case, "cpu", 0, learner="torch", **exact) as own, trained(
            case, device, 0, **exact) as other:
        assert weights(own) == weights(other)  # drawn alike
        rollout = own.collect()
        other.collect()
        own.update(rollout)
        other.update(rollout)
        assert other.learner.flat.values.device.type == device
        wanted, found = own.learner.flat.values, other.learner.flat.values.cpu()
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-5), (found - wanted).abs().max()


@pytest.mark.some(7)
@DEVICES
@EACH
def test_a_run_on_a_device_can_be_repeated(case, device):
    with trained(case, device) as one, trained(case, device) as two:
        assert weights(one) == weights(two)


@pytest.mark.some(20)
@DEVICES
@STORED
@gpu_arithmetic(False)
def test_actions_and_values_on_a_device_are_those_of_the_cpu(case, device, tmp_path):
    with trained(case, device, 1) as ppo:
        ppo.save(tmp_path / "policy.safetensors")
        own, other = (load(tmp_path / "policy.safetensors", at) for at in ("cpu", device))
        rows = ppo.source.factories[0]()
        rows.reset(seed=1)
        legal = {"action_mask": np.ones(4, bool)} if case == "masked" else {}
        for _ in range(5):
            obs = rows.observation_space.sample()
            assert np.allclose(*(np.ravel(policy.value(obs)) for policy in (own, other)),
                               rtol=1e-3, atol=1e-4)
            actions = [policy.predict(obs, **legal) for policy in (own, other)]
            actions = [answer[0] if case in ("gru", "lstm") else answer for answer in actions]
            assert np.allclose(*actions, rtol=1e-3, atol=1e-4)


@pytest.mark.some(5)
@DEVICES
@STORED
def test_a_resumed_run_on_a_device_is_the_run_that_was_not_stopped(case, device, tmp_path):
    path, (env, settings) = tmp_path / "checkpoint.safetensors", CASES[case]
    with trained(case, device, 2) as ppo:
        ppo.checkpoint(path)
        for _ in range(2):
            ppo.update(ppo.collect())
        wanted = weights(ppo)
    code = {name: x for name, x in settings.items() if name == "optimizer"}
    with PPO.resume(path, env, **code) as ppo:
        assert ppo.config.device == device
        for _ in range(2):
            ppo.update(ppo.collect())
        assert weights(ppo) == wanted


@DEVICES
def test_workers_change_no_bit_on_a_device(device):
    with trained("gaussian", device) as one, trained("gaussian", device, num_workers=2) as two:
        assert weights(one) == weights(two)


@DEVICES
def test_the_scripts_own_random_numbers_are_left_alone(device):
    def drawn():
        torch.manual_seed(5)
        return torch.rand(3, device=device)
    wanted = drawn()
    torch.manual_seed(5)
    with trained("sde", device) as ppo:
        ppo.evaluate(2)
    assert torch.equal(torch.rand(3, device=device), wanted)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")
def test_half_precision_learns_the_same_within_its_rounding():
    with trained("images", "cuda", 1) as own, trained("images", "cuda", 1, precision="bf16") as two:
        assert two.config.precision == "bf16"
        wanted, found = own.learner.flat.values, two.learner.flat.values
        assert found.dtype == torch.float32 and (found - wanted).abs().max() < 1e-2
