"""What is wrong with the data set that a config describes."""
from .config import check_config
from .faults import FAULTS, Fault, Kind
from .report import Report, SplitReport

__all__ = [
    'FAULTS', 'Fault', 'Kind', 'Report', 'SplitReport', 'check_config'
]
