"""Draw what a model's attentions decide about images.

For each image writes OUT/NAME.png, a sheet with a row for each stage (its last
block) and a column for each quantity, over the image as the network gets it;
and OUT/NAME.npz with the numbers. The legend below the sheet says what each
column means. With --heads, OUT/NAME_STAGE.png has a row for each head.

    python tools/analysis/visualize_attention.py CONFIG CHECKPOINT IMAGES... \\
        --out OUT --point X Y
"""
import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _common import fail, find_checkpoint  # noqa: E402

# isort: split
import numpy as np  # noqa: E402
import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.dataset import Compose, pseudo_collate  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402
from mmengine.runner import load_checkpoint  # noqa: E402

from mmcsan.checkpoints import CheckpointError  # noqa: E402
from mmcsan.engine import read_checkpoints_as_data  # noqa: E402
from mmcsan.registry import MODELS  # noqa: E402
from mmcsan.visualization import record_attention  # noqa: E402
from mmcsan.visualization.pictures import (draw_sheet, head_rows,  # noqa: E402
                                           stage_rows)

MOST_ROWS = 6
"""Rows of a sheet of a backbone without stages, unless some are asked for."""


def parse_args():
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='what training saved')
    parser.add_argument('images', nargs='+', help='image files')
    parser.add_argument('--out', default='attention',
                        help='folder. Default: attention')
    parser.add_argument(
        '--point', nargs=2, type=float, metavar=('X', 'Y'),
        help='whose attention is drawn, in pixels of the image as the network '
        'gets it (which the sheet shows). Default: the middle')
    parser.add_argument(
        '--stages', nargs='+', type=int,
        help='stages to draw, from 0; of a ViT, blocks. Default: all stages; '
        f'of a ViT {MOST_ROWS} blocks')
    parser.add_argument(
        '--every-block', action='store_true',
        help='a row for each block, not just for the last one of a stage')
    parser.add_argument(
        '--heads', nargs='*', type=int,
        help='draw each head, too: of the given stages, or of all drawn')
    parser.add_argument('--no-numbers', action='store_true',
                        help='write no .npz')
    parser.add_argument('--device', default='cpu', help='Default: cpu')
    return parser.parse_args()


def load_model(cfg, checkpoint, device):
    """The model of a config, with trained weights.

    Args:
        cfg (Config): The config.
        checkpoint (str): File or address.
        device (str): Where it is to live.

    Returns:
        nn.Module: In evaluation mode.

    Raises:
        SystemExit: If the checkpoint cannot be read, or lacks weights of the
            backbone.
    """
    scope = cfg.get('default_scope', 'mmpretrain')
    init_default_scope(scope)
    if 'data_preprocessor' in cfg:
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    with MODELS.switch_scope_and_registry(scope) as registry:
        model = registry.build(cfg.model)
    read_checkpoints_as_data()
    try:
        loaded = load_checkpoint(model, checkpoint, 'cpu')
    except CheckpointError as e:
        fail(str(e))
    have = loaded.get('state_dict', loaded)
    missing = [key for key in model.state_dict()
               if key.startswith('backbone.') and key not in have]
    if missing:
        fail(f'{checkpoint} is no checkpoint of this config: it lacks '
             f'{missing[0]} and {len(missing) - 1} more weights of the '
             'backbone')
    return model.to(device).eval()


def test_pipeline(cfg):
    """What images go through in a test, without annotations.

    Args:
        cfg (Config): The config.

    Returns:
        Compose: From a dict with ``img_path`` to the model's input.
    """
    steps = cfg.get('test_pipeline') or (
        cfg.test_dataloader.dataset.pipeline)
    steps = [s for s in steps if 'Annotation' not in s['type']]
    return Compose(steps)


def read_image(path, pipeline, model):
    """An image as the network gets it, and the same for people.

    Args:
        path (Path): The file.
        pipeline (Compose): Of :func:`test_pipeline`.
        model (nn.Module): The model.

    Returns:
        tuple: Input (1, 3, H, W), and uint8 RGB (h, w, 3) before padding.
    """
    if not path.is_file():
        fail(f'there is no image {path}')
    data = pipeline(dict(img_path=str(path), img_id=0))
    shown = data['inputs'].permute(1, 2, 0).flip(-1).numpy()
    with torch.no_grad():
        batch = model.data_preprocessor(pseudo_collate([data]), False)
    inputs = batch['inputs']
    inputs = torch.stack(inputs) if isinstance(inputs, list) else inputs
    return inputs, shown.astype(np.uint8)


def choose(records, stages, every_block):
    """The records to draw.

    Args:
        records (dict): Those of :func:`record_attention`.
        stages (list[int] | None): Which stages.
        every_block (bool): Whether all blocks of each.

    Returns:
        dict: Some of the records, by stage; lists.
    """
    by_stage = {}
    for name, record in records.items():
        if record.size is not None:
            stage = int(re.search(r'\d+', f'{name}.0').group())
            by_stage.setdefault(stage, []).append(record)
    if not by_stage:
        fail('the windows of this network are cut by another project: where '
             'they lie is not known')
    if stages is None:
        stages = list(by_stage)
        if all(len(found) == 1 for found in by_stage.values()):
            at = np.linspace(0, len(stages) - 1, MOST_ROWS).round()
            stages = [stages[int(i)] for i in sorted(set(at))]
    unknown = [s for s in stages if s not in by_stage]
    if unknown:
        fail(f'there is no stage {unknown[0]}, but '
             f'{", ".join(map(str, by_stage))}')
    return {s: by_stage[s] if every_block else by_stage[s][-1:]
            for s in stages}


def save_numbers(path, records, image, point):
    """Write everything that was recorded.

    Args:
        path (Path): File to write.
        records (dict): The records.
        image (np.ndarray): The image that maps lie on.
        point (tuple[float, float]): (y, x).
    """
    arrays = dict(image=image, point=np.array(point))
    for name, record in records.items():
        for key, value in (*record.maps.items(), *record.constants.items()):
            arrays[f'{name}/{key}'] = value.float().cpu().numpy()
        if record.rows is not None:
            arrays[f'{name}/rows'] = record.rows.float().cpu().numpy()
        arrays[f'{name}/stride'] = np.array(record.stride)
    np.savez_compressed(path, **arrays)


def draw(model, pipeline, path, args):
    """Draw one image.

    Args:
        model (nn.Module): The model.
        pipeline (Compose): Of :func:`test_pipeline`.
        path (Path): The image.
        args (argparse.Namespace): The command line.
    """
    inputs, image = read_image(path, pipeline, model)
    height, width = image.shape[:2]
    x, y = args.point or (width // 2, height // 2)
    if not (0 <= x < width and 0 <= y < height):
        fail(f'--point {x:g} {y:g} lies outside of the image as the network '
             f'gets it, {width} x {height} pixels')
    with torch.no_grad(), record_attention(
            model, rows=[(y, x)], entropy=True) as records:
        model.backbone(inputs)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    chosen = choose(records, args.stages, args.every_block)
    rows = [r for found in chosen.values() for r in found]
    about = f'{path.name}, {Path(args.config).stem}'
    draw_sheet(out / f'{path.stem}.png', image, stage_rows(rows), (y, x),
               f'{about}: mean of all heads')
    if args.heads is not None:
        for stage in args.heads or chosen:
            record = choose(records, [stage], False)[stage][0]
            draw_sheet(out / f'{path.stem}_{stage}.png', image,
                       head_rows(record), (y, x),
                       f'{about}: heads of {record.name}')
    if not args.no_numbers:
        save_numbers(out / f'{path.stem}.npz', records, image, (y, x))


def main():
    """Draw."""
    args = parse_args()
    if not Path(args.config).is_file():
        fail(f'there is no config {args.config}')
    checkpoint = find_checkpoint(args.checkpoint)
    paths = [Path(p) for p in args.images]
    if len({p.stem for p in paths}) < len(paths):
        fail('images need names that differ: sheets are called after them')
    cfg = Config.fromfile(args.config)
    model = load_model(cfg, checkpoint, args.device)
    pipeline = test_pipeline(cfg)
    for path in paths:
        draw(model, pipeline, path, args)
    print(f'{args.out}: {len(paths):,} images')


if __name__ == '__main__':
    main()
