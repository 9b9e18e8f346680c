"""Shards: workers compute parts of the update, which changes no bit, however it goes."""

import os
import signal
import time

import pytest
from envs_for_tests import interrupted
from fault_envs import guard, holds, nothing_left
from optional_packages import NEEDS_EXTENSION

from fastppo.compiled.shared_minibatches import SharedMinibatches
from fastppo.errors import WorkerError
from fastppo.machine import kernels, limits
from fastppo.workers import team
from fastppo.workers.protocol import UPDATING

pytestmark = NEEDS_EXTENSION
SIZES = dict(num_envs=6, num_steps=48, num_minibatches=2, epochs=2)  # shards: 4 a minibatch


@pytest.fixture
def cores(monkeypatch):
    """As many helpers as asked for, whatever cores this machine has."""
    return lambda count: monkeypatch.setattr(limits, "usable_cores", lambda: count)


@pytest.fixture
def lazy(monkeypatch):
    """A function: from now on the main process computes a shard only after helpers claimed one."""
    def be(ppo):
        computed, shard, cell = [], kernels.MinibatchUpdate.shard, ppo.learner.shared.round

        def late(update, number):
            while not computed and (cell.value() & 15) < 2:
                time.sleep(1e-4)
            computed.append(number)
            shard(update, number)

        monkeypatch.setattr(kernels.MinibatchUpdate, "shard", late)
        return computed
    return be


def learnt(ppo):
    adam = ppo.learner.optimizer
    return [x.numpy().tobytes() for x in (ppo.learner.flat.values, adam.mean, adam.square)]


def trained(ppo, iterations=2):
    for _ in range(iterations):
        stats = ppo.update(ppo.collect())
    return learnt(ppo), stats


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_what_helpers_compute_are_the_same_bits(trainer, cores, lazy, env):
    want = trained(trainer(env, **SIZES))
    cores(3)
    ppo = trainer(env, **SIZES, num_workers=2)
    computed = lazy(ppo)
    with guard():
        got = trained(ppo)
    assert got == want
    assert ppo.learner.shared.rounds == 8
    assert len(computed) < 8 * 4  # the helpers had at least the one that was waited for


@pytest.mark.some(2)
@pytest.mark.parametrize("cores_here, workers, helping", [
    (1, 2, 0), (2, 1, 1), (2, 2, 1), (3, 2, 2), (8, 2, 2)])
def test_helpers_are_those_for_whom_the_main_process_leaves_a_core(
        trainer, cores, cores_here, workers, helping):
    cores(cores_here)
    learner = trainer("CartPole-v1", **SIZES, num_workers=workers).learner
    assert isinstance(learner.shared, SharedMinibatches) == bool(helping)
    assert not helping or learner.shared.helpers == helping


def test_minibatches_are_shared_where_that_was_faster_and_the_other_way_is_tried(trainer, cores):
    cores(2)
    ppo, found = trainer("CartPole-v1", **SIZES, num_workers=1), []
    for shared, alone in ((1, 2), (2, 1), (1, 2), (1, 2)):
        ppo.learner.took, before = {True: shared, False: alone}, ppo.learner.shared.rounds
        ppo.update(ppo.collect())
        found.append(ppo.learner.shared.rounds > before)
        assert ppo.learner.took[found[-1]] < 1
    assert found == [True, False, True, False]


def test_a_rollout_of_the_callers_own_is_learnt_from_and_not_the_arenas(trainer, cores):
    cores(2)
    ppos = trainer("CartPole-v1", **SIZES), trainer("CartPole-v1", **SIZES, num_workers=1)
    for ppo in ppos:
        rollout = ppo.collect()
        ppo.update(rollout._replace(adv=-rollout.adv))
    assert learnt(ppos[0]) == learnt(ppos[1])
    assert ppos[1].learner.shared.rounds == 0


@pytest.mark.parametrize("how", ["rollout", "none"])
def test_every_normalisation_of_advantages_gives_the_same_bits(trainer, cores, how):
    cores(2)
    one, two = (trained(trainer("CartPole-v1", **SIZES, num_workers=n, norm_advantages=how))
                for n in (0, 1))
    assert one == two


def test_helpers_follow_the_schedules_too(trainer, cores, lazy):
    schedules = {"clip_range": "linear:0.02", "clip_range_vf": "linear:0.02:0.001",
                 "entropy_coef": "linear:0:0.5", "lr": 3e-3, "total_steps": 6 * 48 * 3}
    want = trained(trainer("CartPole-v1", **SIZES, **schedules), 3)
    constant = trained(trainer("CartPole-v1", **SIZES, lr=3e-3, total_steps=6 * 48 * 3,
                               clip_range=0.02, clip_range_vf=0.02), 3)
    assert constant != want
    cores(3)
    ppo = trainer("CartPole-v1", **SIZES, **schedules, num_workers=2)
    computed = lazy(ppo)
    with guard():
        for _ in range(3):
            computed.clear()  # in each iteration helpers have at least the one that is waited for
            got = trained(ppo, 1)
    assert got == want


@pytest.mark.parametrize("call", ["begin", "finish"])
@pytest.mark.parametrize("at", [1, 4])
def test_an_interrupt_among_helpers_leaves_no_trace(trainer, cores, monkeypatch, call, at):
    cores(2)
    whole = trained(trainer("CartPole-v1", **SIZES))
    ppo = trainer("CartPole-v1", **SIZES, num_workers=1)
    struck = interrupted(getattr(kernels.MinibatchUpdate, call), at)
    rollout, before = ppo.collect(), learnt(ppo)
    with guard():
        monkeypatch.setattr(kernels.MinibatchUpdate, call, struck)
        with pytest.raises(KeyboardInterrupt):
            ppo.update(rollout)
        assert learnt(ppo) == before
        monkeypatch.undo()
        ppo.update(rollout)
        assert trained(ppo, 1) == whole


def test_an_interrupt_while_helpers_are_dismissed_does_not_hang_the_next_update(
        trainer, cores, monkeypatch):
    cores(2)
    whole = trained(trainer("CartPole-v1", **SIZES))
    ppo = trainer("CartPole-v1", **SIZES, num_workers=1)
    rollout, dismiss = ppo.collect(), SharedMinibatches._dismiss

    def interrupted(self):
        if self.rounds:
            raise KeyboardInterrupt
        dismiss(self)

    monkeypatch.setattr(SharedMinibatches, "_dismiss", interrupted)
    with guard():
        with pytest.raises(KeyboardInterrupt):
            ppo.update(rollout)
        monkeypatch.undo()
        ppo.update(rollout)
        assert trained(ppo, 1) == whole


class Struck:
    """A cell in whose next post Ctrl-C is pressed before anybody sees it."""

    def __init__(self, cell):
        self.cell, self.struck = cell, False

    def __getattr__(self, name):
        return getattr(self.cell, name)

    def post(self, value):
        if not self.struck:
            self.struck = True
            raise KeyboardInterrupt
        self.cell.post(value)


def test_an_interrupt_before_the_helpers_are_called_does_not_hang_the_next_update(trainer, cores):
    cores(2)
    whole = trained(trainer("CartPole-v1", **SIZES))
    ppo = trainer("CartPole-v1", **SIZES, num_workers=1)
    rollout, cells = ppo.collect(), ppo.learner.shared.team.cells
    cells.go = Struck(cells.go)
    with guard():
        with pytest.raises(KeyboardInterrupt):
            ppo.update(rollout)
        ppo.update(rollout)
        assert trained(ppo, 1) == whole


@pytest.mark.parametrize("acting", ["local", "central"])
def test_an_update_while_a_rollout_is_interrupted_is_done_alone(
        trainer, cores, monkeypatch, acting):
    cores(2)
    ppo = trainer("CartPole-v1", **SIZES, num_workers=1, acting=acting)
    rollout = type(ppo.collect())(*(x.clone() for x in ppo.rollout))
    cells = ppo.learner.shared.team.cells
    cell = cells.turns[0] if acting == "central" else cells.go
    if acting == "central":
        cells.turns[0] = Struck(cell)
    else:
        cells.go = Struck(cell)
    with guard():
        with pytest.raises(KeyboardInterrupt):
            ppo.collect()
        ppo.update(rollout)
        assert ppo.learner.shared.rounds == 0
        ppo.update(ppo.collect())
        assert ppo.learner.shared.rounds > 0


@pytest.mark.parametrize("then, said", [
    (signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGSTOP, "has not answered for .*step_tim")])
def test_a_helper_lost_in_the_update_is_named_without_an_environment_and_no_weight_changes(
        trainer, cores, monkeypatch, then, said):
    cores(2)
    monkeypatch.setattr(team, "STACK_SECONDS", 0.0)
    ppo = trainer("CartPole-v1", **SIZES, num_workers=1, step_timeout=0.5)
    rollout, before = ppo.collect(), learnt(ppo)
    claim, worker = ppo.learner.shared.round.claim, ppo.learner.shared.team.workers[0]
    done = ppo.learner.shared.team.cells.done[0]

    class Fatal:
        """The round's cell, at whose first claim the helper dies with a shard in its hands."""

        def __getattr__(self, name):
            return getattr(cell, name)

        def claim(self):
            if worker.process.poll() is None and not stopped:
                assert holds(lambda: done.where[0] == UPDATING)
                stopped.append(True)
                os.kill(worker.process.pid, signal.SIGSTOP)
                claim()  # as if by the helper, which will never finish it
                os.kill(worker.process.pid, then)
            return claim()

    stopped = []
    cell, ppo.learner.shared.round = ppo.learner.shared.round, Fatal()
    lost = rf"worker 0 \(while computing its share of the update\) {said}"
    with guard(), pytest.raises(WorkerError, match=lost):
        ppo.update(rollout)
    assert learnt(ppo) == before
    ppo.close()
    nothing_left()


def test_after_an_update_a_helper_is_no_longer_said_to_compute_its_share(trainer, cores):
    cores(2)
    ppo = trainer("CartPole-v1", **SIZES, num_workers=1)
    rollout, done = ppo.collect(), ppo.learner.shared.team.cells.done[0]
    before = done.where[:2]
    ppo.update(rollout)
    assert done.where[:2] == before and ppo.learner.shared.rounds > 0


def test_after_its_workers_have_died_a_trainer_can_still_update(trainer, cores):
    cores(2)
    ppo = trainer("CartPole-v1", **SIZES, num_workers=1)
    rollout = ppo.collect()
    ppo.learner.shared.team.close()
    want = trainer("CartPole-v1", **SIZES)
    want.update(want.collect())
    ppo.update(rollout)
    assert learnt(ppo) == learnt(want)
