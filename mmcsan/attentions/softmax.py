"""Plain softmax attention, the arm every other attention is compared with."""
import torch.nn.functional as F
from torch import Tensor

from mmcsan.registry import ATTENTIONS
from .base import BaseAttention, TokenLayout


@ATTENTIONS.register_module()
class Softmax(BaseAttention):
    """Scaled dot-product attention, ``softmax(q k^T / sqrt(d) + bias) v``.

    Uses the fused kernel of ``torch.nn.functional``. Arguments are those of
    :class:`BaseAttention`.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.reset_parameters()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor,
               layout: TokenLayout) -> Tensor:
        """See :meth:`BaseAttention.attend`."""
        shape = q.shape
        bias = self._additive(q.dtype, layout)
        if bias is not None:
            # Windows join the heads, so that one bias serves every image:
            # (G, H, N, d) -> (B, W*H, N, d)
            q, k, v = (
                t.reshape(-1, bias.shape[1], *t.shape[2:]) for t in (q, k, v))
        elif layout.valid is not None:
            # (W, N) -> (B*W, 1, 1, N); True where a key may be seen
            images = q.shape[0] // layout.valid.shape[0]
            bias = layout.valid.repeat(images, 1)
            bias = bias[:, None, None]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias,
            dropout_p=self.attn_drop if self.training else 0.)
        return out.reshape(shape)

    def _additive(self, dtype, layout: TokenLayout):
        """Everything added to the logits, (1, W*H, N, N); or None if nothing
        is, save that padding is hidden."""
        bias = self.relative_bias()
        if bias is None and layout.mask is None:
            return None
        terms = [] if bias is None else [bias[None]]  # (1, H, N, N)
        if layout.mask is not None:
            terms.append(layout.mask[:, None])  # (W, 1, N, N)
        if layout.valid is not None:
            hidden = layout.valid.new_zeros(
                layout.valid.shape, dtype=dtype).masked_fill_(
                    ~layout.valid, float('-inf'))
            terms.append(hidden[:, None, None, :])  # (W, 1, 1, N)
        total = sum(terms).to(dtype)
        # (W or 1, H or 1, N, N) -> (1, W*H, N, N)
        num_tokens = total.shape[-1]
        total = total.expand(-1, self.num_heads, num_tokens, -1)
        return total.reshape(1, -1, num_tokens, num_tokens)
