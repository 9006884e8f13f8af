"""The comparison of stacks of attention alone."""
import importlib
import json
import sys

import pytest


@pytest.fixture
def tool(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / 'tools'))
    return importlib.import_module('pure_attention')


@pytest.mark.parametrize('scores, words', [
    ((98., 90., 96.), 'loses 8.0 points; CSaN makes good 75%'),
    ((98., 90., 99.), 'CSaN makes good 112%'),
    ((98., 90., 88.), 'CSaN adds to it, by 25%'),
    ((90., 90., 99.), 'no gap to close'),
    ((90., 91., 99.), 'no gap to close'),
])
def test_says_what_came_out_whatever_it_is(tool, scores, words):
    assert words in tool.verdict(dict(zip(tool.ARMS, scores)))


def test_every_seed_of_every_arm_is_run_and_reported(tool, monkeypatch,
                                                     tmp_path):
    import mmcsan.datasets
    tops = iter([95., 80., 90., 97., 82., 94.])
    runs = []

    def train(title, config, folder, options):
        assert config.is_file()
        runs.append((config.stem, options))
        logs = folder / '20260101_000000' / 'vis_data'
        logs.mkdir(parents=True)
        (logs / 'scalars.json').write_text(
            json.dumps({'accuracy/top1': next(tops)}) + '\n')

    monkeypatch.setattr(tool, 'train', train)
    monkeypatch.setattr(mmcsan.datasets, 'build_digits', lambda root: None)
    monkeypatch.setattr(sys, 'argv', [
        'pure_attention.py', '--seeds', '3', '4', '--epochs', '2',
        '--work-dir',
        str(tmp_path), '--images', '8'
    ])
    tool.main()
    assert [stem for stem, _ in runs] == [
        f'{arm}_1xb64_digits-cls' for arm in tool.ARMS
    ] * 2
    for (_, options), seed in zip(runs, (3, 3, 3, 4, 4, 4)):
        assert f'randomness.seed={seed}' in options
        assert 'train_cfg.max_epochs=2' in options
        assert 'param_scheduler.1.end=2' in options
        assert 'train_dataloader.dataset.indices=8' in options
    report = (tmp_path / 'report.md').read_text()
    assert '| 95.0, 97.0 | 96.00 | 1.41 |' in report
    assert 'loses 15.0 points; CSaN makes good 73%' in report
    # One more attention is smaller than an FFN, CSaN's not by as much.
    sizes = [
        int(line.split('|')[2]) for line in report.splitlines()
        if line.startswith('| ') and 'FFNs' in line or 'alone |' in line
    ]
    assert sizes[0] > sizes[2] > sizes[1]
