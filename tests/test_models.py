"""Settings and networks: which of them the compiled kernels serve."""

import pytest


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
