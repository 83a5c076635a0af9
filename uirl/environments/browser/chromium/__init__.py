"""The browser process: started, spoken to over its pipe, shared by all sessions, never left behind."""
