"""Which episodes to play next, and which tasks a policy is trained and measured on."""
