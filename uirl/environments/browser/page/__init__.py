"""One page with its tabs and frames: going somewhere, looking, acting, and what it may not do."""
