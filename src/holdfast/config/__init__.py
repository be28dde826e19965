"""Settings and credentials: files, their merge and validation, trust in project files, and changes.

The types of the settings are in `domain.settings`. Their interpretation belongs to the packages that use them.
"""
