"""What a fitted model says: likelihoods, goodness of fit, samples, forecasts, explanations."""
