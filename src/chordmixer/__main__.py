"""`python -m chordmixer` is the command line."""

from chordmixer.cli import main

main()
