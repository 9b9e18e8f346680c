"""Settings and networks: which of them the compiled kernels serve."""

import threading

import pytest
import torch


@pytest.mark.parametrize("widths", [(8,), (2500, 500), (8,) * 16])
def test_auto_takes_the_kernels_as_far_as_they_serve(trainer, widths):
    ppo = trainer("CartPole-v1", hidden_sizes=widths, learner="auto", num_steps=1)
    assert (ppo.config.acting, ppo.config.learner) == ("local", "kernel")
    ppo.update(ppo.collect())


@pytest.mark.parametrize("widths", [(3000, 500), (6200,), (8,) * 17])
def test_auto_takes_torch_for_a_network_too_large_for_the_kernels(trainer, widths):
    ppo = trainer("CartPole-v1", hidden_sizes=widths, learner="auto", num_steps=1)
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
