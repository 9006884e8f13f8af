"""What a check found: counts and faults, as data and as text."""
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Dict, List, Optional

from .faults import FAULTS, Fault


@dataclass
class SplitReport:
    """What was found in one split.

    Args:
        name (str): 'train', 'val' or 'test'.
        task (str): 'semantic segmentation', 'detection' or 'instance
            segmentation'.
        images (int): Number of images.
        used (int | None): Number of images that the data set class hands to
            training; None where it could not be asked.
        sizes (Counter): Number of images by (width, height) as seen in
            training.
        columns (tuple[str]): Names of the columns of ``rows``.
        rows (list[tuple]): One a class: its name, then numbers.
        facts (dict): Further numbers, by name.
        faults (list[Fault]): All faults.
    """
    name: str
    task: str = ''
    images: int = 0
    used: Optional[int] = None
    sizes: Counter = field(default_factory=Counter)
    columns: tuple = ()
    rows: list = field(default_factory=list)
    facts: Dict[str, object] = field(default_factory=dict)
    faults: List[Fault] = field(default_factory=list)
    pictures: list = field(default_factory=list, repr=False)
    digests: Dict[str, str] = field(default_factory=dict, repr=False)

    def add(self, code: str, file: str, detail: str = '',
            level: Optional[str] = None) -> None:
        """Note a fault.

        Args:
            code (str): Key of :data:`FAULTS`.
            file (str): Where it is.
            detail (str): What was found there.
            level (str, optional): Where it is milder than usual.
        """
        self.faults.append(
            Fault(code, level or FAULTS[code].level, str(file), detail))

    def count(self, level: str) -> int:
        """How many faults of a level there are.

        Args:
            level (str): 'error' or 'note'.

        Returns:
            int: Their number.
        """
        return sum(fault.level == level for fault in self.faults)

    def to_dict(self) -> dict:
        """The findings, for a JSON file.

        Returns:
            dict: Of plain values.
        """
        return dict(
            task=self.task,
            images=self.images,
            used=self.used,
            sizes={f'{w}x{h}': n
                   for (w, h), n in sorted(self.sizes.items())},
            classes=[dict(zip(self.columns, row)) for row in self.rows],
            facts=self.facts,
            faults=[
                dict(fault._asdict(), message=fault.kind.message,
                     cure=fault.kind.cure) for fault in self.faults
            ])

    def __str__(self) -> str:
        return '\n'.join(self.lines())

    def lines(self, most: int = 5) -> List[str]:
        """The findings as text.

        Args:
            most (int): Files listed of each kind of fault. Defaults to 5.

        Returns:
            list[str]: Lines.
        """
        used = ''
        if self.used is not None and self.used != self.images:
            used = f' ({self.used:,} used)'
        what = f', {self.task}' if self.task else ''
        out = [f'{self.name}: {self.images:,} images{used}'
               f'{_sizes(self.sizes)}{what}']
        out += ['  ' + line for line in _table(self.columns, self.rows)]
        out += [f'  {name}: {value}' for name, value in self.facts.items()]
        for level in ('error', 'note'):
            out += _fault_lines(
                [f for f in self.faults if f.level == level], most)
        return out


@dataclass
class Report:
    """What was found in all splits.

    Args:
        config (str): The config.
        splits (list[SplitReport]): One a split.
    """
    config: str
    splits: List[SplitReport] = field(default_factory=list)

    def count(self, level: str) -> int:
        """How many faults of a level there are.

        Args:
            level (str): 'error' or 'note'.

        Returns:
            int: Their number.
        """
        return sum(split.count(level) for split in self.splits)

    def to_dict(self) -> dict:
        """The findings, for a JSON file.

        Returns:
            dict: Of plain values.
        """
        return dict(
            config=self.config,
            errors=self.count('error'),
            notes=self.count('note'),
            splits={split.name: split.to_dict()
                    for split in self.splits})

    def to_text(self, most: int = 5) -> str:
        """The findings, to be read.

        Args:
            most (int): Files listed of each kind of fault. Defaults to 5.

        Returns:
            str: Lines.
        """
        parts = ['\n'.join(split.lines(most)) for split in self.splits]
        errors, notes = self.count('error'), self.count('note')
        verdict = (f'{_number(errors, "error")}, {_number(notes, "note")}: '
                   + ('correct the errors before you train' if errors else
                      'the data set can be trained on'))
        return '\n\n'.join([*parts, verdict])


def _number(count, noun):
    return f'{count:,} {noun}{"" if count == 1 else "s"}'


def _sizes(sizes):
    """The sizes of images in words."""
    if not sizes:
        return ''
    if len(sizes) == 1:
        [(width, height)] = sizes
        return f', {width} x {height} pixels'
    widths, heights = zip(*sizes)
    (width, height), count = sizes.most_common(1)[0]
    return (f', {min(widths)} to {max(widths)} pixels wide and '
            f'{min(heights)} to {max(heights)} high, most often '
            f'{width} x {height} ({count:,})')


def _cell(value):
    if isinstance(value, float):
        return f'{value:.1f}'
    return f'{value:,}' if isinstance(value, int) else str(value)


def _table(columns, rows):
    """Aligned columns, the first to the left."""
    if not rows:
        return []
    cells = [columns] + [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return [
        '  '.join([row[0].ljust(widths[0])]
                  + [c.rjust(w) for c, w in zip(row[1:], widths[1:])])
        for row in cells
    ]


def _fault_lines(faults, most):
    """Faults by kind: what, where, and the cure."""
    kinds = OrderedDict()
    for fault in faults:
        kinds.setdefault(fault.code, []).append(fault)
    out = []
    for code, found in kinds.items():
        level = 'ERROR' if found[0].level == 'error' else 'note'
        out.append(f'  {level} {code} ({len(found):,}): '
                   f'{found[0].kind.message}')
        out += [
            f'      {fault.file}' + (f': {fault.detail}'
                                     if fault.detail else '')
            for fault in found[:most]
        ]
        if len(found) > most:
            out.append(f'      ... and {len(found) - most:,} more')
        out.append(f'      cure: {found[0].kind.cure}')
    return out
