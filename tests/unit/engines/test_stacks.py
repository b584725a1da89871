"""Where a stack shows a rank to stand."""

from __future__ import annotations

import pytest

from orchestrator.engines.stacks import Activity, place_of

C10D = "torch/distributed/distributed_c10d.py"
WRAPPER = "wrapper (torch/distributed/c10d_logger.py:83)"

STACKS = [
    ("eager all-reduce", (f"all_reduce ({C10D}:2810)", WRAPPER, "attention (model.py:7)"),
     Activity.COLLECTIVE, "all_reduce", "attention (model.py:7)"),
    ("an object's broadcast is one operation",
     (f"broadcast ({C10D}:2700)", WRAPPER, f"broadcast_object_list ({C10D}:3400)", WRAPPER, "sync (model.py:9)"),
     Activity.COLLECTIVE, "broadcast_object_list", "sync (model.py:9)"),
    ("SGLang's requests, by broadcast",
     (f"broadcast ({C10D}:2700)", WRAPPER, "broadcast_pyobj (sglang/srt/utils/common.py:1200)",
      "Scheduler.recv_requests (sglang/srt/managers/scheduler.py:900)"),
     Activity.COLLECTIVE, "broadcast", "broadcast_pyobj (sglang/srt/utils/common.py:1200)"),
    ("pynccl", ("PyNcclCommunicator.all_reduce (sglang/srt/distributed/device_communicators/pynccl.py:158)",
                "GroupCoordinator.all_reduce (sglang/srt/distributed/parallel_state.py:500)",
                "RowParallelLinear.forward (sglang/srt/layers/linear.py:1300)"),
     Activity.COLLECTIVE, "all_reduce", "RowParallelLinear.forward (sglang/srt/layers/linear.py:1300)"),
    ("a stage of a pipeline", (f"recv ({C10D}:2300)", WRAPPER, "recv_stage (pp.py:3)"),
     Activity.POINT, "recv", "recv_stage (pp.py:3)"),
    ("a graph", ("CUDAGraph.replay (torch/cuda/graphs.py:88)",
                 "CudaGraphRunner.replay (sglang/srt/model_executor/cuda_graph_runner.py:800)"),
     Activity.GRAPH, "", "CudaGraphRunner.replay (sglang/srt/model_executor/cuda_graph_runner.py:800)"),
    ("the GPU", ("Event.synchronize (torch/cuda/streams.py:230)", "process (sglang/srt/managers/scheduler.py:40)"),
     Activity.GPU, "", "process (sglang/srt/managers/scheduler.py:40)"),
    ("FlashInfer tunes", (f"all_reduce ({C10D}:2810)", WRAPPER,
                          "AutoTuner._profile_single_kernel (flashinfer/autotuner.py:700)", "warm (w.py:1)"),
     Activity.TUNES, "", "warm (w.py:1)"),
    ("a kernel is built", ("communicate (/usr/lib/python3.11/subprocess.py:1100)",
                           "_run_ninja_build (torch/utils/cpp_extension.py:2500)", "load (ops.py:3)"),
     Activity.COMPILES, "", "communicate (/usr/lib/python3.11/subprocess.py:1100)"),
    ("waits for requests", ("recv_pyobj (zmq/sugar/socket.py:900)",
                            "Scheduler.recv_requests (sglang/srt/managers/scheduler.py:900)"),
     Activity.IDLE, "", "recv_pyobj (zmq/sugar/socket.py:900)"),
    ("own code", ("slow_step (model.py:12)", "main (model.py:1)"), Activity.OWN, "", "slow_step (model.py:12)"),
    ("own code named like a collective", ("all_reduce (model.py:12)",), Activity.OWN, "", "all_reduce (model.py:12)"),
    ("compiled code runs", ("call (torch/_inductor/output_code.py:30)", "forward (model.py:3)"),
     Activity.OWN, "", "call (torch/_inductor/output_code.py:30)"),
    ("no frame at all", ("???",), Activity.OWN, "", "???"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("frames", "activity", "operation", "where"), [one[1:] for one in STACKS], ids=[one[0] for one in STACKS]
)
def test_a_stack_shows_a_place(frames: tuple[str, ...], activity: Activity, operation: str, where: str) -> None:
    place = place_of(frames)
    assert (place.activity, place.operation, place.where) == (activity, operation, where)


def test_the_same_operation_for_two_layers_is_not_the_same_place() -> None:
    mlp, attention = (
        place_of((f"all_reduce ({C10D}:2810)", WRAPPER, f"{name} (model.py:{line})", "forward (model.py:3)"))
        for name, line in (("mlp", 9), ("attention", 7))
    )
    assert mlp.path != attention.path


def test_an_empty_stack_shows_no_place() -> None:
    with pytest.raises(ValueError, match="empty stack"):
        place_of(())
