"""Settings and networks: which of them the compiled kernels serve."""

import threading
from functools import partial

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete
from optional_packages import NEEDS_EXTENSION

from fastppo import PPO, load
from fastppo.errors import ConfigError
from fastppo.networks.encoders import ActorCritic, DenseEncoder


@NEEDS_EXTENSION
@pytest.mark.parametrize("widths", [
    (8,), (2500, 500), (6200, 30), (8,) * 16,
    pytest.param((6200, 3000), marks=pytest.mark.slow)])
def test_auto_takes_the_kernels_as_far_as_they_serve(trainer, widths):
    ppo = trainer("CartPole-v1", hidden_sizes=widths, learner="auto", num_steps=1)
    assert (ppo.config.acting, ppo.config.learner) == ("local", "kernel")
    ppo.update(ppo.collect())


@pytest.mark.parametrize("settings", [
    {"hidden_sizes": (8,) * 17}, {"critic_hidden_sizes": (8,) * 17}])
def test_auto_takes_torch_for_a_network_too_deep_for_the_kernels(trainer, settings):
    ppo = trainer("CartPole-v1", **settings, learner="auto", num_steps=1)
    assert (ppo.config.acting, ppo.config.learner) == ("central", "torch")
    ppo.update(ppo.collect())


@NEEDS_EXTENSION
@pytest.mark.parametrize("critic", [(33, 5, 16), (70,), ()])
@pytest.mark.parametrize("act_space", [Discrete(3), Box(-1, 1, (2,))], ids=["choices", "numbers"])
def test_a_critic_of_other_widths_learns_in_the_kernels_what_it_learns_in_torch(
        trainer, tmp_path, critic, act_space):
    found = {}
    for learner, workers in (("kernel", 0), ("kernel", 3), ("torch", 0)):
        ppo = trainer(lambda: Chance(act_space=act_space), hidden_sizes=(16, 8), learner=learner,
                      critic_hidden_sizes=critic, acting="local", num_workers=workers, epochs=2,
                      num_minibatches=2)
        assert ppo.policy.net.actor_body.widths[1:] == [16, 8]
        assert ppo.policy.net.critic_body.widths[1:] == [*critic]
        ppo.learn(96)
        found[learner, workers] = ppo.learner.flat.values.numpy().copy()
        again = load(ppo.save(tmp_path / "model.safetensors"))
        for one, other in zip(again.parameters(), ppo.policy.parameters(), strict=True):
            assert torch.equal(one, other)
        obs = ppo.policy.obs_space.sample()
        # On a Zen 4 a product of torch's depends in its last bit on where a matrix begins.
        assert again.value(obs) == pytest.approx(ppo.policy.value(obs), rel=1e-6)
    assert np.array_equal(found["kernel", 0], found["kernel", 3])
    np.testing.assert_allclose(found["kernel", 0], found["torch", 0], atol=1e-4)


def test_a_critic_of_other_widths_shares_no_layers(trainer):
    seen = Dict(eye=Box(0, 255, (40, 40), np.uint8), own=Box(-1, 1, (2,)))
    net = trainer(lambda: Chance(seen), critic_hidden_sizes=(5,)).policy.net
    assert net.actor_body is not net.critic_body
    assert (net.actor_body.size, net.critic_body.size) == (8, 5)
    with pytest.raises(ConfigError, match="(?s)share all layers but the last.*leave critic_hidden"):
        trainer("CartPole-v1", shared_critic=True, critic_hidden_sizes=(8,))
    with pytest.raises(ConfigError, match=r"critic_hidden_sizes is \(0,\), but must be such as"):
        trainer("CartPole-v1", critic_hidden_sizes=(0,))


def test_auto_takes_torch_for_more_choices_than_the_kernels_draw_from(trainer):
    ppo = trainer(lambda: Chance(act_space=Discrete(6145)), learner="auto", num_steps=1)
    assert (ppo.config.acting, ppo.config.learner) == ("central", "torch")
    ppo.update(ppo.collect())


class Drawn(torch.nn.Module):
    """A network of the user's, whose layers draw from torch's own generator."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 3) for _ in range(20))

    def forward(self, obs):
        out = sum(layer(obs) for layer in self.layers)
        return out[:, :2], out[:, 2]


def test_own_models_built_in_threads_at_once_have_the_weights_of_their_seed(trainer):
    def build(seeds):
        for seed in seeds:
            ppo = trainer("CartPole-v1", model=Drawn, seed=seed)
            found.setdefault(seed, set()).add(ppo.learner.flat.values.numpy().tobytes())

    found, before = {}, torch.get_rng_state()
    threads = [threading.Thread(target=build, args=([1, 2] * 4,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, found.values())) == [1, 1]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("inputs", "widths"), [(3, (64, 16)), (90, (8, 32, 8))])
def test_layers_begin_orthogonal_with_gains_of_root_2_and_a_hundredth_and_1(inputs, widths, shared):
    generator = torch.Generator().manual_seed(3)
    bodies = [DenseEncoder(inputs, widths, "tanh", generator) for _ in range(2 - shared)]
    net = ActorCritic(bodies[0], bodies[-1], 5, generator)
    gains = {layer: 2 ** 0.5 for body in bodies for layer in list(body)[::2]}
    for layer, gain in (gains | {net.actor: 0.01, net.critic: 1.0}).items():
        weight = layer.weight.detach()
        rows = weight if weight.shape[0] <= weight.shape[1] else weight.T
        torch.testing.assert_close(rows @ rows.T, gain ** 2 * torch.eye(len(rows)))
        assert not layer.bias.any()


def test_layers_are_drawn_from_the_given_generator_alone():
    def weights(seed, others):
        torch.manual_seed(others)
        generator = torch.Generator().manual_seed(seed)
        net = ActorCritic(*(DenseEncoder(4, (64, 64), "tanh", generator) for _ in range(2)), 2,
                          generator)
        return torch.cat([x.flatten() for x in net.parameters()])

    first = weights(7, others=1)
    assert weights(7, others=2).equal(first) and not weights(8, others=1).equal(first)


def test_by_default_actor_and_critic_share_nothing_but_an_images_convolutions():
    def shared(**space):
        with PPO(lambda: Chance(**space), num_workers=0, seed=1) as ppo:
            net = ppo.policy.net
            return ppo.config.shared_critic, net.actor_body is net.critic_body
    assert shared(obs_space=Box(-1, 1, (3,))) == (False, False)
    assert shared(obs_space=Box(0, 255, (3, 40, 40), np.uint8)) == (True, True)


def test_without_a_preset_the_std_of_a_box_is_1_and_the_same_wherever_it_is_asked():
    env = partial(Chance, act_space=Box(-9, 9, (2,)))
    with PPO(env, preset="none", num_workers=0, seed=1) as ppo:
        params = [param for name, param in ppo.policy.named_parameters() if "log_std" in name]
        spreads = []
        for _ in range(2):
            obs = np.tile(ppo.policy.obs_space.sample(), (4000, 1))
            acts = ppo.policy.predict(obs, deterministic=False)
            spreads.append(acts.std(0))
    assert [param.tolist() for param in params] == [[0.0, 0.0]]
    np.testing.assert_allclose(spreads, 1.0, rtol=0.1)
