"""What ``train.py`` and ``test.py`` share: options, checks, the runner."""
import argparse
import difflib
import errno
import os
import os.path as osp
import tempfile
from pathlib import Path

import _clone  # noqa: F401

# isort: split
import mmcsan  # noqa: E402, F401  names what is missing and how to cure it

# isort: split
import torch  # noqa: E402
from mmengine.config import Config, DictAction  # noqa: E402
from mmengine.device import get_device  # noqa: E402
from mmengine.registry import RUNNERS  # noqa: E402
from mmengine.runner import Runner  # noqa: E402

from mmcsan.checkpoints import CheckpointError  # noqa: E402
from mmcsan.engine import (BadDataError, NonFiniteError,  # noqa: E402
                           name_bad_data, read_checkpoints_as_data, tell_batch)
from mmcsan.version import DependencyError, require  # noqa: E402

SCOPES = ('mmpretrain', 'mmseg', 'mmdet')
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CHECKPOINT_HOOK = 'mmcsan.SafeCheckpointHook'
AMP_DEVICES = ('cuda', 'npu', 'mlu', 'musa')


def fail(message):
    """Stop with a message for the person at the prompt, no traceback.

    Args:
        message (str): What is wrong and how to cure it.

    Raises:
        SystemExit: Always.
    """
    raise SystemExit(f'error: {message}')


def new_parser(description):
    """A parser with the options of every tool that runs a config.

    Args:
        description (str): What the tool does.

    Returns:
        argparse.ArgumentParser: It still lacks ``config``, since the order
        of the positional arguments is the tool's own.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--work-dir',
        help='folder of logs, metrics and checkpoints. Default: work_dir of '
        'the config, else ./work_dirs/<name of the config>')
    parser.add_argument(
        '--amp', action='store_true', help='automatic mixed precision')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='settings that override the config, as key=value. Lists are '
        'written key="[a,b]" or key=a,b, without white space')
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='job launcher')
    # launchers of different age pass different spellings
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    return parser


def load_config(args):
    """Read the config and merge what every tool's options say.

    Args:
        args (argparse.Namespace): Options of :func:`new_parser`.

    Returns:
        Config: With ``work_dir`` and ``launcher`` set.

    Raises:
        SystemExit: If the file is missing, its ``default_scope`` is none of
            the three codebases or that codebase is missing.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    if not osp.isfile(args.config):
        fail(_missing_config(args.config))
    cfg = Config.fromfile(args.config)
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    scope = cfg.get('default_scope')
    if scope not in SCOPES:
        fail(f'default_scope of {args.config} is {scope!r}; it tells which '
             f'codebase runs the config and must be one of '
             f'{", ".join(SCOPES)}')
    try:
        require(scope, purpose=args.config)
    except DependencyError as e:
        fail(str(e))
    cfg.launcher = args.launcher
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = osp.join('./work_dirs', Path(args.config).stem)
    return cfg


def _missing_config(path):
    """Where a config was looked for, and the shipped ones of such a name."""
    shipped = sorted((Path(__file__).resolve().parents[1]
                      / 'configs').rglob('*.py'))
    stem = Path(path).stem
    close = difflib.get_close_matches(stem, [p.stem for p in shipped], n=3)
    found = [osp.relpath(p) for p in shipped if p.stem in close]
    hint = f'. Did you mean: {", ".join(found)}' if found else ''
    return f'no config at {osp.abspath(path)}{hint}'


def find_checkpoint(path):
    """Check that a checkpoint is there before anything is built.

    Args:
        path (str): A file, or an address such as ``https://...``, which is
            left to mmengine.

    Returns:
        str: The path to hand to the runner.

    Raises:
        SystemExit: If there is no such file.
    """
    if '://' in path:
        return path
    full = osp.abspath(osp.expanduser(path))
    if osp.isfile(full):
        return full
    folder = Path(full).parent
    if not folder.is_dir():
        fail(f'no checkpoint at {full}: there is no folder {folder}')
    there = sorted(p.name for p in folder.glob('*.pth'))
    fail(f'no checkpoint at {full}. Checkpoints in that folder: '
         f'{", ".join(there) or "none"}')


def require_amp_device(dtype='float16'):
    """Check that mixed precision can run here.

    Args:
        dtype (str): The low precision asked for.

    Raises:
        SystemExit: If the device does not offer it.
    """
    device = get_device()
    if device not in AMP_DEVICES:
        fail('--amp needs a GPU or another accelerator, and this machine '
             f'runs on {device!r}. Leave --amp out to compute in float32')
    if (dtype == 'bfloat16' and device == 'cuda'
            and not torch.cuda.is_bf16_supported()):
        fail('this GPU does not compute in bfloat16; use --amp-dtype float16')


def _tune_dataloaders(cfg):
    """Fill in what the codebase expects and the machine allows."""
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        loader = cfg.get(name)
        if not loader:
            continue
        if cfg.default_scope == 'mmpretrain':
            # its configs count on the tool for these
            loader.setdefault('collate_fn', dict(type='default_collate'))
            loader.setdefault('pin_memory', True)
            loader.setdefault('persistent_workers', True)
        if not loader.get('num_workers'):
            loader.persistent_workers = False
        if get_device() == 'cpu':
            loader.pin_memory = False


def _replace_sync_bn(node):
    if isinstance(node, dict):
        if node.get('type') == 'SyncBN':
            node['type'] = 'BN'
        node = node.values()
    elif not isinstance(node, (list, tuple)):
        return
    for child in node:
        _replace_sync_bn(child)


def _distribute_on_cpu(cfg):
    """Let several processes train on CPU, which mmengine takes for GPUs."""
    torch.distributed.init_process_group('gloo')
    wrapper = cfg.get('model_wrapper_cfg') or dict(
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False))
    cfg.model_wrapper_cfg = dict(wrapper, device_ids=None)
    _replace_sync_bn(cfg.model)


def _make_work_dir(path):
    """Find out whether the run can write, before all else."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as e:
        fail(f'nothing can be written to the work dir {osp.abspath(path)} '
             f'({e.strerror}). Another one: --work-dir FOLDER')


def _save_safely(cfg):
    """Put the hook that can be killed in the place of mmengine's."""
    hooks = cfg.setdefault('default_hooks', {})
    hook = hooks.setdefault('checkpoint', dict(type='CheckpointHook'))
    if hook and hook.get('type') == 'CheckpointHook':
        hook['type'] = CHECKPOINT_HOOK


def build_runner(cfg):
    """Build the runner of the codebase that the config names.

    Args:
        cfg (Config): The finished config.

    Returns:
        Runner: Ready to train or test; its checkpoints are read as data and
        written whole.

    Raises:
        SystemExit: If nothing can be written to the work dir.
    """
    _make_work_dir(cfg.work_dir)
    read_checkpoints_as_data()
    name_bad_data()
    _save_safely(cfg)
    _tune_dataloaders(cfg)
    if cfg.launcher == 'pytorch' and get_device() == 'cpu':
        _distribute_on_cpu(cfg)
    if 'runner_type' in cfg:
        return RUNNERS.build(cfg)
    return Runner.from_cfg(cfg)


def run(start):
    """Train or test, and leave in good order.

    Args:
        start (callable): ``runner.train`` or ``runner.test``.

    Returns:
        object: What it returns.

    Raises:
        SystemExit: If a checkpoint cannot be used or written, a sample of
            the data cannot be read, or the loss is not finite.
    """
    try:
        result = start()
    except (CheckpointError, NonFiniteError) as e:
        fail(str(e))
    except BadDataError as e:
        # from a worker, it comes with the traceback in front
        fail(str(e).split(f'{BadDataError.__name__}: ')[-1].strip())
    except OSError as e:
        if e.errno not in NO_ROOM:
            raise
        fail(f'{e}. The disk is full')
    except Exception:
        tell_batch(start.__self__)
        raise
    if torch.distributed.is_initialized():
        # Threads of gloo that are still alive at exit abort the process.
        torch.distributed.destroy_process_group()
    return result
