"""Profiles of GPUs from operator tables: published times of single operators, added up to engine steps."""
