"""Other encoders, `Packed` in and `Packed` out, one file each; `chordmixer.models.ENCODERS` names them."""
