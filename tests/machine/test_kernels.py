"""Every kernel equals its definition, obeys the theorems, and refuses arrays that do not fit."""

import ctypes
import functools
import importlib.util
import inspect
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from asked_of_runs import plan_array

from fastppo import reference
from fastppo.errors import KernelError
from fastppo.machine import kernels
from fastppo.reference import Purpose

SHAPES = [(1, 1), (1, 7), (9, 1), (2, 3), (13, 5), (21, 33), (6, 70)]
BOTH_TWINS = ["gae", "discounted", "uniform", "normal", "permutation", "word", "first_nonfinite"]
IMAGES = ["recolour", "resize_area", "resize_largest"]


@functools.cache
def without_extension():
    """fastppo.machine.kernels as it is where the extension was not built."""
    importlib.import_module("fastppo.machine.kernels_numba")  # patch.dict would forget it
    spec = importlib.util.find_spec("fastppo.machine.kernels")
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"fastppo._kernels": None}):
        spec.loader.exec_module(module)
    return module


def need(twin):
    """The kernels of a kind; the test is skipped where the extension was not built."""
    if twin == "compiled" and not kernels.COMPILED:
        pytest.skip("the extension is not built here")
    return kernels if twin == "compiled" else without_extension()


@pytest.fixture(params=["compiled", "numba"])
def twin(request):
    """The kernels, compiled and in numba."""
    return need(request.param)


@pytest.fixture
def compiled():
    """The compiled kernels, which can also act."""
    return need("compiled")


def draw(shape, seed=0, ends=0.2, gaps=0.0):
    """The arrays of a random rollout [t e]; NaN where nothing is known, as in a real one.

    `gaps` is the share of rows that are no steps.
    """
    rng = np.random.default_rng([seed, *shape])
    rew, val, nxt = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    term, trunc = rng.random(shape) < ends, rng.random(shape) < ends
    valid = rng.random(shape) >= gaps
    nxt[term | ~valid] = val[~valid] = np.nan
    return {"rew": rew, "val": val, "nxt": nxt, "term": term, "trunc": trunc, "valid": valid}


def gae(twin, gamma=0.97, lam=0.9, **arrays):
    """adv as the kernel fills it, over poison."""
    adv = np.full_like(arrays["rew"], np.nan)
    twin.gae(*arrays.values(), gamma, lam, adv)
    return adv


def discounted(twin, rew, ended, valid, gamma, carry):
    """out and the new carry."""
    carry, out = carry.copy(), np.full(rew.shape, np.nan)
    twin.discounted(rew, ended, np.broadcast_to(valid, ended.shape).copy(), gamma, carry, out)
    return out, carry


def merged(twin, blocks):
    """Count, mean and variance after merging the blocks one after the other, over poison."""
    columns = blocks[0].shape[1]
    count, mean, m2 = np.zeros(1), np.full(columns, np.nan), np.full(columns, np.nan)
    for block in blocks:
        twin.merge_moments(block, count, mean, m2)
    return count[0], mean, m2 / count[0]


def test_the_drawn_rollouts_vary_in_everything():
    a, b = draw((13, 5)), draw((13, 5), seed=1)
    for name in ("rew", "val", "nxt"):
        assert len(np.unique(a[name][np.isfinite(a[name])])) > 30
        assert not np.array_equal(a[name], b[name], equal_nan=True)
    kinds = a["term"] + 2 * a["trunc"]
    assert set(kinds.ravel()) == {0, 1, 2, 3}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gaps", [0.0, 0.5], ids=["whole", "gaps"])
@pytest.mark.parametrize("ends", [0.0, 0.2, 1.0], ids=["none ends", "some end", "all end"])
def test_advantages_equal_the_quadratic_definition(twin, shape, ends, gaps):
    arrays = draw(shape, ends=ends, gaps=gaps)
    for gamma, lam in [(0.97, 0.9), (1.0, 1.0), (0.5, 0.0)]:
        want = reference.gae(**arrays, gamma=gamma, lam=lam)
        np.testing.assert_allclose(gae(twin, gamma, lam, **arrays), want, rtol=1e-6, atol=1e-6)


def test_garbage_where_a_step_terminates_changes_no_advantage(twin):
    arrays = draw((13, 5))
    for garbage in (0.0, np.inf, -1e30):
        other = arrays | {"nxt": np.where(arrays["term"], np.float32(garbage), arrays["nxt"])}
        np.testing.assert_array_equal(gae(twin, **arrays), gae(twin, **other))


def test_lambda_zero_is_the_temporal_difference(twin):
    arrays = draw((13, 5))
    bootstrap = np.where(arrays["term"], 0, arrays["nxt"])
    want = arrays["rew"] + 0.97 * bootstrap - arrays["val"]
    np.testing.assert_allclose(gae(twin, lam=0.0, **arrays), want, atol=1e-6)


def test_lambda_one_plus_value_is_the_discounted_return(twin):
    arrays = draw((9, 4), ends=0.0)
    arrays["nxt"] = np.vstack([arrays["val"][1:], arrays["nxt"][-1:]])
    ret = gae(twin, lam=1.0, **arrays) + arrays["val"]
    weights = 0.97 ** np.arange(10)
    for t in range(9):
        rest = np.vstack([arrays["rew"][t:], arrays["nxt"][-1:]])
        np.testing.assert_allclose(ret[t], weights[: len(rest)] @ rest, atol=1e-5)


def test_permuting_environments_permutes_advantages(twin):
    arrays, order = draw((13, 40)), np.random.default_rng(0).permutation(40)
    shuffled = {name: np.ascontiguousarray(x[:, order]) for name, x in arrays.items()}
    np.testing.assert_array_equal(gae(twin, **arrays)[:, order], gae(twin, **shuffled))


@pytest.mark.parametrize("mask", ["term", "trunc"])
def test_the_end_of_an_episode_makes_the_halves_independent(twin, mask):
    arrays = draw((12, 3), ends=0.0)
    arrays[mask][5] = True
    halves = [{name: x[part] for name, x in arrays.items()} for part in (slice(6), slice(6, 12))]
    apart = np.vstack([gae(twin, **half) for half in halves])
    np.testing.assert_array_equal(gae(twin, **arrays), apart)


def test_what_is_no_step_is_as_if_it_were_not_there(twin):
    arrays, carry = draw((40, 3), gaps=0.5), np.array([3.0, -2.0, 1.0])
    for e in range(3):
        own = {name: np.ascontiguousarray(x[arrays["valid"][:, e], e:e + 1])
               for name, x in arrays.items()}
        adv, at = gae(twin, **arrays)[:, e], arrays["valid"][:, e]
        np.testing.assert_array_equal(adv[at], gae(twin, **own)[:, 0])
        assert 9 < at.sum() < 31 and np.isnan(adv[~at]).all()
        g, last = discounted(twin, arrays["rew"], arrays["term"] & arrays["valid"],
                             arrays["valid"], 0.9, carry)
        want, end = discounted(twin, own["rew"], own["term"], True, 0.9, carry[e:e + 1])
        np.testing.assert_array_equal(g[at, e], want[:, 0])
        assert last[e] == end[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gaps", [0.0, 0.5], ids=["whole", "gaps"])
@pytest.mark.parametrize("ends", [0.0, 0.2, 1.0])
def test_discounted_rewards_equal_the_definition_and_carry_on(twin, shape, ends, gaps):
    arrays = draw(shape, ends=ends, gaps=gaps)
    carry = np.linspace(-1, 1, shape[1])
    args = arrays["rew"], arrays["term"] | arrays["trunc"], arrays["valid"], 0.9, carry
    for got, want in zip(discounted(twin, *args), reference.discounted(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_returns_are_sums_in_double_of_rewards_in_double(twin):
    rew, ended = np.array([[0.1, 0.2, 1e-9, 0.3]]).T, np.array([[False, False, True, False]]).T
    got, carry = discounted(twin, rew, ended, True, 1.0, np.array([1e9]))
    assert got[:, 0].tolist() == [1e9 + 0.1, 1e9 + 0.1 + 0.2, 1e9 + 0.1 + 0.2 + 1e-9, 0.3]
    assert carry.tolist() == [0.3]


def test_discounted_rewards_in_two_rollouts_equal_those_in_one(twin):
    arrays = draw((12, 5))
    rew, ended = arrays["rew"], arrays["trunc"]
    whole, last = discounted(twin, rew, ended, True, 0.9, np.zeros(5))
    first, carry = discounted(twin, rew[:7], ended[:7], True, 0.9, np.zeros(5))
    second, carry = discounted(twin, rew[7:], ended[7:], True, 0.9, carry)
    np.testing.assert_array_equal(whole, np.vstack([first, second]))
    np.testing.assert_array_equal(last, carry)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 8, 33, 70])
def test_moments_merged_in_any_split_equal_those_of_the_whole(twin, dtype, columns):
    rng = np.random.default_rng(columns)
    x = (1e4 + rng.normal(size=(50, columns)) * np.arange(1, columns + 1)).astype(dtype)
    count, mean, var = reference.moments([x])
    for cuts in [[], [1], [0, 49], [10, 10, 30], list(range(50))]:
        got = merged(twin, np.split(x, cuts))
        assert got[0] == count == 50
        np.testing.assert_allclose(got[1], mean, rtol=1e-12)
        np.testing.assert_allclose(got[2], var, rtol=1e-9)


def test_a_first_block_sets_the_moments_exactly_without_a_prior(twin):
    count, mean, var = merged(twin, [np.array([[1e4, 3.0]], np.float32)])
    assert count == 1
    assert mean.tolist() == [1e4, 3.0]
    assert var.tolist() == [0.0, 0.0]


def test_an_empty_block_changes_nothing(twin):
    x = np.random.default_rng(0).normal(size=(5, 3))
    count, mean, m2 = np.zeros(1), np.full(3, np.nan), np.full(3, np.nan)
    twin.merge_moments(x[:0], count, mean, m2)
    assert count == 0
    assert np.isnan(mean).all()
    np.testing.assert_array_equal(merged(twin, [x])[2], merged(twin, [x, x[:0]])[2])


NOISE_SHAPES = [(1, 1), (16, 1), (1, 5), (7, 3), (3, 11)]


@pytest.mark.parametrize("shape", NOISE_SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
def test_noise_is_addressed_by_seed_purpose_env_step_and_component(twin, shape, seed):
    at = seed, Purpose.EVALUATE, 2**31, 2**32 + 77
    u, z = np.full((2, *shape), np.nan, np.float32)
    twin.uniform(*at, u)
    twin.normal(*at, z)
    np.testing.assert_array_equal(u, reference.uniform(*at, shape))
    np.testing.assert_allclose(z, reference.normal(*at, shape), rtol=1e-6, atol=2e-6)


def test_noise_of_an_environment_does_not_depend_on_who_draws_it(twin):
    whole = np.empty((10, 3), np.float32)
    for fill in (twin.uniform, twin.normal):
        fill(5, Purpose.ACT, 100, 9, whole)
        assert len(np.unique(whole)) == whole.size
        for first, last in [(0, 1), (1, 4), (4, 10)]:
            part = np.empty((last - first, 3), np.float32)
            fill(5, Purpose.ACT, 100 + first, 9, part)
            np.testing.assert_array_equal(part, whole[first:last])


def test_every_coordinate_of_the_counter_changes_the_noise(twin):
    def drawn(seed=1, purpose=0, env=2, step=3):
        out = np.empty((1, 4), np.float32)
        twin.uniform(seed, purpose, env, step, out)
        return tuple(out[0])

    changed = [{}, {"seed": 2}, {"seed": 1 + 2**32}, {"purpose": 1}, {"env": 3}, {"step": 4}]
    assert len({drawn(**change) for change in changed}) == len(changed)


def test_words_and_episode_seeds_equal_the_definition(twin):
    for seed, env, step in [(0, 0, 0), (2**64 - 1, 2**32 - 1, -1), (12345678901, 7, 2**33 + 5)]:
        at = seed, Purpose.ENV_SEED, env, step
        assert twin.word(*at, 3) == reference.word(*at, component=3)
        assert twin.episode_seed(*at) == reference.word(*at) >> 1
        assert type(twin.episode_seed(*at)) is int


@pytest.mark.parametrize("n", [0, 1, 2, 17, 100])
def test_a_permutation_equals_the_definition_and_has_every_index_once(twin, n):
    out = np.full(n, -1, np.int64)
    twin.permutation(3, 2**32 + 4, 5, out)
    np.testing.assert_array_equal(out, reference.permutation(3, 4, 5, n))
    np.testing.assert_array_equal(np.sort(out), np.arange(n))


def test_permutations_differ_by_seed_iteration_and_epoch(twin):
    out = np.empty((4, 50), np.int64)
    for row, at in zip(out, [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)], strict=True):
        twin.permutation(*at, row)
    assert len(np.unique(out, axis=0)) == 4


def test_uniforms_and_normals_have_the_moments_of_their_distributions(twin):
    u, z = np.empty((2, 20_000, 5), np.float32)
    twin.uniform(11, 0, 0, 0, u)
    twin.normal(11, 1, 0, 0, z)
    assert 0 <= u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    np.testing.assert_allclose(np.bincount((u * 10).astype(int).ravel()) / u.size, 0.1, atol=5e-3)
    wanted = [0, 1, 0, 3]  # five standard errors of 100,000 draws
    got = [(z.astype(float) ** k).mean() for k in (1, 2, 3, 4)]
    np.testing.assert_allclose(got, wanted, atol=0.16)
    np.testing.assert_allclose(got[:2], wanted[:2], atol=0.023)
    assert 4 < np.abs(z).max() < 6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_nonfinite_is_found_at_every_place(twin, bad):
    for n in (1, 2, 31, 32, 33, 100):
        x = np.full(n, np.finfo(np.float32).max, np.float32)
        x[::2] = 1e-45
        assert twin.first_nonfinite(x) == reference.first_nonfinite(x) == -1
        for at in reversed(range(n)):
            x[at] = bad
            assert twin.first_nonfinite(x) == reference.first_nonfinite(x) == at


def test_the_first_nonfinite_takes_any_shape_also_read_only_and_empty(twin):
    x = np.zeros((3, 4, 5), np.float32)
    x[1, 2, 3] = np.nan
    x.flags.writeable = False
    assert twin.first_nonfinite(x) == 33
    assert twin.first_nonfinite(x[:0]) == -1
    assert twin.first_nonfinite(np.array(np.nan, np.float32)) == 0


ACTIVATIONS = {"tanh": (1, torch.nn.Tanh), "relu": (2, torch.nn.ReLU), "elu": (3, torch.nn.ELU)}


def layers(rng, sizes):
    """torch layers with weights far from their gentle initialisation."""
    chain = [torch.nn.Linear(n, m) for n, m in zip(sizes[:-1], sizes[1:], strict=True)]
    for layer in chain:
        for p in layer.parameters():
            p.data = torch.from_numpy(rng.normal(size=p.shape).astype("f4") / sizes[0] ** 0.5)
    return chain


class Actor:
    """A random actor-critic in torch with its plan: trunks, then a head on each or two on one."""

    def __init__(self, seed, activation, hidden, shared, inputs=5, outputs=3):
        rng = np.random.default_rng(seed)
        self.code, kind = ACTIVATIONS[activation]
        self.activation, self.inputs = kind(), inputs
        trunks = [layers(rng, [inputs, *hidden]) for _ in range(2 - shared)]
        heads = [layers(rng, [hidden[-1], n])[0] for n in (outputs, 1)]
        self.chains = [(trunks[-shared * i], head) for i, head in enumerate(heads)]
        self.rows, self.params, self.buffers = [], [], {}
        for trunk, head in self.chains:
            src = 0
            for layer in trunk:
                src = self.place(layer, src, len(self.buffers) + 1, self.code)
            self.place(head, src, -1, 0)
        self.plan = plan_array(self.rows)
        self.flat = np.concatenate(self.params)

    def place(self, layer, src, dst, code):
        """Add a layer once: a shared trunk is already there."""
        if layer not in self.buffers or dst == -1:
            start, n = sum(map(len, self.params)), layer.weight.numel()
            self.params += [layer.weight.detach().numpy().ravel(), layer.bias.detach().numpy()]
            sizes = layer.in_features, layer.out_features
            self.rows.append((src, dst, *sizes, start, start + n, code))
            if dst > 0:
                self.buffers[layer] = dst
        return self.buffers.get(layer, dst)

    def define(self, obs):
        """The outputs of torch, in float64."""
        out = []
        for trunk, head in self.chains:
            x = torch.from_numpy(obs).double()
            for layer in trunk:
                x = self.activation(
                    torch.nn.functional.linear(x, *(p.double() for p in layer.parameters()))
                )
            out.append(torch.nn.functional.linear(x, *(p.double() for p in head.parameters())))
        return torch.cat(out, 1).detach().numpy()

    def forward(self, obs, mean=None, scale=None):
        """The outputs of the kernel, written over NaN."""
        packed = np.full(kernels.packed_size(self.plan), np.nan, np.float32)
        kernels.pack(self.plan, self.flat, packed)
        out = np.full((len(obs), self.chains[0][1].out_features + 1), np.nan, np.float32)
        kernels.forward(self.plan, packed, mean, scale, obs, out)
        return out


def observations(n, columns=5, seed=0):
    """Drawn rows [n columns]."""
    return np.random.default_rng(seed).normal(size=(n, columns)).astype(np.float32)


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(1,), (16,), (20, 33), (64, 64), (7, 18, 40), (9, 9, 9, 9),
                                    (7000,), (5, 3500)])
def test_forward_equals_torch_over_drawn_plans(compiled, hidden, activation, shared):
    actor, obs = Actor(len(hidden), activation, hidden, shared), observations(11)
    want = actor.define(obs)
    assert len(np.unique(want.round(3))) > 20
    scale = np.abs(want).max()
    np.testing.assert_allclose(actor.forward(obs), want, rtol=1e-5, atol=2e-6 * max(scale, 1))


def test_a_rows_bits_do_not_depend_on_the_batch_around_it(compiled):
    actor, obs = Actor(3, "tanh", (20, 33), False), observations(24)
    whole = actor.forward(obs)
    assert len(np.unique(whole)) == whole.size
    for n in range(1, 10):
        for first in range(24 - n):
            rows = slice(first, first + n)
            np.testing.assert_array_equal(actor.forward(obs[rows]), whole[rows])


def test_rows_wider_than_the_stack_take_no_bits_from_each_other(compiled):
    actor, obs = Actor(7, "tanh", (3000, 40), False), observations(9)
    whole = actor.forward(obs)
    np.testing.assert_allclose(whole, actor.define(obs), rtol=1e-5, atol=1e-5)
    for n in range(1, 9):
        np.testing.assert_array_equal(actor.forward(obs[:n]), whole[:n])


def test_observations_are_shifted_scaled_and_clipped_at_ten(compiled):
    actor, obs = Actor(4, "elu", (16,), True), 100 * observations(9)
    mean, scale = observations(2)
    normal = np.clip((obs - mean) * scale, -10, 10)
    assert (np.abs(normal) == 10).mean() > 0.3
    np.testing.assert_array_equal(actor.forward(obs, mean, scale), actor.forward(normal))


def test_observations_enter_unclipped_without_normalisation(compiled):
    actor, obs = Actor(5, "relu", (16,), True), 100 * observations(9)
    np.testing.assert_allclose(actor.forward(obs), actor.define(obs), rtol=1e-4, atol=1e-3)


def test_a_nan_observation_makes_its_own_row_nan_and_no_other(compiled):
    for activation in ACTIVATIONS:
        actor, obs = Actor(6, activation, (16, 16), False), observations(6)
        clean = actor.forward(obs, *np.ones((2, 5), np.float32))
        obs[3, 2] = np.nan
        dirty = actor.forward(obs, *np.ones((2, 5), np.float32))
        assert np.isnan(dirty[3]).all()
        np.testing.assert_array_equal(np.delete(dirty, 3, 0), np.delete(clean, 3, 0))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_exact_to_two_ten_millionths_out_to_the_extremes(compiled, activation):
    code, kind = ACTIVATIONS[activation]
    plan = plan_array([(0, -1, 1, 1, 0, 1, code)])
    packed = np.empty(kernels.packed_size(plan), np.float32)
    kernels.pack(plan, np.array([1.0, 0.0], np.float32), packed)
    edges = np.array([0, 1e-30, 1e-45, 88, 89, 1e4, 3e38, np.inf])
    x = np.concatenate([edges, np.linspace(0, 12, 20_001), np.logspace(-8, 1, 5001)])
    obs = np.concatenate([x, -x]).astype(np.float32)[:, None]
    out = np.empty_like(obs)
    kernels.forward(plan, packed, None, None, obs, out)
    want = kind()(torch.from_numpy(obs).double()).numpy().astype(np.float32)
    np.testing.assert_allclose(out, want, rtol=2e-7, atol=2e-7)


WRONG_PLANS = {
    "buffer": [(0, 64, 5, 4, 0, 20, 1)],
    "width": [(0, 1, 5, 4, 0, 20, 1), (1, -1, 3, 1, 24, 28, 0)],
    "not written yet": [(2, -1, 5, 4, 0, 20, 1)],
    "offset": [(0, -1, 5, 4, -1, 20, 1)],
    "activation": [(0, -1, 5, 4, 0, 20, 4)],
    "wider than 1048576": [(0, -1, 5, (1 << 20) + 1, 0, 20, 1)],
    "empty": [(0, -1, 5, 0, 0, 20, 1)],
    "not one of 0 dense": [(0, -1, 5, 4, 0, 20, 1, 5)],
    "a scan has another size": [(0, 1, 5, 4, 0, 20), (1, -1, 4, 4, 0, 0, 0, 4)],
    "flattens has another size": [(0, -1, 6, 4, 0, 0, 0, 2, 2)],
    "channels that do not divide": [(0, -1, 6, 6, 0, 0, 0, 2, 4)],
    "sizes that do not fit": [(0, -1, 48, 64, 0, 20, 2, 1, 3, 4, 5, 1)],
    "no multiple of 16 outputs": [(0, -1, 48, 32, 0, 20, 2, 1, 3, 4, 3, 1)],
    "row of an image": [(0, 0, 48, 48, 0, 0, 0, 3, 3, 5, 1), (0, -1, 48, 4, 0, 192, 0)],
    "has no layer": [(0, 0, 48, 48, 0, 0, 0, 3, 3, 16, 1, 255)],
}


@pytest.mark.parametrize("words", WRONG_PLANS)
def test_a_plan_that_cannot_be_is_refused_with_the_reason(compiled, words):
    with pytest.raises(KernelError, match=words):
        kernels.packed_size(plan_array(WRONG_PLANS[words]))


def test_too_few_parameters_for_a_plan_are_refused(compiled):
    actor = Actor(0, "tanh", (4,), False)
    packed = np.empty(kernels.packed_size(actor.plan), np.float32)
    with pytest.raises(KernelError, match=rf"params has {len(actor.flat) - 1} floats, the plan"):
        kernels.pack(actor.plan, actor.flat[:-1], packed)
    with pytest.raises(KernelError, match=rf"packed has {len(packed) - 1} floats, the plan needs"):
        kernels.pack(actor.plan, actor.flat, packed[:-1])


def categorical(logits, u):
    """act and logp over poison."""
    act, logp = np.full(len(u), -1), np.full(len(u), np.nan, np.float32)
    kernels.sample_categorical(logits, u, act, logp)
    return act, logp


@pytest.mark.parametrize("choices", [1, 2, 4, 18, 300, 6144])
def test_categorical_samples_equal_the_definition_and_torchs_log_probability(compiled, choices):
    logits, u = 3 * observations(70, choices), np.random.default_rng(0).random(70, np.float32)
    act, logp = categorical(logits, u)
    assert (act == reference.sample_categorical(logits, u)[0]).mean() > 0.98  # ties of rounding
    dist = torch.distributions.Categorical(logits=torch.from_numpy(logits).double())
    np.testing.assert_allclose(logp, dist.log_prob(torch.from_numpy(act)), rtol=1e-5, atol=2e-6)


def test_categorical_frequencies_are_the_softmax(compiled):
    logits = observations(1, 7)
    u = ((np.arange(20_000) + 0.5) / 20_000).astype(np.float32)
    act, _ = categorical(np.repeat(logits, 20_000, axis=0), u)
    softmax = np.exp(logits[0]) / np.exp(logits[0]).sum()
    np.testing.assert_allclose(np.bincount(act, minlength=7) / 20_000, softmax, atol=2e-4)


def test_categorical_reads_a_slice_of_columns_row_by_row(compiled):
    out, u = observations(9, 6), np.random.default_rng(1).random(9, np.float32)
    act, logp = categorical(out[:, :4], u)
    for n in range(9):
        one = categorical(np.ascontiguousarray(out[n : n + 1, :4]), u[n : n + 1])
        assert (act[n], logp[n]) == (one[0][0], one[1][0])


def test_categorical_takes_nothing_of_no_probability_at_either_end_of_u(compiled):
    last_below_one = np.nextafter(np.float32(1), np.float32(0))
    for seed in range(50):
        logits = observations(2, 9, seed)
        logits[:, [0, 3, 8]] = -np.inf
        act, logp = categorical(logits, np.array([0, last_below_one], np.float32))
        assert act.tolist() == [1, 7]
        assert np.isfinite(logp).all()


def test_nan_logits_give_a_nan_log_probability_and_a_legal_index(compiled):
    logits = observations(3, 4)
    logits[1, 2] = np.nan
    act, logp = categorical(logits, np.full(3, 0.5, np.float32))
    assert np.isnan(logp).tolist() == [False, True, False]
    assert 0 <= act[1] < 4


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (16, 4), (5, 17)])
def test_gaussian_samples_equal_the_definition_and_torchs_log_probability(compiled, rows, size):
    mean, z = observations(rows, size + 1)[:, :size], observations(rows, size, 1)
    log_std = observations(1, size, 2)[0]
    act, logp = np.full((rows, size), np.nan, np.float32), np.full(rows, np.nan, np.float32)
    kernels.sample_gaussian(mean, log_std, z, act, logp)
    want = reference.sample_gaussian(mean, log_std, z)
    np.testing.assert_allclose(act, want[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(logp, want[1], rtol=1e-6, atol=2e-6)
    mean, log_std = torch.from_numpy(mean.astype(float)), torch.from_numpy(log_std.astype(float))
    dist = torch.distributions.Normal(mean, log_std.exp())
    want = dist.log_prob(torch.from_numpy(act)).sum(1)
    np.testing.assert_allclose(logp, want, rtol=1e-5, atol=1e-4)


def image(shape, seed=0, levels=256):
    """A random image, u8, some of whose rows are repeated."""
    rows = np.random.default_rng([seed, *shape]).integers(levels, size=shape).astype(np.uint8)
    rows[1::3] = rows[:len(rows[1::3])]
    rows[2::3, :shape[1] // 2] = rows[1::3, :shape[1] // 2][:len(rows[2::3])]
    return rows


PIXELS = [((210, 160), (84, 84), 1), ((250, 160), (84, 84), 1), ((96, 96 * 3), (84, 84 * 3), 3),
          ((7, 5), (3, 2), 1), ((9, 8), (9, 8), 2), ((3, 4), (8, 9), 1), ((1, 1), (1, 1), 1),
          ((400, 600), (64, 48), 4), ((20, 33), (1, 3), 3), ((36, 17), (5, 17), 17)]


@pytest.mark.parametrize("shape, new, channels", PIXELS)
@pytest.mark.parametrize("levels", [256, 3])
def test_an_image_is_resized_to_the_means_over_its_areas(twin, shape, new, channels, levels):
    given, out = image(shape, levels=levels), np.full(new, 77, np.uint8)
    twin.resize_area(given, channels, out)
    exact = given.reshape(shape[0], -1, channels).astype(float)
    for axis, size in enumerate((new[0], new[1] // channels)):
        parts = np.repeat(exact, size, axis).swapaxes(0, axis)  # of which each new pixel has n
        means = parts.reshape(size, -1, *parts.shape[1:]).mean(1)
        exact = means.swapaxes(0, axis)
    assert np.abs(exact.reshape(new) - out).max() <= 0.5001
    other = np.full(new, 77, np.uint8)
    without_extension().resize_area(given, channels, other)
    assert np.array_equal(out, other)


@pytest.mark.parametrize("shape, new, channels", [
    one for one in PIXELS if one[0][0] > one[1][0] and one[2] <= 4])
def test_an_image_is_resized_as_opencv_does_with_every_half(compiled, shape, new, channels):
    opencv = pytest.importorskip("cv2")
    for levels in (256, 2):
        given, out = image(shape, levels=levels), np.empty(new, np.uint8)
        kernels.resize_area(given, channels, out)
        wanted = opencv.resize(given.reshape(shape[0], -1, channels),
                               (new[1] // channels, new[0]), interpolation=opencv.INTER_AREA)
        assert np.array_equal(out, wanted.reshape(new))


def test_where_a_size_is_a_multiple_opencv_differs_by_one_where_a_mean_is_a_half(compiled):
    opencv = pytest.importorskip("cv2")
    given, out = image((168, 168)), np.empty((84, 84), np.uint8)
    kernels.resize_area(given, 1, out)
    wanted = opencv.resize(given, (84, 84), interpolation=opencv.INTER_AREA)
    means = given.reshape(84, 2, 84, 2).mean((1, 3))
    assert np.abs(out.astype(int) - wanted).max() == 1
    assert (means[out != wanted] % 1 == 0.5).all()


@pytest.mark.parametrize("shape, new", [((210, 160), (84, 84)), ((7, 5), (3, 2)), ((1, 1), (1, 1))])
def test_colours_are_replaced_by_the_table_and_the_larger_screen_is_resized(twin, shape, new):
    rng = np.random.default_rng(0)
    table = rng.permutation(256).astype(np.int16)
    given, indices, out = image(shape), image(shape, 1), np.full(shape, 77, np.uint8)
    assert twin.recolour(indices, table, out)
    assert np.array_equal(out, table[indices])
    small, wanted = np.empty(new, np.uint8), np.empty(new, np.uint8)
    assert twin.resize_largest(given, indices, table, small)
    twin.resize_area(np.maximum(given, out), 1, wanted)
    assert np.array_equal(small, wanted)


@pytest.mark.parametrize("place", [(0, 0), (209, 159), (100, 3)])
def test_a_colour_without_an_entry_is_told(twin, place):
    indices, table = np.full((210, 160), 4, np.uint8), np.full(256, -1, np.int16)
    table[4], out = 9, np.empty((210, 160), np.uint8)
    assert twin.recolour(indices, table, out) and (out == 9).all()
    assert twin.resize_largest(out, indices, table, np.empty((84, 84), np.uint8))
    indices[place] = 5
    assert not twin.recolour(indices, table, out)
    assert not twin.resize_largest(out, indices, table, np.empty((84, 84), np.uint8))


@pytest.mark.parametrize("bad", [{"channels": 2}, {"channels": 0},
                                 {"image": np.zeros((0, 3), np.uint8)}])
def test_an_image_that_has_no_whole_pixels_is_refused(compiled, bad):
    good = {"image": np.zeros((3, 3), np.uint8), "channels": 1, "out": np.zeros((2, 2), np.uint8)}
    with pytest.raises(KernelError, match="^resize_area: "):
        kernels.resize_area(*(good | bad).values())


def arguments(kernel):
    """Arrays and numbers that `kernel` accepts."""
    sizes = {"t": 4, "e": 3, "n": 4, "o": 5, "k": 2, "a": 2, "...": 6}
    numbers = {"gamma": 0.9, "lam": 0.9, "seed": 1, "purpose": 0, "env0": 0, "step": 0,
               "limit": 10.0, "channels": 1}
    given = {"iteration": 1, "epoch": 2, "log_std": None} | numbers
    for name, spec in kernels.ARRAYS[kernel].items():
        shape = [int(axis) if axis.isdigit() else sizes.get(axis, 1) for axis in spec.axes]
        given[name] = np.zeros(shape, spec.dtypes[0])
    if kernel in ("forward", "pack", "packed_size", "update_sizes"):
        actor = Actor(0, "tanh", (4,), False)
        scan = [(0, 8, 5, 2, *[0] * 8), (8, 9, 2, 1, 0, 0, 0, kernels.SCAN, *[0] * 4)]
        plan = np.array([*actor.plan, *scan * (kernel == "forward")])
        packed = np.zeros(kernels.packed_size(plan), np.float32)
        given |= {"plan": plan, "params": actor.flat, "packed": packed}
        given["out"] = np.zeros((4, 4), np.float32)
    if kernel in ("unroll", "unroll_back"):  # four samples of two sequences, a cell of one
        given["sizes"] = np.array([2, 1, 1])
        columns = {"x": 3, "dx": 3, "inner": 3, "kept": 4}
        given |= {name: np.zeros((4, n), np.float32) for name, n in columns.items()}
        given |= {"weight": np.zeros((3, 1), "f4"), "bias": np.zeros(3, "f4"),
                  "state": np.zeros((2, 1), "f4"),
                  "work": np.zeros(kernels.unroll_floats(1, 2), "f4")}
        given |= {name: np.zeros((4, 1), "f4") for name in ("prev", "out", "dout")}
    names = inspect.signature(getattr(kernels, kernel)).parameters
    return {name: given[name] for name in names}


def misfits(spec, array):
    """The same array with one thing wrong at a time, by name."""
    yield "dtype", array.astype("f2")
    yield "rank", array[None]
    yield "no array", array.tolist()
    if array.itemsize > 1:
        yield "byte order", array.astype(array.dtype.newbyteorder(">"))
    if array.shape[-1] > 1:
        yield "stride", np.repeat(array, 2, axis=-1)[..., ::2]
    if spec.written:
        locked = array.copy()
        locked.flags.writeable = False
        yield "read-only", locked


def refuses(module, kernel, name, arguments):
    """Asserts that a call raises a KernelError with the kernel, the array and the expectation."""
    with pytest.raises(KernelError, match=rf"^{kernel}: {name} is .*, wanted a .* of shape \("):
        getattr(module, kernel)(*arguments.values())


@pytest.mark.parametrize("kernel", [name for name, specs in kernels.ARRAYS.items() if specs])
def test_an_array_that_does_not_fit_is_named_with_what_was_wanted(compiled, kernel):
    good = arguments(kernel)
    getattr(kernels, kernel)(*good.values())
    for name, spec in kernels.ARRAYS[kernel].items():
        for what, bad in misfits(spec, good[name]):
            if (kernel, what) != ("first_nonfinite", "rank"):  # it takes any shape
                refuses(kernels, kernel, name, good | {name: bad})


@pytest.mark.some(3)
@pytest.mark.parametrize("kernel", ["gae", "discounted", "merge_moments", "uniform", "permutation"])
def test_the_numba_twin_refuses_the_same_arrays(kernel):
    good = arguments(kernel)
    getattr(without_extension(), kernel)(*good.values())
    for name, spec in kernels.ARRAYS[kernel].items():
        for _, bad in misfits(spec, good[name]):
            refuses(without_extension(), kernel, name, good | {name: bad})


class Buffer(ctypes.Structure):
    """Python's Py_buffer."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
                ("strides", ctypes.POINTER(ctypes.c_ssize_t)), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


def test_longs_of_32_bits_are_refused_where_int64_is_wanted(compiled):
    """A C long has 32 bits on some systems; 64 of them per element would end behind the array."""
    memory = np.zeros(8, np.int64)  # twice what the buffer declares
    shape, strides = (ctypes.c_ssize_t * 1)(8), (ctypes.c_ssize_t * 1)(4)
    buffer = Buffer(memory.ctypes.data, None, 32, 4, 0, 1, b"l", shape, strides, None, None)
    make = ctypes.pythonapi.PyMemoryView_FromBuffer
    make.restype, make.argtypes = ctypes.py_object, [ctypes.POINTER(Buffer)]
    act = make(ctypes.byref(buffer))
    assert (act.format, act.itemsize, len(act)) == ("l", 4, 8)
    with pytest.raises(KernelError, match="sample_categorical: act is memoryview, wanted a writa"):
        kernels.sample_categorical(*np.zeros((1, 8, 2), "f4"), *np.zeros((1, 8), "f4"), act,
                                   np.zeros(8, "f4"))
    assert not memory.any()


@pytest.mark.parametrize("kernel", ["gae", "discounted", "forward", "sample_gaussian"])
def test_a_size_that_differs_from_its_neighbours_is_refused(compiled, kernel):
    good = arguments(kernel)
    for name in list(kernels.ARRAYS[kernel])[1:]:
        if name not in ("plan", "packed"):
            with pytest.raises(KernelError, match=f"^{kernel}: "):
                getattr(kernels, kernel)(*(good | {name: good[name][:-1]}).values())


def test_the_error_says_what_came_and_what_was_wanted(twin):
    good = arguments("gae")
    with pytest.raises(KernelError) as caught:
        twin.gae(*(good | {"val": np.zeros((4, 2))}).values())
    wanted = "wanted a C-contiguous float32 array of shape (4, 3)"
    assert str(caught.value) == f"gae: val is float64 (4, 2), {wanted}"


@pytest.mark.parametrize("number", [{"seed": -1}, {"seed": 2**64}, {"env0": 2**32}, {"step": "x"}])
def test_numbers_out_of_range_are_refused(twin, number):
    with pytest.raises(KernelError, match="^uniform: "):
        twin.uniform(*(arguments("uniform") | number).values())


@pytest.mark.parametrize("kernel", ["forward", "pack", "sample_categorical", "sample_gaussian"])
def test_without_the_extension_the_actor_is_refused_with_the_line_that_installs_it(kernel):
    anything = [None] * len(inspect.signature(getattr(kernels, kernel)).parameters)
    with pytest.raises(KernelError, match=r"fix: .*pip install -e \."):
        getattr(without_extension(), kernel)(*anything)


@pytest.mark.parametrize("kernel", [*BOTH_TWINS, *IMAGES, "merge_moments"])
def test_twins_have_the_same_parameters(twin, kernel):
    public = list(inspect.signature(getattr(kernels, kernel)).parameters)
    assert list(inspect.signature(getattr(twin._twin, kernel)).parameters) == public


@pytest.mark.parametrize("kernel", [*BOTH_TWINS, "sample_categorical", "sample_gaussian"])
def test_definitions_have_the_same_parameters_and_first_line_as_their_kernels(kernel):
    definition, public = getattr(reference, kernel), getattr(kernels, kernel)
    outs = {"adv", "out", "act", "logp"}
    stands_for_out = {"shape", "n"}
    given = [p for p in inspect.signature(public).parameters if p not in outs]
    wanted = inspect.signature(definition).parameters
    assert given == [p for p in wanted if p not in stands_for_out]
    assert public.__doc__.splitlines()[0] == definition.__doc__.splitlines()[0]


@pytest.mark.parametrize("kernel", [*BOTH_TWINS, *IMAGES, "merge_moments"])
def test_numba_twins_carry_the_same_first_line(kernel):
    numba, public = getattr(need("numba")._twin, kernel), getattr(kernels, kernel)
    assert public.__doc__.splitlines()[0] == numba.__doc__.splitlines()[0]


def test_the_backend_is_named():
    assert kernels.backend() == ("compiled" if kernels.COMPILED else "numba")
