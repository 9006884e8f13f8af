"""A JSON list, entry by entry: results may be larger than the memory."""
import json
import re
from pathlib import Path
from typing import Any, Iterator, TextIO, Tuple

from .errors import SubmissionError

CHUNK = 1 << 20
"""Characters read at a time."""
LARGEST = 16 << 20
"""Characters of the largest entry that is waited for."""
AGAIN = 'Write the file anew: it may have been cut off or edited'
_SPACE = re.compile(r'[ \t\r\n]*')


class _Window:
    """What of a file has been read and not yet used."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.text, self.start = file, '', 0
        self.decode = json.JSONDecoder().raw_decode

    def more(self) -> bool:
        new = self.file.read(CHUNK)
        self.text, self.start = self.text[self.start:] + new, 0
        return bool(new)

    def peek(self) -> str:
        """The next character that is not white space; none at the end."""
        while True:
            self.start = _SPACE.match(self.text, self.start).end()
            if self.start < len(self.text):
                return self.text[self.start]
            if not self.more():
                return ''

    def take(self) -> str:
        found = self.peek()
        self.start += len(found)
        return found

    def value(self) -> Any:
        """The next value; ValueError if there is none."""
        while True:
            try:
                value, self.start = self.decode(self.text, self.start)
                return value
            except ValueError:
                if len(self.text) - self.start > LARGEST or not self.more():
                    raise


def _entries(window: _Window) -> Iterator[Any]:
    first = window.take()
    if first != '[':
        kind = {'{': 'an object', '': 'nothing'}.get(first, 'no list')
        raise SubmissionError(
            f'holds {kind}, not a list of detections',
            'Give the file that CocoMetric writes: PREFIX.bbox.json or '
            'PREFIX.segm.json')
    if window.peek() == ']':
        window.take()
    else:
        while True:
            yield window.value()
            behind = window.take()
            if behind == ']':
                break
            if behind != ',':
                raise ValueError
            window.peek()
    if window.peek():
        raise SubmissionError('goes on behind the end of the list', AGAIN)


def iter_array(path: Path) -> Iterator[Tuple[int, Any]]:
    """Read a file with a JSON list.

    Args:
        path (Path): The file.

    Yields:
        tuple[int, Any]: The number of an entry, from 0, and the entry.

    Raises:
        SubmissionError: If the file is missing or no such list; names the
            entry at which it ceases to be one.
    """
    index = 0
    try:
        with open(path, encoding='utf-8') as file:
            for entry in _entries(_Window(file)):
                yield index, entry
                index += 1
    except SubmissionError as e:
        raise e.at(path, index) if index else SubmissionError(
            e.what, e.cure, path) from None
    except OSError as e:
        raise SubmissionError(f'cannot be read ({e.strerror})',
                              'Give the file that the test wrote',
                              path) from None
    except UnicodeDecodeError:
        raise SubmissionError(
            'is no text in UTF-8', 'Give the .json itself, not a zip of it',
            path) from None
    except (ValueError, RecursionError):
        raise SubmissionError('is not JSON from here on', AGAIN, path,
                              index) from None
