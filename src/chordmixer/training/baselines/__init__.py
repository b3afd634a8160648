"""Simple models beside a network: fitted on the same split, chosen on its validation part, saved without pickle."""
