"""The vision towers of Qwen-VL models without their two slow ways: the same numbers up to rounding.

Patches are embedded by a 3-D convolution whose kernel is as large as a patch. That is a product of two matrices, and as
one it takes a tenth of the time on a CPU: convolutions have kernels for windows that move. And each picture (each
window of one) is a call of the attention of its own; where all are of one size, one call takes them as a batch.
"""

from __future__ import annotations

import sys
from types import MethodType
from typing import Any

from torch import Tensor, nn

_ATTENTIONS = {"VisionAttention", "Qwen2_5_VLVisionAttention", "Qwen3VLVisionAttention"}
"""Classes of transformers whose forward is that of Qwen2-VL's `VisionAttention`."""
_ROTATE = "apply_rotary_pos_emb_vision"


def speed_up_vision(model: nn.Module) -> None:
    """Let the vision tower of `model`, where it has such parts, embed patches by a matrix product and attend within
    pictures of one size at once. Classes, weights and names stay."""
    for module in model.modules():
        if _is_plain_convolution(module):
            module.forward = MethodType(_embed, module)
        elif type(module).__name__ in _ATTENTIONS and hasattr(sys.modules[type(module).__module__], _ROTATE):
            module.forward = MethodType(_attend, module)


def _is_plain_convolution(module: nn.Module) -> bool:
    if type(module) is not nn.Conv3d:
        return False
    return module.groups == 1 and module.padding == (0, 0, 0) and module.dilation == (1, 1, 1)


def _embed(self: nn.Conv3d, patches: Tensor) -> Tensor:
    """Return [N, C', time, rows, columns] of `patches` [N, C, time, rows, columns]: a matrix product where each is as
    large as the kernel."""
    if patches.ndim != 5 or tuple(patches.shape[2:]) != self.kernel_size:
        return nn.Conv3d.forward(self, patches)
    product = nn.functional.linear(patches.flatten(1), self.weight.flatten(1), self.bias)
    return product[:, :, None, None, None]


def _attend(
    self: Any, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: Any = None, **kwargs: Any
) -> Tensor:
    """Return [T, H] of `hidden_states` [T, H], of which stretches that end at `cu_seqlens` see themselves alone:
    together where they are of one length."""
    lengths = cu_seqlens.diff().tolist()
    alike = len(lengths) > 1 and len(set(lengths)) == 1
    if not alike or position_embeddings is None or self.config._attn_implementation != "sdpa" or self.training:
        own = type(self).forward
        return own(self, hidden_states, cu_seqlens, position_embeddings=position_embeddings, **kwargs)
    rotate = getattr(sys.modules[type(self).__module__], _ROTATE)
    parts = self.qkv(hidden_states).reshape(len(hidden_states), 3, self.num_heads, -1).permute(1, 0, 2, 3)
    query, key = rotate(parts[0], parts[1], *position_embeddings)
    stretches = (len(lengths), lengths[0], self.num_heads, -1)
    query, key, value = (part.reshape(stretches).transpose(1, 2) for part in (query, key, parts[2]))
    seen = nn.functional.scaled_dot_product_attention(query, key, value, scale=self.scaling)
    attended: Tensor = self.proj(seen.transpose(1, 2).reshape(len(hidden_states), -1))
    return attended


# a method is pickled by the name of its function: what is read back is the plain model
_embed.__name__ = _attend.__name__ = "forward"
