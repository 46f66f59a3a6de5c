"""Caches that decoders of Hugging Face's transformers fill while they are trained."""

import copy

import pytest
import torch
from torch import nn

from mm_runner.model import apply_module_settings


class _Of:
    """In the module that transformers has its caches in."""

    def __init_subclass__(cls):
        cls.__module__ = "transformers.cache_utils"


class CacheLayer(_Of):
    def __init__(self):
        self.keys = None


class Cache(_Of):
    def __init__(self):
        self.layers = []
        self.is_updated = {}

    def update(self, keys, index):
        while len(self.layers) <= index:
            self.layers.append(CacheLayer())
        layer = self.layers[index]
        layer.keys = keys if layer.keys is None else torch.cat([layer.keys, keys], 1)
        self.is_updated[index] = True
        return layer.keys


class DecoderLayer(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.keys, self.queries = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, hidden, mask, *, past_key_values):
        assert self.index not in past_key_values.is_updated
        keys = past_key_values.update(self.keys(hidden), self.index)
        scores = self.queries(hidden) @ keys.transpose(1, 2) + mask
        return hidden + scores.softmax(-1) @ keys


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(index) for index in range(3))

    def forward(self, inputs):
        cache = Cache()
        for layer in self.layers:
            inputs = layer(inputs, torch.zeros(5, 5), past_key_values=cache)
        return inputs, cache


def test_a_cache_among_the_inputs_is_filled_once():
    torch.manual_seed(0)
    model = Decoder()
    other = copy.deepcopy(model)
    apply_module_settings(other, {"activation_checkpointing": "auto"})
    inputs, found = torch.randn(2, 5, 4), []
    for one in (model, other):
        outputs, cache = one(inputs)
        outputs.square().sum().backward()
        keys = [layer.keys.detach() for layer in cache.layers]
        found.append([*keys, *(parameter.grad for parameter in one.parameters())])
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.filterwarnings("default")
def test_a_model_of_transformers_is_trained_as_it_is_configured():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=16, n_embd=8, n_layer=2, n_head=2, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    other = copy.deepcopy(model)
    apply_module_settings(other, {"activation_checkpointing": "auto"})
    ids, mask, found = torch.arange(16).reshape(2, 8), torch.ones(2, 8), []
    mask[0, 5:] = 0  # padding
    for one in (model, other):
        torch.manual_seed(1)
        one.train()(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
        found.append([parameter.grad for parameter in one.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)
