"""Run the command line by `python -m chordmixer`, as torchrun and accelerate do in each rank."""

import sys

from chordmixer.cli import main

try:
    main()
except SystemExit as end:
    if ranks := sys.modules.get("chordmixer.training.ranks"):
        ranks.end_rank(end.code)
    raise
