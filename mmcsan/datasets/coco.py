"""COCO files of one's own, whose classes must be those of the config."""
from typing import List

from mmdet.datasets import CocoDataset as _CocoDataset
from mmengine.fileio import load

from mmcsan.registry import DATASETS


@DATASETS.register_module()
class CocoDataset(_CocoDataset):
    """mmdet's ``CocoDataset`` that refuses classes the file does not have.

    There, a class of another name is left out without a word, and so is
    every object of it.
    """

    def load_data_list(self) -> List[dict]:
        """Read the annotations.

        Returns:
            list[dict]: As in mmdet.

        Raises:
            ValueError: If a class of the config is no category of the file;
                names both.
        """
        data_list = super().load_data_list()
        classes = self.metainfo['classes']
        if len(self.cat_ids) != len(classes):
            there = [c['name'] for c in load(self.ann_file)['categories']]
            lost = [name for name in classes if name not in there]
            raise ValueError(
                f'{self.ann_file} has no category named '
                f'{", ".join(map(repr, lost or classes))}; its categories are '
                f'{", ".join(map(repr, there))}. Set classes in the config to '
                'these names')
        return data_list
