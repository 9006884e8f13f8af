"""What recorded maps mean, and how each is drawn."""
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from .recorder import AttentionRecord


@dataclass(frozen=True)
class Quantity:
    """One kind of map.

    Args:
        title (str): What stands above its pictures.
        meaning (str): What it says, in words.
        term (str): The paper's name and equation.
        read (callable): From a record to a value for each head and token,
            (B, H, h, w); or None if the record has none.
        colours (str): Colour map of matplotlib.
        centre (float, optional): Value that has the colour map's middle.
            Defaults to None: colours span what there is.
        limits (tuple[float, float], optional): Values of the ends of the
            colour map. Defaults to None: those of the picture.
    """

    title: str
    meaning: str
    term: str
    read: Callable[[AttentionRecord], Optional[Tensor]]
    colours: str = 'viridis'
    centre: Optional[float] = None
    limits: Optional[Tuple[float, float]] = None


def _of_heads(name: str) -> Callable:
    return lambda record: record.per_head(name) if (
        name in record.maps) else None


def _private_share(record: AttentionRecord) -> Optional[Tensor]:
    if 'private_energy' not in record.maps:
        return None
    public, private = (record.maps[f'{name}_energy']
                       for name in ('public', 'private'))
    return private / (public + private).clamp_min(1e-30)


def _tokens_seen(record: AttentionRecord) -> Optional[Tensor]:
    entropy = _of_heads('entropy')(record)
    return None if entropy is None else entropy.exp()


def _gate(record: AttentionRecord) -> Optional[Tensor]:
    if 'gate' not in record.maps:
        return None
    return record.maps['gate'].abs().unflatten(
        1, (record.num_heads, -1)).mean(dim=2)


def _row(flow: str) -> Callable:

    def read(record: AttentionRecord) -> Optional[Tensor]:
        if record.rows is None or flow not in record.flows:
            return None
        # (B, points, H, F, h, w) -> (B, H, h, w) of the first point
        return record.rows[:, 0, :, record.flows.index(flow)]

    return read


QUANTITIES: Dict[str, Quantity] = dict(
    temperature=Quantity(
        'row temperature',
        'How sharp the attention of a token is made. 1 (white) is plain '
        'attention; above (red) its budget goes to fewer tokens, below (blue) '
        'to more; below 0 to those that match least.',
        'CSaN: row temperature, tau_i = 1 + f_tau(z_i)',
        _of_heads('temperature'), 'RdBu_r', 1.),
    amplification=Quantity(
        'who is amplified',
        'By what the value of a token is multiplied for all who read it. '
        '1 (white) is plain attention; red is amplified, blue damped; below 0 '
        'its value is turned round.',
        'CSaN: column amplification, mu_j = 1 + f_mu(z_j)',
        _of_heads('amplification'), 'RdBu_r', 1.),
    public_gain=Quantity(
        'public gain',
        'By what a token multiplies what it has read (mean of its channels). '
        '1 (white) is plain attention.',
        'CSaN: public gain, kpub_i = 1 + f_a(z_i)', _of_heads('public_gain'),
        'RdBu_r', 1.),
    private_gain=Quantity(
        'private gain',
        'By what a token multiplies its own value, which is added (mean of '
        'its channels). 0 (white) is plain attention.',
        'CSaN: private gain, kpriv_i = f_v(z_i)', _of_heads('private_gain'),
        'RdBu_r', 0.),
    private_share=Quantity(
        'private share',
        "How much of the energy (mean square) of a token's output is its own "
        'value rather than what it has read: 0 (purple) all public, 0.5 as '
        'much of each, 1 (orange) all private.',
        'CSaN: |v_i kpriv_i|^2 / (|v_i kpriv_i|^2 + |sum_j p_ij mu_j v_j '
        'kpub_i|^2)', _private_share, 'PuOr_r', None, (0., 1.)),
    negative_queries=Quantity(
        'negative queries',
        "Share of a token's query channels below zero, which other linear "
        'attentions drop.',
        'Pola: q- = relu(-q)^p', _of_heads('negative_queries'), 'PuOr_r',
        None, (0., 1.)),
    negative_keys=Quantity(
        'negative keys',
        "Share of a token's key channels below zero.",
        'Pola: k- = relu(-k)^p', _of_heads('negative_keys'), 'PuOr_r', None,
        (0., 1.)),
    gate=Quantity(
        'gate',
        "Size of the gate that multiplies a token's output (mean of its "
        'channels, without sign).',
        'Pola: output = proj((attention + local) g)', _gate),
    entropy=Quantity(
        'tokens attended to',
        'Over how many tokens a token spreads its attention, as if evenly: '
        '1 is a single one, N all.',
        'exp of the entropy -sum_j p_ij ln p_ij of a row', _tokens_seen),
    attention=Quantity(
        'attention of +',
        'Where the token at the cross spends its budget; what other windows '
        'hold it cannot see.',
        'softmax_j(tau_i s_ij), or of plain attention softmax_j(s_ij)',
        _row('attention'), 'magma'),
    same_sign=Quantity(
        'of +, same sign',
        'Where the first half of the value channels of the token at the cross '
        'comes from.',
        "Pola: [q+, q-] [k+, k-]^T over its row's sum", _row('same sign'),
        'magma'),
    opposite_sign=Quantity(
        'of +, opposite sign',
        'Where the second half comes from.',
        "Pola: [q-, q+] [k+, k-]^T over its row's sum",
        _row('opposite sign'), 'magma'),
)
"""Everything that is drawn, by name, in order."""

SHOWN = tuple(name for name in QUANTITIES if not name.endswith('_gain'))
"""What is drawn unless other names are given."""


def values_of(record: AttentionRecord,
              name: str,
              image: int = 0,
              head: Optional[int] = None) -> Optional[np.ndarray]:
    """The map of one image.

    Args:
        record (AttentionRecord): A record with a size.
        name (str): Of ``QUANTITIES``.
        image (int): Which image of the batch. Defaults to 0.
        head (int, optional): Which head. Defaults to None: the mean of all.

    Returns:
        np.ndarray: (h, w), or None if this attention has no such map.
    """
    values = QUANTITIES[name].read(record)
    if values is None:
        return None
    values = values[image].to(torch.float32)
    values = values.mean(dim=0) if head is None else values[head]
    return values.cpu().numpy()


def present(records: List[AttentionRecord], names=SHOWN) -> List[str]:
    """The quantities that at least one of some records has.

    Args:
        records (list[AttentionRecord]): Records with a size.
        names (Sequence[str]): Which ones to look for. Defaults to ``SHOWN``.

    Returns:
        list[str]: Their names, in order.
    """
    return [name for name in names
            if any(QUANTITIES[name].read(r) is not None for r in records)]
