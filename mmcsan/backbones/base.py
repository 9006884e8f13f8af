"""What every backbone shares: freezing, modes, output norms, arguments."""
from abc import ABCMeta, abstractmethod
from collections import OrderedDict
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.transformer import PatchEmbed
from mmengine.model import BaseModule, initialize
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from mmcsan.arguments import (FLAG, INIT, LAYER_NORM, NAMED, NONE, RATE,
                              Allowed, CheckedArguments, built, integer,
                              list_of, number, per_stage, sides)
from mmcsan.attentions import BaseAttention
from mmcsan.attentions.graphs import in_graph, open_sizes
from mmcsan.registry import unknown_name

_FROM_CLASSIFIER = 'mmcsan.PretrainedClassifier'

_INDEX = integer(None)
"""Of a stage; negative ones count from the last."""


def resolve_arch(arch: Union[str, dict], zoo: Dict[str, dict],
                 parts: Dict[str, Allowed], prefix: str) -> dict:
    """Settings of an architecture given by name or as a dict.

    Args:
        arch (str | dict): A name of ``zoo``, with or without ``prefix``, or a
            dict with exactly ``parts``.
        zoo (dict[str, dict]): The known architectures.
        parts (dict[str, Allowed]): What an architecture consists of. Those
            that are lists have one entry for each stage. Among them are
            ``embed_dims`` and ``num_heads``.
        prefix (str): Family name that may be left out, such as ``'swin-'``.

    Returns:
        dict: The settings.

    Raises:
        KeyError: If the name is unknown; lists the known ones.
        ValueError: If a dict lacks a key or has one too many, or a part is
            not what it may be.
    """
    if isinstance(arch, str):
        name = arch.lower()
        for candidate in (name, prefix + name):
            if candidate in zoo:
                return dict(zoo[candidate])
        raise KeyError(f'{unknown_name("arch", arch, zoo)}; or a dict with '
                       f'{", ".join(parts)}')
    missing = [key for key in parts if key not in arch]
    unknown = [key for key in arch if key not in parts]
    if missing or unknown:
        raise ValueError(f'arch={arch!r} needs exactly the keys '
                         f'{", ".join(parts)}; missing: {missing}, '
                         f'unknown: {unknown}')
    for key, allowed in parts.items():
        allowed.check(f'arch: {key}', arch[key])
    lists = {key: list(value) for key, value in arch.items()
             if not isinstance(value, (int, float))}
    if len(set(map(len, lists.values()))) > 1:
        raise ValueError(f'arch={arch!r}: {", ".join(lists)} must have one '
                         'entry for each stage, lists of one length')
    _check_heads(arch, max(map(len, lists.values()), default=1))
    return {**arch, **lists}


def _check_heads(arch: dict, num_stages: int) -> None:
    """Heads divide the width, of every stage. What is given for the first
    stage alone doubles from stage to stage."""
    dims, heads = arch['embed_dims'], arch['num_heads']
    for stage in range(num_stages):
        dim, head = (
            value * 2**stage if isinstance(value, int) else value[stage]
            for value in (dims, heads))
        if dim % head:
            raise ValueError(f'arch: num_heads={heads!r} must divide the '
                             f'width of each stage, embed_dims={dims!r}, but '
                             f'{head} does not divide {dim}')


def pair(value: Union[int, Sequence[int]]) -> Tuple[int, int]:
    """A height and a width of one number, for both, or of two."""
    return (value, value) if isinstance(value, int) else tuple(value)


def hidden_width(dim: int, mlp_ratio: float) -> int:
    """Hidden channels of an FFN.

    Args:
        dim (int): Number of channels.
        mlp_ratio (float): Hidden width in terms of ``dim``.

    Returns:
        int: Rounded down.

    Raises:
        ValueError: If that is none.
    """
    if int(dim * mlp_ratio) < 1:
        raise ValueError(f'mlp_ratio={mlp_ratio} must leave at least one '
                         f'hidden channel of dim={dim}')
    return int(dim * mlp_ratio)


def per_block(value,
              depths: Sequence[int],
              name: str,
              pairs: bool = False) -> List[list]:
    """Spread a setting over stages and blocks.

    Args:
        value: One value for all blocks; or a list with one entry a stage,
            each a value or a list with one value a block.
        depths (Sequence[int]): Number of blocks of each stage.
        name (str): The argument's name, for errors.
        pairs (bool): Whether a tuple within the list is one value, such as a
            (height, width), and not a list. Defaults to False.

    Returns:
        list[list]: ``result[stage][block]``.

    Raises:
        ValueError: If a list is as long as neither.
    """
    stages = value if isinstance(value, (list, tuple)) else [value] * len(
        depths)
    if len(stages) != len(depths):
        raise ValueError(f'{name}={value!r} has {len(stages)} entries, one '
                         f'for each of {len(depths)} stages expected')
    spread = []
    lists = list if pairs else (list, tuple)
    for index, (stage, depth) in enumerate(zip(stages, depths)):
        blocks = stage if isinstance(stage, lists) else [stage] * depth
        if len(blocks) != depth:
            raise ValueError(
                f'{name}[{index}]={stage!r} has {len(blocks)} entries, one '
                f'for each of {depth} blocks expected')
        spread.append(list(blocks))
    return spread


def whole_patches(stem: PatchEmbed, x: Tensor) -> Tensor:
    """Pad a map to whole patches where the stem itself would have to decide.

    mmcv's stem pads if that is needed; in a graph for images of any size that
    is not known.

    Args:
        stem (PatchEmbed): The stem; its patches do not overlap.
        x (Tensor): Images, or maps, (B, C, H, W).

    Returns:
        Tensor: The same, padded below and to the right in such graphs.
    """
    if not open_sizes(x.shape[2:]):
        return x
    rows, cols = stem.projection.stride
    return F.pad(x, (0, -x.shape[3] % cols, 0, -x.shape[2] % rows))


def kept_plan(plans: OrderedDict, size: Tuple[int, int], rest: Tuple,
              most: int, make: Callable[[], object]) -> object:
    """How maps of one size are cut, masks included, made once.

    Args:
        plans (OrderedDict): What is kept.
        size (tuple[int, int]): H and W of the map. While a graph is made the
            plan is part of it, and nothing to keep.
        rest (tuple): What the plan depends on besides.
        most (int): How many plans are kept; the oldest go.
        make (callable): Makes the plan.

    Returns:
        The plan.
    """
    if in_graph():
        return make()
    key = (tuple(size), *rest)
    if key not in plans:
        # Masks made under inference_mode could not be used in training.
        with torch.inference_mode(False):
            plans[key] = make()
        while len(plans) > most:
            plans.popitem(last=False)
    return plans[key]


class BaseBackbone(CheckedArguments, BaseModule, metaclass=ABCMeta):
    """A backbone of stages that returns a tuple of NCHW maps.

    A subclass sets ``depths`` and ``stage_channels``, builds its modules and
    ends its constructor with :meth:`freeze`. What its arguments may be is
    told by ``arguments``: those below need no entry of its own.

    Args:
        out_indices (Sequence[int]): Stages to return, ascending.
        num_stages (int): Number of stages.
        frozen_stages (int): -1 freezes nothing, 0 the stem, k the stem and
            the first k stages with their output norms.
        norm_eval (bool): Whether batch norms stay in evaluation mode.
        with_cp (bool): Whether to recompute blocks in backward to save
            memory.
        init_cfg (dict, optional): Initialization config.

    Raises:
        ValueError: If an index lies outside of the stages.
    """

    arguments = dict(
        arch=Allowed('a name or a dict', lambda value: isinstance(
            value, (str, dict))),
        attention=per_stage(NAMED),
        img_size=sides(),
        patch_size=integer(),
        in_channels=integer(),
        mlp_ratio=number(above=0),
        qkv_bias=FLAG,
        drop_rate=RATE,
        attn_drop_rate=RATE,
        drop_path_rate=RATE,
        out_indices=NONE | _INDEX | list_of(_INDEX),
        frozen_stages=integer(-1),
        norm_eval=FLAG,
        norm_cfg=NONE | LAYER_NORM,
        with_cp=FLAG,
        init_cfg=INIT)
    """What arguments may be that backbones have in common."""

    def __init__(self, out_indices: Sequence[int], num_stages: int,
                 frozen_stages: int, norm_eval: bool, with_cp: bool,
                 init_cfg: Optional[dict]) -> None:
        super().__init__(init_cfg)
        if isinstance(out_indices, int):
            out_indices = (out_indices, )
        indices = tuple(
            index + num_stages if index < 0 else index
            for index in out_indices)
        ascending = list(indices) == sorted(set(indices))
        if not indices or not ascending or not (
                0 <= indices[0] and indices[-1] < num_stages):
            raise ValueError(f'out_indices={tuple(out_indices)} must ascend '
                             f'within the {num_stages} stages 0 to '
                             f'{num_stages - 1}')
        if frozen_stages > num_stages:
            raise ValueError(f'frozen_stages={frozen_stages} must lie within '
                             f'-1 to {num_stages}, the number of stages')
        self.out_indices = indices
        self.num_stages = num_stages
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.with_cp = with_cp

    @property
    def out_channels(self) -> List[int]:
        """Channels of each returned map."""
        return [self.stage_channels[index] for index in self.out_indices]

    @property
    def num_features(self) -> int:
        """Channels of the last stage."""
        return self.stage_channels[-1]

    @abstractmethod
    def stem_modules(self) -> List[nn.Module]:
        """Modules in front of the first stage."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Images (B, C, H, W) to a tuple of maps (B, C_i, H_i, W_i)."""

    def output_norm(self, index: int) -> Optional[nn.Module]:
        """The norm of the map that stage ``index`` returns, if any."""
        return getattr(self, f'norm{index}', None)

    def build_output_norms(self, norm_cfg: Optional[dict]) -> None:
        """Give each returned map a LayerNorm of its own, ``norm{index}``.

        Args:
            norm_cfg (dict, optional): Config of the norms; None for none.

        Raises:
            ValueError: If it cannot be built.
        """
        if norm_cfg is None:
            return
        for index in self.out_indices:
            norm = built('norm_cfg', norm_cfg, build_norm_layer,
                         self.stage_channels[index])[1]
            self.add_module(f'norm{index}', norm)

    def reset_linear_layers(self) -> None:
        """Truncated normal (0.02) for what no attention initialised."""
        inside = {id(m) for a in self.attentions() for m in a.modules()}
        for module in self.modules():
            if isinstance(module, nn.Linear) and id(module) not in inside:
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def init_weights(self) -> None:
        """Apply ``init_cfg``; a classifier fills the backbone last of all."""
        cfgs = self.init_cfg or []
        cfgs = [cfgs] if isinstance(cfgs, dict) else list(cfgs)
        if self.is_init or not cfgs:
            super().init_weights()
            return
        last = [c for c in cfgs if c['type'] == _FROM_CLASSIFIER]
        whole, self.init_cfg = self.init_cfg, [c for c in cfgs
                                               if c not in last]
        super().init_weights()
        self.init_cfg = whole
        initialize(self, last)

    def freeze(self) -> None:
        """Stop gradients and training mode of the frozen stages."""
        if self.frozen_stages < 0:
            return
        frozen = list(self.stem_modules())
        for index in range(min(self.frozen_stages, len(self.stages))):
            frozen.append(self.stages[index])
            norm = self.output_norm(index)
            if norm is not None:
                frozen.append(norm)
        for module in frozen:
            module.eval()
            for param in module.parameters():
                param.requires_grad = False

    def train(self, mode: bool = True) -> 'BaseBackbone':
        """Set the mode; frozen stages and frozen norms stay in evaluation.

        Args:
            mode (bool): True to train. Defaults to True.

        Returns:
            BaseBackbone: self.
        """
        super().train(mode)
        self.freeze()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def get_layer_depth(self,
                        param_name: str,
                        prefix: str = '') -> Tuple[int, int]:
        """Depth of a parameter, for layer-wise learning-rate decay.

        Args:
            param_name (str): Name of the parameter.
            prefix (str): What stands before the backbone's own names, such as
                ``'backbone.'``. Defaults to ''.

        Returns:
            tuple[int, int]: Depth (0 is the stem, what lies outside of the
            backbone has the greatest) and the number of depths.
        """
        num_layers = sum(self.depths) + 2
        if not param_name.startswith(prefix):
            return num_layers - 1, num_layers
        parts = param_name[len(prefix):].split('.')
        if parts[0] == 'stages':
            stage = int(parts[1])
            before = sum(self.depths[:stage])
            if parts[2] == 'blocks':
                return before + int(parts[3]) + 1, num_layers
            # What enters a stage belongs to the block in front of it.
            return before, num_layers
        if parts[0].startswith('norm'):
            return num_layers - 1, num_layers
        return 0, num_layers

    def attentions(self) -> List[BaseAttention]:
        """Every attention module, in order of depth."""
        return [m for m in self.modules() if isinstance(m, BaseAttention)]
