"""What only the reproduction of the paper needs: its tasks, recipes, tables and figures, and its measurements.

The core never imports it: `chordmixer reproduce`, `bench`, `demo` and `train TASK` load it by name.
"""
