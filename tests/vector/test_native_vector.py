"""Vector environments handed in as they are: every step they took, nothing else, is a valid row."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import ONE, Chance, Counting, Fenced
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import fastppo
from fastppo import make_vec, reference
from fastppo.errors import ConfigError, EnvError
from fastppo.machine import kernels
from fastppo.spaces.leaves import tree_map
from fastppo.update.batches import flatten_rollout

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
MODES = pytest.mark.parametrize("mode", AutoresetMode)
ACTING = pytest.mark.parametrize("acting", ["local", "central"])
STEPS = 12


class Diary(gym.Wrapper):
    """Writes down every step: (obs, action, reward, term, trunc, the observation it led to).

    A seed begins a new diary.
    """

    def __init__(self, env):
        super().__init__(env)
        self.steps, self.seeds = [], []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        if seed is not None:
            self.steps.clear()
        self.obs, info = self.env.reset(seed=seed)
        return self.obs, info

    def step(self, action):
        obs, rew, term, trunc, info = self.env.step(action)
        self.steps.append((self.obs, action, rew, term, trunc, obs))
        self.obs = obs
        return obs, rew, term, trunc, info


def diaries(make, envs=3, mode=NEXT_STEP, vector=SyncVectorEnv):
    """A vector environment of Gymnasium's whose environments keep a Diary."""
    return vector([lambda: Diary(make()) for _ in range(envs)], autoreset_mode=mode)


def assert_is_what_happened(ppo, rollout, vec):
    """The valid rows of a rollout are the last pages of the diaries, and nxt and adv follow."""
    for e, env in enumerate(vec.envs):
        valid = rollout.valid[:, e].numpy()
        pages = env.steps[len(env.steps) - valid.sum():]
        obs, act, rew, term, trunc, led_to = (np.array(column) for column in zip(*pages))
        kept = {name: getattr(rollout, name)[:STEPS, e].numpy()[valid] for name in rollout._fields}
        np.testing.assert_array_equal(kept["obs"], obs.astype(kept["obs"].dtype))
        np.testing.assert_array_equal(kept["raw"], rew.astype(np.float32))
        np.testing.assert_array_equal(kept["term"], term)
        np.testing.assert_array_equal(kept["trunc"], trunc)
        nxt = np.where(term, np.nan, ppo.policy.value(led_to))
        np.testing.assert_allclose(kept["nxt"], nxt, rtol=1e-5, atol=1e-6)
        columns = (kept[name][:, None] for name in ("rew", "val", "nxt", "term", "trunc"))
        adv = reference.gae(*columns, True, ppo.config.gamma, ppo.config.gae_lambda)
        np.testing.assert_allclose(kept["adv"], adv[:, 0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(kept["ret"], adv[:, 0] + kept["val"], rtol=1e-4, atol=1e-5)


def assert_the_rest_is_poison(rollout):
    """Rows that are no step hold nothing but an observation."""
    rest = ~rollout.valid
    for name in ("logp", "val", "raw", "rew", "nxt", "adv", "ret"):
        assert getattr(rollout, name)[rest].isnan().all(), name
    assert not (rollout.term | rollout.trunc)[rest].any()
    assert (rollout.act[rest] == -1).all() or rollout.act[rest].isnan().all()


class OverInReset(SyncVectorEnv):
    """Like a game that is over in the step that begins its next life: that step is a reset, too."""

    def step(self, actions):
        """Every second reset row ends its episode, as if the game were over there."""
        begun = self._autoreset_envs.copy()
        obs, rew, term, trunc, info = super().step(actions)
        self.resets = getattr(self, "resets", 0) + begun
        over = begun & (self.resets % 2 == 1)
        self._autoreset_envs |= over
        return obs, rew, term | over, trunc, info


# ---- rollouts ----------------------------------------------------------------------------------

@MODES
@ACTING
@pytest.mark.parametrize("norm", [False, True])
def test_valid_rows_and_advantages_are_those_of_the_steps_that_were_taken(
        trainer, mode, acting, norm):
    vec = diaries(Chance, mode=mode)
    ppo = trainer(vec, num_envs=3, num_steps=STEPS, norm_obs=norm, num_minibatches=2,
                  acting=acting)
    for _ in range(4):
        rollout = ppo.collect()
        assert_is_what_happened(ppo, rollout, vec)
        assert_the_rest_is_poison(rollout)
        assert bool(rollout.valid.all()) == (mode is not NEXT_STEP)
        ppo.update(rollout)
    assert ppo.step == sum(len(env.steps) for env in vec.envs)


@ACTING
def test_an_episode_that_is_over_in_its_reset_is_reset_again(trainer, acting):
    vec = diaries(Chance, vector=OverInReset)
    ppo = trainer(vec, num_envs=3, num_steps=STEPS, acting=acting)
    twice = 0
    for _ in range(4):
        rollout = ppo.collect()
        assert_is_what_happened(ppo, rollout, vec)
        assert_the_rest_is_poison(rollout)
        twice += int((~rollout.valid[1:] & ~rollout.valid[:-1]).sum())
    assert twice and ppo.step == sum(len(env.steps) for env in vec.envs)


@MODES
@ACTING
def test_the_first_minibatch_has_ratio_one(trainer, mode, acting):
    ppo = trainer(diaries(Chance, mode=mode), num_envs=3, num_steps=STEPS, acting=acting)
    for _ in range(3):
        rollout = ppo.collect()
        batch = flatten_rollout(rollout, torch.device("cpu"))
        with torch.no_grad():
            ratio = (ppo.policy.evaluate_actions(batch.obs, batch.act)[0] - batch.logp).exp()
        assert len(ratio) == rollout.valid.sum() and (ratio - 1).abs().max() < 1e-5
        assert abs(ppo.update(rollout)["losses/approx_kl"]) < 1e-5


@MODES
def test_both_learners_do_the_same_with_rows_that_are_no_step(trainer, mode):
    weights = []
    for name in ("kernel", "torch"):
        ppo = trainer(diaries(Chance, mode=mode), num_envs=3, num_steps=STEPS, learner=name,
                      acting="local", epochs=2, num_minibatches=3)
        ppo.update(ppo.collect())
        weights.append(ppo.learner.flat.values.numpy().copy())
    np.testing.assert_allclose(*weights, atol=1e-5)


def transitions(trainer, mode):
    """(obs, raw, term, trunc, nxt) of environment e's first 30 steps, under one fixed policy."""
    vec = SyncVectorEnv([lambda n=n: Counting(n, truncated=n % 2 == 0) for n in (2, 3, 4)],
                        autoreset_mode=mode)
    ppo, rows = trainer(vec, num_envs=3, num_steps=STEPS, norm_obs=False), [[], [], []]
    for _ in range(5):
        rollout = ppo.collect()
        for e in range(3):
            fields = (getattr(rollout, name)[:STEPS, e][rollout.valid[:, e]].reshape(-1).tolist()
                      for name in ("obs", "raw", "term", "trunc", "nxt"))
            rows[e] += zip(*fields)
    return np.array([row[:30] for row in rows])


def test_all_modes_tell_the_same_story(trainer):
    stories = [transitions(trainer, mode) for mode in AutoresetMode]
    np.testing.assert_allclose(stories[0], stories[1], atol=1e-6)
    np.testing.assert_array_equal(stories[1], stories[2])


def test_an_end_at_the_last_row_makes_the_next_rollouts_first_row_invalid(trainer):
    vec = SyncVectorEnv([lambda: Counting(4), lambda: Counting(3)])
    ppo = trainer(vec, num_envs=2, num_steps=4, norm_obs=False)
    first = ppo.collect()
    assert first.trunc[:, 0].tolist() == [False] * 3 + [True]
    assert first.valid.T.tolist() == [[True] * 4, [True, True, True, False]]
    assert first.nxt[3, 0] == pytest.approx(ppo.policy.value(np.full(1, 4, np.float32)))
    second = ppo.collect()
    assert second.valid.T.tolist() == [[False, True, True, True], [True, True, True, False]]
    assert second.obs[:, 0, 0].tolist() == [4, 0, 1, 2, 3]
    assert ppo.step == 7 + 6


@MODES
def test_episodes_are_counted_by_their_own_steps_and_rewards(trainer, mode):
    vec = diaries(Chance, mode=mode)
    ppo = trainer(vec, num_envs=3, num_steps=STEPS, norm_obs=False)
    ppo.learn(3 * 3 * STEPS)
    wanted = []
    for env in vec.envs:
        total, length = 0.0, 0
        for _, _, rew, term, trunc, _ in env.steps:
            total, length = total + rew, length + 1
            if term or trunc:
                wanted.append((total, length))
                total, length = 0.0, 0
    recent = ppo.episodes.state.recent
    assert sorted(one[:2] for one in recent) == sorted(wanted) and len(wanted) > 9


@MODES
def test_reward_scaling_skips_rows_that_are_no_step(trainer, mode):
    vec = diaries(Chance, mode=mode)
    ppo = trainer(vec, num_envs=3, num_steps=STEPS, norm_obs=False, norm_rewards=True,
                  reward_limit=99)
    for _ in range(2):
        rollout = ppo.collect()
    raw = [[page[2] for page in env.steps] for env in vec.envs]
    over = [[page[3] or page[4] for page in env.steps] for env in vec.envs]
    g = np.concatenate([reference.discounted(np.array(r)[:, None], np.array(o)[:, None], True,
                                             ppo.config.gamma, np.zeros(1))[0][:, 0]
                        for r, o in zip(raw, over)])
    scaled = rollout.raw[rollout.valid].numpy() / np.sqrt(g.var() + 1e-8)
    np.testing.assert_allclose(rollout.rew[rollout.valid].numpy(), scaled, rtol=1e-4)


def test_a_vector_environment_is_seeded_once_and_by_the_run(trainer):
    seeds = []
    for seed in (1, 1, 2):
        vec = diaries(Chance)
        trainer(vec, num_envs=3, num_steps=STEPS, norm_obs=False, seed=seed).collect()
        seeded = [[one for one in env.seeds if one is not None] for env in vec.envs]
        assert all(len(env) == 1 for env in seeded)
        seeds.append([seed for seed, in seeded])
    assert seeds[0] == seeds[1] and not set(seeds[0]) & set(seeds[2])


SPACES = {"scalar": (Box(-9, 9, ()), Discrete(3, start=5)),
          "float64": (Box(-99, 99, (2, 2), np.float64), Box(-1, 1, (2,), np.float64)),
          "bytes": (Box(0, 255, (4,), np.uint8), Box(-np.inf, np.inf, (1,), np.float32)),
          "small": (ONE, Discrete(2, dtype=np.int8))}


@pytest.mark.parametrize("name", SPACES)
def test_any_space_that_training_serves_comes_through(trainer, name):
    obs_space, act_space = SPACES[name]
    vec = diaries(lambda: Chance(obs_space, act_space))  # Chance checks every action it is given
    ppo = trainer(vec, num_envs=3, num_steps=STEPS)
    assert_is_what_happened(ppo, ppo.collect(), vec)


# ---- which vector environments -----------------------------------------------------------------

@pytest.mark.parametrize("how", ["vector_entry_point", "sync",
                                 pytest.param("async", marks=pytest.mark.slow)])
def test_whatever_gymnasium_makes_can_be_trained_on(trainer, how):
    vec = gym.make_vec("CartPole-v1", 4, how)
    ppo = trainer(vec, num_envs=4, num_steps=32)
    config = ppo.config
    acting = "local" if kernels.COMPILED else "central"
    assert (config.vec, config.num_workers, config.acting) == ("native", 0, acting)
    ppo.learn(512)
    assert ppo.step >= 512 and ppo.episodes.count > 5
    ppo.close()
    assert not vec.closed and len(vec.step(vec.action_space.sample())[0]) == 4
    vec.close()


def test_ours_and_a_wrapped_one_can_be_trained_on_and_do_the_same(trainer):
    weights = []
    for wrap in (lambda vec: vec, RecordEpisodeStatistics):
        with make_vec("CartPole-v1", num_envs=2, num_workers=0, autoreset_mode=DISABLED) as vec:
            ppo = trainer(wrap(vec), num_envs=2, num_steps=32).learn(128)
            weights.append(ppo.learner.flat.values.clone())
    assert weights[0].equal(weights[1])


@pytest.mark.parametrize("setting, text", [
    ({"num_envs": 16}, "num_envs is 16.*2"), ({"num_workers": 1}, "num_workers is 1.*0"),
    ({"vec": "workers"}, "vec is 'workers'.*native"), ({"vec": "envpool"}, "vec is 'envpool'"),
    ({"max_episode_steps": 9}, "max_episode_steps"), ({"env_kwargs": {"n": 1}}, "env_kwargs")])
def test_a_setting_that_the_environment_has_decided_otherwise_is_refused(trainer, setting, text):
    vec = diaries(Counting, 2)
    with pytest.raises(ConfigError, match=text):
        trainer(vec, **{"num_envs": 2, **setting})
    assert trainer(vec, num_envs=2, num_workers=0, vec="native").config.num_envs == 2


@pytest.mark.parametrize("metadata", [
    None, {}, {"autoreset_mode": "Often"}, {"autoreset_mode": None}])
def test_an_unknown_autoreset_mode_is_refused(trainer, metadata):
    vec = diaries(Counting, 2)
    vec.metadata = metadata
    with pytest.raises(ConfigError, match="autoreset mode"):
        trainer(vec, num_envs=2)


def test_the_mode_may_stand_there_by_name(trainer):
    vec = diaries(Counting, 2, SAME_STEP)
    vec.metadata = {"autoreset_mode": "SameStep"}
    assert trainer(vec, num_envs=2).collect().valid.all()


def test_evaluation_needs_an_environment_of_its_own(trainer):
    ppo = trainer(diaries(Counting, 2), num_envs=2)
    with pytest.raises(ConfigError, match=r"fix: give eval_env, or evaluate\(\)"):
        ppo.evaluate(2)
    assert ppo.evaluate(3, env=lambda: Counting(7)).lengths.tolist() == [7, 7, 7]


# ---- faults and interrupts ---------------------------------------------------------------------

class Bent(gym.vector.VectorWrapper):
    """Answers step `at` with what `bend(obs, rew, term, trunc, info)` makes of it."""

    def __init__(self, env, bend, at=5):
        super().__init__(env)
        self.bend, self.at, self.count = bend, at, 0

    def step(self, actions):
        self.pages = [len(env.steps) for env in self.env.envs]
        reply = self.env.step(actions)
        self.count += 1
        return self.bend(*reply) if self.count == self.at else reply


def raised(error):
    """A bend that raises."""
    def bend(*reply):
        raise error
    return bend


def spoilt(obs, e=1):
    """Observations with a NaN in environment e."""
    obs = obs.copy()
    obs[e] = np.nan
    return obs


BENDS = {"raises": (raised(RuntimeError("boom")), r"step\(\): RuntimeError: boom"),
         "NaN": (lambda o, *rest: (spoilt(o), *rest), r"environment 1: .*observation\[0\] is nan"),
         "shape": (lambda o, *rest: (o[:, None], *rest), r"shape \(2, 1, 1\)"),
         "rewards": (lambda o, r, *rest: (o, [1.0, np.inf], *rest), "environment 1: .* is inf"),
         "one reward": (lambda o, r, *rest: (o, [1.0], *rest), r"its rewards: .* shape \(1,\)"),
         "ends": (lambda o, r, d, *rest: (o, r, True, *rest), r"shape \(\)")}


@pytest.mark.parametrize("bend, text", BENDS.values(), ids=BENDS)
def test_a_fault_names_the_vector_environment_and_the_step(trainer, bend, text):
    ppo = trainer(Bent(diaries(Counting, 2), bend), num_envs=2, norm_obs=False)
    with pytest.raises(EnvError, match=f"(?s)SyncVectorEnv.*rollout 0, step 4.*{text}"):
        ppo.collect()


class FinalArrays(gym.vector.VectorWrapper):
    """Has final observations as arrays [e ...] in every step: rubbish where no episode ends."""

    def step(self, actions):
        """The step, with its info's final_obs as arrays."""
        *reply, info = self.env.step(actions)
        rubbish = tree_map(lambda x: np.full_like(x, -9), self.env.envs[0].obs)
        space = self.env.single_observation_space
        info["final_obs"] = concatenate(space, [
            rubbish if one is None else one for one in info.get("final_obs", [None] * 3)],
            create_empty_array(space, self.num_envs))
        return *reply, info


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("space", [ONE, Dict(a=ONE, b=Discrete(4)), Tuple((ONE, Discrete(4)))],
                         ids=["Box", "Dict", "Tuple"])
def test_final_observations_may_be_arrays(trainer, space, masked):
    found = []
    for kind in (lambda vec: vec, FinalArrays):
        vec = kind(diaries(lambda: Fenced(obs_space=space) if masked else Chance(space),
                           mode=SAME_STEP))
        rollout = trainer(vec, num_envs=3, num_steps=STEPS).collect()
        assert (rollout.trunc & ~rollout.term).any()
        found.append([x.numpy().tobytes() for x in (rollout.nxt, rollout.act, rollout.adv)])
    assert found[0] == found[1]


def test_a_truncation_without_its_final_observation_is_a_fault(trainer):
    def silent(obs, rew, term, trunc, info):
        return obs, rew, term, trunc, {}
    vec = Bent(diaries(lambda: Counting(5), 2, SAME_STEP), silent)
    with pytest.raises(EnvError, match="final_obs"):
        trainer(vec, num_envs=2, norm_obs=False).collect()


@MODES
@ACTING
@pytest.mark.parametrize("at", [1, 2, 6, STEPS])
def test_an_interrupt_inside_its_step_cuts_the_episodes_and_goes_on(trainer, mode, acting, at):
    vec = diaries(lambda: Chance(ends=0.1), mode=mode)
    bent = Bent(vec, raised(KeyboardInterrupt), at)
    ppo = trainer(bent, num_envs=3, num_steps=STEPS, norm_obs=False, acting=acting)
    with pytest.raises(KeyboardInterrupt):
        ppo.collect()
    for env, pages in zip(vec.envs, bent.pages):
        del env.steps[pages:]  # the interrupted step
        if env.steps:
            obs, act, rew, term, trunc, led_to = env.steps[-1]
            env.steps[-1] = obs, act, rew, term, trunc or not term, led_to  # the cut
    for _ in range(3):
        assert_is_what_happened(ppo, ppo.collect(), vec)


@MODES
@ACTING
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_between_steps_changes_nothing(trainer, mode, acting, late):
    def weights(interrupts):
        ppo = trainer(diaries(Chance, mode=mode), num_envs=3, num_steps=STEPS, num_minibatches=2,
                      acting=acting)
        actor = ppo.collector.vec.actor
        act, left = actor.act, list(interrupts)

        def sometimes(t, group):
            actions = act(t, group) if late else None
            if left and left.pop(0):
                raise KeyboardInterrupt
            return actions if late else act(t, group)
        actor.act = sometimes
        while ppo.step < 100:
            try:
                ppo.update(ppo.collect())
            except KeyboardInterrupt:
                pass
        return ppo.learner.flat.values.clone()
    assert weights([]).equal(weights([1, 0, 0, 1, 1, 0, 0, 0, 1] * 3))


@MODES
@pytest.mark.parametrize("t", [0, 5])
def test_an_episode_that_begins_after_an_interrupt_begins_without_memory(trainer, mode, t):
    vec = diaries(lambda: Chance(ends=0.02), mode=mode)
    bent = Bent(vec, raised(KeyboardInterrupt), STEPS + t + 1)
    ppo = trainer(bent, num_envs=3, num_steps=STEPS, norm_obs=False, rnn="gru")
    ppo.collect()
    with pytest.raises(KeyboardInterrupt):
        ppo.collect()
    pages, rollout = bent.pages, ppo.collect()
    assert rollout.valid[t].all() and (rollout.state[t] == 0).all()
    np.testing.assert_allclose(rollout.val[t], ppo.policy.value(rollout.obs[t].numpy()), rtol=1e-5)
    assert rollout.state[t + 1].abs().max() > 0.01
    if t:  # but the value of a final observation is one with memory
        cut = (rollout.trunc[t - 1] & ~rollout.term[t - 1]).numpy()
        last = [env.steps[count - 1][-1] for env, count in zip(vec.envs, pages)]
        with torch.no_grad():
            state = ppo.policy.step(rollout.obs[t - 1], rollout.state[t - 1])[2]
            val = ppo.policy.step(torch.from_numpy(np.stack(last)), state)[1].numpy()
        assert cut.sum() >= 2
        np.testing.assert_allclose(rollout.nxt[t - 1].numpy()[cut], val[cut], rtol=1e-5)


# ---- learning ----------------------------------------------------------------------------------

@pytest.mark.slow
@MODES
def test_cartpole_is_learnt_through_gymnasiums_vector_environment(mode):
    vec = gym.make_vec("CartPole-v1", 16, "sync", vector_kwargs={"autoreset_mode": mode})
    with fastppo.PPO(vec, seed=1, preset="cartpole") as ppo:
        ppo.learn(50_000)
        assert ppo.evaluate(20, env="CartPole-v1").mean > 400
