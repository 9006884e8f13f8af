"""Estimate whether training a config fits the memory of a GPU.

Counts what PyTorch must hold in a training step: parameters and buffers,
gradients, the state of the optimizer, averaged copies of weights, and
activations, which are those tensors that the forward pass saves for the
backward pass. They are counted, not kept, in forward passes with losses on
this machine's CPU, with random images, of two batch sizes; other batch sizes
lie on a line with them. For the gradients of activations twice the largest
saved tensor is added. The sum is cautious: gradients come while activations
go, and it has both in full.

Not counted: the CUDA context (some hundred MB), workspaces of cuDNN and
cuBLAS, fragmentation, the buckets of distributed training (once more the
gradients), and what another kernel on the GPU saves. No GPU is used, and none
was used to check this.

    python tools/analysis/memory.py CONFIG --gpu-gb 24 --batch 4
"""
import argparse
import contextlib
import copy
import sys
import warnings
from pathlib import Path
from typing import Callable, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import _common  # noqa: E402
from _common import fail  # noqa: E402

# isort: split
import _bench  # noqa: E402
import torch  # noqa: E402
from get_flops import build  # noqa: E402
from mmengine.config import DictAction  # noqa: E402
from mmengine.logging import MMLogger  # noqa: E402
from mmengine.optim import build_optim_wrapper  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

GIB = 2**30
ROOM = .85
"""Up to this share of a GPU, what is not counted should find room, too."""

OBJECTS = 7
"""In each random image of a detector; COCO's have as many."""


class Count(NamedTuple):
    """Bytes of a forward pass: saved tensors, and the largest of them."""

    saved: int
    largest: int


def parse_args():
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--gpu-gb', type=float, default=24,
        help='memory of the GPU in GiB. Default: 24')
    parser.add_argument(
        '--batch', type=int,
        help='images a GPU. Default: the batch size of the config')
    parser.add_argument(
        '--size', nargs=2, type=int, metavar=('H', 'W'),
        help='of the images as the network gets them. Default: the largest '
        'of the training pipeline')
    parser.add_argument(
        '--amp', action='store_true',
        help="count with mixed precision: the CPU's autocast in bfloat16, "
        "which keeps some layers in another precision than a GPU's")
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction,
        help='settings that override the config, as key=value')
    parser.set_defaults(local_rank=0, launcher='none', work_dir=None)
    return parser.parse_args()


# ---- the size of images -----------------------------------------------------


def _pair(value) -> tuple:
    return (value, value) if isinstance(value, (int, float)) else tuple(value)


def image_size(pipeline: list) -> tuple:
    """The largest image that a training pipeline gives.

    Args:
        pipeline (list[dict]): Its steps.

    Returns:
        tuple[int, int] | None: Height and width; None where no step tells.
    """
    size = None
    for step in pipeline:
        if isinstance(step, (list, tuple)):
            size = image_size(step) or size
        elif step.get('transforms'):
            choices = step['transforms']
            choices = choices if isinstance(choices[0], (list, tuple)) else [
                choices]
            sizes = [s for s in map(image_size, choices) if s]
            size = max(sizes, key=lambda s: s[0] * s[1]) if sizes else size
        elif step.get('crop_size') and step.get(
                'crop_type', 'absolute') == 'absolute':
            size = _pair(step['crop_size'])
        elif step.get('scale') or step.get('scales'):
            size = _scaled(step)
    return size


def _scaled(step: dict) -> tuple:
    """Height and width that a resizing step gives at most."""
    scales = step.get('scales') or step['scale']
    if not isinstance(scales, (list, tuple)) or isinstance(
            scales[0], (int, float)):
        scales = [scales]
    sizes = []
    for scale in scales:
        width, height = _pair(scale)
        if step['type'].endswith('RandomResizedCrop'):
            width, height = height, width
        sizes.append((height, width))
    factor = max(step.get('ratio_range') or (1, ))
    return tuple(round(factor * side) for side in max(
        sizes, key=lambda s: s[0] * s[1]))


def padded(size: tuple, cfg) -> tuple:
    """A size, rounded up as the data preprocessor pads."""
    preprocessor = cfg.model.get('data_preprocessor') or {}
    step = preprocessor.get('pad_size_divisor') or 1
    return tuple(-(-side // step) * step for side in size)


# ---- data to train on -------------------------------------------------------


def random_data(cfg, batch: int, size: tuple) -> dict:
    """Random images with annotations, as a data loader gives them."""
    make = dict(mmpretrain=_labels, mmseg=_maps, mmdet=_objects)
    torch.manual_seed(0)
    return make[cfg.default_scope](cfg, batch, size)


def _images(batch: int, size: tuple) -> list:
    return list(torch.randint(0, 256, (batch, 3, *size), dtype=torch.uint8))


def _labels(cfg, batch, size):
    from mmpretrain.structures import DataSample
    number = cfg.model.head.num_classes
    return dict(
        inputs=torch.stack(_images(batch, size)),
        data_samples=[
            DataSample().set_gt_label(i % number) for i in range(batch)])


def _maps(cfg, batch, size):
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample
    number = cfg.model.decode_head.num_classes
    samples = []
    for _ in range(batch):
        # Areas of 32 pixels, as masks have areas, not noise.
        small = torch.randint(0, number, (1, 1, *(-(-s // 32) for s in size)))
        labels = torch.nn.functional.interpolate(small.float(), size)[0].long()
        samples.append(SegDataSample(
            gt_sem_seg=PixelData(data=labels),
            metainfo=dict(img_shape=size, ori_shape=size)))
    return dict(inputs=_images(batch, size), data_samples=samples)


def _objects(cfg, batch, size):
    from mmdet.testing import demo_mm_inputs
    data = demo_mm_inputs(
        batch, [(3, *size)] * batch, num_items=[OBJECTS] * batch,
        num_classes=2, with_mask=True)
    for sample in data['data_samples']:
        sample.gt_instances.labels.zero_()  # the class that all models have
    return data


# ---- counting ---------------------------------------------------------------


class SavedTensors(contextlib.AbstractContextManager):
    """Counts the bytes that are saved for a backward pass, without keeping.

    Each storage counts once, parameters and buffers not at all.

    Args:
        model (nn.Module): Whose parameters are left out.
    """

    def __init__(self, model) -> None:
        self.saved = self.largest = 0
        self._seen = {
            t.untyped_storage().data_ptr(): None
            for t in [*model.parameters(), *model.buffers()]
        }
        self._hooks = torch.autograd.graph.saved_tensors_hooks(
            self._pack, self._unpack)

    def _pack(self, tensor):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        alive = address in self._seen and (
            self._seen[address] is None or not self._seen[address].expired())
        if not alive and storage.nbytes():
            # An address may be used anew once its tensor is gone.
            self._seen[address] = StorageWeakRef(storage)
            self.saved += storage.nbytes()
            self.largest = max(self.largest, storage.nbytes())

    @staticmethod
    def _unpack(packed):
        raise RuntimeError('saved tensors are counted, not kept: there is no '
                           'backward pass')

    def __enter__(self):
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)


def loss_of(model, data: dict) -> torch.Tensor:
    """The loss of a training step, as mmengine takes it."""
    data = model.data_preprocessor(data, True)
    return model.parse_losses(model(**data, mode='loss'))[0]


def count(model, cfg, batch: int, size: tuple, amp: bool) -> Count:
    """Count what a training step saves.

    Args:
        model (nn.Module): In training mode.
        cfg (Config): Its config.
        batch (int): Number of images.
        size (tuple[int, int]): Height and width.
        amp (bool): Under the CPU's autocast.

    Returns:
        Count: In bytes.
    """
    data = random_data(cfg, batch, size)
    with SavedTensors(model) as saved, torch.autocast(
            'cpu', torch.bfloat16, enabled=amp):
        loss_of(model, data)
    return Count(saved.saved, saved.largest)


def _bytes(tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def optim_wrapper(model, cfg):
    """The optimizer of a config, in single precision."""
    settings = {k: v for k, v in cfg.optim_wrapper.items()
                if k not in ('dtype', 'loss_scale', 'use_fp16')}
    return build_optim_wrapper(model, dict(settings, type='OptimWrapper'))


def optimizer_bytes(model, cfg) -> int:
    """Bytes of the optimizer's state, after a step with gradients of 0."""
    optimizer = optim_wrapper(model, cfg).optimizer
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return _bytes(value for state in optimizer.state.values()
                  for value in state.values() if torch.is_tensor(value))


def fixed_parts(model, cfg) -> dict:
    """Bytes that do not depend on the images, by what they are."""
    weights = _bytes([*model.parameters(), *model.buffers()])
    hooks = cfg.get('custom_hooks') or []
    copies = sum('EMAHook' in str(h.get('type')) for h in hooks)
    return {
        'parameters, buffers': weights,
        'gradients': _bytes(p for p in model.parameters() if p.requires_grad),
        'optimizer state': optimizer_bytes(model, cfg),
        **({'averaged weights': weights * copies} if copies else {})
    }


def line(counts: dict) -> Callable[[int], Count]:
    """Counts of any batch size, on a line with those of two.

    Args:
        counts (dict[int, Count]): By batch size.

    Returns:
        callable: From a batch size to its count.
    """
    (a, low), (b, high) = sorted(counts.items())

    def at(batch):
        return Count(*(max(round(x + (y - x) * (batch - a) / (b - a)), 0)
                       for x, y in zip(low, high)))

    return at


class Estimate(NamedTuple):
    """Bytes of a training step by what they are, for any batch size."""

    fixed: dict
    activations: Callable[[int], Count]

    def parts(self, batch: int) -> dict:
        """By what they are."""
        found = self.activations(batch)
        return {**self.fixed, 'activations': found.saved,
                'gradients of activations': 2 * found.largest}

    def total(self, batch: int) -> int:
        """All of it."""
        return sum(self.parts(batch).values())


def trainable(cfg):
    """The model of a config, in training mode, on the CPU."""
    cfg = copy.deepcopy(cfg)
    _common._replace_sync_bn(cfg.model)
    if cfg.get('data_preprocessor'):
        # Classifiers have theirs beside the model.
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    return build(cfg)[0].train()


def estimate(cfg, batch: int, size: tuple, amp: bool = False) -> Estimate:
    """Count a config.

    Args:
        cfg (Config): The config.
        batch (int): The batch size that is asked for; of 1, batches of 1 and
            2 are counted, else of 2 and 3: batch normalisation needs two.
        size (tuple[int, int]): Height and width of the images.
        amp (bool): Mixed precision.

    Returns:
        Estimate: Of any batch size.
    """
    model = trainable(cfg)
    first = min(max(batch, 1), 2)
    counts = {n: count(model, cfg, n, size, amp) for n in (first, first + 1)}
    return Estimate(fixed_parts(model, cfg), line(counts))


def verdict(found: Estimate, batch: int, gpu: float) -> str:
    """Whether it fits, in words.

    Args:
        found (Estimate): The estimate.
        batch (int): The batch size asked for.
        gpu (float): Memory of the GPU in GiB.

    Returns:
        str: A sentence or two.
    """
    share = found.total(batch) / GIB / gpu
    if share > 1:
        text = f'batch {batch} does not fit {gpu:g} GiB'
    elif share > ROOM:
        text = (f'batch {batch} may not fit {gpu:g} GiB: what is not counted '
                f'has {gpu - share * gpu:.1f} GiB')
    else:
        text = f'batch {batch} should fit {gpu:g} GiB ({100 * share:.0f} %)'
    slope = found.total(3) - found.total(2)
    most = int((ROOM * gpu * GIB - found.total(2)) / max(slope, 1) + 2)
    return text + (f'. The largest batch within {100 * ROOM:.0f} % of it: '
                   f'{most}' if most > 0 else '. No batch does')


def main() -> None:
    """Count and print."""
    args = parse_args()
    warnings.simplefilter('ignore')
    MMLogger.get_current_instance().setLevel('ERROR')
    cfg = _common.load_config(args)
    for key in ('train_dataloader', 'optim_wrapper'):
        if not cfg.get(key):
            fail(f'{args.config} has no {key}, so it is not trained')
    dataset = cfg.train_dataloader.dataset
    while 'pipeline' not in dataset and 'dataset' in dataset:
        dataset = dataset.dataset
    size = args.size or image_size(dataset.get('pipeline') or [])
    if not size or min(size) < 1:
        fail('the pipeline of the config does not tell the size of images: '
             'give --size HEIGHT WIDTH')
    size = padded(size, cfg)
    batch = args.batch or cfg.train_dataloader.get('batch_size', 1)
    if batch < 1:
        fail(f'--batch {batch} is not at least 1')
    found = estimate(cfg, batch, size, args.amp)
    rows = [(name, f'{n / GIB:7.3f}') for name, n in
            found.parts(batch).items()]
    rows.append(('sum', f'{found.total(batch) / GIB:7.3f}'))
    print(f'{args.config}\nbatch {batch}, images {size[0]} x {size[1]}'
          f'{", mixed precision" if args.amp else ""}\n\n'
          f'{_bench.markdown(("what", "GiB"), rows)}\n\n'
          f'{verdict(found, batch, args.gpu_gb)}.\n\nCounted on a CPU. Not '
          'counted: the CUDA context, workspaces of cuDNN and cuBLAS, '
          'fragmentation, buckets of distributed training.')


if __name__ == '__main__':
    main()
