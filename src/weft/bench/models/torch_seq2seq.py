"""A recurrent seq2seq with attention as a PyTorch user writes it: nn.GRU or nn.LSTM over packed sources.

Attention "before" the step (Bahdanau et al. 2015, additive) needs the state before each step, so it calls nn.GRUCell;
"after" it (Luong et al. 2015, bilinear) runs nn.GRU over all targets at once. Width D, hidden H, vocabulary C.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class TorchSeq2Seq(nn.Module):
    """sources [B, S] with lengths, targets [B, T] -> logits [B, T, C]."""

    def __init__(self, cell: str, wiring: str, vocabulary: int, width: int, hidden: int) -> None:
        super().__init__()
        self.cell, self.wiring = cell, wiring
        net: Any = nn.GRU if cell == "gru" else nn.LSTM
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = net(width, hidden, batch_first=True, bidirectional=True)
        self.first = nn.Linear(2 * hidden, hidden)
        self.key = nn.Linear(2 * hidden, (2 if wiring == "before" else 1) * hidden, bias=False)
        if wiring == "before":
            self.step = (nn.GRUCell if cell == "gru" else nn.LSTMCell)(width + 2 * hidden, hidden)
            self.query = nn.Linear(hidden, 2 * hidden, bias=False)
            self.energy = nn.Linear(2 * hidden, 1, bias=False)
        else:
            self.decoder = net(width, hidden, batch_first=True)
            self.combine = nn.Linear(3 * hidden, hidden)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.source(source), lengths, batch_first=True, enforce_sorted=False)
        out, end = self.encoder(packed)
        memory, _ = pad_packed_sequence(out, batch_first=True)
        end = end[0] if self.cell == "lstm" else end
        s = torch.tanh(self.first(torch.cat((end[0], end[1]), -1)))
        padding = torch.arange(source.shape[1]) >= lengths[:, None]
        y, keys = self.target(target), self.key(memory)
        decode = self._after if self.wiring == "after" else self._before
        return self.head(decode(y, keys, memory, padding, s))

    def _after(self, y: Tensor, keys: Tensor, memory: Tensor, padding: Tensor, s: Tensor) -> Tensor:
        start = s[None] if self.cell == "gru" else (s[None], torch.zeros_like(s)[None])
        states, _ = self.decoder(y, start)
        scores = (states @ keys.transpose(1, 2)).masked_fill(padding[:, None], float("-inf"))
        context = scores.softmax(-1) @ memory
        return torch.tanh(self.combine(torch.cat((context, states), -1)))

    def _before(self, y: Tensor, keys: Tensor, memory: Tensor, padding: Tensor, s: Tensor) -> Tensor:
        hidden, kept = s, torch.zeros_like(s)
        outputs = []
        for t in range(y.shape[1]):
            scores = self.energy(torch.tanh(keys + self.query(hidden)[:, None])).squeeze(-1)
            weights = scores.masked_fill(padding, float("-inf")).softmax(-1)
            x = torch.cat((y[:, t], (weights[:, None] @ memory)[:, 0]), -1)
            if self.cell == "gru":
                hidden = self.step(x, hidden)
            else:
                hidden, kept = self.step(x, (hidden, kept))
            outputs.append(hidden)
        return torch.stack(outputs, 1)

    @torch.no_grad()
    def copy_weights(self, model: Any) -> TorchSeq2Seq:
        """Take over the weights of Weft's recurrent model of the same shape."""
        self.source.weight.copy_(model.source_embedding.weight)
        self.target.weight.copy_(model.target_embedding.weight)
        self.encoder.load_state_dict(model.encoder.net.state_dict())
        self.first.load_state_dict(model.first.state_dict())
        self.head.load_state_dict(model.head.linear.state_dict())
        if self.wiring == "before":
            self.query.weight.copy_(model.score.W[0])
            self.key.weight.copy_(model.score.U[0])
            self.energy.weight.copy_(model.score.v)
            own = {name.removesuffix("_l0"): value for name, value in model.decoder.net.state_dict().items()}
            self.step.load_state_dict(own)
        else:
            self.key.weight.copy_(model.score.W[0])
            self.decoder.load_state_dict(model.decoder.net.state_dict())
            self.combine.load_state_dict(model.combine.state_dict())
        return self
