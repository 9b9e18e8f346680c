"""Frames stored once: a run is bit for bit the run that stores whole stacks."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FrameStackObservation
from optional_packages import NEEDS_EXTENSION

from fastppo import PPO
from fastppo.compiled.learner import update_coefficients
from fastppo.errors import KernelError
from fastppo.machine import kernels
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.workers.worker import arena_samples

DEPTH = 3


class Random(gym.Env):
    """Random images and episodes of random length, also of a single step."""

    observation_space, action_space = Box(0, 255, (36, 36), np.uint8), Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._image(), {}

    def step(self, action):
        ends, fails = self.np_random.random(2) < (0.25, 0.02)
        reward = np.nan if fails else float(action)
        return self._image(), reward, bool(ends and action != 1), bool(ends and action == 1), {}

    def _image(self):
        return self.np_random.integers(0, 256, (36, 36), np.uint8)


class Colours(Random):
    """The same in colours."""

    observation_space = Box(0, 255, (36, 40, 3), np.uint8)

    def _image(self):
        return self.np_random.integers(0, 256, (36, 40, 3), np.uint8)


def runs(**settings):
    """Two trainers that differ in nothing but in how stacks are stored: once, and whole."""
    fixed = dict(model="cnn", preset="none", num_envs=5, num_steps=16, num_minibatches=2, epochs=2,
                 seed=3, num_workers=0, nan_policy="reset_env", max_episode_steps=None)
    kind = settings.pop("env", Random)
    return (PPO(kind, frame_stack=DEPTH, **fixed | settings),
            PPO(lambda: FrameStackObservation(kind(), DEPTH), **fixed | settings))


@pytest.mark.some(1)
@pytest.mark.parametrize("settings", [
    {}, dict(env=Colours), dict(num_workers=2), dict(num_workers=2, acting="central"),
    dict(learner="torch"), dict(learner="torch", num_workers=2, num_microbatches=2),
    dict(rnn="gru"), dict(rnn="gru", num_workers=2), dict(rnn="mingru"),
    dict(rnn="mingru", num_workers=2), dict(recompute_advantages=True),
    dict(num_steps=2, num_minibatches=1), dict(num_steps=1, num_minibatches=1),
    dict(num_steps=7, num_workers=1)], ids=str)
def test_a_run_is_the_same_as_with_whole_stacks(settings):
    once, whole = runs(**settings)
    with once, whole:
        for _ in range(4):
            rollouts = once.collect(), whole.collect()
            assert isinstance(rollouts[0].obs, FrameStacks) and torch.is_tensor(rollouts[1].obs)
            assert torch.equal(rollouts[0].obs.tensor(), rollouts[1].obs)
            for name in ("act", "logp", "val", "nxt", "adv", "valid", "trunc"):
                one, two = (getattr(rollout, name) for rollout in rollouts)
                assert one.numpy().tobytes() == two.numpy().tobytes(), name
            once.update(rollouts[0])
            whole.update(rollouts[1])
            assert torch.equal(once.learner.flat.values, whole.learner.flat.values)
        kernel = kernels.COMPILED and once.config.rnn != "gru"
        assert once.config.learner == settings.get("learner", "kernel" if kernel else "torch")


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_continues_bit_for_bit(tmp_path, workers):
    straight, path = runs(num_workers=workers)[0], tmp_path / "c.safetensors"
    with straight:
        for iteration in range(4):
            straight.update(straight.collect())
            if iteration == 1:
                straight.checkpoint(path)
        with PPO.resume(path, Random, num_workers=workers) as again:
            again.update(again.collect())
            again.update(again.collect())
            assert torch.equal(again.rollout.obs.tensor(), straight.rollout.obs.tensor())
            assert torch.equal(again.learner.flat.values, straight.learner.flat.values)


@pytest.mark.full
def test_a_frame_is_stored_once():
    once, whole = runs(num_steps=128)
    with once, whole:
        frames, single = once.arena["frames"].nbytes, 128 * 5 * 36 * 36
        assert single < frames + once.arena["obs"].nbytes + once.arena["fin"].nbytes < 1.3 * single
        assert whole.arena["obs"].nbytes > DEPTH * single and not whole.arena["frames"].size


def test_stacks_are_read_as_their_tensor_is():
    once, whole = runs()
    with once, whole:
        obs, want = once.collect().obs, whole.collect().obs
        assert (obs.shape, obs.dtype, len(obs)) == (want.shape, want.dtype, len(want))
        for index in (2, slice(3, 5), (1, 2), (..., 0), (slice(None), 1, 2), [0, 4],
                      once.rollout.valid.new_ones(17)):
            assert torch.equal(obs[index], want[index]), index
        which = torch.tensor([3, 0, 3])
        for other in (obs.index_select(0, which), obs.narrow(0, 2, 4), obs.flatten(0, 1)):
            assert isinstance(other, FrameStacks)
        assert torch.equal(obs.index_select(0, which).tensor(), want[which])
        assert torch.equal(obs.flatten(0, 1).narrow(0, 7, 9).tensor(), want.flatten(0, 1)[7:16])
        assert torch.equal(obs.float().mean(), want.float().mean())
        assert (obs.numpy() == want.numpy()).all()
        for ppo in (once, whole):
            assert (ppo.collector.rollout.obs.numpy()[:16:5] == want.numpy()[:16:5]).all()


@NEEDS_EXTENSION
def test_stacks_that_do_not_fit_the_frames_are_refused():
    with runs()[0] as ppo:
        ppo.collect()
        recipe, obs = ppo.learner.plan, ppo.rollout.obs
        terms = update_coefficients(ppo.config, ppo.coefficients)
        samples = arena_samples(ppo.arena, False)
        stacks, order = samples.stacks, np.arange(4)
        for wrong in (stacks[:-1], stacks[:, :2], stacks.astype("i4"), stacks + len(obs.frames),
                      stacks - len(obs.frames), stacks[:, :0]):
            with pytest.raises(KernelError, match="stacks|obs"):
                kernels.MinibatchUpdate(*recipe, ppo.learner.buffers, samples._replace(
                    stacks=np.ascontiguousarray(wrong)), order, terms)
        mlp = PPO("CartPole-v1", preset="none", num_envs=2, num_steps=8, num_minibatches=1, seed=1)
        with mlp, pytest.raises(KernelError, match="stacks"):
            mlp.collect()
            kernels.MinibatchUpdate(
                *mlp.learner.plan, mlp.learner.buffers, arena_samples(
                    mlp.arena, False)._replace(stacks=np.zeros((16, 1), np.int64)), order, terms)


def test_only_images_are_stored_by_frame():
    with PPO("CartPole-v1", frame_stack=2, preset="none", num_envs=2, num_steps=8,
             num_minibatches=1, seed=1) as ppo:
        assert ppo.collect().obs.shape == (9, 2, 2, 4) and not ppo.arena["frames"].size


def test_a_loss_of_ones_own_sees_tensors():
    seen = []

    def loss(fresh, batch, coefs):
        seen.append(type(batch.obs))
        return fresh.val.mean(), {}
    with runs(loss=loss)[0] as ppo:
        ppo.update(ppo.collect())
    assert set(seen) == {torch.Tensor}
