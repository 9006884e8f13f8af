"""The demo from end to end, a step of each kind."""
import subprocess
import sys

import pytest
from PIL import Image


@pytest.mark.slow
@pytest.mark.parametrize('attention, title', [('csan', 'CSaN-Swin'),
                                              ('pola', 'Pola-Swin')])
def test_quick_demo(root, tmp_path, attention, title):
    work, data = tmp_path / 'work', tmp_path / 'digits'
    result = subprocess.run(
        [
            sys.executable, root / 'tools' / 'demo.py', '--quick',
            '--attention', attention, '--work-dir', work, '--data-root', data
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True)
    assert result.returncode == 0, result.stdout[-3000:]
    # Every step says what it is, as the command a user would type.
    for number in range(1, 6):
        assert f'==> {number}/5' in result.stdout
    assert result.stdout.count(
        f'python tools/train.py configs/demo/{attention}-') == 5
    assert 'Epoch(train)' in result.stdout and 'Iter(val)' in result.stdout
    report = (work / 'report.md').read_text()
    for word in (title, 'top-1', 'mIoU', 'box AP', 'mask AP', 'from scratch',
                 'seconds'):
        assert word in report
    assert 'nan' not in report
    picture = Image.open(work / 'predictions.png')
    assert picture.width > 1000 and picture.height > 800
    log = (work / 'segmentor' / 'output.txt').read_text()
    assert 'matched' in log and '(100%)' in log
    scratch = (work / 'segmentor_scratch' / 'output.txt').read_text()
    assert 'matched' not in scratch


def test_floors_are_enforced(root, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(root / 'tools'))
    from demo_report import write_report
    good = {
        'classifier': {'top-1': 96.},
        'segmentor': {'mIoU': 60.},
        'segmentor_scratch': {'mIoU': 20.},
        'detector': {'box AP': 40., 'box AP50': 70., 'mask AP': 30.},
        'detector_scratch': {'box AP': 10., 'box AP50': 30., 'mask AP': 5.},
    }
    floors = {'top-1': 95., 'mIoU': 50., 'box AP50': 40.}
    seconds = dict.fromkeys(good, 10.)
    args = (seconds, tmp_path / 'p.png', 60., floors)
    report, failures = write_report(tmp_path, 'CSaN-Swin', good, *args)
    assert not failures and '| 60.0 | 20.0 |' in report
    for name, key, value in [('classifier', 'top-1', 94.9),
                             ('segmentor', 'mIoU', 49.),
                             ('detector', 'box AP50', 39.),
                             ('segmentor_scratch', 'mIoU', 61.)]:
        bad = {run: dict(scores) for run, scores in good.items()}
        bad[name][key] = value
        _, failures = write_report(tmp_path, 'CSaN-Swin', bad, *args)
        assert len(failures) == 1 and key in failures[0]


