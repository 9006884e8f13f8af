# What is not decayed in fine-tuning, whatever the attention. A key matches
# every parameter whose full name contains it, hence "attn." before short
# names; keys of attentions that a network does not have match nothing.
no_decay = {
    'norm': dict(decay_mult=0.),
    'relative_position_bias_table': dict(decay_mult=0.),
    # Pola
    'attn.positional_encoding': dict(decay_mult=0.),
    'attn.scale': dict(decay_mult=0.),
    'attn.power': dict(decay_mult=0.),
    # PolaFormer++
    'attn.s1': dict(decay_mult=0.),
    'attn.s2': dict(decay_mult=0.)
}
