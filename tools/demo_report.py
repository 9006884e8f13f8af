"""Pictures and report of the demo; see demo.py."""
import os
import platform
from pathlib import Path
from typing import Dict, List, Tuple

ROWS = [
    ('classification', 'classifier', None, 'top-1'),
    ('semantic segmentation', 'segmentor', 'segmentor_scratch', 'mIoU'),
    ('detection', 'detector', 'detector_scratch', 'box AP'),
    ('detection', 'detector', 'detector_scratch', 'box AP50'),
    ('instance segmentation', 'detector', 'detector_scratch', 'mask AP'),
]
"""Task, run, the same from scratch, score."""

NUM_SCENES = 4
MIN_SCORE = 0.5


def last_checkpoint(folder: Path) -> str:
    """The checkpoint that a finished run ended with.

    Args:
        folder (Path): Work dir of the run.

    Returns:
        str: Path of the file.
    """
    return (folder / 'last_checkpoint').read_text().strip()


def run_config(folder: Path) -> str:
    """The config a run was started with, options merged.

    Args:
        folder (Path): Work dir of the run.

    Returns:
        str: Path of the file.
    """
    return str(next(iter(sorted(folder.glob('*.py')))))


def draw_predictions(work_dir: Path, data_root: Path) -> Path:
    """Draw ground truth beside predictions for a few validation scenes.

    Args:
        work_dir (Path): Of the demo; the runs are below it.
        data_root (Path): The digits data set.

    Returns:
        Path: The PNG file.
    """
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    scenes = sorted((data_root / 'scenes' / 'val').glob('*.png'))[:NUM_SCENES]
    columns = [
        [plt.imread(str(scene))[..., :3] for scene in scenes],
        [(plt.imread(str(data_root / 'semantic' / 'val' / scene.name)) *
          255).round().astype(int) for scene in scenes],
        _segment(work_dir / 'segmentor', scenes),
        _true_instances(data_root, scenes),
        _detect(work_dir / 'detector', scenes),
    ]
    titles = [
        'scene', 'classes: ground truth', 'classes: prediction',
        'instances: ground truth',
        f'instances: prediction (score > {MIN_SCORE})'
    ]
    figure, axes = plt.subplots(
        len(scenes),
        len(columns),
        figsize=(3.2 * len(columns), 3.3 * len(scenes)),
        squeeze=False)
    for row, axis_row in enumerate(axes):
        for column, axis in enumerate(axis_row):
            cell = columns[column][row]
            axis.set_xticks([])
            axis.set_yticks([])
            if row == 0:
                axis.set_title(titles[column], fontsize=11)
            if column in (1, 2):
                axis.imshow(
                    cell, cmap=_colours(), vmin=0, vmax=10,
                    interpolation='nearest')
            else:
                axis.imshow(columns[0][row])
                if column > 2:
                    _draw_instances(axis, cell)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.legend(
        handles=[
            plt.Rectangle((0, 0), 1, 1, color=_colours()(digit + 1))
            for digit in range(10)
        ],
        labels=[str(digit) for digit in range(10)],
        loc='lower center',
        ncol=10,
        frameon=False)
    path = work_dir / 'predictions.png'
    figure.savefig(path, dpi=80)
    plt.close(figure)
    return path


def _colours():
    """A colour for the background and one for each digit."""
    from matplotlib.colors import ListedColormap
    from matplotlib.pyplot import get_cmap
    return ListedColormap([(0.15, 0.15, 0.15), *get_cmap('tab10').colors])


def _draw_instances(axis, instances) -> None:
    """Outline boxes and tint masks; name the class and the score."""
    import matplotlib.pyplot as plt
    import numpy as np
    colours = _colours()
    for box, mask, label, score in instances:
        colour = colours(label + 1)
        tint = np.zeros((*mask.shape, 4))
        tint[mask] = (*colour[:3], 0.6)
        axis.imshow(tint)
        x0, y0, x1, y1 = box
        axis.add_patch(
            plt.Rectangle((x0, y0),
                          x1 - x0,
                          y1 - y0,
                          fill=False,
                          edgecolor=colour,
                          linewidth=1.5))
        text = str(label) if score is None else f'{label}: {score:.2f}'
        axis.text(
            x0 + 1, y0 - 1.5, text, fontsize=8, color='white',
            bbox=dict(facecolor='black', alpha=0.6, pad=0.8, linewidth=0))


def _segment(folder: Path, scenes: List[Path]) -> list:
    """Predicted class maps, arrays (H, W)."""
    from mmseg.apis import inference_model, init_model
    model = init_model(
        run_config(folder), last_checkpoint(folder), device='cpu')
    return [
        inference_model(model, str(scene)).pred_sem_seg.data[0].numpy()
        for scene in scenes
    ]


def _detect(folder: Path, scenes: List[Path]) -> list:
    """Predicted instances: (box, mask, label, score) of each scene."""
    from mmdet.apis import inference_detector, init_detector
    model = init_detector(
        run_config(folder), last_checkpoint(folder), device='cpu')
    found = []
    for scene in scenes:
        kept = inference_detector(model, str(scene)).pred_instances
        kept = kept[kept.scores > MIN_SCORE]
        found.append(
            list(
                zip(kept.bboxes.tolist(), kept.masks.numpy(),
                    kept.labels.tolist(), kept.scores.tolist())))
    return found


def _true_instances(data_root: Path, scenes: List[Path]) -> list:
    """True instances in the form that :func:`_detect` gives."""
    from pycocotools.coco import COCO
    coco = COCO(str(data_root / 'annotations' / 'instances_val.json'))
    numbers = {
        Path(image['file_name']).name: number
        for number, image in coco.imgs.items()
    }
    found = []
    for scene in scenes:
        rows = coco.imgToAnns[numbers[scene.name]]
        found.append([([
            x, y, x + w, y + h
        ], coco.annToMask(row).astype(bool), row['category_id'] - 1, None)
                      for row in rows for x, y, w, h in [row['bbox']]])
    return found


def write_report(work_dir: Path, model: str,
                 results: Dict[str, Dict[str, float]],
                 seconds: Dict[str, float], picture: Path, total: float,
                 floors: Dict[str, float]) -> Tuple[str, List[str]]:
    """Write ``report.md``.

    Args:
        work_dir (Path): Where to.
        model (str): What was trained, for people.
        results (dict): Scores of each run, in percent.
        seconds (dict): Seconds that each run took.
        picture (Path): The picture to show.
        total (float): Seconds of everything.
        floors (dict): Least scores of the fine-tuned models.

    Returns:
        tuple[str, list[str]]: The report, and what is below its floor or not
        better than from scratch.
    """
    lines = [
        f'# Demo report: {model}', '',
        '| task | score (%) | fine-tuned | from scratch | seconds, fine-tuned '
        '| seconds, from scratch |', '|---|---|---|---|---|---|'
    ]
    failures = []
    for task, run, scratch, metric in ROWS:
        ours = results[run].get(metric, float('nan'))
        plain = results[scratch].get(metric, float('nan')) if scratch else None
        lines.append(
            f'| {task} | {metric} | {ours:.1f} | '
            f'{"" if plain is None else format(plain, ".1f")} | '
            f'{seconds[run]:.0f} | '
            f'{"" if plain is None else format(seconds[scratch], ".0f")} |')
        if metric in floors:
            if not ours >= floors[metric]:
                failures.append(f'{metric} {ours:.1f} < {floors[metric]:.0f}')
            if plain is not None and not ours > plain:
                failures.append(f'{metric} is no better than from scratch')
    lines += [
        '', f'![predictions]({picture.name})', '',
        f'All in {total / 60:.1f} minutes on {os.cpu_count()} cores '
        f'({platform.machine()}). The classifier is trained on single digits; '
        'segmentor and detector start from its checkpoint, or from scratch '
        'with the same schedule. Scores are those of the validation scenes, '
        'which share no digit image with the training scenes.'
    ]
    report = '\n'.join(lines) + '\n'
    (work_dir / 'report.md').write_text(report)
    return report, failures
