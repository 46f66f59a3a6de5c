"""Launchers: how processes were started, read from the environment."""
