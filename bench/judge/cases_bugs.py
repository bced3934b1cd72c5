"""Planted bugs in transformers: one call or parameter of the target is wrong."""

from judge.cases import bug


@bug("llama", "model.layers.2.self_attn:scaled_dot_product_attention", kinds="argument")
def attention_scale_is_too_large(program):
    """A softmax scale of a config that the port reads differently."""
    program.model.model.layers[2].self_attn.scaling *= 1.3
