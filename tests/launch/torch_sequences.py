"""Models of PyTorch over sequences: recurrent layers, and layers in the default layout, sequences first."""

import torch
from torch import nn

WORDS = 64


class SequencesFirst(nn.Module):
    """Attention of words whose first dimension is the place in the sequence."""

    def __init__(self):
        super().__init__()
        self.table, self.position = nn.Embedding(WORDS, 32), nn.Parameter(torch.randn(16, 1, 32) * 0.02)
        self.mixed, self.head = nn.MultiheadAttention(32, 4), nn.Linear(32, WORDS)

    def forward(self, words):
        x = self.table(words) + self.position
        return self.head(x + self.mixed(x, x, x, need_weights=False)[0])


class EncoderFirst(nn.Module):
    """PyTorch's encoder in its default layout, sequences first, and a mask of padding, examples first."""

    def __init__(self):
        super().__init__()
        self.table, self.position = nn.Embedding(WORDS, 32), nn.Parameter(torch.randn(16, 1, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, WORDS)

    def forward(self, words, padding):
        return self.head(self.encoder(self.table(words) + self.position, src_key_padding_mask=padding))


class RecurrentFirst(nn.Module):
    """PyTorch's LSTM in its default layout, sequences first, which gives one class for each example."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 32), nn.Linear(64, 8)
        self.lstm = nn.LSTM(32, 32, bidirectional=True)

    def forward(self, words):
        return self.head(self.lstm(self.table(words))[0].mean(0))


class Translator(nn.Module):
    """PyTorch's encoder and decoder, sequences first, with a mask that each example reads."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(WORDS, 32) for _ in range(2))
        self.body, self.head = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0), nn.Linear(32, WORDS)

    def forward(self, words, others, mask):
        return self.head(self.body(self.tables[0](words), self.tables[1](others), tgt_mask=mask))


class Recurrent(nn.Module):
    """Two layers of an LSTM and a GRU."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS)
        self.lstm, self.gru = nn.LSTM(32, 32, 2, batch_first=True), nn.GRU(32, 32, batch_first=True)

    def forward(self, words):
        return self.head(self.gru(self.lstm(self.table(words))[0])[0])
