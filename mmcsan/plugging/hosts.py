"""Attentions of other projects that one of ours can stand in for.

A stand-in *is* the attention of ours, called the way the host was called. It
holds the host's own projections and tables under the host's names, so that a
checkpoint of the network without it fits, but for what is new.
"""
import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Tuple, Union

import torch
import torch.nn as nn
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor

from mmcsan.attentions import (BaseAttention, TokenLayout, attention_class,
                               build_attention)
from mmcsan.backbones.windows import cut_windows, merge_windows
from .derive import Derived, derive

_MODULES = ('qkv', 'proj', 'proj_drop', 'q_norm', 'k_norm', 'out_drop',
            'gamma1')
"""Submodules of hosts that a stand-in keeps."""


class MapSize:
    """Height and width of the map at hand, noted by hooks on the host."""

    def __init__(self) -> None:
        self.size: Optional[Tuple[int, int]] = None

    def note_input(self, module: nn.Module, args: tuple) -> None:
        """Before a module that gets (tokens, size) or a map (B, H, W, C)."""
        if len(args) > 1:
            self.size = tuple(args[1])
        elif args[0].dim() == 4:
            self.size = tuple(args[0].shape[1:3])

    def note_output(self, module: nn.Module, args: tuple, out) -> None:
        """Behind a patch embedding that returns (tokens, size), a map
        (B, H, W, C), or the tokens of its ``grid_size``."""
        if isinstance(out, (tuple, list)):
            self.size = tuple(out[1])
        elif out.dim() == 4:
            self.size = tuple(out.shape[1:3])
        else:
            self.size = getattr(module, 'grid_size', None)


class StandIn(Derived):
    """What all stand-ins share; a mixin of attentions.

    What the host had and what is new are told apart: an initialization of the
    host's network leaves the latter as it was.
    """

    aliases: Dict[str, str] = {}
    """Names under which the host's checkpoints hold what has another here."""

    @property
    def fused(self) -> bool:
        """Whether CSaN may use its kernels, whose rounding is their own.

        Where the host computed its logits as they stand, so do we, but in
        training, where that costs memory: the identity is then exact.
        """
        return self.training or not self._as_they_stand

    def settle(self, host: nn.Module, size: MapSize) -> None:
        """Take over what the host has trained, and its state.

        Args:
            host (nn.Module): The attention to stand in for.
            size (MapSize): Where the size of the map is noted.
        """
        known = {name for name, _ in self.named_parameters()}
        self.take_over(host)
        like = self.qkv.weight
        self.new_names = tuple(
            name for name, param in self.named_parameters()
            if name in known and not self._of_host(name))
        for name in self.new_names:
            self.get_parameter(name).requires_grad_(like.requires_grad)
        self.to(like)
        self.train(host.training)
        self._map_size = size
        self._as_they_stand = not self._host_is_fused(host)
        self._start_values = self._snapshot()
        height, width = self.grid_size or (1, 1)
        probe = torch.zeros(1, height, width, self.dim_out).to(like)
        layout = TokenLayout((height, width))
        with torch.no_grad():
            self._acts_on_map = self.forward_map(probe, layout) is not probe

    def take_over(self, host: nn.Module) -> None:
        """Hold the host's own modules and tensors."""
        for name in _MODULES:
            module = getattr(host, name, None)
            if module is not None and not (name in ('q_norm', 'k_norm') and
                                           isinstance(module, nn.Identity)):
                setattr(self, name, module)

    def _host_is_fused(self, host: nn.Module) -> bool:
        return getattr(host, 'fused_attn', False)

    def _of_host(self, name: str) -> bool:
        return name.split('.')[0] in (*_MODULES,
                                      'relative_position_bias_table')

    def _snapshot(self) -> Dict[str, Tensor]:
        return {
            name: self.get_parameter(name).detach().clone()
            for name in self.new_names
        }

    def before_init(self) -> None:
        """Remember what is new, before the host's network is initialised."""
        self._start_values = {**self._snapshot(), **self._start_values}

    @torch.no_grad()
    def after_init(self) -> None:
        """Bring back what is new, but for what a checkpoint filled."""
        for name, value in self._start_values.items():
            self.get_parameter(name).copy_(value)
        self._start_values = {}

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        for old, new in self.aliases.items():
            if prefix + old in state_dict:
                state_dict[prefix + new] = state_dict.pop(prefix + old)
        for name in self.new_names:
            if prefix + name in state_dict:
                self._start_values.pop(name, None)
        super()._load_from_state_dict(state_dict, prefix, *args)


class InWindows(StandIn):
    """Stands in for the window attention of a Swin.

    What the host pads maps with stays visible, as it was to the host: the
    network around it was trained so.
    """

    def take_over(self, host: nn.Module) -> None:
        """See :meth:`StandIn.take_over`; the table and its index too."""
        super().take_over(host)
        self.relative_position_bias_table = host.relative_position_bias_table
        index = host.relative_position_index
        kept = 'relative_position_index' in host.state_dict()
        del self.relative_position_index
        self.register_buffer(
            'relative_position_index', index, persistent=kept)
        self._draws_table = hasattr(host, 'init_weights')

    def watch(self, parent: nn.Module) -> None:
        """Have the module that cuts the windows note the size of its map."""
        if self._acts_on_map:
            parent.register_forward_pre_hook(self._map_size.note_input)

    def init_weights(self) -> None:
        """Draw the table anew where the host would."""
        super().init_weights()
        if self._draws_table:
            trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """Windows (B * W, N, C) to the same shape.

        Args:
            x (Tensor): The windows, image-major.
            mask (Tensor, optional): Additive (W, N, N). Defaults to None.
        """
        layout = TokenLayout(self.grid_size, mask)
        out = super().forward(x, layout)
        if not self._acts_on_map:
            return out
        padded = tuple(-(-length // side) * side for length, side in zip(
            self._map_size.size, self.grid_size))
        # (B*W, N, C) -> (B, Hp, Wp, C) -> (B*W, N, C)
        out = merge_windows(out, self.grid_size, padded)
        return cut_windows(self.forward_map(out, layout), self.grid_size)


class InTokens(StandIn):
    """Stands in for the attention of a ViT of mmpretrain or timm."""

    def _host_is_fused(self, host: nn.Module) -> bool:
        return getattr(host, 'fused_attn', True)

    def forward(self, x: Tensor, attn_mask=None, **options) -> Tensor:
        """Tokens (B, P + H*W, C) to the same shape.

        Args:
            x (Tensor): The tokens, those that lie nowhere first.
            attn_mask: What some callers can pass; only None is understood.
        """
        if attn_mask is not None or any(options.values()):
            raise ValueError(f'{type(self).__name__} takes no mask, but the '
                             'network passed one')
        layout = self._layout(x.shape[1])
        out = super().forward(x, layout)
        if self._acts_on_map:
            prefix, patches = out.split(
                (layout.prefix, x.shape[1] - layout.prefix), dim=1)
            # (B, H*W, C) -> (B, H, W, C) -> (B, H*W, C)
            patches = self.forward_map(
                patches.unflatten(1, layout.grid), layout)
            out = torch.cat([prefix, patches.flatten(1, 2)], dim=1)
        for name in ('gamma1', 'out_drop'):
            if name in self._modules:
                out = self._modules[name](out)
        return out

    def _layout(self, tokens: int) -> TokenLayout:
        size = self._map_size.size
        if size is None or size[0] * size[1] > tokens:
            raise ValueError(
                f'{type(self).__name__} got {tokens} tokens and cannot tell '
                f'on what grid they lie; patch_embed made {size}')
        return TokenLayout(size, prefix=tokens - size[0] * size[1])


class InTorchAttention(InTokens):
    """Stands in for torch's MultiheadAttention in a ViT of mmseg."""

    aliases = {
        'in_proj_weight': 'qkv.weight',
        'in_proj_bias': 'qkv.bias',
        'out_proj.weight': 'proj.weight',
        'out_proj.bias': 'proj.bias',
    }

    def take_over(self, host: nn.MultiheadAttention) -> None:
        """See :meth:`StandIn.take_over`."""
        self.qkv.weight = host.in_proj_weight
        self.qkv.bias = host.in_proj_bias
        self.proj = host.out_proj

    def _host_is_fused(self, host: nn.Module) -> bool:
        return False

    def forward(self, query: Tensor, key: Tensor, value: Tensor,
                attn_mask=None, key_padding_mask=None,
                **options) -> Tuple[Tensor, None]:
        """Tokens (N, B, C), which are query, key and value alike, to the same
        shape and no weights.

        Args:
            query (Tensor): The tokens.
            key (Tensor): The same.
            value (Tensor): The same.
            attn_mask: Only None is understood.
            key_padding_mask: Only None is understood.
        """
        if key_padding_mask is not None:
            attn_mask = key_padding_mask
        if key.shape != query.shape or value.shape != query.shape:
            raise ValueError(f'{type(self).__name__} lets tokens attend to '
                             'each other, but got other keys and values')
        # (N, B, C) -> (B, N, C) -> (N, B, C)
        out = super().forward(query.transpose(0, 1), attn_mask)
        return out.transpose(0, 1), None


@dataclass(frozen=True)
class Host:
    """A kind of attention that ours can stand in for.

    A module is of this kind if its class has this name and it has exactly
    what is listed: a subclass or namesake that does more is not.

    Args:
        of (str): Whose it is, for messages.
        name (str): Name of the class.
        stand_in (type): The mixin that stands in for it.
        needs (tuple[str]): Attributes that it has.
        children (tuple[str]): Submodules that it may have.
        params (tuple[str]): Parameters of its own that it has.
        within (tuple[str]): Names of the classes of the modules that it is
            in, the nearest last, if its own serves other purposes too.
            Defaults to any.
    """

    of: str
    name: str
    stand_in: type
    needs: Tuple[str, ...]
    children: Tuple[str, ...]
    params: Tuple[str, ...] = ()
    within: Tuple[str, ...] = ()


_TABLE = ('relative_position_bias_table', )
_WINDOW_NEEDS = ('qkv', 'proj', 'window_size', 'num_heads', 'scale',
                 'relative_position_index')
_WINDOW_CHILDREN = ('qkv', 'attn_drop', 'proj', 'proj_drop', 'softmax')
_TOKEN_NEEDS = ('qkv', 'proj', 'num_heads')

HOSTS = (
    Host('Swin of mmdet, mmseg and mmpretrain', 'WindowMSA', InWindows,
         _WINDOW_NEEDS, _WINDOW_CHILDREN, _TABLE),
    Host('Swin of timm', 'WindowAttention', InWindows, _WINDOW_NEEDS,
         _WINDOW_CHILDREN, _TABLE),
    Host('ViT of mmpretrain', 'MultiheadAttention', InTokens,
         (*_TOKEN_NEEDS, 'v_shortcut'),
         ('qkv', 'proj', 'proj_drop', 'out_drop', 'gamma1')),
    Host('ViT of mmseg', 'MultiheadAttention', InTorchAttention,
         ('in_proj_weight', 'out_proj', 'num_heads'), ('out_proj', ),
         ('in_proj_weight', 'in_proj_bias'),
         ('TransformerEncoderLayer', 'MultiheadAttention')),
    Host('ViT of timm', 'Attention', InTokens, (*_TOKEN_NEEDS, 'scale'),
         ('qkv', 'q_norm', 'k_norm', 'attn_drop', 'proj', 'proj_drop',
          'norm')),
)
"""Every kind that is known."""


@dataclass(frozen=True)
class Site:
    """Where a network has an attention that ours can stand in for.

    Args:
        name (str): Name of the attention within the network.
        module (nn.Module): The attention.
        host (Host): What kind it is of.
    """

    name: str
    module: nn.Module
    host: Host

    @property
    def stage(self) -> int:
        """The first number in the name: a stage of Swin, a block of ViT."""
        return int(re.search(r'\d+', self.name + '.0').group())

    @property
    def block(self) -> str:
        """Name of the block that it is part of: the part up to the last
        number in the name."""
        parts = self.name.split('.')
        while parts and not parts[-1].isdigit():
            parts.pop()
        return '.'.join(parts or self.name.split('.'))


def host_of(module: nn.Module, parents: List[str]) -> Optional[Host]:
    """The kind a module is of, or None.

    Args:
        module (nn.Module): Any module.
        parents (list[str]): Names of the classes of the modules it is in.
    """
    children = {name for name, _ in module.named_children()}
    if 'qkv' in children and not isinstance(module.qkv, nn.Linear):
        return None
    params = {name for name, _ in module.named_parameters(recurse=False)}
    for host in HOSTS:
        if (type(module).__name__ == host.name
                and all(hasattr(module, need) for need in host.needs)
                and children <= set(host.children)
                and params == set(host.params) - _absent(module)
                and tuple(parents[len(parents) - len(host.within):]) ==
                host.within):
            return host
    return None


def _absent(module: nn.Module) -> set:
    return {n for n, p in module._parameters.items() if p is None}


def find_sites(network: nn.Module) -> List[Site]:
    """Every attention of a network that ours can stand in for, in order.

    Args:
        network (nn.Module): A backbone.

    Returns:
        list[Site]: The attentions, none within another.
    """
    return list(_walk(network, '', []))


def _walk(module: nn.Module, name: str, parents: List[str]) -> Iterator[Site]:
    host = host_of(module, parents)
    if host is not None:
        yield Site(name, module, host)
        return
    if isinstance(module, BaseAttention):
        return
    parents = [*parents, type(module).__name__]
    for part, child in module.named_children():
        yield from _walk(child, f'{name}.{part}' if name else part, parents)


def _rate(dropout: Union[float, nn.Dropout]) -> float:
    return getattr(dropout, 'p', dropout)


def _refuse_if_unusual(site: Site) -> None:
    """Refuse a host that does not do what a stand-in would do."""
    host = site.module
    if isinstance(host, nn.MultiheadAttention):
        dim = host.embed_dim
        plain = (
            host.in_proj_weight is not None and host.bias_k is None
            and not host.add_zero_attn and not host.batch_first)
    else:
        dim = host.proj.in_features
        scale = getattr(host, 'scale', None)
        usual = (dim // host.num_heads)**-0.5
        rescaled = hasattr(
            getattr(host, 'scaled_dot_product_attention', None), 'keywords')
        plain = (
            host.qkv.in_features == dim == host.proj.out_features
            and host.qkv.out_features == 3 * dim and not rescaled
            and (scale is None or abs(scale - usual) < 1e-6 * usual)
            and not getattr(host, 'v_shortcut', False)
            and isinstance(getattr(host, 'norm', nn.Identity()), nn.Identity))
    if not plain or dim % host.num_heads:
        raise ValueError(
            f'{site.name} is no plain attention of {dim} channels with logits '
            'scaled by 1 / sqrt(d): nothing can be plugged in there')


def build_stand_in(site: Site, attention: Union[str, dict], prefix: bool,
                   size: MapSize) -> BaseAttention:
    """Build an attention of ours that stands in for a host.

    Args:
        site (Site): The host.
        attention (str | dict): A registered attention, by name or config.
        prefix (bool): Whether tokens may lie on no grid.
        size (MapSize): Where the size of the map is noted.

    Returns:
        BaseAttention: The attention, with the host's weights in it.

    Raises:
        KeyError: If no attention has that name; lists the known ones.
        ValueError: If it cannot stand in for the host.
    """
    host = site.module
    cls = attention_class(attention)
    if getattr(cls, 'projections', None) != 'qkv':
        raise ValueError(
            f'{cls.__name__} projects tokens to '
            f'{getattr(cls, "projections", "something else")!r}, so it cannot '
            f"take over the trained 'qkv' of {site.name}: plug in an "
            'attention that does, such as CSaN')
    _refuse_if_unusual(site)
    windowed = issubclass(site.host.stand_in, InWindows)
    torchs = isinstance(host, nn.MultiheadAttention)
    new = build_attention(
        attention,
        needs=('prefix', ) if prefix and not windowed else (),
        dim=host.embed_dim if torchs else host.proj.in_features,
        num_heads=host.num_heads,
        grid_size=_pair(host.window_size) if windowed else None,
        rel_pos_bias=windowed,
        qkv_bias=(host.in_proj_bias if torchs else host.qkv.bias) is not None,
        attn_drop=_rate(host.dropout if torchs else host.attn_drop))
    if windowed:
        _check_table(site, new)
    new.__class__ = derive(site.host.stand_in, type(new))
    new.settle(host, size)
    return new


def _check_table(site: Site, new: BaseAttention) -> None:
    theirs = site.module.relative_position_index
    if theirs.is_meta:
        return
    if not new.has_rel_pos_bias or not torch.equal(
            new.relative_position_index.to(theirs), theirs):
        raise ValueError(f'{type(new).__name__} reads the table of relative '
                         f'positions of {site.name} in another order')


def _pair(value) -> Tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
