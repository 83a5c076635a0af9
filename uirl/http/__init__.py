"""HTTP as all of the package speaks it: one client, one guard of servers, one table of sessions."""
