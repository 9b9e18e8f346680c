"""Workers that start again after a fault: the same bits, within a budget; and bundles of faults."""

import functools
import os
import signal
import threading
import time

import numpy as np
import pytest
from fault_envs import Calm, Faulty, holds, killed_by, nothing_left, paying, raising
from optional_packages import NEEDS_EXTENSION

from fastppo import PPO
from fastppo.errors import EnvError, WorkerError
from fastppo.machine.kernels import Purpose, episode_seed
from fastppo.runs.crash_bundle import read_bundle
from fastppo.stepping.environments import SUBSTITUTE
from fastppo.workers import team

pytestmark = NEEDS_EXTENSION
SETTINGS = dict(preset="none", seed=7, num_envs=4, num_workers=2, num_steps=16, num_minibatches=2,
                epochs=2, hidden_sizes=(4,), on_worker_failure="restart", total_steps=4 * 64)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(team, "PAUSES", (0.0, 0.0, 0.0))


class Pure(Calm):
    """Calm, but its episodes are functions of their seeds: they end by trunc if that is odd."""

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return super().reset(seed=seed)

    def step(self, action):
        obs, rew, term, trunc, info = super().step(action)
        ended, odd = term or trunc, self.seed % 2 == 1
        return obs, rew, ended and not odd, ended and odd, info


def seed_of(env, episode):
    """The seed of an episode of the runs here."""
    return episode_seed(SETTINGS["seed"], Purpose.ENV_SEED, env, episode)


class FailsIn(Pure):
    """Has a fault at step `at` of the episode with a seed; -1: in its reset."""

    def __init__(self, seed, at, fault):
        super().__init__()
        self.bad, self.at, self.fault = seed, at, fault

    def reset(self, *, seed=None, options=None):
        if seed == self.bad and self.at < 0:
            return self.fault(self)
        return super().reset(seed=seed)

    def step(self, action):
        if self.seed == self.bad and self.steps == self.at:
            return self.fault(self)
        return super().step(action)


def failing(env, episode, at, fault):
    """Four pure environments, one of which fails."""
    makers = [Pure] * 4
    makers[env] = functools.partial(FailsIn, seed_of(env, episode), at, fault)
    return makers


def weights_of(ppo):
    """The bytes of the weights and of the observation moments."""
    return b"".join(x.numpy().tobytes() for x in ppo.policy.state_dict().values())


def learnt(env, ppo_at=lambda ppo: None, **settings):
    """(weights, number of team, rollouts as bytes) of a run; `ppo_at` is called before each."""
    rollouts = []
    with nothing_left(), PPO(env, **{**SETTINGS, **settings}) as ppo:
        while ppo.step < ppo.total:
            ppo_at(ppo)
            rollout = ppo.collect()
            rollouts.append([x.numpy().tobytes() for x in (rollout.obs, rollout.act, rollout.adv)])
            ppo.update(rollout)
        count = ppo.collector.vec.restarts.count if ppo.config.num_workers else 0
        return weights_of(ppo), count, rollouts


def worker(ppo, number):
    """The process of a worker."""
    return ppo.collector.vec.team.workers[number].process


def killed_at(*iterations, number=1, signum=signal.SIGKILL):
    """A function that sends a worker a signal before some iterations, and waits for its end."""
    def kill(ppo):
        if ppo.progress.iteration in iterations:
            os.kill(worker(ppo, number).pid, signum)
            assert signum == signal.SIGSTOP or holds(lambda: worker(ppo, number).poll() is not None)
    return kill


ACTING = pytest.mark.parametrize("acting", [
    dict(acting="local"), dict(acting="central"), dict(rnn="gru", rnn_size=4),
    dict(rnn="mingru", rnn_size=4)], ids=["local", "central", "memory", "local memory"])


@pytest.mark.some(1)
@ACTING
def test_a_worker_that_is_killed_between_two_rollouts_changes_no_bit(acting):
    plain = learnt("CartPole-v1", **acting)
    for at in (0, 2):
        found = learnt("CartPole-v1", killed_at(at), **acting)
        assert found[1] == 1 and found[0] == plain[0] and found[2] == plain[2]


class Slow(Pure):
    """Waits a little in every step."""

    def step(self, action):
        time.sleep(2e-3)
        return super().step(action)


@pytest.mark.full
@ACTING
def test_a_worker_that_is_killed_inside_a_rollout_changes_no_bit(acting):
    def kill_later(ppo):
        if ppo.progress.iteration == 2:
            threading.Timer(0.02, worker(ppo, 0).kill).start()
    plain, found = learnt(Slow, **acting), learnt(Slow, kill_later, **acting)
    assert found[1] == 1 and found[0] == plain[0] and found[2] == plain[2]


@pytest.mark.full
def test_a_worker_that_is_stopped_from_outside_is_started_again_after_the_timeout():
    plain = learnt(Slow)
    found = learnt(Slow, killed_at(1, signum=signal.SIGSTOP), step_timeout=0.5)
    assert found[1] == 1 and found[0] == plain[0]


@pytest.mark.full
def test_a_helper_that_is_killed_in_the_update_changes_no_bit(monkeypatch):
    from fastppo.compiled import shared_minibatches
    monkeypatch.setattr(shared_minibatches, "helper_count", lambda workers: 1)
    plain, kind = learnt("CartPole-v1"), shared_minibatches.SharedMinibatches
    killed, make = [], kind.__init__

    class Finished:
        """The cell of finished shards, in whose first wait of the second update a helper dies."""

        def __init__(self, shared):
            self.shared, self.cell = shared, shared.finished

        def __getattr__(self, name):
            return getattr(self.cell, name)

        def wait_count(self, target, *nanoseconds):
            if not killed and self.shared.calls == 2:
                killed.append(self.shared.team.workers[0].process)
                os.kill(killed[0].pid, signal.SIGKILL)
                killed[0].wait()
            lost = bool(killed) and self.shared.calls == 2  # a shard that it had claimed
            return self.cell.wait_count(target + lost, *nanoseconds)

    def made(self, *args):
        make(self, *args)
        self.finished = Finished(self)
    monkeypatch.setattr(kind, "__init__", made)
    found = learnt("CartPole-v1")
    assert found[0] == plain[0] and (not killed or found[1] == 1)


class Once(Pure):
    """Fails once in all workers: at the first call of `name` where no file is."""

    def __init__(self, path, name, fault, main):
        self.path, self.name, self.fault, self.main = path, name, fault, main
        self.fail("init")
        super().__init__()

    def fail(self, name):
        if name == self.name and os.getpid() != self.main and not self.path.exists():
            self.path.touch()
            self.fault(self)

    def reset(self, **kwargs):
        self.fail("reset")
        return super().reset(**kwargs)

    def step(self, action):
        self.fail("step")
        return super().step(action)


@pytest.mark.full
@pytest.mark.parametrize("name", ["reset", "step"])
@pytest.mark.parametrize("fault", [raising(OSError), killed_by(signal.SIGSEGV)])
def test_a_fault_in_the_warm_up_is_survived(name, fault, tmp_path):
    plain = learnt(Pure)
    found = learnt(functools.partial(Once, tmp_path / "failed", name, fault, os.getpid()))
    assert found[1] == 1 and found[0] == plain[0]


@pytest.mark.full
@pytest.mark.parametrize("acting", ["local", "central"])
def test_an_episode_that_fails_twice_at_a_step_is_truncated_before_it(acting):
    env = failing(2, 1, 2, killed_by(signal.SIGBUS))
    with PPO(env, **SETTINGS, norm_obs=False, acting=acting) as ppo:
        first = ppo.collect()
        assert ppo.arena["length"][:, 2].nonzero()[0].tolist() == [4, 6, 11]  # 5 steps, 2, 5
        assert first.trunc[6, 2] and not first.term[6, 2]
        assert first.valid.all() and first.nxt[6, 2].isfinite()
        ppo.update(first)
        assert ppo.episodes.beside == {"faults/restarts": 2.0, "faults/truncated": 1.0}
        ppo.learn()
        assert ppo.collector.vec.restarts.count == 2


@pytest.mark.full
def test_an_episode_that_fails_twice_where_a_rollout_begins_is_followed_by_the_next():
    with PPO(failing(0, 3, 1, raising(OSError)), **SETTINGS, norm_obs=False) as ppo:
        ppo.collect()  # 16 steps: three episodes of 5, and the first step of the fourth
        ppo.learn()
        assert ppo.collector.vec.restarts.count == 2
        assert ppo.collector.snapshots.log.state.episodes[0, 0] > 3


@pytest.mark.full
@pytest.mark.parametrize("at", [-1, 0])
def test_an_episode_that_cannot_even_begin_gets_another_seed(at):
    with PPO(failing(1, 2, at, raising(OSError)), **SETTINGS, norm_obs=False) as ppo:
        ppo.learn()
        assert ppo.collector.vec.restarts.count == 2
    assert seed_of(1, 2) != seed_of(1, 2 + SUBSTITUTE)


@pytest.mark.full
def test_a_fault_that_comes_again_and_again_ends_the_run():
    with nothing_left(), PPO([Pure, lambda: Faulty(raising(OSError), -1, 0)],
                             **SETTINGS | dict(num_envs=2), norm_obs=False) as ppo:
        with pytest.raises(WorkerError, match=r"environment 1 .* failed in reset"):
            ppo.learn()
        assert ppo.collector.vec.restarts.count == 3


@pytest.mark.full
def test_restarts_that_are_long_ago_count_no_more(monkeypatch):
    monkeypatch.setattr(team, "SECONDS", 0.0)
    with PPO("CartPole-v1", **SETTINGS | dict(total_steps=64 * 8)) as ppo:
        ppo.learn(callbacks=lambda ppo, stats: killed_at(*range(1, 7))(ppo))
        assert ppo.collector.vec.restarts.count == 6


def test_the_wait_before_a_restart_grows(monkeypatch):
    waits = []
    monkeypatch.setattr(team, "PAUSES", (1, 2, 3))
    monkeypatch.setattr(team.time, "sleep", waits.append)
    budget = team.WorkerRestarts(type("Team", (), {"start": lambda self: None})(), {})
    assert [budget.restart([]) for _ in range(5)] == [True, True, True, False, False]
    assert waits == [1, 2, 3]


def test_an_error_that_is_no_fault_of_an_environment_is_not_tried_again():
    with PPO("CartPole-v1", **SETTINGS) as ppo:
        ppo.collect()
        ppo.learner.flat.values.fill_(float("nan"))
        with pytest.raises(Exception, match="not finite"):
            ppo.collect()
        assert ppo.collector.vec.restarts.count == 0


@pytest.mark.full
def test_a_checkpoint_after_a_fault_resumes_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(team, "RESTARTS", 0)
    plain = learnt("CartPole-v1")
    for iteration in (1, 2, 3):
        with PPO("CartPole-v1", **SETTINGS) as ppo:
            with pytest.raises(WorkerError):
                ppo.learn(callbacks=lambda ppo, stats, at=iteration: killed_at(at)(ppo))
            ppo.checkpoint(tmp_path / "c.safetensors")
        with PPO.resume(tmp_path / "c.safetensors") as ppo:
            ppo.learn()
            assert weights_of(ppo) == plain[0]


# bundles

BAD = {"raise": raising(lambda: OSError("of its own %s")), "reward": paying(float("nan"))}


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", BAD)
def test_a_fault_leaves_a_bundle_with_the_actions_up_to_it(kind, workers, tmp_path):
    env = failing(2, 4, 3, BAD[kind])
    settings = SETTINGS | dict(num_workers=workers, on_worker_failure="raise")
    with PPO(env, **settings, norm_obs=False, run_dir=str(tmp_path)) as ppo:
        with pytest.raises(EnvError) as caught:
            ppo.learn()
        taken = np.concatenate([ppo.arena["act"][4:7, 2], ppo.arena["act"][7:8, 2]])
    path, = tmp_path.glob("*.bundle")
    assert path.name == "fault-env2-episode4-step3.bundle"
    assert str(path) in str(caught.value) and path.stat().st_mode & 0o777 == 0o600
    found = read_bundle(path)
    assert found.place == (2, 4, 3) and found.history[:4] == (4, 20, 4, 20)
    assert found.history.actions.tolist() == taken.tolist() and found.seed == 7
    assert "failed in step()" in found.error


@pytest.mark.parametrize(("episode", "at", "name", "actions"), [
    (2, -1, "fault-env1-episode2-reset", 0), (-2, 2, "fault-env1-warmup2-step2", 3),
    (0, 0, "fault-env1-episode0-step0", 1)])
def test_a_fault_in_a_reset_and_in_the_warm_up_leave_bundles(
        episode, at, name, actions, tmp_path):
    settings = SETTINGS | dict(num_workers=0, on_worker_failure="raise")
    with PPO(failing(1, episode, at, raising(OSError)), **settings, run_dir=str(tmp_path)) as ppo:
        with pytest.raises(EnvError):
            ppo.learn()
    path, = tmp_path.glob("*.bundle")
    assert path.name == name + ".bundle"
    assert len(read_bundle(path).history.actions) == actions


def test_without_a_folder_no_bundle_is_written_and_a_full_disk_stops_nobody(
        tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    settings = SETTINGS | dict(num_workers=0, on_worker_failure="raise", num_envs=1)
    with PPO(lambda: Faulty(raising(OSError)), **settings, norm_obs=False) as ppo:
        with pytest.raises(EnvError, match="failed in step"):
            ppo.learn()
    assert not list(tmp_path.iterdir())
    with PPO(lambda: Faulty(raising(OSError)), **settings, norm_obs=False,
             run_dir=str(tmp_path / "run")) as ppo:
        (tmp_path / "run" / "fault-env0-episode1-step2.bundle").mkdir()
        with pytest.raises(EnvError, match="failed in step"):
            ppo.learn()
    assert "cannot write" in caplog.text


def test_an_episode_that_is_too_long_for_a_bundle_has_none_and_says_so(tmp_path, caplog):
    settings = SETTINGS | dict(num_workers=0, on_worker_failure="raise", replay_limit=2)
    with PPO(failing(1, 2, 4, raising(OSError)), **settings, norm_obs=False,
             run_dir=str(tmp_path)) as ppo:
        with pytest.raises(EnvError) as caught:
            ppo.learn()
    assert not [*tmp_path.glob("*.bundle")] and "replay" not in str(caught.value)
    assert "too long for a bundle: it has more than 2 steps" in caplog.text


class FailsInReplay(Pure):
    """Fails once: in the third step of the first episode that a worker has replayed."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.resets = folder, 0

    def reset(self, **kwargs):
        self.resets += 1
        return super().reset(**kwargs)

    def step(self, action):
        there = self.folder / "killed", self.folder / "raised"
        if there[0].exists() and self.resets == 1 and self.steps == 0 and not there[1].exists():
            there[1].touch()
            raise OSError("from outside")
        return super().step(action)


@pytest.mark.full
def test_a_fault_from_outside_in_a_replay_changes_no_bit(tmp_path, caplog):
    def kill(ppo):
        if ppo.progress.iteration == 2:
            (tmp_path / "killed").touch()
            killed_at(2)(ppo)
    env = functools.partial(FailsInReplay, tmp_path)
    plain = learnt(env, norm_obs=False)
    found = learnt(env, kill, norm_obs=False)
    assert (tmp_path / "raised").exists()
    assert found[0] == plain[0] and found[2] == plain[2]
    assert "bit for bit" not in caplog.text
