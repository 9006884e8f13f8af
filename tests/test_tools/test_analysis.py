"""The benchmarks and the count of multiply-accumulates."""
import importlib
import json

import pytest
import torch
from PIL import Image


@pytest.fixture
def run(root, tmp_path, monkeypatch, capsys):
    """Run a tool in this process: each new one takes seconds to import."""
    monkeypatch.syspath_prepend(str(root / 'tools' / 'analysis'))
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def call(name, *args, fail=False):
        tool = importlib.import_module(name)
        monkeypatch.setattr('sys.argv', [name, *map(str, args)])
        capsys.readouterr()
        if fail:
            with pytest.raises((SystemExit, KeyError)) as caught:
                tool.main()
            return str(caught.value)
        tool.main()
        return capsys.readouterr().out

    yield call
    torch.set_num_threads(threads)


def test_attentions_take_turns(run, tmp_path):
    out = run('benchmark_attention', 'Pola', "dict(type='CSaN', init='paper')",
              '--sizes', '4', '6x3', '--rounds', 2, '--dim', 32, '--heads', 2,
              '--transcriptions', '--threads', 1, '--out', 'bench',
              '--no-memory')
    rows = json.loads((tmp_path / 'bench' / 'attention.json').read_text())
    names = ['Softmax', 'Pola', 'Pola, step by step',
             "dict(type='CSaN', init='paper')"]
    assert {(r['attention'], r['mode'], r['tokens']) for r in rows} == {
        (n, m, t) for n in names for m in ('infer', 'train')
        for t in (16, 18)}
    for row in rows:
        assert row['low'] <= row['ms'] <= row['high']
        assert row['ratio'] == 1 or row['attention'] != 'Softmax'
    assert 'float32, width 32, 2 heads, batch 2, 2 rounds' in out
    assert out.count('than Softmax') + out.count('crosses Softmax') == 6
    table = (tmp_path / 'bench' / 'attention.md').read_text()
    assert table in out
    assert Image.open(tmp_path / 'bench' / 'attention.png').width > 500


def test_memory_is_that_of_a_fresh_process(run, tmp_path):
    run('benchmark_attention', 'Softmax', '--sizes', '64', '--rounds', 1,
        '--mode', 'infer', '--threads', 1, '--out', 'bench')
    row, = json.loads((tmp_path / 'bench' / 'attention.json').read_text())
    # q, k, v and two outputs of 2 x 4096 x 96 float32 are 15 MiB; the logits
    # that a fused kernel never makes would be 384 MiB.
    assert 10 < row['mib'] < 100


def test_where_linear_wins(run):
    from benchmark_attention import verdicts

    def rows(*ratios):
        return [
            dict(attention='Pola', mode='infer', tokens=n, ratio=r)
            for n, r in zip((100, 400, 1600), ratios)
        ]

    # On a log-log line from (400, 2) to (1600, 1/2) one lies at 800.
    assert verdicts(rows(4, 2, .5)) == [
        'Pola, infer: is faster than Softmax from about 800 tokens on']
    assert 'faster than Softmax at every' in verdicts(rows(.9, .5, .1))[0]
    assert 'slower than Softmax at every' in verdicts(rows(9, 5, 1.1))[0]


def test_backbones_take_turns(run, root, tmp_path):
    arch = 'dict(embed_dims=24, depths=[1, 1], num_heads=[1, 1])'
    config = tmp_path / 'tiny.py'
    config.write_text(
        "model = dict(backbone=dict(type='mmcsan.SwinTransformer', "
        f"arch={arch}, init_cfg=dict(type='Pretrained', checkpoint='x')))\n")
    plain = config.with_name('plain.py')
    plain.write_text(config.read_text().replace(
        'arch=', "attention='Softmax', arch="))
    run('benchmark_backbone', plain, config, '--sizes', '32', '--rounds', 2,
        '--threads', 1, '--out', 'bench', '--no-memory')
    rows = json.loads((tmp_path / 'bench' / 'backbone.json').read_text())
    assert [r['ratio'] == 1 for r in rows] == [True, False, True, False]
    assert (tmp_path / 'bench' / 'backbone.md').exists()
    assert Image.open(tmp_path / 'bench' / 'backbone.png').width > 500


@pytest.mark.parametrize('args, word', [
    (['Pola', '--sizes', '0'], '56x56'),
    (['Pola', '--sizes', '4x4x4'], '56x56'),
    (['Pola(', '--sizes', '4'], 'neither a name'),
    (['Pola', '--sizes', '4', '--rounds', '0'], '--rounds'),
    (['Pola', '--sizes', '4', '--device', 'cuda:77'], 'GPU'),
    (['Polar', '--sizes', '4'], 'Did you mean'),
])
def test_bad_arguments_of_benchmarks(run, args, word):
    assert word in run('benchmark_attention', *args, fail=True)


@pytest.mark.parametrize('config, parameters, macs, both', [
    # The papers' tables, at 224 x 224.
    ('csan/csan-swin-tiny_8xb256-300e_in1k.py', 29.502, 4.562, 4.702),
])
def test_counts_what_the_papers_count(run, root, config, parameters, macs,
                                      both):
    text = run('get_flops', root / 'configs' / config, '--json')
    out = json.loads(text[text.index('{'):])  # a log line may come first
    assert out['shape'] == [224, 224]
    assert round(out['parameters'] / 1e6, 3) == parameters
    assert round(out['macs'] / 1e9, 3) == macs
    assert round((out['macs'] + out['attention_macs']) / 1e9, 3) == both
    assert sum(m['macs'] for m in out['modules'].values()) == out['macs']


def test_counts_a_segmentor(run, root):
    out = run(
        'get_flops', root / 'configs' / 'csan' /
        'csan-swin-tiny_upernet_8xb2-160k_ade20k-512x512.py', '--shape', 64)
    assert 'image 64x64' in out and 'FLOPs are twice as many' in out
    rows = {
        line.split()[0]: line.split()[1:]
        for line in out.splitlines() if len(line.split()) == 4
    }
    assert float(rows['decode_head'][1]) > 1
    assert float(rows['auxiliary_head'][1]) == 0
    assert 'in training only' in out
