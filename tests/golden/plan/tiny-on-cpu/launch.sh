#!/bin/sh
# tiny-deepseek-v3 by sglang-0.5.23-cpu on node1: node rank 1 of 2 in gang gang0.
# Written by l40s-deploy from plan 854a7a3d1272. To run a gang by hand, run each node's script on its
# node within a few minutes of each other; the leader then serves http://10.0.0.11:8000
set -eu

# What the calling shell has set for the engine and its libraries would mix with the plan.
for name in $(env | sed -nE \
    's/^((NCCL_|GLOO_|SGLANG_|SGL_|VLLM_|TORCH_|PYTORCH_|CUDA_|FLASHINFER_|TRITON_)[A-Za-z0-9_]*)=.*/\1/p'); do
    unset "$name"
done
unset LD_PRELOAD PYTHONPATH

# bond0 is a bond in 10.0.0.0/24, which all 2 nodes share; 4 other shared networks
export GLOO_SOCKET_IFNAME=bond0
# rank 0 gives the others this address; without it, SGLang uses the address of the default route, and hangs if there is none
export SGLANG_HOST_IP=10.0.0.12
# the stack's environment first, then the system
export PATH=/opt/l40s/venvs/sglang-0.5.23-cpu/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# home directory of root on this node
export HOME=/root
# the log is UTF-8 on every node
export LANG=C.UTF-8
# log lines reach the agent immediately
export PYTHONUNBUFFERED=1
# the checkpoint is local: nothing is looked up on the internet
export HF_HUB_OFFLINE=1
# caches on this node, for this stack only: nodes with a shared home, or two stacks, would race
export XDG_CACHE_HOME=/var/lib/l40s-deploy/cache/sglang-0.5.23-cpu
# the checkpoint's own code is copied here, on this node, for this stack only: nodes with a shared home, or two stacks, would race
export HF_HOME=/var/lib/l40s-deploy/cache/sglang-0.5.23-cpu/huggingface
# torch.compile's output, on this node, for this stack only: nodes with a shared home, or two stacks, would race
export TORCHINDUCTOR_CACHE_DIR=/var/lib/l40s-deploy/cache/sglang-0.5.23-cpu/inductor
# stack sglang-0.5.23-cpu
export SGLANG_USE_CPU_ENGINE=1
# stack sglang-0.5.23-cpu
export SGLANG_CPU_OMP_THREADS_BIND=0-1
# stack sglang-0.5.23-cpu
export OMP_NUM_THREADS=1
# stack sglang-0.5.23-cpu
export TORCHDYNAMO_DISABLE=1

# The flags, and where each comes from:
#   --model-path: the profile's directory below the node's model root
#   --tp-size: layout: tensor parallel degree
#   --dist-init-addr: rendezvous on the leader, the same on every node
#   --nnodes: nodes in the gang's inventory group
#   --node-rank: this node's position in the gang's inventory group
#   --served-model-name: the profile's name, which clients ask for instead of a path
#   --trust-remote-code: the profile: the checkpoint contains its own code
#   --host: l40s_http_host; on every node, or a worker's /health is loopback only
#   --port: l40s_http_port; on every node for the same reason
#   --enable-metrics: /metrics on the leader: queue, speed, and whether a busy engine makes progress
#   --device: stack sglang-0.5.23-cpu
#   --attention-backend: stack sglang-0.5.23-cpu
#   --max-total-tokens: stack sglang-0.5.23-cpu
#   --cuda-graph-backend-decode: stack sglang-0.5.23-cpu
#   --cuda-graph-backend-prefill: stack sglang-0.5.23-cpu
#   --disable-custom-all-reduce: stack sglang-0.5.23-cpu
#   --sleep-on-idle: stack sglang-0.5.23-cpu
cd -- /var/lib/l40s-deploy
exec /opt/l40s/venvs/sglang-0.5.23-cpu/bin/python3 -m sglang.launch_server \
    --model-path /workspace/tiny-deepseek-v3 \
    --tp-size 2 \
    --dist-init-addr 10.0.0.11:5000 \
    --nnodes 2 \
    --node-rank 1 \
    --served-model-name tiny-deepseek-v3 \
    --trust-remote-code \
    --host 0.0.0.0 \
    --port 8000 \
    --enable-metrics \
    --device cpu \
    --attention-backend torch_native \
    --max-total-tokens 4096 \
    --cuda-graph-backend-decode disabled \
    --cuda-graph-backend-prefill disabled \
    --disable-custom-all-reduce \
    --sleep-on-idle
