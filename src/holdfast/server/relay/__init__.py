"""Relay between the nodes of a cluster: requests that need the process of the owner of a workspace."""
