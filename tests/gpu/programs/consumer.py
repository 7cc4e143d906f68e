"""`consumer.py SOCKET WHAT`: attach to the tower, do WHAT, say how it went in one JSON line.

run     compute              write   write to a weight, against the contract
hold    say ready, compute once stdin closes
change  map writable and change one value          swap   map writable and swap two values
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import torch

from tower import KEY, Tower, given
from weightlease.gpu import WeightCacheClient, channel
from weightlease.gpu.arena import attach_segments
from weightlease.gpu.channel import PROTOCOL_VERSION, Answer, Ask
from weightlease.gpu.cuda_vmm import CudaDevice


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def hostile(path: str, what: str) -> None:
    device = CudaDevice()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        ask = Ask(PROTOCOL_VERSION, KEY, device.uuid, str(torch.__version__))
        channel.send_message(connection, ask)
        answer, fds = channel.receive_message(connection, Answer, descriptors=True)
        assert answer.granted is not None
        mapping = attach_segments(device, fds[1:], answer.granted.segments, writable=True)
    words = mapping.tensor().view(torch.int32)
    one, other = words[0].clone(), words[1].clone()
    if what == "change":
        words[0] = one + 1
    else:
        words[0], words[1] = other, one
    device.synchronize()
    say(done=what)


def main() -> None:
    path, what = sys.argv[1:]
    if what in {"change", "swap"}:
        hostile(path, what)
        return
    with torch.no_grad(), WeightCacheClient(path, KEY).load_model(Tower) as attached:
        if what == "hold":
            say(ready=True)
            sys.stdin.read()
        if what == "write":
            try:
                attached.model.scale.add_(1)
                torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001 - what CUDA says is the result
                say(refused=str(error).splitlines()[0])
                return
        say(output=float(attached.model(given()).sum()))


if __name__ == "__main__":
    main()
