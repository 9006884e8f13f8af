"""Lets the tools of a clone that was never installed find the package."""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if (ROOT / 'mmcsan' / 'registry.py').is_file():
    sys.path.append(str(ROOT))
