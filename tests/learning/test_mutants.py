"""The tests test: each mistake, made on purpose, is noticed by what is to catch it.

A mutant replaces a function of the package by one that is wrong in one way. A cell of the table is
a mutant and a probe that must fail under it; those that are not slow have each of both once.
"""

from functools import partial

import numpy as np
import pytest
import torch
from asked_of_runs import assert_advantages, assert_ratio_is_one, assert_successors
from envs_for_tests import CHANCE, Chance, Witness
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from test_probes import (
    NEVER,
    PROBES,
    SEEN_AS,
    in_a_vector,
    inside,
    iterations_until_right,
    measured,
)

from fastppo import collect, learner
from fastppo.machine import kernels
from fastppo.networks import action_heads
from fastppo.networks.normaliser import ObservationNormaliser
from fastppo.stepping import actors
from fastppo.vector.native_vector import NativeVector

MUTANTS = {}


def mutant(*caught):
    """Register a function of (monkeypatch) that makes a mistake, and the probes that catch it."""
    def register(make):
        MUTANTS[make.__name__] = make, caught
        return make
    return register


def replace(monkeypatch, place, name, change):
    """Put `change(real)` in the place of a function."""
    monkeypatch.setattr(place, name, change(getattr(place, name)))


def one_mask(monkeypatch, done_of):
    """Advantages with bootstraps in the rewards and one mask, which is right if it is `ended`."""
    def change(real):
        def gae(rew, val, nxt, term, trunc, valid, gamma, lam, adv):
            ended = term | trunc
            rew = np.where(trunc & ~term, rew + gamma * nxt, rew).astype(np.float32)
            fresh = np.where(ended, np.roll(val, -1, axis=0), nxt).astype(np.float32)
            done = np.ascontiguousarray(done_of(ended))
            real(rew, val, fresh, done, np.zeros_like(done), valid, gamma, lam, adv)
        return gae
    replace(monkeypatch, kernels, "gae", change)


def shifted(ended):
    """Each end one step late."""
    return np.vstack([np.zeros_like(ended[:1]), ended[:-1]])


@mutant("P6")
def truncation_is_terminal(monkeypatch):
    """An episode that is cut counts as one that has ended."""
    replace(monkeypatch, kernels, "gae", lambda real: (
        lambda rew, val, nxt, term, trunc, *rest: real(rew, val, nxt, term | trunc, trunc, *rest)))


@mutant("P3")
def done_is_off_by_one(monkeypatch):
    """Ends are taken for those of the step before."""
    one_mask(monkeypatch, shifted)


@mutant("P1", "P3", "P6", "P7", "P8")
def done_is_ignored(monkeypatch):
    """Returns flow from one episode into the one before."""
    one_mask(monkeypatch, np.zeros_like)


@mutant("P3", "P6", "P7")
def gamma_is_ignored(monkeypatch):
    """The future counts in full."""
    replace(monkeypatch, kernels, "gae", lambda real: (
        lambda rew, val, nxt, term, trunc, valid, gamma, *rest: real(
            rew, val, nxt, term, trunc, valid, 1.0, *rest)))


def of_other_rows(monkeypatch, names, move):
    """Samples have some fields, `names`, of other rows than the rest: of move(field [t e])."""
    def change(real):
        def samples(rollout, device=None):
            moved = {name: move(getattr(rollout, name)) for name in names}
            return real(rollout._replace(**moved), device)
        return samples
    replace(monkeypatch, learner, "flatten_rollout", change)


@mutant("P2", "P3", "P4", "P5", "P8", "P9")
def time_and_environments_are_swapped(monkeypatch):
    """What was computed is flattened [e t], what was seen and done [t e]."""
    of_other_rows(monkeypatch, ("logp", "val", "adv", "ret"), lambda x: x.T.reshape(x.shape))


@mutant("P4", "P5", "P9")
def advantages_are_of_the_row_before(monkeypatch):
    """An action is praised for what the one before led to."""
    of_other_rows(monkeypatch, ("adv",), lambda x: x.roll(1, 0))


@mutant("P4", "P5", "P9")
def the_policy_descends(monkeypatch):
    """The sign of the policy's loss is wrong."""
    replace(monkeypatch, learner, "policy_loss", lambda real: lambda *args: -real(*args))


@mutant("P1", "P2", "P3", "P8")
def the_value_ascends(monkeypatch):
    """The sign of the value's loss is wrong."""
    replace(monkeypatch, learner, "value_loss", lambda real: lambda *args: -real(*args))


@mutant("P10")
def entropy_is_punished(monkeypatch):
    """The sign of the entropy is wrong."""
    def change(real):
        def evaluate(head, params, act):
            logp, ent = real(head, params, act)
            return logp, -ent
        return evaluate
    replace(monkeypatch, action_heads.Categorical, "evaluate", change)


@mutant("P9")
def densities_have_no_mean(monkeypatch):
    """The density of a Box action is taken around zero."""
    replace(monkeypatch, action_heads.Gaussian, "evaluate", lambda real: (
        lambda head, mean, act: real(head, 0 * mean, act)))


@mutant("P1", "P2", "P3", "P6", "P8")
def rows_between_episodes_are_trained_on(monkeypatch):
    """NEXT_STEP's reset counts as a step, whose action and reward of 0 mean something."""
    def marking(real):
        return lambda native, t: None

    def finishing(real):
        def finish(arena, *args):
            np.nan_to_num(arena["raw"], copy=False)
            return real(arena, *args)
        return finish

    replace(monkeypatch, NativeVector, "_mark_resets", marking)
    replace(monkeypatch, collect, "finish_rollout", finishing)


CELLS = [(name, probe) for name, (_, caught) in MUTANTS.items() for probe in caught]
FAST = {("truncation_is_terminal", "P6"), ("done_is_off_by_one", "P3"), ("done_is_ignored", "P7"),
        ("gamma_is_ignored", "P3"), ("time_and_environments_are_swapped", "P8"),
        ("advantages_are_of_the_row_before", "P5"), ("the_policy_descends", "P4"),
        ("the_value_ascends", "P2"), ("entropy_is_punished", "P10"),
        ("densities_have_no_mean", "P9"), ("rows_between_episodes_are_trained_on", "P1")}
TABLE = [cell if cell in FAST else pytest.param(*cell, marks=pytest.mark.slow) for cell in CELLS]


@pytest.mark.some(4)
@pytest.mark.parametrize(("name", "number"), TABLE)
def test_a_mutant_fails_the_probe_that_is_to_catch_it(monkeypatch, name, number):
    probe = next(probe for title, probe in PROBES.items() if title.split()[0] == number)
    if name == "rows_between_episodes_are_trained_on":
        probe = in_a_vector(probe, AutoresetMode.NEXT_STEP)
    MUTANTS[name][0](monkeypatch)
    numbers = measured(probe, learner="torch")
    assert not inside(probe, numbers), numbers


def test_every_probe_and_every_mutant_has_a_fast_cell():
    assert {name for name, _ in FAST} == {name for name, _ in CELLS}
    assert {number for _, number in FAST} == {title.split()[0] for title in PROBES}


@pytest.mark.parametrize("seen_as", list(SEEN_AS)[1:])
def test_without_normalisation_no_other_offset_or_scale_is_learnt(seen_as):
    assert iterations_until_right(*SEEN_AS[seen_as], norm_obs=False) == NEVER


def fails(rule, ppo, *args):
    """Whether a rule of test_rollout.py is broken."""
    with pytest.raises(AssertionError):
        rule(ppo, *args)


BOX = partial(Chance, act_space=Box(-0.3, 0.3, (2,), np.float32))


def test_the_ratio_notices_actions_stored_as_the_environment_got_them(trainer, monkeypatch):
    def change(real):
        def clipped(arena, *args):
            real(arena, *args)
            arena["act"].clip(-0.3, 0.3, out=arena["act"])
        return clipped
    replace(monkeypatch, collect, "finish_rollout", change)
    ppo = trainer(BOX)
    fails(assert_ratio_is_one, ppo, ppo.collect())


def test_the_ratio_notices_observations_normalised_with_newer_moments(trainer):
    ppo = trainer(BOX)
    ppo.update(ppo.collect())
    rollout = ppo.collect()
    ppo.policy.observer.learn([rollout.obs[:-1].reshape(-1, 1).numpy()])
    fails(assert_ratio_is_one, ppo, rollout)


def test_the_ratio_notices_swapped_time_and_environments(trainer, monkeypatch):
    time_and_environments_are_swapped(monkeypatch)
    ppo = trainer(BOX)
    fails(assert_ratio_is_one, ppo, ppo.collect())


def test_the_ratio_notices_a_mean_over_action_components(trainer, monkeypatch):
    replace(monkeypatch, action_heads.Gaussian, "evaluate", lambda real: (
        lambda head, mean, act: tuple(x / 2 for x in real(head, mean, act))))
    ppo = trainer(BOX)
    fails(assert_ratio_is_one, ppo, ppo.collect())


def test_the_ratio_notices_weights_that_the_actor_has_not_been_given(trainer, monkeypatch):
    monkeypatch.setattr(
        actors.LocalActor, "start", lambda self, iteration, real=actors.LocalActor.start: (
            real(self, iteration) if iteration == 0 else None))
    ppo = trainer(BOX, lr=0.01)
    ppo.update(ppo.collect())
    fails(assert_ratio_is_one, ppo, ppo.collect())


def test_the_witness_notices_a_bootstrap_from_the_observation_after_the_reset(trainer, monkeypatch):
    real = collect.finish_rollout

    def finish(arena, *args):
        nxt, val = arena["nxt"], arena["val"]
        nxt[:-1] = np.where(np.isnan(nxt[:-1]), np.nan, val[1:])
        return real(arena, *args)

    monkeypatch.setattr(collect, "finish_rollout", finish)
    ppo = trainer(CHANCE, num_steps=24)
    rollout = ppo.collect()
    seen = Witness(CHANCE, 4, ppo.config.seed).follow(rollout.act.numpy())
    fails(assert_successors, ppo, rollout, seen)


def test_the_definition_notices_a_trace_that_goes_on_over_a_truncation(trainer, monkeypatch):
    replace(monkeypatch, kernels, "gae", lambda real: (
        lambda rew, val, nxt, term, trunc, *rest: real(
            rew, val, nxt, term, np.zeros_like(trunc), *rest)))
    ppo = trainer(CHANCE, num_steps=24)
    fails(assert_advantages, ppo, ppo.collect())


def test_the_witness_notices_an_environment_that_gets_the_action_of_its_neighbour(
    trainer, monkeypatch
):
    replace(monkeypatch, actors.LocalActor, "act", lambda real: (
        lambda self, t, group: real(self, t, group)[::-1]))
    ppo = trainer(CHANCE)
    rollout = ppo.collect()
    seen = Witness(CHANCE, 4, ppo.config.seed).follow(rollout.act.numpy())
    assert not np.array_equal(rollout.raw, seen.raw.astype(np.float32))


def test_the_normaliser_notices_a_mean_or_a_std_that_is_left_out(monkeypatch):
    def without(name):
        def forward(self, obs):
            saved = getattr(self, name)
            setattr(self, name, torch.full_like(saved, name == "scale"))
            out = real(self, obs)
            setattr(self, name, saved)
            return out
        return forward

    real = ObservationNormaliser.forward
    for name, seen_as in (("shift", "x + 1e4"), ("scale", "x * 1e-3")):
        monkeypatch.setattr(ObservationNormaliser, "forward", without(name))
        found = iterations_until_right(*SEEN_AS[seen_as], acting="central")
        assert found == NEVER
