"""The compiled convolutions: what they act and learn equals torch's network, in float64."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from asked_of_runs import plan_array
from gymnasium.spaces import Box, Dict, Discrete
from torch.nn import functional as F

from fastppo import PPO
from fastppo.learner import total_loss
from fastppo.machine import kernels
from fastppo.machine.kernels import CONVOLUTION, FLATTEN
from fastppo.update.batches import PolicyOutput, flatten_rollout, normalise_advantages
from fastppo.update.schedules import coefficients_at

pytestmark = pytest.mark.skipif(not kernels.COMPILED, reason="no compiled extension")

# Channels first and last, one plane, frames of colours, sides that differ, odd sizes.
SHAPES = [(4, 84, 84), (84, 84, 3), (60, 45), (1, 40, 52), (2, 37, 48, 3), (2, 3, 36, 36)]


class Noise(gym.Env):
    """Random images; one action is right."""

    def __init__(self, shape, act_space=None, most=255):
        self.observation_space = Box(0, most, shape, np.uint8)
        self.action_space = act_space or Discrete(3)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._image(), {}

    def step(self, action):
        self.steps += 1
        return self._image(), float(np.all(action == 1)), self.steps == 9, False, {}

    def _image(self):
        space = self.observation_space
        return self.np_random.integers(0, 1 + int(space.high.max()), space.shape, np.uint8)


def trainer(shape, most=255, **settings):
    act_space = settings.pop("act_space", None)
    fixed = dict(model="cnn", preset="none", num_envs=4, num_steps=19, num_minibatches=1, epochs=1,
                 seed=3, num_workers=0)
    return PPO(lambda: Noise(shape, act_space, most), **fixed | settings)


def gradient(policy, learner, batch, coefs):
    """The gradient of one minibatch in float64, by torch."""
    exact, adv = copy.deepcopy(policy).double(), normalise_advantages(batch.adv)
    batch = batch._replace(adv=adv)
    params, val = exact.net(policy.observer(batch.obs).double())
    logp, ent = exact.head.evaluate(params, batch.act)
    loss = total_loss(PolicyOutput(logp, ent, val), batch, coefs)[0]
    return torch.cat([x.flatten() for x in torch.autograd.grad(loss, list(exact.parameters()))])


@pytest.mark.parametrize("shape, most", [*((shape, 255) for shape in SHAPES), (SHAPES[2], 3)],
                         ids=str)
def test_values_and_gradients_of_a_cnn_equal_torchs_in_float64(shape, most):
    with trainer(shape, most=most) as ppo:
        assert (ppo.config.acting, ppo.config.learner) == ("local", "kernel")
        rollout, learner = ppo.collect(), ppo.learner
        batch = flatten_rollout(rollout, torch.device("cpu"))
        with torch.no_grad():
            val = copy.deepcopy(ppo.policy).double().net(ppo.policy.observer(batch.obs).double())[1]
        torch.testing.assert_close(batch.val.double(), val, rtol=1e-5, atol=1e-5)
        want = gradient(ppo.policy, learner, batch, coefficients_at(ppo.config, 1.0))
        ppo.update(rollout)
        found = torch.from_numpy(learner.buffers.grads[0][:len(want)]).double()
        error = (found - want).abs() / want.abs().max()
        # A ReLU whose input is 0 but for rounding may be on in one of them: weights of one channel.
        assert error.max() <= 1e-3 and (error > 1e-5).double().mean() <= 0.01


@pytest.mark.parametrize("settings", [
    dict(shared_critic=False), dict(act_space=Box(-1, 1, (2,), np.float32)),
    dict(num_minibatches=3), dict(epochs=3, clip_range_vf=0.2, entropy_coef=0.02)], ids=str)
def test_a_cnn_learns_what_torch_learns(settings):
    weights = []
    for learner in ("kernel", "torch"):
        with trainer((36, 36, 3), learner=learner, precision="fp32", **settings) as ppo:
            start = ppo.learner.flat.state
            ppo.update(ppo.collect())
            weights.append(ppo.learner.flat.values - start)
    # Adam's first steps are signs of gradients: those near 0 differ.
    assert (weights[0] - weights[1]).abs().quantile(0.999) < 1e-5


@pytest.mark.full
def test_the_same_bits_for_any_number_of_workers():
    found = set()
    for workers in (0, 1, 2, 3):
        with trainer((4, 36, 36), num_workers=workers, num_steps=32, num_minibatches=2) as ppo:
            ppo.learn(256)
            assert ppo.config.learner == "kernel"
            found.add(ppo.learner.flat.values.numpy().tobytes())
    assert len(found) == 1


def test_a_cnn_of_an_image_among_other_observations_is_torchs():
    class Mixed(Noise):
        def __init__(self):
            super().__init__((36, 36))
            self.observation_space = Dict(image=self.observation_space, x=Box(-1, 1, (2,)))

        def _image(self):
            return {"image": np.zeros((36, 36), np.uint8), "x": np.zeros(2, np.float32)}

    with PPO(Mixed, model="cnn", num_envs=2, num_steps=8,
             num_minibatches=1, num_workers=0) as ppo:
        assert (ppo.config.acting, ppo.config.learner) == ("central", "torch")


def test_convolutions_of_any_size_and_stride_equal_torchs():
    rng = np.random.default_rng(0)
    for channels, side, wide, size, stride, outputs in [
            (1, 9, 7, 1, 1, 16), (3, 12, 9, 3, 2, 32), (5, 8, 8, 8, 3, 16), (2, 11, 30, 4, 4, 48)]:
        weight = rng.normal(size=(outputs, channels, size, size)).astype(np.float32)
        bias = rng.normal(size=outputs).astype(np.float32)
        x = rng.normal(size=(3, side, wide, channels)).astype(np.float32)
        images = torch.from_numpy(x).double().permute(0, 3, 1, 2)
        want = F.conv2d(images, torch.from_numpy(weight).double(),
                        torch.from_numpy(bias).double(), stride).relu().flatten(1).numpy()
        inputs, out = x[0].size, want.shape[1]
        plan = plan_array([
            (0, 1, inputs, out, 0, weight.size, 2, CONVOLUTION, channels, wide, size, stride),
            (1, -1, out, out, 0, 0, 0, FLATTEN, outputs)])
        packed = np.empty(kernels.packed_size(plan), np.float32)
        kernels.pack(plan, np.concatenate([weight.ravel(), bias]), packed)
        found = np.empty((3, out), np.float32)
        kernels.forward(plan, packed, None, None, x.reshape(3, inputs), found)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
