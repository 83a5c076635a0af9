"""Android phones behind MobileWorld servers: actions of MAI-UI in, screenshots and replies out, the task's score."""
