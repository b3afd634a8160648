"""Commands of the paper: `reproduce`, `bench` and `demo`."""
