"""What every training shares: the loop, checkpoints, the folder of a run, its journal, one process or many."""
