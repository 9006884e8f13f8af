"""The error of everything that concerns submissions."""
from pathlib import Path
from typing import Optional, Union


class SubmissionError(ValueError):
    """A submission would be refused, or scored for what it is not.

    Args:
        what (str): What is wrong.
        cure (str): What to do about it.
        file (str | Path, optional): The file at fault.
        index (int, optional): Of the detection in its file or of the map in
            its folder, from 0.
    """

    def __init__(self,
                 what: str,
                 cure: str,
                 file: Optional[Union[str, Path]] = None,
                 index: Optional[int] = None) -> None:
        self.what, self.cure = what, cure
        self.file, self.index = file, index
        super().__init__(what, cure, file, index)

    def at(self, file: Union[str, Path], index: int) -> 'SubmissionError':
        """The same fault with its place.

        Args:
            file (str | Path): See the class.
            index (int): See the class.

        Returns:
            SubmissionError: A new one.
        """
        return SubmissionError(self.what, self.cure, file, index)

    def __str__(self) -> str:
        place = [] if self.file is None else [str(self.file)]
        if self.index is not None:
            place.append(f'[{self.index}]')
        before = f'{" ".join(place)}: ' if place else ''
        return f'{before}{self.what}. {self.cure}'
