"""COCO files of one's own, whose classes must be those of the config."""
from typing import List

from mmdet.datasets import CocoDataset as _CocoDataset

from mmcsan.registry import DATASETS


@DATASETS.register_module()
class CocoDataset(_CocoDataset):
    """mmdet's ``CocoDataset`` that refuses classes the file does not have.

    There, a class of another name is left out without a word, with every
    object of it, and classes in another order than the file's get each
    other's names.
    """

    def load_data_list(self) -> List[dict]:
        """Read the annotations.

        Returns:
            list[dict]: As in mmdet.

        Raises:
            ValueError: If the classes of the config are not categories of the
                file in the file's order; names what to write.
        """
        read = self.COCOAPI

        def read_and_check(path):
            coco = read(path)
            self._check_classes([c['name'] for c in coco.dataset['categories']
                                 ])
            return coco

        # On the instance, for the time of this call: the file is read once.
        self.COCOAPI = read_and_check
        try:
            return super().load_data_list()
        finally:
            del self.COCOAPI

    def _check_classes(self, there: List[str]) -> None:
        classes = list(self.metainfo['classes'])
        lost = [name for name in classes if name not in there]
        twice = sorted({n for n in there if there.count(n) > 1}
                       | {n for n in classes if classes.count(n) > 1})
        ordered = tuple(name for name in there if name in classes)
        if lost:
            problem = f'has no category named {", ".join(map(repr, lost))}'
        elif twice:
            problem = f'or classes names {", ".join(map(repr, twice))} twice'
        elif list(ordered) != classes:
            problem = (f'has them in another order: write {ordered!r}; with '
                       f'{tuple(classes)!r} they get wrong names')
        else:
            return
        raise ValueError(f'classes of the config: {self.ann_file} {problem}. '
                         f'Its categories are {tuple(there)!r}')
