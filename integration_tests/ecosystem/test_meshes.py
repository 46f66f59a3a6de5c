"""Models of transformers and timm, split over four processes by ``plan="auto"``, train alike."""

import multiprocessing
import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from mm_dist import ConfigError, MMFullyShardedDataParallel

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
QUERY_GROUPS = {"num_key_value_heads": 2}
MODELS = {
    "LlamaForCausalLM": QUERY_GROUPS,
    "Qwen2ForCausalLM": {**QUERY_GROUPS, "tie_word_embeddings": True},
    "Qwen3ForCausalLM": {**QUERY_GROUPS, "head_dim": 4},
    "BertForMaskedLM": NO_DROPOUT,
    "RobertaForMaskedLM": NO_DROPOUT,
}


def build(name):
    torch.manual_seed(0)
    if name == "timm":
        import timm  # noqa: PLC0415 - one of the tests needs it

        sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "depth": 1}
        return timm.create_model("vit_tiny_patch16_224", num_classes=4, **sizes).double()
    import transformers  # noqa: PLC0415 - not where only timm is installed

    kind = getattr(transformers, name)
    return kind(kind.config_class(**SIZES, **MODELS[name])).double()


def loss_of(model, step, rank=0, num_ranks=1):
    """Return the loss of the data rank's share of a batch."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, 32, (8, 6), generator=generator)[rank::num_ranks].contiguous()
    if hasattr(model, "config"):
        return model(input_ids=tokens, labels=tokens).loss
    images = torch.randn(8, 3, 16, 16, generator=generator)[rank::num_ranks].double()
    return torch.nn.functional.cross_entropy(model(images), tokens[:, 0] % 4)


def train(model, num_steps, call, rank=0, num_ranks=1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(num_steps):
        loss = loss_of(call, step, rank, num_ranks)
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / 4)
    return losses


def expect_alike(name, num_steps, data, split):
    alone = build(name)
    expected = train(alone, num_steps, alone)
    wrapper = MMFullyShardedDataParallel(
        build(name), mesh={"data": data, "tensor": 4 // data}, plan="auto"
    )
    place = wrapper.data_rank, wrapper.num_data_ranks
    found = train(wrapper, num_steps, wrapper.module, *place)
    assert found == pytest.approx(expected, abs=1e-6, rel=0)
    found_split = {n.rpartition(".")[0] for n, p in wrapper.named_parameters() if is_split(p)}
    assert len(found_split) == split, found_split


def is_split(parameter):
    return parameter.device_mesh.ndim == 2


def _enter(rank, store, environment, function, arguments):
    os.environ.update(environment)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    function(*arguments)
    dist.barrier()
    os._exit(0)


@pytest.fixture
def on_four_ranks(tmp_path):
    def run(function, *arguments):
        multiprocessing.set_forkserver_preload(["torch.distributed.fsdp", "transformers"])
        passed = (tmp_path / "store", {"OMP_NUM_THREADS": "1"}, function, arguments)
        mp.start_processes(_enter, passed, nprocs=4, start_method="forkserver")

    return run


def _transformers():
    # Attention: q, k, v, out; three layers of an MLP; embedding and head, unless they are tied.
    expect_alike("LlamaForCausalLM", 3, 2, split=4 + 3 + 2)
    expect_alike("Qwen2ForCausalLM", 3, 2, split=4 + 3)
    expect_alike("Qwen3ForCausalLM", 3, 2, split=4 + 2 + 3 + 2)
    expect_alike("RobertaForMaskedLM", 3, 2, split=4 + 2)
    for data, split in ((1, 4 + 2), (2, 4 + 2), (4, 0)):
        expect_alike("BertForMaskedLM", 20, data, split)
    with pytest.raises(ConfigError, match="num_key_value_heads=2 heads"):
        MMFullyShardedDataParallel(
            build("LlamaForCausalLM"), mesh={"data": 1, "tensor": 4}, plan="auto"
        )


def test_plans_of_transformers(on_four_ranks):
    pytest.importorskip("transformers")
    on_four_ranks(_transformers)


def _timm():
    # Two layers of the attention, whose heads need not divide, and two of the MLP.
    for data in (1, 2):
        expect_alike("timm", 5, data, split=2 + 2)


def test_plan_for_timm(on_four_ranks):
    pytest.importorskip("timm")
    on_four_ranks(_timm)
