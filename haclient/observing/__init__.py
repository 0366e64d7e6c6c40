"""What a client measures, for Prometheus and OpenTelemetry; each needs the extra of its name."""
