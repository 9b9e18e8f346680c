"""Memory: the state that goes with an environment, sequences in the update, and what it is for."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from asked_of_runs import weights
from envs_for_tests import Chance
from envs_for_workers import Forbidding
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from optional_packages import NEEDS_EXTENSION

from fastppo import Config, load
from fastppo.errors import ConfigError, InputError, KernelError, ModelError, SpaceError
from fastppo.machine import kernels, limits
from fastppo.networks import recurrent
from fastppo.networks.recurrent import (
    RecurrentActorCritic,
    RecurrentEncoder,
    SequencePacking,
    unroll_network,
)
from fastppo.trainer.policy_and_learner import build_policy
from fastppo.update import batches

VECTOR, PICTURE = Box(-3, 3, (3,)), Box(0, 255, (36, 36, 2), np.uint8)
CPU = torch.device("cpu")
KINDS = dict(gru=dict(rnn="gru"), lstm=dict(rnn="lstm"), mingru=dict(rnn="mingru"),
             shared=dict(rnn="lstm", shared_critic=True))
EACH_CELL = pytest.mark.parametrize("rnn", ["gru", "lstm", "mingru"])
SPACES = {
    "vector": (VECTOR, Discrete(3)), "box": (VECTOR, Box(-1, 1, (2,))),
    "picture": (PICTURE, MultiDiscrete([2, 3])),
    "dict": (Dict(a=VECTOR, b=PICTURE, c=Discrete(3)), MultiBinary(2)),
    "hybrid": (Tuple([VECTOR, Discrete(2)]), Tuple([Discrete(2), Box(-1, 1, (2,))])),
}
SMALL = dict(rnn_size=5, num_steps=24, epochs=2, num_minibatches=2)


def recurring(trainer, env, **given):
    """A trainer with memory whose actions differ much from state to state."""
    ppo = trainer(env, **{**SMALL, **given})
    with torch.no_grad():
        ppo.policy.net.actor.weight.mul_(100)
    return ppo


def judged(ppo, rollout):
    """(the samples of a rollout, what the update's first minibatch would find of them)."""
    batch = batches.flatten_sequences(rollout, CPU)
    with torch.no_grad():
        return batch, ppo.policy.evaluate_actions(batch.obs, batch.act, batch.sequences)


def replayed(policy, rows, state):
    """(parameters, values, states) of observations [n ...] of one environment, one by one."""
    found = []
    with torch.no_grad():
        for row in rows:
            *answers, state = policy.step(policy.observer.tensors(row[None]), state)
            found.append([*answers, state])
    return [torch.cat(parts) for parts in zip(*found)]


# the state

@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_an_episode_seen_from_its_first_step_on(trainer, kind):
    ppo = recurring(trainer, Chance, num_envs=3, **KINDS[kind])
    start = ppo.policy.initial_state(1)
    states, ends = [start] * 3, 0
    for _ in range(3):  # no update between them: one policy
        rollout = ppo.collect()
        for e in range(3):
            assert torch.allclose(rollout.state[0, e], states[e][0], atol=1e-6)
            for t in range(len(rollout.val)):
                _, val, states[e] = replayed(ppo.policy, ppo.arena["obs"][t, e][None], states[e])
                assert torch.allclose(val[0], rollout.val[t, e], atol=1e-6)
                if rollout.term[t, e] or rollout.trunc[t, e]:
                    states[e], ends = start, ends + 1
    assert ends > 10


@EACH_CELL
def test_the_value_after_a_truncation_remembers_the_episode_that_it_ended(trainer, rnn):
    env = partial(Chance, VECTOR, Discrete(3), ends=0.1)
    ppo = recurring(trainer, env, rnn=rnn, num_steps=40, num_envs=16)
    rollout = ppo.collect()
    state, cut = rollout.state, rollout.trunc & ~rollout.term
    seen = 0
    for t, e in cut[:-1].nonzero().tolist():
        first = max([-1, *(rollout.term | rollout.trunc)[:t, e].nonzero().flatten().tolist()]) + 1
        after = replayed(ppo.policy, ppo.arena["obs"][first:t + 1, e], state[first, e][None])[2]
        later = cut[t + 1:, e].any() or (rollout.term | rollout.trunc)[t + 1:, e].any()
        if later:  # fin holds an environment's last end alone
            continue
        val = replayed(ppo.policy, ppo.arena["fin"][e][None], after[-1:])[1]
        assert torch.allclose(val, rollout.nxt[t, e], atol=1e-6)
        forgetful = replayed(ppo.policy, ppo.arena["fin"][e][None], torch.zeros_like(after[-1:]))[1]
        seen += t > first and not torch.allclose(val, forgetful, atol=1e-3)
    assert seen
    going_on = ~(rollout.term | rollout.trunc)[:-1]
    assert torch.equal(rollout.nxt[:-1][going_on], rollout.val[1:][going_on])


@EACH_CELL
def test_an_episode_begins_with_a_state_of_zeros(trainer, rnn):
    rollout = recurring(trainer, Chance, rnn=rnn).collect()
    ended = rollout.term | rollout.trunc
    assert ended.any() and (rollout.state[1:][ended] == 0).all()
    assert (rollout.state[1:][~ended] != 0).any(-1).all()


# the update

FAST = {("vector", "gru"), ("vector", "lstm"), ("vector", "shared"), ("box", "gru"),
        ("vector", "mingru"), ("picture", "mingru"), ("picture", "lstm"),
        ("dict", "lstm"), ("dict", "shared"), ("hybrid", "gru")}


@pytest.mark.some(1)
@pytest.mark.parametrize(("spaces", "kind", "workers"), [
    *(pytest.param(spaces, kind, 0, marks=[] if (spaces, kind) in FAST else pytest.mark.slow)
      for spaces in SPACES for kind in KINDS), ("vector", "gru", 2), ("dict", "lstm", 2),
    ("box", "mingru", 2)])
def test_the_ratio_is_one_with_episodes_that_end_at_random(trainer, spaces, kind, workers):
    ppo = recurring(trainer, partial(Chance, *SPACES[spaces]), num_workers=workers,
                    hidden_sizes=(6,), **KINDS[kind])
    ppo.collect()
    rollout = ppo.collect()
    batch, (logp, _, val) = judged(ppo, rollout)
    assert ((logp - batch.logp).exp() - 1).abs().max() < 1e-5
    assert torch.allclose(val, batch.val, atol=1e-5)
    assert len(batch.adv) == rollout.valid.sum() and batch.sequences.first.sum() > 4
    assert ppo.update(rollout)["losses/epochs"] == 2


@EACH_CELL
@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
def test_the_ratio_is_one_in_every_autoreset_mode(trainer, mode, rnn):
    vec = gym.vector.SyncVectorEnv([partial(Chance, VECTOR, Discrete(3))] * 4, autoreset_mode=mode)
    ppo = recurring(trainer, vec, rnn=rnn, num_envs=4)
    for _ in range(2):
        rollout = ppo.collect()
        batch, (logp, _, val) = judged(ppo, rollout)
        assert ((logp - batch.logp).exp() - 1).abs().max() < 1e-5
        assert torch.allclose(val, batch.val, atol=1e-5)
        assert (batch.sequences.state[batch.sequences.first] == 0).all(-1).sum() > 4
        assert (mode == gym.vector.AutoresetMode.NEXT_STEP) == (not rollout.valid.all())
    vec.close()


def test_the_past_changes_what_is_judged(trainer):
    ppo = recurring(trainer, Chance, rnn="gru")
    batch, (_, _, val) = judged(ppo, ppo.collect())
    forgot = batch.sequences._replace(first=torch.ones_like(batch.sequences.first),
                                 state=torch.zeros_like(batch.sequences.state))
    with torch.no_grad():
        alone = ppo.policy.evaluate_actions(batch.obs, batch.act, forgot)[2]
    first = batch.sequences.first
    assert torch.allclose(alone[first], val[first], atol=1e-6)
    assert not torch.allclose(alone[~first], val[~first], atol=1e-3)


@settings(deadline=None, max_examples=30)
@given(first=st.lists(st.booleans(), min_size=1, max_size=30),
       kind=st.sampled_from(["gru", "lstm", "mingru"]))
def test_a_packing_runs_every_sequence_from_its_own_state(first, kind):
    first = torch.tensor([True, *first[1:]])
    torch.manual_seed(0)
    memory = memory_of(kind)
    seen, state = torch.randn(len(first), 2), torch.randn(len(first), memory.state_size)
    with torch.no_grad():
        got, after = memory.unroll(seen, state, SequencePacking.of(first)), None
        for i, begins in enumerate(first):
            before = state[i:i + 1] if begins else after
            out, after = memory(seen[i:i + 1], before)
            assert torch.allclose(got[i], out[0], atol=1e-6)


@pytest.mark.skipif(not kernels.COMPILED, reason="there is no compiled twin")
@settings(deadline=None, max_examples=60)
@given(first=st.lists(st.booleans(), min_size=1, max_size=60), size=st.integers(1, 40),
       features=st.integers(1, 9), seed=st.integers(0, 99))
def test_the_compiled_cell_and_its_gradients_equal_torchs(first, size, features, seed):
    torch.manual_seed(seed)
    packing = SequencePacking.of(torch.tensor([True, *first[1:]]))
    cell, found = torch.nn.GRU(features, size), []
    x = torch.randn(len(first), features, requires_grad=True)
    state, slope = torch.randn(len(packing.starts), size), torch.randn(len(first), size)
    assert recurrent.can_unroll(cell, x)
    for unroll in (recurrent.unroll_gru, packed_by_torch):
        cell.zero_grad()
        x.grad = None
        out = unroll(cell, x, state, packing.sizes)
        (out * slope).sum().backward()
        found.append([out.detach(), x.grad, *(p.grad.clone() for p in cell.parameters())])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def packed_by_torch(cell, x, state, sizes):
    """What torch makes of it."""
    return cell(torch.nn.utils.rnn.PackedSequence(x, sizes), state[None])[0].data


@pytest.mark.skipif(not kernels.COMPILED, reason="there is no compiled twin")
def test_the_compiled_cell_reads_nothing_that_it_did_not_write():
    rng, sizes, out = np.random.default_rng(0), np.array([5, 3, 3, 1]), []
    weight, bias = rng.normal(size=(27, 9)).astype("f4"), rng.normal(size=27).astype("f4")
    x, state = rng.normal(size=(12, 27)).astype("f4"), rng.normal(size=(5, 9)).astype("f4")
    for poison in (0.0, np.nan):
        work = np.full(kernels.unroll_floats(9, 5), poison, "f4")
        arrays = [np.full((12, n), poison, "f4") for n in (9, 36, 9, 27, 27)]
        prev, kept, found, dx, inner = arrays
        kernels.unroll(sizes, x, weight, bias, state, work, prev, kept, found)
        work.fill(poison)
        kernels.unroll_back(sizes, weight, found, prev, kept, work, dx, inner)
        out.append(arrays)
    for one, two in zip(*out):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, two)


@pytest.mark.skipif(not kernels.COMPILED, reason="there is no compiled twin")
@pytest.mark.parametrize("sizes", [[5, 3, 4], [5, 7], [5, 3, 3, 2], [0, 12], [], [12, 0], [-1, 13]])
def test_sizes_that_are_no_packing_are_refused(sizes):
    f4 = partial(np.zeros, dtype="f4")
    with pytest.raises(KernelError, match="sizes|state|x is"):
        kernels.unroll(np.array(sizes, np.int64), f4((12, 6)), f4((6, 2)), f4(6), f4((5, 2)),
                       f4(kernels.unroll_floats(2, 5)), f4((12, 2)), f4((12, 8)), f4((12, 2)))


def memory_of(kind):
    """A cell of three on two numbers."""
    body = torch.nn.Identity()
    body.size, body.flat, body.widths, body.image_leaves = 2, True, [2], ()
    return RecurrentEncoder(body, kind, 3)


def test_minibatches_are_whole_environments_in_time_order_and_none_is_left_out(trainer):
    ppo = recurring(trainer, Chance, rnn="gru", num_envs=5)
    batch = batches.flatten_sequences(ppo.collect(), CPU)
    batch = batch._replace(adv=torch.arange(len(batch.adv)))
    orders = [torch.randperm(len(batch.adv), generator=torch.Generator().manual_seed(i))
              for i in range(8)]
    seen = set()
    for order in orders:
        mixed = batch.shuffled(order)
        parts = list(mixed.split(3))
        assert len(parts) == 3 and torch.equal(torch.cat([p.adv for p in parts]), mixed.adv)
        assert torch.equal(mixed.adv.sort()[0], batch.adv)
        envs = [part.sequences.env.unique().tolist() for part in parts]
        assert sorted(sum(envs, [])) == [0, 1, 2, 3, 4]
        for part in parts:
            for env in part.sequences.env.unique():
                rows = part.adv[part.sequences.env == env]
                assert torch.equal(rows, torch.arange(rows[0], rows[0] + 24))
        seen.add(tuple(mixed.sequences.env.unique_consecutive().tolist()))
    assert len(seen) > 4 and len(list(batch.split(100))) == 5


@pytest.mark.parametrize("more", [{}, dict(norm_values=True), dict(rpo_alpha=0.5)])
def test_microbatches_change_nothing(trainer, more):
    env = partial(Chance, VECTOR, Box(-1, 1, (2,)))
    found = [weights(trainer(env, rnn="gru", num_microbatches=parts, **SMALL, **more).learn(200))
             for parts in (1, 2)]
    torch.testing.assert_close(*found, rtol=0, atol=2e-6)


@pytest.mark.some(1)
@pytest.mark.parametrize("rnn, acting, workers", [
    ("lstm", "auto", 0), ("lstm", "auto", 2), ("mingru", "local", 2), ("mingru", "central", 2)])
def test_workers_change_no_bit(trainer, monkeypatch, rnn, acting, workers):
    monkeypatch.setattr(limits, "usable_cores", lambda: 3)
    one, two = (trainer(Chance, rnn=rnn, acting=acting, num_workers=count, **SMALL).learn(600)
                for count in (0, workers))
    assert torch.equal(weights(one), weights(two))


@NEEDS_EXTENSION
@pytest.mark.parametrize("acting", ["local", "central"])
@pytest.mark.parametrize("more", [
    {}, dict(shared_critic=True), dict(num_envs=3, num_steps=150), dict(num_minibatches=9),
    dict(act_space=Box(-1, 1, (2,)), norm_obs=True, activation="relu")], ids=str)
def test_the_compiled_memory_and_its_update_equal_torchs(trainer, acting, more):
    more = dict(more)
    env = partial(Chance, VECTOR, more.pop("act_space", Discrete(3)), ends=0.02)
    given = SMALL | dict(rnn="mingru", num_envs=5, num_steps=70, hidden_sizes=(9, 7)) | more
    found = []
    for how in (dict(learner="torch", acting="central"), dict(acting=acting)):
        ppo = trainer(env, **given, **how)
        for _ in range(3):
            stats = ppo.update(ppo.collect())
        found.append([weights(ppo), ppo.rollout.state, torch.tensor(list(stats.values()))])
    assert type(ppo.learner).__name__ == "CompiledLearner"
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@NEEDS_EXTENSION
def test_a_rollout_of_the_callers_that_is_longer_than_num_steps_is_cut_into_blocks(trainer):
    found = []
    for learner in ("torch", "auto"):
        ppo = trainer(partial(Chance, VECTOR, Discrete(3), ends=0.0), rnn="mingru", num_envs=2,
                      num_steps=64, learner=learner, num_minibatches=1, epochs=2)
        if learner == "torch":  # whose sequences begin anew where a block of 64 rows ends
            flatten = ppo.learner.flatten

            def cut(rollout, device, flatten=flatten):
                batch = flatten(rollout, device)
                batch.sequences.first[::64] = True
                return batch
            ppo.learner.flatten = cut
        two = [type(ppo.rollout)(*(x.clone() for x in ppo.collect())) for _ in range(2)]
        joined = type(two[0])(*(
            torch.cat([one[:64], other]) for one, other in zip(*two)))
        ppo.update(joined)
        found.append(weights(ppo))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


# what goes with it

class Own(torch.nn.Module):
    """A memory of the user's: decaying sums, and a linear layer."""

    state_size = 4

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.into, self.out = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)

    def forward(self, obs, state):
        """(three logits, value, state)."""
        state = 0.9 * state + self.into(obs).tanh()
        out = self.out(state)
        return out[:, :3], out[:, 3], state


@pytest.mark.parametrize("workers", [0, 2])
def test_masks_and_memory_go_together(trainer, workers):
    ppo = recurring(trainer, Forbidding, rnn="gru", num_workers=workers)
    ppo.collect()
    rollout = ppo.collect()
    batch, (logp, _, val) = judged(ppo, rollout)
    assert ((logp - batch.logp).exp() - 1).abs().max() < 1e-5
    assert torch.allclose(val, batch.val, atol=1e-5)
    assert rollout.obs["action_mask"][:-1].gather(-1, rollout.act[..., None]).all()
    assert np.isfinite(list(ppo.update(rollout).values())).all()
    assert ppo.evaluate(3, deterministic=False).lengths.min() > 0


def test_a_model_of_ones_own_may_have_a_memory(trainer):
    ppo = trainer(partial(Chance, VECTOR, Discrete(3)), model=Own, num_steps=24, epochs=2,
                  num_minibatches=2)
    ppo.collect()
    batch, (logp, _, val) = judged(ppo, ppo.collect())
    assert ((logp - batch.logp).exp() - 1).abs().max() < 1e-5
    assert torch.allclose(val, batch.val, atol=1e-5)
    before = weights(ppo).clone()
    ppo.learn(200)
    assert not torch.equal(weights(ppo), before)


def test_step_by_step_is_the_same_as_packed(trainer):
    ppo = recurring(trainer, Chance, rnn="lstm")
    batch = batches.flatten_sequences(ppo.collect(), CPU)
    net, past = ppo.policy.net, batch.sequences

    class Slow(torch.nn.Module):
        """The network without its unroll."""

        def forward(self, obs, state):
            """As the network's."""
            return net(obs, state)
    with torch.no_grad():
        seen = ppo.policy.observer(batch.obs)
        both = [unroll_network(one, seen, past.state, SequencePacking.of(past.first))
                for one in (net, Slow())]
    for fast, slow in zip(*both):
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_was_saved_remembers_as_before(trainer, tmp_path, kind):
    ppo = recurring(trainer, partial(Chance, VECTOR, Box(-9, 9, (2,))), **KINDS[kind])
    ppo.save(tmp_path / "a.safetensors")
    again, rng = load(tmp_path / "a.safetensors"), np.random.default_rng(0)
    states, actions = [None, None], []
    for obs in rng.normal(size=(4, 3)).astype("f4"):
        for i, policy in enumerate((ppo.policy, again)):
            act, states[i] = policy.predict(obs, state=states[i])
            actions.append(act)
    np.testing.assert_array_equal(actions[::2], actions[1::2])
    assert not np.allclose(ppo.policy.predict(obs)[0], actions[-1], rtol=1e-3)


@pytest.mark.parametrize("state", [np.zeros((2, 10), "f4"), np.zeros((1, 10)), np.zeros(10, "f4"),
                                   [0.0] * 10, torch.zeros(1, 10)], ids=str)
def test_a_state_that_is_none_of_the_policys_is_refused(trainer, state):
    policy = trainer(partial(Chance, VECTOR, Discrete(3)), rnn="gru", rnn_size=5).policy
    policy.predict(np.zeros(3, "f4"), state=np.zeros((1, 10), "f4"))
    with pytest.raises(InputError, match=r"the state is .*, not float32 \[1, 10\]"):
        policy.predict(np.zeros(3, "f4"), state=state)


def test_a_state_for_a_policy_without_memory_is_refused(trainer):
    with pytest.raises(InputError, match="no memory"):
        trainer(Chance).policy.predict(np.zeros(1, "f4"), state=np.zeros((1, 4), "f4"))


def test_evaluation_clears_the_state_at_every_episode(trainer):
    env = partial(Chance, VECTOR, Discrete(3))
    ppo = recurring(trainer, env, rnn="gru")
    together, alone = ppo.evaluate(12).returns, [
        ppo.evaluate(n).returns[-1] for n in range(1, 13)]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("kind", ["gru", "lstm", "mingru"])
def test_a_cell_begins_orthogonal_with_its_biases(kind):
    policy = build_policy(Box(-1, 1, (4,)), Discrete(2), _config(kind))
    assert isinstance(policy.net, RecurrentActorCritic)
    for name, x in policy.net.actor_body.cell.named_parameters():
        if kind == "mingru" and x.ndim == 1:
            n, z = x.detach().chunk(2)
            assert not n.any() and z.sigmoid()[[0, -1]].tolist() == pytest.approx(
                [0.5, 0.0474], 1e-2)
        elif x.ndim == 1:
            assert not x.any()
        else:
            product = x.T @ x  # of its columns, of which there are fewer
            assert torch.allclose(product, torch.eye(len(product)), atol=1e-5), name


def _config(kind):
    return Config(env_name="x", seed=1, model="mlp", shared_critic=False, rnn=kind, rnn_size=16,
                  hidden_sizes=(8,), torch_threads=1)


# what is refused

@pytest.mark.parametrize("settings, said", [
    (dict(rnn="gru", recompute_advantages=True), "recompute_advantages"),
    (dict(rnn="gru", learner="kernel"), "kernel"), (dict(rnn="gru", acting="local"), "local"),
    (dict(rnn="transformer"), "rnn"), (dict(rnn="gru", rnn_size=0), "rnn_size"),
    (dict(model=Own, rnn="gru"), "rnn"),
    (dict(rnn="mingru", past=0.5, acting="local"), "past")])
def test_what_contradicts_a_memory_is_refused(trainer, settings, said):
    with pytest.raises(ConfigError, match=said):
        trainer(partial(Chance, VECTOR, Discrete(3)), **settings)


class Distributing(Own):
    """Returns a distribution, of which the update could not take parts."""

    def forward(self, obs, state):
        """One over three choices."""
        params, *rest = super().forward(obs, state)
        return torch.distributions.Categorical(logits=params), *rest


def test_a_memory_with_a_distribution_is_refused(trainer):
    with pytest.raises(ModelError, match=r"Categorical .*\n.*action parameters \[2, 3\]"):
        trainer(partial(Chance, VECTOR, Discrete(3)), model=Distributing)


class Unequal(Own):
    """Returns a state of another size."""

    def forward(self, obs, state):
        """One number too many."""
        *answers, state = super().forward(obs, state)
        return *answers, torch.cat([state, state[:, :1]], -1)


def test_a_state_of_another_size_is_refused(trainer):
    with pytest.raises(ModelError, match=r"state \[2, 4\]"):
        trainer(partial(Chance, VECTOR, Discrete(3)), model=Unequal)


def test_a_memory_over_environments_of_unequal_spaces_is_refused(trainer):
    makers = [partial(Chance, VECTOR, Discrete(3)), partial(Chance, VECTOR, Discrete(4))]
    with pytest.raises(SpaceError, match="Discrete"):
        trainer(makers, rnn="gru", num_envs="auto")
