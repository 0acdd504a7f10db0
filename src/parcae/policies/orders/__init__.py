"""Policies of the world of cores that plan orders by a formula (FIFO, FAIR, SRPT, FSP, ...)."""
