"""The papers' equations written down one after the other.

The modules of the package compute the same in other ways; these are what they
are tested against and measured beside. Parameters have the same names.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class PlainPola(nn.Module):
    """PolaFormer's attention, step by step (whole maps, no padding)."""

    def __init__(self, dim, num_heads, grid_size, alpha=4, kernel_size=5):
        super().__init__()
        head = dim // num_heads
        self.num_heads, self.alpha = num_heads, alpha
        self.grid_size = grid_size
        self.qkvg = nn.Linear(dim, 4 * dim)
        self.proj = nn.Linear(dim, dim)
        self.dwc = nn.Conv2d(
            head, head, kernel_size, padding=kernel_size // 2, groups=head)
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, head))
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))
        self.positional_encoding = nn.Parameter(
            torch.zeros(1, grid_size[0] * grid_size[1], dim))

    def heads(self, x):
        batch, tokens, dim = x.shape
        x = x.reshape(batch, tokens, self.num_heads, dim // self.num_heads)
        return x.permute(0, 2, 1, 3)

    def forward(self, x, layout=None):
        batch, tokens, dim = x.shape
        height, width = self.grid_size
        q, k, v, g = self.qkvg(x).chunk(4, dim=-1)
        k = k + self.positional_encoding
        q = self.heads(q / F.softplus(self.scale))
        k = self.heads(k / F.softplus(self.scale))
        v = self.heads(v)
        power = 1 + self.alpha * torch.sigmoid(self.power)
        q_pos, q_neg = F.relu(q)**power, F.relu(-q)**power
        k_pos, k_neg = F.relu(k)**power, F.relu(-k)**power
        keys = torch.cat([k_pos, k_neg], dim=-1)
        same, opposite = v.chunk(2, dim=-1)
        out = torch.cat([
            self.flow(torch.cat([q_pos, q_neg], dim=-1), keys, same),
            self.flow(torch.cat([q_neg, q_pos], dim=-1), keys, opposite),
        ], dim=-1)
        out = out.transpose(1, 2).reshape(batch, tokens, dim)
        maps = v.reshape(batch * self.num_heads, tokens, -1)
        maps = maps.permute(0, 2, 1).reshape(
            batch * self.num_heads, -1, height, width)
        local = self.dwc(maps).reshape(batch, dim, tokens).permute(0, 2, 1)
        return self.proj((out + local) * g)

    @staticmethod
    def flow(queries, keys, values):
        tokens = keys.shape[-2]
        mean = keys.mean(dim=-2, keepdim=True)
        factor = 1 / (queries @ mean.transpose(-2, -1) + 1e-6)
        summed = (keys.transpose(-2, -1) * tokens**-0.5) @ (
            values * tokens**-0.5)
        return queries @ summed * factor


class PlainCSaN(nn.Module):
    """CSaN's attention, step by step (unbounded, a gain for each channel)."""

    def __init__(self, dim, num_heads, grid_size=None):
        super().__init__()
        hidden = max(dim // 8, 24)
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.u = nn.Linear(dim, dim // 4)
        self.reduce = nn.Linear(dim // 4, hidden)
        self.act = nn.ModuleDict(dict(proj=nn.Linear(hidden, hidden)))
        self.ka = nn.Linear(hidden, dim)
        self.kv = nn.Linear(hidden, dim)
        self.magk = nn.Linear(hidden, num_heads)
        self.temp = nn.Linear(hidden, num_heads)
        self.proj = nn.Linear(dim, dim)
        if grid_size is not None:
            height, width = grid_size
            self.relative_position_bias_table = nn.Parameter(
                torch.zeros((2 * height - 1) * (2 * width - 1), num_heads))
            rows, cols = torch.meshgrid(
                torch.arange(height), torch.arange(width), indexing='ij')
            place = torch.stack([rows.flatten(), cols.flatten()])
            gap = place[:, :, None] - place[:, None, :]
            index = (gap[0] + height - 1) * (2 * width - 1) + (
                gap[1] + width - 1)
            self.register_buffer('index', index, persistent=False)
        self.biased = grid_size is not None

    def heads(self, x):
        groups, tokens, channels = x.shape
        x = x.reshape(groups, tokens, self.num_heads, -1)
        return x.permute(0, 2, 1, 3)

    def forward(self, x, layout=None):
        groups, tokens, dim = x.shape
        q, k, v = (self.heads(t) for t in self.qkv(x).chunk(3, dim=-1))
        s = q @ k.transpose(-2, -1) * q.shape[-1]**-0.5
        if self.biased:
            bias = self.relative_position_bias_table[self.index.view(-1)]
            s = s + bias.view(tokens, tokens, -1).permute(2, 0, 1)
        if layout is not None and layout.mask is not None:
            windows = layout.mask.shape[0]
            s = s.view(-1, windows, *s.shape[1:]) + layout.mask[:, None]
            s = s.flatten(0, 1)
        phi = torch.where(s > 0.25, s, 0.25 * torch.exp(s / 0.25 - 1))
        m = phi.mean(dim=-1)  # (G, H, N)
        gate = self.heads(torch.sigmoid(self.u(x)))
        iota = (m.unsqueeze(-1) * gate).permute(0, 2, 1, 3)
        z = self.reduce(iota.reshape(groups, tokens, -1))
        z = z * torch.sigmoid(self.act['proj'](z))
        tau = 1 + self.heads(self.temp(z))
        mu = (1 + self.heads(self.magk(z))).transpose(-2, -1)
        public, private = 1 + self.heads(self.ka(z)), self.heads(self.kv(z))
        weights = torch.softmax(tau * s, dim=-1) * mu
        out = (weights @ v) * public + v * private
        return self.proj(out.permute(0, 2, 1, 3).reshape(groups, tokens, dim))
