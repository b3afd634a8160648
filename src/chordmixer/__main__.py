"""`python -m chordmixer` is the command line; torchrun and accelerate start each rank so."""

import sys

from chordmixer.cli import main

try:
    main()
except SystemExit as end:
    if ranks := sys.modules.get("chordmixer.training.ranks"):
        ranks.end_rank(end.code)
    raise
