"""A function without torch that child processes of the tests call: it hangs, or answers at once."""

from __future__ import annotations

import json
import sys
import time


def answer() -> None:
    request = json.loads(sys.stdin.readline() or "{}")
    if request.get("hangs"):
        print(json.dumps({"stage": "verification"}), flush=True)
        time.sleep(600)
    print(json.dumps({"inference": {"milliseconds": 1.0}, "done": True}))
