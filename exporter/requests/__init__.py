"""Finished requests -> records -> context tiers.  Nothing here knows the engines' pages."""
