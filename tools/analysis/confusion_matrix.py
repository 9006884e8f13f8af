"""Which classes a model takes for which, on the test set.

Rows are what is there, columns what the model says: images of a classifier,
pixels of a segmentor, boxes of a detector. There, an object and a prediction
of enough IoU make a pair, each in one pair at most; the last row holds
predictions without an object, the last column objects that were missed.

Writes confusion_matrix.png, .csv (as drawn) and confusion_matrix_counts.csv,
and prints the largest confusions.

    python tools/analysis/confusion_matrix.py CONFIG CHECKPOINT
"""
import csv

import _bench
import _results
import numpy as np
from _matrix import ROWS, ConfusionMatrix, percent

TITLES = {
    'true': 'percent of what is there (rows)',
    'pred': 'percent of what was predicted (columns)',
    'all': 'percent of all',
    'none': 'counts',
}
CELLS = ((12, .62, 9, True), (30, .42, 7, True), (60, .24, 7, False),
         (200, .15, 6, False))
"""Up to so many classes: inches a cell, size of text, whether with values."""


def parse_args():
    """Read the command line."""
    parser = _results.new_parser(__doc__, 'analysis')
    parser.add_argument(
        '--normalize', choices=[*ROWS, 'none'], default='true',
        help='percent of each row, of each column, of all, or counts. '
        'Default: true, each row')
    parser.add_argument(
        '--top', type=int, default=10,
        help='how many confusions are printed. Default: 10')
    _results.add_box_options(parser)
    return parser.parse_args()


def short(number: float, counts: bool) -> str:
    """A number for a cell; nothing for what rounds to nothing."""
    if not counts:
        return f'{number:.0f}' if number >= .5 else ''
    for size, letter in ((1e9, 'G'), (1e6, 'M'), (1e4, 'k')):
        if number >= size:
            return f'{number / (1e3 if letter == "k" else size):.3g}{letter}'
    return f'{number:.0f}' if number else ''


def _style(size: int) -> tuple:
    """Inches a cell, size of text, values or not, labels or not."""
    for most, inches, text, values in CELLS:
        if size <= most:
            return inches, text, values, True
    return 24 / size, 6, False, False


def plot(shown: np.ndarray, names: list, title: str, counts: bool,
         path) -> None:
    """Draw a matrix.

    Args:
        shown (np.ndarray): Percent or counts, of shape (C, C).
        names (list[str]): Of the C rows and columns.
        title (str): What stands above.
        counts (bool): Whether they are counts.
        path (str | Path): The PNG file.
    """
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    size = len(names)
    inches, text, values, labels = _style(size)
    margin = min(.075 * max(map(len, names)) * text / 7, 3) if labels else 0
    side = inches * size + margin + .9
    fig, axis = plt.subplots(
        figsize=(max(side + .9, 4.2), max(side + .2, 3.2)),
        layout='constrained')
    # Square roots of the shares: a few percent are to be seen.
    top = max(shown.max(), 1) if counts else 100
    image = axis.imshow(
        shown, cmap='Blues',
        norm=matplotlib.colors.PowerNorm(.5, 0, top))
    ticks = np.arange(size) if labels else np.arange(0, size, 50)
    words = names if labels else ticks
    axis.set_xticks(ticks, words, rotation=90, fontsize=text)
    axis.set_yticks(ticks, words, fontsize=text)
    axis.tick_params(length=2 if labels else 4)
    axis.set_xlabel('prediction')
    axis.set_ylabel('ground truth')
    axis.set_title(title, fontsize=10)
    if values:
        for row, column in np.argwhere(shown > 0):
            number = shown[row, column]
            axis.text(
                column, row, short(number, counts), ha='center', va='center',
                fontsize=text, color='white' if number > .35 * top else
                'black')
    if 30 < size and labels:
        axis.set_xticks(np.arange(size) - .5, minor=True)
        axis.set_yticks(np.arange(size) - .5, minor=True)
        axis.grid(which='minor', color='.9', linewidth=.3)
        axis.tick_params(which='minor', length=0)
    bar = fig.colorbar(image, ax=axis, shrink=min(3 / side, .8), aspect=15)
    bar.ax.tick_params(labelsize=7)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def write_csv(path, names: list, matrix: np.ndarray, form: str) -> None:
    """Write a matrix with its names."""
    with open(path, 'w', newline='', encoding='utf-8') as file:
        writer = csv.writer(file)
        writer.writerow(['ground truth \\ prediction', *names])
        for name, row in zip(names, matrix):
            writer.writerow([name, *(format(n, form) for n in row)])


def largest(counts: np.ndarray, names: list, unit: str, top: int) -> str:
    """The confusions that cost most, as a table.

    Args:
        counts (np.ndarray): Of shape (C, C).
        names (list[str]): Of the C classes.
        unit (str): What is counted.
        top (int): How many.

    Returns:
        str: The table.
    """
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    rows = []
    for place in np.argsort(-wrong, axis=None, kind='stable')[:top]:
        row, column = np.unravel_index(place, wrong.shape)
        number = wrong[row, column]
        if number:
            there = 100 * number / counts[row].sum()
            said = 100 * number / counts[:, column].sum()
            rows.append((names[row], names[column], f'{number:,}',
                         f'{there:5.1f}', f'{said:5.1f}'))
    if not rows:
        return 'Nothing was confused.'
    return _bench.markdown(('ground truth', 'taken for', unit, '% of the row',
                            '% of the column'), rows)


def verdict(counts: np.ndarray, scope: str) -> str:
    """How much is right, in words."""
    right = np.trace(counts)
    if scope != 'mmdet':
        return f'right: {100 * right / max(counts.sum(), 1):.1f} %'
    objects, found = counts[:-1].sum(), counts[:, :-1].sum()
    return (f'found, and called what they are: {right:,} of {objects:,} '
            f'objects ({100 * right / max(objects, 1):.1f} %), by {found:,} '
            f'predictions ({100 * right / max(found, 1):.1f} % of them right)')


def main() -> None:
    """Count, print, draw."""
    args = parse_args()
    results = _results.Results(args)
    matrix = ConfusionMatrix(results.scope, args.score_thr, args.iou_thr)
    images = results.each(
        lambda sample: matrix.add(sample, results.num_classes(sample)))
    names = results.names(len(matrix.counts) - (results.scope == 'mmdet'))
    names += ['background'] * (results.scope == 'mmdet')
    shown = percent(matrix.counts, args.normalize)
    counts = args.normalize == 'none'
    results.out.mkdir(parents=True, exist_ok=True)
    path = results.out / 'confusion_matrix.png'
    title = f'{images:,} images'
    if results.scope != 'mmpretrain':
        title += f', {matrix.counts.sum():,} {matrix.unit}'
    title += f'\n{TITLES[args.normalize]}'
    plot(shown, names, title, counts, path)
    write_csv(path.with_suffix('.csv'), names, shown,
              '.0f' if counts else '.3f')
    write_csv(results.out / 'confusion_matrix_counts.csv', names,
              matrix.counts, 'd')
    print(f'{title}\n{verdict(matrix.counts, results.scope)}\n\n'
          f'{largest(matrix.counts, names, matrix.unit, args.top)}\n\n'
          f'saved {path}, .csv and confusion_matrix_counts.csv beside it')


if __name__ == '__main__':
    main()
