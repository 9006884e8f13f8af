"""``init_cfg`` that fills a backbone from a classification checkpoint."""
from typing import Optional

from mmcsan.registry import WEIGHT_INITIALIZERS
from .loader import load_classification_checkpoint


@WEIGHT_INITIALIZERS.register_module()
class PretrainedClassifier:
    """Initialise a backbone from a classification checkpoint of any format.

    Args:
        checkpoint (str): A file, a name within ``$MMCSAN_CHECKPOINTS``, or an
            ``http(s)`` URL.
        prefix (str, optional): See :func:`load_classification_checkpoint`.
            Defaults to None.
        ema (bool): Whether to take averaged weights. Defaults to False.
        min_coverage (float): See :func:`load_classification_checkpoint`.
            Defaults to 1.
        partial (str, optional): ``'qkv'`` lets plain attention fill part of
            another one; see there. Defaults to None.
    """

    def __init__(self,
                 checkpoint: str,
                 prefix: Optional[str] = None,
                 ema: bool = False,
                 min_coverage: float = 1.0,
                 partial: Optional[str] = None) -> None:
        self.checkpoint = checkpoint
        self.prefix = prefix
        self.ema = ema
        self.min_coverage = min_coverage
        self.partial = partial

    def __call__(self, module) -> None:
        """Fill ``module``."""
        load_classification_checkpoint(
            module,
            self.checkpoint,
            min_coverage=self.min_coverage,
            prefix=self.prefix,
            ema=self.ema,
            partial=self.partial)

    def _get_init_info(self) -> str:
        return f'{type(self).__name__}: load from {self.checkpoint}'
