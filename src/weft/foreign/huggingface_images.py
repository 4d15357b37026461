"""Hugging Face decoders that read an image before the text: image tokens stand where its patches go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.huggingface import HuggingFaceSubject
from weft.foreign.huggingface_config import image_of
from weft.foreign.plain import first_tensor, per_token
from weft.foreign.subject import NotTestable, Subject, SubjectCall


class ImageTextSubject(HuggingFaceSubject):
    """The image is the source; a token for each of its patches comes before the text, whose outputs are judged."""

    image_token: int = 0

    def run(self, call: SubjectCall) -> Tensor:
        """Text [B, T] after an image -> logits [B, T, C] of the text alone."""
        call.takes("real", "source")
        with self.exact:
            out = first_tensor(self.module(**self._with_image(call), **self._extra(self._prefixed(call))))
            out = per_token(out, call.content.shape[1] + self._prefix)
            return out.gather(1, self._places(call)[..., None].expand(-1, -1, out.shape[2]))

    @property
    def _prefix(self) -> int:
        return self.declares.prefix or 0

    def _places(self, call: SubjectCall) -> Tensor:
        """[B, T]: where each token of the text stands: after the image, but padding on the left before it."""
        real = torch.ones_like(call.content, dtype=torch.bool) if call.real is None else call.real
        padded = (~real).long().cumprod(1) * (real.any(1, keepdim=True))
        return torch.arange(call.content.shape[1]) + self._prefix * (1 - padded)

    def _prefixed(self, call: SubjectCall) -> SubjectCall:
        """The call with image tokens among its text, all of them real."""
        places, (B, T) = self._places(call), call.content.shape
        content = torch.full((B, T + self._prefix), self.image_token).scatter(1, places, call.content)
        real = None if call.real is None else torch.ones_like(content, dtype=torch.bool).scatter(1, places, call.real)
        return replace(call, content=content, real=real)

    def _with_image(self, call: SubjectCall) -> dict[str, Tensor]:
        if call.source is None:
            raise NotTestable("it needs an image")
        content = self._prefixed(call).content
        given = {"input_ids": content, "pixel_values": call.source}
        if "token_type_ids" in self.names:
            given["token_type_ids"] = (content == self.image_token).long()
        return given

    def run_cached(self, call: SubjectCall, cache: Any) -> tuple[Tensor, Any]:
        """The image goes in with the first tokens."""
        begun = cache[1] is not None
        given = {"input_ids": call.content} if begun else self._with_image(call)
        if begun and "token_type_ids" in self.names:
            given["token_type_ids"] = torch.zeros_like(call.content)
        with self.exact:
            out = self.module(**given, past_key_values=cache[1], use_cache=True)
        return first_tensor(out)[:, 0 if begun else self._prefix :], (None, out.past_key_values, 0)

    def with_step_positions(self) -> tuple[Subject, str] | None:
        """Its steps count from the image on; they are not numbered from outside."""
        return None

    def _aside(self) -> dict[str, str]:
        """Which layer of the vision part is tapped is the config's choice; those after it are not passed."""
        why = "only up to the layer that is tapped are they passed, and no gradient is asked of"
        return dict.fromkeys(("vision", "visual", "image"), why)

    def _tokens_of(self, call: SubjectCall) -> dict[str, Tensor]:
        return self._with_image(call)

    def _lengths(self, call: SubjectCall) -> set[int]:
        return {call.content.shape[1] + self._prefix}


def image_text_subject(found: HuggingFaceSubject) -> Subject | None:
    """The adapter for a decoder with an image before its text; None where its number of tokens is not to be had."""
    module: nn.Module = found.module
    config: Any = module.config
    token = getattr(config, "image_token_id", None)
    token = getattr(config, "image_token_index", None) if token is None else token
    if token is None or not hasattr(module, "get_image_features") or getattr(config, "vision_config", None) is None:
        return None
    image = image_of(config)
    try:
        with torch.no_grad():
            features = module.get_image_features(pixel_values=image)  # type: ignore[operator]
        rows = getattr(features, "pooler_output", features)
        count = int(rows[0].shape[-2])
    except Exception:
        return None
    declares = replace(found.declares, prefix=count)
    avoid = tuple(sorted({*found.avoid, int(token)}))
    said = f"an image of {count} tokens stands before the text, as token {token}; the text's outputs are judged"
    assumed = (*(text for text in found.assumed if "without images" not in text), said)
    subject = ImageTextSubject(module, declares, assumed, found.example, image, avoid, library="transformers")
    subject.image_token = int(token)
    return subject
