"""Observation moments and reward scaling: what they are, when they change, what never counts."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from asked_of_runs import assert_ratio_is_one
from envs_for_tests import Chance, Counting, OneStep
from games_for_tests import Scripted
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space
from torch.utils._python_dispatch import TorchDispatchMode

from fastppo import learner, load
from fastppo.errors import ConfigError
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.networks.normaliser import ObservationNormaliser, RunningMoments
from fastppo.policy import Policy
from fastppo.reference import gae
from fastppo.spaces.leaves import leaf_arrays, tree_map
from fastppo.spaces.observations import ObservationLayout

LEARNER = "torch"  # whose inside is watched here
VECTOR = Box(-np.inf, np.inf, (3,), np.float32)
FAR = np.array([1e4, -3.0, 0.0]), np.array([1.0, 1e-3, 1e3])  # mean and std of each number


def policy_of(space, norm_obs=True):
    """A policy whose network shows what it is given: the value is the first number."""
    class Net(torch.nn.Module):
        def forward(self, obs):
            return torch.zeros(len(obs), 2), obs.reshape(len(obs), -1)[:, 0]

    return Policy(space, Discrete(2), Net(), norm_obs)


def test_moments_over_chunks_are_those_of_all_observations_together():
    rng, policy = np.random.default_rng(0), policy_of(VECTOR)
    chunks = [rng.normal(*FAR, (n, 3)).astype(np.float32) for n in (1, 500, 2, 1000)]
    for chunk in chunks:
        policy.observer.learn([chunk])
    rows = np.concatenate(chunks).astype(np.float64)
    count, mean, m2 = (value.numpy() for value in policy.observer.state)
    assert count.dtype == mean.dtype == m2.dtype == np.float64
    assert count == len(rows) == 1503
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(m2 / count, rows.var(0), rtol=1e-9)


def test_the_network_sees_observations_normalised_and_clipped_at_ten():
    rng, policy = np.random.default_rng(1), policy_of(VECTOR)
    rows = rng.normal(*FAR, (800, 3)).astype(np.float32)
    policy.observer.learn([rows])
    seen = policy.observer(torch.from_numpy(rows)).numpy()
    exact = rows.astype(np.float64)
    wanted = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + 1e-8)
    np.testing.assert_allclose(seen, wanted, atol=2e-3)  # 1e4 has steps of 1e-3 in float32
    far = policy.observer(torch.tensor([[1e5, 0, -1e5], [-1e5, -6, 1e5]]))
    assert far.tolist() == [[10, 10, -10], [-10, -10, 10]]


def test_a_number_that_never_changes_is_seen_as_zero():
    policy = policy_of(VECTOR)
    policy.observer.learn([np.full((50, 3), 0.1, np.float32)])
    assert policy.observer(torch.full((2, 3), 0.1)).abs().max() < 1e-3


@pytest.mark.parametrize("low, high", [(0, 255), (0, 5), (1, 5)])
def test_images_are_divided_by_their_largest_bound_and_never_normalised(low, high):
    policy = policy_of(Box(low, high, (2, 2), np.uint8))
    policy.observer.learn([np.full((9, 2, 2), 4, np.uint8)])
    assert not policy.observer.norm and policy.observer.state[0] == 0
    obs = (np.array([[0, 51], [102, 255]]) * high // 255).astype(np.uint8)
    seen = policy.observer(torch.from_numpy(obs[None]))
    np.testing.assert_allclose(seen, [[[0, 0.2], [0.4, 1]]])
    assert policy.value(obs[::-1, ::-1]) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, np.float32])
def test_integers_that_are_no_image_are_normalised_like_floats(dtype):
    policy = policy_of(Box(0, 100, (3,), dtype))
    rows = np.random.default_rng(1).integers(0, 10, (200, 3))
    rows = rows.astype(policy.observer.layout.store.dtype)
    policy.observer.learn([rows])
    exact = rows.astype(np.float64)
    wanted = (exact - exact.mean(0)) / exact.std(0)
    np.testing.assert_allclose(policy.observer(torch.from_numpy(rows)), wanted, atol=1e-5)
    raw = policy_of(Box(0, 100, (3,), dtype), norm_obs=False)
    np.testing.assert_array_equal(raw.observer(torch.from_numpy(rows)), rows)


class Grid(gym.Env):
    """One step: small codes in a flat grid, of which the first one is the right action."""

    def __init__(self, dtype):
        self.observation_space = Box(0, 255, (12,), dtype)
        self.action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        """A grid of random codes."""
        super().reset(seed=seed)
        self.obs = self.np_random.integers(0, 4, 12).astype(self.observation_space.dtype)
        return self.obs, {}

    def step(self, action):
        """1 for the code, else 0."""
        return self.obs, float(action == self.obs[0]), True, False, {}


@pytest.mark.some(1)
@pytest.mark.parametrize("settings", [{}, {"learner": "torch", "acting": "central"},
                                      {"norm_obs": False}], ids=str)
def test_a_grid_of_bytes_is_learnt_like_one_of_floats(trainer, settings):
    found = []
    for dtype in (np.uint8, np.float32):
        ppo = trainer(partial(Grid, dtype), **{
            "learner": "auto", "num_envs": 8, "num_steps": 32, "epochs": 4, "num_minibatches": 4,
            "lr": 5e-3, "hidden_sizes": (32,), "anneal_lr": False, **settings})
        ppo.learn(5120)
        found.append(torch.cat([x.detach().flatten() for x in ppo.policy.parameters()]))
        assert ppo.evaluate(episodes=50).mean > 0.9
    assert torch.equal(*found)


def test_only_convolutions_and_own_networks_see_images(trainer):
    picture, grid = Box(0, 255, (36, 40, 3), np.uint8), Box(0, 255, (5,), np.uint8)
    space = Dict(grid=grid, picture=picture, small=Box(0, 255, (9, 9), np.uint8))
    seen = {}
    for model in ("cnn", "mlp", ByteNet):
        observer = trainer(partial(Chance, space), model=model).policy.observer
        seen[model] = [i in observer.encoding.images for i in range(3)]
        assert len(observer.mean) == sum(leaf.width for leaf, image in zip(
            observer.encoding.leaves, seen[model]) if not image)
    assert seen == {"cnn": [False, True, False], "mlp": [False] * 3, ByteNet: [False, True, True]}


class ByteNet(torch.nn.Module):
    """A network of the user's for three leaves of bytes."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = torch.nn.Linear(1, 4)

    def forward(self, obs):
        """(action parameters, value), from leaves of the documented shapes."""
        assert [x.shape[1:] for x in obs.values()] == [(5,), (3, 36, 40), (9, 9)]
        out = self.layer(sum(x.flatten(1).mean(1, keepdim=True) for x in obs.values()))
        return out[:, :3], out[:, 3]


MIXED = Tuple([Discrete(2), Box(-9, 9, (2,)), MultiBinary(1)])


def test_the_limit_clamps_normalised_columns_only():
    seen = ObservationLayout(MIXED, Discrete(2))
    rng = np.random.default_rng(1)
    rows = seen.rows([(1, rng.normal(5, 2, 2).astype("f4"), np.array([1])) for _ in range(50)])
    observer = ObservationNormaliser(seen, flat=True, limit=0.25)
    observer.learn(leaf_arrays(rows))
    out = observer(observer.tensors(rows)).numpy()
    np.testing.assert_array_equal(out[:, [0, 1, 4]], np.tile([0.0, 1, 1], (50, 1)))
    assert np.abs(out[:, 2:4]).max() == 0.25


@pytest.mark.parametrize(("limit", "compiled"), [(0.25, False), (1.0, kernels.COMPILED)])
def test_the_kernels_are_not_used_where_they_would_clamp_choices(trainer, limit, compiled):
    ppo = trainer(partial(Chance, MIXED), learner="auto", obs_limit=limit)
    assert (ppo.config.acting, ppo.config.learner) == (
        ("local", "kernel") if compiled else ("central", "torch"))
    rollout = ppo.collect()
    obs = ppo.policy.observer.layout.structure([x[:-1].flatten(0, 1) for x in rollout.obs])
    with torch.no_grad():
        val = ppo.policy(obs)[1]
    torch.testing.assert_close(rollout.val.flatten(), val, rtol=1e-5, atol=1e-5)
    observer = trainer(partial(Chance, VECTOR), learner="auto", obs_limit=limit).config
    assert observer.acting == ("local" if kernels.COMPILED else "central")


def test_without_norm_obs_observations_enter_as_they_are(trainer):
    policy = policy_of(VECTOR, norm_obs=False)
    policy.observer.learn([np.ones((9, 3), np.float32)])
    assert policy.value(np.array([1e5, 0, 0])) == 1e5
    ppo = trainer(Chance, norm_obs=False)
    ppo.update(ppo.collect())
    assert [value.tolist() for value in ppo.policy.observer.state] == [[0], [], []]


def test_moments_are_frozen_while_collecting_and_updating_and_merged_once_after(
    trainer, monkeypatch
):
    ppo, seen = trainer(partial(Chance, VECTOR), epochs=2, num_minibatches=2), []
    real = learner.total_loss

    def watching(*args):
        seen.append([value.tolist() for value in ppo.policy.observer.state])
        return real(*args)

    monkeypatch.setattr(learner, "total_loss", watching)
    ppo.update(ppo.collect())
    for _ in range(2):
        frozen = [value.tolist() for value in ppo.policy.observer.state]
        snapshot = ppo.policy.observer.shift.clone(), ppo.policy.observer.scale.clone()
        before = [value.numpy().copy() for value in ppo.policy.observer.state]
        rollout = ppo.collect()
        seen.clear()
        assert torch.equal(snapshot[0], ppo.policy.observer.shift)
        assert torch.equal(snapshot[1], ppo.policy.observer.scale)
        rows = rollout.obs[:-1].reshape(-1, 3).double().numpy()
        ppo.update(rollout)
        assert seen == [frozen] * 4
        count, mean, m2 = (value.numpy() for value in ppo.policy.observer.state)
        assert count == before[0] + 32  # the row after the last step belongs to the next rollout
        np.testing.assert_allclose(mean, (before[0] * before[1] + rows.sum(0)) / count, rtol=1e-12)
        square = before[2] + before[0] * before[1] ** 2 + (rows**2).sum(0)
        np.testing.assert_allclose(m2, square - count * mean**2, rtol=1e-9)


def test_invalid_rows_are_in_no_moment(trainer):
    ppo = trainer(Chance)
    rollout = ppo.collect()
    before = ppo.policy.observer.state[0].item()
    rollout.valid[3:5] = False
    rollout.obs[3:5] = torch.nan
    ppo.update(rollout)
    assert ppo.policy.observer.state[0] == before + 24
    assert all(value.isfinite().all() for value in ppo.policy.observer.state)


class Remembering(gym.Wrapper):
    """Writes down every reset's seed and observation, every action and what it led to."""

    def __init__(self, env, diary):
        super().__init__(env)
        self.diary = diary

    def reset(self, *, seed=None, options=None):
        """A new entry of the diary."""
        obs, info = self.env.reset(seed=seed)
        self.diary.append((seed, [obs], []))
        return obs, info

    def step(self, action):
        """Into the last entry."""
        obs, *rest = self.env.step(action)
        self.diary[-1][1].append(obs)
        self.diary[-1][2].append(action)
        return obs, *rest


def remembered(trainer, make, envs=3, **settings):
    """(ppo before its first rollout, the diary of each of its environments)."""
    diaries = []

    def remembering():
        diaries.append([])
        return Remembering(make(), diaries[-1])

    ppo = trainer(remembering, num_envs=envs, **settings)
    return ppo, diaries[1:]  # the first one only showed its spaces


def warmup_of(ppo, diary, e):
    """Observations that were acted on and actions, of the episodes -1, -2, ... of environment e."""
    seeds = [kernels.episode_seed(ppo.config.seed, Purpose.ENV_SEED, e, -k) for k in range(1, 200)]
    obs, act = [], []
    for seed, seen, actions in diary:
        if seed in seeds:
            assert seed == seeds.pop(0)
            obs += seen[:len(actions)]
            act += actions
    return obs, act


@pytest.mark.parametrize(("steps", "wanted"), [(8, 8), (130, 128)])
def test_moments_start_from_exactly_the_observations_of_a_random_rollout(trainer, steps, wanted):
    ppo, diaries = remembered(trainer, partial(Chance, VECTOR, ends=0.1), num_steps=steps)
    ppo.collect()
    warmups = [warmup_of(ppo, diary, e) for e, diary in enumerate(diaries)]
    assert [len(obs) for obs, _ in warmups] == [wanted] * 3
    rows = np.concatenate([obs for obs, _ in warmups]).astype(np.float64)
    count, mean, m2 = (value.numpy() for value in ppo.policy.observer.state)
    assert count == 3 * wanted
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(m2 / count, rows.var(0), rtol=1e-9)


@pytest.mark.parametrize("space", [Discrete(3, start=5), Box(-2, 3, (2,), np.float64)], ids=str)
def test_the_random_rollout_plays_uniformly_random_legal_actions(trainer, space):
    ppo, diaries = remembered(trainer, partial(Chance, act_space=space), num_steps=128)
    ppo.collect()
    act = np.concatenate([warmup_of(ppo, diary, e)[1] for e, diary in enumerate(diaries)])
    assert len({tuple(np.ravel(a)) for a in act}) == (3 if isinstance(space, Discrete) else 384)
    low, high = (5, 7) if isinstance(space, Discrete) else (-2, 3)
    middle, wide = (low + high) / 2, 4 * (high - low) / np.sqrt(12 * act.size)
    assert abs(act.mean() - middle) < wide


def test_the_random_rollout_is_counted_nowhere(trainer):
    ppo, diaries = remembered(trainer, partial(Counting, 5), num_steps=8)
    stats = []
    ppo.learn(24, callbacks=[lambda _, found: stats.append(found)])
    assert ppo.step == 24
    assert stats[0]["charts/episodes"] == 3 and stats[0]["charts/episodic_return"] == 5
    assert ppo.rollout.obs[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    for e, diary in enumerate(diaries):
        first = next(i for i, entry in enumerate(diary) if entry[0] == kernels.episode_seed(
            ppo.config.seed, Purpose.ENV_SEED, e, 0))
        assert [len(actions) for _, _, actions in diary[:first]][:2] == [5, 3]
        assert [len(actions) for _, _, actions in diary[first:]] == [5, 3]


def test_there_is_no_random_rollout_where_observations_are_not_normalised(trainer):
    ppo, diaries = remembered(trainer, Counting, norm_obs=False)
    ppo.collect()
    assert [len(diary) for diary in diaries] == [2] * 3


def test_the_first_moments_do_not_depend_on_the_number_of_workers(trainer):
    makes = [trainer(partial(Chance, VECTOR), num_envs=5, num_workers=w) for w in (0, 2)]
    for ppo in makes:
        ppo.collect()
    serial, parallel = (ppo.policy.observer.state for ppo in makes)
    assert serial[0] == 40
    assert all(map(torch.equal, serial, parallel))


def test_moments_are_saved_with_the_weights(trainer, tmp_path):
    ppo = trainer(partial(Chance, VECTOR))
    ppo.update(ppo.collect())
    ppo.save(tmp_path / "policy.safetensors")
    policy = load(tmp_path / "policy.safetensors")
    assert ppo.policy.observer.state[0] == 64
    assert all(map(torch.equal, ppo.policy.observer.state, policy.observer.state))
    obs = np.random.default_rng(2).normal(3, 2, (9, 3))
    np.testing.assert_array_equal(policy.value(obs), ppo.policy.value(obs))


ACTING = {
    "mlp": (VECTOR, Discrete(3), {}), "multi": (VECTOR, MultiDiscrete([3, 2]), {}),
    "squashed": (VECTOR, Box(-1, 1, (2,)), {"distribution": "squashed"}),
    "tanh": (VECTOR, Box(-1, 1, (2,)), {"final_tanh": True, "action_scaling": True}),
    "columns": (Dict(a=VECTOR, b=VECTOR), Discrete(3), {"actor_keys": ("b",)}),
    "values": (VECTOR, Discrete(3), {"norm_values": True, "reward_scale": 50.0}),
}


@pytest.mark.parametrize("name", ACTING)
def test_a_state_dict_holds_or_restores_all_that_a_policy_acts_by(trainer, tmp_path, name):
    space, act_space, settings = ACTING[name]
    make = partial(trainer, partial(Chance, space, act_space), learner="auto", **settings)
    trained, other = make().learn(96), make(seed=2)
    other.collect()
    other.update(other.rollout)
    trained.save(tmp_path / "policy.safetensors")
    state = load(tmp_path / "policy.safetensors").state_dict()
    obs = batch_space(space, 9).sample()
    for policy in (other.policy, make(seed=3).policy, load(tmp_path / "policy.safetensors")):
        policy.load_state_dict(state)
        np.testing.assert_array_equal(policy.predict(obs), trained.policy.predict(obs))
        np.testing.assert_array_equal(policy.value(obs), trained.policy.value(obs))
    assert_ratio_is_one(other, other.collect())  # also where the compiled policy acts


def test_a_state_dict_from_before_the_first_observation_forgets_the_moments(trainer):
    ppo, fresh = trainer(partial(Chance, VECTOR)), trainer(partial(Chance, VECTOR))
    ppo.learn(32)
    ppo.policy.load_state_dict(fresh.policy.state_dict())
    assert not ppo.policy.observer.shift.any() and (ppo.policy.observer.scale == 1).all()


def test_evaluation_changes_no_moment(trainer):
    ppo = trainer(partial(Counting, 5))
    ppo.update(ppo.collect())
    before = ppo.policy.observer.state
    assert ppo.evaluate(episodes=4).mean == 5
    assert all(map(torch.equal, before, ppo.policy.observer.state))


class Scaling:
    """Reward scaling by its definition: every g so far in one list of its own for each run."""

    def __init__(self, envs, gamma):
        self.g, self.gamma, self.all = [0.0] * envs, gamma, []

    def factor(self, rew, ended, valid):
        """1 / sqrt(var + 1e-8) after these rewards [t e]."""
        for e in range(rew.shape[1]):
            for t in range(len(rew)):
                self.g[e] = self.gamma * self.g[e] + rew[t, e]
                if valid[t, e]:
                    self.all.append(self.g[e])
                if ended[t, e]:
                    self.g[e] = 0.0
        return 1 / np.sqrt(np.var(self.all) + 1e-8)


@pytest.mark.parametrize("settings", [{}, {"reward_scale": 20.0}, {"reward_limit": 1.0}], ids=str)
def test_rewards_are_divided_by_the_std_of_the_discounted_return_so_far(trainer, settings):
    ppo = trainer(Chance, num_steps=24, norm_rewards=True, gamma=0.9, **settings)
    scaling, limit = Scaling(4, 0.9), settings.get("reward_limit", 10.0)
    for _ in range(3):
        rollout = ppo.collect()
        rew = rollout.raw.double().numpy() * settings.get("reward_scale", 1.0)
        ended = (rollout.term | rollout.trunc).numpy()
        assert 10 < ended.sum() < 86
        wanted = rew * scaling.factor(rew, ended, rollout.valid.numpy())
        np.testing.assert_allclose(rollout.rew, np.clip(wanted, -limit, limit), rtol=1e-5)
        ppo.update(rollout)


@pytest.mark.parametrize("asked, on", [
    ({}, True), ({"clip_rewards": True}, False), ({"reward_scale": 0.1}, False),
    ({"reward_scale": 0.1, "norm_rewards": True}, True), ({"norm_rewards": False}, False)], ids=str)
def test_rewards_are_normalised_unless_something_else_scales_them(trainer, asked, on):
    ppo = trainer(partial(Counting, 4), **{"norm_rewards": None, **asked})
    plain = 1.0 if "clip_rewards" in asked else asked.get("reward_scale", 1.0)
    assert ppo.config.norm_rewards is on
    assert (ppo.collect().rew == np.float32(plain)).all() != on


@pytest.mark.parametrize("asked, needed", [
    ({"reward_limit": 1.0}, "norm_rewards"), ({"obs_limit": 2.0, "norm_obs": False}, "norm_obs"),
    ({"reward_limit": 1.0, "norm_rewards": None, "reward_scale": 0.1}, "norm_rewards")], ids=str)
def test_a_limit_of_what_is_not_normalised_is_refused(trainer, asked, needed):
    with pytest.raises(ConfigError, match=f"does nothing without.*\n  fix: {needed}=True"):
        trainer(Chance, **asked)


def test_no_mean_is_subtracted_from_rewards(trainer):
    rollout = trainer(lambda: OneStep(lambda obs, act: 100 + obs), norm_rewards=True).collect()
    assert (rollout.rew > 0).all() and (rollout.rew == 10).all()


@pytest.mark.parametrize("env", [Chance, Scripted])  # Scripted has rows that are no steps
@pytest.mark.parametrize("settings", [
    {"norm_rewards": False}, {"norm_rewards": True, "reward_scale": 3.0}, {"clip_rewards": True},
    {"gamma": 1.0}], ids=str)
def test_centred_rewards_are_those_of_values_less_the_one_that_fits_the_first_rollout(
        trainer, env, settings):
    settings = {"num_steps": 24, "gamma": 0.9, **settings}
    as_they_are, ppo = (trainer(env, center_rewards=on, **settings) for on in (False, True))
    value, kinds = None, set()
    for _ in range(3):
        plain, rollout = as_they_are.collect(), ppo.collect()
        rew, term, trunc, valid, val, nxt = (x.double().numpy() if x.is_floating_point() else
                                             x.numpy() for x in (plain.rew, plain.term, plain.trunc,
                                                                 plain.valid, plain.val, plain.nxt))
        left = np.where(term, 1.0, 1.0 - settings["gamma"])
        if value is None:
            value = rew[valid].sum() / left[valid].sum()
        np.testing.assert_allclose(rollout.rew[valid], (rew - value * left)[valid], atol=1e-4)
        wanted = gae(rew, val, nxt, term, trunc, valid, settings["gamma"], 0.95)
        less = gae(rollout.rew.numpy(), val - value, nxt - value, term, trunc, valid,
                   settings["gamma"], 0.95)
        np.testing.assert_allclose(less[valid], wanted[valid], atol=1e-3)
        kinds |= {*zip(term[valid], trunc[valid])}
    assert len(kinds) >= 3


def test_rewards_without_ends_and_discount_have_no_center(trainer):
    ppo = trainer(partial(Counting, 12, truncated=False), num_steps=8, gamma=1.0,
                  norm_rewards=False, center_rewards=True)
    for ends in (False, True):
        rollout = ppo.collect()
        assert (rollout.rew == 1).all() and rollout.term.any() == ends


@pytest.mark.parametrize("offset, said", [(50.0, 1), (-50.0, 1), (0.0, 0)])
def test_rewards_that_are_all_at_the_limit_are_told_once_with_their_share(trainer, caplog, offset,
                                                                         said):
    ppo = trainer(lambda: OneStep(lambda obs, act: offset + obs), norm_rewards=True)
    for _ in range(2):
        ppo.update(ppo.collect())
    assert caplog.text.count("100 % of the normalised rewards are at reward_limit=10") == said


def test_the_discounted_return_goes_on_where_a_rollout_ends_inside_an_episode(trainer):
    def factors(steps, rollouts):
        ppo = trainer(partial(Counting, 12), num_steps=steps, num_envs=1, norm_rewards=True)
        return [float(ppo.collect().rew[0, 0]) for _ in range(rollouts)]

    assert factors(6, 4)[3] == pytest.approx(factors(24, 1)[0], rel=1e-6)


def test_reward_scaling_is_not_undone_in_what_the_environment_gave(trainer):
    ppo = trainer(partial(Counting, 4), norm_rewards=True, reward_scale=7.0)
    rollout = ppo.collect()
    assert (rollout.raw == 1).all()
    ended = ppo.arena["length"] > 0
    assert {*ppo.arena["total"][ended]} == {4.0}


def test_moments_are_merged_without_a_further_copy_of_the_rows():
    sizes, moments, rows = [], RunningMoments(7), torch.ones(100, 7)

    class Sizes(TorchDispatchMode):
        """Notes the bytes of every tensor that an operation makes."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            tree_map(lambda x: sizes.append(x.nbytes), out)
            return out
    with Sizes():
        moments.merge_tensor(rows)
    assert [size for size in sizes if size >= 100 * 7] == [100 * 7 * 8]
