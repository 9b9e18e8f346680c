"""bench: its measurements, limits, table, comparisons with other systems, and reports."""

import importlib.util
import io
import json
import math
import pickle
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import gymnasium as gym
import pytest
import torch
from games_for_tests import Scripted, Turns

from fastppo.benchmark import measure_one, peers, session, table
from fastppo.cli import command_line, main
from fastppo.cli.bench import Bench
from fastppo.envs.make import make_factory
from fastppo.errors import ConfigError, EnvError, Omit, Set
from fastppo.gpu.device_actor import ObservationMirror
from fastppo.machine import limits

SIZES = ["--env_name=CartPole-v1", "--preset=none", "--num_envs=4", "--num_steps=8", "--epochs=2",
         "--num_minibatches=2", "--hidden_sizes=8"]


def measure(ppo, part, iterations=2, monkeypatch=None):
    """The result of one part, started without waiting."""
    monkeypatch.setattr(measure_one, "signal_ready", lambda: None)
    return measure_one.MEASUREMENTS[part](ppo, measure_one.Measurement(part, {}, 0.01, iterations))


def made(rates, count=2, **loop):
    """A session as session.run returns it, of steps that cost 3 us, 2 us of them environment."""
    limits = [{"cost": {"step": 1.5e-6, "reset": 5e-6}, "act_flops": 100,
               "update_flops": 225, "peak": 1e9, "facts": {}}]
    config = {"env_name": "CartPole-v1", "num_envs": 4, "num_steps": 1, "epochs": 2,
              "num_minibatches": 1, "hidden_sizes": (8,), "model": "mlp", "acting": "local",
              "learner": "kernel", "device": "cpu", "precision": "fp32"}
    loop = {"collect": 2e-6, "update": 1e-6, "busy": 1.5e-6, "resets": 0.1, "epochs": 2.0, **loop}
    parts = [("environments", {"resets": 0.1}), ("acting", {}), ("update", {"epochs": 2.0}),
             ("loop", loop)]
    return {"rounds": len(rates), "limits": limits,
            "machine": {"processor": "a chip", "usable_cores": 2, "system": "Linux"},
            "facts": {"config": config, "network": "mlp 4-8-{2,1}", "parameters": 9,
                      "native": False, "kernels": "c", "versions": {"torch": "2"}},
            "measured": [{"part": part, "processes": count,
                          "rounds": [{"rate": rate, **more} for rate in rates]}
                         for part, more in parts]}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_limit_plays_the_recorded_episodes_again_without_gymnasiums_wrappers(trainer, env):
    ppo = trainer(env, num_steps=40, max_episode_steps=15)
    recorder = measure_one.Recorder(ppo)
    for _ in range(2):
        recorder.take(ppo.collect())
        ppo.update(ppo.rollout)
    for e in range(4):
        bare = measure_one.without_wrappers(gym.make(env, max_episode_steps=15))
        assert type(bare) is type(bare.unwrapped)
        episodes = recorder.episodes(e)
        assert sum(len(actions) for _, actions in episodes) == 80 and len(episodes) > 4
        for seed, actions in episodes[:-1]:  # the last one is unfinished
            bare.reset(seed=seed)
            ends = [any(bare.step(action)[2:4]) for action in actions]
            assert not any(ends[:-1]) and (ends[-1] or len(ends) == 15)  # without the TimeLimit


@pytest.mark.parametrize("make", [Scripted, Turns])
def test_the_limit_plays_the_recorded_games_again(trainer, make):
    ppo = trainer(make, num_steps=40)
    recorder, played = measure_one.Recorder(ppo), 0
    for _ in range(3):
        recorder.take(ppo.collect())
        ppo.update(ppo.rollout)
    for e in range(ppo.config.num_envs):
        game = measure_one.without_wrappers(make_factory(make)())
        for seed, actions in recorder.episodes(e)[:-1]:  # the last one is unfinished
            game.reset(seed=seed)
            for action in actions:
                assert any(game.alive)
                game.step(action)
            assert not any(game.alive)
            played += 1
    assert played > 20
    cost = measure_one.env_cost(ppo, recorder, 0.0)
    assert 0 < cost["step"] < cost["reset"] * 99


def test_an_environments_own_wrappers_stay_in_the_limit():
    class Twice(gym.RewardWrapper):
        def reward(self, reward):
            return 2 * reward

    env = measure_one.without_wrappers(gym.wrappers.TimeLimit(Twice(gym.make("CartPole-v1")), 5))
    assert type(env) is Twice


def test_a_limit_is_the_cores_over_what_a_step_costs_one_of_them():
    found = {one["part"]: one for one in table.figures(made([1e5, 3e5, 2e5]))}
    loop = found["loop"]
    assert (loop["low"], loop["median"], loop["high"]) == (1e5, 2e5, 3e5)
    # 1.5 us a step and a tenth of 5 us a reset; 2 x 0.1 us to act; 2 x 0.225 us to update.
    costs = {"environments": 2e-6, "acting": 0.2e-6, "update": 0.45e-6, "loop": 2.65e-6}
    for part, cost in costs.items():
        assert found[part]["limit"] == pytest.approx(2 / cost)
        assert found[part]["share"] == pytest.approx(2e5 * cost / 2)


def on_a_gpu(held):
    """The same session with a GPU."""
    held["facts"]["config"].update(device="cuda:1", learner="graph", precision="tf32")
    return held


def test_a_gpu_is_one_device_however_many_cores_step_the_environments():
    found = {one["part"]: one for one in table.figures(on_a_gpu(made([2e5])))}
    # 2 us of environments on two cores; 0.2 us to act and 0.45 us to update on the GPU.
    costs = {"environments": 1e-6, "acting": 0.2e-6, "update": 0.45e-6, "loop": 1.65e-6}
    for part, cost in costs.items():
        assert found[part]["limit"] == pytest.approx(1 / cost)
        assert found[part]["share"] == pytest.approx(2e5 * cost)


@pytest.mark.parametrize("device, head", [
    ("cpu", "limit     a step costs one core at least 2.65 us; a row's limit is of "),
    ("gpu", "limit     a step costs a core 2.00, cuda:1 0.65 us at least; a row's limit is of ")])
def test_the_limit_says_whose_time_it_is_and_in_which_precision(device, head):
    held = made([2e5], update=3e-6, collect=1.9e-6)
    text = table.text(table.session_report(held if device == "cpu" else on_a_gpu(held)))
    assert head in text
    assert f"the peak of {'fp32' if device == 'cpu' else 'tf32'} GEMM here)" in text
    assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize("count, cores", [(0, 1), (1, 1), (2, 2), (7, 2)])
def test_processes_can_use_no_more_cores_than_there_are(count, cores):
    assert table.cores(made([1e5]), count) == cores


def test_the_parts_of_a_step_add_up_to_its_time():
    held = made([2e5], update=1e-6, collect=3.84e-6, busy=3.74e-6)
    next(one for one in held["measured"] if one["part"] == "acting")["rounds"][0]["rate"] = 1e6
    found = table.session_report(held)
    seconds = found["seconds"]
    assert sum(seconds.values()) == pytest.approx(1 / found["best"]["median"])
    assert [*seconds] == sorted(seconds, key=lambda name: -seconds[name])
    assert seconds["update"] == 1e-6 and seconds["waiting"] == pytest.approx(0.1e-6)
    assert all(len(line) <= 120 for line in table.text(found).splitlines())
    assert table.text(found).startswith(
        "fastest   200,000 steps per second, with 2 worker processes\n")
    assert ("\ntime      55% stepping the environments, 20% the update, 20% acting, 3% metrics, 2%"
            " waiting for the last worker\n") in table.text(found)


def test_what_cannot_be_is_not_printed_because_other_programs_disturbed_it():
    held = made([2e5])  # acting alone takes as long as the whole loop
    lines = table.text(table.session_report(held)).splitlines()
    assert lines[:2] == ["fastest   200,000 steps per second, with 2 worker processes", ""]
    for rate, void in ((1.04, False), (1.06, True)):  # of the limit, 2 / 2.65 us
        held["measured"][-1]["rounds"][0]["rate"] = rate * 2 / 2.65e-6
        lines = table.text(table.session_report(held)).splitlines()
        row, = (line for line in lines if line.startswith("whole loop "))
        assert (table.VOID in row, f"{rate:.0%}" in row) == (void, not void)
        assert (lines[0] == f"fastest   {table.VOID}") is void
        assert all(len(line) <= 120 for line in lines)


def test_another_systems_ratio_is_of_the_medians():
    held = made([2e5])
    for name, rates in (("sb3", [1e4, 5e4, 2e4]), ("rltools", [4e5])):
        held["measured"].append({"part": name, "processes": -1, "rounds": [
            {"rate": rate, "version": "1", "env_name": "CartPole-v1"} for rate in rates]})
    found = {one["name"]: one["ratio"] for one in table.peers(held)}
    assert found["sb3"] == pytest.approx(10) and found["rltools"] == pytest.approx(0.5)
    assert "Stable-Baselines3 1" in table.text(table.session_report(held))


@pytest.mark.some(5)
@pytest.mark.parametrize("how", [
    {}, {"acting": "central"}, {"vec": "native"}, {"vec": "native", "acting": "central"}], ids=str)
@pytest.mark.parametrize("part", ["environments", "acting", "update", "loop", "limit"])
def test_every_part_is_measured_in_one_process(trainer, part, how, monkeypatch):
    found = measure(trainer("CartPole-v1", **how), part, monkeypatch=monkeypatch)
    assert json.loads(json.dumps(found))
    if part != "limit":
        assert found["rate"] > 0


def test_the_speed_of_environments_is_without_copies_to_a_device(trainer, monkeypatch):
    ppo = trainer("CartPole-v1", acting="central", learner="graph")
    monkeypatch.setattr(ObservationMirror, "upload", None)
    assert measure(ppo, "environments", monkeypatch=monkeypatch)["rate"] > 0


def test_what_it_takes_to_start_workers_is_in_no_figure_of_environments(trainer, monkeypatch):
    pytest.importorskip("fastppo._cells")
    ppo, up = trainer("CartPole-v1", num_workers=1), []
    monkeypatch.setattr(measure_one, "signal_ready",
                        lambda: up.append(ppo.collector.vec.team.posted.generation > 0))
    job = measure_one.Measurement("environments", {}, 0.01, 1)
    measure_one.MEASUREMENTS["environments"](ppo, job)
    assert up == [True]


@pytest.mark.parametrize("asked, counts", [({}, [1, 2]), ({"num_workers": "auto"}, [1, 2]),
                                           ({"num_workers": 0}, [0])])
def test_the_numbers_of_processes_are_all_up_to_the_cores_unless_one_is_asked_for(
        asked, counts, monkeypatch):
    pytest.importorskip("fastppo._cells")
    monkeypatch.setattr(limits, "usable_cores", lambda: 2)
    facts = {"config": {"num_envs": 4}, "native": False}
    assert session.processes(Bench(), asked, facts) == counts


@pytest.mark.parametrize("processes, workers, envs, counts", [
    ((2, 4), None, 3, [2, 3]), ((1, 2), None, 1, [1]), (None, 4, 2, [2]), ((0, 8, 9), 2, 4, [0, 4]),
])
def test_there_are_no_more_processes_than_environments(processes, workers, envs, counts):
    pytest.importorskip("fastppo._cells")
    facts = {"config": {"num_envs": envs}, "native": False}
    asked = {} if workers is None else {"num_workers": workers}
    assert session.processes(Bench(processes=processes), asked, facts) == counts


def test_acting_of_workers_is_measured_on_their_slices():
    facts = {"config": {"acting": "local", "num_envs": 5}}
    job = measure_one.Measurement("", {"num_envs": 5}, 1.0, None)
    found = [(job.settings["num_envs"], job.settings["num_workers"])
             for job in session.plan_jobs(job, "acting", 2, facts)]
    assert found == [(2, 0), (3, 0)]
    facts["config"]["acting"] = "central"
    assert len(session.plan_jobs(job, "acting", 2, facts)) == 1
    assert session.plan_jobs(job, "loop", 2, facts)[0].settings["num_workers"] == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trace_has_one_track_a_process_and_nothing_overlaps_on_it(trainer, workers, monkeypatch):
    if workers:
        pytest.importorskip("fastppo._cells")
    found = measure(trainer("CartPole-v1", num_workers=workers), "profile", 3, monkeypatch)["trace"]
    found = json.loads(json.dumps(found))["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in found if one["name"] == "process_name"}
    assert list(names.values()) == ["main", *(f"worker {w}" for w in range(workers))]
    spans = [one for one in found if one["ph"] == "X"]
    assert {one["pid"] for one in spans} == set(names)
    for pid, name in names.items():
        mine = sorted((one["ts"], one["dur"], one["name"]) for one in spans if one["pid"] == pid)
        assert {"collect", "update"} <= {n for *_, n in mine} if name == "main" else \
            len([n for *_, n in mine if n == "rollout"]) == 3
        assert all(a + long <= b + 0.01 for (a, long, _), (b, *_) in zip(mine, mine[1:]))
    collects = [(one["ts"], one["ts"] + one["dur"]) for one in spans if one["name"] == "collect"]
    for span in (span for span in spans if span["name"] == "rollout"):
        assert any(a <= span["ts"] and span["ts"] + span["dur"] <= b for a, b in collects)


def test_no_stamp_is_lost_or_told_twice(trainer):
    pytest.importorskip("fastppo._cells")
    ppo = trainer("CartPole-v1", num_workers=1)
    stamps = measure_one.Stamps(ppo)
    for _ in range(3):
        ppo.collect()
        ppo.update(ppo.rollout)
    assert [name for _, name, _, _ in stamps.new()].count("rollout") == 3
    assert stamps.new() == []


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_verb_measures_and_says_it_as_a_table_and_as_json(fresh, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if not fresh:
        monkeypatch.setattr(measure_one, "signal_ready", lambda: None)
        monkeypatch.setattr(session, "run_jobs",
                            lambda jobs: [measure_one.measure(job) for job in jobs])
    main.main(["bench", *SIZES, "--rounds=1", "--iterations=1", "--processes=0", "--seconds=0.05",
              "--json=found.json", "--num_workers=0"])
    out, found = capsys.readouterr().out, json.loads((tmp_path / "found.json").read_text())
    assert [(one["part"], one["processes"]) for one in found["figures"]] == [
        (part, 0) for part in session.SESSION_PARTS]
    for row in found["figures"]:
        assert 0 < row["median"] and 0 < row["limit"]
        assert row["share"] == row["median"] / row["limit"]
    assert {"environment", "acting", "update", "peak_flops", "step", "reset"} <= set(found["limit"])
    assert math.isfinite(sum(found["seconds"].values()))
    for word in ("whole loop", "share", "limit", "time   ", "fastest  "):
        assert word in out
    assert list(tmp_path.iterdir()) == [tmp_path / "found.json"]


@pytest.mark.parametrize("flags, seconds, stop_in, complete", [
    ([], 1, 9, 3), ([], 70, 9, 1), ([], 50, 9, 2), (["--rounds=4"], 70, 9, 4), ([], 1, 2, 2)])
def test_a_session_has_the_rounds_that_there_is_time_for(monkeypatch, flags, seconds, stop_in,
                                                         complete):
    now, measured = [0.0], []

    def measure_round(job, options, name):
        if len(measured) == stop_in:
            raise KeyboardInterrupt
        now[0] += seconds
        measured.append(name)
        return {("limit", 0): {"facts": {}}, ("loop", 1): {"rate": 1.0}}

    monkeypatch.setattr(session, "measure_round", measure_round)
    monkeypatch.setattr(session.time, "monotonic", lambda: now[0])
    request = command_line.read([*SIZES, *flags], Bench)
    found = session.run_session(request.given, request.options)
    assert found["rounds"] == complete == len(found["limits"]) == len(
        found["measured"][0]["rounds"])


def test_a_session_without_a_complete_round_has_no_answer(monkeypatch):
    monkeypatch.setattr(session, "measure_round", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        session.run_session({}, Bench())


def test_an_error_of_a_measurement_keeps_its_fix(monkeypatch, capsys):
    job = measure_one.Measurement("loop", {}, 0.1, 1)
    error = ConfigError("lr is 1", (Set(lr=3e-4), Omit("lr")))
    monkeypatch.setattr(sys, "stdin", io.StringIO(pickle.dumps(job).hex() + "\n"))
    monkeypatch.setattr(measure_one, "measure", mock.Mock(side_effect=error))
    measure_one.main()
    child = session.Child.__new__(session.Child)
    child.last, child.process = capsys.readouterr().out, mock.Mock(returncode=0)
    child.process.communicate.return_value = "", ""
    with pytest.raises(ConfigError) as caught:
        child.result()
    assert caught.value.shell == error.shell == "lr is 1\n  fix: --lr=0.0003; or leave --lr out"


@pytest.mark.full
def test_an_error_of_the_environments_ends_the_measurement_with_its_text():
    with pytest.raises(ConfigError, match="CartPole-v9"):
        session.run_jobs([measure_one.Measurement("loop", {"env_name": "CartPole-v9"}, 0.1, 1)])
    assert issubclass(EnvError, session.Error)


@pytest.mark.parametrize("argv, words", [
    (["--against=sb4"], "must be one of sb3, rl_games"),
    (["--against=sb3", "--against_python=sb3"], "must be NAME=PYTHON"),
    (["--against=sb3", "--against_python=rl_games=python"], "must be NAME=PYTHON"),
    (["--round=3"], "--rounds?"),
    (["--num_env=3"], "--num_envs?"),
    (["--rounds=0"], "leave --rounds out"),
    (["--processes=-1"], "--processes=1,2"),
    (["--json=no/such/folder/x.json"], "a folder that exists"),
    (["--json=."], ". is a folder"),
    (["--profile=."], ". is a folder"),
    (["--vec=native", "--num_workers=2"], "leave --num_workers out"),
])
def test_what_cannot_be_measured_is_said_with_a_fix(argv, words, monkeypatch, capsys):
    monkeypatch.setattr(session, "run_jobs", None)  # nothing is measured before
    with pytest.raises(SystemExit) as end:
        main.main(["bench", *SIZES, *argv])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


CONFIG = {"frame_stack": 1, "frame_skip": None, "grayscale": False, "resize": None,
          "noop_max": 30, "fire_on_reset": True,
          "preprocessing": "none", "end_on_life_loss": False, "model": "mlp", "clip_rewards": False,
          "activation": "tanh", "layer_norm": False, "rnn": "none",
          "distribution": "gaussian", "sde": False, "actor_keys": None, "critic_keys": None,
          "norm_values": False, "recompute_advantages": False, "target_kl": None, "device": "cpu"}


@pytest.mark.parametrize("name, settings, words", [
    ("rl_games", {"frame_stack": 4}, "rl_games on EnvPool does not support frame_stack=4\n"
                                     "  fix: --frame_stack=1"),
    ("rltools", {"frame_stack": 2, "rnn": "gru"}, "RLtools does not support frame_stack=2, rnn"),
    ("sample_factory", {"frame_stack": 4, "rnn": "gru"}, "--frame_stack=1 --rnn=none"),
    ("sample_factory", {"activation": "silu"}, "fix: --activation=tanh"),
    ("sb3", {"model": "impala"}, "fix: --model=mlp"),
    ("sb3", {"layer_norm": True}, "--layer_norm=False"),
])
def test_a_system_that_cannot_have_a_setting_is_refused_with_a_fix(name, settings, words):
    session.check_takes(name, CONFIG)
    with pytest.raises(ConfigError) as found:
        session.check_takes(name, CONFIG | settings)
    assert words in found.value.shell


def test_a_system_has_the_settings_that_it_takes():
    session.check_takes("sb3", CONFIG | {"frame_stack": 4, "model": "cnn", "activation": "silu"})
    session.check_takes("rl_games", CONFIG | {"activation": "gelu"})
    game = {"frame_stack": 4, "preprocessing": "atari", "end_on_life_loss": True}
    session.check_takes("rl_games", CONFIG | game | {"model": "cnn", "clip_rewards": True})
    session.check_takes("rltools", CONFIG | {"activation": "relu"})


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # by Gymnasium's own wrapper
def test_rltools_is_compiled_for_the_sizes_of_fastppo(monkeypatch):
    given, steps = {}, []

    def ppo(env, **sizes):
        given.update(sizes, env=env())
        return types.SimpleNamespace(State=lambda seed: types.SimpleNamespace(
            step=lambda: steps.append(seed)))
    monkeypatch.setitem(sys.modules, "rltools", types.SimpleNamespace(PPO=ppo))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2")
    sizes = CONFIG | {
        "env_name": "Pendulum-v1", "env_kwargs": {}, "max_episode_steps": 9, "reward_scale": 1.0,
        "hidden_sizes": [32, 32], "shared_critic": False, "num_envs": 4, "num_steps": 8,
        "minibatch": 16, "rows": 32, "epochs": 3, "norm_obs": True, "gamma": 0.9,
        "gae_lambda": 0.8, "entropy_coef": 0.0, "lr": 1e-3, "iterations": 2, "seconds": 1.0}
    found = peers.rltools(sizes)
    assert len(steps) == 3 and found["rate"] > 0 and found["version"] == "2"
    assert given["env"].spec.max_episode_steps == 9 and given["ACTOR_NUM_LAYERS"] == 3
    assert (given["CRITIC_HIDDEN_DIM"], given["BATCH_SIZE"], given["N_EPOCHS"]) == (32, 16, 3)
    for other in ({"hidden_sizes": [32, 64]}, {"shared_critic": True}):
        with pytest.raises(ValueError, match="RLtools has layers"):
            peers.rltools(sizes | other)


def test_envpools_id_of_a_game_is_that_of_all_ids_of_the_game(monkeypatch):
    pool = types.SimpleNamespace(list_all_envs=lambda: ["Pong-v5", "CartPole-v1"])
    monkeypatch.setitem(sys.modules, "envpool", pool)
    assert {peers.envpool_id(name) for name in (
        "ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-v5")} == {"Pong-v5"}
    assert peers.envpool_id("CartPole-v0") == "CartPole-v1"
    with pytest.raises(LookupError):
        peers.envpool_id("Gone-v1")


def test_a_system_gets_the_first_value_of_a_schedule_and_arguments_as_they_are(trainer):
    config = measure_one.run_facts(trainer("CartPole-v1", lr="linear:0.1"))["config"]
    job = measure_one.Measurement("", {"env_kwargs": {"key": "mine"}}, 1.0, 9)
    sizes = session.sizes_of(config, job)
    assert sizes["rows"] == sizes["num_envs"] * sizes["num_steps"]
    assert sizes["iterations"] == 9 and sizes["lr"] == 0.1
    assert sizes["env_kwargs"] == {"key": "mine"}  # not as it is shown


def test_a_system_that_fails_has_a_row_that_says_why_and_loses_no_figure_of_ours():
    held, worked = made([2e5]), {"rate": 1e5, "version": "1"}
    for name, rounds in (("sb3", [{"failed": "KeyError: " + "x" * 200}]),
                         ("rl_games", [{"failed": "OSError: y"}, worked])):
        held["measured"].append({"part": name, "processes": -1, "rounds": rounds})
    found = table.session_report(held | {"rounds": 2})
    sb3, rl_games = json.loads(json.dumps(found))["peers"]
    assert sb3["median"] is None and sb3["failures"] == 1
    assert rl_games["median"] == 1e5 and rl_games["ratio"] == 2
    text = table.text(found)
    assert "whole loop" in text and "Stable-Baselines3 failed: KeyError: x" in text
    assert "rl_games on EnvPool 1 failed in 1 of 2 rounds: OSError: y" in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_a_system_that_raises_or_dies_says_so_in_a_line(tmp_path, monkeypatch):
    sizes = json.dumps({"env_name": "nowhere:Env"})
    if importlib.util.find_spec("stable_baselines3"):
        assert "JSONDecodeError: " in session.peer("sb3", None, sizes[1:])["failed"]
    assert "No such file" in session.peer("sb3", "/no/such/python", sizes)["failed"]
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\necho 'their last words'\nexit 3\n")
    dying.chmod(0o755)
    assert session.peer("sb3", str(dying), sizes) == {
        "failed": "it ended with code 3: their last words"}
    dying.write_text("#!/bin/sh\nsleep 60\n")
    assert session.peer("sb3", str(dying), sizes, 0.1) == {"failed": "it did not end in 0.1 s"}


MINE = """
import gymnasium as gym, numpy as np
from gymnasium.spaces import Box, Dict, Discrete

class Mine(gym.Env):
    action_space = Discrete(2)

    def __init__(self, size=1):
        self.observation_space = Dict(
            x=Box(-1, 1, (size,), np.float32), y=Discrete(3), z=Box(0, 255, (2,), np.uint8))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), -3.0, False, False, {}

class Inside:
    Env = Mine
"""
SAME = {"env_kwargs": {}, "max_episode_steps": None, "frame_stack": 1, "reward_scale": 1.0,
        "clip_rewards": False}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a module `mine_to_bench`, where one is, and from which modules come."""
    (tmp_path / "mine_to_bench.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine_to_bench", None)


def test_another_system_has_the_environment_of_a_callable_and_of_an_id_as_fastppo_has(mine):
    env = peers.environment(SAME | {"env_name": "mine_to_bench:Inside.Env", "reward_scale": 2.0,
                                    "env_kwargs": {"size": 5}, "max_episode_steps": 2})
    assert env.observation_space["x"].shape == (5,)
    env.reset(seed=1)
    assert [env.step(0)[1:4] for _ in range(2)] == [(-6.0, False, False), (-6.0, False, True)]
    env = peers.environment(SAME | {"env_name": "CartPole-v1", "frame_stack": 3,
                                    "env_kwargs": {"sutton_barto_reward": True},
                                    "max_episode_steps": 7, "clip_rewards": True})
    assert env.observation_space.shape == (3, 4) and env.spec.max_episode_steps == 7
    assert env.unwrapped._sutton_barto_reward
    assert peers.environment(SAME | {"env_name": "gymnasium:CartPole-v1"})


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["CartPole-v1", "mine_to_bench:Mine"])
def test_stable_baselines_has_the_network_of_fastppo(name, shared, mine, trainer):
    """As far as it takes a Dict apart in another order, weight for weight."""
    policies = pytest.importorskip("stable_baselines3.common.policies")
    env = peers.environment(SAME | {"env_name": name})
    kind, network = peers.sb3_policy({
        "model": "mlp", "hidden_sizes": [16, 8], "activation": "silu", "shared_critic": shared},
        env.observation_space)
    theirs = {"MlpPolicy": policies.ActorCriticPolicy,
              "MultiInputPolicy": policies.MultiInputActorCriticPolicy}[kind](
        env.observation_space, env.action_space, lambda _: 1e-3, **network)
    ours = trainer(name, hidden_sizes=(16, 8), activation="silu", shared_critic=shared).policy
    assert sorted(tuple(x.shape) for x in theirs.parameters()) == sorted(
        tuple(x.shape) for x in ours.parameters())
    assert sum(isinstance(x, torch.nn.SiLU) for x in theirs.modules()) == (2 if shared else 4)


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_stable_baselines_is_measured_on_an_environment_of_ones_own(fresh, mine, monkeypatch,
                                                                    capsys):
    pytest.importorskip("stable_baselines3")
    monkeypatch.setattr(measure_one, "signal_ready", lambda: None)
    monkeypatch.setattr(session, "run_jobs",
                        lambda jobs: [measure_one.measure(job) for job in jobs])
    if not fresh:
        monkeypatch.setattr(session, "peer",
                            lambda name, python, text, *_: peers.sb3(json.loads(text)))
    threads = torch.get_num_threads()
    main.main(["bench", *SIZES, "--env_name=mine_to_bench:Mine", "--rounds=1", "--iterations=1",
              "--processes=0", "--against=sb3", "--json=-", "--activation=gelu",
              "--max_episode_steps=5", '--env_kwargs={"size": 3}'])
    torch.set_num_threads(threads)
    found = json.loads(capsys.readouterr().out)["peers"]
    assert [(one["name"], one["failed"]) for one in found] == [("sb3", "")]
    assert found[0]["median"] > 0 and found[0]["ratio"] > 0 and found[0]["version"]


def test_peers_run_in_a_python_without_fastppo(tmp_path):
    code = ("import runpy, sys; sys.path.insert(0, 'x'); sys.argv = ['peers.py', 'sb3', '{}'];"
            f"runpy.run_path({session.SCRIPT!r}, run_name='__main__')")
    out = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True,
                         cwd=tmp_path)
    assert json.loads(out.stdout.splitlines()[-1])["failed"] == (
        "ModuleNotFoundError: No module named 'stable_baselines3'")


def test_laps_leave_the_first_iteration_out():
    laps = peers.Laps({"seconds": 0.0, "iterations": 2})
    assert [laps.over(steps) for steps in (100, 200, 300)] == [False, False, True]
    laps.laps = [(5.0, 100), (6.0, 200), (7.0, 300)]
    assert laps.rate() == 100.0


def test_a_verb_has_help_of_its_own_and_training_stays_the_default(capsys):
    for argv in (["bench", "--help"], ["train", "--help"], ["--help"]):
        with pytest.raises(SystemExit) as end:
            main.main(argv)
        assert end.value.code in (0, None)
        assert ("--against" in capsys.readouterr().out) == (argv[0] == "bench")
    with pytest.raises(SystemExit):
        main.main(["bensh"])
    assert 'there is no command "bensh"' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main.main(["resume", "runs/a"])
    assert "settings begin with --" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main.main(["runs/a"])
    assert "there is no command" in capsys.readouterr().err


def test_the_verbs_own_settings_are_no_settings_of_training():
    request = command_line.read([*SIZES, "--json", "--processes", "1", "2"], Bench)
    assert request.options.json == "-" and request.options.processes == (1, 2)
    assert "json" not in request.given
    with pytest.raises(ConfigError, match="no setting"):
        command_line.read([*SIZES, "--rounds=3"])


def test_the_command_imports_nothing_heavy_before_it_measures():
    code = ("import sys; from fastppo.cli import main\ntry: main.main(['bench', '--help'])\n"
            "except SystemExit: pass\n"
            "print([m for m in ('torch', 'numpy', 'gymnasium') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                         cwd=Path(__file__).parents[2])
    assert out.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("native, words", [
    (False, "a row's limit is of a core for each process, 2 at most"),
    (True, "a row's limit is of all 2 cores")])
def test_the_table_says_how_many_cores_a_limit_is_of(native, words):
    held = made([2e5], count=0)
    held["facts"]["native"] = native
    found = table.session_report(held)
    assert words in table.text(found)
    costs = sum(table.costs(held, 0.1, 2.0).values())
    assert found["best"]["limit"] == pytest.approx((2 if native else 1) / costs)
