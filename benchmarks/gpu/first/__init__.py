"""Checks for the first hour with a GPU; first_run.py runs them."""
