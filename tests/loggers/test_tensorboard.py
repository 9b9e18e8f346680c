"""The sinks for TensorBoard and trackio: what they write, how a run is resumed, what may fail."""

import itertools
import os
import sys
import threading
import time
import types

import pytest
import torch
from asked_of_runs import table, weights

from fastppo import PPO, Config
from fastppo.errors import ConfigError, fix_text
from fastppo.loggers import background
from fastppo.loggers.tensorboard import TensorBoardSink, markdown_table
from fastppo.loggers.trackio import TrackioSink
from fastppo.trainer import run

CONFIG = Config(env_name="CartPole-v1", seed=1, env_kwargs={"password": "x", "a": "b|c"})


def rows_of(sink, values):
    """Gives a sink the metrics {"losses/entropy": value} at each step of `values`; closes it."""
    for step, value in values.items():
        sink(types.SimpleNamespace(step=step), {"losses/entropy": value})
    sink.close()
    return sink


def events(folder):
    """The events in a folder, as TensorBoard reads them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return accumulator.EventAccumulator(str(folder)).Reload()


def points(folder, name="losses/entropy"):
    return [(point.step, point.value) for point in events(folder).Scalars(name)]


# TensorBoard

def test_tensorboard_gets_every_metric_at_its_environment_step(tmp_path, trainer):
    pytest.importorskip("tensorboard")
    with trainer("CartPole-v1", logger="tensorboard", run_dir=str(tmp_path)) as ppo:
        ppo.learn(96)
    found, rows = events(tmp_path), table(tmp_path / "metrics.csv")
    named = {name for row in rows for name, value in row.items() if value} - {"global_step"}
    assert {*found.Tags()["scalars"]} == named
    assert points(tmp_path) == [(int(row["global_step"]), pytest.approx(
        float(row["losses/entropy"]))) for row in rows]
    assert [step for step, _ in points(tmp_path)] == [32, 64, 96]


def test_tensorboard_shows_the_settings_as_a_table_without_passwords(tmp_path):
    pytest.importorskip("tensorboard")
    rows_of(TensorBoardSink(CONFIG, tmp_path, None), {32: 0.5})
    event, = events(tmp_path).Tensors("hyperparameters/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert text.startswith("| setting | value |\n|---|---|\n| env_name | \"CartPole-v1\" |\n")
    assert "| gamma | 0.99 |" in text and '"password": "***"' in text
    assert event.step == 0


def test_a_bar_in_a_setting_does_not_end_its_cell():
    assert markdown_table({"a": "b|c"}).endswith('| a | "b\\|c" |')


@pytest.fixture
def later(monkeypatch):
    """Every file is a second newer: TensorBoard reads them by name, which has the seconds."""
    clock = itertools.count(int(time.time()))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))


def test_a_resumed_run_has_no_point_twice_in_tensorboard(tmp_path, later):
    pytest.importorskip("tensorboard")
    rows_of(TensorBoardSink(CONFIG, tmp_path, None), {32: 1.0, 64: 2.0, 96: 3.0})
    rows_of(TensorBoardSink(CONFIG, tmp_path, 64), {96: 4.0, 128: 5.0})
    assert points(tmp_path) == [(32, 1.0), (64, 2.0), (96, 4.0), (128, 5.0)]


def test_a_new_run_hides_the_points_of_an_older_one_in_its_folder(tmp_path, later):
    pytest.importorskip("tensorboard")
    rows_of(TensorBoardSink(CONFIG, tmp_path, None), {32: 1.0, 64: 2.0})
    rows_of(TensorBoardSink(CONFIG, tmp_path, None), {16: 3.0})
    assert points(tmp_path) == [(16, 3.0)]


def test_a_run_resumed_from_its_checkpoint_goes_on_in_tensorboard(tmp_path, trainer, later):
    pytest.importorskip("tensorboard")
    settings = {"logger": "tensorboard", "run_dir": str(tmp_path), "total_steps": 128}
    with trainer("CartPole-v1", **settings) as ppo:
        ppo.learn(64)
    with PPO.resume(tmp_path) as ppo:
        ppo.learn()
    assert [step for step, _ in points(tmp_path)] == [32, 64, 96, 128]


# SummaryWriter's thread prints its traceback.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_costs_a_run_its_events_alone(tmp_path, trainer, capsys):
    pytest.importorskip("tensorboard")
    if not os.path.exists("/dev/full"):
        pytest.skip("no device that is full")
    alone = trainer("CartPole-v1").learn(96)
    told = trainer("CartPole-v1", logger="tensorboard", run_dir=str(tmp_path / "run"))
    told.learn(32)
    sink = next(sink for sink in told.sinks if isinstance(sink, TensorBoardSink))
    while not sink.rows.empty():
        sink.thread.join(0.01)
    path, = (tmp_path / "run").glob("events.*")
    os.symlink("/dev/full", tmp_path / "full")
    os.replace(tmp_path / "full", path)
    told.learn(96)
    told.close()
    assert torch.equal(weights(told), weights(alone))
    assert len(table(tmp_path / "run" / "metrics.csv")) == 3
    assert capsys.readouterr().err == (
        "note: tensorboard: OSError: [Errno 28] No space left on device; going on without it\n")


def test_a_folder_that_cannot_be_made_is_a_note(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    rows_of(TensorBoardSink(CONFIG, tmp_path / "file", None), {32: 1.0})
    err = capsys.readouterr().err
    assert err.startswith("note: tensorboard: FileExistsError") and err.count("\n") == 1


def test_tensorboard_without_a_folder_is_refused_with_one():
    pytest.importorskip("tensorboard")
    with pytest.raises(ConfigError, match="run_dir is None") as caught:
        PPO("CartPole-v1", logger="tensorboard")
    assert fix_text(caught.value.fix, shell=False) == 'run_dir="runs/my_run"'


@pytest.mark.parametrize("name", ["tensorboard", "trackio"])
def test_a_logger_that_is_not_installed_is_refused_before_anything_is_made(
        name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf'fastppo\[{name}\]'):
        PPO("CartPole-v1", logger=name, run_dir=str(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


# trackio

class FakeTrackio(types.ModuleType):
    """A trackio that keeps its rows by run, or whose log raises or blocks."""

    def __init__(self, fault=None):
        super().__init__("trackio")
        self.runs, self.given, self.fault, self.histograms = {}, [], fault, []
        self.free, self.ended = threading.Event(), 0
        self.SQLiteStorage = self  # of trackio.sqlite_storage
        self.Histogram = self.Video = lambda *value, **given: value or given

    def init(self, project, name, **given):
        self.given.append(given | {"project": project})
        rows = self.runs.setdefault(name, [])

        def log(row, step):
            if self.fault == "blocks":
                self.free.wait()
            elif self.fault:
                raise self.fault
            rows.append((step, row["losses/entropy"]))
            self.histograms += [value for name, value in row.items() if "histogram" in name]
        return types.SimpleNamespace(project=project, name=name, id="1", log=log,
                                     finish=self.finish)

    def get_max_step_for_run(self, project, name, run_id):
        return max((step for step, _ in self.runs[name]), default=None)

    def finish(self):
        self.ended += 1


@pytest.fixture
def trackio(monkeypatch):
    """A function that puts a FakeTrackio in trackio's place."""
    made = []

    def install(fault=None) -> FakeTrackio:
        made.append(FakeTrackio(fault))
        for name in ("trackio", "trackio.sqlite_storage"):
            monkeypatch.setitem(sys.modules, name, made[-1])
        return made[-1]
    yield install
    for fake in made:
        fake.free.set()


def test_trackio_gets_every_row_the_settings_and_a_name_of_the_runs_own(trackio, tmp_path):
    fake, config = trackio(), CONFIG.replace(wandb_project="mine", wandb_group="sweep")
    sinks_made = [rows_of(TrackioSink(config, tmp_path / "run"), {32: 1.0, 64: 2.0})
                  for _ in range(2)]
    assert [*fake.runs.values()] == [[(32, 1.0), (64, 2.0)]] * 2 and fake.ended == 2
    assert [*fake.runs] == [sink.state for sink in sinks_made]
    assert all(name.startswith("run-") for name in fake.runs)
    assert (fake.given[0]["project"], fake.given[0]["group"]) == ("mine", "sweep")
    assert fake.given[0]["config"]["env_kwargs"]["password"] == "***"
    assert (fake.given[0]["embed"], fake.given[0]["auto_log_gpu"]) == (False, False)


def test_a_resumed_run_goes_on_in_trackio_without_a_row_twice(trackio, tmp_path):
    fake, first = trackio(), TrackioSink(CONFIG, tmp_path / "run")
    rows_of(first, {32: 1.0, 64: 2.0, 96: 3.0})
    again = TrackioSink(CONFIG, tmp_path / "run")
    again.restore(first.state)
    rows_of(again, {96: 3.0, 128: 4.0})
    assert fake.runs == {first.state: [(32, 1.0), (64, 2.0), (96, 3.0), (128, 4.0)]}
    assert fake.given[1]["resume"] == "allow"


def test_a_checkpoint_holds_the_name_of_trackios_run(trackio, trainer, tmp_path):
    fake = trackio()
    with trainer("CartPole-v1", logger="trackio", run_dir=str(tmp_path), total_steps=128) as ppo:
        ppo.learn(64)
    with PPO.resume(tmp_path) as ppo:
        ppo.learn()
    rows, = fake.runs.values()
    assert [step for step, _ in rows] == [32, 64, 96, 128]


@pytest.mark.parametrize("fault, said", [
    (OSError("no database"), "note: trackio: OSError: no database; going on without it\n"),
    ("blocks", "note: trackio did not finish within 0.05 s; the run ends without it\n")])
def test_no_fault_of_trackio_changes_a_bit_or_says_more_than_a_line(
        fault, said, trackio, trainer, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.05 if fault == "blocks" else 10.0)
    alone = trainer("CartPole-v1").learn(96)
    trackio(fault)
    told = trainer("CartPole-v1", logger="trackio", run_dir=str(tmp_path / "run")).learn(96)
    told.close()
    assert torch.equal(weights(told), weights(alone))
    assert capsys.readouterr().err == said


def test_after_a_signal_several_loggers_wait_no_longer_than_one(tmp_path):
    loggers = [TensorBoardSink(CONFIG, tmp_path, None), TrackioSink(CONFIG, tmp_path)]
    run.shorten_waits([lambda *_: None, *loggers])
    assert sum(sink.patience for sink in loggers) == run.STOP_SECONDS


def test_several_loggers_get_the_same_rows(trackio, trainer, tmp_path):
    pytest.importorskip("tensorboard")
    fake = trackio()
    with trainer("CartPole-v1", logger=("tensorboard", "trackio"), run_dir=str(tmp_path)) as ppo:
        ppo.learn(64)
    rows, = fake.runs.values()
    assert rows == [(step, pytest.approx(value)) for step, value in points(tmp_path)]
    found, = events(tmp_path).Histograms("actions/histogram_0")  # a reader keeps the last one
    counts, edges = fake.histograms[-1]["np_histogram"]
    assert found.step == 64 and counts.sum() == 32
    assert list(found.histogram_value.bucket) == counts.tolist()
    assert list(found.histogram_value.bucket_limit) == edges[1:].tolist() == [0.5, 1.5]
    assert found.histogram_value.sum == counts[1]
