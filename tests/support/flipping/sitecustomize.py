"""Plants one flipped bit behind torch.distributed's back, wherever this folder is in PYTHONPATH.

FLIP_BYTE is "START,END,PLACE,LEAST": in what rank START sends to rank END (START -1: in the sums of rank END), it is in
byte PLACE from the end of every tensor of at least LEAST bytes.
"""

from __future__ import annotations

import os
from typing import Any

if os.environ.get("FLIP_BYTE"):
    import torch
    import torch.distributed as dist

    START, END, PLACE, LEAST = (int(word) for word in os.environ["FLIP_BYTE"].split(","))
    begin, receive, batch, reduce = dist.init_process_group, dist.irecv, dist.batch_isend_irecv, dist.all_reduce

    def flip(tensor: Any) -> None:
        data = tensor.view(torch.uint8)
        if data.numel() >= LEAST:
            data[-1 - PLACE] ^= 1

    class Received:
        def __init__(self, requests: Any, tensors: Any) -> None:
            self.requests, self.tensors = requests, tensors

        def wait(self) -> None:
            for request in self.requests:
                request.wait()
            for tensor in self.tensors:
                flip(tensor)

    def received(tensor: Any, start: int, **words: Any) -> Received:
        return Received([receive(tensor, start, **words)], [tensor] * (start == START))

    def exchanged(operations: Any) -> list[Received]:
        theirs = [one.tensor for one in operations if one.op is receive and one.peer == START]
        return [Received(batch(operations), theirs)]

    def reduced(tensor: Any, *words: Any, **more: Any) -> None:
        reduce(tensor, *words, **more)
        flip(tensor)

    def joined(backend: str, **words: Any) -> None:
        begin(backend, **words)
        if words["rank"] != END:
            return
        if START < 0:
            dist.all_reduce = reduced
        elif backend == "gloo":
            dist.irecv = received
        else:
            dist.batch_isend_irecv = exchanged

    dist.init_process_group = joined
