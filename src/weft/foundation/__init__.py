"""Foundation: errors with a remedy, the legend of shape letters, specs, seeds, device and numerics policy."""
