"""Steps and schedules: what is counted, when training ends, and how the learning rate falls."""

import logging

import numpy as np
import pytest
from envs_for_tests import Chance, Constant


def rates(ppo, total=None):
    """The learning rates of the iterations of a `learn`."""
    seen = []
    ppo.learn(total, callbacks=[lambda _, stats: seen.append(stats["charts/learning_rate"])])
    return seen


@pytest.mark.parametrize("total", [32, 33, 100, 320, 321])
def test_the_learning_rate_is_full_at_first_and_above_zero_at_last(trainer, total):
    got = rates(trainer(Constant, lr=0.3, total_steps=total))
    assert got == pytest.approx([0.3 * (1 - begin / total) for begin in range(0, total, 32)])
    assert got[0] == 0.3
    assert got[-1] > 0
    assert got == sorted(got, reverse=True)


def test_the_learning_rate_stays_where_it_is_not_annealed(trainer):
    assert rates(trainer(Constant, lr=0.3, anneal_lr=False, total_steps=96)) == [0.3] * 3


def test_the_learner_is_given_the_rate_that_is_reported(trainer, monkeypatch):
    ppo, given = trainer(Constant, total_steps=96), []
    real = ppo.learner.update
    monkeypatch.setattr(ppo.learner, "update", lambda rollout, now, iteration: (
        given.append((now.lr, iteration)), real(rollout, now, iteration))[1])
    got = rates(ppo)
    assert given == list(zip(got, range(3)))
    assert ppo.learner.optimizer.rates[0] == got[-1]


def test_a_loop_of_ones_own_anneals_over_the_configs_total_and_never_goes_below_zero(trainer):
    ppo, seen = trainer(Constant, lr=0.3, total_steps=64), []
    for _ in range(4):
        ppo.update(ppo.collect())
        seen.append(ppo.lr)
    assert seen == pytest.approx([0.3, 0.15, 0.0, 0.0])


def test_a_loop_of_ones_own_after_learn_anneals_over_the_configs_total(trainer):
    ppo = trainer(Constant, lr=0.3, total_steps=320)
    assert rates(ppo, 32) == [0.3]
    ppo.update(ppo.collect())
    assert ppo.lr == pytest.approx(0.3 * 0.9)
    ppo.learn(0)
    ppo.update(ppo.collect())
    assert ppo.lr == pytest.approx(0.3 * 0.8)


def test_learn_takes_whole_iterations_and_overshoots_by_less_than_one(trainer):
    for total in (1, 31, 32, 33, 64):
        ppo = trainer(Constant).learn(total)
        assert ppo.step == -(-total // 32) * 32
        assert ppo.progress.iteration == -(-total // 32)


def test_the_total_is_an_absolute_number_of_steps(trainer):
    ppo = trainer(Constant, total_steps=96)
    assert ppo.learn(40).step == 64
    assert ppo.learn(64).step == 64
    assert ppo.learn(65).step == 96
    assert ppo.learn().step == 96
    assert ppo.progress.iteration == 3


def test_learning_what_is_done_already_does_nothing_and_says_so(trainer, caplog):
    ppo = trainer(Constant, total_steps=32)
    weights = ppo.learner.flat.values
    with caplog.at_level(logging.WARNING, "fastppo"):
        before = ppo.learn().learner.flat.values.clone()
        assert caplog.records == []
        calls = []
        assert ppo.learn(callbacks=[lambda *args: calls.append(args)]) is ppo
    assert calls == [] and ppo.step == 32 and (weights == before).all()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "but 32 are already done" in caplog.text and "nothing to do" in caplog.text


def test_a_step_is_a_valid_row(trainer):
    ppo = trainer(Chance)
    real = ppo.collector.vec.rollout

    def rollout(*given):
        real(*given)
        ppo.arena["valid"][2:4, 0] = False

    ppo.collector.vec.rollout = rollout
    ppo.update(ppo.collect())
    assert ppo.step == 30
    ppo.learn(61)
    assert (ppo.step, ppo.progress.iteration) == (90, 3)


def test_a_callback_that_returns_false_ends_training_after_all_have_been_called(trainer):
    ppo, calls = trainer(Constant), []

    def stop(ppo, stats):
        calls.append(ppo.step)
        return ppo.step < 64

    ppo.learn(320, callbacks=[stop, lambda ppo, stats: calls.append("too")])
    assert calls == [32, "too", 64, "too"]
    assert ppo.step == 64


def test_only_false_ends_training_also_as_numpy_says_it(trainer):
    for answer, steps in ((None, 64), (0, 64), ("", 64), (True, 64), (False, 32), (np.False_, 32)):
        assert trainer(Constant).learn(64, callbacks=[lambda *_, a=answer: a]).step == steps


def test_the_step_rate_and_the_shares_of_time_come_with_every_iteration(trainer):
    seen = []
    trainer(Constant).learn(64, callbacks=[lambda _, stats: seen.append(stats)])
    for stats in seen:
        assert stats["charts/SPS"] > 0
        assert stats["time/collect"] + stats["time/update"] == pytest.approx(1)
