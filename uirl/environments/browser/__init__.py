"""Web pages in a real browser as environments."""
