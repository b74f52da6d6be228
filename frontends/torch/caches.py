"""Caches of Hugging Face's models in inputs and results, which PyTorch's exports do not know."""

from __future__ import annotations

import sys
from typing import Any

_PARTS = ("self_attention_cache", "cross_attention_cache")


def register_caches() -> None:
    """Tell PyTorch how `DynamicCache` and `EncoderDecoderCache` are taken apart, as transformers
    itself does on demand; nothing where transformers is not loaded, or has told it already."""
    if "transformers.cache_utils" not in sys.modules:
        return
    from torch.utils import _pytree
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    if DynamicCache not in _pytree.SUPPORTED_NODES:
        register_dynamic_cache_export_support()
    if EncoderDecoderCache in _pytree.SUPPORTED_NODES:
        return

    def flatten(cache: Any) -> tuple[list[Any], list[str]]:
        return [getattr(cache, name) for name in _PARTS], list(_PARTS)

    def with_keys(cache: Any) -> tuple[list[Any], list[str]]:
        keys = [(_pytree.GetAttrKey(name), getattr(cache, name)) for name in _PARTS]
        return keys, list(_PARTS)

    _pytree.register_pytree_node(
        EncoderDecoderCache,
        flatten,
        lambda parts, _: EncoderDecoderCache(*parts),
        serialized_type_name="transformers.cache_utils.EncoderDecoderCache",
        flatten_with_keys_fn=with_keys,
    )
