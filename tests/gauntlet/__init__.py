"""Silent faults that other packages have shipped, planted on a tiny model: `uirl check` names each."""
