"""Rollouts: the same policy acts and is updated, and advantages follow their definition."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from asked_of_runs import assert_advantages, assert_ratio_is_one, assert_successors
from envs_for_tests import CHANCE, Chance, Constant, Counting, Golden, OneStep, Witness
from gymnasium.spaces import Box, Discrete

from fastppo.collect import prepare_rollout
from fastppo.networks import action_heads
from fastppo.trainer.rollout_arrays import env_groups

INF = np.inf






class OwnNet(torch.nn.Module):
    """A network of the user's: one layer, whatever the spaces."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.outputs = action_heads.make_head(act_space).size
        self.layer = torch.nn.Linear(int(np.prod(obs_space.shape)), self.outputs + 1)

    def forward(self, obs):
        """Parameters, then the value."""
        out = self.layer(obs.reshape(len(obs), -1))
        return out[:, :-1], out[:, -1]


OBSERVATIONS = {
    "scalar": Box(-INF, INF, (), np.float32),
    "vector": Box(-INF, INF, (3,), np.float32),
    "matrix": Box(-INF, INF, (2, 3), np.float32),
    "float64": Box(-INF, INF, (3,), np.float64),
    "uint8": Box(0, 255, (4,), np.uint8),
    "bool": Box(0, 1, (4,), np.bool_),
}
BOUNDS = {"bounded": (-1, 1), "half": (0, INF), "free": (-INF, INF)}
ACTIONS = {"discrete": Discrete(3), "discrete from 5": Discrete(3, start=5)} | {
    f"{kind} {shape} {np.dtype(dtype)}": Box(low, high, shape, dtype)
    for kind, (low, high) in BOUNDS.items()
    for shape in ((), (3,), (2, 2))
    for dtype in (np.float32, np.float64)
}
FLAGS = [
    dict(norm_obs=norm_obs, norm_rewards=norm_rewards, shared_critic=shared, **acting)
    for norm_obs, norm_rewards, shared in itertools.product((True, False), repeat=3)
    for acting in ({"acting": "local"}, {"acting": "central"})
] + [dict(norm_obs=norm_obs, model=OwnNet) for norm_obs in (True, False)]


def supported(observation, flags):
    """The compiled actor takes neither bytes nor bools: then main acts."""
    main = observation in ("uint8", "bool") or "model" in flags
    return flags | {"acting": "central"} if main else flags


PAIRS = list(itertools.product(OBSERVATIONS, ACTIONS))


@pytest.mark.parametrize("pair", range(1, len(PAIRS), 3), ids=lambda pair: str(PAIRS[pair]))
def test_the_first_ratio_is_one_for_all_spaces_and_flags(trainer, pair):
    flags = FLAGS[pair // 3 * 7 % len(FLAGS)]  # 7: all of them come by
    ratios_are_one(trainer, *PAIRS[pair], flags)


@pytest.mark.slow
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_the_first_ratio_is_one_in_every_combination(trainer, flags):
    for observation, action in itertools.product(OBSERVATIONS, ACTIONS):
        ratios_are_one(trainer, observation, action, flags)


def ratios_are_one(trainer, observation, action, flags):
    """Two iterations: in the second one weights, moments and actions have moved."""
    make = partial(Chance, OBSERVATIONS[observation], ACTIONS[action])
    ppo = trainer(make, lr=0.01, **supported(observation, flags))
    for _ in range(2):
        assert_ratio_is_one(ppo, ppo.collect())
    ppo.close()


def test_the_noise_of_a_rollout_makes_its_actions_differ(trainer):
    act = trainer(partial(Chance, act_space=ACTIONS["free (2, 2) float32"])).collect().act
    assert len(act.unique()) == act.numel() == 8 * 4 * 4


def test_actions_are_stored_unclipped_and_given_to_the_environment_clipped(trainer):
    given = []

    class Listening(Chance):
        def step(self, action):
            given.append(action)
            return super().step(action)

    ppo = trainer(partial(Listening, act_space=Box(-0.5, 0.25, (2,), np.float64)), norm_obs=False)
    act = ppo.collect().act.numpy().reshape(-1, 2)
    assert (act < -0.5).any() and (act > 0.25).any()
    np.testing.assert_array_equal(given, np.clip(act, np.float64(-0.5), 0.25))
    assert given[0].dtype == np.float64


ACTING = [(0, "local"), (0, "central"), (2, "local"), (2, "central")]
with_each_actor = pytest.mark.parametrize(("workers", "acting"), ACTING)


def witnessed(ppo, make, rollouts=2):
    """(rollout, what a witness saw of it) of some iterations with an update between."""
    witness = Witness(make, ppo.config.num_envs, ppo.config.seed)
    for _ in range(rollouts):
        rollout = ppo.collect()
        yield rollout, witness.follow(rollout.act.numpy())
        ppo.update(rollout)






@with_each_actor
def test_a_rollout_is_what_a_witness_sees_and_its_advantages_follow_by_definition(
    trainer, workers, acting
):
    ppo = trainer(CHANCE, num_workers=workers, acting=acting, num_envs=5, num_steps=24, lr=0.01)
    kinds = set()
    for rollout, seen in witnessed(ppo, CHANCE):
        np.testing.assert_array_equal(rollout.obs, seen.obs)
        np.testing.assert_array_equal(rollout.raw, seen.raw.astype(np.float32))
        np.testing.assert_array_equal(rollout.term, seen.term)
        np.testing.assert_array_equal(rollout.trunc, seen.trunc)
        assert rollout.valid.all()
        assert_successors(ppo, rollout, seen)
        assert_advantages(ppo, rollout)
        kinds |= set((seen.term + 2 * seen.trunc).ravel().tolist())
        kinds |= {("at the end", bool(end)) for end in (seen.term | seen.trunc)[-1]}
    assert kinds == {0, 1, 2, 3, ("at the end", True), ("at the end", False)}


@pytest.mark.parametrize("acting", ["local", "central"])
@pytest.mark.parametrize(("envs", "steps"), [(1, 1), (1, 24), (5, 1)])
def test_one_environment_and_one_step_are_enough(trainer, envs, steps, acting):
    ppo = trainer(CHANCE, acting=acting, num_envs=envs, num_steps=steps, norm_rewards=True)
    for rollout, seen in witnessed(ppo, CHANCE, 12):
        np.testing.assert_array_equal(rollout.obs, seen.obs)
        assert_successors(ppo, rollout, seen)
        assert_advantages(ppo, rollout)
        assert rollout.adv.isfinite().all()


@with_each_actor
def test_episode_returns_are_the_float64_sums_of_what_the_environment_gave(
    trainer, workers, acting
):
    ppo = trainer(CHANCE, num_workers=workers, acting=acting, num_steps=24, reward_scale=100.0)
    for _, seen in witnessed(ppo, CHANCE):
        ended = np.isfinite(seen.total)
        assert ended.sum() > 5
        np.testing.assert_array_equal(ppo.arena["total"][ended], seen.total[ended])


@pytest.mark.parametrize("acting", ["local", "central"])
def test_an_episode_as_long_as_the_rollout_bootstraps_from_its_final_observation(trainer, acting):
    make = partial(Counting, length=8)
    ppo = trainer(make, acting=acting, num_steps=8, lr=0.01)
    for rollout, seen in witnessed(ppo, make):
        assert rollout.trunc[-1].all() and not rollout.trunc[:-1].any()
        assert (seen.fin[-1] == 8).all() and (rollout.obs[-1] == 0).all()
        final, fresh = ppo.policy.value(seen.fin[-1]), ppo.policy.value(seen.obs[-1])
        np.testing.assert_allclose(rollout.nxt[-1], final, rtol=1e-6)
        assert (abs(final - fresh) > 1e-3).all()


GOLDEN_VALUES = [0.5, 0.6, 0.7, 2.0, 0.2, 0.3, 0.4, 1.5]  # two episodes, final observations too
GOLDENS = {  # truncated after the third step; terminated after the third and the sixth
    True: [2.87024, 2.542, 2.1, 2.84408, 2.464, 1.95],
    False: [1.93712, 1.246, 0.3, 2.14424, 1.492, 0.6],
}


class TableNet(OwnNet):
    """The value is read from a table, the action is a coin."""

    def forward(self, obs):
        """Values of the observations 0, 1, 2, ..., and again from 8 on."""
        return super().forward(obs)[0], torch.tensor(GOLDEN_VALUES)[obs[:, 0].long() % 8]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("truncated", GOLDENS)
def test_the_goldens_are_reproduced_by_a_real_rollout(trainer, truncated, workers):
    ppo = trainer(partial(Golden, truncated), model=TableNet, norm_obs=False, gamma=0.9,
                  gae_lambda=0.8, num_envs=1, num_steps=6, num_workers=workers)
    rollout = ppo.collect()
    np.testing.assert_allclose(rollout.val[:, 0], [0.5, 0.6, 0.7, 0.2, 0.3, 0.4])
    golden = np.array(GOLDENS[truncated])
    np.testing.assert_allclose(rollout.adv[:, 0], golden, atol=1e-5)
    np.testing.assert_allclose(rollout.ret, golden[:, None] + rollout.val.numpy(), atol=1e-5)


def test_rewards_are_scaled_then_signed_then_normalised_then_limited(trainer):
    scripts = np.array([3.0, -0.5, 0.0, 2.0, -7.0, 0.25])

    class Scripted(Counting):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, scripts[self.steps - 1], *rest

    def rewards(**settings):
        rollout = trainer(partial(Scripted, 6), num_envs=1, num_steps=6, **settings).collect()
        np.testing.assert_array_equal(rollout.raw[:, 0], scripts)
        return rollout.rew[:, 0].numpy()

    np.testing.assert_array_equal(rewards(), scripts)
    np.testing.assert_array_equal(rewards(reward_scale=-2.0), -2 * scripts)
    np.testing.assert_array_equal(rewards(reward_scale=-2.0, clip_rewards=True), np.sign(-scripts))
    signed = rewards(clip_rewards=True, norm_rewards=True)
    assert len({abs(rew) for rew in signed.tolist()}) == 2  # 0, and one factor for all signs
    np.testing.assert_array_equal(np.sign(signed), np.sign(scripts))
    np.testing.assert_allclose(  # a factor before normalisation cancels
        rewards(norm_rewards=True, reward_scale=50.0), rewards(norm_rewards=True), rtol=1e-5)
    limited = rewards(norm_rewards=True, reward_limit=0.5)
    np.testing.assert_allclose(limited, np.clip(rewards(norm_rewards=True), -0.5, 0.5), rtol=1e-6)
    assert abs(limited).max() == 0.5


def test_episode_statistics_are_absent_before_the_first_episode_has_finished(trainer):
    seen = []
    ppo = trainer(partial(Counting, 12), num_envs=2, reward_scale=0.5)
    ppo.learn(32, callbacks=[lambda _, stats: seen.append(stats)])
    ends = {"charts/episodes": 2, "charts/episodic_length": 12, "charts/episodic_return": 12}
    assert not ends.keys() & seen[0].keys()
    assert seen[1].items() >= ends.items()


def test_the_episodic_return_is_the_mean_of_the_last_hundred(trainer):
    rewards = itertools.count(1)
    seen = []
    ppo = trainer(lambda: OneStep(lambda *_: next(rewards)), num_envs=1, num_steps=130,
                  norm_obs=False)
    ppo.learn(130, callbacks=[lambda _, stats: seen.append(stats)])
    assert seen[0]["charts/episodic_return"] == np.mean(np.arange(31, 131))
    assert seen[0]["charts/episodes"] == 130


def test_nan_and_garbage_in_unused_places_is_harmless(trainer):
    def trained(spoil):
        ppo = trainer(partial(Chance, ends=0.3), epochs=2, num_minibatches=2)
        for name in ("nxt", "val", "logp", "fin", "adv", "ret", "rew", "total"):
            ppo.arena[name].fill(spoil)
        for _ in range(2):
            ppo.update(ppo.collect())
        return ppo.learner.flat.values.clone()

    weights = trained(np.nan)
    assert weights.isfinite().all()
    assert torch.equal(weights, trained(1e30))


def test_a_rollout_is_a_view_of_the_arena(trainer):
    ppo = trainer(Constant)
    rollout = ppo.collect()
    for name, value in rollout._asdict().items():
        if value.numel():
            assert value.data_ptr() == ppo.arena[name].ctypes.data
    assert [name for name, value in rollout._asdict().items() if not value.numel()] == ["state"]


def test_before_a_rollout_all_that_it_must_write_is_poison_and_no_episode_has_ended(trainer):
    ppo = trainer(Chance)
    ppo.collect()
    prepare_rollout(ppo.arena)
    for name in ("val", "nxt", "logp", "total"):
        assert np.isnan(ppo.arena[name]).all(), name
    assert not any(ppo.arena[name].any() for name in ("term", "trunc", "length"))
    assert ppo.arena["valid"].all()


@pytest.mark.parametrize(("envs", "halves"), [(1, [(0, 1)]), (2, [(0, 1), (1, 2)]),
                                              (7, [(0, 3), (3, 7)])])
def test_central_acting_serves_two_halves_in_turns(envs, halves):
    assert env_groups(envs) == [range(*half) for half in halves]
