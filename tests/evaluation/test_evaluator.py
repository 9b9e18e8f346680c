"""Evaluation while training: when, where, what it leaves behind, and that training is untouched."""

import json
import re
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from asked_of_runs import table, weights
from envs_for_tests import Chance, Counting
from gymnasium.spaces import Box, Discrete

from fastppo import PPO, Config, load
from fastppo.cli import main
from fastppo.errors import ConfigError, EnvError, Error
from fastppo.evaluation import evaluator
from fastppo.evaluation.evaluator import Best, is_due
from fastppo.runs import policy_file
from fastppo.settings.known_names import BEST_FILE

WORDS = dict(eval_interval=64, eval_episodes=3)  # every second rollout of conftest's TINY


class Level(gym.Env):
    """Three steps, each worth what `now` says; how good a policy is there is somebody else's."""

    observation_space = Box(-1.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)
    now = 0.0

    def reset(self, *, seed=None, options=None):
        """The beginning of three steps."""
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        """One more of them."""
        self.steps += 1
        return np.zeros(1, np.float32), Level.now, self.steps == 3, False, {}


def scored(ppo, scores):
    """Train, the evaluations (one a rollout) having these returns a step."""
    scores = iter(scores)
    Level.now = next(scores)
    ppo.learn(callbacks=lambda *_: setattr(Level, "now", next(scores, 0.0)))
    return ppo


# when

@pytest.mark.parametrize("begin, step, wanted", [
    (0, 50, False), (50, 100, True), (100, 150, False), (90, 310, True), (400, 450, False),
    (900, 950, True), (950, 1000, True), (1000, 1050, False), (1050, 1100, True)])
def test_it_is_time_where_a_multiple_of_the_interval_or_the_end_is_crossed(begin, step, wanted):
    assert is_due(Config(eval_interval=100, total_steps=930), begin, step) is wanted


def test_without_an_interval_it_is_never_time(trainer):
    assert not is_due(Config(total_steps=100), 0, 100)
    assert trainer(Counting).sinks == []


def test_metrics_of_an_evaluation_come_in_its_row_and_in_no_other(trainer, tmp_path):
    ppo = trainer(Counting, run_dir=str(tmp_path), total_steps=150, **WORDS)
    seen = []
    ppo.learn(callbacks=lambda ppo, stats: seen.append(stats))
    at = [row["global_step"] for row in table(tmp_path / "metrics.csv") if row["eval/return_mean"]]
    assert at == ["64", "128", "160"]  # and where total_steps is reached
    assert ["eval/return_mean" in stats for stats in seen] == [False, True, False, True, True]
    last = seen[-1]
    assert (last["eval/return_mean"], last["eval/return_std"]) == (5.0, 0.0)
    assert (last["eval/length"], last["eval/steps"]) == (5.0, 15.0)


def test_a_line_is_printed_at_every_evaluation(trainer, capsys):
    trainer(Counting, progress="lines", total_steps=128, **WORDS).learn()
    assert re.findall(r"evaluation return (\S+)", capsys.readouterr().out) == ["5.00", "5.00"]


def test_one_episode_has_no_spread(trainer):
    seen = []
    ppo = trainer(Counting, **WORDS | dict(eval_episodes=1))
    ppo.learn(64, callbacks=lambda ppo, stats: seen.append(stats))
    assert seen[-1]["eval/return_mean"] == 5.0 and "eval/return_std" not in seen[-1]


def test_its_time_is_a_metric_of_its_own_and_in_no_other(trainer, monkeypatch):
    seen = []
    ppo = trainer(Counting, **WORDS)
    ppo.learn(64, callbacks=lambda ppo, stats: seen.append(stats))
    seconds, stats = ppo.clock.seconds, seen[-1]
    training = seconds["collect"] + seconds["update"]
    assert stats["charts/SPS"] == pytest.approx(64 / training)
    assert stats["time/collect"] + stats["time/update"] == pytest.approx(1)
    assert stats["time/evaluate"] == pytest.approx(seconds["evaluate"] / training)


# what it must not touch

@pytest.mark.some(1)
@pytest.mark.parametrize(("name", "workers"), [
    ("CartPole-v1", 0), ("Pendulum-v1", 2),
    pytest.param("CartPole-v1", 2, marks=pytest.mark.slow),
    pytest.param("Pendulum-v1", 0, marks=pytest.mark.slow)])
def test_training_is_the_same_bit_for_bit_with_and_without_it(trainer, name, workers):
    pytest.importorskip("fastppo._kernels")
    settings = dict(num_workers=workers, max_episode_steps=20, norm_rewards=True)
    with_it, without = trainer(name, **WORDS, **settings), trainer(name, **settings)
    metrics = [], []
    for ppo, seen in zip((with_it, without), metrics):
        ppo.learn(192, callbacks=lambda ppo, stats, seen=seen: seen.append(
            {key: value for key, value in stats.items()
             if not key.startswith(("eval/", "time/", "charts/SPS"))}))
    assert with_it.sinks and with_it.sinks[0].latest[0] == 192
    assert torch.equal(weights(with_it), weights(without))
    assert metrics[0] == metrics[1]


def test_it_plays_what_evaluate_plays(trainer):
    ppo = trainer("CartPole-v1", **WORDS).learn(64)
    assert np.array_equal(ppo.sinks[0].latest[1].returns, ppo.evaluate(3).returns)


# the best model

def test_the_best_model_is_kept_and_of_equal_ones_the_first(trainer, tmp_path):
    kept, seen = [], []
    ppo = trainer(Level, run_dir=str(tmp_path), total_steps=160, eval_interval=32, eval_episodes=2)
    save = ppo.save
    ppo.save = lambda path: (kept.append(ppo.step), seen.append(weights(ppo)), save(path))
    scored(ppo, [1.0, 3.0, 3.0, 2.0, 3.0])
    assert kept == [32, 64] and ppo.sinks[0].best == Best(9.0, 64, BEST_FILE)
    best = load(tmp_path / BEST_FILE)
    assert torch.equal(torch.cat([x.flatten() for x in best.parameters()]), seen[-1])
    assert not torch.equal(seen[-1], weights(ppo))


def test_a_worse_beginning_than_zero_is_the_best_so_far(trainer):
    ppo = trainer(Level, total_steps=64, eval_interval=32, eval_episodes=2)
    assert scored(ppo, [-2.0, -1.0]).sinks[0].best == Best(-3.0, 64, None)


def test_a_disk_that_is_full_costs_the_best_model_and_not_the_run(trainer, tmp_path, monkeypatch,
                                                                 capsys):
    def full(*_):
        raise OSError(28, "No space left on device")
    ppo = trainer(Level, run_dir=str(tmp_path), total_steps=96, eval_interval=32, eval_episodes=2)
    with monkeypatch.context() as patch:
        patch.setattr(policy_file.os, "fsync", full)
        scored(ppo, [1.0])
    said = capsys.readouterr().err
    assert ppo.step == 96 and said.count("No space left on device; best.safetensors is not") == 3
    assert ppo.sinks[0].best is None


def test_nothing_is_written_without_a_folder(trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer(Counting, **WORDS).learn(64)
    assert list(tmp_path.iterdir()) == []


def test_the_commands_summary_says_score_and_step_of_the_best(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    played = []
    evaluate = PPO.evaluate
    monkeypatch.setattr(PPO, "evaluate",
                        lambda ppo, *args: played.append(ppo.step) or evaluate(ppo, *args))
    main.main(["--env_name=envs_for_tests:Counting", "--preset=none", "--num_workers=0",
              "--num_envs=2", "--num_steps=8", "--num_minibatches=1", "--total_steps=48",
              "--eval_episodes=2", "--eval_interval=16", "--run_dir=run"])
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "best.safetensors", "checkpoint-000000000048.safetensors", "config.json", "metrics.csv",
        "model.safetensors", "summary.json"}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["best"] == {"mean": 5.0, "step": 16, "model": "best.safetensors"}
    assert played == [16, 32, 48] and summary["evaluation"]["mean"] == 5.0  # the last one is known
    assert "\nevaluation return 5.00 ± 0.00 (2 episodes)\n" in capsys.readouterr().out


BELL = '''
import os
import signal
from envs_for_tests import Counting

class Bell(Counting):
    def step(self, action):
        os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)
'''


def test_ctrl_c_in_an_evaluation_ends_the_command_at_once_with_a_model(tmp_path, monkeypatch,
                                                                      capsys):
    (tmp_path / "bells.py").write_text(BELL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as end:
        main.main(["--env_name=envs_for_tests:Counting", "--preset=none", "--num_workers=0",
                  "--num_envs=2", "--num_steps=8", "--num_minibatches=1", "--eval_interval=32",
                  "--eval_env=bells:Bell", "--run_dir=run"])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (end.value.code, summary["ended"], summary["steps"]) == (130, "signal", 32)
    assert summary["best"] is None and load(tmp_path / "run" / "model.safetensors")
    assert "stopped   at step 32: 32 steps" in capsys.readouterr().out


# where

def test_another_environment_of_the_same_spaces_can_be_named(trainer):
    longer = trainer(Counting, eval_env=lambda: Counting(9), **WORDS).learn(64)
    assert longer.sinks[0].best.mean == 9.0
    assert longer.evaluate(2).mean == 9.0 and longer.evaluate(2, env=Counting).mean == 5.0
    named = trainer(Counting, eval_env="envs_for_tests:Counting").learn(32)
    assert named.evaluate(1).mean == 5.0


def test_a_limit_of_episodes_holds_wherever_they_are_evaluated(trainer):
    cut = trainer(Counting, eval_env=lambda: Counting(9), max_episode_steps=3, **WORDS).learn(64)
    assert cut.sinks[0].best.mean == 3.0
    assert cut.evaluate(2, env=lambda: Counting(7)).lengths.tolist() == [3, 3]
    assert cut.evaluate(2, env="envs_for_tests:Counting").lengths.tolist() == [3, 3]


def test_bounds_of_observations_may_differ(trainer):
    made = [Box(low, high, (2,), dtype) for low, high, dtype in
            ((-1, 1, np.float32), (-9, 9, np.float64))]
    trainer(lambda: Chance(made[0]), eval_env=lambda: Chance(made[1]), **WORDS).learn(64)


@pytest.mark.parametrize("other, why", [
    (lambda: Chance(Box(-1, 1, (2,))), "observations are of the space Box"),
    (lambda: Chance(act_space=Discrete(4)), r"actions are of the space Discrete\(4\)"),
    (lambda: Chance(act_space=Box(-1, 1, (3,))), "actions are of the space Box"),
    ("CartPole-v7", "no environment 'CartPole-v7'"),
    (lambda: 1 / 0, "ZeroDivisionError"),
    (3, "must be an id, a class or a callable")])
def test_an_eval_env_that_does_not_fit_is_an_error_before_the_first_step(other, why):
    with pytest.raises(ConfigError, match=f"(eval_env .*)?{why}") as refused:
        PPO(Chance, preset="none", num_workers=0, eval_env=other)
    assert "leave eval_env out" not in refused.value.shell  # the flag has hyphens


@pytest.mark.parametrize("other, why", [
    ("CartPole-v1", "observations are of the space Box"),
    (lambda: Chance(act_space=Discrete(4)), r"actions are of the space Discrete\(4\)")])
def test_an_environment_of_other_spaces_is_no_place_for_one_evaluation_either(trainer, other, why):
    with pytest.raises(ConfigError, match=f"(?s)env is .*{why}.*leave env out"):
        trainer(Chance, **WORDS).evaluate(1, env=other)


def test_an_eval_env_that_cannot_be_made_is_named_so():
    with pytest.raises(ConfigError, match="(?s)^eval_env is .*its constructor.*eval_env="):
        PPO("CartPole-v1", eval_env=lambda: 1 / 0, num_workers=0)
    with pytest.raises(ConfigError, match="^eval_env is ':Bell', but importing '' failed"):
        PPO("CartPole-v1", eval_env=":Bell", num_workers=0)


class Needy(Counting):
    def __init__(self, level):
        super().__init__(level)


def test_an_eval_env_that_needs_arguments_is_mended_by_a_callable_that_needs_none():
    with pytest.raises(ConfigError, match=r"eval_env is .*missing 1 .*: 'level'\n  fix: .*,"
                       " or a function without arguments"):
        PPO(Needy, env_kwargs={"level": 3}, eval_env=Needy, num_workers=0)


@pytest.mark.parametrize("episodes", [0, 1.5, True, "3"])
def test_what_is_no_number_of_episodes_is_refused(trainer, episodes):
    with pytest.raises(ConfigError, match="episodes is .*but must be a whole number"):
        trainer(Counting).evaluate(episodes)


def test_an_interval_without_episodes_is_refused():
    with pytest.raises(ConfigError, match="fix: eval_episodes=10"):
        PPO("CartPole-v1", eval_interval=100, eval_episodes=0, num_workers=0)


def test_a_vector_environment_needs_an_eval_env():
    envs = gym.make_vec("CartPole-v1", 2)
    with pytest.raises(ConfigError, match="fix: give eval_env"):
        PPO(envs, eval_interval=100)
    with PPO(envs, num_steps=8, num_minibatches=4, eval_interval=16, eval_episodes=2,
             eval_env="CartPole-v1") as ppo:
        assert ppo.learn(16).sinks[0].best.mean > 0
    envs.close()


def test_an_environment_that_fails_in_an_evaluation_is_named_with_its_seed(trainer):
    class Fails(Counting):
        def step(self, action):
            raise RuntimeError("not today")
    with pytest.raises(EnvError, match=r"evaluation, seed \d+, episode 0, step 0.*not today"):
        trainer(Counting, **WORDS).evaluate(2, env=Fails)


def test_an_evaluation_that_fails_is_noted_and_counted_and_training_goes_on(trainer, capsys):
    class Fails(Counting):
        def step(self, action):
            raise RuntimeError("not today")
    seen = []
    ppo, plain = trainer(Counting, eval_env=Fails, **WORDS), trainer(Counting, **WORDS)
    ppo.learn(64, lambda ppo, stats: seen.append(stats.get("faults/evaluations")))
    assert ppo.step == 64 and seen[-1] == capsys.readouterr().err.count("note: the eval") > 0
    assert all(map(torch.equal, ppo.policy.parameters(), plain.learn(64).policy.parameters()))


class Counts(torch.nn.Module):
    """Its answers depend on how often it was asked, by buffers written into and replaced."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.all = torch.nn.Linear(int(np.prod(obs_space.shape)), act_space.n + 1)
        self.register_buffer("into", torch.zeros(()))
        self.register_buffer("anew", torch.zeros(()))

    def forward(self, obs):
        self.into += 1
        self.anew = self.anew + 1
        out = self.all(obs) * (1 + 0.1 * torch.sin(self.into + self.anew))
        return out[:, :-1], out[:, -1]


def test_an_evaluation_leaves_what_a_models_forward_counts_as_it_was(trainer):
    plain, evaluated = (weights(trainer("CartPole-v1", model=Counts, **words).learn(192))
                        for words in ({}, WORDS))
    assert torch.equal(plain, evaluated)


class Noisy(torch.nn.Linear):
    """Its weights are shaken whenever it is asked, by torch's own generator."""

    def __init__(self, obs_space, act_space):
        super().__init__(4, 3)

    def forward(self, obs):
        out = torch.nn.functional.linear(obs, self.weight * (1 + 0.1 * torch.randn(3, 4)))
        return out[:, :2], out[:, 2]


def test_an_evaluation_takes_no_random_number_from_training(trainer):
    found = []
    for words in ({}, WORDS):
        torch.manual_seed(0)
        found.append(weights(trainer("CartPole-v1", model=Noisy, **words).learn(192)))
    assert torch.equal(*found)
    ppo = trainer("CartPole-v1", model=Noisy)
    assert ppo.evaluate(3).returns.tolist() == ppo.evaluate(3).returns.tolist()


# a network that answers NaN

@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_a_network_that_answers_nan_is_an_error_in_predict_and_evaluate(trainer, name):
    ppo = trainer(name)
    with torch.no_grad():
        ppo.policy.net.actor.bias[-1] = torch.nan
    obs = ppo.policy.obs_space.sample() * 0
    for ask in (lambda: ppo.policy.predict(np.stack([obs, obs])), lambda: ppo.evaluate(1),
                lambda: ppo.policy.predict(obs, deterministic=False)):
        with pytest.raises(Error, match=r"for row 0 are NaN"):
            ask()


def test_the_summary_of_a_trainer_without_evaluations_has_no_best():
    assert evaluator.evaluator_of([SimpleNamespace(best=1)]) is None


def test_an_environment_that_training_steps_is_not_evaluated_in(trainer):
    env = Counting(4)
    for make in (lambda: env, lambda: gym.wrappers.TimeLimit(env, 3)):
        ppo = trainer(make, num_envs=1, num_steps=6)
        before = ppo.collect().obs.clone()
        with pytest.raises(ConfigError, match="returned the one that training steps"):
            ppo.evaluate(episodes=1)
        ppo.update(ppo.rollout)
        assert ppo.collect().obs[0, 0] == before[-1, 0]  # its running episode goes on
        ppo.close()
    with trainer(lambda: Counting(4), num_envs=1) as ppo:
        assert ppo.evaluate(episodes=2).mean == 4
