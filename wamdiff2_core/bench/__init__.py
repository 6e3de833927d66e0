"""`wamdiff2 bench`: the speed ladder of one model on one machine, every row measured in the same run."""
