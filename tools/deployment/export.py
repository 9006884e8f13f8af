"""Write a trained model as ONNX or TorchScript.

What is written takes images (B, 3, H, W), RGB, float32 of 0 to 255, of any
size, and needs neither mmcsan nor mmengine. It is run at three sizes and
compared with the model before this tool says that it is done.
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import _common  # noqa: E402
from _checkpoint_fit import require_fit  # noqa: E402

# isort: split
import torch  # noqa: E402
from mmengine.config import DictAction  # noqa: E402
from mmengine.logging import print_log  # noqa: E402
from mmengine.registry import MODELS  # noqa: E402

from mmcsan.deployment import (FORMATS, ExportError, export_model,
                               load_exported, make_exportable, quantize_onnx)
from mmcsan.deployment.graphs import TASKS
from mmcsan.engine import read_checkpoints_as_data

SIZES = ((1, 224, 224), (2, 160, 256), (1, 197, 131))
"""Batch, height and width at which results are compared."""

TOLERANCE = 1e-4


def parse_args():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint of a run with it')
    parser.add_argument('out', type=Path, help='file to write')
    parser.add_argument(
        '--format',
        choices=list(FORMATS),
        help="by default that of the file's suffix: "
        + ', '.join(f'{name} {f[0]}' for name, f in FORMATS.items()))
    parser.add_argument(
        '--int8',
        action='store_true',
        help='with ONNX, write a copy with linear layers in int8 as well')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction,
        help='settings that override the config, as key=value')
    args = parser.parse_args()
    if args.format is None:
        suffixes = {f[0]: name for name, f in FORMATS.items()}
        args.format = suffixes.get(args.out.suffix)
        if args.format is None:
            parser.error(f'{args.out} has none of the suffixes '
                         f'{", ".join(suffixes)}: give --format')
    if args.int8 and args.format != 'onnx':
        parser.error('--int8 needs --format onnx')
    return args


def load_model(args):
    """The trained model of a config.

    Args:
        args (argparse.Namespace): The command line.

    Returns:
        tuple[nn.Module, str]: The model, and its codebase.
    """
    args.work_dir, args.launcher, args.local_rank = None, 'none', 0
    cfg = _common.load_config(args)
    checkpoint = _common.find_checkpoint(args.checkpoint)
    read_checkpoints_as_data()
    if cfg.model.get('data_preprocessor') is None:
        cfg.model.data_preprocessor = cfg.get('data_preprocessor')
    with MODELS.switch_scope_and_registry(cfg.default_scope) as registry:
        model = registry.build(cfg.model)
    weights, _ = require_fit(model, checkpoint)
    model.load_state_dict(weights, strict=False)
    return model.eval(), cfg.default_scope


def largest_difference(model, function):
    """How far an exported model is from the model, relative to its outputs.

    Args:
        model (nn.Module): Output of ``make_exportable``.
        function (callable): Output of ``load_exported``.

    Returns:
        float: Over all sizes, in terms of the largest output, if above 1.
    """
    worst = 0.
    for batch, height, width in SIZES:
        images = torch.rand(
            batch, 3, height, width,
            generator=torch.Generator().manual_seed(height)) * 255
        with torch.no_grad():
            wanted = model(images)
        wanted = [wanted] if isinstance(wanted, torch.Tensor) else wanted
        for ours, theirs in zip(wanted, function(images), strict=True):
            scale = max(ours.abs().max().item(), 1.)
            worst = max(worst, (ours - theirs).abs().max().item() / scale)
    return worst


def main():
    """Export."""
    args = parse_args()
    model, scope = load_model(args)
    exportable = make_exportable(model, scope)
    try:
        path = export_model(exportable, args.out, args.format)
    except ExportError as e:
        _common.fail(str(e))
    print_log(
        'attentions that see all tokens hold their logits in the exported '
        'file: its memory grows with the square of the number of tokens',
        logger='current')
    worst = largest_difference(exportable, load_exported(path))
    sizes = ', '.join(f'{b} x {h} x {w}' for b, h, w in SIZES)
    print(f'{path}: {path.stat().st_size / 1e6:.1f} MB, {args.format}\n'
          f'images (B, 3, H, W), RGB, 0 to 255 -> {TASKS[scope][1]}\n'
          f'largest difference at {sizes}: {worst:.1e}')
    if not worst <= TOLERANCE:
        _common.fail(f'the file does not compute what the model does: '
                     f'{worst:.1e} is more than {TOLERANCE:.0e}')
    if args.int8:
        small = quantize_onnx(path)
        print(f'{small}: {small.stat().st_size / 1e6:.1f} MB, int8. It is '
              'not compared here: score it on data of yours')


if __name__ == '__main__':
    main()
