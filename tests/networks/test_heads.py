"""Action heads: densities, entropies and samples are those of the distributions they name."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from scipy import stats
from torch import distributions as law
from torch.nn import functional as F

from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.machine import kernels
from fastppo.machine.kernels import ActionNoise, Purpose
from fastppo.networks.action_heads import (
    Beta,
    SquashedGaussian,
    StateGaussian,
    first_std,
    fixed_std,
    make_head,
)

BOX = Box(np.float32([-1, 0]), np.float32([1, 4]))
CHOICES = {"categorical": Discrete(4), "categoricals": MultiDiscrete([[2, 5], [3, 1]]),
           "bernoulli": MultiBinary(3)}
BOXES = {"gaussian": Config(log_std_init=-0.5), "fixed": Config(std=0.3),
         "share": Config(std="10%"),
         "state": Config(distribution="state_gaussian", log_std_init=0.3, min_std=0.05),
         "squashed": Config(distribution="squashed", log_std_init=-0.7),
         "beta": Config(distribution="beta"), "sde": Config(sde=True, log_std_init=-0.4)}
HEADS = [*CHOICES, *BOXES, "composite"]
FEATURES, EXTREMES = 3, (0.0, float(np.nextafter(np.float32(1), np.float32(0))))
MIXED = Dict(a=Discrete(3), b=Tuple([BOX, MultiBinary(2)]), c=MultiDiscrete([2, 4]))


def made(name):
    """The head of that name, float64, so that errors are the formula's and not rounding's."""
    space = CHOICES.get(name, MIXED if name == "composite" else BOX)
    return make_head(space, BOXES.get(name, Config()), FEATURES).double()


def some_params(head, rows, seed=0, scale=1.0):
    """Random action parameters f64 [rows size]."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(0, scale, (rows, head.size)))


def noise_of(head, rows, seed=0):
    """The numbers that a policy would draw, f64 [rows k]."""
    return torch.from_numpy(ActionNoise(head.noise, seed, 0, rows).at(1).astype("f8"))


def told(name, head, x):
    """The factors of the distribution with parameters x [b p], each of torch.distributions."""
    if name in CHOICES:
        if name == "bernoulli":
            return [law.Bernoulli(logits=x[:, i]) for i in range(3)]
        sizes = [4] if name == "categorical" else [2, 5, 3, 1]
        return [law.Categorical(logits=part) for part in x.split(sizes, -1)]
    return [one_of(name, head, x, i) for i in range(2)]


def one_of(name, head, x, i):
    """The distribution of component i of a Box."""
    if name == "beta":
        alpha, beta = 1 + F.softplus(x[:, i]), 1 + F.softplus(x[:, 2 + i])
        return law.Beta(alpha, beta)
    if name == "state":  # a raw 0 is exp(log_std_init) + min_std
        shift = math.log(math.expm1(math.exp(0.3)))
        return law.Normal(x[:, i], F.softplus(x[:, 2 + i] + shift) + 0.05)
    if name == "sde":
        std = ((x[:, 2:].square() * (2 * head.log_std[:, i]).exp()).sum(1) + 1e-6).sqrt()
        return law.Normal(x[:, i], std)
    std = {"gaussian": math.exp(-0.5), "fixed": 0.3, "share": (0.2, 0.4)[i],
           "squashed": math.exp(-0.7)}[name]
    return law.Normal(x[:, i], torch.full_like(x[:, i], std))


def density(name, parts, act):
    """The sum over factors of log-probabilities of act [b k], in the head's own measure."""
    if name == "squashed":
        parts = [law.TransformedDistribution(p, law.TanhTransform(cache_size=1)) for p in parts]
        return sum(p.log_prob(p.transforms[0](act[:, i])) for i, p in enumerate(parts))
    act = act[:, None] if act.ndim == 1 else act
    return sum(part.log_prob(act[:, i].double()) for i, part in enumerate(parts))


@pytest.mark.parametrize("name", HEADS[:-1])
def test_log_probabilities_are_those_of_the_named_distribution(name):
    head = made(name)
    x = some_params(head, 500)
    act, logp = head.sample(x, noise_of(head, 500))
    parts = told(name, head, x)
    judged, ent = head.evaluate(x, act)
    torch.testing.assert_close(judged, density(name, parts, act), atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(logp, judged, atol=1e-7, rtol=1e-6)
    if name != "squashed":  # whose entropy is estimated: see below
        torch.testing.assert_close(ent, sum(part.entropy() for part in parts), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("std", [0.1, 0.5, 1.0])
def test_the_density_of_a_squashed_action_integrates_to_one_and_its_entropy_is_near(std):
    head = SquashedGaussian(2, math.log(std)).double()
    grid = torch.linspace(-12, 12, 40_001, dtype=torch.float64)
    for x in (0.0, 0.7, -2.5):
        params = torch.full((len(grid), 2), x, dtype=torch.float64)
        logp, ent = head.evaluate(params, grid[:, None].expand(-1, 2))
        logp = logp / 2  # both components are the same
        weight = logp.exp() * (1 - grid.tanh() ** 2)  # d tanh(x) = (1 - tanh(x)^2) dx
        assert torch.trapezoid(weight, grid).item() == pytest.approx(1, abs=1e-6)
        exact = -torch.trapezoid(weight * logp, grid).item()
        assert ent[0].item() / 2 == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize("name", ["gaussian", "fixed", "state", "sde", "beta"])
def test_densities_of_a_box_integrate_to_one_and_entropies_are_their_integral(name):
    head = made(name)
    x = some_params(head, 1, seed=4)
    grid = torch.linspace(1e-6, 1 - 1e-6, 1001, dtype=torch.float64) if name == "beta" else (
        torch.linspace(-25, 25, 1001, dtype=torch.float64))
    acts = torch.cartesian_prod(grid, grid)
    logp, ent = head.evaluate(x.expand(len(acts), -1), acts)
    logp, step = logp.reshape(1001, 1001), grid
    total = torch.trapezoid(torch.trapezoid(logp.exp(), step), step).item()
    whole = torch.trapezoid(torch.trapezoid(-logp * logp.exp(), step), step).item()
    assert total == pytest.approx(1, abs=1e-4) and ent[0].item() == pytest.approx(whole, abs=1e-3)


@pytest.mark.parametrize("name", ["gaussian", "state", "squashed", "sde", "beta"])
def test_samples_of_a_box_are_distributed_as_their_density(name):
    head, rows = made(name), 20_000
    x = some_params(head, 1, seed=2).expand(rows, -1)
    act, _ = head.sample(x, noise_of(head, rows, seed=5))
    for i, part in enumerate(told(name, head, x[:1])):
        cdf = stats.beta(part.concentration1.item(), part.concentration0.item()).cdf \
            if name == "beta" else stats.norm(part.mean.item(), part.stddev.item()).cdf
        assert stats.kstest(act[:, i].detach().numpy(), cdf).pvalue > 1e-3
    correlation = np.corrcoef(act.detach().numpy().T)[0, 1]
    assert abs(correlation) < 4 / math.sqrt(rows)


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_as_frequent_as_their_probabilities(name):
    head, rows = made(name), 20_000
    x = some_params(head, 1, seed=2).expand(rows, -1)
    act, _ = head.sample(x, noise_of(head, rows, seed=5))
    act = act.reshape(rows, -1)
    for i, part in enumerate(told(name, head, x[:1])):
        chance = part.probs[0] if name != "bernoulli" else torch.stack(
            [1 - part.probs[0], part.probs[0]])
        seen = torch.bincount(act[:, i], minlength=len(chance)).numpy()
        if len(chance) > 1:
            assert stats.chisquare(seen, chance.numpy() * rows).pvalue > 1e-3


def test_a_composite_is_the_sum_of_its_parts():
    head = made("composite")
    x = some_params(head, 200)
    act, logp = head.sample(x, noise_of(head, 200))
    judged, ent = head.evaluate(x, act)
    torch.testing.assert_close(logp, judged, atol=1e-5, rtol=1e-5)  # act is kept in float32
    heads = [make_head(space).double() for space in (Discrete(3), BOX, MultiBinary(2),
                                                   MultiDiscrete([2, 4]))]
    cuts = zip(x.split([3, 2, 2, 6], -1), act.double().split([1, 2, 2, 2], -1))
    acts = [(params, part.long() if i != 1 else part) for i, (params, part) in enumerate(cuts)]
    acts[0] = acts[0][0], acts[0][1][:, 0]
    apart = [one.evaluate(*pair) for one, pair in zip(heads, acts)]
    torch.testing.assert_close(judged, sum(logp for logp, _ in apart))
    torch.testing.assert_close(ent, sum(ent for _, ent in apart))
    modes = torch.cat([one.mode(x_).reshape(200, -1).double() for one, (x_, _) in zip(
        heads, acts)], -1)
    torch.testing.assert_close(head.mode(x).double(), modes)


@pytest.mark.parametrize("name", HEADS)
def test_the_mode_is_nowhere_less_likely_than_samples(name):
    head = made(name)
    x = some_params(head, 300)
    mode = head.mode(x).detach()
    if name == "squashed":  # its mode is that of the normal before the tanh
        return
    best = head.evaluate(x, mode)[0]
    for seed in range(5):
        assert (head.sample(x, noise_of(head, 300, seed))[1] <= best + 1e-5).all()


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_extreme_parameters_and_noise_leave_everything_finite(name, scale):
    head = made(name).float()
    x = some_params(head, 400, scale=scale).float().requires_grad_()
    noise = noise_of(head, 400).float()
    uniform = torch.tensor([letter == "u" for letter in head.noise])
    for row, value in enumerate(EXTREMES):
        noise[row, uniform] = value
    act, logp = head.sample(x, noise)
    judged, ent = head.evaluate(x, act.detach())
    assert act.isfinite().all() and judged.isfinite().all() and ent.isfinite().all()
    torch.testing.assert_close(judged, logp)  # of what is stored, however it was rounded
    (judged.sum() + ent.sum()).backward()
    assert x.grad.isfinite().all()


def test_all_attempts_of_a_beta_fail_less_than_once_in_a_million_draws():
    head, rows = Beta(1), 100_000
    tries = noise_of(head, rows).float().reshape(rows, 2, head.ROUNDS, 2)
    for shape in (1.0, 1.5, 4.0, 50.0):
        d = shape - 1 / 3
        z, u = tries[..., 0], tries[..., 1]
        v = (1 + z / (3 * math.sqrt(d))) ** 3
        good = (v > 0) & (u.log() < 0.5 * z**2 + d * (1 - v + v.clamp(min=1e-30).log()))
        assert (1 - good.float().mean().item()) ** head.ROUNDS < 1e-6 and good.any(-1).all()


# ---- options -----------------------------------------------------------------------------------

def test_a_fixed_std_is_what_was_asked_for_and_stays(trainer):
    for std, wanted in ((0.1, [0.1, 0.1]), ("10%", [0.2, 0.4])):
        ppo = trainer(partial(Chance, act_space=BOX), std=std)
        ppo.learn(256)
        np.testing.assert_allclose(ppo.policy.head.log_std.exp().detach(), wanted, rtol=1e-6)
        assert not ppo.policy.head.log_std.requires_grad


def test_a_free_std_is_learnt_from_where_it_was_told_to_begin(trainer):
    ppo = trainer(partial(Chance, act_space=BOX), log_std_init=-1.5)
    np.testing.assert_array_equal(ppo.policy.head.log_std.detach(), [-1.5, -1.5])
    ppo.learn(256)
    assert (ppo.policy.head.log_std != -1.5).all()


@pytest.mark.parametrize(("settings", "wanted"), [
    (dict(std="10%"), [0.2, 0.4]), (dict(std="2.5%"), [0.05, 0.1]),
    (dict(std="10%", action_scaling=True), [0.2, 0.2]),
    (dict(std="10%", distribution="squashed"), [0.2, 0.2])], ids=str)
def test_a_share_is_of_the_range_of_what_is_sampled(settings, wanted):
    np.testing.assert_allclose(fixed_std(BOX, Config(**settings)), wanted)


@pytest.mark.parametrize(("box", "settings", "wanted"), [
    (BOX, {}, [1, 2]), (Box(-3, 3, (3,)), {}, [3] * 3), (Box(-1, 1, (8,)), {}, [0.5] * 8),
    (Box(-np.inf, np.inf, (8,)), {}, [0.5] * 8), (Box(-3e38, 3e38, (2,)), {}, [1, 1]),
    (Box(2, 2, (2,)), {}, [1, 1]), (Box(0, 100, (4, 2), np.int64), {}, [25] * 8),
    (BOX, {"action_scaling": True}, [1, 1]), (BOX, {"distribution": "squashed"}, [1, 1])], ids=str)
def test_the_first_noise_fits_the_range_and_the_number_of_actions(box, settings, wanted):
    config = Config(log_std_init="auto", **settings)
    np.testing.assert_allclose(first_std(box, config), wanted)
    head = make_head(box, config)
    np.testing.assert_allclose(head.log_std.detach().exp(), wanted, rtol=1e-6)


@pytest.mark.parametrize("settings", [{"distribution": "state_gaussian"}, {"sde": True}], ids=str)
def test_noise_that_depends_on_the_state_begins_by_the_same_rule(settings):
    config = Config(log_std_init="auto", **settings)
    head = make_head(BOX, config, features=1)
    params = torch.zeros(1, head.size) if "distribution" in settings else torch.ones(1, head.size)
    np.testing.assert_allclose(head.std(params).detach(), first_std(BOX, config), rtol=1e-4)


def test_the_std_of_a_state_gaussian_never_falls_below_its_floor():
    head = StateGaussian(1, -1.0, "clip", 1.0, 0.2).double()
    raw = torch.linspace(-200, 50, 501, dtype=torch.float64)
    act, _ = head.sample(torch.stack([raw * 0, raw], 1), torch.ones(501, 1, dtype=torch.float64))
    assert (act >= 0.2).all() and act[0, 0].item() == pytest.approx(0.2)
    start = head.sample(torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 1))[0].item()
    assert start == pytest.approx(math.exp(-1.0) + 0.2)


@pytest.mark.parametrize("scale", [1e-3, 0.5, 1.0, 1e3])
@pytest.mark.parametrize("init", [-20.0, -3.0, 0.0, 4.0, 20.0])
def test_a_state_gaussian_begins_with_any_std(init, scale):
    head = StateGaussian(1, init, "clip", scale, 0.0).double()
    act, _ = head.sample(torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 1))
    assert act.item() == pytest.approx(math.exp(init), rel=1e-6)


def test_the_std_of_a_state_gaussian_is_its_scale_times_a_softplus():
    raw = torch.tensor([[0.0, -1.0], [0.0, 3.0]], dtype=torch.float64)
    for scale in (0.5, 4.0):
        head = StateGaussian(1, math.log(scale * math.log(2)), "clip", scale, 0.1).double()
        act, _ = head.sample(raw, torch.ones(2, 1, dtype=torch.float64))
        torch.testing.assert_close(act, scale * F.softplus(raw[:, 1:]) + 0.1)


def test_a_state_gaussian_gives_each_observation_a_std_of_its_own(trainer):
    ppo = trainer(partial(Chance, act_space=BOX), distribution="state_gaussian", min_std=0.1)
    ppo.learn(256)
    params = ppo.policy(torch.linspace(-20, 20, 5)[:, None])[0]
    stds = law.Normal(0, F.softplus(params[:, 2:] + ppo.policy.head.shift) + 0.1).stddev
    assert (stds.std(0) > 0).all() and (stds >= 0.1).all()


@pytest.mark.parametrize("settings", [{}, dict(action_scaling=True)], ids=str)
def test_the_environment_gets_actions_clipped_or_scaled_to_its_bounds(trainer, settings):
    seen = []

    class Told(Chance):
        def step(self, action):
            seen.append(action)
            return super().step(action)

    ppo = trainer(partial(Told, act_space=BOX, ends=0.0), norm_obs=False, **settings)
    act = ppo.collect().act.numpy()
    wanted = np.clip(act, BOX.low, BOX.high) if not settings else (
        BOX.low + (np.clip(act, -1, 1) + 1) / 2 * (BOX.high - BOX.low))
    np.testing.assert_allclose(np.reshape(seen, act.shape), wanted, rtol=1e-5, atol=1e-6)
    assert np.abs(act).max() > 1  # what is stored is the value before


@pytest.mark.parametrize(("space", "settings", "means"), [
    (BOX, {}, [1, 1]), (BOX, dict(sde=True), [1, 1]), (BOX, dict(rnn="gru", rnn_size=8), [1, 1]),
    (BOX, dict(distribution="state_gaussian"), [1, 1, 0, 0]),
    (Tuple([Discrete(3), BOX]), {}, [0, 0, 0, 1, 1])], ids=str)
def test_means_of_boxes_and_nothing_else_end_in_a_tanh(trainer, space, settings, means):
    ppo = trainer(partial(Chance, act_space=space), final_tanh=True, **settings)
    with torch.no_grad():
        ppo.policy.net.actor.weight.zero_()
        ppo.policy.net.actor.bias.fill_(9.0)
        params = ppo.policy(torch.zeros(1, 1))[0][0, :len(means)]
    means = torch.tensor(means) > 0
    assert (params[means] <= 1).all() and (params[means] > 0.99).all()
    assert (params[~means] == 9).all()
    ppo.learn(64)


@pytest.mark.parametrize("name", ["squashed", "beta"])
def test_actions_without_a_mean_to_end_in_a_tanh_refuse_it(trainer, name):
    with pytest.raises(ConfigError, match=f"distribution={name} .*\n  fix: leave final_tanh out"):
        trainer(partial(Chance, act_space=BOX), final_tanh=True, distribution=name)


@pytest.mark.parametrize("hold", [1, 3, 8, None])
def test_gsde_keeps_its_noise_for_so_many_steps_across_rollouts_and_ends_of_episodes(
        trainer, monkeypatch, hold):
    ppo = trainer(partial(Chance, act_space=BOX), sde=True, sde_sample_freq=hold, num_steps=8)
    given, act = [], ppo.policy.act

    def noted(rows, noise, state):
        given.append(noise.copy())
        return act(rows, noise, state)

    monkeypatch.setattr(ppo.policy, "act", noted)
    ended = [(rollout.term | rollout.trunc).any().item() for rollout in
             (ppo.collect() if i == 0 else _next(ppo) for i in range(3))]
    assert all(ended)
    noise = np.concatenate([np.stack(given[g::2]) for g in range(2)], 1)  # two groups take turns
    steps = np.arange(len(noise)) // (hold or 8)
    same = (noise[:, None] == noise[None]).all((2, 3))
    np.testing.assert_array_equal(same, steps[:, None] == steps[None])
    assert len(np.unique(noise[0], axis=0)) == 4  # each environment explores in its own way


def _next(ppo):
    """The next rollout."""
    ppo.update(ppo.rollout)
    return ppo.collect()


def test_gsde_explores_by_a_linear_function_of_the_features():
    head = made("sde")
    x = some_params(head, 50)
    noise = noise_of(head, 50)
    act, _ = head.sample(x, noise)
    matrices = head.log_std.exp() * noise.reshape(50, FEATURES, 2)
    wanted = x[:, :2] + torch.einsum("bf,bfa->ba", x[:, 2:], matrices)
    torch.testing.assert_close(act, wanted)


def test_gsde_trains_its_std_without_a_gradient_to_the_features():
    head = made("sde")
    x = some_params(head, 20).requires_grad_()
    logp, ent = head.evaluate(x, torch.zeros(20, 2, dtype=torch.float64))
    (logp.sum() + ent.sum()).backward()
    assert (x.grad[:, 2:] == 0).all() and (x.grad[:, :2] != 0).all()
    assert (head.log_std.grad != 0).all()


def test_the_letters_of_a_head_decide_which_numbers_it_is_given():
    head = made("composite")
    assert head.noise == "u" + "nn" + "uu" + "uu"
    noise = ActionNoise(head.noise, 3, 0, 6).at(2)
    wanted = {letter: np.empty((6, 7), np.float32) for letter in "un"}
    kernels.uniform(3, Purpose.ACT, 0, 2, wanted["u"])
    kernels.normal(3, Purpose.ACT, 0, 2, wanted["n"])
    for i, letter in enumerate(head.noise):
        np.testing.assert_array_equal(noise[:, i], wanted[letter][:, i])


def test_the_mode_of_a_beta_whose_parameters_are_far_below_zero_is_a_number():
    head = make_head(Box(0, 1, (1,), np.float32), Config(distribution="beta"), FEATURES)
    mode = head.mode(torch.tensor([[-200.0, -200.0], [-200.0, 3.0], [0.3, -0.2]]))
    assert mode[:, 0].tolist() == pytest.approx([0.5, 0.0, 0.5878], abs=1e-3)
