"""The compiled event loop."""
