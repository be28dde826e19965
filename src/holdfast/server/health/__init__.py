"""Health checks behind `holdfast doctor`."""
