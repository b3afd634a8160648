"""In place of the process that a case runs in, without torch: it hangs, or answers at once."""

from __future__ import annotations

import json
import sys
import time

if __name__ == "__main__":
    case = json.loads(sys.stdin.readline() or "{}")
    if case.get("encoder") == "hanging":
        print(json.dumps({"stage": "verification"}), flush=True)
        time.sleep(600)
    print(json.dumps({"inference": {"milliseconds": 1.0}, "done": True}))
