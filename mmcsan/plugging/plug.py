"""Swap the attention of a network of another project for one of ours."""
import re
from typing import Callable, List, Optional, Sequence, Tuple, Union

import torch.nn as nn
from mmengine.logging import print_log

from mmcsan.attentions import BaseAttention
from mmcsan.registry import MODELS
from .derive import Derived, derive
from .hosts import (HOSTS, InWindows, MapSize, Site, StandIn, build_stand_in,
                    find_sites)

Where = Union[None, int, Sequence[int], str, Callable[[str], bool]]


class PluggedNetwork(Derived):
    """What a network gains when attentions are plugged into it; a mixin.

    It stays what it was, with the same names and attributes. ``train``
    returns the network, initializations leave what is new in the attentions
    as it was, and depths of parameters are told if they were not before.
    """

    plugged_blocks: Tuple[str, ...] = ()
    """Names of the blocks with an attention, in order."""

    def train(self, mode: bool = True) -> nn.Module:
        """Set the mode as the network does.

        Args:
            mode (bool): True to train. Defaults to True.

        Returns:
            nn.Module: self.
        """
        super().train(mode)
        return self

    def init_weights(self, *args, **kwargs) -> None:
        """Initialise as the network does, but for what is new in attentions
        and not read from a checkpoint."""
        initialise = getattr(super(), 'init_weights', None)
        if initialise is None:
            return
        new = [m for m in self.modules() if isinstance(m, StandIn)]
        for attention in new:
            attention.before_init()
        initialise(*args, **kwargs)
        for attention in new:
            attention.after_init()

    def get_layer_depth(self,
                        param_name: str,
                        prefix: str = '') -> Tuple[int, int]:
        """Depth of a parameter, for layer-wise learning-rate decay.

        The network's own answer, if it has one. Otherwise each block is one
        layer; what lies in front of the first is the stem, what lies between
        two belongs to the one in front, what lies behind the last has the
        greatest depth.

        Args:
            param_name (str): Name of the parameter.
            prefix (str): What stands before the network's own names.
                Defaults to ''.

        Returns:
            tuple[int, int]: Depth and the number of depths.
        """
        own = getattr(super(), 'get_layer_depth', None)
        if own is not None:
            return own(param_name, prefix)
        num_layers = len(self.plugged_blocks) + 2
        if not param_name.startswith(prefix):
            return num_layers - 1, num_layers
        wanted, depth = param_name[len(prefix):], 0
        inside = self._block_of(wanted)
        if inside is not None:
            return inside + 1, num_layers
        for name, _ in self.named_parameters():
            inside = self._block_of(name)
            depth = depth if inside is None else inside + 1
            if name == wanted:
                break
        last = depth == len(self.plugged_blocks)
        return num_layers - 1 if last else depth, num_layers

    def _block_of(self, name: str) -> Optional[int]:
        for index, block in enumerate(self.plugged_blocks):
            if name.startswith(f'{block}.'):
                return index
        return None

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        # mmpretrain upgrades old checkpoints of exactly its own class.
        load = super()._load_from_state_dict
        derived, self.__class__ = self.__class__, self.made_of[1]
        try:
            load(*args, **kwargs)
        finally:
            self.__class__ = derived


def plug_attention(model: nn.Module,
                   attention: Union[str, dict],
                   where: Where = None) -> nn.Module:
    """Swap the attention of a network for one of ours, in place.

    The new attention holds the old one's trained projections and tables, the
    very same tensors under the same names. With ``dict(type='CSaN',
    init='identity')`` the network's outputs stay what they were. Checkpoints
    of the network fit before and after, but for what is new.

    Networks that are known: Swin of mmdet, mmseg, mmpretrain and timm; ViT of
    mmpretrain, mmseg and timm. Plug before wrapping for distributed training
    and before building an optimizer.

    Args:
        model (nn.Module): A backbone; or a detector, segmentor or classifier
            with one under ``backbone``, of which nothing else is touched.
        attention (str | dict): A registered attention by name or config. It
            must project to q, k and v as plain attention does.
        where (int | Sequence[int] | str | callable, optional): Stages of a
            Swin or blocks of a ViT, by their numbers, negative ones from the
            end; or a regular expression that is searched for in the names of
            attentions, such as ``'stages.2.blocks.0.attn.w_msa'``; or a
            function of such a name. Defaults to None: everywhere.

    Returns:
        nn.Module: ``model``.

    Raises:
        KeyError: If no attention has that name; lists the known ones.
        TypeError: If ``model`` is no network, or wrapped.
        ValueError: If the network has no attention that is known, ``where``
            selects none, or the attention cannot take over. The network is
            then as it was.

    Examples:
        >>> from mmdet.apis import init_detector
        >>> import mmcsan
        >>> model = init_detector('mask-rcnn_swin-t.py', 'trained.pth')
        >>> mmcsan.plug_attention(model, dict(type='CSaN', init='identity'))
    """
    network = _network_of(model)
    sites = find_sites(network)
    if not sites:
        _refuse(network)
    chosen = _select(sites, where)
    prefix = any(
        getattr(m, 'cls_token', None) is not None for m in network.modules())
    tokens = MapSize()
    built = []
    for site in chosen:
        windowed = issubclass(site.host.stand_in, InWindows)
        size = MapSize() if windowed else tokens
        built.append(build_stand_in(site, attention, prefix, size))
    _note_grid(network, tokens, chosen)
    for site, new in zip(chosen, built):
        _swap(network, site, new)
    _become_plugged(network, sites)
    count = sum(
        new.get_parameter(name).numel() for new in built
        for name in new.new_names)
    print_log(
        f'{type(built[0]).made_of[1].__name__} takes the place of '
        f'{len(built)} of {len(sites)} attentions of '
        f'{type(network).made_of[1].__name__}, with {count} new parameters',
        logger='current')
    return model


@MODELS.register_module()
class PluggedBackbone:
    """Config form of :func:`plug_attention`: builds a backbone and plugs.

    An instance is the backbone itself, with an attention of ours in it: names
    of parameters, ``out_indices``, frozen stages and ``init_cfg`` are its own.

    Args:
        backbone (dict | nn.Module): Config of the backbone, with the scope of
            its project, such as ``dict(type='mmdet.SwinTransformer')``.
        attention (str | dict): See :func:`plug_attention`.
        where (int | Sequence[int] | str | callable, optional): See
            :func:`plug_attention`. Defaults to None.
        pretrained (str, optional): What segmentors of mmseg hand down to
            their backbone, and so does this. Defaults to None.

    Raises:
        KeyError: If the backbone or the attention is unknown.
        ValueError: See :func:`plug_attention`.

    Examples:
        >>> from mmcsan.registry import MODELS
        >>> backbone = MODELS.build(
        ...     dict(
        ...         type='mmcsan.PluggedBackbone',
        ...         backbone=dict(type='mmdet.SwinTransformer'),
        ...         attention=dict(type='CSaN', init='identity')))
    """

    def __new__(cls,
                backbone: Union[dict, nn.Module],
                attention: Union[str, dict],
                where: Where = None,
                pretrained: Optional[str] = None) -> nn.Module:
        """Build the backbone and plug the attention in."""
        if not isinstance(backbone, nn.Module):
            if pretrained is not None:
                backbone = backbone.copy()
                backbone['pretrained'] = pretrained
            backbone = MODELS.build(backbone)
        return plug_attention(backbone, attention, where)


def _network_of(model: nn.Module) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(f'model must be a network, but got {type(model)}')
    if isinstance(getattr(model, 'module', None), nn.Module):
        raise TypeError(f'model is wrapped in {type(model).__name__}: plug '
                        'first, then wrap')
    while isinstance(getattr(model, 'backbone', None), nn.Module):
        model = model.backbone
    return model


def _refuse(network: nn.Module) -> None:
    name = type(network).__name__
    inner = [m for m in network.modules() if isinstance(m, BaseAttention)]
    if any(isinstance(m, StandIn) for m in inner):
        raise ValueError(f'every attention of {name} was plugged in before')
    if inner:
        raise ValueError(f'{name} has attentions of mmcsan: set its argument '
                         'attention instead')
    known = '; '.join(dict.fromkeys(host.of for host in HOSTS))
    raise ValueError(f'{name} has no attention that mmcsan knows how to '
                     f'replace. Known: {known}')


def _select(sites: List[Site], where: Where) -> List[Site]:
    """The sites that ``where`` means."""
    stages = sorted({site.stage for site in sites})
    if where is None:
        return sites
    if isinstance(where, str):
        chosen = [s for s in sites if re.search(where, s.name)]
    elif callable(where):
        chosen = [s for s in sites if where(s.name)]
    else:
        where = [where] if isinstance(where, int) else list(where)
        wanted = {i + stages[-1] + 1 if i < 0 else i for i in where}
        unknown = sorted(wanted - set(stages))
        if unknown:
            raise ValueError(f'where={where}: the network has no {unknown}; '
                             f'its stages or blocks are {stages}')
        chosen = [s for s in sites if s.stage in wanted]
    if not chosen:
        names = ', '.join(site.name for site in sites)
        raise ValueError(f'where={where!r} selects none of {names}')
    return chosen


def _swap(network: nn.Module, site: Site, new: StandIn) -> None:
    parent, _, leaf = site.name.rpartition('.')
    parent = network.get_submodule(parent)
    setattr(parent, leaf, new)
    if isinstance(new, InWindows):
        new.watch(parent)


def _note_grid(network: nn.Module, size: MapSize, sites: List[Site]) -> None:
    """Have the patch embedding note the grid of a ViT's tokens."""
    if all(issubclass(site.host.stand_in, InWindows) for site in sites):
        return
    for name, module in network.named_modules():
        if name.split('.')[-1] == 'patch_embed':
            module.register_forward_hook(size.note_output)
            return
    raise ValueError(f'{type(network).__name__} has no patch_embed to tell on '
                     'what grid its tokens lie')


def _become_plugged(network: nn.Module, sites: List[Site]) -> None:
    if not isinstance(network, PluggedNetwork):
        network.__class__ = derive(PluggedNetwork, type(network))
        network.plugged_blocks = tuple(
            dict.fromkeys(site.block for site in sites))
    # Those that freeze stages whenever the mode is set have not done so yet.
    for cls in type(network).__mro__:
        if {'train', '_freeze_stages'} <= set(vars(cls)):
            network._freeze_stages()
            return
