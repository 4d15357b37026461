"""Models: every classic model, assembled from parts by a frozen, validated, versioned spec."""
