"""Two processes train as one does with the joint batch."""
import socket

import pytest
import torch
from two_processes import CASES, UPDATES, VARIANTS, run

TOLERANCE = 1e-5


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory):
    """What both processes did in each case; they start only once."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    found = run(tmp_path_factory.mktemp('pair'), port, CASES)
    return dict(zip(CASES, found))


def assert_same(ours, theirs, where):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if value is None:
            assert ours[name] is None, (where, name)
        else:
            # of the largest entry, which the others are sums beside
            scale = max(1., value.abs().max().item())
            worst = (ours[name] - value).abs().max().item()
            assert worst <= TOLERANCE * scale, (where, name, worst)


@pytest.mark.parametrize('case', CASES, ids='-'.join)
def test_equals_one_process(case, outcomes):
    pair = outcomes[case]
    for outcome in pair:
        assert 'error' not in outcome, outcome['error']
    [alone] = [o['alone'] for o in pair if 'alone' in o]
    frozen = 0
    for outcome in pair:
        ours = outcome['together']
        assert len(ours['gradients']) == len(alone['gradients']) == UPDATES
        for update in range(UPDATES):
            assert_same(ours['gradients'][update],
                        alone['gradients'][update], f'gradient {update}')
        assert_same(ours['weights'], alone['weights'], 'weight')
        assert_same(ours['average'], alone['average'], 'average')
        frozen = sum(g is None for g in ours['gradients'][0].values())
    assert (frozen > 0) == ('frozen_stages' in VARIANTS[case[2]].get(
        'backbone', {}))
    # Else equality would say nothing.
    assert max(g.abs().max() for g in alone['gradients'][0].values()
               if g is not None) > 1e-3


@pytest.mark.parametrize('case', CASES, ids='-'.join)
def test_both_processes_are_bit_equal(case, outcomes):
    one, two = (o['together'] for o in outcomes[case])
    for part in ('weights', 'average'):
        for name, value in one[part].items():
            assert torch.equal(value, two[part][name]), (part, name)
