"""Plots: charts of rates and scores, of forecasts and of maps."""
