"""What the linear attentions decided; see :mod:`.readers`."""
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcsan.attentions import BaseAttention, CSaN, Pola, PolaPP
from mmcsan.attentions.pola import EPS, log_peak, polarity_features
from .readers import CSaNReader, Quantities, Reader, at_least_float32


class PolaReader(Reader):
    """Reads Pola: signs, powers, the gate, and both flows' weights."""

    flows = ('same sign', 'opposite sign')
    watched = ('project', )
    entry = 'attend_tokens'

    def __init__(self, attention: BaseAttention) -> None:
        super().__init__(attention)
        self._features: Optional[tuple] = None

    def knows_weights(self) -> bool:
        """See :meth:`Reader.knows_weights`."""
        return True

    def _heads(self, x: Tensor) -> Tensor:
        return self.attention.split_heads(at_least_float32(x))

    def _prepare(self) -> tuple:
        """Features of queries and of keys, tokens counted, and epsilon."""
        if self._features is not None:
            return self._features
        (q, k, _, valid), _ = self.noted[self.entry]
        q, k = self._heads(q), self._heads(k)  # (G, H, ., d)
        power = at_least_float32(self.attention.exponent())
        peaks = log_peak(q), log_peak(k)
        query = polarity_features(q, power, peaks[0])
        key = polarity_features(k, power, peaks[1])
        count = k.new_full((1, 1, 1, 1), k.shape[2])
        if valid is not None:
            valid = valid.unsqueeze(1).to(k.dtype)  # (G, 1, M, 1)
            key = type(key)(key.pos * valid, key.neg * valid)
            count = valid.sum(dim=2, keepdim=True).clamp_min(1)
        scale = F.softplus(self._heads(self.attention.scale))
        unit = power * (sum(peaks) - 2 * scale.log())  # (G, H, 1, d)
        # Never below one, as in the attention: epsilon stays finite.
        reference = unit.amax(dim=-1, keepdim=True).clamp_min(0)
        weight = (unit - reference).exp()
        query = type(query)(query.pos * weight, query.neg * weight)
        eps = (EPS * (-reference).exp()).clamp_min(
            torch.finfo(q.dtype).tiny**0.8)
        self._features = query, key, count, eps
        return self._features

    def weights(self, groups: Tensor, queries: Tensor) -> Tensor:
        """See :meth:`Reader.weights`; what linear attention amounts to."""
        query, key, count, eps = self._prepare()
        query = [t[groups][:, :, queries] for t in query]
        key = [t[groups].transpose(-2, -1) for t in key]
        flows = torch.stack([
            query[0] @ key[0] + query[1] @ key[1],
            query[0] @ key[1] + query[1] @ key[0]
        ], dim=2)  # (g, H, 2, R, M)
        count = count.expand(self.shape[0], -1, -1, -1)[groups]
        flows = flows / count.unsqueeze(2)
        return flows / (flows.sum(dim=-1, keepdim=True)
                        + eps[groups].unsqueeze(2))

    def by_query(self) -> Quantities:
        """See :meth:`Reader.by_query`."""
        return dict(negative_queries=self._negative(0))

    def by_key(self) -> Quantities:
        """See :meth:`Reader.by_key`."""
        return dict(negative_keys=self._negative(1))

    def _negative(self, index: int) -> Tensor:
        """Share of negative channels: (G, H, N)."""
        x = self._heads(self.noted[self.entry][0][index])
        return (x < 0).float().mean(dim=-1)

    def by_token(self) -> Quantities:
        """See :meth:`Reader.by_token`."""
        gate = self.noted['project'][1][3]
        return dict(gate=gate.transpose(1, 2))

    def constants(self) -> Quantities:
        """See :meth:`Reader.constants`."""
        return dict(power=self.attention.exponent()[0, :, 0])  # (H, d)


class PolaPPReader(PolaReader):
    """Reads PolaPP: signs, the gate, and the shares of the denominators.

    Those are the weights before features are turned by their places, which
    may make them negative.
    """

    entry = 'attend'

    def _heads(self, x: Tensor) -> Tensor:
        return at_least_float32(x)

    def _prepare(self) -> tuple:
        """Features of keys, and of queries for each flow."""
        if self._features is None:
            (q, k, _, _, layout), _ = self.noted[self.entry]
            q, k = at_least_float32(q), at_least_float32(k)
            key = _exponential(torch.cat([k.relu(), (-k).relu()], -1), (2, 3))
            same, opposite = (
                at_least_float32(t).sigmoid()
                for t in (self.attention.s1, self.attention.s2))
            query = [
                _exponential(weight * torch.cat(parts, -1), (3, ))
                for weight, parts in ((same, [q.relu(), (-q).relu()]),
                                      (opposite, [(-q).relu(), q.relu()]))
            ]
            self._features = query, key
        return self._features

    def weights(self, groups: Tensor, queries: Tensor) -> Tensor:
        """See :meth:`Reader.weights`; shares of the denominators."""
        query, key = self._prepare()
        key = key[groups].transpose(-2, -1)
        flows = torch.stack(
            [t[groups][:, :, queries] @ key for t in query], dim=2)
        total = flows.sum(dim=-1, keepdim=True)
        return flows / total.clamp_min(torch.finfo(total.dtype).tiny)

    def rows(self, groups: Tensor, query: int) -> Tensor:
        """See :meth:`Reader.rows`; turned features and all.

        The output is linear in the values: its derivative by the first
        channel of each half is the row.
        """
        args, _ = self.noted[self.entry]
        # Tensors of inference mode cannot be differentiated by: clones can.
        # What a checkpoint counts must not be counted with them.
        with torch.inference_mode(False), torch.enable_grad(), \
                torch.autograd.graph.saved_tensors_hooks(_same, _same):
            groups = groups.clone()
            q, k, v = (t.detach().clone() for t in args[:3])
            v.requires_grad_()
            out = type(self.attention).attend(self.attention, q, k, v,
                                              *args[3:])
            half = out.shape[-1] // 2
            row = out[groups, :, query]  # (g, H, d)
            found = [
                torch.autograd.grad(
                    row[..., c].sum(), v, retain_graph=not c)[0][..., c]
                for c in (0, half)
            ]
        return torch.stack(found, dim=2)[groups]

    def constants(self) -> Quantities:
        """See :meth:`Reader.constants`."""
        # (1, H, 1, 2d) -> (H, 2d)
        return dict(
            same_weight=self.attention.s1[0, :, 0].sigmoid(),
            opposite_weight=self.attention.s2[0, :, 0].sigmoid())


def _same(x: Tensor) -> Tensor:
    return x


def _exponential(x: Tensor, dims: Tuple[int, ...]) -> Tensor:
    """``exp(x) - 1`` of x >= 0, in a unit that keeps it finite."""
    peak = x.amax(dims, keepdim=True)
    small = (-peak).exp()
    # Near zero the difference of exponentials would cancel.
    return torch.where(peak < 1, x.expm1() * small, (x - peak).exp() - small)


READERS = {PolaPP: PolaPPReader, Pola: PolaReader, CSaN: CSaNReader}
"""The reader of each kind; of all others, :class:`Reader`."""


def reader_for(attention: BaseAttention) -> Reader:
    """The reader of an attention.

    Args:
        attention (BaseAttention): The attention.

    Returns:
        Reader: A new one, for one run.
    """
    for kind, reader in READERS.items():
        if isinstance(attention, kind):
            return reader(attention)
    return Reader(attention)
