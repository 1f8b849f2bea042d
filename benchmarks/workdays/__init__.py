"""Workdays with a real model and real gradients: a seed's stream of days, four conditions, held-out days at the end."""
