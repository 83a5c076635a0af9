"""What every part may use: the event-loop thread, time limits, HTTP, whole-or-absent files, bounds on input."""
