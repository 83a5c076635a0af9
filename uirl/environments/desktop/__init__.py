"""A real X desktop: window manager and programs of Debian behind walls, tasks that are checked by what they leave."""
