#!/bin/sh
# DeepSeek-V3-0324-Block64x64 by sglang-0.5.23 on node3: node rank 3 of 4 in gang gang0.
# Written by l40s-deploy from plan 1bf33ea9728d. To run a gang by hand, run each node's script on its
# node within a few minutes of each other; the leader then serves http://10.0.0.11:8000
set -eu

# What the calling shell has set for the engine and its libraries would mix with the plan.
for name in $(env | sed -nE \
    's/^((NCCL_|GLOO_|SGLANG_|SGL_|VLLM_|TORCH_|PYTORCH_|CUDA_|FLASHINFER_|TRITON_)[A-Za-z0-9_]*)=.*/\1/p'); do
    unset "$name"
done
unset LD_PRELOAD PYTHONPATH

# NCCL logs the transport it uses, so a fallback to TCP is noticed
export NCCL_DEBUG=INFO
# only the lines that show RDMA and GPUDirect
export NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV
# bond0 is a bond in 10.0.0.0/24, which all 4 nodes share; 4 other shared networks; `=` is NCCL's exact match
export NCCL_SOCKET_IFNAME='=bond0'
# bond0 is a bond in 10.0.0.0/24, which all 4 nodes share; 4 other shared networks
export GLOO_SOCKET_IFNAME=bond0
# rank 0 gives the others this address; without it, SGLang uses the address of the default route, and hangs if there is none
export SGLANG_HOST_IP=10.0.0.14
# the agent asks NCCL's RAS here when the engine makes no progress; each gang of a node has its own port
export NCCL_RAS_ADDR=127.0.0.1:28028
# l40s_transport is auto, and every node has usable RDMA ports; a silent fallback to TCP becomes an error
export NCCL_NET=IB
# the ACTIVE RDMA ports under the GPUs' switches, 4 of 6; without `=`, mlx5_1 would also match mlx5_10
export NCCL_IB_HCA='=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1'
# GID 3 is RoCE v2 over IPv4 on all 4 chosen ports of this node
export NCCL_IB_GID_INDEX=3
# GPU numbers mean the same to CUDA, NVML and the plan
export CUDA_DEVICE_ORDER=PCI_BUS_ID
# where the kernels' just-in-time compilers look for nvcc
export CUDA_HOME=/usr/local/cuda
# the stack's environment first, then the system
export PATH=/opt/l40s/venvs/sglang-0.5.23/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# home directory of root on this node
export HOME=/root
# the log is UTF-8 on every node
export LANG=C.UTF-8
# log lines reach the agent immediately
export PYTHONUNBUFFERED=1
# the checkpoint is local: nothing is looked up on the internet
export HF_HUB_OFFLINE=1
# caches on this node, for this stack only: nodes with a shared home, or two stacks, would race
export XDG_CACHE_HOME=/var/lib/l40s-deploy/cache/sglang-0.5.23
# the checkpoint's own code is copied here, on this node, for this stack only: nodes with a shared home, or two stacks, would race
export HF_HOME=/var/lib/l40s-deploy/cache/sglang-0.5.23/huggingface
# torch.compile's output, on this node, for this stack only: nodes with a shared home, or two stacks, would race
export TORCHINDUCTOR_CACHE_DIR=/var/lib/l40s-deploy/cache/sglang-0.5.23/inductor
# Triton's kernels, on this node, for this stack only: nodes with a shared home, or two stacks, would race
export TRITON_CACHE_DIR=/var/lib/l40s-deploy/cache/sglang-0.5.23/triton
# FlashInfer's kernels, on this node, for this stack only: nodes with a shared home, or two stacks, would race
export FLASHINFER_WORKSPACE_BASE=/var/lib/l40s-deploy/cache/sglang-0.5.23/flashinfer

# The flags, and where each comes from:
#   --model-path: the profile's directory below the node's model root
#   --tp-size: layout: tensor parallel degree
#   --dist-init-addr: rendezvous on the leader, the same on every node
#   --nnodes: nodes in the gang's inventory group
#   --node-rank: this node's position in the gang's inventory group
#   --served-model-name: the profile's name, which clients ask for instead of a path
#   --trust-remote-code: the profile: the checkpoint contains its own code
#   --cuda-graph-max-bs-decode: the profile: largest batch captured as a CUDA graph
#   --host: l40s_http_host; on every node, or a worker's /health is loopback only
#   --port: l40s_http_port; on every node for the same reason
#   --enable-metrics: /metrics on the leader: queue, speed, and whether a busy engine makes progress
#   --tool-call-parser: profile DeepSeek-V3-0324-Block64x64
cd -- /var/lib/l40s-deploy
exec /opt/l40s/venvs/sglang-0.5.23/bin/python3 -m sglang.launch_server \
    --model-path /workspace/DeepSeek-V3-0324-Block64x64 \
    --tp-size 32 \
    --dist-init-addr 10.0.0.11:5000 \
    --nnodes 4 \
    --node-rank 3 \
    --served-model-name DeepSeek-V3-0324-Block64x64 \
    --trust-remote-code \
    --cuda-graph-max-bs-decode 32 \
    --host 0.0.0.0 \
    --port 8000 \
    --enable-metrics \
    --tool-call-parser deepseekv3
