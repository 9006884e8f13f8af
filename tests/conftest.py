"""What all tests share."""
import os
import random
from pathlib import Path

# before torch is imported, and for the processes that tests start
os.environ.setdefault('OMP_NUM_THREADS', '2')

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def seed():
    """Give each test the same random numbers, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope='session')
def root() -> Path:
    """The clone."""
    return ROOT


@pytest.fixture(scope='session')
def shared() -> Path:
    """The folder of reference data beside the clone.

    It is not part of the project. Where the project is checked for release
    its absence is an error; elsewhere what needs it is skipped.
    """
    folder = ROOT.parent / 'shared'
    if not folder.is_dir():
        message = f'needs the reference data in {folder}'
        if os.environ.get('CI') == 'true':
            pytest.fail(message)
        pytest.skip(message)
    return folder
