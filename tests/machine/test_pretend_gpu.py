"""The pretended GPU of `make test-gpu` refuses what a GPU refuses, and computes as a GPU does."""

import pytest
import torch
from on_a_gpu import no_wait_for_the_gpu
from pretend_gpu import GPU, GpuError, Race

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(
    not GPU.installed, reason="`make test-gpu` installs the pretended GPU")]


@pytest.fixture
def on_gpu():
    """Three ones on the pretended GPU."""
    return torch.ones(3, device="cuda")


@pytest.fixture
def spoilt(monkeypatch):
    """The state that a failed capture leaves behind is this test's alone."""
    monkeypatch.setattr(GPU, "broken", False)
    yield
    GPU.stream = GPU.default


def capture(step):
    """The graph of a step, on a stream of its own."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    return graph


def test_an_operation_on_tensors_of_both_devices_is_refused(on_gpu):
    assert on_gpu.device == torch.device("cuda:0") and (on_gpu + torch.tensor(1.0)).is_cuda
    with pytest.raises(GpuError, match="two devices, cuda:0 and cpu"):
        on_gpu + torch.ones(3)
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        on_gpu.numpy()


@pytest.mark.parametrize("wait", [
    torch.Tensor.tolist, torch.Tensor.cpu, lambda x: x[0].item(), lambda x: x[x > 0],
    lambda x: x.copy_(torch.ones(3)), lambda x: torch.tensor(1.0, device="cuda")])
def test_a_hidden_wait_is_refused_where_it_is_forbidden(on_gpu, wait):
    wait(on_gpu)
    with no_wait_for_the_gpu(), pytest.raises(GpuError, match="synchronizing"):
        wait(on_gpu)


def test_a_wait_within_a_capture_is_refused_and_undone(on_gpu, spoilt):
    def step():
        on_gpu.add_(1)
        on_gpu.sum().item()
    with pytest.raises(GpuError, match="previous error during capture"):
        capture(step)
    assert on_gpu.tolist() == [1, 1, 1]
    with pytest.raises(GpuError, match="INTERNAL ASSERT"):
        capture(step)
    with pytest.raises(GpuError, match="Offset increment"):
        torch.rand(3, device="cuda")


def test_a_replay_computes_on_the_memory_of_the_capture_without_python(on_gpu):
    steps, out = [], torch.empty(3, device="cuda")

    def step():
        steps.append(1)
        out.copy_(2 * on_gpu + len(steps))
        on_gpu.add_(1)
    graph = capture(step)
    assert on_gpu.tolist() == [1, 1, 1]
    for wanted in (3, 5):
        graph.replay()
        assert out.tolist() == [wanted] * 3
    assert len(steps) == 1 and len(graph.ops) == 4


def test_memory_that_changes_while_it_is_copied_is_found(on_gpu):
    here = torch.zeros(3).pin_memory()
    on_gpu.copy_(here, non_blocking=True)
    torch.cuda.synchronize()
    on_gpu.copy_(here, non_blocking=True)
    here[0] = 5
    with pytest.raises(Race, match="changed before the GPU"):
        torch.cuda.synchronize()
    here.copy_(torch.ones(3, device="cuda"), non_blocking=True)
    assert here.isnan().all()
    torch.cuda.synchronize()
    assert here.tolist() == [1, 1, 1]


def test_memory_of_another_stream_is_used_after_waiting_for_it_alone(on_gpu):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        with pytest.raises(Race, match="without waiting"):
            on_gpu.add_(1)
        side.wait_stream(torch.cuda.default_stream())
        on_gpu.add_(1)
    with pytest.raises(Race, match="without waiting"):
        on_gpu.sum()
    torch.cuda.synchronize()
    assert on_gpu.sum().item() == 3 * 3


def test_a_graph_that_is_destroyed_within_a_capture_ends_it(on_gpu, spoilt):
    graphs = [capture(lambda: on_gpu.add_(1))]

    def step():
        graphs.clear()
        on_gpu.mul_(2)
    with pytest.raises(GpuError, match="previous error during capture"):
        capture(step)


def test_a_recurrent_module_has_cudnns_rules(on_gpu):
    cell = torch.nn.GRU(3, 2).to("cuda").eval()
    with pytest.raises(GpuError, match="training mode"):
        cell(on_gpu[None])[0].sum().backward()
    cell.train()(on_gpu[None])[0].sum().backward()
    assert cell.weight_hh_l0.grad.is_cuda
    cell.bias_hh_l0.data = torch.zeros(7, device="cuda")[1:]
    with pytest.warns(UserWarning, match="not part of single contiguous"):
        cell(on_gpu[None])
