"""Downloads: kept, checked, and never left half."""
import hashlib
import io
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from test_loader import build, same

from mmcsan.checkpoints import CheckpointError
from mmcsan.checkpoints import download as module
from mmcsan.checkpoints import load_classification_checkpoint
from mmcsan.checkpoints.download import download, expected_hash


class Server:
    """Answers what is put into ``files``: (status, headers, body)."""

    def __init__(self):
        self.files, self.asked = {}, []
        owner = self

        class Handler(BaseHTTPRequestHandler):

            def do_GET(self):
                owner.asked.append(self.path)
                status, headers, body = owner.files.get(
                    self.path.split('?')[0], (404, {}, b'gone'))
                if callable(body):
                    body = body()
                self.send_response(status)
                for pair in {
                        'Content-Length': str(len(body)), **headers}.items():
                    self.send_header(*pair)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        threading.Thread(
            target=self.server.serve_forever, daemon=True).start()
        self.url = f'http://127.0.0.1:{self.server.server_port}'

    def put(self, path, body, status=200, **headers):
        headers = {k.replace('_', '-'): v for k, v in headers.items()}
        self.files[path] = (status, headers, body)
        return self.url + path


@pytest.fixture
def server():
    server = Server()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.fixture(params=['variable', 'hub'])
def cache(request, tmp_path, monkeypatch):
    monkeypatch.delenv('MMCSAN_CHECKPOINTS', raising=False)
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path / 'hub'))
    if request.param == 'hub':
        return tmp_path / 'hub' / 'checkpoints'
    monkeypatch.setenv('MMCSAN_CHECKPOINTS', str(tmp_path / 'mine'))
    return tmp_path / 'mine'


def content(state=None):
    buffer = io.BytesIO()
    torch.save(state or build().state_dict(), buffer)
    return buffer.getvalue()


def kept(cache):
    return [p.name for p in cache.iterdir() if not p.name.endswith('.lock')]


def test_is_downloaded_once(server, cache):
    source, target = build(), build(seed=1)
    url = server.put('/a/swin.pth', content(source.state_dict()))
    for _ in range(2):
        load_classification_checkpoint(target, url)
        same(source, target)
    assert len(server.asked) == 1
    [name] = kept(cache)
    assert name.endswith('.swin.pth')
    assert (cache / name).stat().st_mode & 0o777 == 0o644
    # The same name elsewhere is another file.
    other = build(seed=3)
    load_classification_checkpoint(
        target, server.put('/b/swin.pth', content(other.state_dict())))
    same(other, target)


def test_hash_in_the_name(server, cache):
    data = content()
    digits = hashlib.sha256(data).hexdigest()
    url = server.put(f'/swin-{digits[:8]}.pth', data)
    assert download(url + '?token=1') == cache / f'swin-{digits[:8]}.pth'
    wrong = server.put('/swin-00000000.pth', data)
    with pytest.raises(CheckpointError, match=f'{digits[:8]} and not with 0'):
        download(wrong)
    assert len(kept(cache)) == 1


@pytest.mark.parametrize('name, digits', [
    ('swin-1a2b3c4d.pth', '1a2b3c4d'), ('x-1a2b3c4d.safetensors', '1a2b3c4d'),
    ('swin-20220316.pth', None), ('swin-20991399.pth', '20991399'),
    ('swin-base.pth', None), ('a_20210616_090925-66df6be6.pth', '66df6be6'),
])
def test_what_is_a_hash(name, digits):
    assert expected_hash(name) == digits


@pytest.mark.parametrize('answer, word', [
    (dict(body=b'x', status=404), '404'),
    (dict(body=b'x', status=503), '503'),
    (dict(body=b' <!DOCTYPE html>login'), 'web page'),
    (dict(body=b''), 'empty'),
    (dict(body=b'\x80' * 50, Content_Length='90'), '50 of 90 bytes'),
])
def test_failures_leave_nothing(server, cache, answer, word):
    url = server.put('/swin.pth', **answer)
    with pytest.raises(CheckpointError, match=word) as e:
        load_classification_checkpoint(build(), url)
    assert 'MMCSAN_CHECKPOINTS' in str(e.value)
    assert not kept(cache)


def test_no_answer(server, cache, monkeypatch):
    monkeypatch.setattr(module, 'TIMEOUT', 0.3)
    url = server.put('/swin.pth', lambda: time.sleep(1) or b'late')
    with pytest.raises(CheckpointError, match='no answer within|timed out'):
        download(url)
    with pytest.raises(CheckpointError, match='refused'):
        download('http://127.0.0.1:9/swin.pth')
    assert not kept(cache)


def test_several_at_a_time_download_once(server, cache):
    data = content()
    url = server.put('/swin.pth', lambda: time.sleep(0.3) or data)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(download(url)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 1 and len(set(found)) == 1


def test_what_was_brought_is_taken(tmp_path, monkeypatch):
    source, target = build(), build(seed=1)
    torch.save(source.state_dict(), tmp_path / 'swin.pth')
    monkeypatch.setenv('MMCSAN_CHECKPOINTS', str(tmp_path))
    load_classification_checkpoint(target,
                                   'https://example.invalid/swin.pth')
    same(source, target)


def test_sharded_at_an_address(server, cache):
    source, target = build(), build(seed=1)
    state = source.state_dict()
    keys = list(state)
    for number, part in enumerate((keys[:9], keys[9:])):
        server.put(f'/m/{number}.pth', content({k: state[k] for k in part}))
    names = {k: f'{int(i >= 9)}.pth' for i, k in enumerate(keys)}
    url = server.put('/m/model.index.json',
                     json.dumps(dict(weight_map=names)).encode())
    load_classification_checkpoint(target, url)
    same(source, target)


@pytest.mark.parametrize('source, word', [
    ('ftp://host/swin.pth', 'no way to read ftp://'),
    ('pavi://swin', 'no way to read pavi://'),
    ('s3://bucket/swin.pth', 'cannot be read'),
    ('torchvision://no_such_model', 'torchvision://no_such_model'),
    ('swin-tiny_16xb64_in1k', 'https://'),
    ('https://host/', 'names no file'),
])
def test_other_addresses(source, word):
    with pytest.raises(CheckpointError, match=word):
        load_classification_checkpoint(build(), source)


def test_file_address(tmp_path):
    source, target = build(), build(seed=1)
    path = tmp_path / 'with space.pth'
    torch.save(source.state_dict(), path)
    load_classification_checkpoint(target, path.as_uri())
    same(source, target)


def test_runner_reads_every_scheme_as_data(server, cache):
    from mmengine.runner.checkpoint import CheckpointLoader

    from mmcsan.engine import read_checkpoints_as_data
    before = CheckpointLoader._schemes.copy()
    try:
        read_checkpoints_as_data()
        for address in ('a.pth', 'https://x/a.pth', 's3://b/a', 'c:s3://b/a',
                        'openmmlab://a', 'torchvision://a', 'pavi://a'):
            loader = CheckpointLoader._get_checkpoint_loader(address)
            assert 'mmcsan' in loader.__module__
        url = server.put('/run.pth', content())
        read = CheckpointLoader.load_checkpoint(url, 'cpu')
        assert read.keys() == build().state_dict().keys()
    finally:
        CheckpointLoader._schemes = before
