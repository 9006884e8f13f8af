"""Test a classifier, segmentor or detector from its config."""
import os
import os.path as osp
import sys

from _common import (build_runner, fail, find_checkpoint, load_config,
                     new_parser, require_amp_device, run)
from mmengine.config import ConfigDict
from mmengine.dist import is_main_process
from mmengine.evaluator import DumpResults
from mmengine.fileio import dump

HOOKS = dict(
    mmpretrain='VisualizationHook',
    mmseg='SegVisualizationHook',
    mmdet='DetVisualizationHook')
VISUALIZERS = dict(
    mmpretrain='UniversalVisualizer',
    mmseg='SegLocalVisualizer',
    mmdet='DetLocalVisualizer')


class DumpSegResults(DumpResults):
    """Dump label maps, not the scores: those would fill the memory.

    One image of ADE20K has 150 score maps of its full size.
    """

    def process(self, data_batch, predictions):
        """Keep what a prediction holds beside its scores.

        Args:
            data_batch (dict): Not used.
            predictions (Sequence[dict]): Data samples as dicts.
        """
        kept = [{
            k: v
            for k, v in sample.items() if k != 'seg_logits'
        } for sample in predictions]
        super().process(data_batch, kept)


def parse_args():
    """Read the command line."""
    parser = new_parser(__doc__)
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--out',
        help='write the predictions to this .pkl file, or the metrics to '
        'this .json file; for segmentation a folder is filled with label '
        'maps')
    parser.add_argument(
        '--out-item',
        choices=['pred', 'metrics'],
        help='what a .pkl file of --out holds. Default: pred')
    parser.add_argument(
        '--tta',
        action='store_true',
        help='test-time augmentation by tta_model and tta_pipeline of the '
        'config')
    parser.add_argument(
        '--show', action='store_true', help='show each prediction on screen')
    parser.add_argument(
        '--show-dir', help='draw the prediction of each image into this '
        'folder (of segmentation: into vis_data/vis_image in it)')
    parser.add_argument(
        '--wait-time',
        type=float,
        default=2,
        help='seconds each image of --show stays')
    return parser.parse_args()


def use_tta(cfg):
    """Wrap the model and exchange the pipeline for test-time augmentation.

    Args:
        cfg (Config): Changed in place.
    """
    missing = [k for k in ('tta_model', 'tta_pipeline') if k not in cfg]
    if missing:
        fail(f'--tta needs {" and ".join(missing)} in the config')
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)
    dataset = cfg.test_dataloader.dataset
    while 'dataset' in dataset:
        dataset = dataset.dataset
    dataset.pipeline = cfg.tta_pipeline


def draw(cfg, args):
    """Turn on the drawing of predictions, each codebase's own way.

    Args:
        cfg (Config): Changed in place.
        args (argparse.Namespace): The command line.
    """
    screens = ('DISPLAY', 'WAYLAND_DISPLAY')
    if (args.show and sys.platform.startswith('linux')
            and not any(os.environ.get(s) for s in screens)):
        fail('--show needs a screen; use --show-dir to draw into files')
    scope = cfg.default_scope
    hook = dict(cfg.get('default_hooks', {}).get('visualization')
                or dict(type=HOOKS[scope]))
    visualizer = dict(cfg.get('visualizer') or dict(type=VISUALIZERS[scope]))
    hook.update(show=args.show, wait_time=args.wait_time, interval=1)
    hook['enable' if scope == 'mmpretrain' else 'draw'] = True
    if args.show_dir:
        # absolute, or one codebase would put it below its work dir
        folder = osp.abspath(args.show_dir)
        if scope == 'mmseg':
            visualizer['save_dir'] = folder
            visualizer['vis_backends'] = [dict(type='LocalVisBackend')]
        else:
            key = 'out_dir' if scope == 'mmpretrain' else 'test_out_dir'
            hook[key] = folder
    cfg.merge_from_dict(dict(
        default_hooks=dict(visualization=hook), visualizer=visualizer))


def check_out(cfg, args):
    """Find out what ``--out`` asks for, before the test runs.

    Args:
        cfg (Config): The label maps of segmentation are set in its evaluator.
        args (argparse.Namespace): The command line.

    Returns:
        str | None: 'pred', 'metrics' or None where nothing is left to write.
    """
    if args.out is None:
        if args.out_item:
            fail('--out-item says what --out holds: give --out as well')
        return None
    suffix = osp.splitext(args.out)[1]
    if suffix == '.json':
        if args.out_item == 'pred':
            fail('predictions are written as .pkl, not .json')
        return 'metrics'
    if suffix in ('.pkl', '.pickle'):
        return args.out_item or 'pred'
    if cfg.default_scope != 'mmseg':
        fail(f'--out {args.out} must end in .pkl or .json')
    if not isinstance(cfg.test_evaluator, dict):
        fail(f'--out {args.out} is a folder for label maps, which needs a '
             'single test_evaluator in the config')
    cfg.test_evaluator.update(output_dir=args.out, keep_results=True)
    return None


def dumper(cfg, path):
    """The metric that writes predictions.

    Args:
        cfg (Config): Tells the codebase.
        path (str): The .pkl file.

    Returns:
        DumpResults: To append to the evaluator's metrics.
    """
    if cfg.default_scope == 'mmdet':
        from mmdet.evaluation import DumpDetResults
        return DumpDetResults(out_file_path=path)
    if cfg.default_scope == 'mmseg':
        return DumpSegResults(out_file_path=path)
    return DumpResults(out_file_path=path)


def main():
    """Test."""
    args = parse_args()
    cfg = load_config(args)
    for key in ('test_cfg', 'test_dataloader', 'test_evaluator'):
        # an empty test_cfg is a full one: the defaults of the loop
        if cfg.get(key) is None:
            fail(f'{args.config} has no {key}, so it cannot be tested')
    cfg.load_from = find_checkpoint(args.checkpoint)
    cfg.resume = False
    out_item = check_out(cfg, args)
    if args.amp:
        require_amp_device()
        cfg.test_cfg.fp16 = True
    if args.show or args.show_dir:
        draw(cfg, args)
    if args.tta:
        use_tta(cfg)
    runner = build_runner(cfg)
    if out_item == 'pred':
        runner.test_evaluator.metrics.append(dumper(cfg, args.out))
    metrics = run(runner.test)
    if out_item == 'metrics' and is_main_process():
        dump(metrics, args.out)


if __name__ == '__main__':
    main()
