"""The report of a night and of all nights before it: one HTML file that needs no network."""
