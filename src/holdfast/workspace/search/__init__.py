"""Search for text and files, with external programs or without.

Permissions and the format of results belong to the tools that search (`tools`).
"""
