"""Runs that are killed, at every stage of a write and at random moments."""
import shutil
import signal
import time

import pytest
import torch
from faulty_runs import (EPOCHS, ITERS_AN_EPOCH, KEPT, STAGES,
                         assert_little_is_lost, finish, kill_at_random, make,
                         read)

from mmcsan.checkpoints import CheckpointError
from mmcsan.engine import safe_checkpoints
from mmcsan.engine.safe_checkpoints import PARTIAL, latest_checkpoint

LAST = f'epoch_{EPOCHS}.pth'


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """A config, and the work dir of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp('killed')
    config = make(folder)
    assert finish(config, folder / 'whole', False) == 0
    return config, folder / 'whole'


def assert_ends_as_if_never_stopped(work, whole):
    assert {p.name for p in work.glob('*.pth')
            } == {f'epoch_{EPOCHS - i}.pth' for i in range(KEPT)}
    assert not list(work.glob('*' + PARTIAL))
    ours, theirs = (read(folder / LAST) for folder in (work, whole))
    assert ours['meta']['iter'] == EPOCHS * ITERS_AN_EPOCH
    for key, value in theirs['state_dict'].items():
        assert torch.equal(ours['state_dict'][key], value), key


@pytest.mark.parametrize('stage', STAGES)
def test_killed_within_a_write(stage, whole, tmp_path):
    config, unstopped = whole
    work = tmp_path / 'work'
    # the third checkpoint is the first that another is removed for
    number = 1 if stage == 'pointed to, none removed' else 3
    code = finish(config, work, False, (stage, number))
    assert code == -signal.SIGKILL, (work / 'output.txt').read_text()
    saved = assert_little_is_lost(work)
    assert saved == (2 if STAGES[stage][2] in ('half', 'before')
                     and STAGES[stage][:2] in (('put', 'pth'),
                                               ('replace', 'pth'))
                     else 3) * ITERS_AN_EPOCH
    assert finish(config, work, True) == 0, (work / 'output.txt').read_text()
    assert_ends_as_if_never_stopped(work, unstopped)


def test_killed_at_random(whole, tmp_path):
    config, unstopped = whole
    work = tmp_path / 'work'
    kill_at_random(config, work, 5, seed=0)
    assert finish(config, work, True) == 0
    assert_ends_as_if_never_stopped(work, unstopped)


@pytest.mark.parametrize('how', ['half', 'empty', 'one bit', 'pointer'])
def test_resume_passes_over_what_is_damaged(how, whole, tmp_path,
                                            monkeypatch):
    """Such as a run leaves that did not write as ours do."""
    work = tmp_path / 'work'
    shutil.copytree(whole[1], work)
    newest, before = work / LAST, work / f'epoch_{EPOCHS - 1}.pth'
    content = newest.read_bytes()
    if how == 'pointer':
        (work / 'last_checkpoint').write_text('')
        assert latest_checkpoint(str(work)) == str(newest)
        return
    (work / 'last_checkpoint').write_text(str(newest))
    middle = len(content) // 2
    newest.write_bytes({
        'half': content[:middle],
        'empty': b'',
        'one bit':
        content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1:]
    }[how])
    warned = []
    monkeypatch.setattr(safe_checkpoints, 'print_log',
                        lambda text, **kwargs: warned.append(text))
    assert latest_checkpoint(str(work)) == str(before)
    assert len(warned) == 1 and f'{newest} is damaged' in warned[0]
    before.write_bytes(b'')
    with pytest.raises(CheckpointError, match='no checkpoint .* is whole'):
        latest_checkpoint(str(work))


def test_checkpoints_of_an_earlier_run_are_left_alone(whole, tmp_path):
    """A run that was started anew in a folder goes on with its own."""
    work = tmp_path / 'work'
    shutil.copytree(whole[1], work)
    time.sleep(0.01)
    own = work / 'epoch_1.pth'
    shutil.copy(work / LAST, own)
    (work / 'last_checkpoint').write_text(str(own))
    assert latest_checkpoint(str(work)) == str(own)
