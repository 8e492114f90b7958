"""The admin listener: health and metrics for operators and their machines."""
