#!/bin/sh
# tiny-qwen3-moe by vllm-0.32.0-cpu on node1: node rank 1 of 2 in gang gang0.
# Written by l40s-deploy from plan 42d05ac3fa4c. To run a gang by hand, run each node's script on its
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
# rank 0 gives the others this address; without it, vLLM uses the address of the default route, and hangs if there is none
export VLLM_HOST_IP=10.0.0.12
# the stack's environment first, then the system
export PATH=/opt/l40s/venvs/vllm-0.32.0-cpu/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# home directory of root on this node
export HOME=/root
# the log is UTF-8 on every node
export LANG=C.UTF-8
# log lines reach the agent immediately
export PYTHONUNBUFFERED=1
# the checkpoint is local: nothing is looked up on the internet
export HF_HUB_OFFLINE=1
# caches on this node, for this stack only: nodes with a shared home, or two stacks, would race
export XDG_CACHE_HOME=/var/lib/l40s-deploy/cache/vllm-0.32.0-cpu
# the checkpoint's own code is copied here, on this node, for this stack only: nodes with a shared home, or two stacks, would race
export HF_HOME=/var/lib/l40s-deploy/cache/vllm-0.32.0-cpu/huggingface
# torch.compile's output, on this node, for this stack only: nodes with a shared home, or two stacks, would race
export TORCHINDUCTOR_CACHE_DIR=/var/lib/l40s-deploy/cache/vllm-0.32.0-cpu/inductor
# stack vllm-0.32.0-cpu
export VLLM_WORKER_MULTIPROC_METHOD=spawn
# stack vllm-0.32.0-cpu
export VLLM_NO_USAGE_STATS=1
# stack vllm-0.32.0-cpu
export VLLM_CPU_KVCACHE_SPACE=1
# stack vllm-0.32.0-cpu
export VLLM_CPU_OMP_THREADS_BIND=nobind
# stack vllm-0.32.0-cpu
export OMP_NUM_THREADS=1
# stack vllm-0.32.0-cpu
export TORCHDYNAMO_DISABLE=1

# The flags, and where each comes from:
#   --model: the profile's directory below the node's model root
#   --tensor-parallel-size: layout: tensor parallel degree
#   --distributed-executor-backend: a process for each rank, which the agent watches; also where there is one rank
#   --nnodes: nodes in the gang's inventory group
#   --node-rank: this node's position in the gang's inventory group
#   --master-addr: rendezvous on the leader, the same on every node
#   --master-port: l40s_dist_init_port, the same on every node
#   --served-model-name: the profile's name, which clients ask for instead of a path
#   --shutdown-timeout: running requests may finish; by default they are aborted
#   --headless: workers alone: the first node serves
#   --dtype: stack vllm-0.32.0-cpu
#   --enforce-eager: stack vllm-0.32.0-cpu
#   --max-model-len: stack vllm-0.32.0-cpu
cd -- /var/lib/l40s-deploy
exec /opt/l40s/venvs/vllm-0.32.0-cpu/bin/python3 -m vllm.entrypoints.cli.main serve \
    --model /workspace/tiny-qwen3-moe \
    --tensor-parallel-size 2 \
    --distributed-executor-backend mp \
    --nnodes 2 \
    --node-rank 1 \
    --master-addr 10.0.0.11 \
    --master-port 5000 \
    --served-model-name tiny-qwen3-moe \
    --shutdown-timeout 30 \
    --headless \
    --dtype bfloat16 \
    --enforce-eager \
    --max-model-len 512
