"""What the browser is spoken to with: its pipe, the DevTools protocol, and how many pages a machine can hold."""
