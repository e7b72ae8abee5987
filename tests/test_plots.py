"""Every plot draws what it is given, in one look, into any Axes, and refuses arrays that do not
belong together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest

from fourpoint.events import UserError
from fourpoint.events.dates import Dates
from fourpoint.plots import charts as plots
from fourpoint.plots.charts import intensity_plot, plot_style
from fourpoint.plots.forecast import counts_plot


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


T = np.linspace(0.0, 24.0, 49)
RATE = np.stack([2 + np.sin(T), 1 + np.cos(T) ** 2], 1)
EVENTS, MARKS = np.array([1.0, 3.0, 9.0]), np.array([0, 1, 1])


def texts(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_intensity_draws_a_line_per_mark_and_a_row_of_ticks_per_mark() -> None:
    ax = plots.intensity_plot(
        T, RATE, events=EVENTS, event_marks=MARKS, names=["fire", "medical"], unit="h"
    )
    np.testing.assert_allclose(ax.lines[1].get_ydata(), RATE[:, 1])
    assert [len(c.get_segments()) for c in ax.collections] == [1, 2]
    assert all(segment[:, 1].max() < 0 for c in ax.collections for segment in c.get_segments())
    assert texts(ax) == ["fire", "medical"]
    assert min(ax.get_yticks()) >= 0
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time (h)", "rate (events per h)")


def test_stacked_areas_end_in_the_total() -> None:
    ax = plots.intensity_plot(T, RATE, stacked=True)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), RATE.sum(1))
    assert len(ax.collections) == 2


def test_intensity_shows_truth_and_window() -> None:
    ax = plots.intensity_plot(T, RATE[:, 0], truth=RATE[:, 1], window=(12.0, 24.0))
    np.testing.assert_allclose(ax.lines[1].get_ydata(), RATE[:, 1])
    assert "truth" in texts(ax) and len(ax.patches) == 1


def test_kernel_has_one_named_line_per_head() -> None:
    ax = plots.kernel_plot(T, [np.exp(-T), np.cos(T), -np.cos(T)], unit="h")
    assert texts(ax) == ["head 1", "head 2", "head 3"]
    heights = [text.xy[1] for text in ax.texts]
    assert min(abs(a - b) for i, a in enumerate(heights) for b in heights[:i]) > 0.05, (
        "labels cover each other"
    )


def test_spectrum_is_a_scatter_with_decays_and_a_density_without() -> None:
    frequency = np.array([[-0.1, 0.2, 0.4], [1.0, 2.0, 3.0]])
    ax = plots.spectrum_plot(frequency, np.full((2, 3), 0.5), unit="h")
    assert ax.collections[0].get_offsets()[:, 0].tolist() == [0.1, 0.2, 0.4]
    dense = plots.spectrum_plot(frequency, np.zeros((2, 3)))
    assert dense.get_ylabel() == "density"
    x, y = dense.lines[1].get_data()
    assert np.trapezoid(y, x) == pytest.approx(1.0, abs=0.01)


def test_wide_spectra_get_logarithmic_axes() -> None:
    ax = plots.spectrum_plot(
        [np.geomspace(0.001, 10, 50)], [np.concatenate([[0.0], np.geomspace(0.001, 10, 49)])]
    )
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "symlog")


def test_learning_curve_marks_the_best_step_and_skips_what_was_not_measured() -> None:
    ax = plots.learning_curve_plot(
        [0, 50, 100],
        [-3.0, -2.2, -2.0],
        [np.nan, -2.3, -2.4],
        best_step=50,
        references={"Hawkes": -2.5},
    )
    assert "best at step 50" in texts(ax) and {"train", "dev", "Hawkes"} <= set(texts(ax))
    assert ax.lines[2].get_xdata().tolist() == [50.0, 100.0]


def test_attention_as_stems_and_as_a_lower_triangle() -> None:
    ax = plots.attention_plot(
        EVENTS, [0.1, -0.2, 0.7], at=10.0, event_marks=MARKS, names=["fire", "medical"]
    )
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["fire", "medical"]
    square = plots.attention_plot(EVENTS, np.full((3, 3), 0.5), label="weight")
    shown = square.images[0].get_array()
    assert (
        shown is not None
        and np.ma.getmaskarray(shown).tolist() == np.triu(np.ones((3, 3), bool)).tolist()
    )


def test_comparison_puts_the_best_on_top_and_starts_at_the_baseline() -> None:
    ax = plots.comparison_plot(
        ["DAPP", "Poisson", "Hawkes"], [-1.0, -1.5, -1.2], baseline="Poisson"
    )
    assert [label.get_text() for label in ax.get_yticklabels()] == ["Poisson", "Hawkes", "DAPP"]
    assert [round(bar.get_x(), 6) for bar in ax.patches] == [-1.5] * 3
    assert [round(bar.get_width(), 6) for bar in ax.patches] == [0.0, 0.3, 0.5]


def test_a_given_axes_is_used_and_the_user_s_own_settings_stay() -> None:
    import matplotlib
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    _, ax = plt.subplots()
    assert plots.kernel_plot(T, np.exp(-T), ax=ax) is ax
    assert dict(matplotlib.rcParams) == before


def test_more_things_than_colours_still_differ() -> None:
    assert len(set(plots.colours(20))) == 20
    assert len(plots.DARK) == 4 + len(plots.COLOURS)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(UserError, match="expected one rate per time .49 of them.; received 3"):
        plots.intensity_plot(T, [1.0, 2.0, 3.0])
    with pytest.raises(UserError, match="one weight per past event"):
        plots.attention_plot(EVENTS, [1.0])


@pytest.mark.parametrize(("style", "width", "size"), [("paper", 3.4, 8.0), ("slides", 11.0, 17.0)])
def test_a_style_sets_the_width_and_the_letters(
    style: Literal["paper", "slides"], width: float, size: float
) -> None:
    with plot_style(style):
        ax = intensity_plot([0.0, 1.0], [1.0, 2.0], unit="h")
    assert float(ax.figure.get_size_inches()[0]) == width
    assert ax.xaxis.label.get_size() == size
    assert intensity_plot([0.0, 1.0], [1.0, 2.0]).figure.get_size_inches()[0] == 10


def test_an_unknown_style_is_refused() -> None:
    unknown: Any = "poster"
    with pytest.raises(UserError, match="a style among screen, paper, slides"), plot_style(unknown):
        pass


def test_counts_and_rates_show_dates() -> None:
    dates = Dates(1748908800.0, "hours", "Europe/Berlin")
    for ax in (
        counts_plot([0, 1, 2], [3.0, 4.0], [1, 1], [6, 8], dates=dates),
        intensity_plot([0.0, 2.0], [1.0, 2.0], dates=dates),
    ):
        assert ax.get_xlabel() == "local time (Europe/Berlin)"
