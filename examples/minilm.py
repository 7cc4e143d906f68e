"""all-MiniLM-L6-v2 over tensors that somebody else owns: built on `meta`, then assigned."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from transformers import BertConfig, BertModel, BertTokenizer

SENTENCES = (
    "A pod that restarts should not read its weights again.",
    "Two replicas on one node share the same pages of memory.",
    "The quick brown fox jumps over the lazy dog.",
)
# the checkpoint stores this constant, today's BertModel makes it itself
CONSTANTS = {"embeddings.position_ids"}


class Encoder:
    """Sentence embeddings: the last layer's mean over the tokens, normalised."""

    def __init__(self, folder: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Build from config and tokenizer in `folder` and the checkpoint's `tensors`.

        Raises:
            KeyError: a parameter that the model needs is not among `tensors`.

        """
        # The same sums in the same order, whatever else the machine does.
        torch.set_num_threads(1)
        config = BertConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            self.model = BertModel(config)
        loaded = self.model.load_state_dict(dict(tensors), strict=False, assign=True)
        wrong = set(loaded.missing_keys) | (set(loaded.unexpected_keys) - CONSTANTS)
        if wrong:
            raise KeyError(f"checkpoint and model differ in {sorted(wrong)}")
        positions = torch.arange(config.max_position_embeddings).unsqueeze(0)
        embeddings = self.model.embeddings
        embeddings.register_buffer("position_ids", positions, persistent=False)
        embeddings.register_buffer("token_type_ids", torch.zeros_like(positions), persistent=False)
        self.model.requires_grad_(requires_grad=False).train(mode=False)
        self.tokenizer = BertTokenizer.from_pretrained(folder, local_files_only=True)

    def embed(self, sentences: Sequence[str]) -> torch.Tensor:
        """One row of 384 float32 per sentence, each of length 1."""
        with torch.inference_mode():
            batch = self.tokenizer(
                list(sentences), padding=True, truncation=True, return_tensors="pt"
            )
            hidden = self.model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(mean, dim=1)


def digest(embeddings: torch.Tensor) -> str:
    """Sha256 of the embeddings' bytes: equal only if every bit is."""
    return hashlib.sha256(embeddings.contiguous().numpy().tobytes()).hexdigest()
