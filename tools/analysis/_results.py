"""What a model says on the test set, image by image: run, or read."""
import argparse
import io
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Callable, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import _common  # noqa: E402
from _checkpoint_fit import require_fit  # noqa: E402
from _common import fail  # noqa: E402

# isort: split
import numpy as np  # noqa: E402
import torch  # noqa: E402
from mmengine.config import DictAction  # noqa: E402
from mmengine.evaluator import BaseMetric  # noqa: E402
from mmengine.registry import DATASETS, init_default_scope  # noqa: E402
from mmengine.utils import ProgressBar  # noqa: E402

from mmcsan.checkpoints import CheckpointError  # noqa: E402
from mmcsan.checkpoints.pickles import RunUnpickler  # noqa: E402

RESULTS = ('.pkl', '.pickle')

# Advice on training and drawing, neither of which is done here.
warnings.filterwarnings('ignore', module=r'mm(det|pretrain|seg)\.')


class Sample(NamedTuple):
    """One image of the test set.

    ``truth`` and ``prediction`` are, of a classifier, the number of the class
    and the scores (C, ); of a segmentor, label maps (H, W), -1 where it is
    not judged; of a detector, dicts with ``bboxes`` (N, 4) in pixels as x1,
    y1, x2, y2, ``labels`` (N, ), perhaps ``masks``, and ``ignored`` (N, ) or
    ``scores`` (N, ). ``raw`` is what the model returned.
    """

    path: str
    truth: object
    prediction: object
    raw: dict


def new_parser(description: str, out: str) -> argparse.ArgumentParser:
    """Options of every tool that looks at predictions on the test set.

    Args:
        description (str): What the tool does.
        out (str): Default of its folder, below that of the config.

    Returns:
        argparse.ArgumentParser: To add to.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        'source',
        help='a checkpoint, with which the test set is run once; or the .pkl '
        'file of predictions that tools/test.py --out wrote')
    parser.add_argument(
        '--out',
        help=f'folder. Default: work_dirs/<name of the config>/{out}')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction,
        help='settings that override the config, as key=value')
    parser.set_defaults(
        local_rank=0, launcher='none', work_dir=None, subfolder=out)
    return parser


def add_box_options(parser) -> None:
    """Options of tools that match boxes."""
    parser.add_argument(
        '--score-thr', type=float, default=0.3,
        help='of detection: boxes of a lower score are left out. Default: '
        '0.3')
    parser.add_argument(
        '--iou-thr', type=float, default=0.5,
        help='of detection: least IoU of a match. Default: 0.5')


def _storage(data: bytes):
    """The numbers of a tensor in a pickle, read as data."""
    return torch.load(io.BytesIO(data), weights_only=True)


class _ResultsUnpickler(RunUnpickler):
    """Reads predictions: tensors, arrays and containers, nothing else."""

    objects = {
        **RunUnpickler.objects, ('torch.storage', '_load_from_bytes'): _storage
    }


def _read(path: str) -> list:
    """The predictions of a file, executing nothing that is in it."""
    try:
        with open(path, 'rb') as file:
            found = _ResultsUnpickler(file).load()
    except CheckpointError as e:
        fail(f'{path} is refused: {e}')
    except Exception as e:
        fail(f'{path} cannot be read as predictions ({type(e).__name__}: '
             f'{e}). tools/test.py --out FILE.pkl writes them')
    if not isinstance(found, list) or not all(
            isinstance(s, dict) and 'img_path' in s for s in found):
        fail(f'{path} holds no list of predictions. tools/test.py --out '
             'FILE.pkl writes them; --out-item metrics does not')
    return found


class _Visitor(BaseMetric):
    """Hands each prediction on instead of keeping it."""

    def __init__(self, visit: Callable, total: int) -> None:
        super().__init__()
        self.visit = visit
        self.bar = ProgressBar(
            total, file=sys.stderr if sys.stderr.isatty() else io.StringIO())

    def process(self, data_batch, data_samples) -> None:
        """Hand on a batch."""
        for sample in data_samples:
            self.visit(sample)
            self.bar.update()

    def compute_metrics(self, results: list) -> dict:
        """Nothing is computed here."""
        return {}

    def evaluate(self, size: int) -> dict:
        """Nothing is left to gather."""
        self.bar.file.write('\n')
        return {}


class Results:
    """The predictions of a model on the test set of its config.

    Args:
        args (argparse.Namespace): Options of :func:`new_parser`.

    Attributes:
        scope (str): 'mmpretrain', 'mmseg' or 'mmdet'.
        meta (dict): Names and colours of classes, once :meth:`each` runs.
        cfg (Config): The config.
        evaluators (list[dict]): The metrics of its test.
        out (Path): The folder to write to.
    """

    def __init__(self, args) -> None:
        self.cfg = _common.load_config(args)
        for key in ('test_cfg', 'test_dataloader'):
            if self.cfg.get(key) is None:
                fail(f'{args.config} has no {key}, so it cannot be tested')
        self.scope = self.cfg.default_scope
        self.out = Path(args.out or Path(self.cfg.work_dir) / args.subfolder)
        self.is_file = args.source.endswith(RESULTS)
        if self.is_file and not Path(args.source).is_file():
            fail(f'there is no file {args.source}')
        self.source = args.source if self.is_file else \
            _common.find_checkpoint(args.source)
        evaluator = self.cfg.get('test_evaluator')
        self.evaluators = evaluator if isinstance(evaluator, list) else [
            evaluator or {}]
        self.meta, self._truths = {}, {}

    def each(self, visit: Callable[[Sample], None]) -> int:
        """Run or read the predictions.

        Args:
            visit (callable): Called with the sample of each image, in order.

        Returns:
            int: Number of images.

        Raises:
            SystemExit: If the checkpoint is of another model or an image has
                no ground truth.
        """
        seen = 0

        def tidy(raw):
            nonlocal seen
            seen += 1
            visit(self._sample(raw))

        if self.is_file:
            samples = _read(self.source)
            init_default_scope(self.scope)
            with DATASETS.switch_scope_and_registry(self.scope) as registry:
                self._know(registry.build(self.cfg.test_dataloader.dataset))
            for raw in samples:
                tidy(raw)
        else:
            self._run(tidy)
        if not seen:
            fail(f'there are no images in the test set of {self.source}')
        return seen

    def _run(self, visit) -> None:
        cfg = self.cfg
        cfg.load_from, cfg.resume, cfg.log_level = self.source, False, 'ERROR'
        hook = cfg.get('default_hooks', {}).get('visualization')
        if hook:
            hook['enable' if self.scope == 'mmpretrain' else 'draw'] = False
        if cfg.get('visualizer'):
            cfg.visualizer.vis_backends = []
        with tempfile.TemporaryDirectory() as folder:
            cfg.work_dir = folder
            # A loop wants a metric; it is exchanged before it runs.
            cfg.test_evaluator = dict(
                type='DumpResults', out_file_path=f'{folder}/unused.pkl')
            runner = _common.build_runner(cfg)
            require_fit(runner.model, self.source)
            dataset = runner.test_loop.dataloader.dataset
            self._know(dataset)
            runner.test_evaluator.metrics = [_Visitor(visit, len(dataset))]
            _common.run(runner.test)

    def _know(self, dataset) -> None:
        """Keep what is asked of the data set: names, and boxes."""
        self.meta = dataset.metainfo
        if self.scope == 'mmdet':
            infos = map(dataset.get_data_info, range(len(dataset)))
            self._truths = {i['img_id']: i['instances'] for i in infos}

    def num_classes(self, sample: Sample) -> int:
        """How many classes there are, where the data set has no names too."""
        if self.scope == 'mmpretrain':
            return len(sample.prediction)
        return len(self.meta['classes'])

    def names(self, number: int) -> list:
        """Names of the classes, or their numbers where there are none."""
        names = [str(name) for name in self.meta.get('classes') or ()]
        return names if len(names) == number else [
            str(index) for index in range(number)
        ]

    def _sample(self, raw: dict) -> Sample:
        make = dict(mmpretrain=self._classified, mmseg=self._segmented,
                    mmdet=self._detected)[self.scope]
        try:
            truth, prediction = make(raw)
        except KeyError as e:
            fail(f'{raw.get("img_path")} has no {e}. The test set needs '
                 'annotations; of detection, the .pkl file must be of the '
                 'test set of the config')
        return Sample(raw['img_path'], truth, prediction, raw)

    def _classified(self, raw):
        truth = torch.as_tensor(raw['gt_label']).flatten()
        if len(truth) != 1:
            fail(f'{raw["img_path"]} has {len(truth)} labels; classes are '
                 'compared where each image has one')
        return int(truth), torch.as_tensor(raw['pred_score']).float().cpu(
        ).numpy()

    def _segmented(self, raw):
        # (1, H, W) -> (H, W)
        truth, prediction = (
            torch.as_tensor(raw[k]['data'])[0].cpu().numpy().astype(np.int16)
            for k in ('gt_sem_seg', 'pred_sem_seg'))
        judged = truth != self.evaluators[0].get('ignore_index', 255)
        beyond = truth[judged].max(initial=0)
        classes = len(self.meta['classes'])
        if beyond >= classes:
            fail(f'the mask of {raw["img_path"]} holds {beyond}, and there '
                 f'are {classes} classes')
        return np.where(judged, truth, -1), prediction

    def _detected(self, raw):
        objects = self._truths[raw['img_id']]
        truth = dict(
            bboxes=np.array([o['bbox'] for o in objects]).reshape(-1, 4),
            labels=np.array([o['bbox_label'] for o in objects], int),
            ignored=np.array([o.get('ignore_flag', 0) for o in objects], bool),
            masks=[o.get('mask') for o in objects])
        found = raw['pred_instances']
        prediction = {
            key: torch.as_tensor(found[key]).float().cpu().numpy()
            for key in ('bboxes', 'scores', 'labels')
        }
        prediction['labels'] = prediction['labels'].astype(int)
        if 'masks' in found:
            prediction['masks'] = found['masks']
        return truth, prediction

