"""Send commands to a panel and wait for their replies."""

from __future__ import annotations

import time


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def of(panel, kind):
    return [m for m in panel.sent if m["type"] == kind]


def ask(panel, req, name, /, **args):
    panel.receive({"type": "command", "name": name, "args": args, "req": req})
    until(lambda: any(m["req"] == req for m in of(panel, "reply")))
    (reply,) = [m for m in of(panel, "reply") if m["req"] == req]
    return reply
