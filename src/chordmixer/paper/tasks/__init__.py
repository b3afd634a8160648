"""Tasks of the paper that are made by a rule: the Adding problem, and fragments of genomes."""
