"""The stand-ins refuse what devices and libraries refuse, and a replay really runs again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.core.standins.accelerator import FakeDevice, StandInError
from tests.core.standins.libraries import INT_MAX, attention, fake_flashinfer, fake_torch_npu


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def test_a_replay_runs_again_on_the_same_memory():
    ops = FakeDevice().ops()
    source, result, number = torch.tensor([1.0, 2.0]), torch.zeros(2), 3
    graph = ops.capture(lambda: result.copy_((source * number).relu()))
    assert result.tolist() == [3.0, 6.0]  # of the warm-up
    result.zero_()
    number = 100
    source.copy_(torch.tensor([-1.0, 5.0]))
    graph.replay()
    assert result.tolist() == [0.0, 15.0]


def test_a_capture_itself_runs_nothing_and_hands_nothing_out():
    ops, count, kept = FakeDevice().ops(), torch.zeros(()), []

    def body() -> None:
        count.add_(1)
        kept.append(count * 2)

    graph = ops.capture(body)
    assert count.item() == 2
    graph.replay()
    assert count.item() == 3
    assert kept[-1].isnan()


MASK = torch.tensor([True, False, True])
VALUES = torch.tensor([1.0, 2.0, 3.0])
WAITS = {
    "item": lambda: VALUES[0].item(),
    "tolist": lambda: VALUES.tolist(),
    "cpu": lambda: VALUES.cpu(),
    "to": lambda: VALUES.to("cpu"),
    "numpy": lambda: VALUES.numpy(),
    "if": lambda: 1 if MASK.any() else 0,
    "int": lambda: int(VALUES[0]),
    "nonzero": lambda: MASK.nonzero(),
    "where": lambda: torch.where(MASK),
    "masked_select": lambda: VALUES.masked_select(MASK),
    "boolean index": lambda: VALUES[MASK],
    "boolean assignment": lambda: VALUES.clone().__setitem__(MASK, 0.0),
    "number in where": lambda: torch.where(MASK, 1.0, VALUES),
    "host tensor": lambda: torch.tensor([1]),
    "factory": lambda: torch.arange(3),
    "random": lambda: torch.rand(3, device="cpu"),
    "repeat": lambda: torch.repeat_interleave(VALUES, VALUES.long()),
}


@pytest.mark.parametrize("case", WAITS)
def test_what_a_capture_cannot_record_is_refused(case):
    def body() -> None:
        WAITS[case]()

    with pytest.raises(StandInError, match=r"during a capture|waits for the device"):
        FakeDevice().ops().capture(body)


def test_memory_that_moved_or_was_freed_fails_the_replay():
    ops, source, result = FakeDevice().ops(), [torch.ones(3)], torch.zeros(3)
    graph = ops.capture(lambda: result.copy_(source[0]))
    graph.replay()
    source[0] = torch.ones(3)
    with pytest.raises(StandInError, match="freed"):
        graph.replay()
    weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    graph = ops.capture(lambda: result.copy_(weight))
    weight.data = torch.ones(3)
    with pytest.raises(StandInError, match="freed"):
        graph.replay()


def test_capture_takes_a_warm_stream_of_its_own_and_no_waiting():
    device = FakeDevice()
    module = device.module
    with pytest.raises(StandInError, match="default"), module.graph(module.CUDAGraph()):
        pass
    with pytest.raises(StandInError, match="warm-up"), module.graph(module.CUDAGraph(), stream=module.Stream()):
        pass
    with pytest.raises(StandInError, match="host values"):
        device.ops().capture(lambda: None, host_values=True)
    with pytest.raises(StandInError, match="synchronize"):
        device.ops().capture(lambda: module.synchronize() if device.recorder else None)
    with pytest.raises(StandInError, match="holds nothing"):
        module.CUDAGraph().replay()


def test_copies_to_the_host_come_late():
    device = FakeDevice(latency=2)
    ops, count = device.ops(), torch.zeros(1, dtype=torch.int32)
    graph = ops.capture(lambda: count.add_(1))
    count.zero_()
    host, event = ops.host_buffer(1, dtype=torch.int32), ops.event()
    graph.replay()
    ops.to_host(host, count)
    event.record()
    assert host.item() < 0
    assert not event.query()
    with pytest.raises(StandInError, match="before its copy"):
        ops.to_host(host, count)
    graph.replay()
    assert not event.query()
    graph.replay()
    assert event.query()
    assert host.item() == 1
    ops.to_host(host, count)
    late = ops.event()
    with pytest.raises(StandInError, match="not recorded"):
        late.synchronize()
    late.record()
    late.synchronize()
    assert host.item() == 3
    with pytest.raises(StandInError, match="pinned"):
        ops.to_host(torch.zeros(1, dtype=torch.int32), count)


def pages(dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    """Query (5, 4, 8) and 6 pages of 16 keys and values, 2 heads each."""
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(*size, generator=generator) for size in ((5, 4, 8), *[(6, 16, 2, 8)] * 2))
    return query.to(dtype), keys.to(dtype), values.to(dtype)


def score(device: FakeDevice, **changed: object) -> Tensor:
    """Two requests, of 2 and 3 tokens, with 20 keys on pages 4 and 1, and 5 keys on page 3."""
    query, keys, values = pages(torch.float32)
    options: dict[str, object] = {
        "actual_seq_lengths": [2, 5], "actual_seq_lengths_kv": [20, 5], "block_size": 16, "num_heads": 4,
        "block_table": torch.tensor([[4, 1], [3, 0]], dtype=torch.int32), "num_key_value_heads": 2, "scale": 0.3,
        "input_layout": "TND", "sparse_mode": 0, "atten_mask": None, "pre_tokens": INT_MAX, "next_tokens": INT_MAX,
    }
    query = changed.pop("query", query)
    library = fake_torch_npu(device, torch.float32)
    out: Tensor = library.npu_fused_infer_attention_score(
        query, keys.flatten(2), values.flatten(2), **(options | changed)
    )[0]
    return out


def test_fused_attention_is_attention_over_each_request_s_keys():
    query, keys, values = pages(torch.float32)
    first, second = (torch.cat([part[4], part[1]])[:20] for part in (keys, values))
    torch.testing.assert_close(score(FakeDevice("npu"))[:2], attention(query[:2], first, second, 0.3))
    torch.testing.assert_close(
        score(FakeDevice("npu"))[2:], attention(query[2:], keys[3, :5], values[3, :5], 0.3)
    )


def test_a_mask_of_fused_attention_hides_where_it_is_true():
    query, keys, values = pages(torch.float32)
    hidden = torch.zeros(3, 20, dtype=torch.bool)
    hidden[:, 0] = True
    out = score(FakeDevice("npu"), atten_mask=hidden)
    torch.testing.assert_close(out[2:], attention(query[2:], keys[3, 1:5], values[3, 1:5], 0.3))


WRONG_SCORES = {
    "lengths that are not cumulative": {"actual_seq_lengths": [2, 3]},
    "a tensor of lengths": {"actual_seq_lengths_kv": torch.tensor([20, 5])},
    "a sparse mode that hides": {"sparse_mode": 3},
    "a window": {"next_tokens": 0},
    "int64 pages": {"block_table": torch.tensor([[4, 1], [3, 0]])},
    "more keys than pages": {"actual_seq_lengths_kv": [20, 50]},
    "another layout": {"input_layout": "BSH"},
    "a query that is not contiguous": {"query": torch.zeros(4, 5, 8).transpose(0, 1)},
    "half a page": {"block_size": 8},
    "a mask of numbers": {"atten_mask": torch.zeros(3, 20)},
}


@pytest.mark.parametrize("case", WRONG_SCORES)
def test_wrong_calls_of_fused_attention_are_refused(case):
    with pytest.raises(StandInError):
        score(FakeDevice("npu"), **WRONG_SCORES[case])
    query, keys, values = pages(torch.float32)
    with pytest.raises(StandInError, match="no kernel"):
        fake_torch_npu(FakeDevice("npu")).npu_fused_infer_attention_score(
            query, keys.flatten(2), values.flatten(2), actual_seq_lengths=[5], actual_seq_lengths_kv=[5],
            block_table=torch.zeros(1, 1, dtype=torch.int32), block_size=16, num_heads=4, num_key_value_heads=2,
            scale=1.0, input_layout="TND", sparse_mode=0, atten_mask=None, pre_tokens=INT_MAX, next_tokens=INT_MAX,
        )


def test_host_numbers_of_an_ascend_graph_change_by_update_alone():
    device = FakeDevice("npu")
    ops, result, lengths = device.ops(), torch.zeros(5, 4, 8), [20, 5]
    table = torch.tensor([[4, 1], [3, 0]], dtype=torch.int32)
    query, keys, values = pages(torch.float32)
    keys, values = keys.flatten(2), values.flatten(2)
    library = fake_torch_npu(device, torch.float32)

    def body() -> None:
        result.copy_(library.npu_fused_infer_attention_score(
            query, keys, values, actual_seq_lengths=[2, 5], actual_seq_lengths_kv=lengths, block_table=table,
            block_size=16, num_heads=4, num_key_value_heads=2, scale=0.3, input_layout="TND", sparse_mode=0,
            atten_mask=None, pre_tokens=INT_MAX, next_tokens=INT_MAX,
        )[0])

    graph = ops.capture(body, host_values=True)
    with pytest.raises(StandInError, match="waits for ever"):
        graph.replay()
    ops.update(graph, {"actual_seq_lengths_kv": [20, 7]})
    graph.replay()
    torch.testing.assert_close(result, score(FakeDevice("npu"), actual_seq_lengths_kv=[20, 7]))
    with pytest.raises(StandInError, match="under way"):
        ops.update(graph, {"actual_seq_lengths_kv": [20, 7]})
    device.reach(device.given)
    with pytest.raises(StandInError, match="2 given"):
        graph.update(cpu_update_input=[{}, {}])  # type: ignore[attr-defined]
    ops.update(graph, {})
    lengths[1] = 9
    with pytest.raises(StandInError, match="changed after the capture"):
        graph.replay()
    plain = ops.capture(body)
    with pytest.raises(StandInError, match="auto_dispatch_capture"):
        ops.update(plain, {})


def wrapper(device: FakeDevice, **changed: object):
    options: dict[str, object] = {"backend": "fa2", "use_cuda_graph": True} | {
        name: torch.zeros(size, dtype=torch.int32) for name, size in (
            ("qo_indptr_buf", 3), ("paged_kv_indptr_buf", 3), ("paged_kv_indices_buf", 4),
            ("paged_kv_last_page_len_buf", 2),
        )
    }
    library = fake_flashinfer(device)
    return library.BatchPrefillWithPagedKVCacheWrapper(torch.zeros(64, dtype=torch.uint8), "NHD", **(options | changed))


PLAN: dict[str, object] = {
    "qo_indptr": torch.tensor([0, 2, 5], dtype=torch.int32), "causal": False, "sm_scale": 0.3,
    "paged_kv_indptr": torch.tensor([0, 2, 3], dtype=torch.int32), "num_qo_heads": 4, "num_kv_heads": 2,
    "paged_kv_indices": torch.tensor([4, 1, 3], dtype=torch.int32), "head_dim_qk": 8, "page_size": 16,
    "paged_kv_last_page_len": torch.tensor([4, 5], dtype=torch.int32), "q_data_type": torch.bfloat16,
}


def planned(flash, **changed: object) -> None:
    """The two requests of `score`."""
    flash.plan(**(PLAN | changed))


def test_paged_attention_follows_its_last_plan_at_every_replay():
    device = FakeDevice()
    ops, flash, (query, keys, values) = device.ops(), wrapper(device), pages()
    result = torch.zeros_like(query)
    planned(flash)
    graph = ops.capture(lambda: result.copy_(flash.run(query, (keys, values))))
    graph.replay()
    device.reach(device.given)
    expected = attention(query[2:], keys[3, :5], values[3, :5], 0.3)
    torch.testing.assert_close(result[2:], expected)
    planned(flash, paged_kv_last_page_len=torch.tensor([4, 9], dtype=torch.int32))
    graph.replay()
    torch.testing.assert_close(result[2:], attention(query[2:], keys[3, :9], values[3, :9], 0.3))
    assert not torch.equal(result[2:], expected)


WRONG_WRAPPERS = {
    "the automatic backend": {"backend": "auto"},
    "no graph mode": {"use_cuda_graph": False},
    "a mask buffer": {"custom_mask_buf": torch.zeros(8, dtype=torch.uint8)},
    "a missing buffer": {"paged_kv_indices_buf": None},
    "int64 buffers": {"qo_indptr_buf": torch.zeros(3, dtype=torch.long)},
}
WRONG_PLANS = {
    "int64 indices": {"paged_kv_indices": torch.tensor([4, 1, 3])},
    "another number of requests": {
        "qo_indptr": torch.tensor([0, 5], dtype=torch.int32),
        "paged_kv_indptr": torch.tensor([0, 3], dtype=torch.int32),
        "paged_kv_last_page_len": torch.tensor([4], dtype=torch.int32),
    },
    "no kernel": {"q_data_type": torch.float32},
    "an empty last page": {"paged_kv_last_page_len": torch.tensor([0, 5], dtype=torch.int32)},
    "keys that are not split": {"disable_split_kv": True},
    "a mask": {"custom_mask": torch.ones(55, dtype=torch.bool)},
    "lengths that are not uniform": {"uniform_q_len": 2},
}


@pytest.mark.parametrize("case", WRONG_WRAPPERS)
def test_wrong_wrappers_are_refused(case):
    with pytest.raises(StandInError):
        wrapper(FakeDevice(), **WRONG_WRAPPERS[case])


@pytest.mark.parametrize("case", WRONG_PLANS)
def test_wrong_plans_are_refused(case):
    with pytest.raises(StandInError):
        planned(wrapper(FakeDevice()), **WRONG_PLANS[case])


def test_a_plan_comes_before_the_run_and_after_the_last_plan_s_copy():
    device = FakeDevice()
    flash, (query, keys, values) = wrapper(device), pages()
    with pytest.raises(StandInError, match="before plan"):
        flash.run(query, (keys, values))
    planned(flash)
    with pytest.raises(StandInError, match="staging"):
        planned(flash)
    device.reach(device.given)
    planned(flash)
    with pytest.raises(StandInError, match="contiguous"):
        flash.run(query.transpose(0, 1).contiguous().transpose(0, 1), (keys, values))
    with pytest.raises(StandInError, match="pages are those"):
        flash.run(query, (keys.view(12, 8, 2, 8), values.view(12, 8, 2, 8)))
    with pytest.raises(StandInError, match="plan during a capture"):
        device.ops().capture(lambda: planned(flash) if device.recorder else None)


def test_lengths_that_do_not_reach_what_was_written_are_refused():
    device = FakeDevice()
    ops, flash, (query, keys, values) = device.ops(), wrapper(device), pages()
    result, slot, new = torch.zeros_like(query), torch.tensor([3 * 16 + 4]), torch.ones(1, 2, 8, dtype=query.dtype)
    planned(flash)

    def body() -> None:
        keys.flatten(0, 1).index_copy_(0, slot, new)
        result.copy_(flash.run(query, (keys, values)))

    graph = ops.capture(body)
    graph.replay()
    slot.add_(1)  # the sixth key of the second request, whose plan says five
    with pytest.raises(StandInError, match="beyond the lengths"):
        graph.replay()
    device.reach(device.given)
    planned(flash, paged_kv_last_page_len=torch.tensor([4, 6], dtype=torch.int32))
    graph.replay()
