"""Pictures of runs: what is drawn, what is said, and which files are written."""

import gymnasium
import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread
from run_folders import KL, RETURN, write_run, write_runs

from fastppo.cli.plot import PICTURE_FORMATS
from fastppo.errors import ConfigError
from fastppo.machine.file_access import check_output
from fastppo.reports import curves
from fastppo.reports.curves import draw_groups, number_text, save_curve, save_curves
from fastppo.reports.density import COLUMNS, density, draw_density, save_density, window
from fastppo.reports.run_table import group_runs, read_runs
from fastppo.settings.known_names import SPEED


def grouped(*folders, labels=None):
    return group_runs([read_runs(str(folder)) for folder in folders], labels)


def axes_of(*folders, metric=RETURN, labels=None):
    axes, = draw_groups(grouped(*folders, labels=labels), metric).axes
    return axes


def texts(axes):
    return [text.get_text() for text in axes.texts]


def is_right_of(text, axes):
    """True if a text is within the figure, and right of everything that is drawn in the axes."""
    axes.figure.draw_without_rendering()
    box = text.get_window_extent()
    return axes.bbox.x1 < box.x0 and box.x1 < axes.figure.bbox.x1


# several runs

def test_few_runs_are_drawn_beside_their_mean(tmp_path):
    axes = axes_of(write_runs(tmp_path / "a", [10.0, 20.0, 60.0]))
    *single, mean = axes.lines
    assert [line.get_ydata()[-1] for line in single] == [10, 20, 60]
    assert mean.get_ydata().tolist() == [1, 30] and mean.get_xdata().tolist() == [100, 200]
    assert len(axes.collections) == 1 and axes.get_legend() is None
    assert axes.get_title("left") == "CartPole-v1"
    assert texts(axes)[0] == "mean over 3 runs; shade: its 95 % interval"


def test_many_runs_are_drawn_as_their_mean_alone(tmp_path):
    axes = axes_of(write_runs(tmp_path / "a", [10.0] * 6))
    assert len(axes.lines) == 1 and len(axes.collections) == 1


def test_two_runs_have_no_interval(tmp_path):
    axes = axes_of(write_runs(tmp_path / "a", [10.0, 20.0]))
    assert not axes.collections and texts(axes)[0] == "mean over 2 runs"


def test_one_run_is_one_line_with_its_seed(tmp_path):
    axes = axes_of(write_run(tmp_path / "a", [10.0, 20.0], seed=4))
    assert len(axes.lines) == 1 and not axes.collections
    assert texts(axes)[0] == "seed 4"


def test_a_run_of_one_row_is_a_dot(tmp_path):
    assert axes_of(write_run(tmp_path / "a", [10.0])).lines[0].get_marker() == "o"


def test_several_groups_have_a_legend_and_colours_of_their_own(tmp_path):
    axes = axes_of(write_runs(tmp_path / "a", [1.0, 2.0]), write_runs(tmp_path / "b", [3.0]),
                   labels=("small", "large_$x{"))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "small (2 runs)", "large_$x{"]
    assert len({line.get_color() for line in axes.lines}) == 2


def test_each_environment_has_a_panel_with_its_own_axis_and_groups(tmp_path):
    write_run(tmp_path / "a", [10.0], settings={"lr": 0.001})
    write_run(tmp_path / "b", [20.0], settings={"lr": 0.002})
    write_run(tmp_path / "c", [-900.0], env_name="Pendulum-v1")
    for labels in (None, ["one", "two", "one"]):
        cart, pendulum = draw_groups(grouped(*map(tmp_path.joinpath, "abc"), labels=labels),
                                     RETURN).axes
        assert [axes.get_title("left") for axes in (cart, pendulum)] == ["CartPole-v1",
                                                                        "Pendulum-v1"]
        assert [line.get_ydata()[-1] for line in cart.lines[:2]] == [10, 20]
        assert pendulum.lines[0].get_ydata()[-1] == -900 and pendulum.get_legend() is None
        assert [text.get_text() for text in cart.get_legend().get_texts()] == (
            labels and labels[:2] or ["lr=0.001", "lr=0.002"])


def test_many_environments_have_four_small_panels_in_a_row(tmp_path):
    for number in range(5):
        write_run(tmp_path / str(number), [1.0, 2.0], env_name=f"Env{number}-v0")
    figure = draw_groups(grouped(tmp_path), RETURN)
    assert [axes.get_subplotspec().get_geometry() for axes in figure.axes] == [
        (2, 4, place, place) for place in range(5)]


def test_curves_by_seconds_have_steps_over_speed_below(tmp_path):
    runs = grouped(write_run(tmp_path / "a", [1.0, 2.0], **{SPEED: [50.0, 80.0]}))
    axes, = draw_groups(runs, RETURN, by_seconds=True).axes
    assert axes.lines[0].get_xdata().tolist() == [100 / 50, 200 / 80]
    assert axes.get_xlabel() == "seconds of training"


def test_curves_by_seconds_need_a_speed(tmp_path):
    runs = grouped(write_run(tmp_path / "a", [1.0, 2.0]))
    with pytest.raises(ConfigError, match='no metric "charts/SPS"'):
        draw_groups(runs, RETURN, by_seconds=True)


def test_steps_are_written_short(tmp_path):
    axes = axes_of(write_run(tmp_path / "a", [1.0, 2.0], steps=[200_000, 1_200_000]))
    write = axes.xaxis.get_major_formatter()
    assert [write(x) for x in (0, 400_000, 1_200_000)] == ["0", "400k", "1.2M"]
    assert axes.get_xlim()[0] == 0


@pytest.mark.parametrize("end", [1, 3, 64])
def test_ticks_are_at_whole_steps(tmp_path, end):
    run, = grouped(write_run(tmp_path / "a", [1.0], steps=[end], episodes=[(end, 5.0, 3)]))
    for axes in (*draw_groups([run], RETURN).axes, *draw_density(run, RETURN).axes):
        ticks = axes.get_xticks()
        assert len(ticks) > 1 and (ticks == np.round(ticks)).all()


def test_numbers_have_commas_and_a_minus_sign():
    assert [number_text(one) for one in (1e6, -12345.5, 0.1 + 0.2, 2e-5)] == [
        "1,000,000", "\N{MINUS SIGN}12,345.5", "0.3", "2e\N{MINUS SIGN}05"]


# the solved mark

@pytest.mark.parametrize("metric, returns, marked", [
    (RETURN, [100.0, 300.0], True),
    (RETURN, [1.0, 9.0], False),  # the curve would be flat
    (RETURN, [5000.0, 5001.0], False),
    ("losses/approx_kl", [475.0, 475.0], False),
])
def test_the_solved_mark_is_where_it_belongs(tmp_path, metric, returns, marked):
    axes = axes_of(write_run(tmp_path / "a", returns), metric=metric)
    threshold = gymnasium.spec("CartPole-v1").reward_threshold
    assert ("solved\n475" in texts(axes)) == marked
    if marked:
        assert is_right_of(axes.texts[-1], axes)
        assert axes.lines[-1].get_ydata() == [threshold, threshold]
        assert axes.get_ylim()[1] > threshold


def test_an_environment_that_no_id_names_has_no_mark(tmp_path):
    axes = axes_of(write_run(tmp_path / "a", [100.0, 300.0], env_name="never_imported:MyEnv"))
    assert len(axes.lines) == 1


# files

@pytest.mark.parametrize("name, start", [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"),
                                         ("a.PDF", b"%PDF")])
def test_the_ending_is_the_format(tmp_path, name, start):
    path = save_curves(grouped(write_runs(tmp_path / "a", [1.0, 2.0])), RETURN, tmp_path / name)
    assert path.read_bytes().startswith(start)


def test_a_picture_is_large_enough_for_a_screen_with_small_dots(tmp_path):
    path = save_curves(grouped(write_run(tmp_path / "a", [1.0, 2.0])), RETURN, tmp_path / "a.png")
    assert imread(path).shape[:2] == (800, 1400)


@pytest.mark.parametrize("path, says", [
    ("a.jpg", "no name that ends with .png or .svg or .pdf"), ("a", "no name that ends"),
    (".svg", "no name that ends"), (".", "is a folder"), ("/", "is a folder"),
    ("gone/a.png", "no folder gone")])
def test_a_file_that_cannot_be_is_refused(path, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        check_output(tmp_path.relative_to(tmp_path) / path, PICTURE_FORMATS)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        save_curves(grouped(write_run(tmp_path / "a", [1.0])), RETURN, tmp_path / "a.png")


def test_a_disk_that_is_full_keeps_the_old_picture_and_leaves_no_other(tmp_path, monkeypatch):
    def full(figure, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")
    run = write_run(tmp_path / "a", [1.0])
    save_curves(grouped(run), RETURN, tmp_path / "a.png")
    old = (tmp_path / "a.png").read_bytes()
    monkeypatch.setattr(curves.Figure, "savefig", full)
    with pytest.raises(ConfigError, match="cannot write .*a.png: No space left on device"):
        save_curves(grouped(run), RETURN, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == old
    assert {path.name for path in tmp_path.iterdir()} == {"a", "a.png"}


def test_drawing_leaves_matplotlibs_settings_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 17.0)
    before = dict(matplotlib.rcParams)
    save_curve(write_run(tmp_path / "a", [1.0, 2.0]))
    assert dict(matplotlib.rcParams) == before


# the curve of one run

def test_a_runs_curve_is_in_its_folder(tmp_path):
    folder = write_run(tmp_path / "a", [100.0, 200.0])
    assert save_curve(folder) == folder / "curve.png"
    assert imread(folder / "curve.png").shape[:2] == (800, 1400)
    with pytest.raises(ConfigError, match="no complete row"):
        save_curve(write_run(tmp_path / "b", []))
    with pytest.raises(ConfigError, match="has no finite value"):
        save_curve(write_run(tmp_path / "c", [None, None]))


def test_a_long_label_is_shortened():
    assert curves.short("x" * 51) == "x" * 47 + "..." and curves.short("x" * 50) == "x" * 50
    assert curves.short("lr=0.001") == "lr=0.001"


def test_the_title_of_a_run_fits_above_its_curve(tmp_path):
    name = "my_package.environments_of_mine:MyEnvironmentWithALongName"
    figure = draw_groups(grouped(write_run(tmp_path / "a", [1.0], env_name=name)), RETURN)
    figure.draw_without_rendering()
    title, = [text for text in figure.axes[0].get_children()
              if getattr(text, "get_text", str)().startswith("my_package")]
    assert title.get_window_extent().x1 < figure.bbox.x1


# density

def test_the_density_at_a_step_is_that_of_the_episodes_around_it():
    steps = np.arange(400.0)
    values = np.where(steps < 200, 0.0, np.where(steps % 2, 10.0, 30.0))
    around = window(steps, values, np.array([100.0, 300.0]))
    assert around.shape == (2, 20) and set(around[0]) == {0} and set(around[1]) == {10, 30}
    shade = density(around, np.array([0.0, 10.0, 20.0, 30.0]), 1.0)
    assert shade == pytest.approx(np.array([[1, 0, 0, 0], [0, 0.5, 0, 0.5]]), abs=1e-9)


def test_the_episodes_at_the_ends_of_a_run_and_of_a_short_one_are_all_that_there_are():
    steps = np.arange(5.0)
    assert window(steps, steps, np.array([0.0, 4.0])).tolist() == [[0, 1, 2, 3, 4]] * 2


def episodes_of(seed, count=50):
    return [(8 * i, i + seed, 10 + i) for i in range(count)]


@pytest.mark.parametrize("metric, name, middle", [(RETURN, "return", 25.0),
                                                  ("charts/episodic_length", "length", 35.0)])
def test_a_density_shows_the_single_episodes_of_all_runs(tmp_path, metric, name, middle):
    for seed in (0, 1):
        write_run(tmp_path / "a" / str(seed), [5.0], episodes=episodes_of(seed))
    axes = draw_density(*grouped(tmp_path / "a"), metric).axes[0]
    assert texts(axes)[0] == ("100 episodes of 2 runs (dots); shade: density of the 10 around a"
                              " step; line: their median")
    _, medians, dots, *_ = axes.lines  # the dots are above the line
    assert len(dots.get_xdata()) == 100 and (np.diff(dots.get_xdata()) >= 0).all()
    assert np.interp(200, *medians.get_data()) == pytest.approx(middle, abs=2)
    assert axes.get_ylabel() == f"{name} of an episode"


@pytest.mark.parametrize("returns, shade", [
    ([9.0, 200.0, 500.0, 500.0], [9, 500]), ([500.0] * 4, [500, 500]),
])
def test_the_shade_fades_around_the_returns_between_the_steps_of_episodes(tmp_path, returns, shade):
    run = write_run(tmp_path / "a", [5.0, 7.0], steps=[400, 800], episodes=[
        (100 * i, one, 10) for i, one in enumerate(returns, start=1)])
    axes = draw_density(*grouped(run), RETURN).axes[0]
    mesh, = axes.collections
    steps, levels = mesh.get_coordinates().reshape(-1, 2).T
    assert [steps.min(), steps.max()] == [100, 400] and axes.get_xlim() == (0, 816)  # the run's end
    low, high = axes.get_ylim()
    assert low <= levels.min() < shade[0] and shade[1] < levels.max() <= high
    rows = mesh.get_array().reshape(120, 240)
    assert rows[-1].max() < 0.01 < rows.max()


def test_the_solved_mark_is_beside_the_shade(tmp_path):
    run = write_run(tmp_path / "a", [5.0], episodes=[(10, 9.0, 9), (90, 500.0, 500)])
    axes = draw_density(*grouped(run), RETURN).axes[0]
    assert texts(axes)[-1] == "solved\n475" and is_right_of(axes.texts[-1], axes)


def test_a_density_of_many_episodes_leaves_out_the_dots(tmp_path):
    write_run(tmp_path / "a", [5.0], episodes=episodes_of(0, 3_001))
    axes = draw_density(*grouped(tmp_path / "a"), RETURN).axes[0]
    assert texts(axes)[0].startswith("3,001 episodes; shade: density of the 100 around")
    assert max(len(line.get_xdata()) for line in axes.lines) == COLUMNS


def test_a_density_needs_one_group_whose_runs_have_their_episodes(tmp_path):
    a, b = (write_run(tmp_path / name, [5.0, 7.0], episodes=episodes_of(0, count))
            for name, count in (("a", 1), ("b", 0)))
    with pytest.raises(ConfigError, match="one group of runs, and there are 2: x; y"):
        save_density(grouped(a, b, labels=("x", "y")), RETURN, tmp_path / "d.png")
    with pytest.raises(ConfigError, match="needs episodes.csv, the single episodes, and"
                       " there is none beside .*b/metrics.csv"):
        save_density(grouped(a, b), RETURN, tmp_path / "d.png")
    with pytest.raises(ConfigError, match=f"single episodes, which have no {KL}"):
        save_density(grouped(a), KL, tmp_path / "d.png")
    assert save_density(grouped(a), RETURN, tmp_path / "d.svg").exists()
