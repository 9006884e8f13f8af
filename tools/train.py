"""Train a classifier, segmentor or detector from its config."""
from _common import (build_runner, fail, find_checkpoint, load_config,
                     new_parser, require_amp_device, run)

from mmcsan.checkpoints import CheckpointError
from mmcsan.checkpoints import find_checkpoint as find_classifier
from mmcsan.checkpoints.reader import is_url
from mmcsan.engine import latest_checkpoint


def parse_args():
    """Read the command line."""
    parser = new_parser(__doc__)
    parser.add_argument(
        '--amp-dtype',
        choices=['float16', 'bfloat16'],
        help="the low precision of --amp. Default: the config's, else "
        'float16')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by the actual batch size over '
        'auto_scale_lr.base_batch_size of the config')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='go on from this checkpoint; without a path, from the latest '
        'one in the work dir, and from the start if there is none')
    return parser.parse_args()


def use_amp(cfg, dtype):
    """Turn on mixed precision, before any data is touched.

    Args:
        cfg (Config): Changed in place.
        dtype (str): 'float16' or 'bfloat16'.
    """
    require_amp_device(dtype)
    wrapper = cfg.optim_wrapper
    kind = wrapper.get('type', 'OptimWrapper')
    if kind not in ('OptimWrapper', 'AmpOptimWrapper'):
        fail(f'--amp replaces OptimWrapper, but the config has {kind}')
    wrapper.type = 'AmpOptimWrapper'
    wrapper.dtype = dtype
    if dtype == 'bfloat16':
        # its range is float32's: no gradient underflows
        wrapper.loss_scale = dict(enabled=False)
    else:
        wrapper.setdefault('loss_scale', 'dynamic')


def scale_lr(cfg):
    """Turn on the scaling of the learning rate.

    Args:
        cfg (Config): Changed in place.
    """
    if not cfg.get('auto_scale_lr', {}).get('base_batch_size'):
        fail('--auto-scale-lr needs auto_scale_lr = '
             'dict(base_batch_size=...) in the config: the batch size that '
             'the learning rate was chosen for')
    cfg.auto_scale_lr.enable = True


def resume(cfg, source):
    """Set what the run goes on from.

    Args:
        cfg (Config): Changed in place.
        source (str): A checkpoint, or 'auto'.
    """
    if source == 'auto':
        try:
            source = latest_checkpoint(cfg.work_dir)
        except CheckpointError as e:
            fail(str(e))
        if source is None:
            # load_from stays: a first start loads what the config names
            print(f'--resume: no checkpoint in {cfg.work_dir} yet, '
                  'training starts from the beginning')
            return
    cfg.resume = True
    cfg.load_from = find_checkpoint(source)


def check_initial_weights(node):
    """Look for the classifiers that backbones start from, before all else.

    Args:
        node (dict | list): The config of a model, or a part of it.
    """
    if isinstance(node, dict):
        if node.get('type') == 'mmcsan.PretrainedClassifier' and not is_url(
                node['checkpoint']):
            try:
                find_classifier(node['checkpoint'])
            except CheckpointError as e:
                fail(f'{e}. It is the checkpoint of init_cfg in the config; '
                     'another one: --cfg-options '
                     'model.backbone.init_cfg.checkpoint=FILE')
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for child in node:
            check_initial_weights(child)


def main():
    """Train."""
    args = parse_args()
    cfg = load_config(args)
    for key in ('train_cfg', 'train_dataloader', 'optim_wrapper'):
        if not cfg.get(key):
            fail(f'{args.config} has no {key}, so it cannot be trained')
    if args.amp:
        use_amp(cfg, args.amp_dtype or cfg.optim_wrapper.get('dtype')
                or 'float16')
    if args.auto_scale_lr:
        scale_lr(cfg)
    if not args.resume and cfg.get('resume') and not cfg.get('load_from'):
        args.resume = 'auto'
    if args.resume:
        resume(cfg, args.resume)
    elif cfg.get('load_from'):
        cfg.load_from = find_checkpoint(cfg.load_from)
    if not cfg.get('load_from'):
        check_initial_weights(cfg.model)
    run(build_runner(cfg).train)


if __name__ == '__main__':
    main()
