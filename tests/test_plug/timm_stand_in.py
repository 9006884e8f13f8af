"""Small networks with the names and calls of timm's ViT and Swin.

They have what mmcsan looks at, so that timm need not be installed.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):

    def __init__(self, dim, num_heads, qk_norm=False, fused=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.fused_attn = fused
        norm = nn.LayerNorm if qk_norm else nn.Identity
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm = norm(self.head_dim)
        self.k_norm = norm(self.head_dim)
        self.attn_drop = nn.Dropout(0.)
        self.norm = nn.Identity()
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(0.)

    def forward(self, x, attn_mask=None, is_causal=False):
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.fused_attn:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            x = (q * self.scale @ k.transpose(-2, -1)).softmax(-1) @ v
        x = x.transpose(1, 2).reshape(batch, tokens, dim)
        return self.proj_drop(self.proj(self.norm(x)))


class Mlp(nn.Module):

    def __init__(self, dim):
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):

    def __init__(self, dim, num_heads, **attention):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, num_heads, **attention)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim)

    def forward(self, x, attn_mask=None):
        x = x + self.attn(self.norm1(x), attn_mask=attn_mask)
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):

    def __init__(self, dim, size, flat):
        super().__init__()
        self.proj = nn.Conv2d(3, dim, 8, 8)
        self.grid_size = (size // 8, size // 8)
        self.flat = flat

    def forward(self, x):
        x = self.proj(x).permute(0, 2, 3, 1)
        return x.flatten(1, 2) if self.flat else x


class VisionTransformer(nn.Module):

    def __init__(self, dim=48, depth=3, num_heads=3, size=64, flat=True,
                 **attention):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.patch_embed = PatchEmbed(dim, size, flat)
        self.blocks = nn.Sequential(
            *(Block(dim, num_heads, **attention) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = self.patch_embed(x)
        x = x.flatten(1, -2)
        cls = self.cls_token.expand(len(x), -1, -1)
        return self.norm(self.blocks(torch.cat([cls, x], dim=1)))


class WindowAttention(nn.Module):

    def __init__(self, dim, num_heads, window, fused):
        super().__init__()
        self.window_size = (window, window)
        self.window_area = window**2
        self.num_heads = num_heads
        self.scale = (dim // num_heads)**-0.5
        self.fused_attn = fused
        self.relative_position_bias_table = nn.Parameter(
            torch.zeros((2 * window - 1)**2, num_heads))
        where = torch.stack(
            torch.meshgrid(
                torch.arange(window), torch.arange(window),
                indexing='ij')).flatten(1)
        gap = (where[:, :, None] - where[:, None]) + window - 1
        self.register_buffer(
            'relative_position_index',
            gap[0] * (2 * window - 1) + gap[1],
            persistent=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_drop = nn.Dropout(0.)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(0.)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, mask=None):
        groups, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(groups, tokens, 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.relative_position_bias_table[
            self.relative_position_index.view(-1)]
        bias = bias.view(tokens, tokens, -1).permute(2, 0, 1)[None]
        if self.fused_attn:
            if mask is not None:
                copies = groups // len(mask)
                bias = bias + mask[:, None].repeat(copies, 1, 1, 1)
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            logits = q * self.scale @ k.transpose(-2, -1) + bias
            if mask is not None:
                logits = logits.unflatten(0, (-1, len(mask)))
                logits = (logits + mask[:, None]).flatten(0, 1)
            x = self.softmax(logits) @ v
        x = x.transpose(1, 2).reshape(groups, tokens, dim)
        return self.proj_drop(self.proj(x))


class SwinTransformerBlock(nn.Module):

    def __init__(self, dim, num_heads, window, shift, fused):
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, num_heads, window, fused)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim)

    def _windows(self, x):
        batch, height, width, dim = x.shape
        w = self.window
        x = x.view(batch, height // w, w, width // w, w, dim)
        return x.transpose(2, 3).reshape(-1, w * w, dim)

    def _mask(self, height, width):
        if not self.shift:
            return None
        regions, count = torch.zeros(1, height, width, 1), 0
        cuts = (slice(0, -self.window), slice(-self.window, -self.shift),
                slice(-self.shift, None))
        for rows in cuts:
            for cols in cuts:
                regions[:, rows, cols] = count
                count += 1
        regions = self._windows(regions)[..., 0]
        apart = regions[:, None] != regions[:, :, None]
        return apart.float() * -100

    def _attn(self, x):
        batch, height, width, dim = x.shape
        w = self.window
        x = x.roll((-self.shift, -self.shift), dims=(1, 2))
        x = F.pad(x, (0, 0, 0, -width % w, 0, -height % w))
        rows, cols = x.shape[1:3]
        x = self.attn(self._windows(x), mask=self._mask(rows, cols))
        x = x.view(batch, rows // w, cols // w, w, w, dim).transpose(2, 3)
        x = x.reshape(batch, rows, cols, dim)[:, :height, :width]
        return x.roll((self.shift, self.shift), dims=(1, 2))

    def forward(self, x):
        x = x + self._attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):

    def __init__(self, dim):
        super().__init__()
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x):
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduction(torch.cat(parts, -1))


class SwinTransformerStage(nn.Module):

    def __init__(self, dim, depth, num_heads, window, downsample, fused):
        super().__init__()
        self.downsample = PatchMerging(
            dim // 2) if downsample else nn.Identity()
        self.blocks = nn.Sequential(
            *(SwinTransformerBlock(dim, num_heads, window, i % 2 *
                                   (window // 2), fused)
              for i in range(depth)))

    def forward(self, x):
        return self.blocks(self.downsample(x))


class SwinTransformer(nn.Module):

    def __init__(self, dim=24, depths=(2, 2), num_heads=(1, 2), window=4,
                 fused=False):
        super().__init__()
        self.patch_embed = PatchEmbed(dim, 64, flat=False)
        self.layers = nn.Sequential(
            *(SwinTransformerStage(dim * 2**i, depth, heads, window, i > 0,
                                   fused)
              for i, (depth, heads) in enumerate(zip(depths, num_heads))))
        self.norm = nn.LayerNorm(dim * 2**(len(depths) - 1))

    def forward(self, x):
        return self.norm(self.layers(self.patch_embed(x)))


MODELS = dict(vit=VisionTransformer, swin=SwinTransformer)


def create_model(model_name, features_only=False, pretrained=False,
                 in_chans=3, checkpoint_path='', **kwargs):
    return MODELS[model_name](**kwargs)
