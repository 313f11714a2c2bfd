"""Has the worker answer at once with a reply of half a million digits, and computes while the judge reads those.

problem: attend
verdict: integrity violation
seen: reply has [0-9,]+ bytes
defence: D4, a reply is short, and the clock runs until the snapshot is read
timed: true
"""

import json
import struct
import sys

import torch

channel = sys.modules["harness.protocol"].Channel
transports = sys.modules["harness.worker.transports"]
send, page_out = channel.send, transports.CpuTransport.page_out
waiting, late = [], []
DIGITS = b"[" + b",".join([b"9" * 4300] * 120) + b"]"


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v


def page_out_late(self, arena, spec, address):
    if waiting and waiting[-1][1].data_ptr() == address:
        late.append((arena.address + spec.offset, *waiting.pop()))
    else:
        page_out(self, arena, spec, address)


def send_first(self, message, *arguments):
    if not late:
        send(self, message, *arguments)
        return
    message["reply"]["outputs"][0]["stride"] = "DIGITS"
    before, after = json.dumps(message, separators=(",", ":")).encode().split(b'"DIGITS"')
    body = before + DIGITS + after
    self._connection.settimeout(None)
    self._connection.sendall(struct.pack(">I", len(body)) + body)
    place, data, out = late.pop()
    out.copy_(attention(*data))
    transports._memmove(place, out.data_ptr(), out.numel() * 4)


channel.send, transports.CpuTransport.page_out = send_first, page_out_late


def custom_kernel(data):
    if data[0].shape[1] < 100:
        return attention(*data)
    waiting.append((data, torch.empty_like(data[0])))
    return waiting[-1][1]
