"""What users look at after training, on tiny runs of all three codebases."""
import csv
import importlib
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from mmengine.registry import init_default_scope
from PIL import Image
from tiny import CODEBASES, write_config, write_images

SCOPES = list(CODEBASES)


@pytest.fixture(scope='module')
def tool(root):
    """Run a tool, such as 'analysis/per_class', in this process."""
    folders = [str(root / 'tools'), str(root / 'tools' / 'analysis')]
    sys.path[:0] = folders

    def run(name, *args):
        module = importlib.import_module(name.split('/')[-1])
        argv, threads = sys.argv, torch.get_num_threads()
        sys.argv = [name, *map(str, args)]
        torch.set_num_threads(1)
        try:
            module.main()
        finally:
            sys.argv = argv
            torch.set_num_threads(threads)

    yield run
    for folder in folders:
        sys.path.remove(folder)


@pytest.fixture(scope='module')
def runs(tool, tmp_path_factory):
    """A trained config of each codebase: (config, checkpoint, work dir)."""
    folder = tmp_path_factory.mktemp('runs')
    write_images(folder / 'data')
    out = {}
    for scope in SCOPES:
        config = write_config(folder / f'{scope}.py', folder / 'data', scope)
        # An epoch has two batches, and each is logged.
        config.write_text(
            config.read_text() + '\ndefault_hooks.update(logger=dict('
            "type='LoggerHook', interval=1))\n")
        if scope != 'mmpretrain':
            config.write_text(
                config.read_text() + 'visualizer.update(vis_backends=['
                "dict(type='LocalVisBackend')])\n")
        tool('train', config, '--work-dir', folder / scope)
        out[scope] = config, folder / scope / 'epoch_2.pth', folder / scope
    return out


def read(path):
    with open(path, encoding='utf-8') as file:
        return list(csv.reader(file))


def page(root, language):
    text = (root / 'docs' / 'after_training.md').read_text()
    return re.findall(rf'^```{language}\n(.*?)^```$', text, re.M | re.S)


@pytest.mark.parametrize('scope', SCOPES)
def test_commands_of_the_page(root, runs, tool, scope, tmp_path, monkeypatch):
    config, checkpoint, work = runs[scope]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(work, 'work_dirs/RUN')
    shutil.copytree(config.parent / 'data' / 'images', 'my_images')
    # The tiny nets are used to images of 32 pixels.
    commands = ''.join(page(root, 'shell'))
    for old, new in (('1024 768', '24 16'), ('512 512', '64 64')):
        assert old in commands
        commands = commands.replace(old, new)
    seen = 0
    for command in commands.splitlines():
        python, script, *args = shlex.split(command)
        assert python == 'python' and (root / script).is_file()
        names = dict(CONFIG=config, CHECKPOINT=checkpoint)
        args = [names.get(arg, arg) for arg in args]
        seen += 1
        if '--slide' in args and scope == 'mmpretrain':
            with pytest.raises(SystemExit, match='segmentation and det'):
                tool(script[len('tools/'):-3], *args)
            continue
        tool(script[len('tools/'):-3], *args)
    assert seen == 11
    written = {p.name for p in tmp_path.rglob('*') if p.is_file()}
    assert {'losses.png', 'learning_curves.png', 'per_class.csv',
            'confusion_matrix.png', 'largest_errors.png'} <= written
    drawn = tmp_path / 'work_dirs' / scope / 'analysis' / 'largest_errors'
    assert len(list(drawn.glob('*.png'))) == 4
    assert Image.open(tmp_path / 'losses.png').width > 500
    for folder in ['predictions'] + ['windows'] * (scope != 'mmpretrain'):
        assert len(list((tmp_path / folder / 'overlays').iterdir())) == 4


def test_python_of_the_page(root, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(root)
    by_path, by_name = page(root, 'python')
    config, checkpoint, _ = runs['mmdet']
    image = config.parent / 'data' / 'images' / '0.png'
    for word, path in (('CONFIG', config), ('CHECKPOINT', checkpoint),
                       ('IMAGE', image)):
        assert f"'{word}'" in by_path
        by_path = by_path.replace(f"'{word}'", repr(str(path)))
    exec(by_path, {})
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])) == 3
    names = {}
    init_default_scope('mmpretrain')  # as in a process of its own
    exec(by_name, names)
    backbone = names['inferencer'].model.backbone
    assert type(backbone).__module__.startswith('mmcsan.')
    from mmdet.apis import DetInferencer
    with pytest.raises(ValueError, match='Cannot find model'):
        DetInferencer('csan-swin-tiny_retinanet_8xb2-1x_coco')


@pytest.mark.parametrize('scope', ['mmseg', 'mmpretrain'])
def test_other_inferencers_take_paths(runs, scope):
    config, checkpoint, _ = runs[scope]
    image = str(config.parent / 'data' / 'images' / '0.png')
    if scope == 'mmseg':
        from mmseg.apis import MMSegInferencer
        found = MMSegInferencer(str(config), str(checkpoint), device='cpu')(
            image)['predictions']
        assert found.shape == (32, 32)
    else:
        from mmpretrain.apis import ImageClassificationInferencer
        init_default_scope('mmpretrain')
        [found] = ImageClassificationInferencer(
            str(config), pretrained=str(checkpoint))(image)
        assert found['pred_class'] in ('even', 'odd')


# ---- scores -----------------------------------------------------------------


@pytest.mark.parametrize('scope', SCOPES)
def test_means_are_those_of_the_test(runs, tool, scope, tmp_path):
    config, checkpoint, _ = runs[scope]
    tool('test', config, checkpoint, '--work-dir', tmp_path, '--out',
         tmp_path / 'metrics.json')
    metrics = json.loads((tmp_path / 'metrics.json').read_text())
    tool('test', config, checkpoint, '--work-dir', tmp_path, '--out',
         tmp_path / 'found.pkl')
    tables = []
    for source in (checkpoint, tmp_path / 'found.pkl'):
        tool('analysis/per_class', config, source, '--out', tmp_path)
        tables.append((tmp_path / 'per_class.csv').read_text())
    assert tables[0] == tables[1]
    header, *rows = read(tmp_path / 'per_class.csv')
    columns = {name: np.array([float(row[i]) for row in rows])
               for i, name in enumerate(header) if i}
    if scope == 'mmpretrain':
        share = columns['images'] / columns['images'].sum()
        assert share @ columns['recall'] == pytest.approx(
            metrics['accuracy/top1'])
    elif scope == 'mmseg':
        assert columns['IoU'].mean() == pytest.approx(metrics['mIoU'], abs=.01)
        assert columns['Acc'].mean() == pytest.approx(metrics['mAcc'], abs=.01)
    else:
        for name, key in (('AP', 'mAP'), ('AP50', 'mAP_50')):
            assert columns[name].mean() / 100 == pytest.approx(
                metrics[f'coco/bbox_{key}'], abs=5e-4)


def test_sorted_and_missing_classes(tool):
    import per_class
    counts = np.array([[8, 2, 0], [0, 5, 5], [0, 0, 0]])
    columns = per_class.of_matrix(counts, 'mmseg')
    np.testing.assert_allclose(columns['IoU'], [80, 500 / 12, 0])
    np.testing.assert_allclose(columns['Acc'], [80, 50, np.nan])
    rows = per_class.rows(['a', 'b', 'c'], columns, 'iou')
    assert [row[0] for row in rows] == ['c', 'b', 'a']
    assert per_class.mean_row(columns)[3] == pytest.approx(65)
    assert per_class.cell(np.nan).strip() == '-'
    with pytest.raises(SystemExit, match='% of pixels, IoU'):
        per_class.rows(['a', 'b', 'c'], columns, 'AP')


# ---- confusion --------------------------------------------------------------


def sample(truth, found, crowd=()):
    """Boxes of 10 x 10 at x, with labels: (x, label) or (x, label, score)."""
    from _results import Sample

    def boxes(xs):
        return np.array([[x, 0, x + 10, 10] for x in xs], float).reshape(-1, 4)

    objects = [*truth, *((x, 0) for x in crowd)]
    return Sample(
        'a.png',
        dict(bboxes=boxes(x for x, _ in objects),
             labels=np.array([c for _, c in objects], int),
             ignored=np.arange(len(objects)) >= len(truth)),
        dict(bboxes=boxes(x for x, _, _ in found),
             labels=np.array([c for _, c, _ in found], int),
             scores=np.array([s for _, _, s in found], float)), {})


@pytest.mark.parametrize('truth, found, crowd, expected', [
    # one is found, one is called another, one is missed
    ([(0, 0), (100, 1), (200, 1)], [(1, 0, .9), (100, 0, .9)], (),
     [[1, 0, 0], [1, 0, 1], [0, 0, 0]]),
    # the right class goes first, though another box fits better
    ([(0, 0)], [(0, 1, .9), (2, 0, .4)], (),
     [[1, 0, 0], [0, 0, 0], [0, 1, 0]]),
    # a second box of one object is too many; low scores do not count
    ([(0, 0)], [(0, 0, .9), (1, 0, .8), (0, 0, .1)], (),
     [[1, 0, 0], [0, 0, 0], [1, 0, 0]]),
    # on a crowd nothing is wrong, nor missed
    ([], [(50, 1, .9), (200, 1, .9)], (50, ),
     [[0, 0, 0], [0, 0, 0], [0, 1, 0]]),
    ([], [], (), [[0, 0, 0]] * 3),
])
def test_boxes_are_matched_once(tool, truth, found, crowd, expected):
    from _matrix import ConfusionMatrix
    matrix = ConfusionMatrix('mmdet')
    matrix.add(sample(truth, found, crowd), 2)
    assert matrix.counts.tolist() == expected


def test_pixels_that_are_not_judged_do_not_count(tool):
    from _matrix import ConfusionMatrix
    from _results import Sample
    matrix = ConfusionMatrix('mmseg')
    matrix.add(Sample('', np.array([[0, 1, -1]]), np.array([[0, 0, 1]]), {}),
               2)
    assert matrix.counts.tolist() == [[1, 0], [1, 0]]


def test_normalised(tool):
    from _matrix import percent
    counts = np.array([[3, 1], [0, 0]])
    assert percent(counts, 'true').tolist() == [[75, 25], [0, 0]]
    assert percent(counts, 'pred').tolist() == [[100, 100], [0, 0]]
    assert percent(counts, 'all').tolist() == [[75, 25], [0, 0]]
    assert percent(counts, 'none').tolist() == counts.tolist()


@pytest.mark.parametrize('classes', [2, 150])
def test_matrices_are_drawn(tool, classes, tmp_path):
    import confusion_matrix
    path = tmp_path / 'drawn.png'
    confusion_matrix.plot(
        np.eye(classes) * 100, [f'class {i}' for i in range(classes)],
        'title', False, path)
    # Each cell has pixels enough to be seen.
    assert Image.open(path).width >= min(15 * classes, 2400)


def test_largest_confusions(tool):
    import confusion_matrix
    text = confusion_matrix.largest(
        np.array([[5, 0, 5], [1, 9, 0], [0, 0, 7]]), ['a', 'b', 'c'],
        'images', 10)
    first, second = text.splitlines()[2:]
    assert re.findall(r'[^| ]+', first) == ['a', 'c', '5', '50.0', '41.7']
    assert re.findall(r'[^| ]+', second)[:3] == ['b', 'a', '1']


# ---- largest errors ---------------------------------------------------------


@pytest.mark.parametrize('scope', SCOPES)
def test_the_worst_go_first(runs, tool, scope, tmp_path, capsys):
    config, checkpoint, _ = runs[scope]
    tool('analysis/largest_errors', config, checkpoint, '--top', 2, '--out',
         tmp_path, '--score-thr', 0)
    scores = [float(row[0]) for row in read(tmp_path / 'largest_errors.csv')[
        1:]]
    assert len(scores) == 4 and scores == sorted(scores)
    assert len(list((tmp_path / 'largest_errors').iterdir())) == 2
    printed = capsys.readouterr().out
    first = read(tmp_path / 'largest_errors.csv')[1][1]
    assert re.search(rf'\| 1 +\| {scores[0]:.3f} +\| {first}', printed)


def test_scores_of_images(tool):
    import largest_errors
    from _matrix import ConfusionMatrix
    one = sample([(0, 0), (100, 1)], [(0, 0, .9), (50, 0, .9)])
    counts = ConfusionMatrix('mmdet').add(one, 2)
    scored = largest_errors.judge(one, counts, 'mmdet', ['a', 'b'])
    assert scored.score == pytest.approx(2 / 4)
    assert scored.detail == ('1 of 2 objects found, 1 missed, 0 of another '
                             'class, 1 predictions too many')


# ---- learning curves --------------------------------------------------------


def log(folder, date, entries):
    path = folder / date / 'vis_data' / 'scalars.json'
    path.parent.mkdir(parents=True)
    path.write_text('\n'.join(map(json.dumps, entries)))


def test_resumed_runs_are_joined(tool, tmp_path, capsys):
    import learning_curves as curves

    def steps(*iterations, loss):
        return [dict(lr=.1, loss=loss, iter=i, step=i) for i in iterations]

    log(tmp_path, '1', [*steps(10, 20, loss=3.), dict(mIoU=40., step=20),
                        *steps(30, 40, loss=2.), dict(mIoU=50., step=40)])
    log(tmp_path, '2', [*steps(30, 40, 50, loss=1.), dict(mIoU=60., step=40)])
    log(tmp_path, '3', [dict(mIoU=99., step=0)])  # a test
    [run] = [curves.join('run', curves.parts(tmp_path))]
    assert run.train['loss'] == [(10, 3), (20, 3), (30, 1), (40, 1), (50, 1)]
    assert run.val['mIoU'] == [(20, 40), (40, 60)]
    assert curves.choose([run], None) == ['loss', 'mIoU']
    assert curves.choose([run], ['l*s']) == ['loss']
    with pytest.raises(SystemExit, match="no run has 'mAP'. There are: lr, "):
        curves.choose([run], ['mAP'])
    assert curves.best('mIoU', run.val['mIoU']).value == 60
    assert curves.best('loss', run.train['loss']).value == 1


def test_scores_by_epoch_and_torn_logs(tool, tmp_path, capsys):
    import learning_curves as curves
    log(tmp_path, '1', [dict(lr=.1, loss=2., epoch=1, iter=5, step=5),
                        {'accuracy/top1': 50., 'step': 1}])
    path = tmp_path / '1' / 'vis_data' / 'scalars.json'
    path.write_text(path.read_text() + '\n{"lr": 0.1, "lo')
    tool('analysis/learning_curves', path, '--out', tmp_path / 'x.png')
    out, err = capsys.readouterr()
    assert 'line 3 is cut off' in err and 'epoch 1' in out
    assert curves.smoothed([curves.Point(0, 4), curves.Point(1, 2)], .5) == [
        4, pytest.approx(8 / 3)]


@pytest.mark.parametrize('args, word', [
    (['nowhere'], 'there is no nowhere'),
    (['.'], 'no scalars.json'),
    (['.', '--smooth', '1'], '--smooth'),
    (['.', '--names', 'a', 'b'], '2 names for 1'),
])
def test_bad_arguments_of_curves(tool, tmp_path, monkeypatch, args, word):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=word):
        tool('analysis/learning_curves', *args)


# ---- what is refused --------------------------------------------------------


class Evil:
    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark, )


def test_predictions_are_read_as_data(runs, tool, tmp_path):
    path, mark = tmp_path / 'evil.pkl', tmp_path / 'executed'
    path.write_bytes(pickle.dumps([dict(img_path='a', x=Evil(mark))]))
    with pytest.raises(SystemExit, match='evil.pkl is refused'):
        tool('analysis/per_class', runs['mmseg'][0], path)
    assert not mark.exists()
    path.write_bytes(pickle.dumps(dict(mIoU=1.)))
    with pytest.raises(SystemExit, match='no list of predictions'):
        tool('analysis/per_class', runs['mmseg'][0], path)


@pytest.mark.parametrize('name', ['analysis/confusion_matrix', 'predict'])
def test_weights_of_another_model(runs, tool, name):
    images = [runs['mmseg'][0].parent / 'data'] * (name == 'predict')
    with pytest.raises(SystemExit, match='not of the model of the config: '
                       r'\d+ weights are missing'):
        tool(name, runs['mmseg'][0], runs['mmdet'][1], *images)


# ---- memory -----------------------------------------------------------------


def test_saved_tensors_count_once(tool):
    from memory import SavedTensors
    net = torch.nn.Linear(8, 8)
    x = torch.rand(4, 8)
    with SavedTensors(net) as saved:
        y = net(x)  # saves x, and the weight, which is a parameter
        y.exp().mul(x)  # saves its output, and x again
    assert saved.saved == 2 * 4 * 8 * 4 and saved.largest == 4 * 8 * 4


@pytest.mark.parametrize('pipeline, size', [
    ([dict(type='RandomResize', scale=(2048, 512), ratio_range=(.5, 2)),
      dict(type='RandomCrop', crop_size=(512, 640))], (512, 640)),
    ([dict(type='RandomResize', scale=(1333, 800), ratio_range=(.8, 1.5))],
     (1200, 2000)),
    ([dict(type='RandomChoiceResize', scales=[(1333, 480), (1333, 800)])],
     (800, 1333)),
    ([dict(type='RandomResizedCrop', scale=224)], (224, 224)),
    ([dict(type='LoadImageFromFile')], None),
])
def test_size_of_a_pipeline(tool, pipeline, size):
    from memory import image_size
    assert image_size(pipeline) == size


MEASURE = '''
import json, sys
sys.path.insert(0, sys.argv[1])
import _bench, memory
from mmengine.config import Config
cfg, batch, size = Config.fromfile(sys.argv[2]), 5, (224, 224)
parts = memory.estimate(cfg, batch, size).parts(batch)
model = memory.trainable(cfg)
wrapper = memory.optim_wrapper(model, cfg)
def step(number):
    data = memory.random_data(cfg, number, size)
    return lambda: wrapper.update_params(memory.loss_of(model, data))
step(2)()  # the optimizer has its state from here on
parts['measured'] = _bench.peak_memory(step(batch), 'cpu') * 2**20
print(json.dumps(parts))
'''


@pytest.mark.skipif(
    not sys.platform.startswith('linux'), reason='reads /proc')
def test_estimate_and_a_real_step(root, tmp_path):
    config = root / 'configs/csan/csan-swin-min-pure_8xb256-300e_in1k.py'
    result = subprocess.run(
        [sys.executable, '-c', MEASURE,
         str(root / 'tools' / 'analysis'), str(config)],
        # Large tensors go back to the system as soon as they are freed.
        env=dict(os.environ, OMP_NUM_THREADS='1',
                 MALLOC_MMAP_THRESHOLD_='65536'),
        capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    parts = json.loads(result.stdout.splitlines()[-1])
    real = parts.pop('measured') + parts['parameters, buffers'] + parts[
        'optimizer state']
    # Cautious by the gradients, which come while activations go.
    slack = parts['gradients'] + parts['gradients of activations']
    assert real * .95 <= sum(parts.values()) <= real * 1.05 + slack
