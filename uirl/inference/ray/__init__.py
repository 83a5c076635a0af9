"""Ray: the cluster of a run, where its actors find places, and engines that run there."""
