"""The job on Fenchel in one process, as a user writes it."""

import fenchel

run = fenchel.up("digits.yaml", in_process=True)
print("accuracy", run.figures["test_accuracy"])
