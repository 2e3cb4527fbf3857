import io
import pathlib
import runpy

import matplotlib.pyplot as plt
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter

from keras_transformer.plotting import (
    plot_attention,
    plot_attention_heads,
    plot_attention_pattern,
    plot_confusion_matrix,
    plot_positional_encoding,
    plot_positional_encoding_waves,
    plot_schedule,
    plot_token_attention,
)

pytestmark = pytest.mark.once("torch")

QUERIES = ["une", "chaise", "bleue"]
KEYS = ["a", "blue", "chair", ".", "[END]"]
ODD_TOKENS = ["猫", "नमस्ते", "مرحبا", "$x^{", "", " ", "\n", "\ud800", "_a", "a" * 29]


@pytest.fixture
def scores():
    raw = np.random.default_rng(7).random((7, len(QUERIES), len(KEYS)))
    return raw / raw.sum(axis=-1, keepdims=True)


def render(figure):
    """Renders a figure as `savefig` does; every warning is an error."""
    figure.savefig(io.BytesIO(), format="png", dpi=50)
    return figure


def labels(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def drawn(axes):
    return np.asarray(axes.collections[0].get_array())


def attention_heads(scores, *tokens):
    return plot_attention_heads(scores[None], *tokens)


class TestAttention:
    def test_rows_are_queries_and_columns_are_keys(self, scores):
        axes, colorbar = render(plot_attention(scores[0], QUERIES, KEYS)).axes
        assert labels(axes.yaxis) == QUERIES
        assert labels(axes.xaxis) == KEYS
        assert axes.yaxis_inverted()
        np.testing.assert_array_equal(drawn(axes), scores[0])
        assert (axes.get_ylabel(), axes.get_xlabel()) == (
            "target tokens",
            "source tokens",
        )
        assert colorbar.get_ylabel() == "attention score"

    def test_labels_and_title(self, scores):
        figure = plot_attention(
            scores[0], QUERIES, KEYS, query_label="q", key_label="k", title="$t"
        )
        axes = render(figure).axes[0]
        assert axes.get_ylabel() == "q"
        assert axes.get_xlabel() == "k"
        assert axes.get_title() == "$t"

    def test_the_size_grows_with_the_tokens_up_to_a_limit(self):
        sizes = [
            plot_attention(np.ones((n, n)), ["a"] * n, ["b"] * n).get_size_inches()
            for n in (11, 23, 67, 131)
        ]
        assert (sizes[0] < sizes[1]).all()
        assert max(sizes[3]) < 17

    def test_scores_of_zero(self):
        figure = render(plot_attention(np.zeros((2, 3)), ["a", "b"], ["c", "d", "e"]))
        assert figure.axes[0].collections[0].get_clim() == (0, 1)


class TestAttentionHeads:
    def test_all_heads_share_a_colour_scale(self, scores):
        figure = render(plot_attention_heads(scores, QUERIES, KEYS))
        *heads, colorbar = figure.axes
        assert [axes.get_title() for axes in heads] == [
            f"head {number}" for number in range(1, 8)
        ]
        for axes, expected in zip(heads, scores, strict=True):
            np.testing.assert_array_equal(drawn(axes), expected)
            assert axes.collections[0].get_clim() == (0, scores.max())
        assert colorbar.get_ylabel() == "attention score"

    def test_only_the_outer_heads_have_token_labels(self, scores):
        *heads, _ = plot_attention_heads(scores, QUERIES, KEYS).axes
        assert [labels(axes.yaxis) == QUERIES for axes in heads] == [
            index in (0, 4) for index in range(7)
        ]
        assert [labels(axes.xaxis) == KEYS for axes in heads] == [
            index >= 3 for index in range(7)
        ]


class TestTokenAttention:
    def test_one_labelled_bar_per_key(self, scores):
        axes = render(plot_token_attention(scores[0, 1], KEYS, "chaise")).axes[0]
        assert [bar.get_width() for bar in axes.patches] == scores[0, 1].tolist()
        assert labels(axes.yaxis) == KEYS
        assert [text.get_text() for text in axes.texts] == [
            f"{score:.2f}" for score in scores[0, 1]
        ]
        assert axes.get_title() == "Attention of “chaise”"

    def test_repeated_tokens_have_separate_bars(self):
        axes = plot_token_attention([0.5, 0.3, 0.2], ["a", "b", "a"], "c").axes[0]
        assert len(axes.patches) == 3


@pytest.mark.parametrize("plot", [plot_attention, attention_heads])
def test_odd_tokens_on_both_axes(plot):
    size = len(ODD_TOKENS)
    axes = render(plot(np.eye(size), ODD_TOKENS, ODD_TOKENS)).axes[0]
    expected = [*ODD_TOKENS[:4], "''", "' '", "'\\n'", "'\\ud800'", *ODD_TOKENS[8:]]
    assert labels(axes.xaxis) == labels(axes.yaxis) == expected


@pytest.mark.parametrize("token", ODD_TOKENS)
def test_odd_token_as_query(token):
    render(plot_token_attention(np.ones(len(ODD_TOKENS)), ODD_TOKENS, token))


class TestAttentionPattern:
    MASK = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0]], bool)

    def test_rows_are_queries_and_columns_are_keys(self):
        figure = render(plot_attention_pattern(self.MASK))
        [axes] = figure.axes
        np.testing.assert_array_equal(drawn(axes) > 0, self.MASK)
        assert len(np.unique(drawn(axes))) == 2
        assert axes.yaxis_inverted() and not axes.xaxis_inverted()
        assert axes.get_aspect() == 1
        assert axes.get_title() == "Attention pattern"
        assert (figure.get_supylabel(), figure.get_supxlabel()) == ("queries", "keys")

    def test_the_diagonal_is_darker(self):
        causal = np.tri(7, dtype=bool)
        causal[3, 3] = False
        [axes] = plot_attention_pattern(causal).axes
        shades = drawn(axes)
        assert (shades[np.eye(7, dtype=bool) & causal] > shades[1, 0]).all()
        np.testing.assert_array_equal(shades > 0, causal)

    def test_several_patterns_of_any_sizes(self):
        masks = {f"${n}": np.ones((n, 13 - n)) for n in (1, 2, 3, 5, 7)}
        figure = render(plot_attention_pattern(masks))
        assert [axes.get_title() for axes in figure.axes] == list(masks)
        for axes, mask in zip(figure.axes, masks.values(), strict=True):
            assert drawn(axes).shape == mask.shape

    def test_a_long_sequence(self):
        render(plot_attention_pattern(np.eye(499)))


class TestConfusionMatrix:
    COUNTS = np.array([[6000, 0, 2], [1, 3, 0], [0, 0, 0]])

    def test_colours_are_parts_of_a_row_and_cells_have_counts(self):
        names = ["a", "$b", "c" * 31]
        figure = render(plot_confusion_matrix(self.COUNTS, names))
        axes, colorbar = figure.axes
        expected = [[6000 / 6002, 0, 2 / 6002], [0.25, 0.75, 0], [0, 0, 0]]
        np.testing.assert_allclose(drawn(axes).reshape(3, 3), expected)
        cells = [text.get_text() for text in axes.texts]
        assert cells == ["6,000", "", "2", "1", "3", "", "", "", ""]
        assert labels(axes.yaxis) == labels(axes.xaxis)
        assert labels(axes.yaxis) == ["a", "$b", "c" * 27 + "…"]
        assert (axes.get_ylabel(), axes.get_xlabel()) == (
            "correct class",
            "predicted class",
        )
        assert axes.yaxis_inverted()
        assert colorbar.get_ylabel() == "part of the correct class"

    @pytest.mark.parametrize(("size", "has_counts"), [(1, 1), (20, 1), (23, 0)])
    def test_many_classes_have_no_counts(self, size, has_counts):
        figure = render(plot_confusion_matrix(np.eye(size), ["name"] * size))
        assert len(figure.axes[0].texts) == has_counts * size**2
        assert max(figure.get_size_inches()) < 14


class TestPositionalEncoding:
    def test_image(self):
        encoding = np.sin(np.arange(11 * 7).reshape(11, 7))
        axes, colorbar = render(plot_positional_encoding(encoding)).axes
        image = axes.images[0]
        np.testing.assert_array_equal(np.asarray(image.get_array()), encoding)
        low, high = image.get_clim()
        assert low == -high == -np.abs(encoding).max()
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("dimension", "position")
        assert colorbar.get_ylabel() == "value"

    def test_waves_of_the_chosen_dimensions(self):
        encoding = np.arange(11 * 7).reshape(11, 7)
        figure = render(plot_positional_encoding_waves(encoding, dimensions=[5, 2]))
        assert [axes.get_title("left") for axes in figure.axes] == [
            "dimension 5",
            "dimension 2",
        ]
        for axes, dimension in zip(figure.axes, (5, 2), strict=True):
            np.testing.assert_array_equal(
                axes.lines[0].get_ydata(), encoding[:, dimension]
            )

    @pytest.mark.parametrize(("hidden_dim", "count"), [(1, 1), (3, 2), (64, 4)])
    def test_waves_by_default(self, hidden_dim, count):
        figure = render(plot_positional_encoding_waves(np.ones((5, hidden_dim))))
        assert len(figure.axes) == count


class TestSchedule:
    def test_curve_and_peak(self):
        rates = [1e-4, 3e-4, 2e-4]
        axes = render(plot_schedule(rates, steps=[500, 1500, 2500])).axes[0]
        assert axes.lines[0].get_xdata().tolist() == [500, 1500, 2500]
        assert axes.lines[0].get_ydata().tolist() == rates
        assert axes.texts[0].get_text() == "3.00e-04 at step 1,500"

    def test_steps_count_from_one(self):
        axes = plot_schedule([3.0, 2.0, 1.0]).axes[0]
        assert axes.lines[0].get_xdata().tolist() == [1, 2, 3]

    def test_rates_of_zero(self):
        render(plot_schedule([0.0, 0.0]))


def test_figures_of_the_documentation(tmp_path):
    docs = pathlib.Path(__file__).parents[1] / "docs"
    runpy.run_path(str(docs / "images.py"))["main"](tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    from_elsewhere = {
        "attention.png",  # made by examples/pronounce.py
        "page.png",  # a screenshot of the page of the server
        "search_tree.png",  # made by examples/pronounce.py
    }
    kept = {path.name for path in (docs / "images").iterdir()}
    assert made | from_elsewhere == kept
    assert all(path.stat().st_size < 60_000 for path in tmp_path.iterdir())
    text = "".join(page.read_text("utf-8") for page in docs.glob("*.md"))
    assert [name for name in kept if f"images/{name}" not in text] == []


def test_pyplot_and_its_settings_do_not_change(scores):
    before = dict(plt.rcParams)
    figures = plt.get_fignums()
    render(plot_attention(scores[0], QUERIES, KEYS))
    render(plot_attention_heads(scores, QUERIES, KEYS))
    assert plt.get_fignums() == figures
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize(
    ("plot", "arguments"),
    [
        (plot_attention, (np.ones((3, 5)), QUERIES, KEYS)),
        (plot_positional_encoding, (np.ones((3, 5)),)),
        (plot_schedule, (np.ones(3),)),
    ],
)
def test_a_notebook_displays_a_figure_without_pyplot(plot, arguments):
    data, _ = DisplayFormatter().format(plot(*arguments))
    assert data["image/png"].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plot_attention(np.ones((5, 3)), QUERIES, KEYS),
            r"`attention_scores` must have the shape \(query_length=3, key_length=5\); "
            r"received `attention_scores.shape=\(5, 3\)`. Select one item of the batch",
        ),
        (
            lambda: plot_attention_heads(np.ones((3, 5)), QUERIES, KEYS),
            r"\(num_heads, query_length=3, key_length=5\); received .*=\(3, 5\)`",
        ),
        (
            lambda: plot_token_attention(np.ones(3), KEYS, "a"),
            r"\(key_length=5\); received `attention_scores.shape=\(3,\)`",
        ),
        (
            lambda: plot_attention([[np.nan] * 5] * 3, QUERIES, KEYS),
            "`attention_scores` must be finite; received `attention_scores=nan`",
        ),
        (
            lambda: plot_attention_pattern(np.ones((1, 3, 5))),
            r"`mask` must have the shape \(query_length, key_length\); received",
        ),
        (
            lambda: plot_attention_pattern({"a": np.eye(3), "b": [[0, 0.5]]}),
            "`mask` must be boolean, True = attend; received `0.5` in the mask of 'b'",
        ),
        (
            lambda: plot_attention_pattern({}),
            "`mask` must hold at least one mask; received `mask={}`",
        ),
        (
            lambda: plot_confusion_matrix(np.ones((3, 3)), ["a", "b"]),
            r"`confusion` must have the shape \(correct_classes=2, predicted_classes=2",
        ),
        (
            lambda: plot_positional_encoding(np.ones((2, 3, 5))),
            r"`encoding` must have the shape \(length, hidden_dim\)",
        ),
        (
            lambda: plot_positional_encoding_waves(np.ones((0, 3))),
            r"`encoding` must have .* received `encoding.shape=\(0, 3\)`",
        ),
        (
            lambda: plot_positional_encoding_waves(np.ones((2, 3)), [0, 3]),
            r"`dimensions` must be .* from 0 to 2 .* received `dimensions=\[0, 3\]`",
        ),
        (
            lambda: plot_positional_encoding_waves(np.ones((2, 3)), []),
            r"`dimensions` must be one or more .* received `dimensions=\[\]`",
        ),
        (
            lambda: plot_schedule([1.0, 2.0], steps=[1, 2, 3]),
            r"`steps` must have the shape \(num_steps=2\); received .*=\(3,\)`",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
