"""Contact sheets: what attentions decided, over the image."""
import textwrap
from pathlib import Path
from typing import List, Optional, Sequence, Tuple, Union

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from .legend import QUANTITIES, Quantity, present, values_of
from .recorder import AttentionRecord

PANEL = 1.75
"""Side of a picture, in inches."""

DPI = 85
LINE = 0.145
"""Height of a line of the legend, in inches."""

OPACITY = 0.7
"""Of the colours over the image."""

_TOP, _BELOW = 0.45, 0.44
"""Inches above all pictures, and below each."""

Row = Tuple[str, AttentionRecord, Optional[int]]
"""Title, record, and which head (None for the mean of all)."""


def stage_rows(records: Sequence[AttentionRecord]) -> List[Row]:
    """A row of a sheet for each attention.

    Args:
        records (Sequence[AttentionRecord]): Records with a size.

    Returns:
        list[Row]: With titles that name what can be told apart.
    """
    return [(_title(r), r, None) for r in records]


def head_rows(record: AttentionRecord) -> List[Row]:
    """A row of a sheet for each head of one attention."""
    return [(f'head {head}', record, head)
            for head in range(record.num_heads)]


def _title(record: AttentionRecord) -> str:
    parts = [p for p in record.name.split('.')
             if p not in ('backbone', 'attn', 'layers')]
    height, width = record.size
    return (f'{" ".join(parts)}\n{record.kind}, {record.num_heads} heads\n'
            f'{height}x{width} tokens of {record.stride[0]} px')


def draw_sheet(path: Union[str, Path],
               image: np.ndarray,
               rows: Sequence[Row],
               point: Tuple[float, float],
               title: str,
               index: int = 0) -> None:
    """Draw the maps of some attentions over an image.

    Args:
        path (str | Path): PNG to write.
        image (np.ndarray): uint8 RGB (H, W, 3), as the network got it.
        rows (Sequence): Those of :func:`stage_rows` or :func:`head_rows`.
        point (tuple[float, float]): (y, x) of the point whose attention was
            recorded, in pixels.
        title (str): What stands above all.
        index (int): Which image of the batch. Defaults to 0.
    """
    names = present([record for _, record, _ in rows])
    legend = _legend(names, len(names) + 1)
    aspect = image.shape[0] / image.shape[1]
    cell = (PANEL, PANEL * aspect + _BELOW)
    size = np.array([(len(names) + 1) * cell[0] + 0.2,
                     len(rows) * cell[1] + _TOP + 0.15 + len(legend) * LINE])
    figure = Figure(figsize=size, dpi=DPI)
    FigureCanvasAgg(figure)
    top = 1 - _TOP / size[1]
    bottom = (len(legend) * LINE + 0.15 + _BELOW) / size[1]
    axes = figure.subplots(
        len(rows), len(names) + 1, squeeze=False, gridspec_kw=dict(
            left=0.01, right=0.99, top=top, bottom=bottom, wspace=0.08,
            hspace=_BELOW / (PANEL * aspect)))
    figure.suptitle(title, fontsize=10, y=1 - 0.05 / size[1], va='top')
    for line, (name, record, head) in zip(axes, rows):
        _show_image(line[0], image, point, name)
        for axis, quantity in zip(line[1:], names):
            values = values_of(record, quantity, index, head)
            _overlay(axis, image, record, QUANTITIES[quantity], values)
            if values is not None and quantity in _OF_POINT:
                _cross(axis, point)
    for axis, quantity in zip(axes[0][1:], names):
        axis.set_title(QUANTITIES[quantity].title, fontsize=8.5, pad=4)
    for number, text in enumerate(reversed(legend)):
        figure.text(0.01, (0.06 + number * LINE) / size[1], text, fontsize=7,
                    family='DejaVu Sans')
    _save(figure, path)


_OF_POINT = ('attention', 'same_sign', 'opposite_sign')


def _legend(names: Sequence[str], columns: int) -> List[str]:
    """The lines of the legend."""
    width = round(columns * PANEL * 18.5)
    lines = []
    for name in names:
        quantity = QUANTITIES[name]
        text = f'{quantity.title}: {quantity.meaning} [{quantity.term}]'
        lines += textwrap.wrap(text, width, subsequent_indent='     ')
    return lines


def _show_image(axis: Axes, image: np.ndarray, point, title: str) -> None:
    axis.imshow(image, interpolation='nearest',
                extent=(0, image.shape[1], image.shape[0], 0))
    _frame(axis, image)
    _cross(axis, point)
    axis.set_xlabel(title, fontsize=6.5, labelpad=2)


def _cross(axis: Axes, point: Tuple[float, float]) -> None:
    for colour, width in (('black', 2.2), ('white', 0.9)):
        axis.plot(point[1] + 0.5, point[0] + 0.5, '+', color=colour,
                  markersize=7, markeredgewidth=width)


def _frame(axis: Axes, image: np.ndarray) -> None:
    # A map may reach beyond the image, as sizes are rounded up.
    axis.set_xlim(0, image.shape[1])
    axis.set_ylim(image.shape[0], 0)
    axis.set_xticks([])
    axis.set_yticks([])


def _overlay(axis: Axes, image: np.ndarray, record: AttentionRecord,
             quantity: Quantity, values: Optional[np.ndarray]) -> None:
    """Colours over the image in grey, and what they mean below."""
    _frame(axis, image)
    if values is None:
        axis.text(0.5, 0.5, f'{record.kind}\nhas none', fontsize=7,
                  color='grey', ha='center', va='center',
                  transform=axis.transAxes)
        return
    # Paler than it is, so that dark images do not dull the colours.
    axis.imshow(
        image.mean(axis=2), cmap='gray', vmin=-255, vmax=255,
        extent=(0, image.shape[1], image.shape[0], 0))
    (height, width), (down, right) = record.size, record.stride
    shown = axis.imshow(
        values, cmap=quantity.colours, norm=_norm(quantity, values),
        alpha=OPACITY, interpolation='nearest',
        extent=(0, width * right, height * down, 0))
    _frame(axis, image)
    bar = axis.inset_axes((0.04, -0.075, 0.92, 0.045))
    colours = axis.figure.colorbar(shown, cax=bar, orientation='horizontal')
    if quantity.centre is None:
        colours.locator = MaxNLocator(3)
        colours.update_ticks()
    else:
        ends = shown.norm.vmin, shown.norm.vmax
        ticks = [ends[0], quantity.centre, ends[1]]
        colours.set_ticks(ticks, labels=[_short(t) for t in ticks])
    colours.ax.tick_params(labelsize=6, length=2, pad=1)
    colours.outline.set_linewidth(0.4)


def _short(number: float) -> str:
    return f'{round(number, 2) + 0.:g}'


def _norm(quantity: Quantity, values: np.ndarray) -> Normalize:
    if quantity.limits is not None:
        return Normalize(*quantity.limits)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if quantity.centre is None:
        low = 0. if quantity.colours == 'magma' else low
        return Normalize(low, max(high, low + 1e-6))
    reach = max(abs(low - quantity.centre), abs(high - quantity.centre), 1e-3)
    return TwoSlopeNorm(quantity.centre, quantity.centre - reach,
                        quantity.centre + reach)


def _save(figure: Figure, path: Union[str, Path]) -> None:
    """Write a PNG of few colours: a fraction of the bytes."""
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
    picture = Image.fromarray(pixels).quantize(
        192, method=Image.Quantize.MEDIANCUT, kmeans=2,
        dither=Image.Dither.NONE)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, optimize=True)
