"""What a run says about itself: clock, episodes, table, lines, wandb, the page on metrics."""

import json
import logging
import os
import re
import shutil
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from asked_of_runs import table, weights
from source_tree import PACKAGE

from fastppo import PPO, Config
from fastppo.cli import run_folder
from fastppo.errors import ConfigError
from fastppo.loggers import background
from fastppo.loggers.csv_files import CsvSink, EpisodeSink
from fastppo.loggers.wandb import WandbSink
from fastppo.machine import file_access, limits
from fastppo.machine.installation import is_missing
from fastppo.runs.folder import FolderLock, make_run_folder
from fastppo.terminal import progress_lines
from fastppo.terminal.progress_lines import ProgressLines, progress_line
from fastppo.trainer import metrics, run
from fastppo.trainer.metrics import EpisodeMetrics, PartTimer
from fastppo.trainer.rules import CONFLICTS, case_of, check

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
STATS = {"charts/SPS": 500.0, "losses/approx_kl": 0.01, "losses/explained_variance": 0.5}


def trainer_at(step, total=10_000):
    return types.SimpleNamespace(step=step, total=total)




# clock and episodes

def test_the_shares_of_the_clock_add_up_to_one():
    clock = PartTimer()
    for part in ("collect", "update", "collect"):
        with clock(part):
            assert clock.part == part
    stats = clock.stats(step=100)
    assert stats["time/collect"] + stats["time/update"] == pytest.approx(1)
    assert stats["charts/SPS"] == pytest.approx(100 / sum(clock.seconds.values()))
    assert clock.part == ""


def test_a_part_that_raises_is_counted_and_left():
    clock = PartTimer()
    with pytest.raises(ZeroDivisionError), clock("update"):
        raise ZeroDivisionError
    assert clock.part == "" and clock.seconds["update"] >= 0


def test_returns_are_means_over_the_last_hundred_episodes():
    episodes = EpisodeMetrics()
    assert episodes.stats() == {}
    total, length = np.full((110, 1), np.nan), np.zeros((110, 1), np.int64)
    total[5:, 0], length[5:, 0] = np.arange(105), 7
    episodes.take(total, length)
    assert episodes.stats() == {"charts/episodic_return": np.arange(5, 105).mean(),
                                "charts/episodic_return_std": np.arange(5, 105).std(ddof=1),
                                "charts/episodic_length": 7.0, "charts/episodes": 105.0}


def test_explained_variance_is_1_for_a_perfect_critic_and_0_for_constant_returns(trainer):
    rollout = trainer("CartPole-v1").collect()

    def explained(**fields):
        return metrics.explained_variance(rollout._replace(**fields), limits.OneProcess())
    assert explained(val=rollout.ret) == 1
    assert explained(val=rollout.ret.mean() + 0 * rollout.ret) == pytest.approx(0, abs=1e-6)
    assert explained(ret=torch.ones_like(rollout.ret)) == 0


def test_explained_variance_looks_at_valid_rows_only(trainer):
    rollout = trainer("CartPole-v1").collect()
    val, valid = rollout.ret.clone(), rollout.valid.clone()
    val[0], valid[0] = torch.nan, False
    rollout = rollout._replace(val=val, valid=valid)
    assert metrics.explained_variance(rollout, limits.OneProcess()) == 1


# metrics.csv

def test_a_metric_that_comes_late_gets_a_column_and_loses_no_row(tmp_path):
    sink = CsvSink(tmp_path / "metrics.csv")
    sink(trainer_at(8), {"losses/entropy": 0.5})
    sink(trainer_at(16), {"losses/entropy": 0.4, "env/height": 3.0})
    sink(trainer_at(24), {"charts/episodic_return": 1.0})
    rows = table(tmp_path / "metrics.csv")
    assert [row["global_step"] for row in rows] == ["8", "16", "24"]
    assert [row["losses/entropy"] for row in rows] == ["0.5", "0.4", ""]
    assert [row["env/height"] for row in rows] == ["", "3.0", ""]
    assert [row["charts/episodic_return"] for row in rows] == ["", "", "1.0"]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_table_that_can_no_longer_be_written_is_noted_once_and_stops_nobody(tmp_path, capsys):
    sink = CsvSink(tmp_path / "run.csv")
    (tmp_path / "file").touch()
    sink.path = tmp_path / "file" / "run.csv"
    for step in (8, 16):
        sink(trainer_at(step), {})
    sink.close()
    assert capsys.readouterr().err.count("metrics from step 8 on wait") == 1


@pytest.mark.parametrize("new_column", [False, True])
def test_rows_wait_for_a_disk_that_is_full_and_none_is_lost_or_doubled(
        tmp_path, monkeypatch, capsys, new_column):
    sink = CsvSink(tmp_path / "run.csv")
    sink(trainer_at(8), {"losses/entropy": 0.5})
    full = tmp_path / "gone"
    os.rename(tmp_path / "run.csv", full)
    (tmp_path / "run.csv").mkdir()
    for step in (16, 24):
        sink(trainer_at(step), {"losses/entropy": 0.5, **({"env/x": 1.0} if new_column else {})})
    (tmp_path / "run.csv").rmdir()
    os.rename(full, tmp_path / "run.csv")
    sink(trainer_at(32), {"losses/entropy": 0.5})
    sink.close()
    rows = table(tmp_path / "run.csv")
    assert [row["global_step"] for row in rows] == ["8", "16", "24", "32"]
    assert not new_column or [row["env/x"] for row in rows] == ["", "1.0", "1.0", ""]
    assert capsys.readouterr().err.count("note: ") == 1



@pytest.mark.parametrize(("seconds", "shown"), [
    (0, "0:00"), (15, "0:15"), (3599, "59:59"), (3600, "1:00:00"), (100_000, "27:46:40")])
def test_time_is_shown_as_clocks_do(seconds, shown):
    assert progress_lines.clock_time(seconds) == shown


def test_an_older_table_is_kept_under_another_name_which_the_log_says(tmp_path, caplog):
    path = tmp_path / "metrics.csv"
    for older in ("first", "second"):
        path.write_text(older)
        with caplog.at_level(logging.WARNING, "fastppo"):
            sink = CsvSink(path)
            assert path.read_text() == older  # nothing changes before training begins
            sink.on_start(None)
            sink(trainer_at(8), {})
    assert "metrics.csv is of an earlier run, and is now metrics-2.csv" in caplog.text
    assert [(tmp_path / f"metrics-{i}.csv").read_text() for i in (1, 2)] == ["first", "second"]
    assert [row["global_step"] for row in table(path)] == ["8"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00garbage", b"a,b\r\n1,2\r\n", b'"',
                                     b"global_step\x00"])
def test_a_damaged_table_is_renamed_when_its_run_is_resumed(tmp_path, caplog, content):
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    sink = CsvSink(path, step=64)
    sink.on_start(None)
    sink(trainer_at(96), {"losses/entropy": 0.5})
    assert [row["global_step"] for row in table(path)] == ["96"]
    assert "metrics.csv is damaged, and is now metrics-1.csv" in caplog.text
    assert (tmp_path / "metrics-1.csv").read_bytes() == content


def test_a_resumed_table_ends_with_the_last_whole_row_up_to_its_step(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"global_step,env/x\r\n32,1\r\n64,2\r\n96,3\r\n128,")
    sink = CsvSink(path, step=64)
    sink.on_start(None)
    sink(trainer_at(80), {"env/y": 7.0})
    sink.close()
    assert [(row["global_step"], row["env/x"], row["env/y"]) for row in table(path)] == [
        ("32", "1", ""), ("64", "2", ""), ("80", "", "7.0")]
    assert {one.name for one in tmp_path.iterdir()} == {"metrics.csv"}


def test_a_table_whose_folder_was_removed_is_begun_again(tmp_path):
    sink = CsvSink(tmp_path / "run" / "metrics.csv",
                   hold=FolderLock(tmp_path / "run").hold)
    sink(trainer_at(8), {})
    shutil.rmtree(tmp_path / "run")
    sink(trainer_at(16), {})
    assert [row["global_step"] for row in table(sink.path)] == ["16"]


def test_a_folder_that_is_moved_while_it_is_written_into_has_one_writer_where_it_was(
        trainer, tmp_path, capsys):
    folder, moved, seen = tmp_path / "run", tmp_path / "moved", []

    def move(ppo, stats):
        if ppo.step == 2 * 32:
            folder.rename(moved)
            seen.append(FolderLock(folder))  # another run begins in its place
        if ppo.step == 5 * 32:
            seen.pop().close()

    ppo = trainer("CartPole-v1", run_dir=str(folder))
    ppo.learn(6 * 32, callbacks=move)
    assert f"another run is writing into {folder}; metrics from step 96 on" in (
        capsys.readouterr().err)
    assert [row["global_step"] for row in table(moved / "metrics.csv")] == ["32", "64"]
    assert [row["global_step"] for row in table(folder / "metrics.csv")] == [
        "96", "128", "160", "192"]
    with pytest.raises(OSError, match="another run is writing"):
        FolderLock(folder)
    FolderLock(moved).close()


# episodes.csv

def test_every_episode_has_a_row_with_the_step_at_which_it_ended(trainer, tmp_path):
    ended = []

    def take(ppo, stats):
        length, total = (ppo.arena[name] for name in ("length", "total"))
        begin = ppo.step - length.size
        ended.extend([begin + (t + 1) * length.shape[1], total[t, e], length[t, e]]
                     for t, e in np.argwhere(length))

    ppo = trainer("CartPole-v1", run_dir=str(tmp_path)).learn(1_024, callbacks=take)
    rows = [[float(number) for number in row.values()] for row in table(tmp_path / "episodes.csv")]
    assert rows == ended and len(rows) == ppo.episodes.count > 20 and rows[-1][0] > 512


def test_of_many_episodes_of_an_iteration_the_last_hundred_are_kept_at_their_steps(tmp_path):
    length = np.ones((101, 5), np.int64)
    valid = length > 0
    valid[0] = False  # a row that is no step
    episodes = EpisodeMetrics()
    episodes.take(1.0 * np.arange(505).reshape(101, 5), length)
    sink = EpisodeSink(tmp_path / "episodes.csv")
    sink(types.SimpleNamespace(step=1_500, arena={"valid": valid}, episodes=episodes,
                               progress=types.SimpleNamespace(begin=1_000)), {})
    steps, returns, _ = zip(*((float(x) for x in row.values()) for row in table(sink.path)))
    assert returns == (*range(405, 505),)
    assert steps == tuple(1_500 - 5 * (100 - row) for row in np.repeat(np.arange(81, 101), 5))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        run.make_sinks(Config(run_dir=str(tmp_path / "file")), None)


def test_what_looks_like_a_password_is_not_written(tmp_path):
    kwargs = {"api_key": "abc", "n_keys": 3, "level": "hard", "net": {"Token": "xyz"}}
    make_run_folder(Config(run_dir=str(tmp_path), env_kwargs=kwargs, model=dict))
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["env_kwargs"] == {"api_key": "***", "n_keys": 3, "level": "hard",
                                     "net": {"Token": "***"}}
    assert written["model"] == "<class 'dict'>"


def test_numbers_joined_words_and_urls_with_a_user_are_passwords_too(tmp_path):
    hidden = {"password": 4711, "pwd": "a", "passphrase": "b", "authorization": "c",
              "secretkey": "d"}
    kwargs = hidden | {"url": "https://me:mine@host/x", "port": 8080, "passes": True}
    make_run_folder(Config(run_dir=str(tmp_path), env_kwargs=kwargs))
    assert json.loads((tmp_path / "config.json").read_text())["env_kwargs"] == dict.fromkeys(
        hidden, "***") | {"url": "https://***@host/x", "port": 8080, "passes": True}


def test_files_of_a_run_are_written_whole_and_through_no_link(tmp_path):
    for name, write in (("config.json", lambda path: file_access.write_bytes(path, b"new")),
                        ("command.txt", lambda path: run_folder.write_start_files(
                            path.parent, ["--x"], Config()))):
        (outside := tmp_path / f"outside-{name}").write_text("mine")
        (tmp_path / name).symlink_to(outside)
        with suppress(OSError):
            write(tmp_path / name)
        assert outside.read_text() == "mine"
    assert (tmp_path / "config.json").read_text() == "new"


def test_passwords_in_lists_in_parts_and_in_camel_case_are_not_written_either(tmp_path):
    kwargs = {"api_keys": ["S1"], "credentials": {"value": "S2"}, "users": [{"password": "S3"}],
              "authToken": "S4", "secretKey": "S5", "keymap": "qwerty", "monkey": "see"}
    make_run_folder(Config(run_dir=str(tmp_path), env_kwargs=kwargs))
    text = (tmp_path / "config.json").read_text()
    assert not re.search(r"S\d", text) and "qwerty" in text and "see" in text


def test_a_folder_that_is_locked_is_not_written_into(tmp_path):
    _, lock = make_run_folder(Config(run_dir=str(tmp_path), seed=1))
    with pytest.raises(ConfigError, match="another run is writing into"):
        make_run_folder(Config(run_dir=str(tmp_path), seed=2))
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 1
    lock.close()
    make_run_folder(Config(run_dir=str(tmp_path), seed=2))[1].close()


def test_nothing_is_written_or_printed_unless_asked_for(trainer, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    trainer("CartPole-v1").learn(64)
    assert list(tmp_path.iterdir()) == [] and capfd.readouterr() == ("", "")


# lines

def test_a_line_says_how_far_how_good_and_how_long_still():
    assert progress_line(2_500, 10_000, STATS | {"charts/episodic_return": -12.34}) == (
        "step  2,500  25%  return    -12.3      500 steps/s  kl 0.0100  left 0:15")
    assert progress_line(64, 10_000, STATS).startswith("step     64   1%   no episode yet      500")
    long = {"charts/episodic_return": -12345.67, "charts/SPS": 100.0}
    assert len(progress_line(2_500_000, 10_000_000, STATS | long)) <= 80


def without_hints():
    """A ProgressLines that looks at the metrics alone."""
    sink = ProgressLines()
    sink.history = types.SimpleNamespace(snapshot=lambda ppo, stats: None)
    sink.hints = types.SimpleNamespace(of_learning=lambda *_: [], of_speed=lambda _: [],
                                       new=lambda found: [])
    return sink


def test_the_first_line_has_no_forecast_for_its_seconds_are_the_warm_ups(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])
    sink = without_hints()
    for step in (1000, 2000, 3000):
        now[0] += 11.0
        sink(trainer_at(step), STATS)
    assert ["left" in text for text in capsys.readouterr().out.splitlines()] == [False, True, True]


def test_lines_come_rarely_and_the_last_one_always(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])
    sink = without_hints()
    for step, time in ((1000, 0.5), (2000, 1.5), (3000, 3.0), (4000, 12.0), (5000, 13.0)):
        now[0] = time
        sink(trainer_at(step), STATS)
    sink.on_end(None)
    sink.on_end(None)
    sink.close()
    steps = re.findall(r"step +([\d,]+)", capsys.readouterr().out)
    assert steps == ["2,000", "4,000", "5,000"]


def test_the_line_of_the_end_comes_before_whatever_is_printed_next(trainer, capsys):
    ppo = trainer("CartPole-v1", progress="lines")
    ppo.learn(64)
    print("what came of it")
    ppo.close()
    assert [text.split()[0] for text in capsys.readouterr().out.splitlines()] == ["step", "what"]


# wandb

class FakeWandb(types.ModuleType):
    """A wandb that records, raises, or blocks until `free` is set."""

    def __init__(self, account=True, init=None, log=None, finish=None):
        super().__init__("wandb")
        self.account, self.faults = account, {"init": init, "log": log, "finish": finish}
        self.modes, self.rows, self.given, self.ended = [], [], None, False
        self.free, self.url, self.api = threading.Event(), "https://wandb.test/run", None
        self.setup = self.Settings = self.Histogram = lambda *_, **settings: settings

    def _do(self, what):
        fault = self.faults[what]
        if fault == "blocks":
            self.free.wait()
        elif fault:
            raise fault

    def login(self, prompt, verify):
        return self.account

    def init(self, mode, **given):
        self.modes.append(mode)
        self.given = given
        if mode == "online" or self.faults["init"] == "blocks":
            self._do("init")
        return self

    def log(self, row, step):
        self._do("log")
        self.rows.append((step, row))

    def finish(self):
        self._do("finish")
        self.ended = True


@pytest.fixture
def wandb(monkeypatch):
    """A function that puts a FakeWandb in wandb's place."""
    made = []

    def install(**faults) -> FakeWandb:
        made.append(FakeWandb(**faults))
        monkeypatch.setitem(sys.modules, "wandb", made[-1])
        return made[-1]
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(background, "FINISH_SECONDS", 10.0)
    yield install
    for fake in made:
        fake.free.set()


def logged(tmp_path, rows=3):
    config = Config(wandb_project="project", wandb_group="sweep", wandb_tags="first, try", lr=1.0)
    sink = WandbSink(config, tmp_path / "run")
    for step in range(rows):
        sink(trainer_at(step), {"losses/entropy": 0.5})
    sink.close()
    return sink


def test_wandb_gets_every_iteration_and_the_settings(wandb, tmp_path, capsys):
    fake = wandb()
    assert not logged(tmp_path).hung
    assert fake.rows == [(i, {"global_step": i, "losses/entropy": 0.5}) for i in range(3)]
    assert (fake.modes, fake.ended) == (["online"], True)
    assert (fake.given["project"], fake.given["name"]) == ("project", "run")
    assert fake.given["config"]["lr"] == 1.0
    assert [fake.given[name] for name in ("entity", "group", "tags")] == [
        None, "sweep", ("first", "try")]
    assert fake.given["settings"]["save_code"] is False
    assert capsys.readouterr().err == "note: wandb: https://wandb.test/run\n"


def test_a_resumed_run_goes_on_with_the_same_run_of_wandbs(wandb, trainer, tmp_path):
    fakes = [wandb()]
    with trainer("CartPole-v1", logger="wandb", run_dir=str(tmp_path / "run")) as ppo:
        ppo.learn(64)
    fakes.append(wandb())
    with PPO.resume(tmp_path / "run", total_steps=96, run_dir=str(tmp_path / "run")) as ppo:
        ppo.learn()
    ids = [fake.given["id"] for fake in fakes]
    assert ids[0] == ids[1] and [fake.given["resume"] for fake in fakes] == ["allow"] * 2


def test_without_an_account_wandb_is_offline_and_says_so_in_one_line(wandb, tmp_path, capsys):
    fake = wandb(account=False)
    logged(tmp_path)
    assert fake.modes == ["offline"] and len(fake.rows) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "wandb: offline, writing to" in err
    assert "(later: wandb login && wandb sync" in err


def test_wandbs_own_mode_is_respected(wandb, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    fake = wandb()
    logged(tmp_path)
    assert fake.modes == ["offline"] and "wandb: offline" in capsys.readouterr().err


@pytest.mark.parametrize("project", ["a/b:c", "#?%\\", "x" * 129], ids=["few", "all", "long"])
def test_a_project_that_wandb_refuses_is_an_error_at_once(project):
    def asked(**settings):
        config = Config(**settings)
        check([one for one in CONFLICTS if one.about == "wandb_project"], case_of(config, config))
    asked(wandb_project=project, logger="trackio")
    with pytest.raises(ConfigError, match="but wandb takes.*\n  fix: leave wandb_project out"):
        asked(wandb_project=project, logger="wandb")
    for fits in ("x" * 128, "a-b c"):
        asked(wandb_project=fits, logger="wandb")


def test_wandb_that_cannot_be_reached_goes_on_offline(wandb, tmp_path, capsys):
    fake = wandb(init=TimeoutError("no network\nlong story"))
    logged(tmp_path)
    assert fake.modes == ["online", "offline"] and len(fake.rows) == 3
    assert capsys.readouterr().err == "note: wandb: TimeoutError: no network; going on offline\n"


@pytest.mark.parametrize("what", ["log", "finish"])
@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), SystemExit(1)])
def test_wandb_that_raises_is_noted_once(wandb, tmp_path, capsys, what, fault):
    wandb(**{what: fault})
    assert not logged(tmp_path).hung
    assert capsys.readouterr().err.count("going on without it") == 1


@pytest.mark.parametrize("what", ["init", "log", "finish"])
def test_wandb_that_blocks_is_left_behind(wandb, tmp_path, capsys, monkeypatch, what):
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.05)
    wandb(**{what: "blocks"})
    assert logged(tmp_path).hung
    assert capsys.readouterr().err.count("did not finish within") == 1


def test_wandb_that_does_not_keep_up_misses_rows_and_says_so_once(wandb, tmp_path, capsys,
                                                                 monkeypatch):
    monkeypatch.setattr(background, "QUEUE_LIMIT", 2)
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.05)
    wandb(init="blocks")
    assert logged(tmp_path, rows=5).rows.qsize() == 3  # two rows and the end
    assert capsys.readouterr().err.count("misses some iterations") == 1


def test_without_the_package_wandb_is_refused_before_anything_is_made(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r'fastppo\[wandb\]'):
        PPO("CartPole-v1", logger="wandb", run_dir=str(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def test_the_folder_that_wandb_leaves_behind_is_not_the_package(monkeypatch, tmp_path):
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert is_missing("wandb") and not is_missing("torch")


# all of it



@pytest.mark.parametrize("fault", [{}, {"log": "blocks"}, {"init": ValueError("no")}])
def test_training_is_the_same_to_the_bit_with_and_without_sinks(trainer, wandb, tmp_path,
                                                                monkeypatch, capsys, fault):
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.05)
    alone = trainer("CartPole-v1").learn(96)
    wandb(**fault)
    told = trainer("CartPole-v1", run_dir=str(tmp_path / "run"), logger="wandb", progress="lines")
    told.learn(96)
    told.close()
    assert torch.equal(weights(told), weights(alone))
    assert len(table(tmp_path / "run" / "metrics.csv")) == 3
    assert "step 96 100%" in capsys.readouterr().out


def test_the_page_of_metrics_names_exactly_what_a_run_logs(trainer, tmp_path):
    trainer("CartPole-v1", run_dir=str(tmp_path), eval_interval=128, eval_episodes=2,
            video_interval=128).learn(128)
    row = table(tmp_path / "metrics.csv")[-1]
    assert all(row.values())  # every metric has a value by now
    told = re.findall(r"(?m)^\| `(\w+(?:/\w+)?)` \| .*\|$", PAGE.read_text(encoding="utf-8"))
    assert sorted(name for name in told if not name.startswith("faults/")) == sorted(
        name for name in row if not name.startswith("actions/"))


def test_the_page_of_metrics_names_every_fault_that_is_counted():
    told = {*re.findall(r"`(faults/\w+)`", PAGE.read_text(encoding="utf-8"))}
    assert told == {name for path in PACKAGE
                    for name in re.findall(r'"(faults/\w+)"', path.read_text(encoding="utf-8"))}
