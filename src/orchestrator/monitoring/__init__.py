"""What a cluster tells a monitoring system: metrics, rules, scrape targets, a dashboard. Pure."""
